"""Rematerialization: the same training, of which the gradient computes blocks twice."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import TransformerBlock
from tests.programs import nodes_of

IMAGES = np.random.default_rng(0).normal(size=(6, 16, 16, 3)).astype(np.float32)


def trained(remat, steps=3, **options):
    """The losses and variables of a model whose every kind of dropout is on."""
    keras.utils.set_random_seed(5)
    config = keras_vit.ViTConfig(
        **{
            "patch_size": 4,
            "num_layers": 3,
            "hidden_size": 16,
            "mlp_dim": 32,
            "num_heads": 2,
            "dropout_rate": 0.3,
            "attention_dropout_rate": 0.1,
            "stochastic_depth_rate": 0.2,
        }
        | options
    )
    model = keras_vit.vit(config, image_size=(16, 16), num_classes=3)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(1).normal(size=head.kernel.shape))
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            layer.remat = remat
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    losses = [
        float(model.train_on_batch(IMAGES, np.arange(6) % 3)) for _ in range(steps)
    ]
    return losses, {v.path: keras.ops.convert_to_numpy(v) for v in model.variables}


def assert_same(one, other):
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    for (path, a), b in zip(one[1].items(), other[1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=path)


def test_the_same_units_are_dropped_both_times():
    assert_same(trained(True), trained(False))


def test_under_mixed_precision_it_is_as_exact_as_without():
    off = dict.fromkeys(
        ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"), 0.0
    )
    exact = trained(False, 1, **off)
    assert_same(trained(True, 1, **off), exact)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        found = [trained(remat, 1, **off) for remat in (True, False)]
    finally:
        keras.config.set_dtype_policy("float32")
    ours, plain = (
        sum(
            np.abs(a - b).sum()
            for a, b in zip(x[1].values(), exact[1].values(), strict=True)
        )
        for x in found
    )
    assert 0 < ours < 1.5 * plain


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("remat", [False, True])
def test_blocks_are_computed_twice(remat):
    tf = pytest.importorskip("tensorflow")
    block = TransformerBlock(2, 16)
    block.build((None, 5, 8))
    block.remat = remat

    @tf.function
    def gradient(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            y = tf.reduce_sum(block(z, training=True) ** 2)
        return tape.gradient(y, z)

    graph = gradient.get_concrete_function(tf.TensorSpec((1, 5, 8))).graph
    softmaxes = [node for node in nodes_of(graph) if node.op == "Softmax"]
    assert len(softmaxes) == 2 + remat  # P is not kept for the gradient in any case.


def test_inference_computes_them_once():
    block = TransformerBlock(2, 16, dropout_rate=0.5)
    block.build((None, 5, 8))
    z = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    plain = keras.ops.convert_to_numpy(block(z))
    block.remat = True
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(block(z)), plain)
