"""Attention as numbers (Appendix A, D.7, D.8)."""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.configs import CLASS_TOKENS
from keras_vit.layers import TransformerBlock
from keras_vit.layers.embeddings import Tensor
from keras_vit.models.description import config_of, describe


def attention_scores(model: keras.Model, images: Tensor) -> Tensor:
    """Returns every layer's attention on `images`: [B, H, W, C] -> [B, L, k, T, T]."""
    return ops.stack(list(_layer_scores(model, images)), axis=1)


def _layer_scores(model: keras.Model, images: Tensor) -> Iterator[Tensor]:
    """Each layer's attention in turn, [B, k, T, T]: never all of them at once."""
    facts = describe(model)  # Raises where there is nothing to look into.
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if len(blocks) != facts["num_layers"]:
        raise ValueError(
            "Expected a model whose layers attend to all tokens (Appendix A). "
            f"Received: model={model.name!r}, which attends along rows and columns "
            "(D.6)"
        )
    inputs = keras.Model(model.input, [block.input for block in blocks])(images)
    for block, z in zip(blocks, keras.tree.flatten(inputs), strict=True):
        yield block.attention_scores(z)


def attention_rollout(model: keras.Model, images: Tensor) -> np.ndarray:
    """How much the output looks at each patch, D.8: [B, H, W, C] -> [B, rows, cols].

    Attention rollout (Abnar and Zuidema, 2020): heads averaged, the identity added for
    the residual connections, rows renormalised, layers multiplied. The map is the class
    token's row over the patches; without a class token, the mean over their rows.

    Returns:
        NumPy array of shares; each map sums to at most 1.
    """
    facts = describe(model)
    tokens = facts["num_prefix_tokens"] + math.prod(facts["grid"])
    joint = ops.eye(tokens)
    for scores in _layer_scores(model, images):
        mixed = (ops.mean(scores, axis=1) + ops.eye(tokens)) / 2  # [B, T, T]
        joint = ops.matmul(mixed, joint)
    prefix = facts["num_prefix_tokens"]
    config: Any = config_of(model)
    has_token = CLASS_TOKENS[config.classifier]
    row = joint[:, 0] if has_token else ops.mean(joint[:, prefix:], axis=1)
    maps = np.asarray(ops.convert_to_numpy(row))[:, prefix:]
    return maps.reshape(-1, *facts["grid"])


def attention_distance(
    model: keras.Model, images: Any, batch_size: int = 16
) -> np.ndarray:
    """How far each head looks, D.7, Figures 7 and 11: [N, H, W, C] -> pixels [L, k].

    The distance between a query's patch and the keys', weighted by attention, in the
    mean over queries and images; the paper takes 128. Tokens that are no patches have
    no place: they are left out, and the weights of the others add up to 1.

    Args:
        model: a ViT or a hybrid; of a hybrid, patches lie a patch of pixels apart.
        images: scaled as for the model; an array, read in batches.
        batch_size: images at once. No more is held than one layer's attention on them.

    Returns:
        NumPy array, float64, a row for each layer and a column for each head.

    Raises:
        ValueError: if there are no images, or the model attends along rows and columns.
    """
    if not len(images):
        raise ValueError("Expected images to look at. Received: none")
    facts = describe(model)
    away = patch_distances(facts["grid"], facts["stride"] * facts["patch_size"])
    total = np.zeros((facts["num_layers"], facts["num_heads"]))
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        for layer, scores in enumerate(_layer_scores(model, batch)):
            found = mean_distance(scores, away, facts["num_prefix_tokens"])
            total[layer] += ops.convert_to_numpy(ops.sum(found, axis=0))
    return total / len(images)


def patch_distances(grid: tuple[int, int], patch_size: int) -> np.ndarray:
    """Between the middles of any two patches, in pixels: [N, N], row by row."""
    places = np.indices(grid).reshape(2, -1) * patch_size
    offsets = places[:, :, None] - places[:, None, :]
    distances: np.ndarray = np.sqrt((offsets**2).sum(0)).astype(np.float32)
    return distances


def mean_distance(scores: Tensor, away: np.ndarray, prefix: int) -> Tensor:
    """Weighted by attention, over the queries: [B, k, T, T], [N, N] -> [B, k]."""
    weights = scores[:, :, prefix:, prefix:]
    weights = weights / ops.sum(weights, axis=-1, keepdims=True)
    return ops.mean(ops.sum(ops.multiply(weights, away), axis=-1), axis=-1)
