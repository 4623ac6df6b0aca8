"""Training: `fit`, the paper's `transfer`, optimizers, and distribution strategies."""

from typing import TYPE_CHECKING

from keras_vit._lazy import names_of

if TYPE_CHECKING:
    from keras_vit.training import optim
    from keras_vit.training.distribution import strategy
    from keras_vit.training.fitting import fit
    from keras_vit.training.transferring import transfer
else:
    __getattr__, __dir__ = names_of(
        __name__,
        distribution="strategy",
        fitting="fit",
        transferring="transfer",
    )

__all__ = [
    "fit",
    "optim",
    "strategy",
    "transfer",
]
