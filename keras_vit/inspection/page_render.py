"""Renders a page as HTML that contains its pictures and maps."""

import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

from keras_vit.inspection.page_data import PageData, data, position_step
from keras_vit.web_page import picture, render

_LOSSLESS = 128  # Pixels; smaller photos are enlarged, which would show JPEG's blur.


def html(page: PageData) -> str:
    """Renders the page as one file of HTML, CSS and JavaScript.

    Raises:
        ValueError: if a field is not finite, with its name.
    """
    _check_finite(page)
    photos = [picture(_photo_file(photo)) for photo in page.photos]
    return render(
        "inspect.html",
        title=page.title,
        style=_asset("page.css"),
        script=_asset("page.js"),
        page=page,
        line=_line(page),
        photos=list(zip(page.names, photos, strict=True)),
        **({} if page.distance is None else _distance(page.distance)),
        step=1 if page.positions is None else position_step(*page.positions.shape[:2]),
        filters=[picture(_tile(one)) for one in _present(page.filters)],
        data=data(page),
    )


def _check_finite(page: PageData) -> None:
    for field in ("attention", "rollout", "distance", "filters", "positions"):
        values = getattr(page, field)
        if values is not None and not np.isfinite(values).all():
            raise ValueError(
                f"Expected finite {field} in the page. Received: NaN or infinity"
            )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _line(page: PageData) -> str:
    facts = dict(page.facts)
    described = [
        f"{facts[what]} {what}"
        for what in ("parameters", "layers", "heads")
        if what in facts
    ]
    count = len(page.photos)
    variant = facts.get("variant", page.title)
    named = [] if variant == page.title else [variant]
    return ", ".join([*named, *described, f"{count} image{'s' * (count > 1)}"])


def _photo_file(photo: np.ndarray) -> bytes:
    """Returns a JPEG; a PNG for a small photo."""
    import tensorflow as tf

    if min(photo.shape[:2]) < _LOSSLESS:
        return bytes(tf.io.encode_png(photo).numpy())
    return bytes(tf.io.encode_jpeg(photo, quality=85).numpy())


def _present(filters: np.ndarray | None) -> Sequence[np.ndarray]:
    return [] if filters is None else list(filters)


def _distance(distance: np.ndarray) -> dict[str, Any]:
    """Returns Figure 7, right, as plot coordinates and as a table: [L, k] pixels."""
    heads = range(1, distance.shape[1] + 1)
    return {
        "plot": _plot(distance),
        "distance_head": ("layer", *(f"head {head}" for head in heads)),
        "distance_rows": [
            (str(layer), *(f"{value:.1f}" for value in row))
            for layer, row in enumerate(distance, start=1)
        ],
    }


def _plot(distance: np.ndarray) -> dict[str, Any]:
    """Returns coordinates with layers from left to right and pixels upward."""
    width, height, left, top, bottom = 360, 250, 44, 12, 42
    layers = len(distance)
    step, ticks = _ticks(float(distance.max()))

    def across(layer: float) -> float:
        return left + (width - left - 8) * (layer - 0.5) / layers

    def up(pixels: float) -> float:
        share = pixels / (step * (ticks - 1))
        return height - bottom - (height - bottom - top) * share

    return {
        "width": width,
        "height": height,
        "left": left,
        "top": top,
        "base": height - bottom,
        "lines": [(i * step, up(i * step)) for i in range(ticks)],
        "layers": [
            (layer, across(layer))
            for layer in range(1, layers + 1, math.ceil(layers / 12))
        ],
        "dots": [
            (layer, head, value, across(layer), up(value))
            for layer, row in enumerate(distance, start=1)
            for head, value in enumerate(row, start=1)
        ],
    }


def _ticks(most: float) -> tuple[float, int]:
    """Returns a round step and the number of steps from 0 to `most`, at most six."""
    if most <= 0:
        return 1.0, 2
    power = 10 ** math.floor(math.log10(most / 5))
    step = next(power * f for f in (1, 2, 5, 10) if most <= 5 * power * f)
    return step, math.ceil(most / step) + 1


def _tile(component: np.ndarray) -> bytes:
    """Draws a filter from black to white: [P, P, C] -> PNG; the first if C is not 3."""
    import tensorflow as tf

    shown = component if component.shape[-1] == 3 else component[..., :1]
    low, high = shown.min(), shown.max()
    shares = (shown - low) / (high - low if high > low else 1)
    return bytes(tf.io.encode_png(np.rint(255 * shares).astype(np.uint8)).numpy())
