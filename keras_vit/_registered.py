"""Imports every module that registers classes with Keras.

`keras.saving.load_model` finds only registered classes and does not import our modules.
"""

from keras_vit import layers, models, self_supervision
from keras_vit.training import losses, optim

__all__ = ["layers", "losses", "models", "optim", "self_supervision"]
