"""Pictures of attention and of learned embeddings (4.5, 4.6, D.4, D.7, D.8)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.plots import canvas

_TILES = 7  # Per side: Figure 7 has 7 x 7 positions of ViT-L/32.


def attention_maps(
    images: np.ndarray,
    maps: np.ndarray,
    titles: list[str],
    path: str | os.PathLike[str],
) -> None:
    """Draws images above the attention of the output (D.8), to a file.

    Args:
        images: [B, H, W, C] in [0, 1]; if C is not 3, the first channel, in gray.
        maps: [B, rows, columns], 0 or more, e.g. from `attention_rollout`.
        titles: title of each image.
        path: path of the picture; its suffix is the format (.png, .svg, .pdf).

    Raises:
        ValueError: if there are no images, a map is not finite or is negative, or the
            number of maps or titles is not that of the images.
        ImportError: without matplotlib, the extra `plots`.
    """
    canvas.check_values("images [B, H, W, C]", images, 4)
    canvas.check_values("maps [B, rows, columns]", maps, 3, 0)
    images = canvas.colored(images)
    height, width = images.shape[1:3]
    tall = 2 * 1.6 * height / width + 0.6
    with canvas.picture(path, 1.6 * len(images), tall) as figure:
        axes = figure.subplots(2, len(images), squeeze=False)
        for column, (image, attention, title) in enumerate(
            zip(images, maps, titles, strict=True)
        ):
            axes[0, column].imshow(image, interpolation="nearest")
            axes[0, column].set_title(title, fontsize=9)
            axes[1, column].imshow(
                attention, cmap="viridis", extent=(0, width, height, 0), vmin=0
            )
            for axis in axes[:, column]:
                axis.set_xticks([])
                axis.set_yticks([])
        axes[0, 0].set_ylabel("input")
        axes[1, 0].set_ylabel("attention")


def figure_6(
    images: np.ndarray,
    maps: np.ndarray,
    path: str | os.PathLike[str],
    columns: int = 1,
    quantile: float | Sequence[float] = 1.0,
) -> None:
    """Draws images next to the attention of the output, as in Figure 6, to a file.

    Each image is multiplied by its map divided by the map's maximum, so that places
    without attention are black (D.8).

    Args:
        images: [B, H, W, C] in [0, 1]; if C is not 3, the first channel, in gray.
        maps: [B, H, W], 0 or more, from `attention_rollout`.
        path: path of the picture; its suffix is the format (.png, .svg, .pdf).
        columns: number of images in a row; Figure 6 has 3 images in one column.
        quantile: quantile of a map that is drawn at full brightness, in (0, 1]; 1 is
            the paper's maximum. If single patches dominate (arXiv:2309.16588, on
            DINOv2), a lower value makes the others visible. For several values, the
            maps are drawn next to each other.

    Raises:
        ValueError: if there are no images, the maps do not have the images' size, a map
            is not finite or is negative, or columns or the quantile are out of range.
        ImportError: without matplotlib, the extra `plots`.
    """
    if not len(images) or maps.shape != images.shape[:3]:
        raise ValueError(
            "Expected images [B, H, W, C] and maps [B, H, W], at least one (D.8). "
            f"Received: images {images.shape}, maps {maps.shape}"
        )
    quantiles = np.atleast_1d(quantile)
    if not len(quantiles) or not ((quantiles > 0) & (quantiles <= 1)).all():
        raise ValueError(f"Expected quantile in (0, 1]. Received: quantile={quantile}")
    if columns < 1:
        raise ValueError(f"Expected 1 or more columns. Received: columns={columns}")
    canvas.check_values("images [B, H, W, C]", images, 4)
    canvas.check_values("maps [B, H, W]", maps, 3, 0)
    images = canvas.colored(images)
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    height, width = images.shape[1:3]
    gap = max(1, width // 28)
    panels, labels = [images], ["input"]
    for value in quantiles:
        brightest = np.quantile(maps, value, axis=(1, 2), keepdims=True)
        shares = np.minimum(maps / np.maximum(brightest, np.finfo(float).tiny), 1)
        panels += [np.ones((*images.shape[:2], gap, 3)), images * shares[..., None]]
        scaled = f" ({100 * value:.0f} %)" if value < 1 and len(quantiles) > 1 else ""
        labels.append(f"attention{scaled}")
    step = width + gap
    panel = 1.6 if columns < 4 else 0.8  # Inches.
    inches, side = panel * len(labels) * columns, panel * height / width
    with canvas.picture(path, inches + 0.2, side * rows + 0.4) as figure:
        axes = figure.subplots()
        joined = canvas.mosaic(np.concatenate(panels, axis=2), columns, 3 * gap, 1.0)
        axes.imshow(joined)
        starts = np.arange(columns)[:, None] * (len(labels) * step + 2 * gap)
        middles = starts + np.arange(len(labels)) * step + width / 2
        axes.set_xticks(middles.ravel(), labels * columns)
        axes.set_yticks([])
        axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False)
        axes.tick_params(length=0, labelsize=10 if columns < 4 else 8)
        axes.spines[:].set_visible(False)


def figure_14(
    images: np.ndarray,
    maps: np.ndarray,
    path: str | os.PathLike[str],
    quantile: float = 1.0,
) -> None:
    """Draws many images as in `figure_6`, arranged as Figure 14 (D.8), to a file.

    There are eight pairs in a row.

    Args:
        images: [B, H, W, C] in [0, 1]; the paper has 128 random ones.
        maps: [B, H, W], 0 or more, from `attention_rollout`.
        path: path of the picture; its suffix is the format.
        quantile: see `figure_6`.

    Raises:
        ValueError: see `figure_6`.
        ImportError: without matplotlib, the extra `plots`.
    """
    figure_6(images, maps, path, columns=8, quantile=quantile)


def figure_7(
    filters: np.ndarray,
    positions: np.ndarray,
    distances: np.ndarray,
    path: str | os.PathLike[str],
) -> None:
    """Draws learned embeddings and attention distances as in Figure 7, to a file.

    Args:
        filters: [n, P, P, C] from `embedding_filters`; the paper has 28. If C is not 3,
            the first channel is drawn in gray.
        positions: [rows, columns, rows, columns] from `position_similarity`; for a
            larger grid, 7 x 7 evenly spread patches are drawn, as in the paper.
        distances: [L, k] from `attention_distance`, in pixels.
        path: path of the picture; its suffix is the format.

    Raises:
        ValueError: if an array is empty or not finite, or distances are negative.
        ImportError: without matplotlib, the extra `plots`.
    """
    canvas.check_values("filters [n, P, P, C]", filters, 4)
    canvas.check_values("similarities [rows, columns, rows, columns]", positions, 4)
    canvas.check_values("distances [L, k]", distances, 2, 0)
    with canvas.picture(path, 12, 4) as figure:
        figure.get_layout_engine().set(wspace=0.06)
        left, centre, right = figure.subplots(1, 3, width_ratios=(1.25, 1.15, 1.1))
        tiles = np.stack([_stretched(one) for one in canvas.colored(filters)])
        gap = max(1, tiles.shape[2] // 10)
        left.imshow(canvas.mosaic(tiles, 7, gap, 1.0), interpolation="nearest")
        left.set_axis_off()
        left.set_title(
            f"embedding filters\n(first {len(filters)} principal components)"
        )
        similarity = _positions(centre, positions, _TILES)
        centre.set_title("position embedding similarity")
        _similarity_bar(figure, similarity, centre)
        _distances(right, distances)
        right.set_ylabel("mean attention distance [pixels]")
        right.set_title("attention distance\n(a dot for each head)")


def figure_10(
    similarities: Mapping[str, np.ndarray],
    path: str | os.PathLike[str],
    most: int = 14,
) -> None:
    """Draws the positions of several training runs, as in Figure 10, to a file.

    There are three in a row, as in the paper.

    Args:
        similarities: by title, [R, S, R, S] from `position_similarity`, for R rows and
            S columns of patches. Figure 10 has three training runs of ViT-L/16.
        path: path of the picture; its suffix is the format.
        most: maximum number of tiles per side; a larger grid is sampled evenly.

    Raises:
        ValueError: if there are none, or an array has not this shape or is not finite.
        ImportError: without matplotlib, the extra `plots`.
    """
    wrong = [
        f"{title!r} {array.shape}"
        for title, array in similarities.items()
        if array.ndim != 4 or array.shape[:2] != array.shape[2:]
    ]
    if wrong or not similarities:
        raise ValueError(
            "Expected similarities [rows, columns, rows, columns] by title (D.4). "
            f"Received: {', '.join(wrong) or 'none'}"
        )
    for title, array in similarities.items():
        canvas.check_values(f"similarities of {title!r}", array, 4)
    columns = min(len(similarities), 3)
    rows = -(-len(similarities) // columns)
    wide = 3.5  # Inches of a panel.
    tall = max(_height(array, wide, most) for array in similarities.values())
    with canvas.picture(path, wide * columns + 0.9, (tall + 0.6) * rows) as figure:
        figure.get_layout_engine().set(hspace=0.06)
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.ravel()[len(similarities) :]:
            axes.set_axis_off()
        for axes, (title, array) in zip(
            panels.ravel(), similarities.items(), strict=False
        ):
            similarity = _positions(axes, array, most)
            axes.set_title(title, fontsize=10)
        for axes in panels[:, 1:].ravel():
            axes.set_ylabel("")
        _similarity_bar(figure, similarity, panels)


def figure_11(
    distances: Mapping[str, np.ndarray], path: str | os.PathLike[str]
) -> None:
    """Draws the size of the attended area by head and depth (D.7), to a file.

    There is a panel for each model, as in Figure 11. The paper has ViT-L/16 and
    R50+ViT-L/16, averaged over 128 images.

    Args:
        distances: by the model's name, [L, k] from `attention_distance`, in pixels.
        path: path of the picture; its suffix is the format.

    Raises:
        ValueError: if there are none, or an array does not have two dimensions, is
            empty, not finite or negative.
        ImportError: without matplotlib, the extra `plots`.
    """
    wrong = [f"{n!r} {one.shape}" for n, one in distances.items() if one.ndim != 2]
    if wrong or not distances:
        raise ValueError(
            "Expected distances [L, k] by the model's name (D.7). Received: "
            f"{', '.join(wrong) or 'none'}"
        )
    for model, found in distances.items():
        canvas.check_values(f"distances of {model!r}", found, 2, 0)
    with canvas.picture(path, 4.5 * len(distances) + 0.4, 4) as figure:
        row = figure.subplots(1, len(distances), squeeze=False, sharey=True)[0]
        for axes, (model, found) in zip(row, distances.items(), strict=True):
            _distances(axes, found)
            axes.set_title(f"{model}\n(a dot for each of {found.shape[1]} heads)")
        row[0].set_ylabel("mean attention distance [pixels]")


def _distances(axes: Any, distances: np.ndarray) -> None:
    layers = range(1, len(distances) + 1)
    for head in distances.T:
        axes.plot(layers, head, ".", color=canvas.COLORS[0], markersize=8)
    axes.set_xlabel("network depth [layer]")
    canvas.whole_numbers(axes.xaxis)
    axes.set_ylim(bottom=0)
    canvas.plain(axes)


def _positions(axes: Any, similarity: np.ndarray, most: int) -> Any:
    """Draws each patch's similarities to all others as a tile; returns the image."""
    height, width = similarity.shape[:2]
    rows, columns = _spread(height, most), _spread(width, most)
    tiles = similarity[np.ix_(rows, columns)].reshape(-1, height, width)
    gap = max(1, width // 8)
    joined = canvas.mosaic(tiles, len(columns), gap, np.nan)
    drawn = axes.imshow(
        joined, interpolation="nearest", cmap="viridis", vmin=-1, vmax=1
    )
    for places, side, ticks in (
        (columns, width, axes.set_xticks),
        (rows, height, axes.set_yticks),
    ):
        middles = np.arange(len(places)) * (side + gap) + (side - 1) / 2
        ticks(middles, [str(place + 1) for place in places])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("input patch column")
    axes.set_ylabel("input patch row")
    return drawn


def _height(similarity: np.ndarray, width: float, most: int) -> float:
    """Returns the height that `_positions` needs at a width, both in inches."""
    rows, columns = similarity.shape[:2]
    tiles = min(rows, most)
    shape = tiles * rows / (min(columns, most) * columns)
    return float(max(width * shape, 0.15 * tiles))


def _similarity_bar(figure: Any, similarity: Any, axes: Any) -> None:
    bar = figure.colorbar(similarity, ax=axes, shrink=0.8, aspect=25)
    bar.set_label("cosine similarity", labelpad=-2)
    bar.set_ticks([-1, 0, 1])


def _spread(count: int, most: int) -> np.ndarray:
    """Returns at most `most` indices, evenly spread over 0..count - 1."""
    places: np.ndarray = np.linspace(0, count - 1, min(count, most)).round()
    return places.astype(int)


def _stretched(image: np.ndarray) -> np.ndarray:
    """Scales the values of an image to 0..1."""
    low, high = image.min(), image.max()
    stretched: np.ndarray = (image - low) / max(high - low, np.finfo(image.dtype).tiny)
    return stretched


def reconstructions(
    pictures: Mapping[str, np.ndarray], path: str | os.PathLike[str]
) -> None:
    """Draws inputs and predictions of masked patch prediction (4.6), to a file.

    Args:
        pictures: by the name of their row, [B, H, W, C] in [0, 1]: "original",
            "corrupted", "predicted", as `MaskedPatchPredictor.reconstruct` returns.
        path: path of the picture; its suffix is the format.

    Raises:
        ValueError: if there are no rows, a row has no images or other numbers of
            images, or an image is not finite.
        ImportError: without matplotlib, the extra `plots`.
    """
    if not pictures:
        raise ValueError("Expected pictures by the name of their row. Received: none")
    for name, images in pictures.items():
        canvas.check_values(f"pictures [B, H, W, C] of {name!r}", images, 4)
    count, height, width = next(iter(pictures.values())).shape[:3]
    tall = 1.5 * len(pictures) * height / width
    with canvas.picture(path, 1.5 * count + 0.4, tall) as figure:
        axes = figure.subplots(len(pictures), count, squeeze=False)
        for row, (name, images) in zip(axes, pictures.items(), strict=True):
            for axis, image in zip(row, canvas.colored(images), strict=True):
                axis.imshow(image, interpolation="nearest")
                axis.set_xticks([])
                axis.set_yticks([])
            row[0].set_ylabel(name)
