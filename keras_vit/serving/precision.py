"""A model in the numbers that it is served in: float32, or int8.

Int8 is Keras's.
"""

import dataclasses
import math
import warnings
from typing import Any

import keras

from keras_vit.layers.embeddings import check_unadapted, projections_of, quantized
from keras_vit.models.transfer import merge_lora

__all__ = ["Quantized", "in_policy", "quantize"]

# A score p moves by p (1 - p) <= 1/4 of an error in logits: this is one of 0.8. Sound
# int8 files were 0.05 off (240 photos of a ViT-S/14), a broken one 0.28.
INT8 = 0.2


def in_float32(model: keras.Model) -> keras.Model:
    """The model itself, or one that computes in float32 what it was trained to.

    Of mixed precision the float32 weights are taken, and LoRA is merged. A quantized
    model is left as it is.
    """
    if quantized(model):
        return model
    model = merge_lora(model)
    if {layer.dtype_policy.name for layer in model.layers} <= {"float32"}:
        return model
    return in_policy(model, "float32")


def in_policy(model: keras.Model, policy: str) -> keras.Model:
    """A copy of a model with its weights in another of Keras's dtype policies.

    Args:
        model: a model of this library.
        policy: see `keras.dtype_policies.get`: "float32", "mixed_bfloat16".

    Returns:
        The copy.
    """

    def like(layer: keras.layers.Layer) -> keras.layers.Layer:
        config: dict[str, Any] = layer.get_config()
        if isinstance(layer, keras.layers.Layer):  # And no bare operation.
            config["dtype"] = policy
        return layer.__class__.from_config(config)

    copy = keras.models.clone_model(model, clone_function=like)
    copy.set_weights(model.get_weights())
    return copy


@dataclasses.dataclass(frozen=True)
class Quantized:
    """What `quantize` did.

    Attributes:
        parameters: how many are int8 now.
        total: how many the model has.
    """

    parameters: int
    total: int

    def __str__(self) -> str:
        return (
            f"int8: {self.parameters:,} of {self.total:,} parameters "
            f"({self.parameters / self.total:.0%})"
        )


def quantize(model: keras.Model) -> Quantized:
    """Puts a model's Dense kernels in int8, in place.

    Keras's `model.quantize("int8")` does it.

    That is every matrix of the Transformer and the head; images' patches, the
    convolutions of hybrids and ResNets, positions and norms stay as they are.

    Args:
        model: a model of this library.

    Returns:
        A `Quantized`, with how many parameters that was of.

    Raises:
        ValueError: if the model has LoRA or is quantized.
    """
    check_unadapted(model, "save it and load it without, then quantize")
    total = model.count_params()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize("int8")
    kernels = [at.kernel for at in projections_of(model) if at.quantization_mode]
    return Quantized(sum(math.prod(kernel.shape) for kernel in kernels), total)
