"""Speed, size and accuracy of the export formats and precisions.

    python benchmarks/formats.py ViT-B/16 --weights none        # speed and size
    python benchmarks/formats.py demo --data digits             # after `make demo`

The model is exported in each format and run in the format's runtime, all in one process
in turns, `--rounds` times. Images/s are medians with minimum and maximum, at
`--batch-size` and for single images. "times" is the median of the rounds' ratios to
Keras in float32. With `--data`, a second table shows how a format changes probabilities
and accuracy on labeled test images; the verification of an export requires far less.
Files are written to a temporary folder.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from keras_vit.serving.fastest import Measured

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def opened(options: argparse.Namespace) -> tuple[Any, Any]:
    """Returns the model and the details of its training."""
    from keras_vit.cli.loaders import open_model
    from keras_vit.cli.options import OpenedModel

    asked = OpenedModel(model=options.model, weights=options.weights)
    return open_model(asked, purpose="any")


def rows(model: Any, threads: int, folder: Path) -> "Iterator[Measured]":
    """Yields every format; Keras in float32 is the first."""
    from keras_vit import serving
    from keras_vit.serving import fastest
    from keras_vit.serving.isolated_run import open_openvino
    from keras_vit.serving.precision import in_policy

    yield fastest.by_keras(model)
    half, small = (in_policy(model, at) for at in ("bfloat16", "float32"))
    serving.quantize(small)
    yield fastest.by_keras(half, "Keras bfloat16")
    yield fastest.by_keras(small, "Keras int8")
    for found in fastest.candidates(model, folder, "m", threads=threads):
        if isinstance(found, Exception):
            raise found
        if found.path is None or found.path.suffix != ".xml":
            yield found
            continue
        for hint, name in (("f32", "OpenVINO float32"), ("bf16", "OpenVINO bfloat16")):
            scores = open_openvino(str(found.path), threads, hint).scores
            yield fastest.Measured(name, scores, found.mebibytes)


def test_images(
    options: argparse.Namespace, model: Any, details: dict[str, Any]
) -> Any:
    """Returns test images, uint8 [N, H, W, C], with labels, or noise without labels."""
    if options.data is None:
        size = (options.batch_size, *model.input_shape[1:])
        return np.random.default_rng(0).integers(0, 256, size, np.uint8), None
    from keras_vit.cli import exporting, loaders

    source = loaders.open_test(options.data, None, "stop", options.model, details)
    task = exporting._task(source, model)
    batches = exporting._pixels(model, task, options.batch_size)
    images, found = zip(*batches, strict=True)
    labels = np.concatenate(found)
    if task.outputs is not None:
        labels = task.outputs[labels]
    return np.concatenate(images), labels


def measured(
    table: "dict[str, Measured]", images: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """Measures the speed of all rows in turns; returns the scores of all images."""
    from keras_vit.serving.fastest import take_turns

    step = options.batch_size
    scores = {
        name: np.concatenate(
            [row.scores(images[at : at + step]) for at in range(0, len(images), step)]
        )
        for name, row in table.items()
    }
    turns = take_turns(
        [*table.values()],
        images[:step],
        rounds=options.rounds,
        seconds=options.seconds,
    )
    for _ in turns:
        pass
    return scores


def print_speeds(table: "dict[str, Measured]") -> None:
    """Prints size and speed; "times" is relative to Keras in float32."""
    from keras_vit.serving.fastest import REFERENCE

    print(f"{'':21}{'MiB':>6}{'images/s':>34}{'times':>7}{'one, ms':>9}{'times':>7}")
    reference = table[REFERENCE]
    for name, row in table.items():
        low, high = min(row.batches), max(row.batches)
        speed = f"{row.images_a_second:.2f} ({low:.2f} to {high:.2f})"
        times, alone = (
            statistics.median(np.divide(ours, theirs))
            for ours, theirs in (
                (row.batches, reference.batches),
                (row.singles, reference.singles),
            )
        )
        print(f"{name:21}{row.mebibytes:>6.1f}{speed:>34}{times:>7.2f}", end="")
        print(f"{row.milliseconds:>9.1f}{alone:>7.2f}")


def print_accuracies(scores: dict[str, Any], labels: Any) -> None:
    """Prints the change of the scores and the accuracy on labeled images."""
    from keras_vit.serving.fastest import REFERENCE

    sound = scores[REFERENCE]
    print(f"\n{f'{len(labels)} test images':21}{'difference':>19}", end="")
    print(f"{'same class':>12}{'accuracy':>10}")
    for name, found in scores.items():
        best = found.argmax(-1)
        print(f"{name:21}{abs(found - sound).max():>19.1e}", end="")
        print(f"{(best == sound.argmax(-1)).mean():>12.1%}", end="")
        print(f"{(best == labels).mean():>10.2%}")


def arguments() -> argparse.ArgumentParser:
    """The options of a comparison of formats or precisions."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a run, a variant or a weights file")
    parser.add_argument("--weights", help="weights for a variant: a tag or none")
    parser.add_argument("--data", help="labeled images, as for `finetune`")
    parser.add_argument("--batch-size", type=int, default=8, help="default 8")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=float, default=3, help="per turn; default 3")
    return parser


def main() -> None:
    """Prints the table."""
    parser = arguments()
    parser.description = (__doc__ or "").splitlines()[0]
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    model, details = opened(options)
    images, labels = test_images(options, model, details)
    with tempfile.TemporaryDirectory() as folder:
        table = {row.name: row for row in rows(model, options.threads, Path(folder))}
        scores = measured(table, images, options)
    what = f"{options.model}, batches of {options.batch_size} and of one"
    print(f"{what}, {options.threads} threads, {options.rounds} rounds")
    print_speeds(table)
    if labels is not None:
        print_accuracies(scores, labels)


if __name__ == "__main__":
    main()
