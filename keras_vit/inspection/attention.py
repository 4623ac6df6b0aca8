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
    """A model of this library in which no layer attends to all tokens."""


def attention_scores(model: keras.Model, images: Tensor) -> Tensor:
    """Returns every layer's attention (Appendix A): [B, H, W, C] -> [B, L, k, T, T].

    The whole of it; what follows here never holds more than one layer's.

    Args:
        model: a ViT or a hybrid.
        images: [B, H, W, C], scaled as for the model.

    Returns:
        A of each head, shares in [0, 1]; the row of a query adds up to 1.

    Raises:
        ValueError: if the model attends along rows and columns (D.6), or is not of this
            library.
    """
    return ops.stack(list(_layer_scores(model, images)), axis=1)


def _layer_scores(model: keras.Model, images: Tensor) -> Iterator[Tensor]:
    """Each layer's attention in turn, [B, k, T, T]: never all of them at once."""
    blocks = _blocks(model)
    for block, z in zip(blocks, _inputs(model, images, blocks), strict=True):
        yield block.attention_scores(z)


def _facts(model: keras.Model) -> dict[str, Any]:
    """Returns `describe(model)`; a model without attention is an error that says so."""
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
        "Expected a model whose layers attend to all tokens (Appendix A). "
        f"Received: model={model.name!r}, {instead}"
    )


def _inputs(
    model: keras.Model, images: Tensor, layers: Sequence[keras.layers.Layer]
) -> Iterator[Tensor]:
    """The input of each of `layers` in turn, computed from the one before it.

    A `keras.Function`: a `keras.Model` that starts between layers fails where one of
    them is called several times, as shared positions are (D.4). Before Keras 3.15 a
    Function that starts between layers fails too: all inputs are computed at once.
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
        raise ValueError("Expected images to look at. Received: none")
    if batch_size < 1:
        raise ValueError(
            f"Expected a batch_size of 1 or more. Received: batch_size={batch_size}"
        )
    for start in range(0, len(images), batch_size):
        yield images[start : start + batch_size]


def attention_rollout(
    model: keras.Model, images: Any, batch_size: int = 16, resized: bool = True
) -> np.ndarray:
    """How much the output looks at each place, D.8, Figures 6 and 14: -> [N, H, W].

    Attention rollout (Abnar and Zuidema, 2020): heads averaged, the identity added for
    the residual connections, rows renormalized, layers multiplied. The map is the row
    of what the head reads, over the patches: the class token's; without one, the mean
    of the patches', which MAP's probe weighs; the mean of both of DeiT's tokens, or
    of all tokens under `pooling="avg"` or "max".

    Args:
        model: a ViT or a hybrid.
        images: [N, H, W, C], scaled as for the model; an array, read in batches.
        batch_size: images at once. No more is held than one layer's attention on them.
        resized: whether maps are as large as the images, bilinear between the middles
            of patches; else [N, rows, columns], a number for each patch.

    Returns:
        NumPy array of shares of 1. Before a map is resized they sum to at most 1, the
        rest is of tokens that are no patches.

    Raises:
        ValueError: if there are no images, `batch_size` is less than 1, or the model
            attends along rows and columns or is not of this library.
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
    """`attention_rollout`'s formula in ops: [B, H, W, C] -> [B, rows, columns]."""
    found = _Rollout(model)
    for layer, scores in found.walk(images):
        found.add(layer, scores)
    return found.map()


class _Rollout:
    """Computes `rollout` layer by layer, from scores that others use too."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.readers = _readers(model)[None]
        self.tokens = self.readers.shape[-1]
        self.joint = ops.eye(self.tokens)

    def walk(self, images: Tensor) -> Iterator[tuple[keras.layers.Layer, Tensor]]:
        """Yields each layer with its attention, the `MAPHead` last."""
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
        model: A model that `attention_rollout` accepts.
        images: [B, H, W, C], scaled for the model; all are computed at once.

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
    """What share of the head each token has, where all are asked alike: [T]."""
    facts = _facts(model)
    tokens = facts["num_prefix_tokens"] + math.prod(facts["grid"])
    shares = np.zeros(tokens, np.float32)
    own = own_tokens(model)
    if own is None:
        asked = slice(0, tokens)
    else:
        asked = slice(0, own) if own else slice(facts["num_prefix_tokens"], None)
    shares[asked] = 1 / len(shares[asked])
    return shares


def own_tokens(model: keras.Model) -> int | None:
    """How many tokens of its own the head reads; 0: the patches; None: all tokens."""
    pooled = {"avg_pool", "max_pool"}  # The builders' `pooling`, over all T.
    if pooled & {layer.name for layer in model.layers}:
        return None
    return config_of(model).num_class_tokens


def _between_middles(count: int, step: int, pixels: int) -> np.ndarray:
    """Bilinear weights of patches for pixels: [pixels, count].

    The middle of a patch of `step` pixels has its number; outside of the first and last
    middles it is theirs.
    """
    places = ((np.arange(pixels) + 0.5) / step - 0.5).clip(0, count - 1)
    away = np.abs(places[:, None] - np.arange(count))
    weights: np.ndarray = np.maximum(0, 1 - away).astype(np.float32)
    return weights


def output_attention(
    model: keras.Model, images: Any, batch_size: int = 16
) -> np.ndarray:
    """What each head of each layer looks at: [N, H, W, C] -> [N, L, k, rows, columns].

    The class token's row of A (Appendix A) over the patches; without one the mean of
    the patches' rows.

    Args:
        model: see `attention_rollout`.
        images: [N, H, W, C], likewise.
        batch_size: see `attention_rollout`.

    Returns:
        NumPy array of shares, those of a head adding up to at most 1.

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
    """How far each head looks, D.7, Figures 7 and 11: [N, H, W, C] -> pixels [L, k].

    The distance between a query's patch and the keys', weighted by attention, in the
    mean over queries and images; the paper takes 128. Tokens that are no patches have
    no place: they are left out, and the weights of the others add up to 1. Of a hybrid,
    patches lie a patch of pixels apart.

    Args:
        model: see `attention_rollout`.
        images: [N, H, W, C], likewise.
        batch_size: see `attention_rollout`.

    Returns:
        NumPy array, float64, a row for each layer and a column for each head.

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
    """Between the middles of any two patches, in pixels: [N, N], row by row."""
    places = np.indices(grid).reshape(2, -1) * patch_size
    offsets = places[:, :, None] - places[:, None, :]
    distances: np.ndarray = np.sqrt((offsets**2).sum(0)).astype(np.float32)
    return distances


def mean_distance(scores: Tensor, away: np.ndarray, prefix: int) -> Tensor:
    """Weighted by attention, over the queries: [B, k, T, T], [N, N] -> [B, k]."""
    weights = scores[:, :, prefix:, prefix:]
    onto_patches = ops.sum(weights, axis=-1, keepdims=True)
    # A query that looks at no patch at all looks 0 pixels far.
    weights = weights / ops.where(onto_patches == 0, 1.0, onto_patches)
    return ops.mean(ops.sum(ops.multiply(weights, away), axis=-1), axis=-1)
