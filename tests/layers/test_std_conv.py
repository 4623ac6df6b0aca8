"""Standardized convolutions against sums written out, and their gradients."""

import numpy as np
import pytest
from keras import ops

from keras_vit.layers import kernels
from keras_vit.layers.convolution import StdConv2D
from tests.layers import by_hand

SIZES = [
    pytest.param(size, strides, padding, id=f"{size}x{size}-{strides}-{padding}")
    for size in (1, 2, 3, 7)
    for strides in (1, 2)
    for padding in ("same", "symmetric")
    if size % 2 or padding == "same"
]


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize(("size", "strides", "padding"), SIZES)
@pytest.mark.parametrize("training", [False, True])
def test_sums_by_hand(size, strides, padding, training, agree):
    layer, x = StdConv2D(6, size, strides, padding), images(2, 5, 8, 4)
    y = ops.convert_to_numpy(layer(x, training=training))
    expected = np.stack([by_hand.convolve(image, layer) for image in x.astype(float)])
    assert layer.compute_output_shape(x.shape) == y.shape
    agree("standardized convolution", y, expected, 1e-4)


@pytest.mark.parametrize(("size", "strides", "padding"), SIZES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_which_convolutions_have_their_own_gradient(size, strides, padding, dtype):
    layer = StdConv2D(6, size, strides, padding, dtype=dtype)
    odd, wide = size % 2 == 1, dtype in ("float32", "float64")
    assert layer.keeps_shape() == (strides == 1 and odd and wide)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(("size", "strides", "padding"), SIZES)
@pytest.mark.parametrize("known", [True, False])
def test_gradients_are_tensorflows(size, strides, padding, known, monkeypatch, agree):
    """In float64, so that only a wrong formula differs; also without known sides."""
    import tensorflow as tf

    layer = StdConv2D(6, size, strides, padding, dtype="float64")
    x = tf.constant(images(2, 5, 8, 4), tf.float64)
    upstream = tf.constant(images(*layer(x).shape, seed=1), tf.float64)
    spec = tf.TensorSpec(x.shape if known else (None, None, None, 4), tf.float64)

    def gradients(training):
        @tf.function(input_signature=[spec])
        def compute(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(upstream * layer(x, training=training))
            return loss, *tape.gradient(loss, [x, layer.kernel.value])

        return compute(x)

    ours = gradients(training=True)
    monkeypatch.setattr(kernels, "on_cpu", lambda *backends: False)
    for own, derived in zip(ours, gradients(training=True), strict=True):
        agree("gradients of standardized convolutions", own, derived, 1e-11)
