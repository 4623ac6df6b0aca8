"""Pictures of what `inspection` measures; the only module that imports matplotlib."""

import os

import numpy as np

from keras_vit.files import replacing


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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Expected matplotlib for pictures: pip install 'keras-vit-paper[plots]'"
        ) from error
    figure = Figure(figsize=(1.6 * len(images), 3.8), layout="constrained")
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
