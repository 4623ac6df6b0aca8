"""A results card as a page: Markdown next to its pictures, HTML that contains them."""

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
    "confusion": "Confusion: share of each class (row) that was taken for each "
    "(column).",
    "data_size": "Accuracy against the number of training images (as in Figure 4).",
}
_CONFUSED = 10  # Pairs of classes in the table.


def shown(name: str, estimate: Estimate) -> Row:
    """A result's value and interval: shares in percent, others as they are."""
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
    """Title of a table: its rows."""
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
    """Classes with images, the hardest first."""
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
    """The pairs of classes that were confused most."""
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
        f"Temperatures {first:.4f} and {second:.4f}: each half of the images, drawn at "
        "random, is scaled by the temperature of the other half."
    )


_INTERVALS = (
    "95 % intervals: Wilson's for accuracies, percentile bootstrap over images for the "
    "others. Every image counts once."
)


# Markdown.


def markdown(card: CardData, pictures: Sequence[str]) -> str:
    """The card as Markdown, which shows pictures of these names next to it."""
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
            _md_table(("class", "taken for", "images"), _confused(card)),
            "## Classes, the hardest first",
            _md_table(("class", "accuracy", "images"), _per_class(card)),
        ]
    for title, rows in _facts(card):
        parts += [f"## {title}", _md_table(("", ""), rows)]
    if card.command:
        parts += ["## Command", _md_code(card.command)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _md(text: str) -> str:
    """Text that Markdown and the HTML in it take for nothing else."""
    marks = "\\`*_[]|#~"
    plain = entities.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{c}" if c in marks else c for c in plain)


def _md_table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_md, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _md_code(text: str) -> str:
    """A block that no run of backticks in the text ends."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}bash\n{text}\n{fence}"


def _caption(picture: str) -> str:
    return _CAPTIONS[picture.removesuffix(".png")]


# HTML.


def html(card: CardData, pictures: Mapping[str, bytes]) -> str:
    """The card as one page of HTML with the pictures, PNG by name, inside."""
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
