"""LoRA, quantization and freezing: Keras's own, reaching every projection, and kept."""

import gc

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.embeddings import everything_in
from keras_vit.models.transfer import merge_lora
from keras_vit.serving.precision import in_float32, quantize
from tests.models.test_vit import perturbed, tiny

IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 16, 24, 3)).astype("float32")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Layer .* does not have a `quantize` method"  # Keras's, of LayerNorm.
)
PER_BLOCK = {"qkv", "out", "Dense_0", "Dense_1"}


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def blocks(model):
    return [
        layer for layer in model.layers if isinstance(layer, keras_vit.TransformerBlock)
    ]


def with_lora(model):
    """The model with adapters of rank 2 that do something."""
    rng = np.random.default_rng(1)
    for block in blocks(model):
        for layer in block.projections():
            layer.enable_lora(2)
            shape = layer.lora_kernel_b.shape
            layer.lora_kernel_b.assign(0.1 * rng.standard_normal(shape))
    return model


def reloaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


def test_lora_reaches_every_projection_and_trains_alone():
    model = with_lora(perturbed(tiny()))
    for block in blocks(model):
        assert {layer.name for layer in block.projections()} == PER_BLOCK
        names = {v.path.split("/")[-1] for v in block.trainable_variables}
        assert {"lora_kernel_a", "lora_kernel_b", "bias"} <= names
        assert not block.mlp.dense_0.weights[0].trainable  # The frozen kernel.


def test_lora_is_merged_where_it_is_saved(tmp_path):
    model = with_lora(perturbed(tiny()))
    expected = numpy(model(IMAGES))
    assert np.abs(expected - numpy(perturbed(tiny())(IMAGES))).max() > 0.01
    keras_vit.weights.save(model, tmp_path / "merged.npz")
    plain = tiny()
    keras_vit.weights.load(plain, tmp_path / "merged.npz")
    np.testing.assert_allclose(numpy(plain(IMAGES)), expected, atol=1e-5)
    again = reloaded(model, tmp_path)
    np.testing.assert_allclose(numpy(again(IMAGES)), expected, atol=1e-5)
    assert [v.path for v in again.trainable_variables] == [
        v.path for v in model.trainable_variables
    ]


def necked(neck):
    """A model of this library with a layer of Keras before its head."""
    backbone = tiny(num_classes=None)
    logits = keras.layers.Dense(3, name="head")(neck(backbone.output))
    facts = backbone.facts
    return keras_vit.VisionModel(backbone.input, logits, facts=facts)


NECKS = {
    "sequential": lambda: keras.Sequential(
        [keras.layers.Dense(16, activation="gelu"), keras.layers.Dense(8)]
    ),
    "attention": lambda: Attended(),
}


@keras.saving.register_keras_serializable("tests")
class Attended(keras.layers.Layer):
    """A layer of Keras inside another one."""

    def __init__(self, **options):
        super().__init__(**options)
        self.attention = keras.layers.MultiHeadAttention(2, 4)

    def build(self, shape):
        tokens = (None, 1, shape[-1])
        self.attention.build(tokens, tokens)
        super().build(shape)

    def call(self, x):
        return self.attention(x[:, None], x[:, None])[:, 0]


@pytest.mark.parametrize("neck", NECKS)
def test_merging_keeps_the_layers_inside_others(neck):
    """A clone's layers are new, also those inside a layer that is not ours."""
    model = with_lora(necked(NECKS[neck]()))
    if neck == "sequential":
        dense = model.layers[-2].layers[0]
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(0.1 + dense.lora_kernel_b)
    expected = numpy(model(IMAGES))
    merged = merge_lora(model)
    np.testing.assert_allclose(numpy(merged(IMAGES)), expected, atol=1e-5)
    assert not any("lora" in weight.path for weight in merged.weights)


def test_merging_keeps_the_norms_of_feature_maps():
    maps = keras_vit.feature_maps(with_lora(perturbed(tiny())))
    expected = {name: numpy(at) for name, at in maps(IMAGES).items()}
    for name, found in merge_lora(maps)(IMAGES).items():
        np.testing.assert_allclose(numpy(found), expected[name], atol=1e-5)


def test_a_different_policy_reaches_nested_models():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = necked(NECKS["sequential"]())
    finally:
        keras.config.set_dtype_policy("float32")
    copy = in_float32(model)
    dtypes = {layer.compute_dtype for layer in everything_in(copy)}
    assert dtypes == {"float32"}
    for ours, theirs in zip(copy.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))


def test_lora_trains_on_after_reloading(tmp_path):
    """The file has merged kernels; of A = B = 0 neither would ever get a gradient."""
    model = perturbed(tiny())
    for block in blocks(model):
        for layer in block.projections():
            layer.enable_lora(2, lora_alpha=16)
            layer.lora_kernel_b.assign(0.1 + layer.lora_kernel_b)
    expected = numpy(model(IMAGES))
    again = reloaded(model, tmp_path)
    np.testing.assert_allclose(numpy(again(IMAGES)), expected, atol=1e-5)
    again.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    again.fit(IMAGES, np.array([0, 1]), verbose=0)
    projections = [layer for block in blocks(again) for layer in block.projections()]
    assert len(projections) == 4 * len(blocks(again))
    for layer in projections:
        assert (layer.lora_rank, layer.lora_alpha) == (2, 16)
        assert numpy(layer.lora_kernel_a).any()
        assert numpy(layer.lora_kernel_b).any(), layer.path


def quantization(name, **changes):
    """A quantization of Keras; the oldest supported one has no classes for them."""
    if not hasattr(keras.quantizers, name):
        pytest.skip(f"needs keras.quantizers.{name}")
    return getattr(keras.quantizers, name)(**changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Int8QuantizationConfig", {"activation_quantizer": None}),
        ("Int4QuantizationConfig", {"block_size": 16}),
        ("Int4QuantizationConfig", {"block_size": None}),
    ],
)
def test_a_quantization_with_options_reloads(name, changes, tmp_path):
    model = perturbed(tiny())
    model.quantize(config=quantization(name, **changes))
    expected = numpy(model(IMAGES))
    np.testing.assert_array_equal(numpy(reloaded(model, tmp_path)(IMAGES)), expected)


def test_int8_reaches_every_projection_and_is_near():
    keras.utils.set_random_seed(0)  # With other weights `off` is 0.01 to 0.06.
    model = perturbed(tiny())
    expected = numpy(model(IMAGES))
    model.quantize("int8")
    for block in blocks(model):
        for layer in block.projections():
            assert layer.quantization_mode == "int8"
            assert keras.backend.standardize_dtype(layer.kernel.dtype) == "int8"
    off = np.abs(numpy(model(IMAGES)) - expected).max() / np.abs(expected).max()
    assert 0 < off < 0.05


def test_int8_reloads_with_zero_difference(tmp_path):
    model = perturbed(tiny())
    model.quantize("int8")
    again = reloaded(model, tmp_path)
    np.testing.assert_array_equal(numpy(again(IMAGES)), numpy(model(IMAGES)))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("change", ["lora", "int8"])
def test_changed_kernels_are_not_overwritten(tmp_path, change):
    keras_vit.weights.save(tiny(), tmp_path / "plain.npz")
    model = tiny()
    if change == "lora":
        with_lora(model)
    else:
        model.quantize("int8")
    before = numpy(model(IMAGES))
    with pytest.raises(ValueError, match="without LoRA or quantization: load first"):
        keras_vit.weights.load(model, tmp_path / "plain.npz")
    with pytest.raises(ValueError, match="change the resolution first"):
        keras_vit.at_resolution(model, (32, 32))
    np.testing.assert_array_equal(numpy(model(IMAGES)), before)


@pytest.mark.tensorflow_only
def test_int8_has_no_official_format(tmp_path):
    model = tiny()
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"in floating point.*Save before quantizing"):
        keras_vit.weights.save(model, tmp_path / "int8.npz")
    assert not list(tmp_path.iterdir())


def freeze_all_but_the_head(model):
    for layer in model.layers:
        layer.trainable = layer.name == "head"
    return model


@pytest.mark.parametrize("how", ["keras", "clone", "resolution"])
def test_frozen_layers_stay_frozen(tmp_path, how):
    model = freeze_all_but_the_head(tiny())
    again = {
        "keras": lambda: reloaded(model, tmp_path),
        "clone": lambda: keras.models.clone_model(model),
        "resolution": lambda: keras_vit.at_resolution(model, (32, 32)),
    }[how]()
    assert [v.path for v in again.trainable_variables] == ["head/kernel", "head/bias"]


@pytest.mark.parametrize("how", ["keras", "resolution"])
def test_part_of_a_block_stays_frozen(tmp_path, how):
    model = tiny()
    blocks = [layer for layer in model.layers if "encoderblock" in layer.name]
    blocks[-1].attention.trainable = False
    blocks[-2].mlp.dense_0.trainable = False
    expected = [v.path for v in model.trainable_variables]
    assert len(expected) == len(model.weights) - 4 - 2
    again = {
        "keras": lambda: reloaded(model, tmp_path),
        "resolution": lambda: keras_vit.at_resolution(model, (32, 32)),
    }[how]()
    assert [v.path for v in again.trainable_variables] == expected


@pytest.mark.parametrize("before", ["nothing", "as Python 3.12", "all"])
def test_int8_collects_only_new_objects(before, monkeypatch, tmp_path):
    """Keras collects garbage for each kernel; all objects of TensorFlow are older."""
    model = tiny()
    collect, count, frozen = gc.collect, gc.get_freeze_count, []
    monkeypatch.setattr(gc, "collect", lambda: frozen.append(count()) or collect())
    if before == "as Python 3.12":
        monkeypatch.setattr(gc, "get_freeze_count", lambda: max(count(), 375))
    try:
        if before == "all":
            gc.freeze()
        quantize(model)
        reloaded(model, tmp_path)
        assert len(frozen) > len(blocks(model))  # Keras collects for each kernel.
        assert min(frozen) > 10_000
        assert (count() > 0) == (before == "all")
    finally:
        gc.unfreeze()
