"""Attention as numbers (Appendix A, D.8)."""

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
