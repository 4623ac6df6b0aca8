"""Section 3.2: a new task or a new resolution."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.facts import check_labels
from keras_vit.layers import (
    AddPositionEmbs,
    AxialBlock,
    AxialUnit,
    PatchEmbedding,
    StdConv2D,
    TransformerBlock,
    resize_position_embeddings,
)
from keras_vit.layers.any_size import PadToPatches, ResizedPositionEmbs
from keras_vit.layers.embeddings import (
    Composite,
    Tensor,
    check_unadapted,
    everything_in,
    patch_grid,
)
from keras_vit.layers.plain import PlainBlock
from keras_vit.models import heads
from keras_vit.models.description import describe, stride_of
from keras_vit.models.vision import VisionModel, facts_of


def for_task(model: keras.Model, classes: int | Sequence[str]) -> VisionModel:
    """Replaces the head with a new, zero-initialized linear one (3.2).

    "We remove the whole head (two linear layers) and replace it by a single,
    zero-initialized linear layer" (B.1.1). `pre_logits` and `head` are removed.

    Args:
        model: a model of this library, with or without its head.
        classes: K of the new task, or its K labels.

    Returns:
        A `VisionModel` from the same images to logits [B, K], with the facts of
        `model` except its labels. The two models share all layers except the head:
        training one trains the other.

    Raises:
        ValueError: if `classes` is neither a positive integer nor labels, `model` does
            not consist of this library's layers or has several outputs, or its output
            has no features for a head.
    """
    labels = None
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        labels = check_labels(classes, "classes")
    units = arguments.integer("classes", len(labels) if labels else classes)
    _check_ours(model)
    features = _features(model)
    if len(features.shape) not in (2, 3) or features.shape[-1] is None:
        raise ValueError(
            "Expected features [B, D] or tokens [B, T, D] for a new head. Received: "
            f"model={model.name!r} with output {features.shape}"
        )
    facts = facts_of(model)
    config = None if facts.config is None else facts.config.with_linear_head()
    provenance = dataclasses.replace(
        facts.provenance, fresh=("head/kernel", "head/bias")
    )
    facts = dataclasses.replace(
        facts, config=config, labels=labels, provenance=provenance
    )
    logits = heads.head(features, units)
    return VisionModel(model.input, logits, model.name, facts=facts)


def _check_ours(model: keras.Model) -> None:
    """Raises for foreign models and for models with several outputs."""
    arguments.instance("model", model, keras.Model)
    if len(model.outputs) != 1:
        raise ValueError(
            "Expected a model with one output. Received: "
            f"model={model.name!r} with {len(model.outputs)}. For a "
            "MaskedPatchPredictor, pass predictor.backbone"
        )
    if not any(isinstance(at, PatchEmbedding | StdConv2D) for at in model.layers):
        describe(model)


def _features(model: keras.Model) -> keras.KerasTensor:
    """The input of the old head, before `pre_logits`."""
    read = read_by(model, "pre_logits", "head")
    if read is not None:
        return read
    last = model.layers[-1]
    if isinstance(last, keras.layers.Dense):
        raise ValueError(
            "Expected an old head with the name 'head', or features without a head. "
            f"Received: model={model.name!r}, which ends in the Dense layer "
            f"{last.name!r}. To remove it, pass keras.Model(model.input, FEATURES)"
        )
    return model.output


def read_by(model: keras.Model, *names: str) -> keras.KerasTensor | None:
    """The input of the first of these layers; None if the model has none of them."""
    named = {layer.name: layer for layer in model.layers}
    return next((named[name].input for name in names if name in named), None)


def at_resolution(
    model: keras.Model, image_size: tuple[int | None, int | None], pad: bool = False
) -> VisionModel:
    """The same trained model for images of a different size (3.2).

    The patch size stays the same, the sequence length changes, and the position
    embeddings are interpolated by their location in the image.

    Args:
        model: a model of this library, which is not changed.
        image_size: (H, W) in pixels; each a multiple of the patch size, except for a
            hybrid or a ResNet, whose maps round up. A side of None accepts images
            of any size: positions are interpolated in the model, from the same table
            for every size.
        pad: whether a side that is None may have any number of pixels: after
            normalization, images are padded with zeros at the bottom and the right to a
            multiple of the patch size. Without it, other sizes are errors.

    Returns:
        A `VisionModel` with copies of the layers and weights, and the same facts.

    Raises:
        ValueError: if `image_size` is not a pair of sides or not a multiple of the
            patch size (3.1); if the model does not consist of this library's layers,
            has LoRA, is quantized, or has relative positions (D.4); or if it attends
            along rows and columns (D.6) and a side is None.
    """
    _check_ours(model)
    if len(model.inputs) != 1:
        raise ValueError(
            f"Expected a model with one input. Received: model={model.name!r} with "
            f"{len(model.inputs)}"
        )
    height, width = arguments.sides("image_size", image_size, opened=True)
    pad = arguments.flag("pad", pad)
    check_unadapted(model, "change the resolution first")
    if None in (height, width):
        _check_any_size(model)
    elif pad:
        raise ValueError(
            "Expected pad=True with sides that are None. Received: pad=True, "
            f"image_size={(height, width)}"
        )
    images = keras.Input((height, width, model.input_shape[-1]), name="images")
    clone = _cloned(model, images, (height, width), pad)
    resized = VisionModel(clone.input, clone.output, model.name, facts=facts_of(model))
    if clone.compiled:  # As in `clone_model`.
        resized.compile_from_config(clone.get_compile_config())
    new = {layer.name: layer for layer in resized.layers}
    for old in model.layers:
        if (layer := new.get(old.name)) is not None:  # None for removed padding.
            layer.set_weights(_moved(old, layer))
            _copy_trainable(old, layer)
    return resized


def _check_any_size(model: keras.Model) -> None:
    """Raises for a model with weights for one size only."""
    for layer in model.layers:
        if isinstance(layer, AxialBlock | AxialUnit):
            raise ValueError(
                "Expected a fixed image_size for attention along rows and columns "
                f"(D.6). Received: a side of None, model={model.name!r} with "
                f"{layer.name}"
            )
        if isinstance(layer, TransformerBlock) and layer.relative:
            raise _unmoved(layer.name)
        if isinstance(layer, AddPositionEmbs) and layer.grid is None:
            raise ValueError(
                "Expected positions with a known grid, which can be resized (3.2). "
                f"Received: model={model.name!r} with {layer.name}, which has none"
            )


def merge_lora(model: keras.Model) -> keras.Model:
    """A copy of the model with LoRA merged into the kernels.

    A model without LoRA is returned unchanged.
    """
    if not any(getattr(at, "lora_enabled", False) for at in everything_in(model)):
        return model

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        return layer.__class__.from_config(_without_lora(layer.get_config()))

    merged = keras.models.clone_model(model, clone_function=clone)
    for old, new in zip(everything_in(model), everything_in(merged), strict=True):
        own: dict[str, Any] = {}
        old.save_own_variables(own)  # Keras merges LoRA when it saves.
        new.load_own_variables(own)
    return merged


def _without_lora(config: Any) -> Any:
    """The configuration of a layer, or of a nested model, without LoRA."""
    if isinstance(config, dict):
        return {
            key: _without_lora(value)
            for key, value in config.items()
            if key not in ("lora_rank", "lora_alpha")
        }
    return list(map(_without_lora, config)) if isinstance(config, list) else config


def _cloned(
    model: keras.Model,
    images: keras.KerasTensor,
    image_size: tuple[int | None, int | None],
    pad: bool,
) -> keras.Model:
    """Clones the model for other images; layers with a grid get the new one."""
    any_size = None in image_size
    embeddings = [at for at in model.layers if isinstance(at, PatchEmbedding)]
    patch_size = embeddings[0].patch_size if embeddings else None
    grid = None if any_size or not embeddings else _grid(model, image_size)
    padded = stride_of(model) == 1 and (
        pad or any(isinstance(at, PadToPatches) for at in model.layers)
    )
    cut: list[Tensor] = []  # The map that is cut into patches, if it has no fixed size.

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        kind, config = layer.__class__, layer.get_config()
        if any_size and isinstance(layer, AddPositionEmbs):
            kind, config["patch_size"] = ResizedPositionEmbs, patch_size
        elif isinstance(layer, ResizedPositionEmbs):
            kind, config = layer.fixed(config)
        if getattr(layer, "grid", None) is not None:
            config["grid"] = layer.grid if any_size else grid
        return kind.from_config(config)

    def call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, PadToPatches):
            return args[0]
        if isinstance(layer, PatchEmbedding) and any_size:
            if padded:
                policy = layer.dtype_policy
                pads = PadToPatches(layer.patch_size, dtype=policy, name="pad")
                args = (pads(args[0]),)
            cut.append(args[0])
        if isinstance(layer, AddPositionEmbs) or _turns(layer):
            args, kwargs = (args[0], *cut), {}
        return layer(*args, **kwargs)

    return keras.models.clone_model(
        model,
        input_tensors=keras.tree.map_structure(lambda _: images, model.input),
        clone_function=clone,
        call_function=call,
    )


def _turns(layer: keras.layers.Layer) -> bool:
    """Whether a block has rotary positions, which are computed from the grid."""
    return isinstance(layer, PlainBlock) and layer.config.rotary is not None


def _grid(model: keras.Model, image_size: Any) -> tuple[int, int]:
    """The grid of patches for images of a different size.

    Raises:
        ValueError: if patches do not tile them, or positions are relative.
    """
    (embedding,) = (at for at in model.layers if isinstance(at, PatchEmbedding))
    stride = stride_of(model)
    places = (-(-image_size[0] // stride), -(-image_size[1] // stride))
    grid = patch_grid(places, embedding.patch_size, crop=stride > 1)
    for layer in model.layers:  # Shapes may match although offsets do not.
        relative = isinstance(layer, TransformerBlock) and layer.relative
        if relative and grid != describe(model)["grid"]:
            raise _unmoved(layer.name)
    return grid


def _moved(old: Any, new: Any) -> list[np.ndarray]:
    """The weights of `old`, resized for the grid of `new`."""
    weights: list[np.ndarray] = old.get_weights()
    old_grid, new_grid = getattr(old, "grid", None), getattr(new, "grid", None)
    if isinstance(old, AddPositionEmbs) and old_grid and new_grid:
        if old.kind == "1d":
            prefix = old.num_prefix_tokens
            return [
                resize_position_embeddings(table, old_grid, new_grid, prefix)
                for table in weights
            ]
        sides = {"x_embedding": 1, "y_embedding": 0}  # The axis of the grid.
        return [
            table
            if variable.name not in sides
            else resize_position_embeddings(
                table,
                (1, old_grid[sides[variable.name]]),
                (1, new_grid[sides[variable.name]]),
                0,
            )
            for variable, table in zip(old.weights, weights, strict=True)
        ]
    for table, variable in zip(weights, new.weights, strict=True):
        if table.shape != tuple(variable.shape):
            raise _unmoved(f"{variable.path}, {table.shape}")
    return weights


def _unmoved(what: str) -> ValueError:
    return ValueError(
        f"Expected positions that can be resized (3.2). Received: {what}, which "
        "contains offsets in a sequence (D.4, relative) of a fixed length"
    )


def _copy_trainable(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Freezes the layers in `new` that are frozen in `old`, also inside blocks."""
    new.trainable = old.trainable
    if isinstance(old, Composite):
        for inner, copy in zip(old.sublayers(), new.sublayers(), strict=True):
            _copy_trainable(inner, copy)
