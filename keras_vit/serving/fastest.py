"""Measure the speed of each export format and precision of a model on this machine.

Glossary of shapes: B images at once; H, W, C the model's input; K classes.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import keras
import numpy as np
import scipy  # Its submodules are imported on first use.

from keras_vit import export_formats
from keras_vit.inspection.speed import images_per_second
from keras_vit.models.vision import preprocessing_of
from keras_vit.serving.formats import SUFFIXES, export_file
from keras_vit.serving.graph import gives_logits
from keras_vit.serving.isolated_run import OPEN, Opened, open_openvino

__all__ = ["REFERENCE", "Measured", "by_keras", "candidates", "take_turns"]

REFERENCE = "Keras float32"
Scores: TypeAlias = Callable[[np.ndarray], np.ndarray]  # uint8 [B, H, W, C] -> [B, K]
# OpenVINO's own precision, which is bfloat16 where the processor has it.
_OPEN: dict[str, Callable[..., Opened]] = {
    **OPEN,
    "openvino": functools.partial(open_openvino, precision=None),
}


@dataclasses.dataclass
class Measured:
    """A runtime and precision of a model, with its measured speed.

    Attributes:
        name: Runtime and precision, e.g. "LiteRT int8". An OpenVINO file in float32 is
            "OpenVINO bfloat16" on a processor where OpenVINO computes in bfloat16.
        scores: Computes probabilities: uint8 [B, H, W, C] -> float32 [B, K].
        mebibytes: Size of the file, or of the weights in memory.
        path: The file; None for Keras.
        batches: Images/s in batches, one number for each round.
        singles: Images/s one image at a time, one number for each round.
    """

    name: str
    scores: Scores
    mebibytes: float
    path: Path | None = None
    batches: list[float] = dataclasses.field(default_factory=list)
    singles: list[float] = dataclasses.field(default_factory=list)

    @property
    def images_a_second(self) -> float:
        """Median of `batches`."""
        return statistics.median(self.batches)

    @property
    def milliseconds(self) -> float:
        """Time for one image, from the median of `singles`."""
        return 1000 / statistics.median(self.singles)


def by_keras(model: keras.Model, name: str = REFERENCE) -> Measured:
    """Returns Keras's own `predict_on_batch`, the reference of the other formats.

    Args:
        model: A classifier that returns logits or probabilities [B, K].
        name: Its name in tables.
    """
    scaling = preprocessing_of(model).for_channels(model.input_shape[-1])
    mean, std = np.array(scaling.mean, np.float32), np.array(scaling.std, np.float32)
    logits = gives_logits(model)

    def scores(images: np.ndarray) -> np.ndarray:
        scaled = (images * np.float32(1 / 255) - mean) / std
        outputs: np.ndarray = model.predict_on_batch(scaled)
        return scipy.special.softmax(outputs, axis=-1) if logits else outputs

    sizes = (math.prod(at.shape) * _itemsize(at.dtype) for at in model.weights)
    return Measured(name, scores, sum(sizes) / 2**20)


def _itemsize(dtype: str) -> int:
    """Bytes of a number; NumPy does not know bfloat16."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def candidates(
    model: keras.Model,
    folder: Path,
    name: str,
    labels: Sequence[str] | None = None,
    images: np.ndarray | None = None,
    *,
    threads: int | None = None,
) -> Iterator[Measured | Exception]:
    """Exports a model in every format and precision, and opens each file.

    Args:
        model: A classifier that `export_file` accepts.
        folder: Receives a subfolder for each format and precision.
        name: File name without suffix.
        labels: Passed to `export_file`.
        images: Passed to `export_file`.
        threads: Threads of each runtime [default: the runtime's own].

    Yields:
        A `Measured` without measurements for each file. If a format does not support
        the model, or its packages are missing, the error that explains it.
    """
    for suffix, of in SUFFIXES.items():
        for precision in export_formats.WRITTEN[of.kind]:
            path = folder / f"{of.kind}-{precision}" / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                export_file(
                    model,
                    path,
                    labels,
                    precision=precision,
                    images=images,
                    verbose=False,
                )
            except (ImportError, ValueError) as error:
                yield error
                continue
            data = path.with_suffix(".bin") if suffix == ".xml" else path
            opened = _OPEN[of.kind](str(path), threads)
            yield Measured(
                name=f"{of.name} {opened.computes or precision}",
                scores=opened.scores,
                mebibytes=data.stat().st_size / 2**20,
                path=path,
            )


def take_turns(
    rows: Sequence[Measured], images: np.ndarray, *, rounds: int, seconds: float
) -> Iterator[None]:
    """Measures all rows in turn, so that other work on the machine slows each of them.

    Args:
        rows: Each receives a number in `batches` and `singles` for each round.
        images: The batch, uint8 [B, H, W, C]; its first image is the single one.
        rounds: Number of measurements of each row.
        seconds: Minimum duration of a measurement.

    Yields:
        None after each row of a round.
    """
    for _ in range(rounds):
        for row in rows:
            row.batches.append(images_per_second(row.scores, images, seconds))
            row.singles.append(images_per_second(row.scores, images[:1], seconds))
            yield
