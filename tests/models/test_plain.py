"""Plain ViTs of later papers: their layers against NumPy, and what models can do."""

import dataclasses
import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import PlainViTConfig, RotaryConfig, weights
from keras_vit.inspection import attention_scores, costs
from keras_vit.inspection.page import Page
from keras_vit.layers import plain
from keras_vit.weights import variables
from tests.layers import by_hand

TINY = PlainViTConfig(
    patch_size=4, num_layers=2, hidden_size=16, mlp_dim=24, num_heads=2
)
SIZE = (8, 12)
DINOV3 = RotaryConfig(kind="centered", temperature=100.0, half=True)
CONFIGS = {
    "clip": {"pre_norm": True, "patch_bias": False, "activation": "quick_gelu"},
    "dinov2": {"layer_scale": 0.1, "num_registers": 4, "position_tokens": 0},
    "dinov2 head": {"layer_scale": 0.1, "classifier": "token_gap"},
    "dinov3": {
        "layer_scale": 0.1,
        "num_registers": 2,
        "position": "none",
        "qkv_bias": "qv",
        "rotary": DINOV3,
        "gated_mlp": True,
        "activation": "silu",
    },
    "eva02": {
        "rotary": RotaryConfig(reference_grid=(4, 4)),
        "qkv_bias": "qv",
        "gated_mlp": True,
        "activation": "silu",
        "mlp_norm": True,
        "attention_norm": True,
        "classifier": "gap",
        "num_registers": 1,
        "final_norm": False,
        "head_norm": True,
    },
    "beit": {"relative_position": True, "position": "none", "layer_scale": 0.1},
    "pe": {
        "rotary": RotaryConfig(order="xy", offset=1.0),
        "classifier": "map",
        "num_registers": 1,
        "pool_prefix": True,
        "map_heads": 4,
        "map_mlp_dim": 20,
        "pre_norm": True,
        "patch_bias": False,
    },
    "rope mixed": {
        "rotary": RotaryConfig(kind="mixed", temperature=10.0, order="xy"),
        "position_tokens": 0,
        "qk_norm": True,
    },
    "aimv2": {
        "norm": "rms_norm",
        "embedding_norm": True,
        "qkv_bias": "none",
        "out_bias": False,
        "mlp_bias": False,
        "gated_mlp": True,
        "activation": "silu",
        "classifier": "gap",
        "head_bias": False,
    },
    "post norm": {"post_norm": True},
}
EVERYWHERE = {
    "dinov3",
    "eva02",
    "rope mixed",
    "beit",
    "dinov2",
}  # Others on TensorFlow only: JAX compiles each shape.


def config(name):
    return dataclasses.replace(TINY, **CONFIGS[name])


def build(name, size=SIZE, num_classes=5):
    model = keras_vit.plain_vit(config(name), image_size=size, num_classes=num_classes)
    return by_hand.randomize(model, 0.2)


def images(seed=0, size=SIZE):
    shape = (2, *size, 3)
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.fixture(
    params=[
        name
        if name in EVERYWHERE
        else pytest.param(name, marks=pytest.mark.tensorflow_only)
        for name in CONFIGS
    ]
)
def model(request):
    return build(request.param)


def normed(x, tensors, name, config):
    """A norm in float64."""
    scale = tensors[f"{name}/scale"]
    if config.norm == "rms_norm":
        square = (x**2).mean(-1, keepdims=True)
        return x / np.sqrt(square + config.layer_norm_epsilon) * scale
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    y = (x - mean) / np.sqrt(variance + config.layer_norm_epsilon)
    return y * scale + tensors[f"{name}/bias"]


def erf(x):
    return np.vectorize(math.erf)(x)


FUNCTIONS = {
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: (
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def turned(x, config, grid, frequencies):
    """[T, k, D_h] by complex numbers: each pair of units is one, times e^(i angle)."""
    rotary, bare = config.rotary, config.num_prefix_tokens
    rows, columns = grid
    size = x.shape[-1]
    angles = np.zeros((len(x), config.num_heads, size // 2))
    for row in range(rows):
        for column in range(columns):
            at = np.array([row, column], float)
            if rotary.kind == "centered":
                at = 2 * (at + 0.5 + rotary.offset) / grid - 1
            else:
                at = at + rotary.offset
                if rotary.reference_grid and rotary.kind == "grid":
                    at = at / grid * rotary.reference_grid
            if rotary.order == "xy":
                at = at[::-1]
            if rotary.kind == "mixed":
                angle = at[0] * frequencies[0] + at[1] * frequencies[1]
            else:
                n = size // 4
                w = rotary.temperature ** (-np.arange(n) / n)
                w = w * (2 * np.pi if rotary.kind == "centered" else 1)
                angle = np.concatenate([at[0] * w, at[1] * w])
            angles[bare + row * columns + column] = angle
    if rotary.half:
        pairs = x[..., : size // 2] + 1j * x[..., size // 2 :]
    else:
        pairs = x[..., ::2] + 1j * x[..., 1::2]
    pairs = pairs * np.exp(1j * angles)
    if rotary.half:
        return np.concatenate([pairs.real, pairs.imag], -1)
    return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)


def relative_bias(table, grid):
    """BEiT's bias of every query and key: [k, T, T]."""
    rows, columns = grid
    places = [None, *((i, j) for i in range(rows) for j in range(columns))]
    offsets = (2 * rows - 1) * (2 * columns - 1)
    bias = np.empty((table.shape[1], len(places), len(places)))
    for q, one in enumerate(places):
        for k, two in enumerate(places):
            if one is None:
                row = offsets + 2 if two is None else offsets
            elif two is None:
                row = offsets + 1
            else:
                down, across = one[0] - two[0], one[1] - two[1]
                row = (down + rows - 1) * (2 * columns - 1) + across + columns - 1
            bias[:, q, k] = table[row]
    return bias


def block_by_hand(z, tensors, name, config, grid):
    """One block of one image in float64: [T, D] -> [T, D]."""
    attention, mlp = f"{name}/MultiHeadDotProductAttention_0", f"{name}/MlpBlock_0"

    def project(x, part):
        y = np.einsum("td,dkh->tkh", x, tensors[f"{attention}/{part}/kernel"])
        return y + tensors.get(f"{attention}/{part}/bias", 0.0)

    def attend(x):
        q, k, v = (project(x, part) for part in ("query", "key", "value"))
        if config.qk_norm:
            q = normed(q, tensors, f"{attention}/query_norm", config)
            k = normed(k, tensors, f"{attention}/key_norm", config)
        if config.rotary:
            learned = tensors.get(f"{attention}/frequencies")
            q, k = (turned(at, config, grid, learned) for at in (q, k))
        logits = np.einsum("qkh,tkh->kqt", q, k) / np.sqrt(q.shape[-1])
        if config.relative_position:
            table = tensors[f"{attention}/relative_position_bias"]
            logits = logits + relative_bias(table, grid)
        a = np.exp(logits - logits.max(-1, keepdims=True))
        y = np.einsum("kqt,tkh->qkh", a / a.sum(-1, keepdims=True), v)
        if config.attention_norm:
            flat = y.reshape(len(x), -1)
            y = normed(flat, tensors, f"{attention}/LayerNorm_0", config).reshape(
                y.shape
            )
        y = np.einsum("qkh,khd->qd", y, tensors[f"{attention}/out/kernel"])
        return y + tensors.get(f"{attention}/out/bias", 0.0)

    def dense(x, part):
        y = x @ tensors[f"{mlp}/{part}/kernel"]
        return y + tensors.get(f"{mlp}/{part}/bias", 0.0)

    def feed(x):
        h, f = dense(x, "Dense_0"), FUNCTIONS[config.activation]
        h = f(dense(x, "Gate")) * h if config.gated_mlp else f(h)
        if config.mlp_norm:
            h = normed(h, tensors, f"{mlp}/LayerNorm_0", config)
        return dense(h, "Dense_1")

    for i, branch in enumerate((attend, feed)):
        norm = f"{name}/LayerNorm_{i}"
        if config.post_norm:
            y = normed(branch(z), tensors, norm, config)
        else:
            y = branch(normed(z, tensors, norm, config))
        z = z + y * tensors.get(f"{name}/LayerScale_{i}/gamma", 1.0)
    return z


def test_blocks_are_the_equations(model, agree):
    """Each switch written out in NumPy, in float64. Measured: at most 1e-6."""
    tensors = {
        name: tensor.astype(float)
        for entry in variables.entries(model)
        for name, tensor in entry.split().items()
    }
    block = model.get_layer("encoderblock_1")
    z = np.random.default_rng(1).standard_normal((2, *block.input.shape[1:]))
    ours = numpy(block(z.astype("float32")))
    expected = np.stack(
        [
            block_by_hand(
                at, tensors, f"Transformer/{block.name}", model.config, block.grid
            )
            for at in z
        ]
    )
    agree(
        "plain ViT block",
        ours / abs(expected).max(),
        expected / abs(expected).max(),
        1e-5,
    )


def test_saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(numpy(again(images())), numpy(model(images())))


def test_costs_count_every_parameter(model):
    """`costs` raises where its count is not the model's."""
    assert costs(model).parameters == model.count_params()
    assert costs(model.config, SIZE, num_classes=5).parameters == model.count_params()


def test_attention_is_of_every_layer(model):
    scores = numpy(attention_scores(model, images()))
    tokens = model.config.num_prefix_tokens + 6
    assert scores.shape == (2, 2, 2, tokens, tokens)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-6)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "beit"])
def test_another_resolution(name):
    """At the same grid nothing changes; at another, rotary positions are computed."""
    model = build(name)
    same = keras_vit.at_resolution(model, SIZE)
    np.testing.assert_array_equal(numpy(same(images())), numpy(model(images())))
    larger = keras_vit.at_resolution(model, (16, 12))
    assert larger.get_layer("encoderblock_0").grid == (4, 3)
    fresh = keras_vit.plain_vit(model.config, image_size=(16, 12), num_classes=5)
    for layer in (at for at in fresh.layers if at.weights):
        resized = layer.name == "posembed_input"
        source = larger if resized else model
        layer.set_weights(source.get_layer(layer.name).get_weights())
    found = images(1, (16, 12))
    np.testing.assert_allclose(numpy(larger(found)), numpy(fresh(found)), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("dinov3", "rope mixed")
        else pytest.param(name, marks=pytest.mark.tensorflow_only)
        for name in CONFIGS
        if name != "beit"
    ],
)
def test_images_of_any_size(name, tmp_path):
    """One model and a model of each size: positions resized, rotations computed."""
    model = build(name)
    opened = keras_vit.at_resolution(model, (None, None))
    for size in (SIZE, (16, 12), (4, 20)):
        of_size = keras_vit.at_resolution(model, size)
        found = images(1, size)
        expected = numpy(of_size(found))
        np.testing.assert_allclose(numpy(opened(found)), expected, atol=1e-5)
        predicted = opened.predict(found, verbose=0)  # In a graph without a size.
        np.testing.assert_allclose(predicted, expected, atol=1e-5)
    opened.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(again(found)), expected, atol=1e-5)
    back = keras_vit.at_resolution(opened, SIZE)
    assert [type(at) for at in back.layers] == [type(at) for at in model.layers]
    np.testing.assert_array_equal(numpy(back(images())), numpy(model(images())))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", CONFIGS)
def test_feature_maps(name):
    """Each layer's tokens in their places."""
    model = build(name)
    last = [f"encoderblock_{at}" for at in (0, 1)]
    if model.config.final_norm:
        last[1] = "encoder_norm"
    tokens = keras.Model(model.input, [model.get_layer(at).output for at in last])
    first, second = map(numpy, tokens(images()))
    maps = keras_vit.feature_maps(model, norm=True)(images())
    bare = keras_vit.feature_maps(model, layers=(1,), norm=False)(images())
    prefix = model.config.num_prefix_tokens
    grid = (2, 2, 3, 16)
    np.testing.assert_array_equal(
        numpy(bare["block_1"]), first[:, prefix:].reshape(grid)
    )
    found = numpy(maps["block_2"])
    np.testing.assert_allclose(found, second[:, prefix:].reshape(grid), atol=1e-6)
    if prefix and model.config.num_class_tokens:
        np.testing.assert_allclose(
            numpy(maps["class_token_2"]), second[:, 0], atol=1e-6
        )


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", CONFIGS)
def test_a_page_of_it(name):
    page = Page.of(build(name), images())
    has_positions = config(name).position == "1d"
    assert page.absent.keys() == (set() if has_positions else {"positions"})
    assert page.attention.shape[1:3] == (2, 2)
    assert dict(page.facts)["activation"] == config(name).activation


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_stochastic_depth_grows_from_none_to_the_rate_in_the_last_block(num_layers):
    deep = dataclasses.replace(TINY, num_layers=num_layers, stochastic_depth_rate=0.4)
    model = keras_vit.plain_vit(deep, image_size=SIZE, num_classes=5)
    rates = [
        model.get_layer(f"encoderblock_{i}").stochastic_depth_rate
        for i in range(num_layers)
    ]
    np.testing.assert_allclose(rates, np.linspace(0, 0.4, num_layers), rtol=1e-12)


def test_relative_biases_belong_to_one_grid():
    with pytest.raises(ValueError, match="positions that can be resized"):
        keras_vit.at_resolution(build("beit"), (12, 8))
    with pytest.raises(ValueError, match="positions that can be resized"):
        keras_vit.at_resolution(build("beit"), (None, None))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", CONFIGS)
def test_a_new_head_and_training(name):
    model = keras_vit.for_task(build(name), ["a", "b"])
    assert not numpy(model(images())).any()
    before = model.get_layer("encoderblock_0").get_weights()
    model.compile("sgd", "mse")
    model.fit(images(), np.ones((2, 2), "float32"), epochs=2, verbose=0)
    changed = zip(before, model.get_layer("encoderblock_0").get_weights(), strict=True)
    assert any((one != two).any() for one, two in changed)


@pytest.mark.tensorflow_only
def test_rematerialized_gradients_are_the_same():
    import tensorflow as tf

    model = build("dinov3")
    gradients = []
    for remat in (False, True):
        for layer in model.layers:
            if isinstance(layer, plain.PlainBlock):
                layer.remat = remat
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images(), training=True) ** 2)
        gradients.append(tape.gradient(loss, model.trainable_variables))
    for one, two in zip(*gradients, strict=True):
        np.testing.assert_allclose(numpy(one), numpy(two), rtol=1e-4, atol=1e-5)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("name", "format", "num_classes"),
    [
        *(
            (name, "timm", 5)
            for name in ("clip", "dinov2", "dinov3", "eva02", "rope mixed", "post norm")
        ),
        ("clip", "hf", None),
        ("dinov3", "hf", None),
    ],
)
def test_written_files_are_read_back(name, format, num_classes, tmp_path):
    size = (8, 8) if (name, format) == ("clip", "hf") else SIZE
    model = build(name, size, num_classes)
    weights.save(model, tmp_path, format=format)
    again = keras_vit.from_checkpoint(tmp_path, image_size=size)
    expected = dataclasses.replace(model.config, layer_scale=again.config.layer_scale)
    assert again.config == expected
    for ours, read in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, read)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("name", "format", "num_classes", "match"),
    [
        ("clip", "hf", 5, "head_bias=True for a CLIP"),
        ("clip", "hf", None, "image_size=.* for clip_vision_model"),
        ("dinov2", "hf", None, "position_tokens=0 for dinov2_with_registers"),
        ("dinov2 head", "timm", 5, "classifier='token_gap'"),
        ("dinov3", "hf", 5, "num_classes=5 for a DINOv3"),
        ("eva02", "hf", None, "mlp_norm=True"),
        ("beit", "timm", 5, "qkv_bias='full' for Beit"),
        ("beit", "hf", 5, "qkv_bias='full' for beit"),
        ("pe", "timm", 5, "layer_norm_epsilon=1e-06, classifier='map' for Eva"),
        ("aimv2", "timm", 5, "head_bias=False for VisionTransformer"),
        ("post norm", "hf", 5, "post_norm=True"),
    ],
)
def test_models_that_a_library_has_no_class_for(
    name, format, num_classes, match, tmp_path
):
    size = (8, 8) if format == "hf" and "image_size" not in match else SIZE
    with pytest.raises(ValueError, match=match):
        weights.save(build(name, size, num_classes), tmp_path, format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.tensorflow_only
def test_layer_scale_folds(tmp_path):
    model = build("dinov2")
    weights.save(model, tmp_path, format="timm")
    folded = keras_vit.from_checkpoint(tmp_path, image_size=SIZE, fold=True)
    assert isinstance(folded.config, keras_vit.ViTConfig)
    np.testing.assert_allclose(
        numpy(folded(images())), numpy(model(images())), atol=1e-5
    )


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"num_heads": 3}, "multiple of num_heads"),
        ({"map_heads": 3}, "multiple of map_heads"),
        ({"rotary": RotaryConfig(), "num_heads": 8}, "multiple of 4 units"),
        ({"relative_position": True, "num_registers": 1}, "one token before"),
        ({"post_norm": True, "layer_scale": 0.1}, "layer_scale=None"),
        ({"position_tokens": 2}, "at most 1, the number of tokens"),
        ({"pool_prefix": True}, "'gap' or 'map'"),
        ({"activation": "relu"}, "activation"),
        ({"norm": "batch_norm"}, "norm"),
        ({"qk_norm": 1}, "qk_norm"),
    ],
)
def test_bad_fields(fields, match):
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(TINY, **fields)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "axial"},
        {"temperature": 0},
        {"reference_grid": (0, 4)},
        {"order": "zz"},
    ],
)
def test_bad_rotary_fields(fields):
    with pytest.raises(ValueError, match="Expected"):
        RotaryConfig(**fields)
