"""Data sources, preprocessing and input pipelines."""

from keras_vit.data.source import Source
from keras_vit.data.sources import open_source
from keras_vit.data.splits import Arrays

__all__ = ["Arrays", "Source", "open_source"]
