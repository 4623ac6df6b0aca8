"""Checkpoints: find, download, verify, load, save."""

from keras_vit.weights.checkpoint import Report, load, save
from keras_vit.weights.download import DownloadError, fetch

__all__ = ["DownloadError", "Report", "fetch", "load", "save"]
