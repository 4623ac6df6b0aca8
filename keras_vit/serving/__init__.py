"""From a trained model to what production runs."""

from keras_vit.serving.savedmodel import Exported, export

__all__ = ["Exported", "export"]
