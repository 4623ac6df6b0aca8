"""Pictures of what is measured; the only module that imports matplotlib."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.files import replacing

# Okabe and Ito's, less yellow: told apart by color-blind readers (jfly.uni-koeln.de).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^Dv<>"


def _figure(width: float, height: float) -> Any:
    """An empty figure of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Expected matplotlib for pictures: pip install 'keras-vit-paper[plots]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def attention_maps(
    images: np.ndarray,
    maps: np.ndarray,
    titles: list[str],
    path: str | os.PathLike[str],
) -> None:
    """Draws images beside what the output attends to (Figure 6), to a file.

    Args:
        images: [B, H, W, C] in [0, 1].
        maps: [B, rows, columns], e.g. of `attention_rollout`.
        titles: one for each image.
        path: of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    figure = _figure(1.6 * len(images), 3.8)
    axes = figure.subplots(2, len(images), squeeze=False)
    for column, (image, attention, title) in enumerate(
        zip(images, maps, titles, strict=True)
    ):
        height, width = image.shape[:2]
        axes[0, column].imshow(image, interpolation="nearest")
        axes[0, column].set_title(title, fontsize=9)
        axes[1, column].imshow(
            attention, cmap="viridis", extent=(0, width, height, 0), vmin=0
        )
        for axis in axes[:, column]:
            axis.set_xticks([])
            axis.set_yticks([])
    axes[0, 0].set_ylabel("input")
    axes[1, 0].set_ylabel("attention (rollout)")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def data_size(
    accuracy: Mapping[str, Mapping[int, float]], path: str | os.PathLike[str]
) -> None:
    """Draws accuracy against training images, a line a model (Figure 4), to a file.

    Args:
        accuracy: of every model, by the number of images it was trained on, in [0, 1].
        path: of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there are no models, or more than the colors to tell them by.
        ImportError: without matplotlib, the extra `plots`.
    """
    if not 0 < len(accuracy) <= len(COLORS):
        raise ValueError(
            f"Expected 1 to {len(COLORS)} models. Received: {len(accuracy)}"
        )
    figure = _figure(5.5, 4)
    axes = figure.subplots()
    for (model, points), color, marker in zip(
        accuracy.items(), COLORS, MARKERS, strict=False
    ):
        images = sorted(points)
        percent = [100 * points[count] for count in images]
        axes.plot(images, percent, color=color, marker=marker, label=model)
    sizes = sorted({count for points in accuracy.values() for count in points})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{count:,}" for count in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("training images (log scale)")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("accuracy [%]")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
