"""Fine-tuning: the recipe's optimizer, and `fit`."""

from keras_vit.training import optim
from keras_vit.training.fitting import fit

__all__ = ["fit", "optim"]
