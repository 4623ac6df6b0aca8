"""Group normalization against the sums written out, and its gradient in float64."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.convolution import GroupNorm
from tests.layers import by_hand


def layer_of(channels, **options):
    """A built layer with random gamma and beta."""
    layer = GroupNorm(epsilon=1e-5, **options)
    layer.build((None, None, None, channels))
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(rng.normal(size=channels))
    return layer


def images(*shape, seed=0):
    """Far from 0, where E[x^2] - E[x]^2 would lose digits."""
    return np.random.default_rng(seed).normal(8, 0.5, shape).astype("float32")


@pytest.mark.parametrize("shape", [(2, 5, 7, 64), (3, 1, 1, 96), (1, 9, 4, 32)])
def test_statistics_by_hand(shape, agree):
    layer, x = layer_of(shape[-1]), images(*shape)
    expected = np.stack([by_hand.group_norm(image, layer) for image in x.astype(float)])
    agree("group norm", ops.convert_to_numpy(layer(x)), expected, 2e-5)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("shape", [(2, 5, 7, 64), (2, 3, 3, 32)])
@pytest.mark.parametrize("known", [True, False])
def test_the_written_out_gradient_is_that_of_keras(shape, known, agree):
    """In float64, so that only a wrong formula differs; also without known sides."""
    import tensorflow as tf

    x, upstream = (tf.constant(images(*shape, seed=s), tf.float64) for s in (0, 2))
    ours = layer_of(shape[-1], dtype="float64")
    keras_own = keras.layers.GroupNormalization(32, epsilon=1e-5, dtype="float64")
    keras_own.build(shape)
    for own, other in zip(keras_own.weights, ours.weights, strict=True):
        own.assign(other)
    spec = tf.TensorSpec(shape if known else (None, None, None, shape[-1]), tf.float64)

    def gradients(layer, **options):
        @tf.function(input_signature=[spec])
        def compute(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(upstream * layer(x, **options))
            sources = [x, *(weight.value for weight in layer.weights)]
            return loss, *tape.gradient(loss, sources)

        return compute.get_concrete_function(), compute(x)

    graph, found = gradients(ours, training=True)
    assert "CustomGradient" in str(graph.graph.as_graph_def())
    for own, expected in zip(found, gradients(keras_own)[1], strict=True):
        agree("written-out gradient of group norm", own, expected, 1e-9)


def test_float16_does_not_change_the_statistics():
    """49 pixels of about 300, with squares too large for float16."""
    layer = layer_of(32, dtype="mixed_float16")
    x = ops.cast(images(1, 7, 7, 32) * 37.5, "float16")
    y = ops.convert_to_numpy(layer(x))
    assert y.dtype == "float16"
    expected = by_hand.group_norm(np.asarray(ops.convert_to_numpy(x), float)[0], layer)
    np.testing.assert_allclose(y[0], expected, atol=5e-3)


def test_the_config_makes_the_same_layer():
    layer = GroupNorm(4, 1e-3, gamma_initializer="zeros", name="gn")
    again = GroupNorm.from_config(layer.get_config())
    again.build((None, 2, 2, 8))
    assert (again.groups, again.epsilon, again.name) == (4, 1e-3, "gn")
    assert not ops.convert_to_numpy(again.gamma).any()


def test_channels_that_do_not_divide():
    with pytest.raises(ValueError, match=r"multiple of groups=32 .*48 channels"):
        GroupNorm()(np.zeros((1, 2, 2, 48), "float32"))
