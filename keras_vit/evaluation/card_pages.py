"""Renders a results card as Markdown next to its pictures, and as HTML with them."""

import html as entities
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.evaluation.card_data import CardData
from keras_vit.evaluation.metrics import Estimate
from keras_vit.web_page import Row, picture, render

_TITLES = {
    "top_1": "top-1 accuracy",
    "top_5": "top-5 accuracy",
    "nll": "negative log-likelihood",
    "ece": "expected calibration error",
}
_CAPTIONS = {
    "reliability": "Reliability: accuracy of images by their confidence, 15 bins. A "
    "calibrated model's bars end at the dashed line.",
    "confusion": "Confusion: share of each class (row) that was predicted as each "
    "(column).",
    "data_size": "Accuracy against the number of training images (as in Figure 4).",
}
_CONFUSED = 10  # Number of pairs of classes in the table.


def shown(name: str, estimate: Estimate) -> Row:
    """Formats a result and its interval; shares in percent, others unchanged."""
    scale, digits = (100, 2) if name.startswith("top") else (1, 4)
    value, low, high = (
        f"{scale * number:.{digits}f}"
        for number in (estimate.value, estimate.low, estimate.high)
    )
    unit = " %" if scale == 100 else ""
    return f"{value}{unit}", f"{low} to {high}{unit}"


def _results(card: CardData) -> list[Row]:
    rows = [(_TITLES[key], *shown(key, card.results[key])) for key in card.results]
    for key, value in card.scaled.items():
        rows.append((f"{_TITLES[key]}, temperature scaled", *shown(key, value)))
    return rows


def _facts(card: CardData) -> list[tuple[str, list[Row]]]:
    """Returns tables as pairs of a title and rows."""
    data = {key: value for key, value in card.data.items() if key != "classes"}
    data["classes"] = len(card.data["classes"])
    numerics = dict(card.numerics)
    versions = numerics.pop("versions")
    tables = {
        "Model": card.model,
        "Data": data,
        "Preprocessing": card.preprocessing,
        "Numerics": numerics,
        "Versions": versions,
    }
    return [
        (title, [(key.replace("_", " "), _text(value)) for key, value in facts.items()])
        for title, facts in tables.items()
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _per_class(card: CardData) -> list[Row]:
    """Returns the classes that have images, the hardest first."""
    classes = card.data["classes"]
    right, images = card.images.per_class(len(classes))
    order = np.argsort(right / np.maximum(images, 1), kind="stable")
    return [
        (
            classes[k],
            f"{100 * right[k] / images[k]:.2f} %",
            f"{right[k]:,} of {images[k]:,}",
        )
        for k in order
        if images[k]
    ]


def _confused(card: CardData) -> list[Row]:
    """Returns the pairs of classes that were confused most often."""
    classes = card.data["classes"]
    matrix = card.images.confusion(len(classes))
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSED]
    pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [
        (
            classes[row],
            classes[column] if column < len(classes) else "none of the classes",
            f"{wrong[row, column]:,} of {matrix[row].sum():,}",
        )
        for row, column in pairs
        if wrong[row, column]
    ]


def _scaling(card: CardData) -> str:
    if not card.temperatures:
        return ""
    first, second = card.temperatures
    return (
        f"Temperatures {first:.4f} and {second:.4f}: the images are divided at random, "
        "and each half is scaled by the temperature of the other."
    )


_INTERVALS = (
    "95 % intervals: Wilson's for accuracies, percentile bootstrap over images for the "
    "others. Every image is counted once."
)


# Markdown.


def markdown(card: CardData, pictures: Sequence[str]) -> str:
    """Renders the card as Markdown that shows pictures with these names."""
    parts = [
        f"# {_md(card.name)} on {_md(card.data['name'])}",
        _md_table(("", "value", "95 % interval"), _results(card)),
        _INTERVALS,
        _scaling(card),
        *(f"![{_caption(name)}]({name})" for name in pictures),
    ]
    if card.has_classes:
        parts += [
            "## Most confused",
            _md_table(("class", "predicted as", "images"), _confused(card)),
            "## Classes, the hardest first",
            _md_table(("class", "accuracy", "images"), _per_class(card)),
        ]
    for title, rows in _facts(card):
        parts += [f"## {title}", _md_table(("", ""), rows)]
    if card.command:
        parts += ["## Command", _md_code(card.command)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _md(text: str) -> str:
    """Escapes text for Markdown and the HTML in it."""
    marks = "\\`*_[]|#~"
    plain = entities.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{c}" if c in marks else c for c in plain)


def _md_table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_md, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _md_code(text: str) -> str:
    """Returns a code block with a fence that is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}bash\n{text}\n{fence}"


def _caption(picture: str) -> str:
    return _CAPTIONS[picture.removesuffix(".png")]


# HTML.


def html(card: CardData, pictures: Mapping[str, bytes]) -> str:
    """Renders the card as one HTML page that contains its pictures, PNG by name."""
    images = f"{card.data['images']:,} images"
    if card.data["without_label"]:
        images += f", {card.data['without_label']:,} more have no label"
    return render(
        "card.html",
        title=f"{card.name} on {card.data['name']}",
        card=card,
        images=images,
        tiles=[(_TITLES[key], *shown(key, card.results[key])) for key in card.results],
        intervals=_INTERVALS,
        scaled=[row for row in _results(card) if "scaled" in row[0]],
        scaling=_scaling(card),
        pictures=[
            (name, _caption(name), picture(png)) for name, png in pictures.items()
        ],
        confused=_confused(card) if card.has_classes else [],
        per_class=_per_class(card) if card.has_classes else [],
        facts=_facts(card),
    )
