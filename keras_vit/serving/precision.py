"""Convert a model to the precision in which it is served: float32, int8 or int4."""

import dataclasses
import math
import warnings
from typing import Any, Literal

import keras

from keras_vit import arguments
from keras_vit.arguments import percent
from keras_vit.layers.embeddings import (
    check_unadapted,
    everything_in,
    projections_of,
    quantized,
    quick_collections,
)
from keras_vit.models.transfer import merge_lora

__all__ = ["Quantized", "in_policy", "quantize"]

# A logit error changes a score p by at most p (1 - p) <= 1/4 of it, so this allows 0.8.
# Correct int8 files differed by 0.05 (240 photos, a ViT-S/14), a broken one by 0.28.
INT8 = 0.2


def in_float32(model: keras.Model) -> keras.Model:
    """Returns a model that computes in float32, or the model itself if it does already.

    A model in mixed precision keeps its float32 weights, and LoRA is merged. A
    quantized model is returned unchanged.
    """
    if quantized(model):
        return model
    model = merge_lora(model)
    if {layer.dtype_policy.name for layer in everything_in(model)} <= {"float32"}:
        return model
    return in_policy(model, "float32")


def in_policy(model: keras.Model, policy: str) -> keras.Model:
    """Returns a copy of a model with its weights in a different Keras dtype policy.

    Args:
        model: a model of this library.
        policy: see `keras.dtype_policies.get`, such as "float32" or "mixed_bfloat16".

    Returns:
        The copy.
    """

    def like(layer: keras.layers.Layer) -> keras.layers.Layer:
        if isinstance(layer, keras.Model):  # Its own policy is not its layers'.
            return keras.models.clone_model(layer, clone_function=like)
        config: dict[str, Any] = layer.get_config()
        if isinstance(layer, keras.layers.Layer):  # Not an operation.
            config["dtype"] = policy
        return layer.__class__.from_config(config)

    copy = keras.models.clone_model(model, clone_function=like)
    copy.set_weights(model.get_weights())
    return copy


@dataclasses.dataclass(frozen=True)
class Quantized:
    """The result of `quantize`.

    Attributes:
        parameters: number of parameters that are now quantized.
        total: number of parameters of the model.
        mode: "int8" or "int4".
    """

    parameters: int
    total: int
    mode: str = "int8"

    def __str__(self) -> str:
        return (
            f"{self.mode}: {self.parameters:,} of {self.total:,} parameters "
            f"({percent(self.parameters / self.total, 0)})"
        )


def quantize(model: keras.Model, mode: Literal["int8", "int4"] = "int8") -> Quantized:
    """Quantizes a model's Dense kernels in place, with Keras's `quantize`.

    These are all matrices of the Transformer and the head. The patch embedding, the
    convolutions of hybrids and ResNets, positions and norms are not changed.

    Args:
        model: a model of this library.
        mode: "int8": one scale for each output, and products of integers; or "int4":
            half the size, one scale and offset for each output and 128 inputs, and
            products of floats.

    Returns:
        A `Quantized`, with the number of quantized parameters.

    Raises:
        ValueError: if the model has LoRA or is already quantized, or for another mode.
    """
    arguments.choice("mode", mode, ("int8", "int4"))
    check_unadapted(model, "save it and load it without, then quantize")
    total = model.count_params()
    with warnings.catch_warnings(), quick_collections():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize(mode)
    kernels = [at.kernel for at in projections_of(model) if at.quantization_mode]
    return Quantized(sum(math.prod(at.shape) for at in kernels), total, mode)
