"""Pictures of training curves and of accuracies (4.1, 4.2)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.arguments import percent
from keras_vit.inspection.plots import canvas
from keras_vit.inspection.plots.scaling import percents_over_log

Curve = Sequence[tuple[int, float]]  # Pairs (updates, value).

_PANELS = {  # The panels of a training run: title, and the tags in it.
    "loss": ("train/loss", "evaluation/loss"),
    "accuracy": ("train/accuracy", "evaluation/accuracy"),
    "learning rate": ("train/learning_rate",),
    "gradient norm": ("train/gradient_norm",),
    "images per second": ("train/images_per_second",),
}
_POINTS = 60  # Per curve in a picture; more are averaged.


def curves(
    runs: Mapping[str, Mapping[str, Curve]], path: str | os.PathLike[str]
) -> None:
    """Draws training curves, with a color and a dash for each run, to a file.

    Args:
        runs: for each run's name, its curves by tag: "train/loss", "evaluation/loss",
            "train/learning_rate", ..., as `training.callbacks.read` returns. Markers
            are evaluations.
        path: path of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    with canvas.picture(path, 11, 5.6) as figure:
        axes = figure.subplots(2, 3).ravel()
        for axis, (title, tags) in zip(axes, _PANELS.items(), strict=False):
            for number, run in enumerate(runs.values()):
                for tag in tags:
                    steps, values = _averaged(run.get(tag, ()))
                    axis.plot(steps, values, **_run_style(number, tag))
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("updates", fontsize=9)
            axis.tick_params(labelsize=8)
            canvas.plain(axis)
        lines = list(axes[2].get_lines())
        axes[-1].axis("off")
        axes[-1].legend(
            lines,
            list(runs),
            loc="upper left",
            frameon=False,
            fontsize=9,
            handlelength=3.5,
        )
        axes[-1].text(0.02, 0.02, "lines: training\nmarkers: evaluations", fontsize=9)


def _run_style(number: int, tag: str) -> dict[str, Any]:
    """Returns the style; evaluations have markers and a thin line, to show both."""
    place = number % len(canvas.COLORS)
    style = {"color": canvas.COLORS[place], "linestyle": canvas.DASHES[place]}
    if tag.startswith("evaluation"):
        marker = canvas.MARKERS[place]
        return style | {"marker": marker, "markersize": 4, "linewidth": 0.5}
    return style | {"linewidth": 1.2}


def _averaged(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Averages neighbors to at most `_POINTS` points; returns steps and values."""
    if not curve:
        return np.empty(0), np.empty(0)
    groups = np.array_split(np.array(curve), min(len(curve), _POINTS))
    steps, values = np.array([group.mean(axis=0) for group in groups]).T
    return steps, values


def shots(
    accuracy: Mapping[str, Mapping[int, tuple[float, float, float]]],
    path: str | os.PathLike[str],
    levels: Mapping[str, float] | None = None,
) -> None:
    """Draws accuracy against shots with a band around each line (4.1), to a file.

    Args:
        accuracy: for each line, (mean, low, high) of its interval, in [0, 1], by the
            number of training images per class.
        path: path of the picture; its suffix is the format (.png, .svg, .pdf).
        levels: accuracies that do not depend on shots, drawn as horizontal lines.

    Raises:
        ValueError: if there are no lines, or more than there are colors.
        ImportError: without matplotlib, the extra `plots`.
    """
    canvas.check_count(accuracy, "lines of shots")
    with canvas.picture(path, 5.5, 4) as figure:
        axes = figure.subplots()
        for number, (name, points) in enumerate(accuracy.items()):
            style = canvas.style_of(number)
            counts = sorted(points)
            mean, low, high = 100 * np.array([points[count] for count in counts]).T
            axes.plot(counts, mean, label=name, **style)
            axes.fill_between(
                counts, low, high, color=style["color"], alpha=0.2, linewidth=0
            )
        for number, (name, level) in enumerate((levels or {}).items()):
            place = number % len(canvas.COLORS)
            dash = canvas.DASHES[1:][number % (len(canvas.DASHES) - 1)]
            axes.axhline(
                100 * level, color=canvas.COLORS[place], linestyle=dash, label=name
            )
        sizes = sorted({count for points in accuracy.values() for count in points})
        percents_over_log(axes, sizes, "training images per class (log scale)")


_HATCHES = ("", "///", "...", "xxx", "|||", "---", "ooo")


def task_groups(
    models: Mapping[str, Mapping[str, tuple[float, float | None]]],
    path: str | os.PathLike[str],
) -> None:
    """Draws mean accuracies of task groups, a bar per model (Figure 2), to a file.

    As in the paper, every group has its own axis, which does not begin at zero.

    Args:
        models: results of every model by group name: (mean, deviation), in [0, 1]; the
            deviation may be None. A group that a model lacks has no bar.
        path: path of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there are no groups, or more models than colors.
        ImportError: without matplotlib, the extra `plots`.
    """
    ordered = sorted(models.values(), key=len, reverse=True)  # Complete ones first.
    names = list(dict.fromkeys(name for groups in ordered for name in groups))
    if not names or len(models) > len(canvas.COLORS):
        raise ValueError(
            f"Expected 1 to {len(canvas.COLORS)} models, and groups. Received: "
            f"{len(models)} models with {len(names)} groups"
        )
    with canvas.picture(path, 2.6 * len(names), 3.6) as figure:
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
                    color=canvas.COLORS[place],
                    hatch=_HATCHES[place],
                    edgecolor="white",
                    ecolor="black",
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


def reliability(
    images: np.ndarray,
    confidence: np.ndarray,
    accuracy: np.ndarray,
    path: str | os.PathLike[str],
) -> None:
    """Draws confidence against accuracy (Guo et al. 2017, Figure 1), to a file.

    Args:
        images: [N], the number of images in each of N bins that divide (0, 1].
        confidence: [N], the mean confidence in each bin; NaN for an empty bin.
        accuracy: [N], the accuracy in each bin; NaN for an empty bin.
        path: path of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    bins, some = len(images), images > 0
    left, width = np.arange(bins) / bins, 1 / bins
    gap = accuracy[some] - confidence[some]
    error = float(np.abs(gap) @ images[some] / images.sum())
    with canvas.picture(path, 4.6, 5.6) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        bar = {"width": width, "align": "edge"}
        upper.bar(
            left[some],
            accuracy[some],
            color=canvas.COLORS[0],
            edgecolor="white",
            label="accuracy",
            **bar,
        )
        upper.bar(
            left[some],
            -gap,
            bottom=accuracy[some],
            facecolor="none",
            edgecolor=canvas.COLORS[1],
            hatch="////",
            label="to the mean confidence",
            **bar,
        )
        upper.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle="--")
        upper.set_title(f"expected calibration error {error:.4f}", fontsize=10)
        upper.set(xlim=(0, 1), ylim=(0, 1.01), ylabel="accuracy")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        lower.bar(left, images / images.sum(), color="0.6", edgecolor="white", **bar)
        lower.set(xlabel="confidence", ylabel="images")
        lower.yaxis.set_major_formatter(lambda share, _: percent(share, 0))
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)


_CELLS = 20  # Maximum number of classes for names and numbers in a confusion matrix.


def confusion(
    matrix: np.ndarray, classes: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Draws the share of each class that was predicted as each class, to a file.

    Args:
        matrix: int [K, K], images of a class (row) by predicted class (column); an
            optional last column counts images without a prediction.
        classes: K names, written next to up to 20 rows; a class number replaces names
            that the font cannot write.
        path: path of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    count = len(classes)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    names = canvas.drawable(classes)
    small = count <= _CELLS
    side = 2.2 + 0.42 * count if small else 6.5
    with canvas.picture(path, side + 1.2, side - 0.2) as figure:
        axes = figure.subplots()
        picture = axes.imshow(
            shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
        )
        axes.set(xlabel="predicted as", ylabel="class")
        if small:
            columns = [*names, "none"][: matrix.shape[1]]
            plain = {"parse_math": False}  # Dollar signs are literal.
            axes.set_xticks(
                range(len(columns)), columns, rotation=45, ha="right", **plain
            )
            axes.set_yticks(range(count), names, **plain)
            axes.tick_params(labelsize=8, length=0)
            for (row, column), images in np.ndenumerate(matrix):
                if images:
                    color = "white" if shares[row, column] > 0.5 else "black"
                    style = {
                        "ha": "center",
                        "va": "center",
                        "fontsize": 8,
                        "color": color,
                    }
                    axes.text(column, row, f"{images:.0f}", **style)
        else:
            canvas.whole_numbers(axes.xaxis)
            canvas.whole_numbers(axes.yaxis)
        bar = figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the class")
        bar.ax.yaxis.set_major_formatter(lambda share, _: percent(share, 0))
