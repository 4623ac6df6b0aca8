"""The models of sections 3.1, 4.1 and Table 2, and the transfer of section 3.2."""

from keras_vit.models.backbone import feature_maps
from keras_vit.models.efficientnet import efficientnet
from keras_vit.models.plain import plain_vit
from keras_vit.models.resnet import resnet
from keras_vit.models.transfer import at_resolution, for_task
from keras_vit.models.vision import VisionModel
from keras_vit.models.vit import vit

__all__ = [
    "VisionModel",
    "at_resolution",
    "efficientnet",
    "feature_maps",
    "for_task",
    "plain_vit",
    "resnet",
    "vit",
]
