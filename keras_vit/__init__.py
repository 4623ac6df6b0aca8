"""The Vision Transformer paper (arXiv:2010.11929v2) as a Keras 3 library."""

import importlib
from typing import Any

from keras_vit import layers, models, recipes, training, weights
from keras_vit._version import __version__
from keras_vit.applications import (
    ViT_B8,
    ViT_B16,
    ViT_B32,
    ViT_H14,
    ViT_L16,
    ViT_L32,
    ViT_S16,
    ViT_S32,
    ViT_Ti16,
    decode_predictions,
    from_checkpoint,
    preprocess_input,
)
from keras_vit.configs import VARIANTS, ViTConfig
from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    MlpBlock,
    PatchEmbedding,
    SelfAttention,
    TransformerBlock,
)
from keras_vit.models import at_resolution, for_task, vit

__all__ = [
    "VARIANTS",
    "AddPositionEmbs",
    "ClassToken",
    "MlpBlock",
    "PatchEmbedding",
    "SelfAttention",
    "TransformerBlock",
    "ViTConfig",
    "ViT_B8",
    "ViT_B16",
    "ViT_B32",
    "ViT_H14",
    "ViT_L16",
    "ViT_L32",
    "ViT_S16",
    "ViT_S32",
    "ViT_Ti16",
    "__version__",
    "at_resolution",
    "data",
    "decode_predictions",
    "for_task",
    "from_checkpoint",
    "inspection",
    "layers",
    "models",
    "preprocess_input",
    "recipes",
    "training",
    "vit",
    "weights",
]


def __getattr__(name: str) -> Any:
    """`keras_vit.data` and `inspection` on first use: they import what few need."""
    if name in ("data", "inspection"):
        return importlib.import_module(f"keras_vit.{name}")
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")
