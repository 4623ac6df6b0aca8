"""Stochastic depth: what it leaves out, how often, and that it costs nothing at 0."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import TransformerBlock
from keras_vit.weights.architecture import config_of

numpy = ops.convert_to_numpy


def block(rate):
    layer = TransformerBlock(2, 16, stochastic_depth_rate=rate)
    layer.build((None, 5, 8))
    return layer


def tiny(**changes):
    config = keras_vit.ViTConfig(
        **{
            "patch_size": 8,
            "num_layers": 3,
            "hidden_size": 8,
            "mlp_dim": 16,
            "num_heads": 2,
            **changes,
        }
    )
    return keras_vit.vit(config, image_size=(16, 16), num_classes=3)


def test_a_branch_of_an_image_is_left_out_or_divided_by_its_chance():
    keras.utils.set_random_seed(3)
    layer, images, keep = block(0.25), 400, 0.75
    z = np.random.default_rng(0).normal(size=(images, 5, 8)).astype(np.float32)
    out = numpy(layer(z, training=True))
    attended = numpy(layer.attention(layer.layer_norm_0(z)))
    seen = np.zeros((2, 2), int)
    for msa, mlp in itertools.product((0, 1), (0, 1)):
        half = z + msa * attended / keep
        expected = half + mlp * numpy(layer.mlp(layer.layer_norm_1(half))) / keep
        seen[msa, mlp] = sum(np.abs(out - expected).max(axis=(1, 2)) < 1e-5)
    assert seen.sum() == images  # Each image is one of the four cases, whole.
    chances = np.outer((1 - keep, keep), (1 - keep, keep))  # Independent branches.
    np.testing.assert_allclose(seen / images, chances, atol=0.08)


def test_inference_is_untouched():
    keras.utils.set_random_seed(3)
    layer, plain = block(0.5), block(0.0)
    plain.set_weights(layer.get_weights())
    z = np.random.default_rng(0).normal(size=(4, 5, 8)).astype(np.float32)
    np.testing.assert_array_equal(numpy(layer(z)), numpy(plain(z)))
    assert np.abs(numpy(layer(z, training=True)) - numpy(plain(z))).max() > 0.01


def test_rate_0_makes_no_layer_and_no_state():
    layer = block(0.0)
    assert layer.stochastic_depth is None
    assert len(layer.variables) == len(layer.weights)
    assert [at.name for at in layer.sublayers()] == [
        at.name
        for at in TransformerBlock.sublayers(block(0.5))
        if "stoch" not in at.name
    ]


@pytest.mark.tensorflow_only
def test_rates_grow_with_depth_and_are_kept(tmp_path):
    model = tiny(stochastic_depth_rate=0.2)
    names = [f"encoderblock_{layer}" for layer in range(3)]
    rates = [model.get_layer(name).stochastic_depth_rate for name in names]
    assert rates == [0.0, 0.1, 0.2]
    assert config_of(model).stochastic_depth_rate == 0.2
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [again.get_layer(name).stochastic_depth_rate for name in names] == rates
    larger = keras_vit.at_resolution(model, (32, 16))
    assert config_of(larger).stochastic_depth_rate == 0.2
    assert tiny(num_layers=1).get_layer("encoderblock_0").stochastic_depth is None


def test_axial_blocks_have_none():
    with pytest.raises(ValueError, match=r"axial.*stochastic_depth_rate=0.1"):
        tiny(attention="axial", classifier="gap", stochastic_depth_rate=0.1)
    with pytest.raises(ValueError, match=r"stochastic_depth_rate in \[0, 1\)"):
        tiny(stochastic_depth_rate=1.0)
