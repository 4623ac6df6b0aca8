"""From tokens to logits: Equation 4, section 3.1's head, and the options of D.3."""

from typing import Any

import keras

from keras_vit.configs import ViTConfig
from keras_vit.layers import MAPHead
from keras_vit.layers.embeddings import Tensor
from keras_vit.layers.kernels import wide
from keras_vit.layers.pooling import TakeTokens


def pool(tokens: Tensor, config: ViTConfig) -> Tensor:
    """The input of the head (Equation 4, D.3): [B, T, D] -> [B, D], or [B, T, D].

    Pooling follows the last LayerNorm. "gap" and "map" use only the patches.
    "distilled" concatenates the class and the distillation token.
    """
    if config.classifier in ("gap", "map") and config.num_registers:
        tokens = TakeTokens(config.num_registers)(tokens)
    if config.classifier == "gap":
        return keras.layers.GlobalAveragePooling1D(
            data_format="channels_last", dtype=wide(), name="gap"
        )(tokens)
    if config.classifier == "map":
        return MAPHead(
            config.num_heads,
            config.mlp_dim,
            config.gelu,
            config.layer_norm_epsilon,
            name="MAPHead_0",
        )(tokens)
    return class_tokens(tokens, config.classifier)


def class_tokens(tokens: Tensor, classifier: str) -> Tensor:
    """Returns the class tokens that a classifier uses; unpooled: all tokens."""
    if classifier == "token":
        return class_token(tokens)
    if classifier == "distilled":
        both = TakeTokens(0, 2)(tokens)
        return keras.layers.Flatten(data_format="channels_last", name="two_tokens")(
            both
        )
    return tokens


def class_token(tokens: Tensor) -> Tensor:
    """Equation 4's z_L^0: [B, T, D] -> [B, D]."""
    return TakeTokens(0, 1, squeeze=True)(tokens)


def pre_logits(features: Tensor, representation_size: int) -> Tensor:
    """The hidden layer of the pre-training head, "one hidden layer", with tanh."""
    return keras.layers.Dense(
        representation_size,
        activation="tanh",
        kernel_initializer="lecun_normal",
        bias_initializer="zeros",
        name="pre_logits",
    )(features)


def head(
    features: Tensor,
    num_classes: int,
    *,
    activation: Any = None,
    bias: bool = True,
    bias_init: float = 0.0,
) -> Tensor:
    """The zero-initialized linear head (3.2), in float32: [..., D] -> [..., K]."""
    return keras.layers.Dense(
        num_classes,
        activation=activation,
        use_bias=bias,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(bias_init),
        dtype=wide(),
        name="head",
    )(features)


def classify(
    tokens: Tensor, config: ViTConfig, num_classes: int | None, activation: Any = None
) -> Tensor:
    """Equation 4 and the head: [B, T, D] -> logits [B, K] (or features, without K)."""
    y = pool(tokens, config)
    if config.representation_size is not None:
        y = pre_logits(y, config.representation_size)
    if num_classes:
        y = head(y, num_classes, activation=activation, bias_init=config.head_bias_init)
    return y
