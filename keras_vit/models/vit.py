"""Section 3.1: the Vision Transformer as one functional Keras model."""

from collections.abc import Iterator
from typing import Any

import keras

from keras_vit import arguments
from keras_vit.configs import PlainViTConfig, ViTConfig
from keras_vit.facts import Facts
from keras_vit.layers import (
    AddPositionEmbs,
    AxialBlock,
    ClassToken,
    PatchEmbedding,
    TransformerBlock,
)
from keras_vit.layers.embeddings import Tensor, patch_grid
from keras_vit.models import heads
from keras_vit.models.resnet import encode as feature_map
from keras_vit.models.vision import VisionModel


def vit(
    config: ViTConfig,
    *,
    image_size: tuple[int, int],
    num_classes: int | None,
    num_channels: int = 3,
    name: str = "vit",
) -> VisionModel:
    """Builds the Vision Transformer or the hybrid of section 3.1.

    Args:
        config: a `ViTConfig`, such as `VARIANTS["ViT-B/16"]`.
        image_size: (H, W) in pixels; each a multiple of `config.patch_size`, except for
            a hybrid, whose feature map rounds up.
        num_classes: K; None or 0: no head, and the model returns the head's input.
        num_channels: C.
        name: name of the model.

    Returns:
        A `VisionModel` from images [B, H, W, C] in [-1, 1] to logits [B, K]
        ([B, T, K] for the unpooled classifiers).

    Raises:
        ValueError: if an argument is invalid, a side of `image_size` is not a positive
            multiple of the patch size (section 3.1), or a hybrid's feature map is
            smaller than a patch.

    Examples:
        >>> import keras_vit
        >>> model = keras_vit.vit(
        ...     keras_vit.VARIANTS["ViT-B/16"], image_size=(224, 224), num_classes=1000
        ... )
        >>> model.count_params()  # vit_jax/models_test.py
        86567656
    """
    config = arguments.instance("config", config, ViTConfig)
    name = arguments.model_name(name)
    images = images_of(config, image_size, num_channels)
    num_classes = arguments.optional(
        arguments.integer, "num_classes", num_classes, least=0
    )
    tokens = encode(images, config)
    logits = heads.classify(tokens, config, num_classes)
    return VisionModel(images, logits, name, facts=Facts(config=config))


def images_of(
    config: ViTConfig | PlainViTConfig, image_size: tuple[int, int], num_channels: int
) -> Tensor:
    """The input of a model, [B, H, W, C], with a valid size.

    Raises:
        ValueError: if the size or the number of channels is invalid.
    """
    height, width = arguments.sides("image_size", image_size, least=0)
    check_size("image_size", (height, width), config)
    num_channels = arguments.integer("num_channels", num_channels)
    return keras.Input((height, width, num_channels), name="images")


def check_size(
    name: str, size: tuple[int, int], config: ViTConfig | PlainViTConfig
) -> None:
    """Raises for images (H, W) that cannot be cut into patches (3.1).

    Args:
        name: the argument's name, for the error.
        size: (H, W) in pixels.
        config: config of a ViT (patches tile the image) or a hybrid.

    Raises:
        ValueError: if a side is not a positive multiple of the patch size, or a
            hybrid's feature map is smaller than a patch.
    """
    patch_size, resnet = config.patch_size, config.resnet
    if resnet is not None:
        least = resnet.stride * (patch_size - 1) + 1
        if min(size) < least:
            raise ValueError(
                f"Expected {name} (H, W) of at least {least} pixels per side, for "
                f"one patch of the feature map (3.1). Received: {name}={size}"
            )
    elif min(size) < patch_size or size[0] % patch_size or size[1] % patch_size:
        raise ValueError(
            f"Expected {name} (H, W) to be positive multiples of patch_size (section "
            f"3.1: N = HW / P^2). Received: {name}={size}, patch_size={patch_size}"
        )


def encode(images: Tensor, config: ViTConfig) -> Tensor:
    """Equations 1 to 3 and the last LayerNorm: images [B, H, W, C] -> [B, T, D].

    In a hybrid, patches are cut from a ResNet's feature map (3.1).
    """
    z = images
    if config.resnet is not None:
        z = feature_map(images, config.resnet)
    hybrid = config.resnet is not None
    grid = patch_grid(z.shape[1:3], config.patch_size, crop=hybrid)
    z = PatchEmbedding(
        config.hidden_size, config.patch_size, crop=hybrid, name="embedding"
    )(z)
    for layer in after_embedding(config, grid):
        z = layer(z)
    return z


def after_embedding(
    config: ViTConfig, grid: tuple[int, int]
) -> Iterator[keras.layers.Layer]:
    """Yields the layers from patch embeddings to `encoder_norm`, in calling order.

    Together they map [B, N, D] -> [B, T, D]. Each is created when it is yielded;
    "every_layer_shared" yields one several times.
    """
    if config.num_prefix_tokens:
        yield ClassToken(config.num_prefix_tokens, name="cls")
    positions = _positions(config, grid)
    for layer in range(config.num_layers):
        if add := positions.get(layer):
            yield add
        if layer == 0:
            yield keras.layers.Dropout(config.dropout_rate, name="posembed_dropout")
        yield _block(config, grid, layer)
    yield keras.layers.LayerNormalization(
        epsilon=config.layer_norm_epsilon, name="encoder_norm"
    )


def _positions(config: ViTConfig, grid: tuple[int, int]) -> dict[int, Any]:
    """The layers that add positions (D.4), by the block that follows them."""
    if config.position in ("none", "relative"):
        return {}
    arguments = (grid, config.num_prefix_tokens, config.position)
    if config.position_at == "every_layer_shared":
        shared = AddPositionEmbs(*arguments, name="posembed_shared")
        return dict.fromkeys(range(config.num_layers), shared)
    first = AddPositionEmbs(*arguments, name="posembed_input")
    if config.position_at == "stem":
        return {0: first}
    others = range(1, config.num_layers)
    return {0: first} | {
        layer: AddPositionEmbs(*arguments, name=f"posembed_{layer}") for layer in others
    }


def _block(config: ViTConfig, grid: tuple[int, int], layer: int) -> keras.layers.Layer:
    arguments: dict[str, Any] = {
        "num_heads": config.num_heads,
        "mlp_dim": config.mlp_dim,
        "dropout_rate": config.dropout_rate,
        "attention_dropout_rate": config.attention_dropout_rate,
        "gelu": config.gelu,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "relative": config.position == "relative",
        "name": f"encoderblock_{layer}",
    }
    if config.attention == "axial":
        return AxialBlock(grid, **arguments)
    depth = layer / max(config.num_layers - 1, 1)
    rate = depth * config.stochastic_depth_rate
    return TransformerBlock(**arguments, stochastic_depth_rate=rate)
