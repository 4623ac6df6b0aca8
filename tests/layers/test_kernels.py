"""What the encoder computes with, against the same equations without it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import TransformerBlock, kernels
from keras_vit.training.optim import MomentumSGD

RNG = np.random.default_rng(0)


def heads(tokens):
    """q, k and v, [B, k, T, D_h]."""
    return [
        ops.convert_to_tensor(RNG.normal(size=(2, 3, tokens, 4)).astype("float32"))
        for _ in range(3)
    ]


@pytest.fixture
def short_parts(monkeypatch):
    """Parts of 4 rows from 8 tokens on."""
    monkeypatch.setattr(kernels, "LONG", 8)
    monkeypatch.setattr(kernels, "PART", 4)


@pytest.mark.parametrize("tokens", [8, 11, 12])
def test_attention_in_parts(tokens, short_parts, monkeypatch, agree):
    q, k, v = heads(tokens)
    in_parts = kernels.attend(q, k, v)
    monkeypatch.setattr(kernels, "LONG", 100)
    agree("attention in parts", in_parts, kernels.attend(q, k, v), 1e-6)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's gradient")
def test_gradients_of_parts_on_jax(short_parts, monkeypatch, agree):
    import jax

    def gradients():
        return jax.jit(
            jax.grad(lambda *qkv: (kernels.attend(*qkv) ** 2).sum(), argnums=(0, 1, 2))
        )(*qkv)

    qkv = heads(11)
    in_parts = gradients()
    monkeypatch.setattr(kernels, "LONG", 100)
    for ours, derived in zip(in_parts, gradients(), strict=True):
        agree("gradients of attention in parts", ours, derived, 1e-5)


def block_of(**options):
    block = TransformerBlock(2, 16, **options)
    block.build((None, 11, 8))
    for weight in block.weights:
        weight.assign(weight + RNG.normal(size=weight.shape, scale=0.3))
    return block


def loss_and_gradients(block, z):
    """Of a sum that weighs every output, in a graph."""
    import tensorflow as tf

    weights = tf.constant(np.random.default_rng(1).normal(size=z.shape), "float32")

    @tf.function
    def compute(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss = tf.reduce_sum(weights * block(z, training=True))
        sources = [z, *(weight.value for weight in block.trainable_variables)]
        return loss, tape.gradient(loss, sources)

    return compute, compute(z)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("gelu", ["tanh", "erf"])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("in_parts", [False, True])
def test_the_written_out_gradient(gelu, rank, in_parts, request, monkeypatch, agree):
    """`test_reference` holds it to the official code's gradients too."""
    import tensorflow as tf

    block = block_of(gelu=gelu)
    if rank:
        for layer in block.projections():
            layer.enable_lora(rank)
            layer.lora_kernel_b.assign(RNG.normal(size=layer.lora_kernel_b.shape))
    z = tf.constant(RNG.normal(size=(3, 11, 8)), "float32")
    if in_parts:
        request.getfixturevalue("short_parts")
    compute, (loss, gradients) = loss_and_gradients(block, z)
    assert "CustomGradient" in str(
        compute.get_concrete_function(z).graph.as_graph_def()
    )
    monkeypatch.setattr(kernels, "on_tensorflow_cpu", lambda: False)
    _, (derived_loss, derived) = loss_and_gradients(block, z)
    agree("written-out loss", loss, derived_loss, 1e-4)
    for ours, theirs in zip(gradients, derived, strict=True):
        scale = 1 + np.abs(theirs).max()
        agree("written-out gradients", ours / scale, theirs / scale, 1e-5)


@pytest.mark.tensorflow_only
def test_long_sequences_never_hold_p(short_parts):
    """No tensor of the update has a place for every query and every key."""
    import tensorflow as tf

    compute, _ = loss_and_gradients(block_of(), tf.zeros((3, 11, 8)))
    graph = compute.get_concrete_function(tf.TensorSpec((3, 11, 8))).graph
    shapes = {
        tuple(tensor.shape)
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if tensor.shape.rank
    }
    assert (3, 2, 4, 11) in shapes  # Four queries, all keys.
    assert not [shape for shape in shapes if shape[-2:] == (11, 11)]


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "options", [{"dropout_rate": 0.5}, {"stochastic_depth_rate": 0.5}]
)
def test_what_is_random_is_not_written_out(options):
    """Training draws; the written-out block would give the same twice."""
    block, z = block_of(**options), ops.ones((3, 11, 8))
    one, two = (ops.convert_to_numpy(block(z, training=True)) for _ in range(2))
    assert np.abs(one - two).max() > 1e-3


@pytest.mark.tensorflow_only
def test_the_optimizer_takes_one_pass():
    """The norm is taken once, and each variable's update is one operation."""
    import tensorflow as tf

    variables = [keras.Variable(np.ones(3, "float32")) for _ in range(4)]
    optimizer = MomentumSGD(0.1, global_clipnorm=1.0)
    optimizer.build(variables)

    @tf.function
    def update(gradient):
        optimizer.apply([gradient] * 4, variables)

    graph = update.get_concrete_function(tf.TensorSpec(3)).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceApplyMomentum") == kinds.count("Square") == 4
    update(tf.constant([2.0, 1.0, 2.0]))  # Of norm 3, four times: 6 in all.
    moved = 1 - 0.1 * np.array([2, 1, 2]) / 6
    np.testing.assert_allclose(variables[3].numpy(), moved, rtol=1e-6)
    assert float(optimizer.gradient_norm) == 6
