"""Pictures of what is measured; the only module that imports matplotlib."""

import os
from collections.abc import Mapping, Sequence
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


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


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
    _save(figure, path)


Curve = Sequence[tuple[int, float]]  # (updates, value)s.

_PANELS = {  # What is drawn of a training: title, and the tags in it.
    "loss": ("train/loss", "evaluation/loss"),
    "accuracy": ("train/accuracy", "evaluation/accuracy"),
    "learning rate": ("train/learning_rate",),
    "gradient norm": ("train/gradient_norm",),
    "images per second": ("train/images_per_second",),
}
_POINTS = 60  # Of a curve in a picture; more are averaged.


def curves(
    runs: Mapping[str, Mapping[str, Curve]], path: str | os.PathLike[str]
) -> None:
    """Draws how trainings went, a color for each, to a file.

    Args:
        runs: of each run's name, its curves by tag: "train/loss", "evaluation/loss",
            "train/learning_rate", ..., as `training.watching.read` gives them. Dots
            are evaluations.
        path: of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    figure = _figure(11, 5.6)
    axes = figure.subplots(2, 3).ravel()
    for axis, (title, tags) in zip(axes, _PANELS.items(), strict=False):
        for number, run in enumerate(runs.values()):
            for tag in tags:
                steps, values = _averaged(run.get(tag, ()))
                style = ".-" if tag.startswith("evaluation") else "-"
                color = COLORS[number % len(COLORS)]
                alpha = 1.0 if style == ".-" or len(tags) == 1 else 0.45
                axis.plot(steps, values, style, color=color, alpha=alpha, linewidth=1.2)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("updates", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    lines = list(axes[2].get_lines())
    axes[-1].axis("off")
    axes[-1].legend(lines, list(runs), loc="upper left", frameon=False, fontsize=9)
    axes[-1].text(0.02, 0.02, "pale: training\ndots: evaluations", fontsize=9)
    _save(figure, path)


def _averaged(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values, those of neighbours averaged to at most `_POINTS`."""
    if not curve:
        return np.empty(0), np.empty(0)
    groups = np.array_split(np.array(curve), min(len(curve), _POINTS))
    steps, values = np.array([group.mean(axis=0) for group in groups]).T
    return steps, values


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
    _accuracy_against(axes, sizes, "training images (log scale)")
    _save(figure, path)


def _accuracy_against(axes: Any, sizes: Sequence[int], label: str) -> None:
    """Gives lines of percents over a logarithmic count their axes and legend."""
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{count:,}" for count in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("accuracy [%]")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def shots(
    accuracy: Mapping[str, Mapping[int, tuple[float, float, float]]],
    path: str | os.PathLike[str],
    levels: Mapping[str, float] | None = None,
) -> None:
    """Draws accuracy against shots with a band around each line (4.1), to a file.

    Args:
        accuracy: of every line, by the training images of a class: (mean, low, high) of
            its interval, in [0, 1].
        path: of the picture; its suffix is the format (.png, .svg, .pdf).
        levels: accuracies that belong to no number of shots, drawn across.

    Raises:
        ValueError: if there are no lines, or more than the colors to tell them by.
        ImportError: without matplotlib, the extra `plots`.
    """
    if not 0 < len(accuracy) <= len(COLORS):
        raise ValueError(
            f"Expected 1 to {len(COLORS)} lines of shots. Received: {len(accuracy)}"
        )
    figure = _figure(5.5, 4)
    axes = figure.subplots()
    for (name, points), color, marker in zip(
        accuracy.items(), COLORS, MARKERS, strict=False
    ):
        counts = sorted(points)
        mean, low, high = 100 * np.array([points[count] for count in counts]).T
        axes.plot(counts, mean, color=color, marker=marker, label=name)
        axes.fill_between(counts, low, high, color=color, alpha=0.2, linewidth=0)
    for (name, level), color in zip((levels or {}).items(), COLORS, strict=False):
        axes.axhline(100 * level, color=color, linestyle="--", label=name)
    sizes = sorted({count for points in accuracy.values() for count in points})
    _accuracy_against(axes, sizes, "training images of each class (log scale)")
    _save(figure, path)


def task_groups(
    models: Mapping[str, Mapping[str, tuple[float, float | None]]],
    path: str | os.PathLike[str],
) -> None:
    """Draws the mean accuracy of groups of tasks, a bar a model (Figure 2), to a file.

    As in the paper every group has its own axis, which does not begin at zero.

    Args:
        models: of every model, by the group's name: mean and deviation, None for none,
            in [0, 1]. A group that a model lacks has no bar.
        path: of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there are no groups, or more models than colors to tell them by.
        ImportError: without matplotlib, the extra `plots`.
    """
    ordered = sorted(models.values(), key=len, reverse=True)  # Whole ones first.
    names = list(dict.fromkeys(name for groups in ordered for name in groups))
    if not names or len(models) > len(COLORS):
        raise ValueError(
            f"Expected 1 to {len(COLORS)} models, and groups. Received: {len(models)} "
            f"models with {len(names)} groups"
        )
    figure = _figure(2.6 * len(names), 3.6)
    drawn, handles = figure.subplots(1, len(names), squeeze=False)[0], {}
    for axes, name in zip(drawn, names, strict=True):
        heights = []
        for place, (model, groups) in enumerate(models.items()):
            if name not in groups:
                continue
            mean, deviation = groups[name]
            heights.append(100 * mean)
            handles[model] = axes.bar(
                place,
                100 * mean,
                yerr=None if deviation is None else 100 * deviation,
                color=COLORS[place],
                width=0.85,
                capsize=3,
            )
            above = 0.0 if deviation is None else 100 * deviation
            axes.annotate(
                f"{100 * mean:.1f}",
                (place, 100 * mean + above),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        axes.set_title(name, fontsize=10)
        axes.set_xlim(-0.7, len(models) - 0.3)
        axes.set_xticks([])
        axes.set_ylim(max(0, min(heights) - 15), min(100, max(heights) + 8))
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    drawn[0].set_ylabel("accuracy [%]")
    legend = {model: handles[model] for model in models if model in handles}
    figure.legend(
        list(legend.values()),
        list(legend),
        loc="outside lower center",
        ncols=len(legend),
        frameon=False,
        fontsize=9,
    )
    _save(figure, path)
