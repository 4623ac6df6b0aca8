"""Losses of the official code, in float32, for integer and multi-class labels.

Labels are integers [B] or [B, 1], or one number for each class [B, K]: one-hot, mixed
(mixup, CutMix) or multi-label (ImageNet-21k, JFT).
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
    """Sigmoid loss: sum over classes, mean over the batch (big_vision, utils.py).

    Labels [B], [B, 1] or [B, K] and logits [B, K] -> a scalar.
    `keras.losses.BinaryCrossentropy` averages over the classes. Its gradients are K
    times smaller, so clipping has a different effect.

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
    """-sum(labels * log_softmax(logits)), mean over the batch (vit_jax/train.py).

    Labels [B], [B, 1] or [B, K] and logits [B, K] -> a scalar. The gradient is also
    correct for labels that do not sum to 1, unlike that of TensorFlow's operation.

    Args:
        label_smoothing: s in [0, 1); labels are replaced by (1 - s) * labels + s / K.
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
    """Converts labels to one number for each class: [B], [B, 1], [B, K] -> [B, K]."""
    classes = logits.shape[-1]
    if len(labels.shape) == len(logits.shape) and labels.shape[-1] == classes:
        return labels
    if len(labels.shape) == len(logits.shape):
        labels = ops.squeeze(labels, -1)
    return ops.one_hot(ops.cast(labels, "int32"), classes, dtype=logits.dtype)
