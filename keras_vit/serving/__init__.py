"""From a trained model to what production runs."""

from keras_vit.serving.formats import ExportedFile, export_file
from keras_vit.serving.precision import quantize
from keras_vit.serving.savedmodel import Exported, export

__all__ = ["Exported", "ExportedFile", "export", "export_file", "quantize"]
