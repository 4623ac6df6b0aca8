"""Deprecated: the name that `keras_vit.training.callbacks` had in 0.1."""

from keras_vit.callers import warn
from keras_vit.training.callbacks import FOLDER, read

__all__ = ["FOLDER", "read"]

warn(
    "keras_vit.training.watching is now called keras_vit.training.callbacks",
    DeprecationWarning,
)
