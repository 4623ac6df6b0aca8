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
    return check()(figsize=(width, height), layout="constrained")


def check() -> Any:
    """Raises now, rather than after hours, if there can be no pictures.

    Returns:
        matplotlib's `Figure`.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Expected matplotlib for pictures: pip install 'keras-vit-paper[plots]'"
        ) from error
    return Figure


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


def figure_7(
    filters: np.ndarray,
    positions: np.ndarray,
    distances: np.ndarray,
    path: str | os.PathLike[str],
) -> None:
    """Draws what the embeddings and heads have learnt, as Figure 7, to a file.

    Args:
        filters: [n, P, P, C] of `embedding_filters`; the paper has 28.
        positions: [rows, columns, rows, columns] of `position_similarity`; of a larger
            grid, 7 x 7 patches all over the image are drawn, as many as the paper has.
        distances: [L, k] of `attention_distance`, in pixels.
        path: of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    figure = _figure(12, 4)
    left, centre, right = figure.subfigures(1, 3, width_ratios=(1.1, 1, 1.1))
    left.suptitle(f"embedding filters\n(first {len(filters)} principal components)")
    _tiles(left, [_stretched(one) for one in filters], columns=7)
    centre.suptitle("position embedding similarity\n(cosine, -1 to 1)")
    rows, columns = positions.shape[:2]
    chosen = [
        positions[row, column]
        for row in _spread(rows, 7)
        for column in _spread(columns, 7)
    ]
    _tiles(centre, chosen, columns=min(columns, 7), vmin=-1, vmax=1)
    axis = right.subplots()
    layers = range(1, len(distances) + 1)
    for distance in distances.T:
        axis.plot(layers, distance, ".", color=COLORS[0], alpha=0.7, markersize=7)
    right.suptitle("mean attention distance\n(a dot for each head)")
    axis.set_xlabel("layer")
    axis.set_ylabel("pixels")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    _save(figure, path)


def _spread(count: int, most: int) -> np.ndarray:
    """Places all over 0..count - 1, `most` at most."""
    places: np.ndarray = np.linspace(0, count - 1, min(count, most)).round()
    return places.astype(int)


def _stretched(image: np.ndarray) -> np.ndarray:
    """An image from 0 to 1, whatever its values are."""
    low, high = image.min(), image.max()
    stretched: np.ndarray = (image - low) / max(high - low, np.finfo(image.dtype).tiny)
    return stretched


def _tiles(
    figure: Any, images: Sequence[np.ndarray], columns: int, **options: Any
) -> None:
    """Small images side by side, row by row."""
    rows = -(-len(images) // columns)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, image in zip(axes, images, strict=False):
        axis.imshow(image, interpolation="nearest", cmap="viridis", **options)


def reconstructions(
    pictures: Mapping[str, np.ndarray], path: str | os.PathLike[str]
) -> None:
    """Draws what masked patch prediction sees and says (4.6), to a file.

    Args:
        pictures: by the name of their row, [B, H, W, C] in [0, 1]: "original",
            "corrupted", "predicted", as `MaskedPatchPredictor.reconstruct` gives them.
        path: of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    count, height, width, channels = next(iter(pictures.values())).shape
    figure = _figure(1.5 * count + 0.4, 1.5 * len(pictures) * height / width)
    axes = figure.subplots(len(pictures), count, squeeze=False)
    for row, (name, images) in zip(axes, pictures.items(), strict=True):
        for axis, image in zip(row, images, strict=True):
            shown = np.repeat(image, 3, axis=-1) if channels == 1 else image
            axis.imshow(shown, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(name)
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
    _percents_over_log(axes, sizes, "training images (log scale)")
    _save(figure, path)


PRETRAINING = {  # Figure 3's places, by the data sets' TFDS-like names.
    "imagenet2012": "ImageNet",
    "imagenet21k": "ImageNet-21k",
    "jft300m": "JFT-300M",
}


def pretraining(
    accuracy: Mapping[str, Mapping[str, float]], path: str | os.PathLike[str]
) -> None:
    """Draws accuracy against the data of the pre-training (Figure 3), to a file.

    Args:
        accuracy: of every model, by `PRETRAINING`'s names, in [0, 1].
        path: of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there are no models, or more than the colors to tell them by, or
            another pre-training.
        ImportError: without matplotlib, the extra `plots`.
    """
    strangers = {data for points in accuracy.values() for data in points} - {
        *PRETRAINING
    }
    if strangers or not 0 < len(accuracy) <= len(COLORS):
        raise ValueError(
            f"Expected 1 to {len(COLORS)} models, pre-trained on "
            f"{', '.join(PRETRAINING)}. Received: {len(accuracy)} models"
            + "".join(f", {data!r}" for data in sorted(strangers))
        )
    figure = _figure(5.5, 4)
    axes = figure.subplots()
    places = [*PRETRAINING]
    for (model, points), color, marker in zip(
        accuracy.items(), COLORS, MARKERS, strict=False
    ):
        known = [data for data in places if data in points]
        percent = [100 * points[data] for data in known]
        where = [places.index(data) for data in known]
        axes.plot(where, percent, color=color, marker=marker, label=model)
    axes.set_xticks(range(len(places)), [*PRETRAINING.values()])
    _percents_over(axes, "pre-training data")
    _save(figure, path)


def _percents_over_log(axes: Any, sizes: Sequence[int], label: str) -> None:
    """Gives lines of percents over a logarithmic count their axes and legend."""
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{count:,}" for count in sizes])
    axes.set_xticks([], minor=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    _percents_over(axes, label)


def _percents_over(axes: Any, label: str) -> None:
    axes.set_xlabel(label)
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
    _percents_over_log(axes, sizes, "training images of each class (log scale)")
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


def reliability(
    images: np.ndarray,
    confidence: np.ndarray,
    accuracy: np.ndarray,
    path: str | os.PathLike[str],
) -> None:
    """Draws confidence against accuracy (Guo et al. 2017, Figure 1), to a file.

    Args:
        images: int [bins], of each of the bins that divide (0, 1].
        confidence: [bins], their mean; NaN of an empty bin.
        accuracy: [bins], likewise.
        path: of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    bins, some = len(images), images > 0
    left, width = np.arange(bins) / bins, 1 / bins
    gap = accuracy[some] - confidence[some]
    error = float(np.abs(gap) @ images[some] / images.sum())
    figure = _figure(4.6, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    bar = {"width": width, "align": "edge"}
    upper.bar(
        left[some],
        accuracy[some],
        color=COLORS[5],
        edgecolor="white",
        label="accuracy",
        **bar,
    )
    upper.bar(
        left[some],
        -gap,
        bottom=accuracy[some],
        facecolor="none",
        edgecolor=COLORS[1],
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
    lower.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _drawable(names: Sequence[str]) -> list[str]:
    """Names of 20 letters at most; the number of one that the font cannot write."""
    from matplotlib import font_manager

    path = font_manager.findfont(font_manager.FontProperties())
    font = font_manager.get_font(path)
    return [
        (name if len(name) <= 20 else f"{name[:19]}…")
        if all(font.get_char_index(ord(letter)) for letter in name)
        else str(number)
        for number, name in enumerate(names)
    ]


_CELLS = 20  # Classes up to which a confusion matrix has names and numbers.


def confusion(
    matrix: np.ndarray, classes: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Draws shares of each class that were taken for each class, to a file.

    Args:
        matrix: int [K, K], images of a class (row) that were taken for another
            (column); a last column more counts those taken for none.
        classes: K names, written beside up to 20 rows; the number of the class where
            the font has no such letters.
        path: of the picture; its suffix is the format.

    Raises:
        ImportError: without matplotlib, the extra `plots`.
    """
    count = len(classes)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    names = _drawable(classes)
    small = count <= _CELLS
    side = 2.2 + 0.42 * count if small else 6.5
    figure = _figure(side + 1.2, side - 0.2)
    axes = figure.subplots()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="taken for", ylabel="class")
    if small:
        columns = [*names, "none"][: matrix.shape[1]]
        plain = {"parse_math": False}  # A dollar is a dollar.
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", **plain)
        axes.set_yticks(range(count), names, **plain)
        axes.tick_params(labelsize=8, length=0)
        for (row, column), images in np.ndenumerate(matrix):
            if images:
                color = "white" if shares[row, column] > 0.5 else "black"
                style = {"ha": "center", "va": "center", "fontsize": 8, "color": color}
                axes.text(column, row, f"{images:.0f}", **style)
    bar = figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the class")
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    _save(figure, path)
