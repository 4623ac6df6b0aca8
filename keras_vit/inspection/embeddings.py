"""Learned embeddings: filters and positions (4.5, D.4)."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers import AddPositionEmbs
from keras_vit.models.description import describe

__all__ = ["embedding_filters", "position_similarity"]

FILTERS = 28  # As many as in Figure 7.


def embedding_filters(model: keras.Model, components: int = FILTERS) -> np.ndarray:
    """Returns the principal components of E's filters, Figure 7, left: [n, P, P, C].

    The D columns of E are D patches. Their mean is subtracted. Components have length
    1, are sorted by decreasing variance, and have the sign that makes their sum
    positive.

    Args:
        model: a ViT with patches of pixels.
        components: n, at most D and at most P^2 C.

    Returns:
        NumPy array, float, [n, P, P, C].

    Raises:
        ValueError: if n is out of range, or the patches are cut from a feature map.
    """
    facts = describe(model)
    if facts["stride"] != 1:
        raise ValueError(
            "Expected patches of pixels. Received: a hybrid, "
            f"model={model.name!r}, with patches of a feature map (3.1)"
        )
    kernel = ops.convert_to_numpy(model.get_layer("embedding").projection.kernel)
    patch, hidden_size = kernel.shape[:-1], kernel.shape[-1]
    filters = kernel.reshape(-1, hidden_size).T.astype(np.float64)  # [D, P^2 C]
    if not 0 < components <= min(filters.shape):
        raise ValueError(
            f"Expected 1 to {min(filters.shape)} components for filters {patch} and "
            f"D={hidden_size}. Received: components={components}"
        )
    centered = filters - filters.mean(0)
    found = np.linalg.svd(centered, full_matrices=False)[2][:components]
    found *= np.where(found.sum(1, keepdims=True) < 0, -1, 1)
    return found.reshape(-1, *patch)


def first_filters(model: keras.Model) -> np.ndarray:
    """Returns the 28 filters of Figure 7, or all of a smaller model: [n, P, P, C]."""
    facts = describe(model)
    size = facts["patch_size"] ** 2 * facts["num_channels"]
    return embedding_filters(model, min(FILTERS, size, facts["hidden_size"]))


def position_similarity(model: keras.Model, layer: int = 0) -> np.ndarray:
    """Returns the cosine of any two patches' positions, Figs. 7, 10: [R, S, R, S].

    `[row, column]` is the picture of one patch: its similarity to all others. It is 0
    for a position of zeros.

    Args:
        model: a model with any of D.4's positions that are added.
        layer: index of the layer, if every layer adds its own positions (D.4).

    Returns:
        NumPy array in [-1, 1], for R rows and S columns of patches.

    Raises:
        ValueError: if the model adds no positions ("none", "relative"), or if that
            layer adds none.
    """
    facts = describe(model)
    layers = [at for at in model.layers if isinstance(at, AddPositionEmbs)]
    if not layers:
        raise ValueError(
            "Expected a model that adds positions to its tokens (D.4). Received: "
            f"model={model.name!r}, which has no positions or relative ones"
        )
    if not 0 <= layer < len(layers):
        raise ValueError(
            f"Expected a layer from 0 to {len(layers) - 1} with its own positions "
            f"(D.4). Received: layer={layer}"
        )
    (table,) = ops.convert_to_numpy(layers[layer].table()).astype(np.float64)
    table = table[facts["num_prefix_tokens"] :]
    lengths = np.linalg.norm(table, axis=-1, keepdims=True)
    table /= np.where(lengths == 0, 1, lengths)
    cosines: np.ndarray = table @ table.T
    return cosines.reshape(*facts["grid"], *facts["grid"])
