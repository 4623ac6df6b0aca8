"""D.6: attention along rows, then along columns, against loops over both."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import AxialAttention, AxialBlock, AxialUnit
from tests.layers import by_hand
from tests.models.families import names


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def built(layer, shape, scale=0.5):
    keras.utils.set_random_seed(0)
    layer(keras.Input(shape))
    return by_hand.randomize(layer, scale)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("grid", names([(2, 3), (3, 2), (1, 4), (4, 1)], {(2, 3)}))
@pytest.mark.parametrize("gelu", names(["tanh", "erf"], {"erf"}))
def test_block(grid, relative, gelu):
    tokens = grid[0] * grid[1]
    layer = built(
        AxialBlock(grid, 2, 12, gelu=gelu, relative=relative, layer_norm_epsilon=1e-3),
        (tokens, 8),
    )
    z = np.random.default_rng(1).standard_normal((2, tokens, 8)).astype("float32")
    expected = [by_hand.axial_block(image, layer) for image in z]
    np.testing.assert_allclose(numpy(layer(z)), expected, atol=5e-5)


def test_a_row_sees_no_other_row_before_the_columns():
    """A change of one token reaches its row, and only then all columns."""
    layer = built(AxialBlock((3, 4), 2, 12), (12, 8))
    z = np.random.default_rng(1).standard_normal((1, 12, 8)).astype("float32")
    changed = z.copy()
    changed[0, 5] *= -1  # Row 1, column 1.
    x, y = (value.reshape(3, 4, 8) for value in (z, changed))
    moved = np.abs(numpy(layer.row(x)) - numpy(layer.row(y))).max(-1) > 1e-6
    assert moved.tolist() == [[False] * 4, [True] * 4, [False] * 4]
    assert (np.abs(numpy(layer(z)) - numpy(layer(changed))).max(-1) > 1e-6).all()


def test_rows_and_columns_have_weights_of_their_own():
    """Two attentions and two MLPs, as D.6 has it: twice an encoder layer's."""
    layer = AxialBlock((2, 3), 2, 12)
    layer.build((None, 6, 8))
    plain = keras_vit.TransformerBlock(2, 12)
    plain.build((None, 6, 8))
    assert layer.count_params() == 2 * plain.count_params()


def test_dropout_reaches_both():
    layer = AxialBlock((2, 3), 2, 12, dropout_rate=0.25, attention_dropout_rate=0.5)
    layer.build((None, 6, 8))
    for inner in (layer.row, layer.column):
        assert inner.dropout.rate == inner.mlp.dropout.rate == 0.25
        assert inner.attention.dropout.rate == 0.5


def test_tokens_are_those_of_the_grid():
    with pytest.raises(ValueError, match=r"T = rows \* columns.*T=7, grid=\(2, 3\)"):
        AxialBlock((2, 3), 2, 12).build((None, 7, 8))


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("size", names([(4, 6), (5, 3), (1, 4)], {(5, 3)}))
def test_attention_of_a_feature_map(size, strides):
    layer = built(AxialAttention(2, strides), (*size, 8), 0.2)
    x = np.random.default_rng(1).standard_normal((2, *size, 8)).astype("float32")
    expected = np.stack([by_hand.axial_attention(image, layer) for image in x])
    assert layer.compute_output_shape(x.shape) == expected.shape
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=2e-5)


@pytest.mark.parametrize("channels", names([128, 32], {128}))
@pytest.mark.parametrize("strides", names([1, 2], {2}))
def test_unit(strides, channels):
    layer = built(AxialUnit(32, strides, num_heads=4), (5, 4, channels), 0.1)
    assert (layer.conv_proj is None) == ((strides, channels) == (1, 128))
    x = np.random.default_rng(1).standard_normal((2, 5, 4, channels)).astype("float32")
    expected = np.stack([by_hand.unit(image, layer) for image in x])
    assert layer.compute_output_shape(x.shape) == expected.shape
    error = np.abs(numpy(layer(x)) - expected).max()
    assert error <= 1e-5 * np.abs(expected).max()


def test_heads_divide_the_filters():
    with pytest.raises(ValueError, match=r"D_h = D / k.*num_heads=5"):
        AxialUnit(32, num_heads=5)(keras.Input((4, 4, 32)))


@pytest.mark.parametrize("position", names(["1d", "2d", "relative"], {"relative"}))
def test_the_whole_model(position):
    config = keras_vit.ViTConfig(
        patch_size=4,
        num_layers=2,
        hidden_size=16,
        mlp_dim=24,
        num_heads=2,
        classifier="gap",
        attention="axial",
        position=position,
    )
    model = keras_vit.vit(config, image_size=(8, 12), num_classes=5)
    by_hand.randomize(model)
    images = np.random.default_rng(3).uniform(-1, 1, (2, 8, 12, 3)).astype("float32")
    tokens = by_hand.vit(model, images, config)
    expected = by_hand.dense(tokens.mean(1), model.get_layer("head"))
    np.testing.assert_allclose(numpy(model(images)), expected, atol=5e-5)


@pytest.mark.parametrize("fields", [{}, {"classifier": "gap", "num_registers": 2}])
def test_no_token_without_a_place(fields):
    with pytest.raises(ValueError, match=r"D\.6.*Received: classifier="):
        keras_vit.ViTConfig(
            patch_size=4,
            num_layers=2,
            hidden_size=16,
            mlp_dim=24,
            num_heads=2,
            attention="axial",
            **fields,
        )
