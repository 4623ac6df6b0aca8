"""The config of a model, including models that a user assembled from layers."""

from typing import Any, cast

import keras
import numpy as np

from keras_vit.configs import (
    CheckpointConfig,
)
from keras_vit.families import family_of
from keras_vit.layers import AddPositionEmbs, AxialBlock, ClassToken, TransformerBlock
from keras_vit.models.description import ForeignModelError
from keras_vit.models.vision import facts_of
from keras_vit.weights import variables
from keras_vit.weights.reading import infer


def config_of(model: keras.Model) -> CheckpointConfig:
    """The config of a `VisionModel`, or the config that matches a user's own model.

    Raises:
        ForeignModelError: if `model` does not consist of this library's layers, or if
            they do not form a ViT or a ResNet.
    """
    config = facts_of(model).config
    if config is not None and family_of(config).of_the_paper:
        return cast(CheckpointConfig, config)
    shapes = {
        name: np.broadcast_to(np.float32(0), entry.shape)
        for entry in variables.entries(model)
        for name in entry.names
    }
    try:
        return infer(shapes, f"model={model.name!r}", _hints(model)).config
    except ValueError as error:
        raise ForeignModelError(
            "Expected a model of keras_vit: a VisionModel or a model of its layers. "
            f"Received: model={model.name!r} ({error})"
        ) from error


def _hints(model: keras.Model) -> dict[str, Any]:
    """The config fields that a model's layers contain and its tensors do not."""
    block = next(
        (at for at in model.layers if isinstance(at, TransformerBlock | AxialBlock)),
        None,
    )
    if block is None:
        return {}
    inner = block.row if isinstance(block, AxialBlock) else block
    hints: dict[str, Any] = {
        "gelu": inner.gelu,
        "layer_norm_epsilon": inner.layer_norm_epsilon,
    }
    if not inner.relative:
        tables = [at.kind for at in model.layers if isinstance(at, AddPositionEmbs)]
        hints["position"] = tables[0] if tables else "none"
    names = {layer.name for layer in model.layers}
    if "two_tokens" in names:
        hints["classifier"] = "distilled"
    if "head" not in names:
        pooled = len(model.outputs[0].shape) == 2
        if not pooled:
            has_token = any(isinstance(at, ClassToken) for at in model.layers)
            hints["classifier"] = "token_unpooled" if has_token else "unpooled"
    return hints
