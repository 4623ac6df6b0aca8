"""Plain ViTs of later papers as one functional Keras model.

The model is that of section 3.1, with the options of `PlainViTConfig`.
"""

from typing import Any

import keras

from keras_vit import arguments
from keras_vit.configs import PlainViTConfig
from keras_vit.facts import Facts
from keras_vit.layers import AddPositionEmbs, ClassToken, MAPHead, PatchEmbedding
from keras_vit.layers.embeddings import Tensor, patch_grid
from keras_vit.layers.kernels import wide
from keras_vit.layers.plain import PlacedPositionEmbs, PlainBlock, norm
from keras_vit.layers.pooling import TakeTokens
from keras_vit.models import heads
from keras_vit.models.vision import VisionModel
from keras_vit.models.vit import images_of


def plain_vit(
    config: PlainViTConfig,
    *,
    image_size: tuple[int, int],
    num_classes: int | None,
    num_channels: int = 3,
    name: str = "plain_vit",
) -> VisionModel:
    """Builds a plain ViT of a later paper (section 3.1 with the config's options).

    Args:
        config: a `PlainViTConfig`.
        image_size: (H, W) in pixels; each a multiple of `config.patch_size`.
        num_classes: K; None or 0: no head, and the model returns the head's input.
        num_channels: C.
        name: name of the model.

    Returns:
        A `VisionModel` from images [B, H, W, C] to logits [B, K] ([B, T, K] for the
        unpooled classifiers).

    Raises:
        ValueError: if an argument is invalid, or a side of `image_size` is not a
            positive multiple of the patch size (section 3.1).

    Examples:
        >>> import keras_vit
        >>> config = keras_vit.PlainViTConfig(
        ...     patch_size=14, num_layers=12, hidden_size=384, mlp_dim=1536,
        ...     num_heads=6, layer_scale=1e-5, num_registers=4, position_tokens=0,
        ... )
        >>> model = keras_vit.plain_vit(config, image_size=(224, 224), num_classes=0)
        >>> model.output_shape
        (None, 384)
    """
    config = arguments.instance("config", config, PlainViTConfig)
    images = images_of(config, image_size, num_channels)
    num_classes = arguments.optional(
        arguments.integer, "num_classes", num_classes, least=0
    )
    logits = classify(encode(images, config), config, num_classes)
    return VisionModel(images, logits, name, facts=Facts(config=config))


def encode(images: Tensor, config: PlainViTConfig) -> Tensor:
    """Embedding, blocks and the last norm: images [B, H, W, C] -> [B, T, D]."""
    grid = patch_grid(images.shape[1:3], config.patch_size)
    z = PatchEmbedding(
        config.hidden_size,
        config.patch_size,
        use_bias=config.patch_bias,
        name="embedding",
    )(images)
    if config.embedding_norm:
        z = norm(config, "embedding_norm")(z)
    if config.num_prefix_tokens:
        z = ClassToken(config.num_prefix_tokens, name="cls")(z)
    if config.position == "1d":
        z = _positions(config, grid)(z)
    z = keras.layers.Dropout(config.dropout_rate, name="posembed_dropout")(z)
    if config.pre_norm:
        z = norm(config, "pre_norm")(z)
    for layer in range(config.num_layers):
        depth = layer / max(config.num_layers - 1, 1)
        rate = depth * config.stochastic_depth_rate
        z = PlainBlock(config, grid, rate, name=f"encoderblock_{layer}")(z)
    return norm(config, "encoder_norm")(z) if config.final_norm else z


def _positions(config: PlainViTConfig, grid: tuple[int, int]) -> AddPositionEmbs:
    placed, tokens = config.position_tokens, config.num_prefix_tokens
    if placed is None or placed == tokens:
        return AddPositionEmbs(grid, tokens, name="posembed_input")
    return PlacedPositionEmbs(grid, placed, tokens - placed, name="posembed_input")


def pool(tokens: Tensor, config: PlainViTConfig) -> Tensor:
    """The input of the head: [B, T, D] -> [B, D], [B, 2 D] or [B, T, D]."""
    if config.classifier in ("gap", "map"):
        if config.num_prefix_tokens and not config.pool_prefix:
            tokens = TakeTokens(config.num_prefix_tokens)(tokens)
        return _mean(tokens) if config.classifier == "gap" else _map(tokens, config)
    if config.classifier == "token_gap":
        patches = TakeTokens(config.num_prefix_tokens)(tokens)
        both = [heads.class_token(tokens), _mean(patches)]
        return keras.layers.Concatenate(name="token_and_gap")(both)
    return heads.class_tokens(tokens, config.classifier)


def _mean(tokens: Tensor) -> Tensor:
    return keras.layers.GlobalAveragePooling1D(
        data_format="channels_last", dtype=wide(), name="gap"
    )(tokens)


def _map(tokens: Tensor, config: PlainViTConfig) -> Tensor:
    return MAPHead(
        config.heads_of_map,
        config.map_mlp_dim or config.mlp_dim,
        "tanh" if config.activation == "gelu_tanh" else "erf",
        config.layer_norm_epsilon,
        name="MAPHead_0",
    )(tokens)


def classify(
    tokens: Tensor,
    config: PlainViTConfig,
    num_classes: int | None,
    activation: Any = None,
) -> Tensor:
    """Pooling, its norm and the head: [B, T, D] -> logits [B, K], or features."""
    y = pool(tokens, config)
    if config.head_norm:
        y = norm(config, "head_norm", wide())(y)
    if num_classes:
        y = heads.head(y, num_classes, activation=activation, bias=config.head_bias)
    return y
