"""D.3's heads: what each reads, and MAP against the formula in loops."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import MAPHead
from tests.layers import by_hand
from tests.models.families import names


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
@pytest.mark.parametrize("tokens", names([1, 6], {6}))
def test_map_is_the_formula(tokens, gelu):
    layer = MAPHead(3, 16, gelu, 1e-3)
    layer.build((None, tokens, 12))
    by_hand.randomize(layer)
    z = np.random.default_rng(1).standard_normal((2, tokens, 12)).astype("float32")
    expected = [by_hand.map_head(image, layer) for image in z]
    np.testing.assert_allclose(numpy(layer(z)), expected, atol=5e-5)


def test_scores_of_map_are_the_probes_over_the_keys():
    layer = MAPHead(3, 16)
    layer.build((None, 6, 12))
    by_hand.randomize(layer)
    z = np.random.default_rng(1).standard_normal((2, 6, 12)).astype("float32")
    expected = np.stack([by_hand.probe_attention(image, layer) for image in z])
    scores = numpy(layer.attention_scores(z))
    np.testing.assert_allclose(scores, expected[:, :, None], atol=2e-6)


def test_map_does_not_see_the_order():
    layer = MAPHead(3, 16)
    layer.build((None, 6, 12))
    by_hand.randomize(layer)
    z = np.random.default_rng(1).standard_normal((2, 6, 12)).astype("float32")
    np.testing.assert_allclose(numpy(layer(z)), numpy(layer(z[:, ::-1])), atol=1e-5)


def test_heads_of_map_divide_the_depth():
    with pytest.raises(ValueError, match=r"D_h = D / k.*num_heads=5"):
        MAPHead(5, 16)(np.zeros((2, 6, 12), "float32"))


def test_map_reads_tokens_in_half_precision():
    layer = MAPHead(3, 16, dtype="mixed_bfloat16")
    layer.build((None, 6, 12))
    by_hand.randomize(layer)
    z = np.random.default_rng(1).standard_normal((2, 6, 12)).astype("float32")
    expected = np.stack([by_hand.map_head(image, layer) for image in z])
    y = numpy(keras.ops.cast(layer(z), "float32"))
    np.testing.assert_allclose(y, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("num_registers", names([0, 2], {2}))
@pytest.mark.parametrize(
    "classifier", ["token", "gap", "map", "unpooled", "token_unpooled", "distilled"]
)
def test_what_the_head_reads(classifier, num_registers):
    config = keras_vit.ViTConfig(
        patch_size=4,
        num_layers=1,
        hidden_size=12,
        mlp_dim=16,
        num_heads=3,
        classifier=classifier,
        num_registers=num_registers,
    )
    model = keras_vit.vit(config, image_size=(8, 12), num_classes=5)
    by_hand.randomize(model)
    images = np.random.default_rng(3).uniform(-1, 1, (2, 8, 12, 3)).astype("float32")
    tokens = by_hand.vit(model, images, config)
    patches = tokens[:, config.num_prefix_tokens :]
    assert patches.shape[1] == 6
    features = {
        "token": lambda: tokens[:, 0],
        "gap": lambda: patches.mean(1),
        "map": lambda: np.stack(
            [by_hand.map_head(z, model.get_layer("MAPHead_0")) for z in patches]
        ),
        "unpooled": lambda: tokens,
        "token_unpooled": lambda: tokens,
        "distilled": lambda: np.concatenate([tokens[:, 0], tokens[:, 1]], -1),
    }[classifier]()
    expected = by_hand.dense(features, model.get_layer("head"))
    np.testing.assert_allclose(numpy(model(images)), expected, atol=1e-4)
