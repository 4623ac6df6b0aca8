"""Imports every module that registers classes with Keras.

`keras.saving.load_model` finds registered classes only; it imports no modules of ours.
"""

from keras_vit import layers, models, self_supervision
from keras_vit.training import losses, optim

__all__ = ["layers", "losses", "models", "optim", "self_supervision"]
