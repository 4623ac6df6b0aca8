"""Values of a page (4.5, D.7, D.8) and of its sliders, with maps as bytes."""

import base64
import dataclasses
import math
from typing import Any

import numpy as np

_POSITIONS = 2**19  # Maximum number of cosines in a page, one byte each.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageData:
    """Values of a page; `page.Page` describes each."""

    title: str
    facts: list[tuple[str, str]]
    photos: np.ndarray
    names: list[str]
    predictions: list[list[tuple[str, float]]] | None = None
    attention: np.ndarray | None = None
    rollout: np.ndarray | None = None
    query: str = "the class token"
    covered: tuple[float, float] = (1.0, 1.0)
    distance: np.ndarray | None = None
    filters: np.ndarray | None = None
    positions: np.ndarray | None = None
    position_at: str = "stem"
    absent: dict[str, str] = dataclasses.field(default_factory=dict)


def quantized(maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantizes maps to bytes; 255 is the maximum of each map: [..., rows, cols].

    Returns:
        uint8 of the same shape, and the maxima [...]. A byte is in units of 1/255 of
        the maximum, so that the error is at most 1/510 of it.
    """
    most = maps.max(axis=(-2, -1))
    scale = np.where(most > 0, most, 1)[..., None, None]
    return np.rint(255 * maps / scale).astype(np.uint8), most


def data(page: PageData) -> dict[str, Any]:
    """Returns the values of the page's script, for JSON."""
    told: dict[str, Any] = {"names": page.names, "covered": page.covered}
    if page.attention is not None and page.rollout is not None:
        bytes_, most = quantized(page.attention)
        told["attention"] = {
            "shape": page.attention.shape,
            "query": page.query,
            "bytes": _encoded(bytes_),
            "most": _floats(most),
            # Before rounding, over the patches; the rest went to other tokens.
            "total": _floats(page.attention.sum(axis=(-2, -1))),
        }
        bytes_, most = quantized(page.rollout)
        told["rollout"] = {
            "bytes": _encoded(bytes_),
            "most": _floats(most),
            "total": _floats(page.rollout.sum(axis=(-2, -1))),
        }
    if page.positions is not None:
        told["positions"] = _position_data(page.positions)
    return told


def position_step(rows: int, cols: int) -> int:
    """Returns the spacing of the rows and columns of patches that have cosines."""
    return next(
        step
        for step in range(1, max(rows, cols) + 1)
        if math.ceil(rows / step) * math.ceil(cols / step) * rows * cols <= _POSITIONS
        or step == max(rows, cols)
    )


def _position_data(positions: np.ndarray) -> dict[str, Any]:
    """Returns cosines as bytes from `low` to 1, for every `step`-th row and column."""
    step = position_step(*positions.shape[:2])
    low = min(float(positions.min()), 0.0)
    kept = (positions[::step, ::step] - low) / (1 - low)
    return {
        "shape": positions.shape[:2],
        "step": step,
        "low": low,
        "bytes": _encoded(np.rint(255 * kept.clip(0, 1)).astype(np.uint8)),
    }


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def _floats(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values.ravel()]
