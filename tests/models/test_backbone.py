"""`feature_maps`: against the equations in NumPy; shared, saved, frozen, 16 bits."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from tests.layers import by_hand
from tests.models.families import FAMILIES, SIZE, VITS, build, names
from tests.models.test_efficientnet import TINY
from tests.models.test_vit import tiny

IMAGES = np.random.default_rng(2).uniform(-1, 1, (2, *SIZE, 3)).astype("float32")
PLAIN = [name for name, config in VITS.items() if config.resnet is None]


def outputs(model, images=IMAGES):
    return {
        key: keras.ops.convert_to_numpy(value) for key, value in model(images).items()
    }


def close(found, expected, atol=1e-5):
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, atol=atol * scale, rtol=0)


@pytest.mark.parametrize("name", names(PLAIN, {"every layer"}))
def test_maps_are_the_equations(name):
    model, config = build(name), FAMILIES[name]
    maps = outputs(keras_vit.feature_maps(model))
    raw = outputs(keras_vit.feature_maps(model, norm=False))
    tokens = config.num_class_tokens, config.num_registers
    for number in range(1, config.num_layers + 1):
        shallow = dataclasses.replace(config, num_layers=number)
        z = by_hand.vit(model, IMAGES, shallow)
        expected = {f"block_{number}": z[:, sum(tokens) :].reshape(2, 4, 6, -1)}
        for at, key in enumerate(["class_token", "distillation_token"][: tokens[0]]):
            expected[f"{key}_{number}"] = z[:, at]
        if config.num_registers:
            expected[f"registers_{number}"] = z[:, tokens[0] : sum(tokens)]
        assert expected.keys() == {at for at in maps if at.endswith(f"_{number}")}
        for key, value in expected.items():
            close(maps[key], value)
            norm = model.get_layer("encoder_norm")
            close(by_hand.layer_norm(raw[key].astype(np.float64), norm), value)


@pytest.mark.parametrize("name", names(["hybrid", "bit", "v1"], {"bit"}))
def test_stages_are_the_resnets(name):
    model, config = build(name), FAMILIES[name]
    maps = outputs(keras_vit.feature_maps(model))
    places = keras.Function(model.input, _places(model))(IMAGES)
    close(maps["stage_2"], keras.ops.convert_to_numpy(places))
    assert maps["stage_1"].shape == (2, 8, 12, 128)
    assert maps["stage_2"].shape == (2, 4, 6, 256)
    if name != "hybrid":
        expected = [by_hand.resnet_map(model, image) for image in IMAGES]
        close(maps["stage_2"], np.stack(expected), 1e-4)
        unit = model.get_layer(f"block2_unit{config.num_layers[1]}")
        raw = keras_vit.feature_maps(model, layers=(2,), norm=False)
        assert raw.output == {"stage_2": unit.output}


def _places(model):
    """What the patches of a hybrid, or the mean of a ResNet, are made of."""
    named = {layer.name: layer for layer in model.layers}
    return named["embedding" if "embedding" in named else "gap"].input


@pytest.mark.tensorflow_only
def test_a_hybrid_without_stages_has_its_root():
    maps = keras_vit.feature_maps(build("root alone"), layers=(2,))
    assert {key: at.shape[1:] for key, at in maps.output.items()} == {
        "root": (8, 12, 32),
        "block_2": (4, 6, 24),
        "class_token_2": (24,),
    }


def test_layers_are_shared_and_the_model_is_left_as_it_is():
    model = build("every layer")
    maps = keras_vit.feature_maps(model, layers=(1, 2))
    before = outputs(maps)
    assert maps.get_layer("encoderblock_1") is model.get_layer("encoderblock_1")
    assert {id(at) for at in maps.weights} < {id(at) for at in model.weights}
    assert model.get_layer("encoder_norm").output.shape == (None, 27, 24)  # One call.
    by_hand.randomize(model, 0.3)
    after = outputs(maps)
    assert min(abs(before[key] - after[key]).max() for key in before) > 0.1
    assert maps.config == model.config
    assert maps.preprocess(IMAGES).shape == (2, *SIZE, 3)


def test_a_frozen_model_stays_frozen_and_a_whole_one_trains():
    model = tiny()
    maps = keras_vit.feature_maps(model, layers=(1,))
    assert len(maps.trainable_weights) == len(maps.weights) == 4 + 12 + 2
    model.trainable = False
    assert not keras_vit.feature_maps(model, layers=(1,)).trainable_weights


@pytest.mark.parametrize("name", names(["every layer", "hybrid", "bit"], set()))
def test_saved_frozen_and_reloaded(name, tmp_path):
    model = build(name)
    for layer in model.layers:
        layer.trainable = layer.name not in ("encoder_norm", "encoderblock_0")
    maps = keras_vit.feature_maps(model)
    maps.save(tmp_path / "maps.keras")
    again = keras.models.load_model(tmp_path / "maps.keras")
    assert [v.trainable for v in again.variables] == [
        v.trainable for v in maps.variables
    ]
    assert again.config == model.config
    found, expected = outputs(again), outputs(maps)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        close(found[key], value, 1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "float16", "mixed_bfloat16"])
def test_sixteen_bits(policy):
    expected = outputs(keras_vit.feature_maps(tiny()), IMAGES[:, :16, :24])
    keras.config.set_dtype_policy(policy)
    try:
        model = tiny()
        model.set_weights([0.7 * w for w in tiny().get_weights()])
    finally:
        keras.config.set_dtype_policy("float32")
    maps = keras_vit.feature_maps(model)  # Under another policy than the model's.
    half = policy.removeprefix("mixed_")
    assert {at.dtype for at in maps.output.values()} == {half}
    found = maps(IMAGES[:, :16, :24])
    assert found.keys() == expected.keys()
    for value in found.values():
        assert keras.backend.standardize_dtype(value.dtype) == half
        assert np.isfinite(keras.ops.convert_to_numpy(value).astype("float32")).all()


@pytest.mark.tensorflow_only
def test_an_export_has_the_maps(tmp_path):
    import tensorflow as tf

    maps = keras_vit.feature_maps(build("every layer"), layers=(2,))
    maps.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(tmp_path)
    served = loaded.serve(IMAGES)
    for key, value in outputs(maps).items():
        close(served[key].numpy(), value)


def test_a_head_on_frozen_maps_trains():
    model = tiny()
    model.trainable = False
    before = [keras.ops.convert_to_numpy(w) for w in model.weights]
    maps = keras_vit.feature_maps(model, layers=(2,))
    logits = keras.layers.Conv2D(3, 1)(maps.output["block_2"])
    head = keras.Model(maps.input, logits)
    head.compile("sgd", "mean_squared_error")
    losses = head.fit(
        IMAGES[:, :16, :24], np.ones((2, 2, 3, 3), "float32"), epochs=3, verbose=0
    ).history["loss"]
    assert losses[-1] < losses[0]
    for old, new in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(new))


@pytest.mark.parametrize(
    "layers", [(), (0,), (3,), (-1,), (1, 1), 2, (1.0,), "1", (True,), [None]]
)
def test_layers_that_are_none(layers):
    with pytest.raises(ValueError, match=r"unique numbers from 1 to 2, such as \(2"):
        keras_vit.feature_maps(tiny(), layers)


def test_only_models_of_this_library():
    nested = keras.Sequential([keras.Input((16, 24, 3)), tiny()])
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    for model in (nested, dense):
        with pytest.raises(ValueError, match="Expected a ViT, a hybrid or a ResNet"):
            keras_vit.feature_maps(model)


@pytest.mark.tensorflow_only
def test_an_efficientnet_is_refused():
    model = keras_vit.efficientnet(TINY, image_size=(64, 64), num_classes=5)
    with pytest.raises(ValueError, match="Expected a ViT, a hybrid or a ResNet"):
        keras_vit.feature_maps(model)


def test_a_model_without_facts():
    model = tiny()
    bare = keras.Model(model.input, model.get_layer("encoder_norm").output)
    assert "class_token_2" in keras_vit.feature_maps(bare).output
    model = tiny(num_registers=2)
    bare = keras.Model(model.input, model.get_layer("encoder_norm").output)
    with pytest.raises(
        ValueError, match="the kinds of its 3 tokens before the patches"
    ):
        keras_vit.feature_maps(bare)
