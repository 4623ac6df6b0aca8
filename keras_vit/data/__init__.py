"""Images in: sources, preprocessing, batches."""

from keras_vit.data.sources import Source, open_source

__all__ = ["Source", "open_source"]
