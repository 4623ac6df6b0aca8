"""Runs an exported model without Keras: `python -I isolated_run.py KIND PATH IN OUT`.

It runs as a script, not as a module of the library. The process imports only NumPy and
the runtime of the file, so the result does not depend on the code that exported it. IN
and OUT are npz files. IN has images by dtype, `uint8` and `float32`, and encoded images
as uint8 arrays `image_bytes/0`, `image_bytes/1`, ...
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
Scores = Callable[[np.ndarray], Any]  # uint8 [B, H, W, C] -> float32 [B, K].


class Opened(NamedTuple):
    """A file that is loaded in its runtime."""

    scores: Scores
    input_shape: tuple[int, ...]  # (H, W, C)
    computes: str | None = None  # The dtype of its products, if it is not the file's.


def savedmodel(path: str, given: Arrays) -> dict[str, Any]:
    """Returns every signature's outputs, as `signature/output`, with TensorFlow."""
    import tensorflow as tf

    encoded = [
        given[f"image_bytes/{i}"].tobytes()
        for i in range(sum(name.startswith("image_bytes/") for name in given))
    ]
    results: dict[str, Any] = {}
    for name, signature in tf.saved_model.load(path).signatures.items():
        ((argument, spec),) = signature.structured_input_signature[1].items()
        value = encoded if spec.dtype == tf.string else given[spec.dtype.name]
        outputs = signature(**{argument: tf.constant(value)})
        results |= {f"{name}/{key}": out.numpy() for key, out in outputs.items()}
    return results


def open_litert(path: str, threads: int | None = None) -> Opened:
    """Opens a LiteRT file; reallocates its tensors when the batch size changes."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads or os.cpu_count())
    (images,) = interpreter.get_input_details()
    allocated: list[tuple[int, ...]] = []

    def run(batch: np.ndarray) -> Any:
        if allocated != [batch.shape]:
            interpreter.resize_tensor_input(images["index"], batch.shape)
            interpreter.allocate_tensors()
            allocated[:] = [batch.shape]
        interpreter.set_tensor(images["index"], batch)
        interpreter.invoke()
        (scores,) = interpreter.get_output_details()
        return interpreter.get_tensor(scores["index"])

    return Opened(run, tuple(map(int, images["shape"][1:])))


def open_onnx(path: str, threads: int | None = None) -> Opened:
    """Opens an ONNX file with ONNX Runtime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads or 0  # 0: the runtime's default.
    session = onnxruntime.InferenceSession(
        path, settings, providers=["CPUExecutionProvider"]
    )
    (images,) = session.get_inputs()
    return Opened(
        lambda batch: session.run(["scores"], {"images": batch})[0],
        tuple(images.shape[1:]),
    )


@functools.cache
def openvino_core() -> Any:
    """The process's only `openvino.Core`, which is kept.

    OpenVINO's CPU plugin replaces the stack of signal handlers (sigaltstack). After two
    cores are deleted, the freed stack of the first is current again, and the next
    signal crashes the process.
    """
    import openvino

    return openvino.Core()


def open_openvino(
    path: str, threads: int | None = None, precision: str | None = "f32"
) -> Opened:
    """Opens an OpenVINO file; None: its default precision, which may be bfloat16."""
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    compiled = openvino_core().compile_model(path, "CPU", given)
    _, *shape = compiled.input(0).get_partial_shape()
    computes = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    return Opened(
        lambda batch: compiled(batch)["scores"],
        tuple(side.get_length() for side in shape),
        {"bf16": "bfloat16", "f16": "float16"}.get(computes),
    )


OPEN: dict[str, Callable[..., Opened]] = {
    "litert": open_litert,
    "onnx": open_onnx,
    "openvino": open_openvino,
}


def litert(path: str, given: Arrays) -> dict[str, Any]:
    """Computes `scores` with LiteRT: uint8 [N, H, W, C] -> float32 [N, K]."""
    return by_batches(open_litert(path).scores, given)


def onnx(path: str, given: Arrays) -> dict[str, Any]:
    """Computes `scores` of `images` with ONNX Runtime and its defaults."""
    return by_batches(open_onnx(path).scores, given)


def openvino(path: str, given: Arrays) -> dict[str, Any]:
    """Computes `scores` of `images` with OpenVINO in float32."""
    return by_batches(open_openvino(path).scores, given)


def by_batches(run: Scores, given: Arrays) -> dict[str, Any]:
    """Computes `scores` of `images`, a few at a time."""
    images = given["images"]
    parts = [run(images[start : start + 8]) for start in range(0, len(images), 8)]
    return {"scores": np.concatenate(parts)}


KINDS: dict[str, Callable[[str, Arrays], dict[str, Any]]] = {
    "savedmodel": savedmodel,
    "litert": litert,
    "onnx": onnx,
    "openvino": openvino,
}


def main(kind: str, path: str, given: str, destination: str) -> None:
    """Reads arrays, runs the file on them, and writes its outputs."""
    for name in ("keras", "keras_vit"):  # TensorFlow imports Keras if it can.
        sys.modules[name] = None  # type: ignore[assignment]
    with np.load(given) as arrays:
        outputs = KINDS[kind](path, dict(arrays))
    strings = {key: out for key, out in outputs.items() if out.dtype == object}
    np.savez(
        destination, **outputs | {key: out.astype("S") for key, out in strings.items()}
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
