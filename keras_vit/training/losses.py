"""The losses of the official code, in float32, for labels of any kind.

Labels are integers [B] or [B, 1], or one number for each class [B, K]: one-hot, mixed
(mixup, CutMix) or several at once (ImageNet-21k, JFT).
"""

from typing import Any

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.kernels import wide

__all__ = ["SigmoidCrossEntropy", "SoftmaxCrossEntropy"]

register = keras.saving.register_keras_serializable(package="keras_vit")


@register
class SigmoidCrossEntropy(keras.losses.Loss):
    """Summed over the classes, then averaged over the batch (big_vision, utils.py).

    Of labels [B], [B, 1] or [B, K] and logits [B, K], a scalar.
    `keras.losses.BinaryCrossentropy` takes the mean over the classes, which makes
    gradients K times smaller, and with them the clipping another.

    Args:
        name: name of the loss.
        **kwargs: see `keras.losses.Loss`.
    """

    def __init__(self, name: str = "sigmoid_cross_entropy", **kwargs: Any) -> None:
        super().__init__(name=name, **({"dtype": wide()} | kwargs))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_true = _by_class(y_true, y_pred)
        return ops.sum(ops.softplus(y_pred) - y_true * y_pred, axis=-1)


@register
class SoftmaxCrossEntropy(keras.losses.Loss):
    """- sum of labels times log softmax, averaged over the batch (vit_jax/train.py).

    Of labels [B], [B, 1] or [B, K] and logits [B, K], a scalar. The gradient is this
    sum's for labels that do not add up to 1 as well, where that of TensorFlow's own
    operation is not.

    Args:
        label_smoothing: s in [0, 1); the labels become (1 - s) * labels + s / K.
        name: name of the loss.
        **kwargs: see `keras.losses.Loss`.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        name: str = "softmax_cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **({"dtype": wide()} | kwargs))
        self.label_smoothing = arguments.rate("label_smoothing", label_smoothing)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_true = _by_class(y_true, y_pred)
        if self.label_smoothing:
            rest = self.label_smoothing / y_pred.shape[-1]
            y_true = (1 - self.label_smoothing) * y_true + rest
        return -ops.sum(y_true * ops.log_softmax(y_pred, axis=-1), axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def _by_class(labels: Any, logits: Any) -> Any:
    """Labels as one number for each class: [B], [B, 1] or [B, K] -> [B, K]."""
    classes = logits.shape[-1]
    if len(labels.shape) == len(logits.shape) and labels.shape[-1] == classes:
        return labels
    if len(labels.shape) == len(logits.shape):
        labels = ops.squeeze(labels, -1)
    return ops.one_hot(ops.cast(labels, "int32"), classes, dtype=logits.dtype)
