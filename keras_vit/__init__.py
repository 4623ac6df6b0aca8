"""The Vision Transformer paper (arXiv:2010.11929v2) as a Keras 3 library."""

import importlib
from typing import Any

from keras_vit import layers, models, recipes, self_supervision, training, weights
from keras_vit._version import __version__
from keras_vit.applications import (
    Axial_ResNet50,
    Axial_ViT_B16,
    Axial_ViT_B32,
    BiT_R50x1,
    BiT_R50x2,
    BiT_R50x3,
    BiT_R101x1,
    BiT_R101x3,
    BiT_R152x1,
    BiT_R152x2,
    BiT_R152x4,
    BiT_R200x3,
    R26_ViT_B32,
    R26_ViT_S32,
    R50_ViT_B16,
    R50_ViT_B32,
    R50_ViT_L16,
    R50_ViT_L32,
    R_ViT_Ti16,
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
from keras_vit.configs import VARIANTS, EfficientNetConfig, ResNetConfig, ViTConfig
from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    MAPHead,
    MlpBlock,
    PatchEmbedding,
    SelfAttention,
    StdConv2D,
    TransformerBlock,
)
from keras_vit.models import at_resolution, efficientnet, for_task, resnet, vit
from keras_vit.weights import verify

__all__ = [
    "AddPositionEmbs",
    "Axial_ResNet50",
    "Axial_ViT_B16",
    "Axial_ViT_B32",
    "BiT_R101x1",
    "BiT_R101x3",
    "BiT_R152x1",
    "BiT_R152x2",
    "BiT_R152x4",
    "BiT_R200x3",
    "BiT_R50x1",
    "BiT_R50x2",
    "BiT_R50x3",
    "ClassToken",
    "EfficientNetConfig",
    "MAPHead",
    "MlpBlock",
    "PatchEmbedding",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_B32",
    "R50_ViT_L16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "ResNetConfig",
    "SelfAttention",
    "StdConv2D",
    "TransformerBlock",
    "VARIANTS",
    "ViTConfig",
    "ViT_B16",
    "ViT_B32",
    "ViT_B8",
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
    "efficientnet",
    "evaluation",
    "for_task",
    "from_checkpoint",
    "inspection",
    "layers",
    "models",
    "preprocess_input",
    "recipes",
    "resnet",
    "self_supervision",
    "serving",
    "training",
    "verify",
    "vit",
    "weights",
]


def __getattr__(name: str) -> Any:
    """What few need is imported on first use: `data`, `evaluation` and such."""
    if name in ("data", "evaluation", "inspection", "serving"):
        return importlib.import_module(f"keras_vit.{name}")
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")
