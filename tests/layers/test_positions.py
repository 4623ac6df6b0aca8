"""D.4: positions of every kind and place, against the definitions in loops."""

import keras
import numpy as np
import pytest
import scipy.ndimage

import keras_vit
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers.any_size import ResizedPositionEmbs
from keras_vit.layers.positions import sincos2d
from tests.layers import by_hand
from tests.models.families import names

KINDS = ("1d", "2d", "sincos2d")


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def config_of(**fields):
    tiny = {
        "patch_size": 4,
        "num_layers": 3,
        "hidden_size": 16,
        "mlp_dim": 24,
        "num_heads": 2,
    }
    return keras_vit.ViTConfig(**{**tiny, **fields})


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("grid", names([(2, 3), (3, 2), (1, 4), (4, 1)], {(2, 3)}))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_added(kind, grid, prefix):
    tokens = prefix + grid[0] * grid[1]
    z = keras.Input((tokens, 8))
    layer = AddPositionEmbs(grid, prefix, kind)
    layer(z)
    if layer.weights:
        by_hand.randomize(layer)
    x = np.random.default_rng(1).standard_normal((2, tokens, 8)).astype("float32")
    np.testing.assert_allclose(numpy(layer(x)), x + by_hand.positions(layer), atol=1e-6)


@pytest.mark.parametrize("bare", [0, 2])
@pytest.mark.parametrize("grid", [(2, 3), (3, 2), (1, 7), (5, 1), (6, 9)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_added_for_images_of_any_size(kind, grid, bare):
    """3.2: the table, resized as SciPy's zoom of order 1 does for the official code."""
    old, depth, patch = (2, 3), 8, 4
    layer = ResizedPositionEmbs(patch, old, 1, kind, num_bare_tokens=bare)
    tokens = np.random.default_rng(1).standard_normal(
        (2, 1 + bare + grid[0] * grid[1], depth)
    )
    tokens = tokens.astype("float32")
    # Sides that are no multiples of P count in whole patches.
    images = np.zeros((2, grid[0] * patch + 3, grid[1] * patch + 1, 3), "float32")
    layer.build(tokens.shape, images.shape)
    by_hand.randomize(layer)
    if kind == "sincos2d":
        prefix, places = np.zeros((1, depth)), by_hand.positions_sincos2d(grid, depth)
    else:
        table = by_hand.positions(layer)
        prefix, places = table[:1], table[1:].reshape(*old, depth)
        ratios = [new / side for new, side in zip(grid, old, strict=True)]
        places = scipy.ndimage.zoom(places, [*ratios, 1], order=1)
    expected = np.concatenate(
        [prefix, np.zeros((bare, depth)), places.reshape(-1, depth)]
    )
    added = numpy(layer(tokens, images)) - tokens
    np.testing.assert_allclose(added, np.stack([expected] * 2), atol=3e-6)


def test_2d_learns_rows_and_columns_apart():
    """D.4: D/2 for X and D/2 for Y; so few parameters, all of them N(0, 0.02)."""
    layer = AddPositionEmbs((20, 30), 1, "2d")
    layer.build((None, 601, 64))
    shapes = {v.name: tuple(v.shape) for v in layer.trainable_variables}
    assert shapes == {
        "x_embedding": (1, 30, 32),
        "y_embedding": (1, 20, 32),
        "prefix_embedding": (1, 1, 64),
    }
    for variable in layer.weights:
        assert 0.015 < numpy(variable).std() < 0.025


@pytest.mark.parametrize(("grid", "depth"), [((3, 5), 16), ((2, 2), 8), ((7, 1), 12)])
def test_sincos2d_is_the_formula(grid, depth):
    np.testing.assert_allclose(
        sincos2d(grid, depth)[0], by_hand.positions_sincos2d(grid, depth), atol=1e-6
    )


def test_sincos2d_is_not_learned():
    layer = AddPositionEmbs((2, 3), 1, "sincos2d")
    layer.build((None, 7, 8))
    assert layer.weights == []


@pytest.mark.parametrize("classifier", names(["token", "gap", "distilled"], {"token"}))
@pytest.mark.parametrize("position", ["none", *KINDS])
@pytest.mark.parametrize("place", ["stem", "every_layer", "every_layer_shared"])
def test_the_whole_model(position, place, classifier):
    config = config_of(
        position=position, position_at=place, classifier=classifier, num_registers=1
    )
    model = keras_vit.vit(config, image_size=(12, 8), num_classes=None)
    by_hand.randomize(model)
    images = np.random.default_rng(3).uniform(-1, 1, (1, 12, 8, 3)).astype("float32")
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)
    np.testing.assert_allclose(
        numpy(tokens(images)), by_hand.vit(model, images, config), atol=5e-5
    )


@pytest.mark.parametrize(
    ("place", "tables"), [("stem", 1), ("every_layer", 3), ("every_layer_shared", 1)]
)
def test_tables_of_a_place(place, tables):
    config = config_of(position_at=place)
    model = keras_vit.vit(config, image_size=(12, 8), num_classes=2)
    found = [v for v in model.trainable_variables if "posembed" in v.path]
    assert len(found) == tables


@pytest.mark.parametrize("position", ["none", "sincos2d"])
def test_without_learned_positions_order_is_lost_or_fixed(position):
    """Without positions, patches in another order give the same answer."""
    config = config_of(position=position)
    model = keras_vit.vit(config, image_size=(8, 8), num_classes=None)
    by_hand.randomize(model)
    image = np.random.default_rng(0).uniform(-1, 1, (1, 8, 8, 3)).astype("float32")
    swapped = np.concatenate([image[:, 4:], image[:, :4]], axis=1)
    difference = np.abs(numpy(model(image)) - numpy(model(swapped))).max()
    assert (difference < 1e-5) == (position == "none")


@pytest.mark.parametrize(
    ("arguments", "tokens", "law"),
    [
        (((2, 3), 0, "3d"), 6, r"kind to be one of.*kind='3d'"),
        ((None, 0, "2d"), 6, r"with a grid.*grid=None"),
        (((2, 3), 1, "2d"), 6, r"T = num_prefix_tokens.*T=6"),
        (((2, 3), 0, "1d"), 7, r"T = num_prefix_tokens.*T=7"),
    ],
)
def test_impossible_arguments(arguments, tokens, law):
    with pytest.raises(ValueError, match=law):
        AddPositionEmbs(*arguments).build((None, tokens, 8))


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"position": "3d"}, "position to be one of none, 1d"),
        ({"position_at": "each"}, "position_at to be one of stem"),
        ({"position": "2d", "hidden_size": 15, "num_heads": 1}, "multiple of 2"),
        ({"position": "sincos2d", "hidden_size": 18}, "multiple of 4"),
        ({"position": "sincos2d", "hidden_size": 4}, "at least 8"),
    ],
)
def test_impossible_configs(changes, law):
    with pytest.raises(ValueError, match=rf"Expected .*{law}.*Received: "):
        config_of(**changes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_layer_is_the_same(kind, tmp_path):
    model = keras.Sequential(
        [keras.Input((7, 8)), AddPositionEmbs((2, 3), 1, kind, name="posembed_input")]
    )
    if model.weights:
        by_hand.randomize(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(1).standard_normal((2, 7, 8)).astype("float32")
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
