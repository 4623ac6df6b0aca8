"""Runs an exported model without Keras: `python -I isolated_run.py KIND PATH IN OUT`.

A script, not a module of the library: a process that runs it imports NumPy and what
runs the file, so that what it says of the file needs nothing that made it. IN and OUT
are npz files of arrays: images by the dtype that takes them, `uint8` and `float32`;
encoded ones are uint8 arrays too, `image_bytes/0` and on.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]


def savedmodel(path: str, given: Arrays) -> dict[str, Any]:
    """Every signature's outputs, `signature/output`, by TensorFlow."""
    import tensorflow as tf

    encoded = [
        given[f"image_bytes/{i}"].tobytes()
        for i in range(sum(name.startswith("image_bytes/") for name in given))
    ]
    found: dict[str, Any] = {}
    for name, signature in tf.saved_model.load(path).signatures.items():
        ((argument, spec),) = signature.structured_input_signature[1].items()
        value = encoded if spec.dtype == tf.string else given[spec.dtype.name]
        outputs = signature(**{argument: tf.constant(value)})
        found |= {f"{name}/{key}": out.numpy() for key, out in outputs.items()}
    return found


def litert(path: str, given: Arrays) -> dict[str, Any]:
    """`scores` of `images`, by LiteRT: uint8 [N, H, W, C] -> float32 [N, K]."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=os.cpu_count())
    (images,), (scores,) = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )

    def run(batch: np.ndarray) -> Any:
        interpreter.resize_tensor_input(images["index"], batch.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(images["index"], batch)
        interpreter.invoke()
        return interpreter.get_tensor(scores["index"])

    return by_batches(run, given)


def onnx(path: str, given: Arrays) -> dict[str, Any]:
    """`scores` of `images`, by ONNX Runtime as it is by default."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return by_batches(
        lambda batch: session.run(["scores"], {"images": batch})[0], given
    )


def openvino(path: str, given: Arrays) -> dict[str, Any]:
    """`scores` of `images`, by OpenVINO in float32: its default may be bfloat16."""
    import openvino

    precision = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", precision)
    return by_batches(lambda batch: compiled(batch)["scores"], given)


def by_batches(run: Callable[[np.ndarray], Any], given: Arrays) -> dict[str, Any]:
    """`scores` of `images`, a few at a time."""
    images = given["images"]
    parts = [run(images[start : start + 8]) for start in range(0, len(images), 8)]
    return {"scores": np.concatenate(parts)}


KINDS: dict[str, Callable[[str, Arrays], dict[str, Any]]] = {
    "savedmodel": savedmodel,
    "litert": litert,
    "onnx": onnx,
    "openvino": openvino,
}


def main(kind: str, path: str, given: str, found: str) -> None:
    """Reads arrays, runs the file on them, writes what it says."""
    for name in ("keras", "keras_vit"):  # TensorFlow imports Keras where it can.
        sys.modules[name] = None  # type: ignore[assignment]
    with np.load(given) as arrays:
        outputs = KINDS[kind](path, dict(arrays))
    strings = {key: out for key, out in outputs.items() if out.dtype == object}
    np.savez(found, **outputs | {key: out.astype("S") for key, out in strings.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
