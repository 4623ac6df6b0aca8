"""Lists the files that are executed for two tasks: loading weights, and predicting.

    python benchmarks/rooms.py                  # This checkout.
    python benchmarks/rooms.py --package PATH   # Another copy of keras_vit.

Each task runs with a small file and is traced. A file is listed if one of its functions
is called, except during the import of a module.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TAG = "augreg-imagenet21k+imagenet2012-224"
VARIANT = "ViT-Ti/16"


def _importing(frame: Any) -> bool:
    """Returns whether a call is part of importing a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def traced(package: Path) -> Iterator[dict[str, set[str]]]:
    """Yields the called functions, by file, in the order of the first calls."""
    called: dict[str, set[str]] = {}
    root = f"{package}{os.sep}"

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        is_ours = event == "call" and code.co_filename.startswith(root)
        if is_ours and code.co_name != "<module>" and not _importing(frame):
            file = code.co_filename.removeprefix(root)
            called.setdefault(file, set()).add(code.co_qualname)

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


def weights_way(folder: Path) -> Callable[[], Any]:
    """Returns the task from a builder with a tag to assigned variables."""
    import keras_vit
    from keras_vit.weights import registry

    model = keras_vit.ViT_Ti16(weights=None)
    path = folder / registry.find(VARIANT, TAG).path
    path.parent.mkdir(parents=True, exist_ok=True)
    keras_vit.weights.save(model, path)
    os.environ["KERAS_VIT_WEIGHTS"] = str(folder)
    return lambda: keras_vit.ViT_Ti16(weights=TAG)


def image_way(folder: Path) -> Callable[[], Any]:
    """Returns the task from an image file to its printed class, for a run's model."""
    import numpy as np
    import tensorflow as tf
    from typer.testing import CliRunner

    import keras_vit
    from keras_vit.cli.shell import app

    config = keras_vit.ViTConfig(
        patch_size=16, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=2
    )
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=2)
    run = folder / "run"
    run.mkdir()
    model.save(run / "model.keras")
    half = [0.5] * 3
    facts = {"classes": ["a", "b"], "mean": half, "std": half, "details": {}}
    (run / "run.json").write_text(json.dumps(facts))
    pixels = np.zeros((40, 40, 3), np.uint8)
    (folder / "a.png").write_bytes(tf.io.encode_png(pixels).numpy())
    arguments = ["predict", "--model", str(run), str(folder / "a.png")]

    def predict() -> None:
        result = CliRunner().invoke(app, arguments)
        if result.exit_code:
            raise SystemExit(f"predict failed: {result.output} {result.exception}")

    return predict


def main() -> None:
    """Prints both lists."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).resolve().parents[1] / "keras_vit"
    parser.add_argument("--package", type=Path, default=here, help="%(default)s")
    package = parser.parse_args().package.resolve()
    sys.path.insert(0, str(package.parent))
    import keras_vit.cli  # noqa: F401

    ways = {
        f"ViT_Ti16(weights={TAG!r}) to assigned variables": weights_way,
        "an image file to its printed class": image_way,
    }
    for title, way in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            walk = way(Path(folder))
            with traced(package) as called, contextlib.redirect_stdout(io.StringIO()):
                walk()
        print(f"{title}: {len(called)} files")
        for file, functions in called.items():
            print(f"  {len(functions):3} functions  {file}")


if __name__ == "__main__":
    main()
