"""A trained model as a backbone: feature maps of its layers instead of logits.

Glossary of shapes: B: batch. D: hidden size. p: stride of a patch in pixels. n: number
of registers.
"""

import dataclasses
import re
from collections.abc import Sequence

import keras

from keras_vit import arguments
from keras_vit.layers import ClassToken
from keras_vit.layers.maps import FeatureMaps
from keras_vit.models.vision import VisionModel, facts_of

_BLOCK = re.compile(r"encoderblock_(\d+)")
_UNIT = re.compile(r"block(\d+)_unit\d+")


def feature_maps(
    model: keras.Model, layers: Sequence[int] | None = None, norm: bool = True
) -> VisionModel:
    """A model of feature maps (3.1, 4.1): [B, H, W, C] -> a dict of [B, H/p, W/p, D].

    Layers are counted from 1, as in Equations 2 and 3: the map of layer 3 is z_3, and
    the last layer of a ViT-B is 12. For `layers=(3, 6, 9, 12)` the values equal those
    of timm's `forward_intermediates(indices=[2, 5, 8, 11], norm=True)` and DINOv2's
    `get_intermediate_layers(n=[2, 5, 8, 11])`.

    Args:
        model: a ViT, a hybrid or a ResNet of this library, which is not changed. The
            two models share layers: training or freezing one affects the other.
        layers: numbers of encoder layers, from 1; for a ResNet, numbers of stages.
            None: all of them.
        norm: whether to apply the encoder's last LayerNorm to the tokens of every
            layer. In a ResNet only the last stage has a norm.

    Returns:
        A `VisionModel` from the same images to a dict of

        - `block_3`: the map of layer 3, [B, H/p, W/p, D];
        - `class_token_3`, `distillation_token_3`: [B, D], and `registers_3`: [B, n, D],
          if the model has them;
        - `stage_1`, `stage_2`, ...: the maps of the stages of a ResNet or a hybrid,
          [B, H/4, W/4, C'], [B, H/8, W/8, 2 C'], ... A hybrid has all of them for any
          `layers`; one without stages has `root`, [B, H/4, W/4, C'].

    Raises:
        ValueError: if `layers` is invalid, or `model` is not of this library.

    Examples:
        >>> import keras_vit
        >>> model = keras_vit.ViT_Ti16(weights=None, input_shape=(64, 96, 3))
        >>> maps = keras_vit.feature_maps(model, layers=(6, 12))
        >>> list(maps.output)
        ['block_6', 'class_token_6', 'block_12', 'class_token_12']
        >>> maps.output["block_12"].shape
        (None, 4, 6, 192)
    """
    arguments.instance("model", model, keras.Model)
    norm = arguments.flag("norm", norm)
    named = {layer.name: layer for layer in model.layers}
    maps = _stages(named)
    blocks = [layer for name, layer in named.items() if _BLOCK.fullmatch(name)]
    if blocks and "embedding" in named:
        numbers = _chosen(layers, len(blocks))
        maps |= _block_maps(model, numbers, norm)
    elif maps and "embedding" not in named:
        if norm and "relu_final" in named:
            maps[f"stage_{len(maps)}"] = named["relu_final"].output
        maps = {f"stage_{at}": maps[f"stage_{at}"] for at in _chosen(layers, len(maps))}
    else:
        raise ValueError(
            "Expected a ViT, a hybrid or a ResNet of keras_vit (3.1, 4.1). Received: "
            f"model={model.name!r} without their layers. If the model is inside "
            "another one, pass model.get_layer(name)"
        )
    facts = dataclasses.replace(facts_of(model), labels=None)
    return VisionModel(model.input, maps, model.name, facts=facts)


def _stages(named: dict[str, keras.layers.Layer]) -> dict[str, keras.KerasTensor]:
    """The map of each stage of a ResNet or a hybrid's stem, by key."""
    maps = {}
    for name, layer in named.items():  # In order of the calls: the last unit is kept.
        if found := _UNIT.fullmatch(name):
            maps[f"stage_{found[1]}"] = layer.output
    if not maps and "pool_root" in named:
        maps["root"] = named["pool_root"].output
    return maps


def _chosen(layers: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The selected numbers of `count` layers or stages."""
    if layers is None:
        return tuple(range(1, count + 1))
    valid = (
        isinstance(layers, Sequence)
        and len(layers) > 0
        and all(arguments.is_integer(at) and 1 <= at <= count for at in layers)
        and len(set(layers)) == len(layers)
    )
    if not valid:
        raise ValueError(
            f"Expected layers to be None or unique numbers from 1 to {count}, such as "
            f"({count},) for the last. Received: layers={arguments.shown(layers)}"
        )
    return tuple(int(at) for at in layers)


def _block_maps(
    model: keras.Model, numbers: Sequence[int], norm: bool
) -> dict[str, keras.KerasTensor]:
    embedding = model.get_layer("embedding")
    blocks = [model.get_layer(f"encoderblock_{at - 1}") for at in numbers]
    num_class_tokens, num_registers = _prefix(model)
    has_norm = any(layer.name == "encoder_norm" for layer in model.layers)
    maps: dict[str, keras.KerasTensor] = FeatureMaps(
        numbers,
        embedding.patch_size,
        num_class_tokens,
        num_registers,
        model.get_layer("encoder_norm") if norm and has_norm else None,
        dtype=blocks[0].dtype_policy,
        name="feature_maps",
    )([block.output for block in blocks], embedding.input)
    return maps


def _prefix(model: keras.Model) -> tuple[int, int]:
    """The numbers of class tokens and registers, from the config or the layer.

    Raises:
        ValueError: if a model without facts has several tokens, of unknown kinds.
    """
    if (config := facts_of(model).config) is not None:
        prefix = getattr(config, "num_prefix_tokens", 0)
        return config.num_class_tokens, prefix - config.num_class_tokens
    count = sum(at.num_tokens for at in model.layers if isinstance(at, ClassToken))
    if count > 1:
        raise ValueError(
            f"Expected a model with a config, which states the kinds of its {count} "
            f"tokens before the patches. Received: model={model.name!r} without one. "
            "Pass the VisionModel that it was created from"
        )
    return count, 0
