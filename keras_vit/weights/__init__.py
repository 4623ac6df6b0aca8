"""Checkpoints: find, download, verify, load, save."""

from typing import TYPE_CHECKING

from keras_vit._lazy import names_of

if TYPE_CHECKING:
    from keras_vit.weights.catalog import list_models
    from keras_vit.weights.checkpoint import Report, load
    from keras_vit.weights.config_json import config_beside
    from keras_vit.weights.download import fetch
    from keras_vit.weights.efficientnet import load_efficientnet
    from keras_vit.weights.mirrors import DownloadError
    from keras_vit.weights.pushing import push
    from keras_vit.weights.verification import verify
    from keras_vit.weights.writing import save
else:
    __getattr__, __dir__ = names_of(
        __name__,
        catalog="list_models",
        checkpoint="Report load",
        config_json="config_beside",
        download="fetch",
        efficientnet="load_efficientnet",
        mirrors="DownloadError",
        pushing="push",
        verification="verify",
        writing="save",
    )

__all__ = [
    "DownloadError",
    "Report",
    "config_beside",
    "fetch",
    "list_models",
    "load",
    "load_efficientnet",
    "push",
    "save",
    "verify",
]
