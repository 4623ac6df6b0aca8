"""Attention as numbers (Appendix A, D.7, D.8)."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers import MAPHead, PatchEmbedding, StdConv2D, TransformerBlock
from keras_vit.layers.embeddings import Tensor
from keras_vit.models.description import describe
from keras_vit.weights.architecture import config_of

__all__ = [
    "attention_distance",
    "attention_rollout",
    "attention_scores",
    "output_attention",
]


class NoAttentionError(ValueError):
    """Raised for a model of this library in which no layer attends to all tokens."""


def attention_scores(model: keras.Model, images: Tensor) -> Tensor:
    """Returns every layer's attention (Appendix A): [B, H, W, C] -> [B, L, k, T, T].

    The result holds all layers at once. The other functions of this module hold at most
    one layer's attention.

    Args:
        model: a ViT or a hybrid.
        images: [B, H, W, C], preprocessed for the model.

    Returns:
        A of each head, shares in [0, 1]; the row of each query adds up to 1.

    Raises:
        ValueError: if the model attends along rows and columns (D.6), or is not a model
            of this library.
    """
    return ops.stack(list(_layer_scores(model, images)), axis=1)


def _layer_scores(model: keras.Model, images: Tensor) -> Iterator[Tensor]:
    """Yields the attention of one layer at a time, [B, k, T, T]."""
    blocks = _blocks(model)
    for block, z in zip(blocks, _inputs(model, images, blocks), strict=True):
        yield block.attention_scores(z)


def _facts(model: keras.Model) -> dict[str, Any]:
    """Returns `describe(model)`; raises for a model without attention."""
    first = [at for at in model.layers if isinstance(at, StdConv2D | PatchEmbedding)]
    if first and not any(isinstance(at, PatchEmbedding) for at in first):
        raise _no_attention(model, "a ResNet without any attention (4.1)")
    return describe(model)


def _blocks(model: keras.Model) -> list[TransformerBlock]:
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if len(blocks) != _facts(model)["num_layers"]:
        raise _no_attention(model, "which attends along rows and columns (D.6)")
    return blocks


def _no_attention(model: keras.Model, instead: str) -> NoAttentionError:
    return NoAttentionError(
        "Expected a model in which layers attend to all tokens (Appendix A). "
        f"Received: model={model.name!r}, {instead}"
    )


def _inputs(
    model: keras.Model, images: Tensor, layers: Sequence[keras.layers.Layer]
) -> Iterator[Tensor]:
    """Yields the input of each of `layers`, computed from the previous one.

    It uses `keras.Function`, because a `keras.Model` that starts between layers fails
    if one of them is called several times, as shared positions are (D.4). Before Keras
    3.15 such a Function fails too; then all inputs are computed at once.
    """
    inputs = [layer.input for layer in layers]
    try:
        places = itertools.pairwise([model.input, *inputs])
        steps = [keras.Function(start, end) for start, end in places]
    except ValueError:
        yield from keras.Function(model.input, inputs)(images)
        return
    z = images
    for step in steps:
        z = step(z)
        yield z


def _batches(images: Any, batch_size: int) -> Iterator[Any]:
    if not len(images):
        raise ValueError("Expected at least one image. Received: none")
    if batch_size < 1:
        raise ValueError(
            f"Expected a batch_size of 1 or more. Received: batch_size={batch_size}"
        )
    for start in range(0, len(images), batch_size):
        yield images[start : start + batch_size]


def attention_rollout(
    model: keras.Model, images: Any, batch_size: int = 16, resized: bool = True
) -> np.ndarray:
    """Computes attention rollout, D.8, Figures 6 and 14: [N, H, W, C] -> [N, H, W].

    Attention rollout (Abnar and Zuidema, 2020) averages the heads, adds the identity
    for the residual connections, renormalizes the rows and multiplies the layers. The
    map is the row of the head's input over the patches. The head's input is the class
    token; without one, the mean of the patches, weighted by MAP's probe if there is
    one; for DeiT the mean of both tokens; for `pooling="avg"` or "max" the mean of all
    tokens.

    Args:
        model: a ViT or a hybrid.
        images: array [N, H, W, C], preprocessed for the model; read in batches.
        batch_size: images at once. At most one layer's attention on them is in memory.
        resized: whether to resize the maps to the images, bilinearly between the
            centers of patches; otherwise [N, rows, columns], a number for each patch.

    Returns:
        NumPy array of shares of 1. Before resizing, a map sums to at most 1; the rest
        belongs to tokens that are not patches.

    Raises:
        ValueError: if there are no images, `batch_size` is less than 1, or the model
            attends along rows and columns or is not a model of this library.
    """
    maps = np.concatenate(
        [
            ops.convert_to_numpy(rollout(model, at))
            for at in _batches(images, batch_size)
        ]
    )
    if not resized:
        return maps
    facts = _facts(model)
    step = facts["stride"] * facts["patch_size"]
    down, across = (
        _between_middles(count, step, pixels)
        for count, pixels in zip(facts["grid"], model.input_shape[1:3], strict=True)
    )
    large: np.ndarray = down @ maps @ across.T
    return large


def rollout(model: keras.Model, images: Tensor) -> Tensor:
    """Computes `attention_rollout` in Keras ops: [B, H, W, C] -> [B, rows, columns]."""
    found = _Rollout(model)
    for layer, scores in found.walk(images):
        found.add(layer, scores)
    return found.map()


class _Rollout:
    """Computes `rollout` layer by layer, from scores that have other uses too."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.readers = _readers(model)[None]
        self.tokens = self.readers.shape[-1]
        self.joint = ops.eye(self.tokens)

    def walk(self, images: Tensor) -> Iterator[tuple[keras.layers.Layer, Tensor]]:
        """Yields each layer with its attention; the `MAPHead` is last."""
        probes = [at for at in self.model.layers if isinstance(at, MAPHead)]
        layers = [*_blocks(self.model), *probes]
        inputs = _inputs(self.model, images, layers)
        for layer, z in zip(layers, inputs, strict=True):
            yield layer, layer.attention_scores(z)

    def add(self, layer: keras.layers.Layer, scores: Tensor) -> None:
        """Adds a layer's scores, [B, k, T, T], or a `MAPHead`'s, [B, k, 1, N]."""
        of_heads = ops.mean(scores, axis=1)
        if isinstance(layer, MAPHead):
            before = self.tokens - of_heads.shape[-1]
            self.readers = ops.pad(of_heads[:, 0], ((0, 0), (before, 0)))
        else:
            step = (of_heads + ops.eye(self.tokens)) / 2
            self.joint = ops.matmul(step, self.joint)

    def map(self) -> Tensor:
        """Returns the rollout of the added layers, [B, rows, columns]."""
        row = ops.matmul(self.readers[:, None], self.joint)[:, 0]
        facts = _facts(self.model)
        return ops.reshape(row[:, facts["num_prefix_tokens"] :], (-1, *facts["grid"]))


def all_of_attention(
    model: keras.Model, images: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes output attention, rollout and distance in one pass over the layers.

    Args:
        model: a model that `attention_rollout` accepts.
        images: [B, H, W, C], preprocessed for the model; computed at once.

    Returns:
        `output_attention` [B, L, k, rows, columns], `attention_rollout` without
        resizing [B, rows, columns], and `attention_distance` [L, k].
    """
    facts, found = _facts(model), _Rollout(model)
    prefix, grid = facts["num_prefix_tokens"], facts["grid"]
    away = patch_distances(grid, facts["stride"] * facts["patch_size"])
    readers, rows, distances = _readers(model), [], []
    for layer, scores in found.walk(images):
        found.add(layer, scores)
        if isinstance(layer, TransformerBlock):
            rows.append(ops.convert_to_numpy(ops.matmul(readers, scores)))
            of_images = mean_distance(scores, away, prefix)
            distances.append(ops.convert_to_numpy(ops.mean(of_images, axis=0)))
    output = np.stack(rows, axis=1)[..., prefix:]
    return (
        output.reshape(*output.shape[:3], *grid),
        ops.convert_to_numpy(found.map()),
        np.stack(distances).astype(np.float64),
    )


def _readers(model: keras.Model) -> np.ndarray:
    """Returns each token's share of the head's input, without MAP's weights: [T]."""
    facts = _facts(model)
    tokens = facts["num_prefix_tokens"] + math.prod(facts["grid"])
    shares = np.zeros(tokens, np.float32)
    own, patches = own_tokens(model), slice(facts["num_prefix_tokens"], None)
    if own is None:
        parts = [slice(0, tokens)]
    elif reads_both(model):
        parts = [slice(0, own), patches]
    else:
        parts = [slice(0, own) if own else patches]
    for part in parts:
        shares[part] = 1 / len(shares[part]) / len(parts)
    return shares


def reads_both(model: keras.Model) -> bool:
    """Returns whether the head reads the class token and the mean of the patches."""
    has_head = any(layer.name == "head" for layer in model.layers)
    return has_head and getattr(config_of(model), "classifier", None) == "token_gap"


def own_tokens(model: keras.Model) -> int | None:
    """Counts the head's special tokens; 0: it uses the patches; None: all tokens."""
    pooled = {"avg_pool", "max_pool"}  # The builders' `pooling`, over all T.
    if pooled & {layer.name for layer in model.layers}:
        return None
    config = config_of(model)
    is_mean = getattr(config, "classifier", None) == "gap"
    if is_mean and getattr(config, "pool_prefix", False):
        return None
    return config.num_class_tokens


def _between_middles(count: int, step: int, pixels: int) -> np.ndarray:
    """Returns bilinear weights of patches for pixels: [pixels, count].

    The center of a patch of `step` pixels has the patch's value. Pixels beyond the
    first and last centers have the value of the first and last patch.
    """
    places = ((np.arange(pixels) + 0.5) / step - 0.5).clip(0, count - 1)
    away = np.abs(places[:, None] - np.arange(count))
    weights: np.ndarray = np.maximum(0, 1 - away).astype(np.float32)
    return weights


def output_attention(
    model: keras.Model, images: Any, batch_size: int = 16
) -> np.ndarray:
    """Returns the attention of each head: [N, H, W, C] -> [N, L, k, rows, columns].

    It is the class token's row of A (Appendix A) over the patches; without a class
    token, the mean of the patches' rows.

    Args:
        model: see `attention_rollout`.
        images: [N, H, W, C]; see `attention_rollout`.
        batch_size: see `attention_rollout`.

    Returns:
        NumPy array of shares; those of a head add up to at most 1.

    Raises:
        ValueError: see `attention_rollout`.
    """
    facts = _facts(model)
    prefix, grid = facts["num_prefix_tokens"], facts["grid"]
    readers = _readers(model)
    found = [
        np.stack(
            [
                ops.convert_to_numpy(ops.matmul(readers, scores))
                for scores in _layer_scores(model, batch)
            ],
            axis=1,
        )
        for batch in _batches(images, batch_size)
    ]
    rows = np.concatenate(found)[..., prefix:]  # [N, L, k, patches]
    return rows.reshape(*rows.shape[:3], *grid)


def attention_distance(
    model: keras.Model, images: Any, batch_size: int = 16
) -> np.ndarray:
    """Computes attention distances, D.7, Figures 7 and 11: [N, H, W, C] -> px [L, k].

    The distance between the query's and the key's patch is weighted by attention and
    averaged over queries and images; the paper uses 128 images. Tokens that are not
    patches have no position. They are left out, and the remaining weights are
    normalized to 1. For a hybrid, the distance between neighboring patches is the side
    of a patch in pixels of the image.

    Args:
        model: see `attention_rollout`.
        images: [N, H, W, C]; see `attention_rollout`.
        batch_size: see `attention_rollout`.

    Returns:
        NumPy array, float64, with a row for each layer and a column for each head.

    Raises:
        ValueError: see `attention_rollout`.
    """
    facts = _facts(model)
    away = patch_distances(facts["grid"], facts["stride"] * facts["patch_size"])
    total = np.zeros((facts["num_layers"], facts["num_heads"]))
    for batch in _batches(images, batch_size):
        for layer, scores in enumerate(_layer_scores(model, batch)):
            found = mean_distance(scores, away, facts["num_prefix_tokens"])
            total[layer] += ops.convert_to_numpy(ops.sum(found, axis=0))
    return total / len(images)


def patch_distances(grid: tuple[int, int], patch_size: int) -> np.ndarray:
    """Returns the distances between patch centers in pixels, row by row: [N, N]."""
    places = np.indices(grid).reshape(2, -1) * patch_size
    offsets = places[:, :, None] - places[:, None, :]
    distances: np.ndarray = np.sqrt((offsets**2).sum(0)).astype(np.float32)
    return distances


def mean_distance(scores: Tensor, away: np.ndarray, prefix: int) -> Tensor:
    """Averages distances by attention and queries: [B, k, T, T], [N, N] -> [B, k]."""
    weights = scores[:, :, prefix:, prefix:]
    onto_patches = ops.sum(weights, axis=-1, keepdims=True)
    # A query that attends to no patch has distance 0.
    weights = weights / ops.where(onto_patches == 0, 1.0, onto_patches)
    return ops.mean(ops.sum(ops.multiply(weights, away), axis=-1), axis=-1)
