"""The models of sections 3.1 and 4.1 and the transfer of section 3.2."""

from keras_vit.models.resnet import resnet
from keras_vit.models.transfer import at_resolution, for_task
from keras_vit.models.vit import vit

__all__ = ["at_resolution", "for_task", "resnet", "vit"]
