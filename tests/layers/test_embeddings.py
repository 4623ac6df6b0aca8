"""Equation 1: patches and the class token, by hand."""

import keras
import numpy as np
import pytest

from keras_vit.layers.embeddings import ClassToken, PatchEmbedding
from tests.layers import by_hand


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("size", [(8, 12), (12, 4), (4, 4)])
def test_patches_are_projected_row_by_row(size):
    layer, images = PatchEmbedding(6, 4), normal(2, *size, 3)
    layer.build(images.shape)
    by_hand.randomize(layer)
    expected = [by_hand.patches(image, layer) for image in images]
    np.testing.assert_allclose(numpy(layer(images)), expected, atol=1e-5)
    assert layer.compute_output_shape(images.shape) == np.shape(expected)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("crop", [False, True])
def test_sizes_that_are_known_only_at_run_time(crop):
    import tensorflow as tf

    layer = PatchEmbedding(6, 4, crop)
    layer.build((None, None, None, 3))
    by_hand.randomize(layer)
    any_size = tf.TensorSpec((None, None, None, 3))
    traced = tf.function(layer.call, input_signature=[any_size])
    for size in [(8, 12), (12, 4), (4, 4), (11, 6), (3, 8), (8, 2)]:
        images = normal(2, *size, 3)
        if min(size) < 4 or ((size[0] % 4 or size[1] % 4) and not crop):
            with pytest.raises(tf.errors.InvalidArgumentError, match="multiples of pa"):
                traced(images)
            continue
        expected = [by_hand.patches(image, layer) for image in images]
        np.testing.assert_allclose(traced(images), expected, atol=1e-5)


def test_class_tokens_precede_the_patches():
    patches = normal(2, 3, 4)
    one, three = ClassToken(), ClassToken(3)
    np.testing.assert_array_equal(
        numpy(one(patches)), np.pad(patches, ((0, 0), (1, 0), (0, 0)))
    )
    three.build(patches.shape)
    by_hand.randomize(three)
    found = numpy(three(patches))
    np.testing.assert_array_equal(found[:, 3:], patches)
    for row in found:
        np.testing.assert_array_equal(row[:3], by_hand.values(three.cls)[0])
    assert three.compute_output_shape((None, 3, 4)) == (None, 6, 4)
