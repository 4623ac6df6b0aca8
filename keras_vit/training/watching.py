"""Deprecated: the name that `keras_vit.training.callbacks` had in 0.1."""

import warnings

from keras_vit.training.callbacks import FOLDER, read

__all__ = ["FOLDER", "read"]

warnings.warn(
    "keras_vit.training.watching is now called keras_vit.training.callbacks",
    DeprecationWarning,
    stacklevel=2,
)
