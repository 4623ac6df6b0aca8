"""The models of section 3.1, the transfer of 3.2, and Table 2's other system."""

from keras_vit.models.efficientnet import efficientnet
from keras_vit.models.transfer import at_resolution, for_task
from keras_vit.models.vit import vit

__all__ = ["at_resolution", "efficientnet", "for_task", "vit"]
