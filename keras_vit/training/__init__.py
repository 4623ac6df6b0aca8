"""Training: `fit`, the paper's `transfer`, optimizers, the devices by one word."""

import importlib
from typing import Any

from keras_vit.training import optim

__all__ = ["fit", "optim", "strategy", "transfer"]
_ON_FIRST_USE = {
    "fit": "fitting",
    "strategy": "distribution",
    "transfer": "transferring",
}


def __getattr__(name: str) -> Any:
    """What imports TensorFlow comes on first use: saved optimizers do not need it."""
    if name in _ON_FIRST_USE:
        module = importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
