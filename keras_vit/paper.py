"""The accuracies of the paper (arXiv:2010.11929v2) as values. Standard library only.

The module contains Tables 2, 5, 6, 7, 8 and 9 and the two numbers of D.9 (ObjectNet) as
printed, with Table 2's core-days and Table 6's exaFLOPs. Figures 2, 3 and 5 are
computed from them. Figure 2's groups are means of Table 9's tasks; its BiT-L, VIVI and
S4L are in no table. Figure 3's points are Table 5's ImageNet columns; BiT's are in no
table. Figure 5 is Table 6. Figure 4's points are in no table and are omitted.

The paper is not consistent everywhere; numbers are kept as printed. Table 6 has other
numbers for ViT-H/14 than Table 5, and Table 2's ViT-L/16 models were trained separately
from both. `tests/test_paper.py` lists the differences.

Models have their names in `VARIANTS`, and data sets their names in TFDS.
"imagenet2012_real" is ImageNet with ReaL's labels, "vtab" is the mean of the 19 tasks,
and "vtab/dtd" is one of them.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

__all__ = [
    "AVERAGE_5",
    "Accuracy",
    "CORE_DAYS",
    "EXAFLOPS",
    "TABLES",
    "TABLE_8",
    "TABLE_9_COLUMNS",
    "VTAB",
    "expected",
    "figure_2",
    "figure_3",
    "figure_5",
    "kind",
]

Table = Literal["Table 2", "Table 5", "Table 6", "Table 7", "Table 9", "D.9"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accuracy:
    """One number of the paper's Tables 2, 5, 6, 7 and 9, or of section D.9.

    Attributes:
        table: table that contains the number, a key of `TABLES`.
        model: name in `VARIANTS`; Noisy Student is "EfficientNet-L2".
        pretrained_on: "jft300m", "imagenet21k" or "imagenet2012".
        dataset: name of the data set in TFDS, or "imagenet2012_real", "vtab" or
            "vtab/dtd", see the module; "average" is Table 7's average.
        percent: accuracy from 0 to 100; in Table 2 the mean of three fine-tunings.
        std: standard deviation of the three, in percent; None: not printed.
        epochs: epochs of the pre-training (Table 6's column); None in other tables.
        optimizer: optimizer of the pre-training; Table 7 has both.
        top: 1 for top-1 accuracy, 5 for top-5 (only in D.9).
    """

    table: Table
    model: str
    pretrained_on: str
    dataset: str
    percent: float
    std: float | None = None
    epochs: int | None = None
    optimizer: Literal["adam", "sgd"] = "adam"
    top: Literal[1, 5] = 1


# The mean of three fine-tunings and its deviation, or None. BiT-L is R152x4. Noisy
# Student used JFT-300M without labels (4.2); it is only in the first two rows, with
# "88.4/88.5" in the first.
_L2 = ("EfficientNet-L2", "jft300m")
_TABLE_2_COLUMNS = (
    ("ViT-H/14", "jft300m"),
    ("ViT-L/16", "jft300m"),
    ("ViT-L/16", "imagenet21k"),
    ("BiT-R152x4", "jft300m"),
    _L2,
)
_TABLE_2: dict[str, tuple[tuple[float, float | None], ...]] = {
    "imagenet2012": (
        (88.55, 0.04),
        (87.76, 0.03),
        (85.30, 0.02),
        (87.54, 0.02),
        (88.4, None),
    ),
    "imagenet2012_real": (
        (90.72, 0.05),
        (90.54, 0.03),
        (88.62, 0.05),
        (90.54, None),
        (90.55, None),
    ),
    "cifar10": ((99.50, 0.06), (99.42, 0.03), (99.15, 0.03), (99.37, 0.06)),
    "cifar100": ((94.55, 0.04), (93.90, 0.05), (93.25, 0.05), (93.51, 0.08)),
    "oxford_iiit_pet": ((97.56, 0.03), (97.32, 0.11), (94.67, 0.15), (96.62, 0.23)),
    "oxford_flowers102": ((99.68, 0.02), (99.74, 0.00), (99.61, 0.02), (99.63, 0.03)),
    "vtab": ((77.63, 0.23), (76.28, 0.46), (72.72, 0.21), (76.29, 1.70)),
}
CORE_DAYS = {
    ("ViT-H/14", "jft300m"): 2_500,
    ("ViT-L/16", "jft300m"): 680,
    ("ViT-L/16", "imagenet21k"): 230,
    ("BiT-R152x4", "jft300m"): 9_900,
    _L2: 12_300,
}
"""TPUv3-core-days of the pre-training (Table 2), by (model, pre-training data)."""

# At 384 px, without Polyak averaging; ViT-H/14 was not pre-trained on ImageNet.
_TABLE_5_MODELS = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14")
_TABLE_5: dict[str, dict[str, tuple[float, ...]]] = {
    "imagenet2012": {
        "cifar10": (98.13, 97.77, 97.86, 97.94),
        "cifar100": (87.13, 86.31, 86.35, 87.07),
        "imagenet2012": (77.91, 73.38, 76.53, 71.16),
        "imagenet2012_real": (83.57, 79.56, 82.19, 77.83),
        "oxford_flowers102": (89.49, 85.43, 89.66, 86.36),
        "oxford_iiit_pet": (93.81, 92.04, 93.64, 91.35),
    },
    "imagenet21k": {
        "cifar10": (98.95, 98.79, 99.16, 99.13, 99.27),
        "cifar100": (91.67, 91.97, 93.44, 93.04, 93.82),
        "imagenet2012": (83.97, 81.28, 85.15, 80.99, 85.13),
        "imagenet2012_real": (88.35, 86.63, 88.40, 85.65, 88.70),
        "oxford_flowers102": (99.38, 99.11, 99.61, 99.19, 99.51),
        "oxford_iiit_pet": (94.43, 93.02, 94.73, 93.09, 94.82),
    },
    "jft300m": {
        "cifar10": (99.00, 98.61, 99.38, 99.19, 99.50),
        "cifar100": (91.87, 90.49, 94.04, 92.52, 94.55),
        "imagenet2012": (84.15, 80.73, 87.12, 84.37, 88.04),
        "imagenet2012_real": (88.85, 86.27, 89.99, 88.28, 90.33),
        "oxford_flowers102": (99.56, 99.27, 99.56, 99.45, 99.68),
        "oxford_iiit_pet": (95.80, 93.40, 97.11, 95.83, 97.56),
    },
}

# Epochs of pre-training on JFT-300M.
_TABLE_6_DATASETS = (
    "imagenet2012",
    "imagenet2012_real",
    "cifar10",
    "cifar100",
    "oxford_iiit_pet",
    "oxford_flowers102",
)
_TABLE_6 = {
    ("ViT-B/32", 7): (80.73, 86.27, 98.61, 90.49, 93.40, 99.27),
    ("ViT-B/16", 7): (84.15, 88.85, 99.00, 91.87, 95.80, 99.56),
    ("ViT-L/32", 7): (84.37, 88.28, 99.19, 92.52, 95.83, 99.45),
    ("ViT-L/16", 7): (86.30, 89.43, 99.38, 93.46, 96.81, 99.66),
    ("ViT-L/16", 14): (87.12, 89.99, 99.38, 94.04, 97.11, 99.56),
    ("ViT-H/14", 14): (88.08, 90.36, 99.50, 94.71, 97.11, 99.71),
    ("BiT-R50x1", 7): (77.54, 84.56, 97.67, 86.07, 91.11, 94.26),
    ("BiT-R50x2", 7): (82.12, 87.94, 98.29, 89.20, 93.43, 97.02),
    ("BiT-R101x1", 7): (80.67, 87.07, 98.48, 89.17, 94.08, 95.95),
    ("BiT-R152x1", 7): (81.88, 87.96, 98.82, 90.22, 94.17, 96.94),
    ("BiT-R152x2", 7): (84.97, 89.69, 99.06, 92.05, 95.37, 98.62),
    ("BiT-R152x2", 14): (85.56, 89.89, 99.24, 91.92, 95.75, 98.75),
    ("BiT-R200x3", 14): (87.22, 90.15, 99.34, 93.53, 96.32, 99.04),
    ("R50+ViT-B/32", 7): (84.90, 89.15, 99.01, 92.24, 95.75, 99.46),
    ("R50+ViT-B/16", 7): (85.58, 89.65, 99.14, 92.63, 96.65, 99.40),
    ("R50+ViT-L/32", 7): (85.68, 89.04, 99.24, 92.93, 96.97, 99.43),
    ("R50+ViT-L/16", 7): (86.60, 89.72, 99.18, 93.64, 97.03, 99.40),
    ("R50+ViT-L/16", 14): (87.12, 89.76, 99.31, 93.89, 97.36, 99.11),
}
EXAFLOPS = {
    ("ViT-B/32", 7): 55,
    ("ViT-B/16", 7): 224,
    ("ViT-L/32", 7): 196,
    ("ViT-L/16", 7): 783,
    ("ViT-L/16", 14): 1567,
    ("ViT-H/14", 14): 4262,
    ("BiT-R50x1", 7): 50,
    ("BiT-R50x2", 7): 199,
    ("BiT-R101x1", 7): 96,
    ("BiT-R152x1", 7): 141,
    ("BiT-R152x2", 7): 563,
    ("BiT-R152x2", 14): 1126,
    ("BiT-R200x3", 14): 3306,
    ("R50+ViT-B/32", 7): 106,
    ("R50+ViT-B/16", 7): 274,
    ("R50+ViT-L/32", 7): 246,
    ("R50+ViT-L/16", 7): 859,
    ("R50+ViT-L/16", 14): 1668,
}
"""ExaFLOPs, 1e18, of the pre-training (Table 6), by (model, epochs on JFT-300M)."""

# ResNets pre-trained on JFT-300M with (Adam, SGD); the average is printed in Table 7.
_TABLE_7 = {
    "BiT-R50x1": {
        "imagenet2012": (77.54, 78.24),
        "cifar10": (97.67, 97.46),
        "cifar100": (86.07, 85.17),
        "oxford_iiit_pet": (91.11, 91.00),
        "oxford_flowers102": (94.26, 92.06),
        "average": (89.33, 88.79),
    },
    "BiT-R152x2": {
        "imagenet2012": (84.97, 84.37),
        "cifar10": (99.06, 99.07),
        "cifar100": (92.05, 91.06),
        "oxford_iiit_pet": (95.37, 94.79),
        "oxford_flowers102": (98.62, 99.32),
        "average": (94.01, 93.72),
    },
}

TABLE_8 = {
    ("none", "stem"): 0.61382,
    ("1d", "stem"): 0.64206,
    ("1d", "every_layer"): 0.63964,
    ("1d", "every_layer_shared"): 0.64292,
    ("2d", "stem"): 0.64001,
    ("2d", "every_layer"): 0.64046,
    ("2d", "every_layer_shared"): 0.64022,
    ("relative", "stem"): 0.64032,
}
"""5-shot linear accuracy on ImageNet of ViT-B/16, in [0, 1] (Table 8, D.4).

The keys are the fields `position` and `position_at` of a `ViTConfig`. For no positions
and for relative ones the paper has one number, here under the field's default, "stem".
"""

VTAB = {
    "natural": (
        "caltech101",
        "cifar100",
        "dtd",
        "oxford_flowers102",
        "oxford_iiit_pet",
        "sun397",
        "svhn",
    ),
    "specialized": ("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
    "structured": (
        "clevr_count",
        "clevr_distance",
        "dmlab",
        "dsprites_location",
        "dsprites_orientation",
        "kitti_distance",
        "smallnorb_azimuth",
        "smallnorb_elevation",
    ),
}
"""The 19 tasks of VTAB by group, in Table 9's order (D.10, Figure 2)."""

TABLE_9_COLUMNS = (
    *("Caltech101", "CIFAR-100", "DTD", "Flowers102", "Pets", "Sun397", "SVHN"),
    *("Camelyon", "EuroSAT", "Resisc45", "Retinopathy"),
    *("Clevr-Count", "Clevr-Dist", "DMLab", "dSpr-Loc", "dSpr-Ori", "KITTI-Dist"),
    *("sNORB-Azim", "sNORB-Elev"),
)
"""The tasks of VTAB with Table 9's column headings (D.10)."""

_TABLE_9 = {  # A line for each group, then the mean.
    ("ViT-H/14", "jft300m"): (
        *(95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9),
        *(83.3, 96.7, 91.4, 76.6),
        *(91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2),
        77.6,
    ),
    ("ViT-L/16", "jft300m"): (
        *(95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4),
        *(83.6, 96.5, 89.7, 77.1),
        *(86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2, 51.1),
        76.3,
    ),
    ("ViT-L/16", "imagenet21k"): (
        *(90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9),
        *(82.5, 95.6, 85.2, 75.3),
        *(70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7),
        72.7,
    ),
}

_D_9: dict[Literal[1, 5], float] = {1: 61.7, 5: 82.1}  # ObjectNet, by top-1 and top-5.


def _table_2() -> Iterator[Accuracy]:
    for dataset, cells in _TABLE_2.items():
        for (model, data), (percent, std) in zip(_TABLE_2_COLUMNS, cells, strict=False):
            yield Accuracy(
                table="Table 2",
                model=model,
                pretrained_on=data,
                dataset=dataset,
                percent=percent,
                std=std,
            )
    yield Accuracy(
        table="Table 2",
        model=_L2[0],
        pretrained_on=_L2[1],
        dataset="imagenet2012",
        percent=88.5,
    )


def _table_5() -> Iterator[Accuracy]:
    for data, rows in _TABLE_5.items():
        for dataset, cells in rows.items():
            for model, percent in zip(_TABLE_5_MODELS, cells, strict=False):
                yield Accuracy(
                    table="Table 5",
                    model=model,
                    pretrained_on=data,
                    dataset=dataset,
                    percent=percent,
                )


def _table_6() -> Iterator[Accuracy]:
    for (model, epochs), cells in _TABLE_6.items():
        for dataset, percent in zip(_TABLE_6_DATASETS, cells, strict=True):
            yield Accuracy(
                table="Table 6",
                model=model,
                pretrained_on="jft300m",
                dataset=dataset,
                percent=percent,
                epochs=epochs,
            )


def _table_7() -> Iterator[Accuracy]:
    optimizers: tuple[Literal["adam", "sgd"], ...] = ("adam", "sgd")
    for model, rows in _TABLE_7.items():
        for dataset, cells in rows.items():
            for optimizer, percent in zip(optimizers, cells, strict=True):
                yield Accuracy(
                    table="Table 7",
                    model=model,
                    pretrained_on="jft300m",
                    dataset=dataset,
                    percent=percent,
                    optimizer=optimizer,
                )


def _table_9() -> Iterator[Accuracy]:
    datasets = [f"vtab/{task}" for tasks in VTAB.values() for task in tasks]
    for (model, data), cells in _TABLE_9.items():
        for dataset, percent in zip([*datasets, "vtab"], cells, strict=True):
            yield Accuracy(
                table="Table 9",
                model=model,
                pretrained_on=data,
                dataset=dataset,
                percent=percent,
            )


def _d_9() -> Iterator[Accuracy]:
    for top, percent in _D_9.items():
        yield Accuracy(
            table="D.9",
            model="ViT-H/14",
            pretrained_on="jft300m",
            dataset="objectnet",
            percent=percent,
            top=top,
        )


TABLES: dict[Table, tuple[Accuracy, ...]] = {
    "Table 2": tuple(_table_2()),
    "Table 5": tuple(_table_5()),
    "Table 6": tuple(_table_6()),
    "Table 7": tuple(_table_7()),
    "Table 9": tuple(_table_9()),
    "D.9": tuple(_d_9()),
}
"""Every accuracy of Tables 2, 5, 6, 7 and 9 and of D.9, by table, as printed."""


def expected(
    model: str,
    pretrained_on: str,
    dataset: str,
    *,
    table: Table | None = None,
    top: Literal[1, 5] = 1,
) -> Accuracy | None:
    """The paper's accuracy of a model on a data set (Tables 2, 5, 6, 7 and 9, D.9).

    If there are several, the result is from the first table, with its longest
    pre-training, with Adam.

    Args:
        model: name in `VARIANTS`, such as "ViT-L/16", "R50+ViT-B/16" or "BiT-R152x4".
        pretrained_on: "jft300m", "imagenet21k" or "imagenet2012".
        dataset: name in TFDS, such as "cifar10" or "imagenet2012", or "vtab" or
            "objectnet".
        table: the only table to search; ImageNet at 384 px is "Table 5".
        top: 1 for top-1 accuracy; 5 for top-5, which the paper has only for ObjectNet.

    Returns:
        The number with its table's name, or None if the paper has none.

    Raises:
        ValueError: if `table` is not in `TABLES`.

    Examples:
        >>> from keras_vit import paper
        >>> found = paper.expected("ViT-L/16", "imagenet21k", "cifar10")
        >>> found.table, found.percent, found.std
        ('Table 2', 99.15, 0.03)
    """
    if table is not None and table not in TABLES:
        raise ValueError(
            f"Expected one of {', '.join(TABLES)}. Received: table={table!r}"
        )
    for rows in TABLES.values() if table is None else (TABLES[table],):
        found = [
            row
            for row in rows
            if (row.model, row.pretrained_on, row.dataset, row.top)
            == (model, pretrained_on, dataset, top)
        ]
        if found:
            return max(found, key=lambda row: row.epochs or 0)  # The first of equals.
    return None


def figure_2() -> dict[tuple[str, str], dict[str, float]]:
    """Figure 2: mean accuracy of each group of VTAB, and of all tasks.

    Returns:
        Percent by (model, pre-training data), then by group of `VTAB`, or "vtab" for
        all tasks. These are means of Table 9's rounded numbers.
    """
    groups = VTAB | {"vtab": tuple(task for tasks in VTAB.values() for task in tasks)}
    percents = {
        (row.model, row.pretrained_on, row.dataset): row.percent
        for row in TABLES["Table 9"]
    }
    return {
        column: {
            group: sum(percents[*column, f"vtab/{task}"] for task in tasks) / len(tasks)
            for group, tasks in groups.items()
        }
        for column in _TABLE_9
    }


def figure_3() -> dict[str, dict[str, float]]:
    """Figure 3: ImageNet accuracy by pre-training data, from Table 5.

    Returns:
        Percent by model, then by data.
    """
    points: dict[str, dict[str, float]] = {}
    for row in TABLES["Table 5"]:
        if row.dataset == "imagenet2012":
            points.setdefault(row.model, {})[row.pretrained_on] = row.percent
    return points


AVERAGE_5 = (
    "imagenet2012",
    "cifar10",
    "cifar100",
    "oxford_iiit_pet",
    "oxford_flowers102",
)
"""The data sets of Figure 5's "Average-5".

The paper does not list them. They are the five data sets averaged in Table 7 (without
ReaL), which also give the averages of its two models in Table 6.
"""


def figure_5() -> dict[tuple[str, int], dict[str, float]]:
    """Figure 5: accuracy of Table 6's models.

    The figure's compute axis is `EXAFLOPS`, or the count of `inspection.costs`.

    Returns:
        Percent by (model, epochs on JFT-300M): "average" over `AVERAGE_5`, and
        "imagenet2012".
    """
    points: dict[tuple[str, int], dict[str, float]] = {}
    for (model, epochs), cells in _TABLE_6.items():
        percents = dict(zip(_TABLE_6_DATASETS, cells, strict=True))
        mean = sum(percents[dataset] for dataset in AVERAGE_5) / len(AVERAGE_5)
        points[model, epochs] = {
            "average": mean,
            "imagenet2012": percents["imagenet2012"],
        }
    return points


def kind(model: str) -> str:
    """The kind of a model of Table 6 in Figure 5's legend.

    Args:
        model: name in `VARIANTS`.

    Returns:
        "Transformer (ViT)", "ResNet (BiT)" or "Hybrid".
    """
    if model.startswith("ViT"):
        return "Transformer (ViT)"
    return "ResNet (BiT)" if model.startswith("BiT") else "Hybrid"
