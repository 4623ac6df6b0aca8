"""The layout of a built model, inferred from its layers."""

import hashlib
from collections.abc import Collection
from typing import Any

import keras
import numpy as np

from keras_vit.layers import (
    AxialBlock,
    ClassToken,
    PatchEmbedding,
    ResidualUnit,
    StdConv2D,
    TransformerBlock,
)
from keras_vit.layers.convolution import RootPool
from keras_vit.layers.embeddings import patch_grid


class ForeignModelError(ValueError):
    """A model without this library's layers, or with one of our models inside."""


def check_one_size(model: keras.Model) -> None:
    """Raises for a model that accepts images of any size."""
    if None in model.inputs[0].shape[1:3]:
        raise ValueError(
            "Expected a model for images of one size. Received: "
            f"model={model.name!r} for images of any size. "
            "Use keras_vit.at_resolution(model, (H, W))"
        )


def describe(model: keras.Model) -> dict[str, Any]:
    """The facts of a built ViT, inferred from its layers: sizes, grid, class token.

    Raises:
        ForeignModelError: if `model` does not consist of this library's layers.
        ValueError: if it has no grid because it accepts images of any size.
    """
    embedding = _only(model, PatchEmbedding)
    blocks = [
        layer
        for layer in model.layers
        if isinstance(layer, TransformerBlock | AxialBlock)
    ]
    tokens = [layer for layer in model.layers if isinstance(layer, ClassToken)]
    places = embedding.input.shape[1:3]
    check_one_size(model)
    return {
        "stride": stride_of(model),
        "patch_size": embedding.patch_size,
        "num_layers": len(blocks),
        "hidden_size": embedding.hidden_size,
        "mlp_dim": blocks[0].mlp_dim if blocks else None,
        "num_heads": blocks[0].num_heads if blocks else None,
        "grid": patch_grid(places, embedding.patch_size, embedding.crop),
        "num_prefix_tokens": tokens[0].num_tokens if tokens else 0,
        "num_channels": model.input_shape[-1],
    }


def stride_of(model: keras.Model) -> int:
    """Pixels per cell of the map that is cut into patches: 1, except in a hybrid."""
    stride = 1
    for layer in model.layers:
        if isinstance(layer, StdConv2D | ResidualUnit):
            stride *= layer.strides
        elif isinstance(layer, RootPool):
            stride *= 2
    return stride


def _only(model: keras.Model, kind: type) -> Any:
    """The one layer of `kind` in `model`."""
    found = [layer for layer in model.layers if isinstance(layer, kind)]
    if len(found) != 1:
        raise ForeignModelError(
            f"Expected a model of keras_vit with one {kind.__name__} layer. Received: "
            f"model={model.name!r} with {len(found)}. If the model is inside another "
            "one, pass model.get_layer(name)"
        )
    return found[0]


def weights_sha256(model: keras.Model, without: Collection[str] = ()) -> str:
    """A hash of the types, shapes and values of weights, by layer.

    Args:
        model: any Keras model.
        without: names of layers to omit.
    """
    digest = hashlib.sha256()
    for layer in model.layers:
        for variable in () if layer.name in without else layer.weights:
            value = np.ascontiguousarray(keras.ops.convert_to_numpy(variable))
            digest.update(f"{value.dtype} {value.shape}".encode())
            digest.update(value.tobytes())
    return digest.hexdigest()
