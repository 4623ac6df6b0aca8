"""The Vision Transformer paper (arXiv:2010.11929v2) as a Keras 3 library."""

import importlib
import sys
from typing import TYPE_CHECKING

from keras_vit._lazy import names_of
from keras_vit._version import __version__

if TYPE_CHECKING:
    from keras_vit import (
        data,
        evaluation,
        inspection,
        layers,
        models,
        recipes,
        self_supervision,
        serving,
        training,
        weights,
    )
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
    from keras_vit.configs import (
        VARIANTS,
        EfficientNetConfig,
        PlainViTConfig,
        ResNetConfig,
        RotaryConfig,
        ViTConfig,
    )
    from keras_vit.facts import Facts, Preprocessing, Provenance
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
    from keras_vit.models.backbone import feature_maps
    from keras_vit.models.efficientnet import efficientnet
    from keras_vit.models.plain import plain_vit
    from keras_vit.models.resnet import resnet
    from keras_vit.models.transfer import at_resolution, for_task
    from keras_vit.models.vision import VisionModel
    from keras_vit.models.vit import vit
    from keras_vit.serving import export
    from keras_vit.training import fit
    from keras_vit.weights import list_models, verify
else:
    __getattr__, __dir__ = names_of(
        __name__,
        applications="Axial_ResNet50 Axial_ViT_B16 Axial_ViT_B32 BiT_R101x1 BiT_R101x3 "
        "BiT_R152x1 BiT_R152x2 BiT_R152x4 BiT_R200x3 BiT_R50x1 BiT_R50x2 BiT_R50x3 "
        "R26_ViT_B32 R26_ViT_S32 R50_ViT_B16 R50_ViT_B32 R50_ViT_L16 R50_ViT_L32 "
        "R_ViT_Ti16 ViT_B16 ViT_B32 ViT_B8 ViT_H14 ViT_L16 ViT_L32 ViT_S16 ViT_S32 "
        "ViT_Ti16 decode_predictions from_checkpoint preprocess_input",
        configs="EfficientNetConfig PlainViTConfig ResNetConfig RotaryConfig VARIANTS "
        "ViTConfig",
        facts="Facts Preprocessing Provenance",
        layers="AddPositionEmbs ClassToken MAPHead MlpBlock PatchEmbedding "
        "SelfAttention StdConv2D TransformerBlock",
        models="VisionModel at_resolution efficientnet feature_maps for_task plain_vit "
        "resnet vit",
        serving="export",
        training="fit",
        weights="list_models verify",
    )

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
    "Facts",
    "MAPHead",
    "MlpBlock",
    "PatchEmbedding",
    "PlainViTConfig",
    "Preprocessing",
    "Provenance",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_B32",
    "R50_ViT_L16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "ResNetConfig",
    "RotaryConfig",
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
    "VisionModel",
    "__version__",
    "at_resolution",
    "data",
    "decode_predictions",
    "efficientnet",
    "evaluation",
    "export",
    "feature_maps",
    "fit",
    "for_task",
    "from_checkpoint",
    "inspection",
    "layers",
    "list_models",
    "models",
    "plain_vit",
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

# `import keras_vit` is enough to load a saved model: it registers our classes. The
# command line registers them when a command needs Keras (`cli.shell.import_keras`).
if "keras_vit_command" not in sys.modules:
    importlib.import_module("keras_vit._registered")
