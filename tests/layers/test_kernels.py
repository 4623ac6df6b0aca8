"""What the encoder computes with, against the same equations without it."""

import types
from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import TransformerBlock, kernels
from keras_vit.training.optim import MomentumSGD
from tests.programs import CALLS, nodes_of

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
    in_parts = ops.convert_to_numpy(kernels.attend(q, k, v))
    monkeypatch.setattr(kernels, "LONG", 100)
    whole = ops.convert_to_numpy(kernels.attend(q, k, v))
    agree("attention in parts", in_parts, whole, 1e-6)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_attention_is_a_softmax(scale, agree):
    """In float64 by NumPy; exponentials of the second logits overflow float32."""
    q, k, v = (ops.convert_to_numpy(x).astype(float) for x in heads(11))
    logits = scale * q @ np.swapaxes(k, -1, -2)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    whole = p / p.sum(axis=-1, keepdims=True) @ v
    q, k, v = (ops.convert_to_tensor(x.astype("float32")) for x in (scale * q, k, v))
    ours = ops.convert_to_numpy(kernels.attend(q, k, v))
    agree(f"attention, logits times {scale:.0f}", ours, whole, 1e-6 * scale)


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


def on_a_gpu():
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu"


def values_and_gradients(attention, qkv):
    """Of a function of q, k and v, [B, T, k, D_h], on JAX; and the compiled text."""
    import jax

    weights = np.random.default_rng(1).normal(size=qkv[0].shape).astype("float32")

    def loss(*qkv):
        y = attention(*qkv)
        return (y.astype("float32") * weights).sum(), y

    compute = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    gradients, y = compute(*qkv)
    return [y, *gradients], compute.lower(*qkv).compile().as_text()


def by_head(q, k, v):
    """`kernels.attend` of [B, T, k, D_h]."""
    y = kernels.attend(*(ops.swapaxes(x, 1, 2) for x in (q, k, v)))
    return ops.swapaxes(y, 1, 2)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX")
@pytest.mark.parametrize("tokens", [1, 10, 11])
def test_one_more_token_changes_nothing(tokens, agree):
    qkv = [ops.swapaxes(x, 1, 2) for x in heads(tokens)]
    (ours, _), (plain, _) = (
        values_and_gradients(attention, qkv)
        for attention in (
            lambda *qkv: kernels.attention_of_even_length(*qkv, "xla"),
            by_head,
        )
    )
    for padded, derived in zip(ours, plain, strict=True):
        agree("attention with one more token", padded, derived, 1e-5)


REFUSED = {"tokens": 197, "dtype": "bfloat16", "size": 64, "device": "9.0"}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, True),
        ({"dtype": "float16", "size": 128, "device": "8.0"}, True),
        ({"tokens": 196}, False),
        ({"dtype": "float32"}, False),
        ({"size": 136}, False),
        ({"size": 60}, False),
        ({"device": "7.5"}, False),
        ({"device": "gfx942"}, False),  # Of AMD.
        ({"platform": "cpu"}, False),
        ({"distribution": "of several devices"}, False),
        ({"fused": False}, False),
    ],
)
def test_attention_of_odd_length_on_a_gpu_of_jax(change, refused, monkeypatch):
    """Only where cuDNN's kernel runs: one GPU from Ampere on, 16 bits, some sizes."""
    jax = pytest.importorskip("jax")
    case = REFUSED | {"platform": "gpu", "distribution": None, "fused": None} | change
    device = types.SimpleNamespace(compute_capability=case["device"])
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(
        keras.distribution, "distribution", lambda: case["distribution"]
    )
    monkeypatch.setattr(
        keras.config, "is_flash_attention_enabled", lambda: case["fused"]
    )
    monkeypatch.setattr(jax, "default_backend", lambda: case["platform"])
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    q = types.SimpleNamespace(
        shape=(2, case["tokens"], 3, case["size"]), dtype=case["dtype"]
    )
    assert kernels._is_refused_by_cudnn(q) == refused


@pytest.mark.skipif(not on_a_gpu(), reason="needs JAX on a GPU")
@pytest.mark.parametrize("tokens", [196, 197])
def test_training_on_a_gpu_never_holds_p(tokens, caplog, agree):
    """Keras logs an error for each call that cuDNN's kernel refuses."""
    wide = [RNG.normal(size=(2, tokens, 3, 64)).astype("float32") for _ in range(3)]
    wide[0] /= 8
    half = [ops.cast(x, "bfloat16") for x in wide]
    fused, text = values_and_gradients(kernels.fused_attention, half)
    assert "fmha" in text
    assert f"{tokens},{tokens}" not in text
    assert not caplog.records
    exact, _ = values_and_gradients(by_head, [ops.cast(x, "float32") for x in half])
    for ours, theirs in zip(fused, exact, strict=True):
        scale = np.abs(theirs).max()
        agree("attention of cuDNN", ours / scale, theirs / scale, 0.02)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_dense_is_kerass(rank, policy, agree):
    layer = keras.layers.Dense(5, bias_initializer="normal", dtype=policy)
    layer.build((None, 8))
    if rank:
        layer.enable_lora(rank)
        layer.lora_kernel_b.assign(RNG.normal(size=layer.lora_kernel_b.shape))
    x = ops.convert_to_tensor(RNG.normal(size=(11, 8)).astype("float32"))
    ours, theirs = kernels.dense(layer, x), layer(x)
    assert ours.dtype == theirs.dtype
    ours, theirs = (
        ops.convert_to_numpy(ops.cast(y, "float32")) for y in (ours, theirs)
    )
    scale = np.abs(theirs).max()
    atol = 1e-6 if policy == "float32" else 2**-7  # Two roundings there, one here.
    agree(f"dense in {policy}", ours / scale, theirs / scale, atol)


def block_of(**options):
    keras.utils.set_random_seed(0)
    draws = np.random.default_rng(0)  # The same block in any order of tests.
    block = TransformerBlock(2, 16, **options)
    block.build((None, 11, 8))
    for weight in block.weights:
        weight.assign(weight + draws.normal(size=weight.shape, scale=0.3))
    return block


def outputs_and_gradients(block, z):
    """[loss, y, gradients] of a sum that weighs every output; the program's text."""
    weights = np.random.default_rng(1).normal(size=z.shape).astype("float32")
    if keras.backend.backend() == "jax":
        import jax

        def loss_of(z, values):
            y, _ = block.stateless_call(values, frozen, z, training=True)
            return (weights * y).sum(), y

        values = [weight.value for weight in block.trainable_variables]
        frozen = [weight.value for weight in block.non_trainable_variables]
        compute = jax.value_and_grad(loss_of, (0, 1), has_aux=True)
        (loss, y), (dz, gradients) = jax.jit(compute)(z, values)
        texts = [jax.make_jaxpr(part)(z, values) for part in (loss_of, compute)]
        return [loss, y, dz, *gradients], str(texts)
    import tensorflow as tf

    @tf.function
    def compute(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            y = block(z, training=True)
            loss = tf.reduce_sum(weights * y)
        sources = [z, *(weight.value for weight in block.trainable_variables)]
        return [loss, y, *tape.gradient(loss, sources)]

    graph = compute.get_concrete_function(tf.TensorSpec(z.shape)).graph
    shapes = [
        [side.size for side in shape.dim]
        for node in nodes_of(graph)
        for shape in node.attr["_output_shapes"].list.shape
    ]
    return compute(z), f"{graph.as_graph_def()} {shapes}"


needs_block = pytest.mark.skipif(
    not kernels.on_cpu("tensorflow", "jax"), reason="the gradient is derived elsewhere"
)


@needs_block
@pytest.mark.parametrize("gelu", ["tanh", "erf"])
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("in_parts", [False, True])
def test_the_written_out_gradient(gelu, rank, in_parts, request, monkeypatch, agree):
    """`test_reference` holds it to the official code's gradients too."""
    block, draws = block_of(gelu=gelu), np.random.default_rng(2)
    if rank:
        for layer in block.projections():
            layer.enable_lora(rank)
            layer.lora_kernel_b.assign(draws.normal(size=layer.lora_kernel_b.shape))
    z = ops.convert_to_tensor(draws.normal(size=(3, 11, 8)).astype("float32"))
    if in_parts:
        request.getfixturevalue("short_parts")
    with mock.patch.object(kernels, "block", wraps=kernels.block) as written:
        (loss, *written_out), program = outputs_and_gradients(block, z)
        assert written.called
        assert "CustomGradient" in program or "custom_vjp" in program
        monkeypatch.setattr(kernels, "on_cpu", lambda *backends: False)
        written.reset_mock()
        (derived_loss, *derived), _ = outputs_and_gradients(block, z)
        assert not written.called
    agree("written-out loss", loss, derived_loss, 1e-4)
    for ours, theirs in zip(written_out, derived, strict=True):
        scale = 1 + np.abs(theirs).max()
        agree("written-out gradients", ours / scale, theirs / scale, 1e-5)


@needs_block
@pytest.mark.tensorflow_only
def test_every_block_calls_the_same_two_functions():
    """The time of tracing an update grows little with the number of blocks."""
    import tensorflow as tf

    blocks = [block_of() for _ in range(4)]

    @tf.function
    def gradient(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            y = z
            for block in blocks:
                y = block(y, training=True)
        return tape.gradient(y, z)

    graph = gradient.get_concrete_function(tf.TensorSpec((3, 11, 8))).graph
    called = [
        node.attr["f"].func.name
        for node in graph.as_graph_def().node
        if node.op in CALLS
    ]
    assert [called.count(name) for name in set(called)] == [4, 4]


@needs_block
def test_long_sequences_never_hold_p(short_parts):
    """No tensor of the update has a place for every query and every key."""
    _, program = outputs_and_gradients(block_of(), ops.zeros((3, 11, 8)))
    shapes = program.replace(" ", "")
    assert "[3,2,4,11]" in shapes  # Four queries, all keys.
    assert "11,11]" not in shapes


@needs_block
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
