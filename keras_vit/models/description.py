"""What a built model is, read off its layers."""

import hashlib
from collections.abc import Collection
from typing import Any

import keras
import numpy as np

from keras_vit.configs import VARIANTS, ResNetConfig, ViTConfig
from keras_vit.layers import (
    AddPositionEmbs,
    AxialBlock,
    AxialUnit,
    ClassToken,
    MAPHead,
    PatchEmbedding,
    PreActivationUnit,
    ResidualUnit,
    StdConv2D,
    TransformerBlock,
)
from keras_vit.layers.convolution import RootPool
from keras_vit.layers.embeddings import patch_grid


def describe(model: keras.Model) -> dict[str, Any]:
    """The facts of a built ViT, read off its layers: sizes, grid, class token.

    Raises:
        ValueError: if `model` is not made of this library's layers.
    """
    embedding = _only(model, PatchEmbedding)
    blocks = [
        layer
        for layer in model.layers
        if isinstance(layer, TransformerBlock | AxialBlock)
    ]
    tokens = [layer for layer in model.layers if isinstance(layer, ClassToken)]
    places = embedding.input.shape[1:3]
    return {
        "stride": _stride(model),
        "patch_size": embedding.patch_size,
        "num_layers": len(blocks),
        "hidden_size": embedding.hidden_size,
        "mlp_dim": blocks[0].mlp_dim if blocks else None,
        "num_heads": blocks[0].num_heads if blocks else None,
        "grid": patch_grid(places, embedding.patch_size, embedding.crop),
        "num_prefix_tokens": tokens[0].num_tokens if tokens else 0,
        "num_channels": model.input_shape[-1],
    }


def _stride(model: keras.Model) -> int:
    """Pixels to a place that patches are cut from: 1, or that of a hybrid's map."""
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
        raise ValueError(
            f"Expected a model of keras_vit with one {kind.__name__} layer. Received: "
            f"model={model.name!r} with {len(found)}; a model inside another one is "
            "reached as model.get_layer(name)"
        )
    return found[0]


def config_of(model: keras.Model) -> ViTConfig | ResNetConfig:
    """The config that builds this model.

    Raises:
        ValueError: if `model` is not made of this library's layers.
    """
    resnet = None
    if any(isinstance(layer, StdConv2D) for layer in model.layers):
        resnet = _resnet_config(model)
        if not any(isinstance(layer, PatchEmbedding) for layer in model.layers):
            return resnet
    facts = describe(model)
    named = {layer.name: layer for layer in model.layers}
    block = named["encoderblock_0"]
    last = named[f"encoderblock_{facts['num_layers'] - 1}"]
    axial = isinstance(block, AxialBlock)
    if axial:
        block = block.row
    classifier = _classifier(model, named, facts["num_prefix_tokens"])
    positions = [at for at in model.layers if isinstance(at, AddPositionEmbs)]
    position: Any = positions[0].kind if positions else "none"
    own = {"token": 1, "token_unpooled": 1, "distilled": 2}.get(classifier, 0)
    return ViTConfig(
        patch_size=facts["patch_size"],
        num_layers=facts["num_layers"],
        hidden_size=facts["hidden_size"],
        mlp_dim=facts["mlp_dim"],
        num_heads=facts["num_heads"],
        dropout_rate=block.dropout_rate,
        attention_dropout_rate=block.attention_dropout_rate,
        stochastic_depth_rate=0.0 if axial else last.stochastic_depth_rate,
        classifier=classifier,
        representation_size=(
            named["pre_logits"].units if "pre_logits" in named else None
        ),
        gelu=block.gelu,
        layer_norm_epsilon=block.layer_norm_epsilon,
        resnet=resnet,
        position="relative" if block.relative else position,
        position_at=_position_at(named),
        attention="axial" if axial else "full",
        num_registers=facts["num_prefix_tokens"] - own,
    )


def _classifier(model: keras.Model, named: dict[str, Any], prefix: int) -> Any:
    if any(isinstance(layer, MAPHead) for layer in model.layers):
        return "map"
    if "two_tokens" in named:
        return "distilled"
    if "gap" in named:
        return "gap"
    features = named["head"].input if "head" in named else model.outputs[0]
    if len(features.shape) == 3:
        return "token_unpooled" if prefix else "unpooled"
    return "token" if prefix else "gap"


def _position_at(named: dict[str, Any]) -> Any:
    if "posembed_shared" in named:
        return "every_layer_shared"
    return "every_layer" if "posembed_1" in named else "stem"


def _resnet_config(model: keras.Model) -> ResNetConfig:
    root: Any = _only(model, StdConv2D)
    pool: Any = _only(model, RootPool)
    norm = next(at for at in model.layers if at.name in ("gn_root", "gn_final"))
    units = [
        layer
        for layer in model.layers
        if isinstance(layer, ResidualUnit | PreActivationUnit)
    ]
    stages = [int(unit.name.split("_")[0].removeprefix("block")) for unit in units]
    axial = bool(units) and isinstance(units[0], AxialUnit)
    v1 = norm.name == "gn_root"
    return ResNetConfig(
        num_layers=tuple(stages.count(stage) for stage in sorted(set(stages))),
        width=root.filters,
        unit="axial" if axial else "v1" if v1 else "v2",
        kernel_epsilon=root.epsilon,
        epsilon_outside=root.epsilon_outside,
        group_norm_epsilon=norm.epsilon,
        pool_padding="zero" if v1 else pool.padding,
        num_heads=units[0].num_heads if axial else 8,
    )


def variant_of(config: ViTConfig | ResNetConfig) -> str | None:
    """The published model that has a config's shape, as `VARIANTS` names it."""
    own = _shape(config)
    for name, known in VARIANTS.items():
        if isinstance(known, ViTConfig | ResNetConfig) and _shape(known) == own:
            return name
    return None


def _shape(config: ViTConfig | ResNetConfig | None) -> Any:
    if config is None:
        return None
    if isinstance(config, ResNetConfig):
        return config.unit, config.num_layers, config.width
    return (
        config.patch_size,
        config.num_layers,
        config.hidden_size,
        config.mlp_dim,
        config.num_heads,
        config.attention,
        _shape(config.resnet),
    )


def weights_sha256(model: keras.Model, without: Collection[str] = ()) -> str:
    """A hash of weights' types, shapes and values, by layer.

    Args:
        model: any.
        without: names of layers to leave out.
    """
    digest = hashlib.sha256()
    for layer in model.layers:
        for variable in () if layer.name in without else layer.weights:
            value = np.ascontiguousarray(keras.ops.convert_to_numpy(variable))
            digest.update(f"{value.dtype} {value.shape}".encode())
            digest.update(value.tobytes())
    return digest.hexdigest()
