"""`keras-vit export`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from keras_vit.cli.fields import given, grouped
from keras_vit.cli.loaders import class_names, open_model
from keras_vit.cli.options import Corrupt, NamedModel, TestSeed
from keras_vit.cli.shell import app, console
from keras_vit.export_formats import PRECISIONS, SUFFIXES, Format

if TYPE_CHECKING:
    from keras_vit.evaluation.classification import Task
    from keras_vit.evaluation.metrics import PerImage


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedModelOptions:
    """What a SavedModel alone has."""

    top_k: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            help="SavedModel only: classes returned for each image [default: 5].",
        ),
    ] = None
    on_bad_image: Annotated[
        Literal["status", "fail"] | None,
        typer.Option(
            help="SavedModel only: an unreadable image sets its status, or fails its "
            "batch [default: status]."
        ),
    ] = None
    version: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="SavedModel only: version number [default: the one after the last].",
        ),
    ] = None


@app.command(epilog="Example: keras-vit export runs/photos photos.tflite")
@grouped
def export(
    *,
    asked: NamedModel,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="A file .tflite, .onnx or .xml, with FILE.labels.txt and "
            "FILE.facts.json next to it; of savedmodel the folder of versions.",
        ),
    ],
    file_format: Annotated[
        Format | None,
        typer.Option("--format", help="What to write [default: as OUT ends]."),
    ] = None,
    precision: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(
            help="float16: litert. int8: litert's own, or Keras's for savedmodel and "
            "onnx."
        ),
    ] = "float32",
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled images, as in `finetune`: prints the accuracy before and "
            "after, and proves a file on some of them."
        ),
    ] = None,
    saved_model: SavedModelOptions,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace files, or the --version, that are there."
        ),
    ] = False,
    on_corrupt: Corrupt = "stop",
    seed: TestSeed = None,
) -> None:
    """Writes a trained model for production, and compares it with Keras there.

    In a process without Keras. A SavedModel takes encoded images and says class names;
    the other formats take decoded uint8 images of the model's size and give
    probabilities.
    """
    kind = file_format or _format_of(output)
    if precision not in PRECISIONS[kind]:
        raise ValueError(
            f"Expected --precision {' or '.join(PRECISIONS[kind])} with --format "
            f"{kind}. Received: --precision {precision}"
        )
    options = given(saved_model)
    if options and kind != "savedmodel":
        raise ValueError(
            "Expected --top, --on-bad-image and --version with --format savedmodel. "
            f"Received: --format {kind}"
        )
    from keras_vit import serving

    network, details = open_model(asked, purpose="any")
    task = None if data is None else _task(data, details, seed, on_corrupt)
    before = None if task is None else _by_keras(network, task)
    if precision == "int8" and kind != "litert":
        console.print(str(serving.quantize(network)))
        precision = "float32"  # Of what is left.
    if kind == "savedmodel":
        exported = serving.export(
            network,
            output,
            class_names(network) or None,
            overwrite=force,
            verbose=False,
            **options,
        )
        console.print(str(exported))
        after = None if task is None else _by_savedmodel(exported.path, network, task)
    else:
        file = output
        if file.suffix != SUFFIXES[kind]:
            file = file.with_name(file.name + SUFFIXES[kind])
        written = serving.export_file(
            network,
            file,
            class_names(network) or None,
            precision=precision,
            images=None if task is None else _some(task, network),
            overwrite=force,
            verbose=False,
        )
        console.print(str(written))
        after = None if task is None else _by_file(file, network, task)
    if before is not None and after is not None:
        _print_change(before, after)


def _format_of(output: Path) -> str:
    """As a file's name ends; a folder is a SavedModel's."""
    for kind, suffix in SUFFIXES.items():
        if output.suffix == suffix:
            return kind
    if output.suffix and not output.is_dir():
        raise ValueError(
            f"Expected OUT to end in {', '.join(SUFFIXES.values())}, or --format. "
            f"Received: {output}"
        )
    return "savedmodel"


def _task(
    data: str, details: dict[str, Any], seed: int | None, on_corrupt: Any
) -> "Task":
    """The test images of `data`."""
    from keras_vit.data import sources
    from keras_vit.evaluation.classification import task_of

    seed = details.get("seed", 0) if seed is None else seed
    return task_of(sources.open_source(data, seed=seed, on_corrupt=on_corrupt))


def _by_keras(network: Any, task: "Task") -> "PerImage":
    from keras_vit.evaluation.classification import classify

    return classify(network, task).images


def _pixels(network: Any, task: "Task", batch_size: int) -> Any:
    """A task's images as a file takes them: batches of uint8 [B, H, W, C], labels."""
    import numpy as np

    from keras_vit.data.pipelines import eval_pipeline
    from keras_vit.models.vision import preprocessing_of

    *size, channels = network.input_shape[1:]
    as_pixels = dataclasses.replace(  # Leaves 0..255 as it is.
        preprocessing_of(network), mean=(0.0,), std=(1 / 255,)
    )
    batches = eval_pipeline(
        task.split,
        image_size=tuple(size),
        batch_size=batch_size,
        preprocessing=as_pixels,
        channels=channels,
    )
    for images, labels in batches.as_numpy_iterator():
        yield np.rint(images).astype(np.uint8), labels


def _some(task: "Task", network: Any) -> Any:
    """The first images of a task."""
    return next(_pixels(network, task, min(16, len(task.split))))[0]


def _by_savedmodel(folder: Path, network: Any, task: "Task") -> "PerImage":
    """What a SavedModel says of a task's images."""
    import tensorflow as tf

    from keras_vit.data.pipelines import eval_pipeline
    from keras_vit.evaluation.metrics import Counts
    from keras_vit.models.vision import preprocessing_of

    counts = Counts(task.model_outputs)
    loaded = tf.saved_model.load(str(folder))
    *size, channels = network.input_shape[1:]
    for images, labels in eval_pipeline(
        task.split,
        image_size=tuple(size),
        batch_size=32,
        preprocessing=preprocessing_of(network),
        channels=channels,
    ):
        said = loaded.signatures["images_float32"](images=images)
        counts.update(said["logits"].numpy(), labels.numpy())
    return counts.per_image()


def _by_file(file: Path, network: Any, task: "Task") -> "PerImage":
    """What an exported file says of a task's images, in processes without Keras."""
    import numpy as np

    from keras_vit.evaluation.metrics import Counts
    from keras_vit.serving.formats import file_scores

    counts = Counts(task.model_outputs)
    least = np.finfo(np.float32).tiny
    for images, labels in _pixels(network, task, 256):
        scores = file_scores(file, images)
        counts.update(np.log(np.maximum(scores, least)), labels)
    return counts.per_image()


def _print_change(before: "PerImage", after: "PerImage") -> None:
    from keras_vit.evaluation.metrics import paired_difference

    images = len(before)
    for name, found in (("before", before), ("after", after)):
        right = int(found.right.sum())
        console.print(f"accuracy {name:6} {right / images:7.2%} ({right} of {images})")
    change = paired_difference(before.right, after.right)
    value, low, high = (100 * n for n in (change.value, change.low, change.high))
    same = (before.prediction == after.prediction).mean()
    console.print(
        f"change {value:+.2f} points (95 %: {low:+.2f} to {high:+.2f}); the same class "
        f"for {same:.1%} of the images"
    )
