"""Formats of exported models: their suffixes and precisions. Standard library only."""

from pathlib import PurePath
from typing import Literal

Format = Literal["savedmodel", "litert", "onnx", "openvino"]
SUFFIXES: dict[str, str] = {"litert": ".tflite", "onnx": ".onnx", "openvino": ".xml"}
WRITTEN: dict[str, tuple[str, ...]] = {  # By the exporter itself.
    "savedmodel": ("float32",),
    "litert": ("float32", "float16", "int8"),
    "onnx": ("float32",),
    "openvino": ("float32",),
}
QUANTIZED = ("savedmodel", "onnx")  # Write a model that Keras quantized to int8.
PRECISIONS: dict[str, tuple[str, ...]] = {
    kind: (*written, "int8") if kind in QUANTIZED else written
    for kind, written in WRITTEN.items()
}


def of_file(path: PurePath) -> str | None:
    """Returns the format of an exported file by its suffix; None if it is none."""
    kinds = {suffix: kind for kind, suffix in SUFFIXES.items()}
    return kinds.get(path.suffix)
