"""From a trained model to what production runs."""

from keras_vit.serving.client import Client, Prediction, ServerError
from keras_vit.serving.formats import ExportedFile, export_file
from keras_vit.serving.precision import quantize
from keras_vit.serving.savedmodel import Exported, export, read_facts

__all__ = [
    "Client",
    "Exported",
    "ExportedFile",
    "Prediction",
    "ServerError",
    "export",
    "export_file",
    "quantize",
    "read_facts",
]
