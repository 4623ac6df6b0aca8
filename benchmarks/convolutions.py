"""Group normalization and convolutions of BiT in training, compared with Keras's.

    python benchmarks/convolutions.py [--batch 8] [--rounds 5]

Prints milliseconds on TensorFlow: Keras's GroupNormalization and ours, both with ReLU;
TensorFlow's gradient of a convolution's input and ours; and BiT-R50x1 with Keras's norm
and gradients and with ours. Both sides of a row take turns in one process; the figures
are minima of the rounds, as other work on the machine only adds to them.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.layers import convolution, kernels
from keras_vit.training.optim import MomentumSGD

MAPS = ((112, 64), (56, 256), (28, 512), (14, 1024), (7, 2048))  # Side, channels.
CONVOLUTIONS = (  # Side, channels, filters, size of the kernel.
    (56, 64, 256, 1),
    (14, 256, 1024, 1),
    (7, 512, 2048, 1),
    (56, 64, 64, 3),
    (14, 256, 256, 3),
    (7, 512, 512, 3),
)


def milliseconds(
    runs: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """Returns the minimum of each run; they take turns, after two calls of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(2 + rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if number >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: 1e3 * min(taken) for name, taken in times.items()}


def line(name: str, measured: Mapping[str, float]) -> str:
    """Returns a row of the table."""
    theirs, ours = measured.values()
    return f"{name:38} {theirs:10.1f} {ours:10.1f} {theirs / ours:8.2f}"


def keras_norm(layer: Any, x: Any, training: bool | None = None) -> Any:
    """Keras's group normalization with the weights of ours."""
    theirs = keras.layers.GroupNormalization(layer.groups, epsilon=layer.epsilon)
    theirs.gamma, theirs.beta = layer.gamma, layer.beta
    return theirs.call(x)


def norms(batch: int, rounds: int) -> None:
    """Prints the rows of group normalization."""
    for side, channels in MAPS:
        x, dy = (tf.random.normal((batch, side, side, channels)) for _ in range(2))
        layer = convolution.GroupNorm()
        layer.build(x.shape)

        def forward(call: Any, x: Any = x, layer: Any = layer) -> Any:
            return tf.nn.relu(call(layer, x, training=True))

        def update(call: Any, x: Any = x, dy: Any = dy, layer: Any = layer) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.nn.relu(call(layer, x, training=True))
            return tape.gradient(y, [x, layer.gamma.value, layer.beta.value], dy)

        for what, step in (("forward", forward), ("and gradient", update)):
            runs = {
                name: tf.function(lambda step=step, call=call: step(call))
                for name, call in (
                    ("Keras", keras_norm),
                    ("ours", convolution.GroupNorm.call),
                )
            }
            shape = f"norm [{batch}, {side}, {side}, {channels}]"
            print(line(f"{shape} {what}", milliseconds(runs, rounds)), flush=True)


def gradients(batch: int, rounds: int) -> None:
    """Prints the rows of the gradient of a convolution's input."""
    for side, channels, filters, size in CONVOLUTIONS:
        x = tf.random.normal((batch, side, side, channels))
        kernel = tf.random.normal((size, size, channels, filters))
        dy = tf.random.normal((batch, side, side, filters))
        theirs = tf.function(
            lambda x, kernel, dy: tf.raw_ops.Conv2DBackpropInput(
                input_sizes=x.shape,
                filter=kernel,
                out_backprop=dy,
                strides=[1, 1, 1, 1],
                padding="SAME",
            )
        )
        ours = tf.function(  # TensorFlow leaves out the unused gradient.
            lambda x, kernel, dy: convolution.centered_gradient(dy, x, kernel)[0]
        )
        runs = {
            name: lambda run=run, given=(x, kernel, dy): run(*given)
            for name, run in (("TensorFlow", theirs), ("ours", ours))
        }
        name = f"dx {size}x{size} {side} px, {channels} to {filters}"
        print(line(name, milliseconds(runs, rounds)), flush=True)


def whole(batch: int, rounds: int) -> None:
    """Prints the rows of BiT-R50x1."""
    images = np.random.default_rng(0).uniform(-1, 1, (batch, 224, 224, 3))
    images, labels = images.astype("float32"), np.arange(batch)
    models = {}
    for name in ("Keras", "ours"):
        models[name] = keras_vit.BiT_R50x1(weights=None, classifier_activation=None)
        models[name].compile(
            MomentumSGD(0.01, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    with (
        mock.patch.object(convolution.GroupNorm, "call", keras_norm),
        mock.patch.object(kernels, "on_cpu", return_value=False),
    ):
        models["Keras"].predict_on_batch(images)  # Traces, and so does the next.
        models["Keras"].train_on_batch(images, labels)
    for what in ("forward", "update"):
        runs = {
            name: lambda model=model, what=what: (
                model.predict_on_batch(images)
                if what == "forward"
                else model.train_on_batch(images, labels)
            )
            for name, model in models.items()
        }
        name = f"BiT-R50x1, {batch} images, {what}"
        print(line(name, milliseconds(runs, rounds)), flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8, help="default 8")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    options = parser.parse_args()
    print(f"{'milliseconds':38} {'Keras':>10} {'ours':>10} {'times':>8}")
    for rows in (norms, gradients, whole):
        rows(options.batch, options.rounds)


if __name__ == "__main__":
    main()
