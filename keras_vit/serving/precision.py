"""A model in the numbers that it is served in: float32, or int8."""

import dataclasses
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras

from keras_vit.layers.embeddings import Composite, check_unadapted, quantized


def in_float32(model: keras.Model) -> keras.Model:
    """The model itself, or one that computes in float32 what it was trained to.

    Of mixed precision the float32 weights are taken; LoRA is merged into the kernels,
    as Keras does where it saves. A quantized model is left as it is.
    """
    lora = any(getattr(at, "lora_enabled", False) for at in _layers(model.layers))
    policies = {at.dtype_policy.name for at in model.layers}
    if quantized(model) or (policies <= {"float32"} and not lora):
        return model

    def plain(layer: keras.layers.Layer) -> keras.layers.Layer:
        config: dict[str, Any] = layer.get_config()
        if isinstance(layer, keras.layers.Layer):  # And no bare operation.
            config["dtype"] = "float32"
        config.pop("lora_rank", None)
        return layer.__class__.from_config(config)

    copy = keras.models.clone_model(model, clone_function=plain)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "merged.weights.h5")
        model.save_weights(file)
        copy.load_weights(file)
    return copy


def _layers(layers: list[keras.layers.Layer]) -> list[keras.layers.Layer]:
    """Layers and the projections inside them."""
    return [
        inner
        for layer in layers
        for inner in (layer.projections() if isinstance(layer, Composite) else [layer])
    ]


@dataclasses.dataclass(frozen=True)
class Quantized:
    """What `quantize` did: `parameters` of the model's `total` are int8 now."""

    parameters: int
    total: int

    def __str__(self) -> str:
        return (
            f"int8: {self.parameters:,} of {self.total:,} parameters "
            f"({self.parameters / self.total:.0%})"
        )


def quantize(model: keras.Model) -> Quantized:
    """Puts a model's Dense kernels in int8, in place, by `model.quantize("int8")`.

    That is every matrix of the Transformer and the head; images' patches, the
    convolutions of hybrids and ResNets, positions and norms stay as they are.

    Raises:
        ValueError: if the model has LoRA or is quantized.
    """
    check_unadapted(model, "save it and load it without, then quantize")
    total = model.count_params()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize("int8")
    kernels = [
        layer.kernel for layer in _layers(model.layers) if layer.quantization_mode
    ]
    return Quantized(sum(math.prod(kernel.shape) for kernel in kernels), total)
