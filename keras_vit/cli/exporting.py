"""`keras-vit export`."""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from keras_vit.arguments import percent
from keras_vit.cli.fields import given, grouped
from keras_vit.cli.loaders import class_names, open_model, open_test
from keras_vit.cli.options import Corrupt, NamedModel, TestSeed
from keras_vit.cli.shell import app, console
from keras_vit.export_formats import PRECISIONS, SUFFIXES, Format, of_file

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.data.source import Source
    from keras_vit.evaluation.classification import Task
    from keras_vit.evaluation.metrics import Estimate, PerImage
    from keras_vit.serving.fastest import Measured

PROOF = 16  # Number of images on which a file is compared with Keras.
# For --fastest: batch size, and number and seconds of measurements of each format.
BATCH, ROUNDS, SECONDS = 32, 3, 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedModelOptions:
    """Options of a SavedModel only."""

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
            help="SavedModel only: version number [default: one above the newest].",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FastestOptions:
    """Options that choose the format by measurement."""

    fastest: Annotated[
        bool,
        typer.Option(
            "--fastest",
            help="Measure every format and precision on this machine and --data, and "
            "write the fastest one.",
        ),
    ] = False
    max_drop: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="With --fastest: accepted loss of accuracy in percentage points, at "
            "95 % confidence [default: 0.5].",
        ),
    ] = None


@app.command(epilog="Example: keras-vit export runs/photos photos.tflite")
@grouped
def export(
    *,
    model_options: NamedModel,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="File to write (.tflite, .onnx or .xml), with FILE.labels.txt, "
            "FILE.facts.json and FILE.manifest.json next to it; for savedmodel the "
            "folder of versions; for --fastest the file name without a suffix.",
        ),
    ],
    file_format: Annotated[
        Format | None,
        typer.Option(
            "--format", help="Format to write [default: by the suffix of OUT]."
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "float16", "int8", "int4"],
        typer.Option(
            help="Precision of the weights: float16 for litert only; int8 by LiteRT "
            "for litert, by Keras for savedmodel and onnx; int4 by Keras for "
            "savedmodel only."
        ),
    ] = "float32",
    data: Annotated[
        str | None,
        typer.Option(
            help="Labeled images, as in `finetune`, to print the accuracy before and "
            "after the export and to verify a file."
        ),
    ] = None,
    saved_model: SavedModelOptions,
    choice: FastestOptions,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace existing files or an existing --version."
        ),
    ] = False,
    on_corrupt: Corrupt = "stop",
    seed: TestSeed = None,
) -> None:
    """Export a trained model for production.

    The export is verified in a process without Keras. A SavedModel accepts encoded
    images and returns class names. The other formats accept decoded uint8 images of the
    model's size and return probabilities.
    """
    if choice.fastest:
        _check_fastest(
            output,
            data,
            force,
            options=given(saved_model),
            file_format=file_format,
            precision=precision,
        )
        network, details = open_model(model_options, purpose="any")
        source = open_test(str(data), seed, on_corrupt, model_options.model, details)
        images = _task(source, network)
        _write_fastest(network, output, images, choice.max_drop, force)
        return
    if choice.max_drop is not None:
        raise ValueError("Expected --max-drop with --fastest. Received: no --fastest")
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

    network, details = open_model(model_options, purpose="any")
    task = None
    if data is not None:
        source = open_test(data, seed, on_corrupt, model_options.model, details)
        task = _task(source, network)
    before = None if task is None else _by_keras(network, task)
    if precision in ("int8", "int4") and kind != "litert":
        console.print(str(serving.quantize(network, precision)))
        precision = "float32"  # Of the remaining layers.
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
            images=None if task is None else _some(task, network, PROOF),
            overwrite=force,
            verbose=False,
        )
        console.print(str(written))
        after = None if task is None else _by_file(file, network, task)
    if before is not None and after is not None:
        _print_change(before, after)


def _format_of(output: Path) -> str:
    """The format of a file's suffix, or savedmodel for a folder."""
    if (kind := of_file(output)) is not None:
        return kind
    if output.suffix and not output.is_dir():
        raise ValueError(
            f"Expected OUT to end in {', '.join(SUFFIXES.values())}, or --format. "
            f"Received: {output}"
        )
    return "savedmodel"


def _task(source: "Source", network: Any) -> "Task":
    """The test images of a source, with the model's output of each class."""
    from keras_vit.evaluation.classification import outputs_of, task_of

    task = task_of(source)
    outputs = outputs_of(network, task)
    return dataclasses.replace(task, outputs=outputs, by_name=False)


def _by_keras(network: Any, task: "Task") -> "PerImage":
    from keras_vit.evaluation.classification import classify

    return classify(network, task).images


def _pixels(network: Any, task: "Task", batch_size: int) -> Any:
    """Yields batches of a task: images as uint8 [B, H, W, C], and labels."""
    import numpy as np

    from keras_vit.data.pipelines import eval_pipeline
    from keras_vit.models.vision import preprocessing_of

    *size, channels = network.input_shape[1:]
    batches = eval_pipeline(
        task.split,
        image_size=tuple(size),
        batch_size=batch_size,
        preprocessing=preprocessing_of(network).as_pixels(),
        channels=channels,
    )
    for images, labels in batches.as_numpy_iterator():
        yield np.rint(images).astype(np.uint8), labels


def _some(task: "Task", network: Any, count: int) -> Any:
    """The first images of a task, `count` at most."""
    return next(_pixels(network, task, count))[0]


def _by_savedmodel(folder: Path, network: Any, task: "Task") -> "PerImage":
    """The predictions of a SavedModel for a task's images."""
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
        outputs = loaded.signatures["images_float32"](images=images)
        counts.update(_competing(task, outputs["logits"].numpy()), labels.numpy())
    return counts.per_image()


def _by_scores(
    runs: "Sequence[Callable[[np.ndarray], np.ndarray]]",
    batches: "Iterable[tuple[np.ndarray, np.ndarray]]",
    task: "Task",
) -> "list[PerImage]":
    """The predictions of each of `runs`, uint8 [B, H, W, C] -> probabilities [B, K]."""
    import numpy as np

    from keras_vit.evaluation.metrics import Counts

    counts = [Counts(task.model_outputs) for _ in runs]
    least = np.finfo(np.float32).tiny
    for images, labels in batches:
        for run, count in zip(runs, counts, strict=True):
            scores = np.log(np.maximum(run(images), least))
            count.update(_competing(task, scores), labels)
    return [count.per_image() for count in counts]


def _competing(task: "Task", scores: "np.ndarray") -> "np.ndarray":
    """The outputs of a model in the order of the task's classes, [B, K]."""
    return scores if task.outputs is None else scores[:, task.outputs]


def _by_file(file: Path, network: Any, task: "Task") -> "PerImage":
    """The predictions of an exported file, in processes without Keras."""
    from keras_vit.serving.formats import file_scores

    run = functools.partial(file_scores, file)
    (predictions,) = _by_scores([run], _pixels(network, task, 256), task)
    return predictions


def _change(before: "PerImage", after: "PerImage") -> "Estimate":
    """The change of accuracy in percentage points, with its 95 % interval."""
    from keras_vit.evaluation.metrics import paired_difference

    return paired_difference(100 * before.right, 100 * after.right)


def _print_change(before: "PerImage", after: "PerImage") -> None:
    images = len(before)
    for name, predictions in (("before", before), ("after", after)):
        right = int(predictions.right.sum())
        console.print(
            f"accuracy {name:6} {percent(right / images):>8} ({right} of {images})"
        )
    change = _change(before, after)
    same = (before.prediction == after.prediction).mean()
    console.print(
        f"change {change.value:+.2f} points (95 %: {change.low:+.2f} to "
        f"{change.high:+.2f}); the same class for {percent(same, 1)} of the images"
    )


def _check_fastest(
    output: Path,
    data: str | None,
    force: bool,
    *,
    options: Any,
    file_format: Any,
    precision: str,
) -> None:
    if data is None:
        raise ValueError(
            "Expected --data with --fastest: labeled images to measure accuracy on. "
            "Received: none"
        )
    if options or file_format or precision != "float32":
        raise ValueError(
            "Expected --fastest without --format, --precision and the options of a "
            "SavedModel. Leave them out: --fastest chooses the format and precision"
        )
    if output.suffix in SUFFIXES.values():
        raise ValueError(
            f"Expected OUT without {output.suffix}, which --fastest chooses. "
            f"Received: {output}. Use {output.with_suffix('')}"
        )
    names = [output.with_name(output.name + suffix) for suffix in SUFFIXES.values()]
    existing = [str(path) for path in names if path.exists()]
    if existing and not force:
        raise ValueError(
            f"Expected a new OUT. Received: {', '.join(existing)}, which already "
            "exists. --force replaces the chosen file"
        )


def _write_fastest(
    network: Any, output: Path, task: "Task", max_drop: float | None, force: bool
) -> None:
    """Measures every installed format and precision, and keeps the best file."""
    from keras_vit import files, serving
    from keras_vit.data.progress import progress
    from keras_vit.serving import fastest

    names = class_names(network) or None
    drop = 0.5 if max_drop is None else max_drop
    first = _some(task, network, BATCH)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".fastest-") as folder:
        rows = [fastest.by_keras(network)]
        for candidate in fastest.candidates(
            network, Path(folder), output.name, names, first[:PROOF]
        ):
            if isinstance(candidate, Exception):
                console.print(f"left out: {candidate}")
            else:
                rows.append(candidate)
        turns = fastest.take_turns(rows, first, rounds=ROUNDS, seconds=SECONDS)
        for _ in progress(turns, "measuring speed", ROUNDS * len(rows), True):
            pass
        batches = progress(
            _pixels(network, task, BATCH),
            "measuring accuracy",
            -(-len(task.split) // BATCH),
            True,
        )
        predictions = _by_scores([row.scores for row in rows], batches, task)
        changes = [_change(predictions[0], after) for after in predictions]
        within = [row for row, at in zip(rows, changes, strict=True) if at.low >= -drop]
        best = max(within, key=lambda row: row.images_a_second)
        console.print(_table(rows, predictions, changes, best))
        if best.path is None:
            console.print(
                "No format within the accepted drop is faster than Keras. Writing a "
                "SavedModel"
            )
            exported = serving.export(
                network, output, names, overwrite=force, verbose=False
            )
            console.print(str(exported))
            return
        written = sorted(  # The manifest is renamed last.
            best.path.parent.iterdir(), key=lambda at: ".manifest." in at.name
        )
        paths = [output.parent / file.name for file in written]
        with files.replacing_all(paths) as temporaries:
            for file, temporary in zip(written, temporaries, strict=True):
                file.replace(temporary)
        console.print(f"{output.with_name(best.path.name)}: {best.name}")


def _table(
    rows: "Sequence[Measured]",
    predictions: "Sequence[PerImage]",
    changes: "Sequence[Estimate]",
    best: "Measured",
) -> Table:
    """A line for each format; a star marks the chosen one."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("MiB", "images/s", "one image", "accuracy", "change, points"):
        table.add_column(name, justify="right")
    for row, images, change in zip(rows, predictions, changes, strict=True):
        table.add_row(
            f"{row.name}{' *' * (row is best)}",
            f"{row.mebibytes:.1f}",
            f"{row.images_a_second:,.1f}",
            f"{row.milliseconds:,.1f} ms",
            percent(images.right.mean()),
            f"{change.value:+.2f} ({change.low:+.2f} to {change.high:+.2f})",
        )
    return table
