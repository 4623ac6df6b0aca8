"""Attention scores and rollout against the reference's, and the picture of them."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_rollout, attention_scores
from tests.conftest import REFERENCE


def scores_of(model, images):
    return keras.ops.convert_to_numpy(attention_scores(model, images))


@pytest.mark.parametrize("name", ["vit_mini", "vit_mini_gap", "vit_mini_rep"])
def test_scores_are_the_references(name, agree):
    model = keras_vit.from_checkpoint(REFERENCE / f"{name}.npz")
    reference = np.load(REFERENCE / f"{name}_io.npz")
    scores = scores_of(model, reference["images"])
    tokens = 16 if name == "vit_mini_gap" else 17
    assert scores.shape == (2, 2, 4, tokens, tokens)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    for i in range(2):
        theirs = reference[
            f"inter/Transformer/encoderblock_{i}/"
            "MultiHeadDotProductAttention_0/attention_weights"
        ]
        agree(f"{name}: attention {i}", scores[:, i], theirs, 1e-5)


def rollout_by_hand(scores, prefix, grid):
    """D.8 after Abnar and Zuidema (2020), in loops."""
    maps = []
    for image in scores:
        joint = np.eye(scores.shape[-1])
        for layer in image:
            mixed = layer.mean(0) + np.eye(len(joint))
            joint = mixed / mixed.sum(-1, keepdims=True) @ joint
        row = joint[0, prefix:] if prefix else joint.mean(0)
        maps.append(row.reshape(grid))
    return np.stack(maps)


@pytest.mark.parametrize("classifier", ["token", "gap"])
@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
def test_rollout_is_the_formulas(classifier, size):
    keras.utils.set_random_seed(0)
    config = keras_vit.ViTConfig(
        patch_size=16,
        num_layers=3,
        hidden_size=32,
        mlp_dim=64,
        num_heads=4,
        classifier=classifier,
    )
    model = keras_vit.vit(config, image_size=size, num_classes=10)
    images = np.random.default_rng(0).uniform(-9, 9, (2, *size, 3)).astype(np.float32)
    grid = (size[0] // 16, size[1] // 16)
    maps = attention_rollout(model, images)
    assert maps.shape == (2, *grid)
    by_hand = rollout_by_hand(scores_of(model, images), classifier == "token", grid)
    np.testing.assert_allclose(maps, by_hand, atol=1e-6)
    assert np.ptp(maps, axis=(1, 2)).min() > 1e-4  # Not uniform: the order is tested.
    assert maps.sum((1, 2)).max() <= 1 + 1e-6


def test_rollout_needs_this_librarys_model():
    images = keras.Input((8, 8, 3))
    model = keras.Model(images, keras.layers.Flatten()(images))
    for function in (attention_scores, attention_rollout):
        with pytest.raises(ValueError, match=r"Expected a model of keras_vit"):
            function(model, np.zeros((1, 8, 8, 3), np.float32))


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return rng.uniform(0, 1, (3, 32, 48, 3)), rng.uniform(0, 1, (3, 2, 3))


def test_attention_maps_draws_a_picture(pictures, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    plots = pytest.importorskip("keras_vit.inspection.plots")
    plots.attention_maps(*pictures, ["a", "b", "c"], tmp_path / "new" / "maps.png")
    drawn = image.imread(tmp_path / "new" / "maps.png")
    assert drawn.shape[:2] == (570, 720)  # 3.8 by 3 * 1.6 inches, 150 dots an inch.
    assert drawn[..., :3].std() > 0.05
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["maps.png"]


@pytest.mark.parametrize(
    ("titles", "name"), [(["a", "b", "c"], "maps.xyz"), (["a", "b"], "maps.png")]
)
def test_attention_maps_leaves_nothing_when_it_fails(pictures, tmp_path, titles, name):
    pytest.importorskip("matplotlib")
    plots = pytest.importorskip("keras_vit.inspection.plots")
    with pytest.raises(ValueError, match=r"xyz|shorter"):
        plots.attention_maps(*pictures, titles, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_attention_maps_leaves_nothing_of_a_half_written_picture(
    pictures, tmp_path, monkeypatch
):
    figure = pytest.importorskip("matplotlib.figure")
    plots = pytest.importorskip("keras_vit.inspection.plots")

    def half(self, path, **kwargs):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", half)
    with pytest.raises(OSError, match=r"right to write .*maps.png"):
        plots.attention_maps(*pictures, ["a", "b", "c"], tmp_path / "maps.png")
    assert list(tmp_path.iterdir()) == []
