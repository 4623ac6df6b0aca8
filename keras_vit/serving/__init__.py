"""From a trained model to what production runs."""

from keras_vit.serving.client import Client, Prediction, ServerError
from keras_vit.serving.savedmodel import Exported, export

__all__ = ["Client", "Exported", "Prediction", "ServerError", "export"]
