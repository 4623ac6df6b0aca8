"""Keras's quantizations of the weights to 8 and 4 bits: size, speed and accuracy.

    python benchmarks/weight_bits.py ViT-L/16 --weights none
    python benchmarks/weight_bits.py runs/photos --data photos
    python benchmarks/weight_bits.py ViT-H/14 --weights none --only int8 int4

The kernels of the encoder's blocks are quantized, nearly all parameters of a large
model. "int4" has a scale for each output and 128 inputs, "int4 per output" one for each
output. AWQ and GPTQ, in the same groups, fit the 4 bits to the activations of
`--samples` images: training images of `--data`, or noise. Keras has them for language
models: here an image's index replaces a token, and the embedded patches a sequence.
Keras up to 3.15.1 never reads the activations (github.com/keras-team/keras/pull/23512),
so that both round to nearest; here they are read.
Prints the seconds of each quantization first, then the tables of
`benchmarks/formats.py`, in which MiB counts the weights in memory.
"""

import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import formats
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

BLOCK = "encoderblock_"
Config = Callable[[Any], Any]  # From the model to Keras's config, or None.


def quantizations(calibration: np.ndarray) -> dict[str, tuple[str, Config]]:
    """Returns the mode and config of each quantization; `calibration` is scaled."""
    import keras
    from keras import quantizers

    def calibrated(method: type, model: Any) -> Any:
        blocks = [layer for layer in model.layers if layer.name.startswith(BLOCK)]
        embedding = keras.Model(model.inputs, blocks[0].input)
        tokens = embedding.predict(calibration, verbose=0)
        return method(
            dataset=[np.arange(len(tokens))],
            tokenizer=np.asarray,  # Required, but not called for numbers.
            num_samples=len(tokens),
            sequence_length=1,
            quantization_layer_structure={
                "pre_block_layers": [lambda index: tokens[int(index[0, 0])][None]],
                "sequential_blocks": blocks,
            },
        )

    per_output = quantizers.Int4QuantizationConfig(block_size=None)
    return {
        "int8": ("int8", lambda model: None),
        "int4": ("int4", lambda model: None),
        "int4 per output": ("int4", lambda model: per_output),
        "AWQ": ("awq", lambda model: calibrated(quantizers.AWQConfig, model)),
        "GPTQ": ("gptq", lambda model: calibrated(quantizers.GPTQConfig, model)),
    }


def quantized(model: Any, mode: str, config: Config) -> Any:
    """Returns a quantized copy of a model."""
    import keras

    from keras_vit.layers.embeddings import quick_collections
    from keras_vit.serving.precision import in_policy

    def in_a_block(layer: Any) -> bool:
        return isinstance(layer, keras.layers.Dense) and BLOCK in layer.path

    copy = in_policy(model, "float32")
    layers = [layer for layer in copy._flatten_layers() if in_a_block(layer)]
    for layer in layers:  # Keras replaces `call`, which a quantized layer does not use.
        layer.call = layer.quantized_call
        layer.quantized_call = functools.partial(_call, layer)
    with warnings.catch_warnings(), quick_collections():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        copy.quantize(mode, config=config(copy), filters=in_a_block)
    for layer in layers:
        del layer.call, layer.quantized_call
    return copy


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the attribute of that name, which is replaced during calibration."""
    return layer.call(*args, **kwargs)


def calibration_images(options: Any, model: Any, details: dict[str, Any]) -> np.ndarray:
    """Returns training images of `--data`, or noise, in the model's preprocessing."""
    from keras_vit.cli import exporting
    from keras_vit.data.sources import open_source
    from keras_vit.evaluation.classification import task_of
    from keras_vit.models.vision import preprocessing_of

    if options.data is None:
        size = (options.samples, *model.input_shape[1:])
        return np.random.default_rng(1).uniform(-1, 1, size).astype(np.float32)
    source = open_source(options.data, seed=details.get("seed", 0))
    trained = dataclasses.replace(task_of(source), split=source.train)
    images = exporting._some(trained, model, options.samples)
    scaling = preprocessing_of(model).for_channels(model.input_shape[-1])
    mean, std = np.array(scaling.mean, np.float32), np.array(scaling.std, np.float32)
    scaled: np.ndarray = (images * np.float32(1 / 255) - mean) / std
    return scaled


def main() -> None:
    """Prints the tables."""
    parser = formats.arguments()
    parser.description = (__doc__ or "").splitlines()[0]
    parser.add_argument("--samples", type=int, default=32, help="default 32")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="default: all")
    options = parser.parse_args()
    from keras_vit.serving.fastest import REFERENCE, by_keras

    model, details = formats.opened(options)
    images, labels = formats.test_images(options, model, details)
    known = quantizations(calibration_images(options, model, details))
    table = {REFERENCE: by_keras(model)}
    for name in options.only or known:
        mode, config = known[name]
        started = time.perf_counter()
        copy = quantized(model, mode, config)
        print(f"\n{name}: {time.perf_counter() - started:.0f} s to quantize")
        table[name] = by_keras(copy, name)
    scores = formats.measured(table, images, options)
    print(f"{options.model}, batches of {options.batch_size} and of one")
    formats.print_speeds(table)
    if labels is not None:
        formats.print_accuracies(scores, labels)


if __name__ == "__main__":
    main()
