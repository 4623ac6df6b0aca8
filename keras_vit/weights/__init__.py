"""Checkpoints: find, download, verify, load, save."""

from keras_vit.weights.checkpoint import Report, load
from keras_vit.weights.config_json import config_beside
from keras_vit.weights.download import DownloadError, fetch
from keras_vit.weights.efficientnet import load_efficientnet
from keras_vit.weights.verification import verify
from keras_vit.weights.writing import save

__all__ = [
    "DownloadError",
    "Report",
    "config_beside",
    "fetch",
    "load",
    "load_efficientnet",
    "save",
    "verify",
]
