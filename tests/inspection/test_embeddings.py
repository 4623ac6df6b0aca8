"""Attention distance, embedding filters and positions, against hand computations."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.configs import HYBRID_VARIANTS
from keras_vit.inspection import (
    attention_distance,
    attention_scores,
    embedding_filters,
    position_similarity,
)
from keras_vit.inspection.attention import mean_distance, patch_distances
from keras_vit.layers.positions import sincos2d
from tests.conftest import REFERENCE


def tiny(size=(32, 48), **changes):
    keras.utils.set_random_seed(0)
    settings = {"patch_size": 8, "num_layers": 2, "hidden_size": 16, "mlp_dim": 32}
    config = keras_vit.ViTConfig(**settings | {"num_heads": 2} | changes)
    return keras_vit.vit(config, image_size=size, num_classes=3)


def noise(count, size=(32, 48)):
    rng = np.random.default_rng(0)
    return rng.uniform(-3, 3, (count, *size, 3)).astype("float32")


# D.7.


def distances_by_hand(scores, grid, patch_size, prefix):
    """In loops over the queries and keys of every image, layer and head."""
    images, layers, heads = scores.shape[:3]
    places = [(y * patch_size, x * patch_size) for y, x in np.ndindex(*grid)]
    found = np.zeros((layers, heads))
    for image, layer, head in np.ndindex(images, layers, heads):
        weights = scores[image, layer, head, prefix:, prefix:].astype(np.float64)
        for query, (y, x) in enumerate(places):
            row = weights[query] / weights[query].sum()
            for key, (v, u) in enumerate(places):
                found[layer, head] += row[key] * np.hypot(y - v, x - u)
    return found / images / len(places)


@pytest.mark.parametrize("name", ["vit_mini", "vit_mini_gap"])
def test_distances_of_the_references_attention(name, agree):
    model = keras_vit.from_checkpoint(REFERENCE / f"{name}.npz")
    reference = np.load(REFERENCE / f"{name}_io.npz")
    theirs = np.stack(
        [
            reference[
                f"inter/Transformer/encoderblock_{i}/"
                "MultiHeadDotProductAttention_0/attention_weights"
            ]
            for i in range(2)
        ],
        axis=1,
    )
    prefix = theirs.shape[-1] - 16
    patch_size = reference["images"].shape[1] // 4
    expected = distances_by_hand(theirs, (4, 4), patch_size, prefix)
    found = attention_distance(model, reference["images"], batch_size=1)
    agree(f"attention distance of {name}", found, expected, 1e-4)


@pytest.mark.parametrize("changes", [{}, {"classifier": "gap"}, {"num_registers": 2}])
def test_uniform_attention_is_the_mean_of_all_distances(changes):
    model = tiny(**changes)
    for i in range(2):
        kernel = model.get_layer(f"encoderblock_{i}").attention.qkv
        kernel.set_weights([0 * weight for weight in kernel.get_weights()])
    rows, columns = (8.0 * np.arange(n) for n in (4, 6))
    across = np.subtract.outer(columns, columns)[None, :, None, :]
    down = np.subtract.outer(rows, rows)[:, None, :, None]
    closed_form = np.hypot(down, across).mean()
    found = attention_distance(model, noise(3), batch_size=2)
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found, closed_form, rtol=1e-5)


def test_hand_made_attention():
    """On a grid of 2 x 3: to itself; to the next column, around; to the other row."""
    own = np.arange(6).reshape(2, 3)
    looks = [own, np.roll(own, -1, axis=1), np.roll(own, 1, axis=0)]
    scores = np.stack([np.eye(6)[look.ravel()] for look in looks])[None]
    found = mean_distance(scores.astype("float32"), patch_distances((2, 3), 10), 0)
    found = keras.ops.convert_to_numpy(found)
    np.testing.assert_allclose(found, [[0, (10 + 10 + 20) / 3, 10]], rtol=1e-6)


def test_a_hybrids_patches_lie_a_patch_of_pixels_apart():
    resnet = dataclasses.replace(
        HYBRID_VARIANTS["R50+ViT-B/16"].resnet, num_layers=(), width=32
    )
    model = tiny(patch_size=2, resnet=resnet)
    images = noise(2)
    scores = keras.ops.convert_to_numpy(attention_scores(model, images))
    expected = distances_by_hand(scores, (4, 6), 8, 1)
    np.testing.assert_allclose(attention_distance(model, images), expected, rtol=1e-4)


def test_a_query_that_looks_at_no_patch_looks_no_pixel_far():
    """All on the class token, but for the first patch, which looks at the last."""
    scores = np.zeros((1, 1, 3, 3), "float32")
    scores[..., 0] = 1
    scores[0, 0, 1] = [0, 0, 1]
    found = mean_distance(scores, patch_distances((1, 2), 10), 1)
    assert keras.ops.convert_to_numpy(found).tolist() == [[5]]
    scores[0, 0, 2] = np.nan  # Of an image that is no number, there is none.
    found = mean_distance(scores, patch_distances((1, 2), 10), 1)
    assert np.isnan(keras.ops.convert_to_numpy(found)).all()


# Figure 7, left.


@pytest.mark.parametrize("seed", [1, 5])  # With pictures of sums above 1, and below.
def test_filters_are_the_directions_of_most_variance(seed):
    """Filters made of three known pictures: they come back, by their share."""
    model = tiny()
    rng = np.random.default_rng(seed)
    pictures, _ = np.linalg.qr(rng.normal(size=(192, 3)))
    shares = rng.normal(size=(16, 3))
    shares, _ = np.linalg.qr(shares - shares.mean(0))
    kernel = pictures @ (np.diag([3.0, 2.0, 1.0]) @ shares.T) + 0.7
    projection = model.get_layer("embedding").projection
    projection.kernel.assign(kernel.reshape(8, 8, 3, 16))
    found = embedding_filters(model, 3)
    assert found.shape == (3, 8, 8, 3)
    likeness = found.reshape(3, 192) @ pictures
    np.testing.assert_allclose(np.abs(likeness), np.eye(3), atol=1e-4)
    assert (found.sum((1, 2, 3)) > 0).all()


def test_filters_that_are_not_there():
    with pytest.raises(ValueError, match=r"1 to 16 components.*components=28"):
        embedding_filters(tiny())
    resnet = dataclasses.replace(
        HYBRID_VARIANTS["R50+ViT-B/16"].resnet, num_layers=(), width=32
    )
    with pytest.raises(ValueError, match=r"patches of pixels\. Received: a hybrid"):
        embedding_filters(tiny(patch_size=2, resnet=resnet), 3)


# Figure 7, centre, and Figure 10.


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"classifier": "gap"},
        {"num_registers": 2},
        {"position": "2d"},
        {"position": "sincos2d"},
        {"position_at": "every_layer_shared"},
    ],
)
def test_cosines_of_positions(changes):
    model = tiny(**changes)
    found = position_similarity(model)
    assert found.shape == (4, 6, 4, 6)
    config = model.config
    prefix = config.num_prefix_tokens
    if config.position == "sincos2d":
        table = sincos2d((4, 6), 16)[0]
    elif config.position == "2d":
        layer = model.get_layer("posembed_input")
        x = keras.ops.convert_to_numpy(layer.x_embedding)[0]
        y = keras.ops.convert_to_numpy(layer.y_embedding)[0]
        table = np.stack([np.r_[x[j], y[i]] for i, j in np.ndindex(4, 6)])
    else:
        shared = "at" if "position_at" in changes else "input"
        name = "posembed_shared" if shared == "at" else "posembed_input"
        table = model.get_layer(name).get_weights()[0][0, prefix:]
    for (i, j), (k, m) in (((0, 0), (0, 0)), ((1, 2), (3, 5)), ((3, 0), (0, 4))):
        a, b = table[6 * i + j].astype(float), table[6 * k + m].astype(float)
        cosine = a @ b / np.sqrt((a @ a) * (b @ b))
        assert found[i, j, k, m] == pytest.approx(cosine, abs=1e-6)


def test_positions_of_every_layer_are_its_own():
    model = tiny(position_at="every_layer")
    for layer, name in enumerate(["posembed_input", "posembed_1"]):
        table = model.get_layer(name).get_weights()[0][0, 1:].astype(float)
        table /= np.linalg.norm(table, axis=1, keepdims=True)
        found = position_similarity(model, layer).reshape(24, 24)
        np.testing.assert_allclose(found, table @ table.T, atol=1e-6)
    with pytest.raises(ValueError, match=r"0 to 1 .*Received: layer=2"):
        position_similarity(model, 2)


def test_a_position_of_zeros_is_like_none():
    model = tiny()
    (table,) = model.get_layer("posembed_input").get_weights()
    table[0, 1] = 0  # The first patch's, behind the class token's.
    model.get_layer("posembed_input").set_weights([table])
    found = position_similarity(model)
    assert (found[0, 0] == 0).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("position", ["none", "relative"])
def test_positions_that_are_not_added(position):
    with pytest.raises(ValueError, match="no positions or relative ones"):
        position_similarity(tiny(position=position))


def test_figure_7(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    plots = pytest.importorskip("keras_vit.inspection.plots")
    model = tiny()
    plots.figure_7(
        embedding_filters(model, 10),
        position_similarity(model),
        attention_distance(model, noise(2)),
        tmp_path / "figure_7.png",
    )
    drawn = image.imread(tmp_path / "figure_7.png")
    assert drawn.shape[:2] == (600, 1800)
    for part in np.split(drawn[..., :3], 3, axis=1):
        assert part.std() > 0.05
