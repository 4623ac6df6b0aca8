"""Run an exported LiteRT, ONNX or OpenVINO file on images.

Glossary of shapes: B images at once; H, W, C the model's input; K classes.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from keras_vit import export_formats, manifest
from keras_vit._version import pip_install
from keras_vit.data import decoding
from keras_vit.data.preprocessing import prepare_all
from keras_vit.facts import Facts
from keras_vit.files import parse_json, read_bytes
from keras_vit.serving.client import Image, Prediction
from keras_vit.serving.isolated_run import OPEN

__all__ = ["ExportedModel"]


class ExportedModel:
    """A file that `export_file` wrote, opened by its runtime.

    TensorFlow decodes and resizes the images as in vit_jax's evaluation, unless the
    file's preprocessing states otherwise. The command `keras-vit predict --model FILE`
    does the same without Keras, so it starts sooner.

    Args:
        path: A .tflite, .onnx or .xml file, next to its `FILE.facts.json`. If
            `FILE.manifest.json` exists, the files are compared with it.
        threads: Threads of the runtime [default: the runtime's own].

    Attributes:
        facts: The model's preprocessing and provenance.
        labels: Names of the K classes.
        input_shape: (H, W, C).

    Raises:
        ValueError: If the path has a different suffix, or a file is missing or damaged.
        ImportError: If the runtime is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None):
        path = Path(path)
        kind = export_formats.of_file(path)
        if kind is None:
            raise ValueError(
                f"Expected a file of {', '.join(export_formats.SUFFIXES.values())}. "
                f"Received: {str(path)!r}"
            )
        if not path.is_file():
            raise ValueError(f"Expected an exported file. Received: no {str(path)!r}")
        self.facts, self.labels = _facts(path)
        try:
            opened = OPEN[kind](str(path), threads)
        except ImportError as error:
            raise ImportError(
                f"{path.name} requires {error.name}. Received: none. "
                f"Run {pip_install(kind)}"
            ) from error
        except Exception as error:  # Each runtime has its own kinds.
            raise ValueError(
                f"Expected a model in {str(path)!r}. Received: {error}. Export it again"
            ) from error
        self.input_shape = opened.input_shape
        self._run = opened.scores

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Computes probabilities: uint8 [B, H, W, C] -> float32 [B, K].

        Args:
            images: Pixels in the size of `input_shape`.
        """
        return np.asarray(self._run(images))

    def predict(self, images: Iterable[Image], top: int = 5) -> list[Prediction]:
        """Returns the most probable classes of images, in their order.

        Args:
            images: Encoded bytes, paths of files, or uint8 arrays [H, W, C].
            top: Classes of each image.

        Returns:
            A `Prediction` of each image. If an image cannot be decoded, its `status` is
            the reason.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If an array is not an image, or a score is not finite.
        """
        height, width, channels = self.input_shape
        resizing = self.facts.preprocessing.as_pixels()  # The file contains scaling.
        predictions = []
        for image in images:
            try:
                pixels = prepare_all([image], (height, width), resizing, channels)
            except ValueError as error:
                if isinstance(image, np.ndarray):
                    raise
                encoded = image if isinstance(image, bytes) else read_bytes(image)
                status = decoding.reason(encoded) or str(error)
                predictions.append(Prediction((), (), status))
                continue
            (scores,) = self.scores(np.rint(pixels).astype(np.uint8))
            if not np.isfinite(scores).all():
                raise ValueError(
                    "Expected finite scores. Received: NaN or infinity. The weights "
                    "are damaged, or their training diverged; train and export again"
                )
            best = np.argsort(-scores)[:top]
            names = tuple(self.labels[i] for i in best)
            predictions.append(Prediction(names, tuple(map(float, scores[best]))))
        return predictions


def _facts(path: Path) -> tuple[Facts, tuple[str, ...]]:
    """Reads the facts and the labels; raises ValueError if a file is damaged."""
    if manifest.beside(path).exists():
        verification = manifest.verify(path)
        if not verification.whole:
            files = ", ".join((*verification.changed, *verification.missing))
            raise ValueError(
                f"Expected {str(path)!r} and the files next to it to be unchanged "
                f"since the export. Received: {files}, changed or missing. Export it "
                "again"
            )
    stated = path.with_name(f"{path.name}.facts.json")
    try:
        facts = Facts.from_json(parse_json(stated.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ValueError(
            f"Expected {error.filename}, which `keras-vit export` writes. Received: "
            "no such file. Copy it to the same folder, or export again"
        ) from error
    if facts.labels is None:
        raise ValueError(f"Expected labels in {str(stated)!r}. Received: none")
    return facts, facts.labels
