"""Formats of exported models: their suffixes and precisions. Standard library only."""

from pathlib import PurePath
from typing import Literal

Format = Literal["savedmodel", "litert", "onnx", "openvino"]
SUFFIXES: dict[str, str] = {"litert": ".tflite", "onnx": ".onnx", "openvino": ".xml"}
WRITTEN: dict[str, tuple[str, ...]] = {  # Precisions that the exporter writes itself.
    "savedmodel": ("float32",),
    "litert": ("float32", "float16", "int8"),
    "onnx": ("float32",),
    "openvino": ("float32",),
}
QUANTIZED = {  # Precisions of Keras that a format keeps; int4 is float32 in ONNX.
    "savedmodel": ("int8", "int4"),
    "onnx": ("int8",),
}
PRECISIONS: dict[str, tuple[str, ...]] = {
    kind: (*written, *QUANTIZED.get(kind, ())) for kind, written in WRITTEN.items()
}


def of_file(path: PurePath) -> str | None:
    """Returns the format for an exported file's suffix; None if it is unknown."""
    kinds = {suffix: kind for kind, suffix in SUFFIXES.items()}
    return kinds.get(path.suffix)
