"""EfficientNet up to L2: the "Noisy Student" column of Table 2.

The architecture and its scaling are from arXiv:1905.11946, and L2 is from
arXiv:1911.04252. The training code is tensorflow/tpu, models/official/efficientnet.
Layers have the names in its checkpoints, with "_" for "/".

Glossary of shapes:
- B: batch.     - H, W: image height, width.     - C: channels.     - K: classes.
"""

import math
from typing import Any, NamedTuple

import keras

from keras_vit import arguments
from keras_vit.configs import EfficientNetConfig
from keras_vit.facts import Facts, Preprocessing
from keras_vit.layers.embeddings import Tensor
from keras_vit.layers.kernels import wide
from keras_vit.models.vision import VisionModel
from keras_vit.normalization import IMAGENET


class Stage(NamedTuple):
    """A row of B0's table: equal blocks, except the first one's stride and width."""

    num_repeat: int
    kernel_size: int
    strides: int  # Strides of the first block; the others have 1.
    expand_ratio: int
    output_filters: int


STAGES = (  # arXiv:1905.11946, Table 1; `blocks_args` of efficientnet_builder.py.
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
STEM_FILTERS = 32
HEAD_FILTERS = 1280
SE_RATIO = 0.25  # Share of a block's input filters, before their expansion.

# N(0, 2 / fan_out), not truncated, and U(-1/sqrt(K), 1/sqrt(K)), as in the official
# `conv_kernel_initializer` and `dense_kernel_initializer`.
CONV_INITIALIZER = {
    "scale": 2.0,
    "mode": "fan_out",
    "distribution": "untruncated_normal",
}
DENSE_INITIALIZER = {"scale": 1 / 3, "mode": "fan_out", "distribution": "uniform"}


def efficientnet(
    config: EfficientNetConfig,
    *,
    image_size: tuple[int, int] | None = None,
    num_classes: int | None = 1000,
    name: str = "efficientnet",
) -> VisionModel:
    """Builds EfficientNet, the Noisy Student baseline of Table 2.

    Strided convolutions pad like TensorFlow's SAME, as in the official code. The
    explicit zero padding of keras.applications is equal for image sizes, odd or even,
    that are known when the model is built; sizes of None are padded as if even.

    Args:
        config: an `EfficientNetConfig`, such as
            `configs.EFFICIENTNET_VARIANTS["EfficientNet-L2"]`.
        image_size: (H, W) in pixels, any; default: the config's size, square.
        num_classes: K; None or 0: no head, and the model returns the head's input.
        name: name of the model.

    Returns:
        A `VisionModel` from images [B, H, W, 3] to logits [B, K]. The published weights
        expect images normalized with ImageNet's mean and deviation, about -2.1 to 2.6
        (`model.preprocessing`). Unlike in keras.applications, the normalization is not
        part of the graph.

    Raises:
        ValueError: if an argument is invalid.

    Examples:
        >>> from keras_vit.configs import EFFICIENTNET_VARIANTS
        >>> model = efficientnet(EFFICIENTNET_VARIANTS["EfficientNet-B0"])
        >>> model.count_params()  # 5,288,548 of them trainable
        5330564
    """
    config = arguments.instance("config", config, EfficientNetConfig)
    name = arguments.model_name(name)
    if image_size is None:
        image_size = (config.image_size, config.image_size)
    height, width = arguments.sides("image_size", image_size, opened=True)
    num_classes = arguments.optional(
        arguments.integer, "num_classes", num_classes, least=0
    )
    images = keras.Input((height, width, 3), name="images")
    logits = classify(encode(images, config), config, num_classes)
    mean, std = IMAGENET
    facts = Facts(config=config, preprocessing=Preprocessing(mean=mean, std=std))
    return VisionModel(images, logits, name, facts=facts)


def encode(images: Tensor, config: EfficientNetConfig) -> Tensor:
    """Stem, blocks and the last convolution: [B, H, W, C] -> [B, H/32, W/32, C']."""
    x = _conv(images, round_filters(STEM_FILTERS, config), "stem_conv2d", 3, 2)
    x = _swish(_batch_norm(x, "stem_tpu_batch_normalization"), "stem_swish")
    blocks = [
        (stage, stage.strides if repeat == 0 else 1)
        for stage in STAGES
        for repeat in range(math.ceil(config.depth_coefficient * stage.num_repeat))
    ]
    for i, (stage, strides) in enumerate(blocks):
        x = mb_conv(
            x,
            stage,
            filters=round_filters(stage.output_filters, config),
            strides=strides,
            drop_rate=config.drop_connect_rate * i / len(blocks),
            name=f"blocks_{i}",
        )
    x = _conv(x, round_filters(HEAD_FILTERS, config), "head_conv2d")
    return _swish(_batch_norm(x, "head_tpu_batch_normalization"), "head_swish")


def classify(
    features: Tensor,
    config: EfficientNetConfig,
    num_classes: int | None,
    activation: Any = None,
) -> Tensor:
    """Global average pooling and the head: [B, H, W, C] -> logits [B, K], or [B, C]."""
    x = keras.layers.GlobalAveragePooling2D(
        data_format="channels_last", dtype=wide(), name="head_pool"
    )(features)
    if num_classes:
        x = keras.layers.Dropout(config.dropout_rate, name="head_dropout")(x)
        x = keras.layers.Dense(
            num_classes,
            activation=activation,
            kernel_initializer=keras.initializers.VarianceScaling(**DENSE_INITIALIZER),
            bias_initializer="zeros",
            dtype=wide(),
            name="head_dense",
        )(x)
    return x


def round_filters(filters: int, config: EfficientNetConfig) -> int:
    """B0's filters at the config's width: the nearest multiple of 8, at least 90 %."""
    wanted = filters * config.width_coefficient
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


def mb_conv(
    inputs: Tensor,
    stage: Stage,
    *,
    filters: int,
    strides: int,
    drop_rate: float,
    name: str,
) -> Tensor:
    """One MBConv block: [B, H, W, C] -> [B, ceil(H / s), ceil(W / s), filters].

    It consists of expansion, depthwise convolution, squeeze and excitation, and
    projection. If the shapes are equal, the input is added, and the block's branch is
    dropped for an image with probability `drop_rate`.
    """
    x = inputs
    # TensorFlow 1 numbers the layers of a kind in the order of the calls.
    convs = iter((f"{name}_conv2d", f"{name}_conv2d_1"))
    norms = (f"{name}_tpu_batch_normalization{n}" for n in ("", "_1", "_2"))
    if stage.expand_ratio != 1:
        x = _conv(x, stage.expand_ratio * inputs.shape[-1], next(convs))
        x = _swish(_batch_norm(x, next(norms)), f"{name}_expand_swish")
    x = keras.layers.DepthwiseConv2D(
        stage.kernel_size,
        strides,
        padding="same",
        data_format="channels_last",
        use_bias=False,
        depthwise_initializer=keras.initializers.VarianceScaling(**CONV_INITIALIZER),
        name=f"{name}_depthwise_conv2d",
    )(x)
    x = _swish(_batch_norm(x, next(norms)), f"{name}_depthwise_swish")
    x = _squeeze_excite(x, max(1, int(inputs.shape[-1] * SE_RATIO)), f"{name}_se")
    x = _batch_norm(_conv(x, filters, next(convs)), next(norms))
    if strides == 1 and filters == inputs.shape[-1]:
        if drop_rate:
            x = keras.layers.Dropout(
                drop_rate, noise_shape=(None, 1, 1, 1), name=f"{name}_drop_connect"
            )(x)
        x = keras.layers.Add(name=f"{name}_add")([x, inputs])
    return x


def _squeeze_excite(x: Tensor, reduced: int, name: str) -> Tensor:
    """Scales the channels with a gate from their means: [B, H, W, C], unchanged."""
    gate = keras.layers.GlobalAveragePooling2D(
        data_format="channels_last", keepdims=True, name=f"{name}_squeeze"
    )(x)
    gate = _conv(gate, reduced, f"{name}_conv2d", activation="silu", use_bias=True)
    gate = _conv(
        gate, x.shape[-1], f"{name}_conv2d_1", activation="sigmoid", use_bias=True
    )
    return keras.layers.Multiply(name=f"{name}_excite")([x, gate])


def _conv(
    x: Tensor,
    filters: int,
    name: str,
    kernel_size: int = 1,
    strides: int = 1,
    *,
    activation: str | None = None,
    use_bias: bool = False,
) -> Tensor:
    return keras.layers.Conv2D(
        filters,
        kernel_size,
        strides,
        padding="same",
        data_format="channels_last",
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=keras.initializers.VarianceScaling(**CONV_INITIALIZER),
        bias_initializer="zeros",
        name=name,
    )(x)


def _batch_norm(x: Tensor, name: str) -> Tensor:
    layer = keras.layers.BatchNormalization(momentum=0.99, epsilon=1e-3, name=name)
    return layer(x)


def _swish(x: Tensor, name: str) -> Tensor:
    return keras.layers.Activation("silu", name=name)(x)
