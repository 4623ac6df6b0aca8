"""Fine-tuning: the recipe's optimizer, and `fit`."""

from typing import Any

from keras_vit.training import optim

__all__ = ["fit", "optim"]


def __getattr__(name: str) -> Any:
    """`fit` on first use: it imports TensorFlow, which saved optimizers do not need."""
    if name == "fit":
        from keras_vit.training.fitting import fit

        return fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
