"""Export, serve and quantize trained models, and query servers."""

from typing import TYPE_CHECKING

from keras_vit._lazy import names_of

if TYPE_CHECKING:
    from keras_vit.serving.client import Client, Prediction, ServerError
    from keras_vit.serving.exported_file import ExportedModel
    from keras_vit.serving.formats import ExportedFile, export_file
    from keras_vit.serving.precision import quantize
    from keras_vit.serving.savedmodel import Exported, export, read_facts
else:
    __getattr__, __dir__ = names_of(
        __name__,
        client="Client Prediction ServerError",
        exported_file="ExportedModel",
        formats="ExportedFile export_file",
        precision="quantize",
        savedmodel="Exported export read_facts",
    )

__all__ = [
    "Client",
    "Exported",
    "ExportedFile",
    "ExportedModel",
    "Prediction",
    "ServerError",
    "export",
    "export_file",
    "quantize",
    "read_facts",
]
