"""`keras-vit inspect`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from keras_vit.cli.fields import grouped
from keras_vit.cli.loaders import (
    class_names,
    image_files,
    open_model,
    predicts_patches,
    read_image,
)
from keras_vit.cli.options import NamedModel
from keras_vit.cli.shell import app, console, errors

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.data.splits import Split

T = TypeVar("T")


@app.command(epilog="Example: keras-vit inspect runs/photos photos/test --count 8")
@grouped
def inspect(
    *,
    asked: NamedModel,
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Image files, or folders of them [default: test images of the run's "
            "data].",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The page, or of masked patches the picture [default: inspect.html or "
            "reconstructions.png, in the run's folder or else here]."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="Images at most, from all over those given.")
    ] = 8,
) -> None:
    """Shows what a trained model does with images, as one page of HTML.

    Predictions, attention of every layer and head, rollout (D.8), attention distance,
    filters and positions (Figure 7); the page needs no network. Of masked patch
    prediction (4.6) it is a picture: the image, what the model saw, what it predicted.
    """
    from keras_vit.inspection import plots

    model = str(asked.model)
    network, details = open_model(asked, purpose="any")
    folder = Path(model) if Path(model).is_dir() and details else Path()
    if predicts_patches(network):
        plots.check()
        _, batch = _read(images, network, details, count)
        picture = output or folder / "reconstructions.png"
        plots.reconstructions(network.reconstruct(batch), picture)
        console.print(f"wrote {picture}")
        return
    names, batch = _read(images, network, details, count)
    page = output or folder / "inspect.html"
    title = Path(model).name if Path(model).exists() else model
    size = _write_page(network, names, batch, title, page)
    console.print(
        f"wrote {page}: {len(batch)} image{'s' * (len(batch) > 1)}, "
        f"{size / 2**20:.2f} MiB, one file to open in a browser"
    )


def _write_page(
    network: Any,
    names: list[str],
    batch: "np.ndarray",
    title: str,
    page: Path,
) -> int:
    from keras_vit.features import progress
    from keras_vit.inspection import Page

    return Page.of(
        network,
        batch,
        title=title,
        names=names,
        classes=class_names(network),
        progress=lambda items: progress(items, "looking inside", len(batch), True),
    ).write(page)


def _read(
    images: list[Path] | None, network: Any, details: dict[str, Any], count: int
) -> "tuple[list[str], np.ndarray]":
    """Names and images, [B, H, W, C], as the network takes them.

    Of a folder, what is no readable image is left out and named.

    Raises:
        ValueError: if nothing is left, or a file that was named is not readable.
    """
    import numpy as np

    if not images:
        return _test_images(network, details, count)
    files = _spread([file for path in images for file in image_files(path)], count)
    found, left_out = [], []
    for file in files:
        try:
            found.append((_name(file), read_image(file, network)))
        except ValueError as error:
            if file in images:  # Named, not found in a folder.
                raise
            left_out.append(error)
    if not found:
        raise left_out[0]
    for reason in left_out:
        errors.print(f"left out {reason}")
    return [name for name, _ in found], np.stack([image for _, image in found])


def _name(file: Path) -> str:
    """A file and the folder it is in, which is often its class."""
    return str(Path(*file.absolute().parts[-2:]))


def _spread(items: Sequence[T], count: int) -> list[T]:
    """As many at most, from all over: they may lie class by class."""
    import numpy as np

    places = np.linspace(0, len(items) - 1, min(count, len(items))).astype(int)
    return [items[place] for place in places]


def _test_images(
    network: Any, details: dict[str, Any], count: int
) -> "tuple[list[str], np.ndarray]":
    """Test images of what a run was trained on, from all over the set."""
    import numpy as np

    from keras_vit.data import pipelines, sources
    from keras_vit.data.splits import Indexed
    from keras_vit.models.vision import preprocessing_of

    data = details.get("data")
    if data is None:
        raise ValueError(
            "Expected images to look at: files, or folders of them. Received: none"
        )
    try:
        source = sources.open_source(
            data,
            seed=details.get("seed", 0),
            on_corrupt="skip",  # It names them; the run may have done without them too.
            labels=not predicts_patches(network),
        )
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(
            "Expected images to look at, or the data that the run was trained on. "
            f"Received: none, and {data!r} cannot be read ({error})"
        ) from error
    split: Split = source.test or source.train
    if isinstance(split, Indexed):
        split = split.take(np.asarray(_spread(range(len(split)), count)))
    batches = pipelines.eval_pipeline(
        split,
        image_size=network.input_shape[1:3],
        batch_size=count,
        preprocessing=preprocessing_of(network),
        channels=network.input_shape[-1],
    )
    images, labels = next(iter(batches.as_numpy_iterator()))[:2]
    classes = class_names(network)
    return [_told(classes, int(label)) for label in labels], images


def _told(classes: list[str], label: int) -> str:
    """What data without file names says of an image."""
    known = 0 <= label < len(classes)
    return f"test image of {classes[label]}" if known else "test image"
