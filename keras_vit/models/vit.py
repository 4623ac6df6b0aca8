"""Section 3.1: the Vision Transformer as one functional Keras model."""

from typing import Any

import keras

from keras_vit.configs import ViTConfig
from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    PatchEmbedding,
    TransformerBlock,
)
from keras_vit.layers.embeddings import Tensor, patch_grid
from keras_vit.models import heads


def vit(
    config: ViTConfig,
    *,
    image_size: tuple[int, int],
    num_classes: int | None,
    num_channels: int = 3,
    name: str = "vit",
) -> keras.Model:
    """Builds the Vision Transformer of section 3.1.

    Args:
        config: a `ViTConfig`, e.g. `VARIANTS["ViT-B/16"]`.
        image_size: (H, W) in pixels; each a multiple of `config.patch_size`.
        num_classes: K; None or 0 leaves the head out, and the model returns what the
            head would read.
        num_channels: C.
        name: of the model.

    Returns:
        A `keras.Model` from images [B, H, W, C] in [-1, 1] to logits [B, K]
        ([B, T, K] where `config.classifier` is one of the unpooled).

    Example:
        >>> import keras_vit
        >>> model = keras_vit.vit(
        ...     keras_vit.VARIANTS["ViT-B/16"], image_size=(224, 224), num_classes=1000
        ... )
        >>> model.count_params()  # vit_jax/models_test.py
        86567656
    """
    images = keras.Input((*image_size, num_channels), name="images")
    tokens = encode(images, config)
    return keras.Model(images, heads.classify(tokens, config, num_classes), name=name)


def encode(images: Tensor, config: ViTConfig) -> Tensor:
    """Equations 1 to 3 and the last LayerNorm: images [B, H, W, C] -> [B, T, D]."""
    z = PatchEmbedding(config.hidden_size, config.patch_size, name="embedding")(images)
    if config.num_prefix_tokens:
        z = ClassToken(name="cls")(z)
    z = AddPositionEmbs(
        grid=patch_grid(images.shape[1:3], config.patch_size),
        num_prefix_tokens=config.num_prefix_tokens,
        name="posembed_input",
    )(z)
    z = keras.layers.Dropout(config.dropout_rate, name="posembed_dropout")(z)
    for layer in range(config.num_layers):
        z = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            config.dropout_rate,
            config.attention_dropout_rate,
            config.gelu,
            config.layer_norm_epsilon,
            name=f"encoderblock_{layer}",
        )(z)
    return keras.layers.LayerNormalization(
        epsilon=config.layer_norm_epsilon, name="encoder_norm"
    )(z)


def describe(model: keras.Model) -> dict[str, Any]:
    """The facts of a built ViT, read off its layers: sizes, grid, class token.

    Raises:
        ValueError: if `model` is not made of this library's layers.
    """
    embedding = _only(model, PatchEmbedding)
    positions = _only(model, AddPositionEmbs)
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    return {
        "patch_size": embedding.patch_size,
        "num_layers": len(blocks),
        "hidden_size": embedding.hidden_size,
        "mlp_dim": blocks[0].mlp_dim if blocks else None,
        "num_heads": blocks[0].num_heads if blocks else None,
        "grid": positions.grid,
        "num_prefix_tokens": positions.num_prefix_tokens,
        "num_channels": model.input_shape[-1],
    }


def _only(model: keras.Model, kind: type) -> Any:
    """The one layer of `kind` in `model`."""
    found = [layer for layer in model.layers if isinstance(layer, kind)]
    if len(found) != 1:
        raise ValueError(
            f"Expected a model of keras_vit with one {kind.__name__} layer. Received: "
            f"model={model.name!r} with {len(found)}; a ViT inside another model is "
            "reached as model.get_layer(name)"
        )
    return found[0]
