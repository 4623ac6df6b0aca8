"""Section 3.2: a new task, a new resolution."""

import numbers

import keras

from keras_vit.layers import AddPositionEmbs, resize_position_embeddings
from keras_vit.layers.embeddings import Composite, check_unadapted, patch_grid
from keras_vit.models import heads
from keras_vit.models.vit import describe


def for_task(model: keras.Model, classes: int) -> keras.Model:
    """Puts a new, zero-initialised linear head in the place of the old one (3.2).

    "We remove the whole head (two linear layers) and replace it by a single,
    zero-initialized linear layer" (B.1.1): `pre_logits` and `head` go.

    Args:
        model: a ViT of this library, with its head or without.
        classes: K of the new task.

    Returns:
        A `keras.Model` from the same images to logits [B, K]. It shares every layer
        but the head with `model`: training one trains the other.

    Raises:
        ValueError: if `classes` is not positive, or `model`'s output has no features
            for a head.
    """
    if not isinstance(classes, numbers.Integral) or classes < 1:
        raise ValueError(
            f"Expected a positive number of classes. Received: classes={classes!r}"
        )
    describe(model)  # Raises for a ViT inside another model.
    features = _features(model)
    if len(features.shape) not in (2, 3) or features.shape[-1] is None:
        raise ValueError(
            "Expected features [B, D] or tokens [B, T, D] to put a head on. Received: "
            f"model={model.name!r} with output {features.shape}"
        )
    return keras.Model(model.input, heads.head(features, int(classes)), name=model.name)


def _features(model: keras.Model) -> keras.KerasTensor:
    """What the old head read, before `pre_logits`."""
    named = {layer.name: layer for layer in model.layers}
    for name in ("pre_logits", "head"):
        if name in named:
            return named[name].input
    last = model.layers[-1]
    if isinstance(last, keras.layers.Dense):
        raise ValueError(
            "Expected the old head to be named 'head', or features without one. "
            f"Received: model={model.name!r}, which ends in the Dense layer "
            f"{last.name!r}. Pass keras.Model(model.input, FEATURES) to keep it out"
        )
    return model.output


def at_resolution(model: keras.Model, image_size: tuple[int, int]) -> keras.Model:
    """The same trained model for images of another size (3.2).

    The patches stay as they are, the sequence grows, and the position embeddings are
    interpolated by their place in the image.

    Args:
        model: a ViT of this library; left as it is.
        image_size: (H, W) in pixels; each a multiple of the patch size.

    Returns:
        A `keras.Model` of the same layers and weights (copies).

    Raises:
        ValueError: if `image_size` is no multiple of the patch size (section 3.1), or
            the model has LoRA or is quantized.
    """
    if not isinstance(image_size, tuple | list) or len(image_size) != 2:
        raise ValueError(
            f"Expected image_size (H, W) in pixels. Received: image_size={image_size!r}"
        )
    check_unadapted(model, "change the resolution first")
    facts = describe(model)
    grid = patch_grid(image_size, facts["patch_size"])

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        if isinstance(layer, AddPositionEmbs):
            config["grid"] = grid
        return layer.__class__.from_config(config)

    images = keras.Input((*image_size, facts["num_channels"]), name="images")
    resized = keras.models.clone_model(
        model,
        input_tensors=keras.tree.map_structure(lambda _: images, model.input),
        clone_function=clone,
    )
    for old, new in zip(model.layers, resized.layers, strict=True):
        weights = old.get_weights()
        if isinstance(old, AddPositionEmbs):
            prefix = facts["num_prefix_tokens"]
            weights = [
                resize_position_embeddings(table, facts["grid"], grid, prefix)
                for table in weights
            ]
        new.set_weights(weights)
        _copy_trainable(old, new)
    return resized


def _copy_trainable(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Freezes in `new` what is frozen in `old`, inside a block too."""
    new.trainable = old.trainable
    if isinstance(old, Composite):
        for inner, copy in zip(old.sublayers(), new.sublayers(), strict=True):
            _copy_trainable(inner, copy)
