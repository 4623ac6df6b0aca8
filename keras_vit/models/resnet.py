"""The baselines of 4.1 (BiT) and D.6 (Axial-ResNet50), and the hybrids' stem (3.1)."""

from typing import Any

import keras

from keras_vit import arguments
from keras_vit.configs import ResNetConfig
from keras_vit.facts import Facts
from keras_vit.layers import AxialUnit, PreActivationUnit, ResidualUnit, StdConv2D
from keras_vit.layers.convolution import GroupNorm, RootPool
from keras_vit.layers.embeddings import Tensor
from keras_vit.layers.kernels import wide
from keras_vit.models import heads
from keras_vit.models.vision import VisionModel


def resnet(
    config: ResNetConfig,
    *,
    image_size: tuple[int, int],
    num_classes: int | None,
    num_channels: int = 3,
    name: str = "resnet",
) -> VisionModel:
    """Builds a ResNet of section 4.1 (BiT), or D.6's Axial-ResNet50.

    Args:
        config: a `ResNetConfig`, such as `VARIANTS["BiT-R50x1"]`.
        image_size: (H, W) in pixels, any; a side may be None (any size), unless units
            are axial.
        num_classes: K; None or 0: no head.
        num_channels: C.
        name: name of the model.

    Returns:
        A `VisionModel` from images [B, H, W, C] in [-1, 1] to logits [B, K], or to
        features [B, 4 * width * 2^(stages - 1)].

    Raises:
        ValueError: if an argument is invalid.

    Examples:
        >>> import keras_vit
        >>> config = keras_vit.VARIANTS["BiT-R50x1"]
        >>> resnet(config, image_size=(64, 64), num_classes=None).output_shape
        (None, 2048)
    """
    config = arguments.instance("config", config, ResNetConfig)
    name = arguments.model_name(name)
    sides = arguments.sides("image_size", image_size, opened=config.unit != "axial")
    num_channels = arguments.integer("num_channels", num_channels)
    num_classes = arguments.optional(
        arguments.integer, "num_classes", num_classes, least=0
    )
    images = keras.Input((*sides, num_channels), name="images")
    features = encode(images, config)
    logits = classify(features, config, num_classes)
    return VisionModel(images, logits, name, facts=Facts(config=config))


def classify(
    features: Tensor,
    config: ResNetConfig,
    num_classes: int | None,
    activation: Any = None,
) -> Tensor:
    """Global average pooling and the head: [B, H, W, C] -> logits [B, K], or [B, C]."""
    y = keras.layers.GlobalAveragePooling2D(
        data_format="channels_last", dtype=wide(), name="gap"
    )(features)
    if num_classes:
        y = heads.head(
            y, num_classes, activation=activation, bias_init=config.head_bias_init
        )
    return y


def encode(images: Tensor, config: ResNetConfig) -> Tensor:
    """Root and stages: images [B, H, W, C] -> features [B, H / 32, W / 32, C']."""
    x = _root(images, config)
    for stage, num_units in enumerate(config.num_layers):
        for unit in range(num_units):
            strides = 2 if stage > 0 and unit == 0 else 1
            name = f"block{stage + 1}_unit{unit + 1}"
            x = _unit(config, config.width * 2**stage, strides, name)(x)
    if config.unit != "v1":
        x = _norm(config, "gn_final")(x)
        x = keras.layers.Activation("relu", name="relu_final")(x)
    return x


def _root(images: Tensor, config: ResNetConfig) -> Tensor:
    """A 7x7 convolution and 3x3 max-pooling, both with stride 2: H x W -> H/4 x W/4."""
    v1 = config.unit == "v1"
    x = StdConv2D(
        config.width,
        7,
        2,
        "same" if v1 else "symmetric",
        config.kernel_epsilon,
        config.epsilon_outside,
        name="conv_root",
    )(images)
    if not v1:
        return RootPool(config.pool_padding, name="pool_root")(x)
    x = _norm(config, "gn_root")(x)
    x = keras.layers.Activation("relu", name="relu_root")(x)
    return RootPool("same", name="pool_root")(x)


def _unit(config: ResNetConfig, filters: int, strides: int, name: str) -> Any:
    arguments: dict[str, Any] = {
        "filters": filters,
        "strides": strides,
        "kernel_epsilon": config.kernel_epsilon,
        "epsilon_outside": config.epsilon_outside,
        "group_norm_epsilon": config.group_norm_epsilon,
        "name": name,
    }
    if config.unit == "axial":
        return AxialUnit(**arguments, num_heads=config.num_heads)
    kind = ResidualUnit if config.unit == "v1" else PreActivationUnit
    return kind(**arguments)


def _norm(config: ResNetConfig, name: str) -> keras.layers.Layer:
    return GroupNorm(epsilon=config.group_norm_epsilon, name=name)
