"""A `Page` as HTML: its pictures, its maps as bytes, its words."""

import json
import math
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.inspection.page_data import data, position_step
from keras_vit.pages import document, escaped, picture, table

if TYPE_CHECKING:
    from keras_vit.inspection.page import Page

_LOSSLESS = 128  # Pixels; JPEG would blur smaller photos that are drawn large.


def html(page: "Page") -> str:
    """The page as one file of HTML, CSS and JavaScript.

    Raises:
        ValueError: naming the field, if one is not finite.
    """
    _check_finite(page)
    body = [
        f"<header><h1>{escaped(page.title)}</h1><p>{escaped(_line(page))}</p></header>",
        "<noscript><p>Choosing and the sliders need JavaScript.</p></noscript>",
        "<main>",
        _chooser(page),
        '<div class="viewer">',
        _photo(page),
        _controls(page),
        _predictions(page),
        "</div>",
        '<div class="panels">',
        _distance(page),
        _positions(page),
        _filters(page),
        f"<section><h2>Model</h2>{table((), page.facts, 'facts')}</section>",
        "</div>",
        "</main>",
        f'<script type="application/json" id="data">{_json(data(page))}</script>',
    ]
    return document(page.title, body, _asset("page.css"), _asset("page.js"))


def _check_finite(page: "Page") -> None:
    for field in ("attention", "rollout", "distance", "filters", "positions"):
        values = getattr(page, field)
        if values is not None and not np.isfinite(values).all():
            raise ValueError(
                f"Expected finite {field} in the page. Received: NaN or infinity"
            )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that no text in it can end: `</script>` and `<!--` have no `<`."""
    # NaN is none of JSON: a browser would stop there, and show nothing.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _line(page: "Page") -> str:
    facts = dict(page.facts)
    told = [
        f"{facts[what]} {what}"
        for what in ("parameters", "layers", "heads")
        if what in facts
    ]
    count = len(page.photos)
    variant = facts.get("variant", page.title)
    named = [] if variant == page.title else [variant]
    return ", ".join([*named, *told, f"{count} image{'s' * (count > 1)}"])


def _photo_file(photo: np.ndarray) -> bytes:
    """A JPEG; of a small photo a PNG."""
    import tensorflow as tf

    if min(photo.shape[:2]) < _LOSSLESS:
        return bytes(tf.io.encode_png(photo).numpy())
    return bytes(tf.io.encode_jpeg(photo, quality=85).numpy())


def _chooser(page: "Page") -> str:
    """A photo for each image; a radio button each, so that arrow keys choose."""
    choices = "".join(
        f'<label><input type="radio" name="image" value="{i}"{" checked" * (i == 0)}>'
        f'<img src="{picture(_photo_file(photo))}" alt="{escaped(name)}"></label>'
        for i, (photo, name) in enumerate(zip(page.photos, page.names, strict=True))
    )
    return (
        f"<section><fieldset><legend><h2>Images</h2></legend>"
        f'<div class="choices">{choices}</div></fieldset></section>'
    )


def _photo(page: "Page") -> str:
    none = page.attention is None
    map_ = "" if none else '<canvas id="map"></canvas>'
    return (
        f"<section><h2>{'Image' if none else 'Attention'}</h2>"
        f'<figure><div class="stack"><img id="photo" alt="">{map_}</div>'
        '<figcaption><span id="name"></span> <span id="said" aria-live="polite"></span>'
        "</figcaption></figure></section>"
    )


def _predictions(page: "Page") -> str:
    if page.predictions is None:
        return _without(page, "Predictions", "predictions")
    tables = "".join(
        f'<table class="predictions"{" hidden" * (i > 0)}>'
        f"<caption>{escaped(name)}</caption>"
        "<tr><th>class</th><th>probability [%]</th></tr>"
        f"{''.join(map(_prediction, best))}</table>"
        for i, (name, best) in enumerate(zip(page.names, page.predictions, strict=True))
    )
    return f'<section aria-live="polite"><h2>Predictions</h2>{tables}</section>'


def _prediction(best: tuple[str, float]) -> str:
    name, probability = best
    percent = 100 * probability
    return (
        f"<tr><td>{escaped(name)}</td><td>{percent:.2f}"
        '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" '
        f'aria-hidden="true"><rect width="{percent:.2f}" height="1"/></svg></td></tr>'
    )


def _controls(page: "Page") -> str:
    """Sliders, and a small map for each head, which is a button."""
    if page.attention is None:
        return _without(page, "Layers and heads", "attention")
    layers, heads = page.attention.shape[1:3]
    buttons = "".join(
        f'<button type="button" value="{head}"><canvas></canvas>{head}</button>'
        for head in range(1, heads + 1)
    )
    return f"""<section><h2>Layers and heads</h2>
<p class="note">How much {escaped(page.query)} of a layer looks at each patch; the
rollout multiplies all layers (D.8).</p>
{_slider("layer", "Layer", 1, layers, layers)}
{_slider("head", "Head", 0, heads, 0)}
<p><label><input type="checkbox" id="rollout"> Rollout of all layers and heads</label>
</p>
<p class="choice"><label for="view">Show</label> <select id="view">
<option value="heat">attention over the photo</option>
<option value="mask">the photo, as bright as its attention</option>
<option value="map">attention alone</option></select></p>
{_slider("strength", "Strength", 0, 100, 85)}
{_colour_bar("scale", "share of the attention that a patch gets [%]")}
<div id="heads"><h3>Every head of this layer</h3><div class="heads">{buttons}</div>
<p class="note">Each from 0 to its own maximum.</p></div></section>"""


def _slider(name: str, label: str, least: int, most: int, value: int) -> str:
    return (
        f'<p class="slider"><label for="{name}">{label}</label>'
        f'<output for="{name}" id="{name}-value"></output>'
        f'<input type="range" id="{name}" min="{least}" max="{most}" value="{value}">'
        "</p>"
    )


def _colour_bar(name: str, unit: str) -> str:
    return (
        f'<div class="scale"><span id="{name}-least"></span>'
        f'<canvas id="{name}" class="colours" width="256" height="1" '
        f'aria-hidden="true"></canvas><span id="{name}-most"></span></div>'
        f'<p class="note">{unit}</p>'
    )


def _without(page: "Page", title: str, field: str) -> str:
    return (
        f'<section><h2>{title}</h2><p class="note">{escaped(page.absent[field])}</p>'
        "</section>"
    )


def _distance(page: "Page") -> str:
    if page.distance is None:
        return _without(page, "Attention distance", "distance")
    heads = range(1, page.distance.shape[1] + 1)
    rows = [
        (str(layer), *(f"{value:.1f}" for value in row))
        for layer, row in enumerate(page.distance, start=1)
    ]
    values = table(("layer", *(f"head {head}" for head in heads)), rows)
    count = len(page.photos)
    images = "this image" if count == 1 else f"these {count} images"
    return f"""<section><h2>Attention distance</h2>
{_dots(page.distance)}
<p class="note">How far each head looks, in the mean over patches and {images} (D.7;
the paper takes 128). A dot is a head; a ring marks what is chosen above.</p>
<details><summary>As numbers [pixels]</summary>
<div class="wide" tabindex="0">{values}</div></details></section>"""


def _dots(distance: np.ndarray) -> str:
    """Figure 7, right: layers from left to right, pixels upwards."""
    width, height, left, top, bottom = 360, 250, 44, 12, 42
    layers = len(distance)
    step, ticks = _ticks(float(distance.max()))
    most = step * (ticks - 1)

    def across(layer: float) -> float:
        return left + (width - left - 8) * (layer - 0.5) / layers

    def up(pixels: float) -> float:
        return height - bottom - (height - bottom - top) * pixels / most

    lines = "".join(
        f'<line x1="{left}" x2="{width}" y1="{up(y):.1f}" y2="{up(y):.1f}"/>'
        f'<text x="{left - 6}" y="{up(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        for y in (i * step for i in range(ticks))
    )
    every = math.ceil(layers / 12)
    numbers = "".join(
        f'<text x="{across(layer):.1f}" y="{height - bottom + 16}" '
        f'text-anchor="middle">{layer}</text>'
        for layer in range(1, layers + 1)
        if (layer - 1) % every == 0
    )
    dots = "".join(
        f'<circle cx="{across(layer):.1f}" cy="{up(value):.1f}" r="4" '
        f'data-layer="{layer}" data-head="{head}">'
        f"<title>layer {layer}, head {head}: {value:.1f} pixels</title></circle>"
        for layer, row in enumerate(distance, start=1)
        for head, value in enumerate(row, start=1)
    )
    middle = (height - bottom + top) / 2
    return (
        f'<svg id="distance" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Mean attention distance in pixels of every head, by layer; the '
        f'same as numbers below">{lines}{numbers}'
        f'<text x="{(left + width) / 2}" y="{height - 6}" text-anchor="middle">layer'
        f'</text><text transform="translate(11 {middle}) rotate(-90)" '
        f'text-anchor="middle">distance [pixels]</text>{dots}</svg>'
    )


def _ticks(most: float) -> tuple[float, int]:
    """A round step and how many ticks from 0 hold `most`: six at most."""
    if most <= 0:
        return 1.0, 2
    power = 10 ** math.floor(math.log10(most / 5))
    step = next(power * f for f in (1, 2, 5, 10) if most <= 5 * power * f)
    return step, math.ceil(most / step) + 1


def _positions(page: "Page") -> str:
    if page.positions is None:
        return _without(page, "Position embeddings", "positions")
    rows, cols = page.positions.shape[:2]
    step = position_step(rows, cols)
    most_row, most_col = math.ceil(rows / step) - 1, math.ceil(cols / step) - 1
    some = "" if step == 1 else f" One row and column in {step} can be chosen."
    whose = " of layer 1; each layer adds its own" * (page.position_at == "every_layer")
    return f"""<section><h2>Position embeddings</h2>
<div class="positions"><canvas id="positions"></canvas>
<svg id="here" viewBox="0 0 {cols} {rows}" preserveAspectRatio="none"
aria-hidden="true"><rect width="1" height="1"/><rect width="1" height="1"/></svg></div>
{_slider("row", "Row", 0, most_row, most_row // 2)}
{_slider("column", "Column", 0, most_col, most_col // 2)}
{_colour_bar("cosine", "cosine of the chosen patch's position and each one's")}
<p class="note">How alike positions are (Figures 7 and 10){whose}; the framed patch is
chosen by the sliders or on the picture.{some}</p></section>"""


def _filters(page: "Page") -> str:
    if page.filters is None:
        return _without(page, "Embedding filters", "filters")
    tiles = "".join(
        f'<img src="{picture(_tile(one))}" alt="component {i}">'
        for i, one in enumerate(page.filters, start=1)
    )
    return f"""<section><h2>Embedding filters</h2><div class="filters">{tiles}</div>
<p class="note">The first {len(page.filters)} principal components of the patch
embedding's filters (Figure 7), the greatest variance first; each from its least value
to its greatest.</p></section>"""


def _tile(component: np.ndarray) -> bytes:
    """A filter from black to white: [P, P, C] -> PNG; C other than 3 is the first."""
    import tensorflow as tf

    shown = component if component.shape[-1] == 3 else component[..., :1]
    low, high = shown.min(), shown.max()
    shares = (shown - low) / (high - low if high > low else 1)
    return bytes(tf.io.encode_png(np.rint(255 * shares).astype(np.uint8)).numpy())
