"""Compares cards pairwise on the same images, and in Table 2's layout."""

import dataclasses
import statistics
from collections.abc import Sequence

from keras_vit import paper
from keras_vit.evaluation import metrics
from keras_vit.evaluation.cards import Card
from keras_vit.evaluation.metrics import Estimate

__all__ = ["Difference", "difference", "table_2"]

TABLE_2 = {  # Its rows, by TFDS's names of the data sets.
    "imagenet2012": "ImageNet",
    "imagenet2012_real": "ImageNet ReaL",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "oxford_iiit_pet": "Oxford-IIIT Pets",
    "oxford_flowers102": "Oxford Flowers-102",
    "vtab": "VTAB (19 tasks)",
}
COLUMNS = {  # The paper's columns, by model and pre-training.
    ("ViT-H/14", "jft300m"): "H/14 JFT",
    ("ViT-L/16", "jft300m"): "L/16 JFT",
    ("ViT-L/16", "imagenet21k"): "L/16 I21k",
    ("BiT-R152x4", "jft300m"): "BiT-L JFT",
    ("EfficientNet-L2", "jft300m"): "Noisy Student",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference between a card and the first one.

    Attributes:
        is_paired: whether both have the same images and labels.
        top_1: difference of shares, in [-1, 1], with its 95 % interval: paired
            bootstrap, or Newcombe's for two independent shares.
        nll: difference of the NLL in nats, by paired bootstrap; None if not paired.
        p: p-value of the exact McNemar test that both err equally often, in [0, 1];
            None if not paired.
        only_first: images that only the first predicts correctly; None if not paired.
        only_second: images that only the second predicts correctly; None if not
            paired.
    """

    is_paired: bool
    top_1: Estimate
    nll: Estimate | None = None
    p: float | None = None
    only_first: int | None = None
    only_second: int | None = None


def difference(first: Card, second: Card) -> Difference:
    """Returns the results of `second` minus those of `first`.

    They are paired if the cards' data have the same fingerprint: the same images in
    the same order, with the same correct answers.

    Args:
        first: card to compare with.
        second: card to compare.

    Returns:
        A `Difference`.
    """
    if first.data["fingerprint"] != second.data["fingerprint"]:
        top_1 = metrics.unpaired_difference(
            first.results["top_1"], second.results["top_1"]
        )
        return Difference(is_paired=False, top_1=top_1)
    one, other = first.images, second.images
    return Difference(
        is_paired=True,
        top_1=metrics.paired_difference(one.right, other.right),
        nll=metrics.paired_difference(one.nll, other.nll),
        p=metrics.mcnemar(one.right, other.right),
        only_first=int((one.right & ~other.right).sum()),
        only_second=int((other.right & ~one.right).sum()),
    )


def table_2(cards: Sequence[Card]) -> tuple[list[str], list[list[str]]]:
    """Arranges top-1 as in Table 2: data sets by models, the paper's columns first.

    Args:
        cards: cards to show; data sets that are not in Table 2 are left out. Several
            cards with the same name and data are runs of one model and are shown with
            mean and standard deviation.

    Returns:
        Column names, and a row, which begins with its name, for each data set of
        Table 2 that has a card. There may be no rows.
    """
    cells: dict[str, dict[str, str]] = {}
    for row in paper.TABLES["Table 2"]:
        column = COLUMNS[row.model, row.pretrained_on]
        row_cells = cells.setdefault(column, {})
        both = (row_cells.get(row.dataset), _mean(row.percent, row.std))
        row_cells[row.dataset] = "/".join(filter(None, both))  # "88.4/88.5"
    runs: dict[str, dict[str, list[Card]]] = {}
    for card in cards:
        runs.setdefault(card.name, {}).setdefault(card.data["name"], []).append(card)
    for name, by_data in runs.items():
        cells[name] = {data: _cell(found) for data, found in by_data.items()}
    present = {card.data["name"] for card in cards}
    rows = [
        [title, *(cells[column].get(data, "") for column in cells)]
        for data, title in TABLE_2.items()
        if data in present
    ]
    return ["", *cells], rows


def _mean(percent: float, std: float | None) -> str:
    return f"{percent:.2f}" + ("" if std is None else f"±{std:.2f}")


def _cell(cards: list[Card]) -> str:
    percents = [100 * card.results["top_1"].value for card in cards]
    if len(percents) > 1:
        return _mean(statistics.mean(percents), statistics.stdev(percents))
    top_1 = cards[0].results["top_1"]
    return f"{percents[0]:.2f} ({100 * top_1.low:.2f} to {100 * top_1.high:.2f})"
