"""Variants, heads, sizes and dtypes of the ViT, on any backend."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.configs import VIT_VARIANTS, ViTConfig, builder_name
from tests.conftest import REFERENCE

PARAMETERS = {  # vit_jax/models_test.py, 1000 classes, 224 px.
    "ViT-Ti/16": 5_717_416,
    "ViT-S/16": 22_050_664,
    "ViT-S/32": 22_878_952,
    "ViT-B/8": 86_576_872,
    "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232,
    "ViT-L/16": 304_326_632,
    "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800,
}
GAP_PARAMETERS = {  # The -gap-norep configs of the same table.
    "ViT-S/16": 22_049_896,
    "ViT-B/16": 86_566_120,
    "ViT-S/32": 22_878_184,
    "ViT-B/32": 88_222_696,
}
TINY = ViTConfig(patch_size=8, num_layers=2, hidden_size=24, mlp_dim=32, num_heads=3)


def tiny(image_size=(16, 24), num_classes=5, **overrides):
    config = dataclasses.replace(TINY, **overrides)
    return keras_vit.vit(config, image_size=image_size, num_classes=num_classes)


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def test_every_variant_is_counted():
    assert PARAMETERS.keys() == VIT_VARIANTS.keys()


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("variant", PARAMETERS)
def test_parameter_counts(variant):
    # Two depths give the size of a block: no need to hold 632 million parameters.
    config = VIT_VARIANTS[variant]
    one, two = (
        keras_vit.vit(
            dataclasses.replace(config, num_layers=layers),
            image_size=(224, 224),
            num_classes=1000,
        ).count_params()
        for layers in (1, 2)
    )
    assert one + (config.num_layers - 1) * (two - one) == PARAMETERS[variant]


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("variant", GAP_PARAMETERS)
def test_parameter_counts_of_gap_models(variant):
    config = dataclasses.replace(VIT_VARIANTS[variant], classifier="gap")
    model = keras_vit.vit(config, image_size=(224, 224), num_classes=1000)
    assert model.count_params() == GAP_PARAMETERS[variant]


@pytest.mark.tensorflow_only
def test_the_whole_of_b16_is_counted():
    model = keras_vit.ViT_B16(weights=None)
    assert model.count_params() == PARAMETERS["ViT-B/16"]


def test_configs_are_those_of_table_1_and_the_official_dropout():
    assert VIT_VARIANTS["ViT-H/14"] == ViTConfig(
        patch_size=14,
        num_layers=32,
        hidden_size=1280,
        mlp_dim=5120,
        num_heads=16,
        dropout_rate=0.1,
    )
    dropped = {name for name, row in VIT_VARIANTS.items() if row.dropout_rate}
    assert dropped == {"ViT-L/16", "ViT-H/14"}
    for name, row in VIT_VARIANTS.items():
        assert keras_vit.VARIANTS[builder_name(name)] is row


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"num_heads": 5}, "D_h = D / k"),
        ({"patch_size": 0}, "positive integer"),
        ({"dropout_rate": 1.0}, r"\[0, 1\)"),
        ({"classifier": "cls"}, "token, gap"),
        ({"gelu": "exact"}, "tanh, erf"),
    ],
)
def test_impossible_configs(changes, law):
    with pytest.raises(ValueError, match=law):
        dataclasses.replace(TINY, **changes)


def test_gelu_of_a_layer_alone_is_checked_too():
    with pytest.raises(ValueError, match=r"one of tanh, erf\. Received: gelu='relu'"):
        keras_vit.MlpBlock(8, gelu="relu")


@pytest.mark.parametrize("image_size", [(17, 24), (16, 23), (0, 8)])
def test_image_size_is_a_multiple_of_the_patch(image_size):
    with pytest.raises(ValueError, match=r"N = HW / P\^2.*Received: image_size="):
        tiny(image_size=image_size)


@pytest.mark.parametrize(
    ("classifier", "shape"),
    [
        ("token", (2, 5)),
        ("gap", (2, 5)),
        ("unpooled", (2, 6, 5)),
        ("token_unpooled", (2, 7, 5)),
    ],
)
@pytest.mark.parametrize("representation_size", [None, 12])
def test_heads(classifier, shape, representation_size):
    model = tiny(classifier=classifier, representation_size=representation_size)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 24, 3))
    assert model(images).shape == shape
    assert (numpy(model(images)) == 0).all()  # A zero head: section 3.2.


def test_head_bias_init_and_no_head():
    model = tiny(head_bias_init=-10.0)
    assert (model.get_layer("head").get_weights()[1] == -10).all()
    features = tiny(num_classes=None)
    assert features.output_shape == (None, 24)


def test_any_number_of_channels():
    model = keras_vit.vit(TINY, image_size=(16, 16), num_classes=2, num_channels=5)
    assert model(np.zeros((3, 16, 16, 5), "float32")).shape == (3, 2)


def perturbed(model, seed=0):
    """Weights that let no mistake hide: none zero, none one."""
    rng = np.random.default_rng(seed)
    model.set_weights(
        [w + 0.2 * rng.standard_normal(w.shape) for w in model.get_weights()]
    )
    return model


def test_non_square_images_are_read_row_by_row():
    """A token's value depends on its own patch before the first block."""
    model = perturbed(tiny())
    embed = keras.Model(model.input, model.get_layer("embedding").output)
    images = np.random.default_rng(1).uniform(-1, 1, (1, 16, 24, 3)).astype("float32")
    before = numpy(embed(images))
    images[:, 8:, 16:] += 1  # The patch of row 1, column 2.
    changed = np.abs(numpy(embed(images)) - before).max(-1)[0] > 1e-6
    assert changed.tolist() == [False] * 5 + [True]


def test_bfloat16_policy_keeps_softmax_norms_and_head_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = tiny()
    finally:
        keras.config.set_dtype_policy("float32")
    perturbed(model)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 24, 3)).astype("float32")
    block = model.get_layer("encoderblock_0")
    assert block.mlp.dense_0.compute_dtype == "bfloat16"
    assert all(v.dtype == "float32" for v in model.variables if "seed" not in v.path)
    logits = model(images)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    z = keras.Model(model.input, block.input)(images)
    assert keras.backend.standardize_dtype(z.dtype) == "bfloat16"
    scores = block.attention_scores(z)
    assert keras.backend.standardize_dtype(scores.dtype) == "float32"
    np.testing.assert_allclose(numpy(keras.ops.sum(scores, -1)), 1, atol=1e-6)
    full = tiny()
    full.set_weights(model.get_weights())
    np.testing.assert_allclose(numpy(logits), numpy(full(images)), atol=0.3, rtol=0.05)


def test_dropout_is_where_b1_says(monkeypatch):
    """After positions and every dense layer but query, key and value; and of A."""
    model = tiny(dropout_rate=0.5, attention_dropout_rate=0.5)
    images = np.ones((2, 16, 24, 3), "float32")
    called = []

    def call(self, inputs, training=None):
        called.append(tuple(inputs.shape))
        return inputs

    with monkeypatch.context() as patched:
        patched.setattr(keras.layers.Dropout, "call", call)
        model(images, training=True)
    tokens, width = 1 + 2 * 3, TINY.hidden_size
    block = [
        (2, TINY.num_heads, tokens, tokens),
        (2, tokens, width),
        (2 * tokens, TINY.mlp_dim),
        (2, tokens, width),
    ]
    assert called == [(2, tokens, width), *block * TINY.num_layers]


def test_dropout_is_of_training_alone():
    model = perturbed(tiny(dropout_rate=0.5, attention_dropout_rate=0.5))
    images = np.ones((2, 16, 24, 3), "float32")
    calm = numpy(model(images))
    dropped = numpy(model(images, training=True))
    assert np.abs(calm - dropped).max() > 1e-3
    np.testing.assert_array_equal(numpy(model(images)), calm)


def test_dropout_rates_reach_every_layer():
    model = tiny(dropout_rate=0.25, attention_dropout_rate=0.5)
    block = model.get_layer("encoderblock_1")
    assert block.attention.dropout.rate == 0.5
    assert block.dropout.rate == block.mlp.dropout.rate == 0.25
    assert model.get_layer("posembed_dropout").rate == 0.25


@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_stochastic_depth_grows_from_none_to_the_rate_in_the_last_block(num_layers):
    model = tiny(num_layers=num_layers, stochastic_depth_rate=0.4)
    rates = [
        model.get_layer(f"encoderblock_{i}").stochastic_depth_rate
        for i in range(num_layers)
    ]
    even = np.linspace(0, 0.4, num_layers)  # As timm's and big_vision's.
    np.testing.assert_allclose(rates, even, rtol=1e-12)


def test_lora_reaches_every_projection():
    model = perturbed(tiny())
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 24, 3)).astype("float32")
    before = numpy(model(images))
    dense = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Dense) and layer.name != "head"
    ]
    assert len(dense) == 4 * TINY.num_layers  # qkv, out, Dense_0, Dense_1.
    for layer in dense:
        layer.enable_lora(2)
    np.testing.assert_allclose(numpy(model(images)), before, atol=1e-5)
    trainable = {v.path.split("/")[-1] for v in model.trainable_variables}
    assert {"lora_kernel_a", "lora_kernel_b"} <= trainable


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_int8_quantization_reaches_every_projection():
    model = keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz")
    io = np.load(REFERENCE / "vit_mini_io.npz")
    model.quantize("int8")
    kernels = [v for v in model.variables if v.path.endswith("kernel")]
    assert sum(v.dtype == "int8" for v in kernels) == 4 * 2 + 1  # And the head.
    error = np.abs(numpy(model(io["images"])) - io["logits"]).max()
    assert 0 < error < 0.25  # Logits here span about 4.
