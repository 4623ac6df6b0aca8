"""`keras-vit inspect`: a page, or Figures 6, 7 and 14."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from keras_vit.arguments import counted
from keras_vit.cli.fields import grouped
from keras_vit.cli.loaders import (
    class_names,
    image_files,
    open_model,
    predicts_patches,
    read_image,
    tests_trained_images,
)
from keras_vit.cli.options import NamedModel
from keras_vit.cli.shell import app, console, errors

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.data.splits import Split

T = TypeVar("T")


Figure = Literal["6", "7", "14"]
ROBUST = 0.97  # Quantile that single bright patches do not change.


@app.command(epilog="Example: keras-vit inspect runs/photos photos/test --count 8")
@grouped
def inspect(
    *,
    model_options: NamedModel,
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Image files or folders of images [default: test images of the run's "
            "data].",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="File to write [default: inspect.html, figure_6.png or "
            "reconstructions.png, in the folder of the run or else here]."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="Largest number of images, evenly spread.")
    ] = 8,
    figure: Annotated[
        Figure | None,
        typer.Option(
            help="Draw this figure of the paper instead of the page: 6 and 14 are "
            "attention maps, 7 filters, positions and attention distances."
        ),
    ] = None,
) -> None:
    """Show how a model processes images, as an HTML page.

    The page has predictions, the attention of every layer and head, rollout (D.8),
    attention distances, filters and positions (Figure 7), and needs no network. For
    masked patch prediction (4.6) a picture is written: the image, the model's input
    and its prediction. Figure 6 has two maps: with the paper's scaling and with a
    scaling that single bright patches do not change.
    """
    from keras_vit.inspection import plots
    from keras_vit.models.description import check_one_size

    model = str(model_options.model)
    network, details = open_model(model_options, purpose="any")
    check_one_size(network)
    folder = Path(model) if Path(model).is_dir() and details else Path()
    if predicts_patches(network) and figure is not None:
        network = network.backbone
    if predicts_patches(network):
        plots.check()
        _, batch = _read(images, network, model, details, count)
        picture = output or folder / "reconstructions.png"
        plots.reconstructions(network.reconstruct(batch), picture)
        console.print(f"wrote {picture}")
        return
    names, batch = _read(images, network, model, details, count)
    if figure is not None:
        picture = output or folder / f"figure_{figure}.png"
        _draw(figure, network, batch, picture)
        console.print(f"wrote {picture}")
        return
    page = output or folder / "inspect.html"
    title = Path(model).name if Path(model).exists() else model
    size = _write_page(network, names, batch, title, page)
    console.print(
        f"wrote {page}: {counted(len(batch), 'image')}, {size / 2**20:.2f} MiB; open "
        "it in a browser"
    )


def _draw(figure: Figure, network: Any, batch: "np.ndarray", picture: Path) -> None:
    """Draws a figure of the paper (4.5, D.8)."""
    from keras_vit import inspection
    from keras_vit.inspection import plots
    from keras_vit.inspection.embeddings import first_filters
    from keras_vit.inspection.page import unnormalized
    from keras_vit.models.vision import preprocessing_of

    if figure == "7":
        plots.figure_7(
            first_filters(network),
            inspection.position_similarity(network),
            inspection.attention_distance(network, batch),
            picture,
        )
        return
    shown = unnormalized(batch, preprocessing_of(network))
    maps = inspection.attention_rollout(network, batch)
    if figure == "6":
        plots.figure_6(shown, maps, picture, quantile=(1.0, ROBUST))
    else:
        plots.figure_14(shown, maps, picture)


def _write_page(
    network: Any,
    names: list[str],
    batch: "np.ndarray",
    title: str,
    page: Path,
) -> int:
    from keras_vit.data.progress import progress
    from keras_vit.inspection import Page

    return Page.of(
        network,
        batch,
        title=title,
        names=names,
        classes=class_names(network),
        progress=lambda items: progress(items, "computing the page", len(batch), True),
    ).write(page)


def _read(
    images: list[Path] | None,
    network: Any,
    model: str,
    details: dict[str, Any],
    count: int,
) -> "tuple[list[str], np.ndarray]":
    """Names and preprocessed images, [B, H, W, C].

    Unreadable images of a folder are left out and printed.

    Raises:
        ValueError: if no image is left, or a named file is not readable.
    """
    import numpy as np

    if not images:
        return _test_images(network, model, details, count)
    files = _spread([file for path in images for file in image_files(path)], count)
    read, left_out = [], []
    for file in files:
        try:
            read.append((_name(file), read_image(file, network)))
        except ValueError as error:
            if file in images:  # A named file, not one of a folder.
                raise
            left_out.append(error)
    if not read:
        raise left_out[0]
    for reason in left_out:
        errors.print(f"left out {reason}")
    return [name for name, _ in read], np.stack([image for _, image in read])


def _name(file: Path) -> str:
    """A file with its folder, which is often the class."""
    return str(Path(*file.absolute().parts[-2:]))


def _spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` items, evenly spread, because they may be sorted by class."""
    import numpy as np

    places = np.linspace(0, len(items) - 1, min(count, len(items))).astype(int)
    return [items[place] for place in places]


def _test_images(
    network: Any, model: str, details: dict[str, Any], count: int
) -> "tuple[list[str], np.ndarray]":
    """Test images of a run's data, evenly spread, or training images without any."""
    import numpy as np

    from keras_vit.data import pipelines, sources
    from keras_vit.data.splits import Indexed
    from keras_vit.models.vision import preprocessing_of

    data = details.get("data")
    if data is None:
        raise ValueError("Expected image files or folders of images. Received: none")
    try:
        source = sources.open_source(
            data,
            seed=details.get("seed", 0),
            on_corrupt="skip",  # It prints them; the run may have skipped them too.
            labels="objective" not in details,
        )
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(
            "Expected image files, folders of images, or the data of the run. "
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
    kind = "test image"
    if source.test is None:
        kind = "training image"
    elif tests_trained_images(source, model, details):
        kind = "image"  # Drawn again from changed data: of either kind.
    if source.classes == sources.UNLABELLED:
        return [kind] * len(images), images
    return [f"{kind} of {source.classes[label]}" for label in labels], images
