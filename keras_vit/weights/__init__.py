"""Checkpoints: find, download, verify, load, save."""

from keras_vit.weights.checkpoint import Report, config_beside, load, save
from keras_vit.weights.download import DownloadError, fetch

__all__ = ["DownloadError", "Report", "config_beside", "fetch", "load", "save"]
