"""The formats and precisions a model is served in: speed, size, and what they change.

    python benchmarks/formats.py ViT-B/16 --weights none        # speed and size
    python benchmarks/formats.py demo --data digits             # after `make demo`

The model is exported in each format and run in the format's own runtime, all in one
process and taking turns, `--rounds` times; images/s are medians with the least and the
most, at `--batch-size` and one image at a time. "times" is the median of the rounds'
ratios to Keras in float32. With `--data` a second table says what a format does to
the probabilities and the accuracy of labelled test images; the export's own proof asks
for far less. Files are written to a temporary folder.
"""

import argparse
import dataclasses
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

Scores = Callable[[np.ndarray], Any]  # uint8 [B, H, W, C] -> [B, K]
FILES = {
    "LiteRT float32": ("m.tflite", "float32"),
    "LiteRT float16": ("m16.tflite", "float16"),
    "LiteRT int8": ("m8.tflite", "int8"),
    "ONNX Runtime float32": ("m.onnx", "float32"),
    "OpenVINO float32": ("m.xml", "float32"),
}
REFERENCE = "Keras float32"
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclasses.dataclass
class Row:
    """One way to compute the same scores.

    Attributes:
        run: it.
        mebibytes: of its file, or of its weights in Keras.
        batches: images/s in batches, a number a round.
        singles: images/s one by one, a number a round.
    """

    run: Scores
    mebibytes: float
    batches: list[float] = dataclasses.field(default_factory=list)
    singles: list[float] = dataclasses.field(default_factory=list)


def opened(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model, and how it was trained."""
    from keras_vit.cli.loaders import open_model
    from keras_vit.cli.options import OpenedModel

    asked = OpenedModel(model=options.model, weights=options.weights)
    return open_model(asked, purpose="any")


def mebibytes(model: Any) -> float:
    """Of its weights in memory."""
    sizes = (math.prod(at.shape) * BYTES[at.dtype] for at in model.weights)
    return float(sum(sizes)) / 2**20


def keras_run(model: Any) -> Scores:
    """`predict_on_batch` of a model of logits or probabilities, from pixels."""
    import keras

    stated = model.preprocessing
    mean, std = np.float32(stated.mean), np.float32(stated.std)

    def scores(images: np.ndarray) -> Any:
        outputs = model.predict_on_batch((images * np.float32(1 / 255) - mean) / std)
        if model.layers[-1].activation is keras.activations.softmax:
            return outputs
        powers = np.exp(outputs - outputs.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    return scores


def litert(path: Path, threads: int) -> Scores:
    """LiteRT, which keeps the batch it was allocated for."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    allocated: list[tuple[int, ...]] = []

    def run(images: np.ndarray) -> Any:
        (given,), (found,) = (
            interpreter.get_input_details(),
            interpreter.get_output_details(),
        )
        if allocated != [images.shape]:
            interpreter.resize_tensor_input(given["index"], images.shape)
            interpreter.allocate_tensors()
            allocated[:] = [images.shape]
        interpreter.set_tensor(given["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(found["index"])

    return run


def onnx(path: Path, threads: int) -> Scores:
    """ONNX Runtime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        path, settings, providers=["CPUExecutionProvider"]
    )
    return lambda images: session.run(["scores"], {"images": images})[0]


def openvino(path: Path, threads: int, precision: str) -> Scores:
    """OpenVINO, which computes in bfloat16 by itself where the processor has it."""
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
    }
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    return lambda images: compiled(images)["scores"]


def rows(model: Any, threads: int, folder: Path) -> Iterator[tuple[str, Row]]:
    """Every format by name; Keras in float32 is the first."""
    from keras_vit import serving
    from keras_vit.serving.precision import in_policy

    yield REFERENCE, Row(keras_run(model), mebibytes(model))
    half, small = (in_policy(model, at) for at in ("bfloat16", "float32"))
    serving.quantize(small)
    yield "Keras bfloat16", Row(keras_run(half), mebibytes(half))
    yield "Keras int8", Row(keras_run(small), mebibytes(small))
    for name, (file, precision) in FILES.items():
        path = folder / file
        serving.export_file(model, path, precision=precision, verbose=False)
        data = path.with_suffix(".bin") if path.suffix == ".xml" else path
        size = data.stat().st_size / 2**20
        if name.startswith("LiteRT"):
            yield name, Row(litert(path, threads), size)
        elif name.startswith("ONNX"):
            yield name, Row(onnx(path, threads), size)
        else:
            yield name, Row(openvino(path, threads, "f32"), size)
            named = name.replace("float32", "bfloat16")
            yield named, Row(openvino(path, threads, "bf16"), size)


def test_images(
    options: argparse.Namespace, model: Any, details: dict[str, Any]
) -> Any:
    """The test images, uint8 [N, H, W, C] with labels, or noise with None."""
    if options.data is None:
        size = (options.batch_size, *model.input_shape[1:])
        return np.random.default_rng(0).integers(0, 256, size, np.uint8), None
    from keras_vit.cli import exporting

    task = exporting._task(options.data, details, None, "stop")
    batches = exporting._pixels(model, task, options.batch_size)
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def measure(row: Row, images: np.ndarray, seconds: float) -> None:
    """One round: batches, then single images, for at least `seconds` each."""
    for batch, into in ((images, row.batches), (images[:1], row.singles)):
        row.run(batch)
        start, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < seconds:
            row.run(batch)
            count += 1
        into.append(count * len(batch) / spent)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a run, a variant or a weights file")
    parser.add_argument("--weights", help="of a variant: a tag or none")
    parser.add_argument("--data", help="labelled images, as of `finetune`")
    parser.add_argument("--batch-size", type=int, default=8, help="default 8")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=float, default=3, help="each; default 3")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    model, details = opened(options)
    images, labels = test_images(options, model, details)
    with tempfile.TemporaryDirectory() as folder:
        table = dict(rows(model, options.threads, Path(folder)))
        step = options.batch_size
        scores = {
            name: np.concatenate(
                [row.run(images[at : at + step]) for at in range(0, len(images), step)]
            )
            for name, row in table.items()
        }
        for _ in range(options.rounds):
            for row in table.values():
                measure(row, images[:step], options.seconds)
    what = f"{options.model}, batches of {step} and of one, {options.threads} threads"
    print(f"{what}, {options.rounds} rounds")
    print(f"{'':21}{'MiB':>6}{'images/s':>25}{'times':>7}{'one, ms':>9}{'times':>7}")
    reference = table[REFERENCE]
    for name, row in table.items():
        low, *_, high = sorted(row.batches)
        speed = f"{statistics.median(row.batches):.2f} ({low:.2f} to {high:.2f})"
        times, alone = (
            statistics.median(np.divide(ours, theirs))
            for ours, theirs in (
                (row.batches, reference.batches),
                (row.singles, reference.singles),
            )
        )
        one = 1000 / statistics.median(row.singles)
        print(f"{name:21}{row.mebibytes:>6.0f}{speed:>25}{times:>7.2f}", end="")
        print(f"{one:>9.1f}{alone:>7.2f}")
    if labels is None:
        return
    print(f"\n{f'{len(images)} test images':21}{'difference':>19}", end="")
    print(f"{'same class':>12}{'accuracy':>10}")
    for name in table:
        best, sound = scores[name].argmax(-1), scores[REFERENCE]
        print(f"{name:21}{abs(scores[name] - sound).max():>19.1e}", end="")
        print(f"{(best == sound.argmax(-1)).mean():>12.1%}", end="")
        print(f"{(best == labels).mean():>10.2%}")


if __name__ == "__main__":
    main()
