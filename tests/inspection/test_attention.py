"""Attention scores and rollout against the reference's, and the picture of them."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import (
    attention_distance,
    attention_rollout,
    attention_scores,
    output_attention,
)
from keras_vit.inspection.attention import NoAttentionError, all_of_attention, rollout
from keras_vit.inspection.attention import _readers as readers
from keras_vit.inspection.page import _query as page_query
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
    maps = attention_rollout(model, images, resized=False)
    assert maps.shape == (2, *grid)
    by_hand = rollout_by_hand(scores_of(model, images), classifier == "token", grid)
    np.testing.assert_allclose(maps, by_hand, atol=1e-6)
    assert np.ptp(maps, axis=(1, 2)).min() > 1e-4  # Not uniform: the order is tested.
    assert maps.sum((1, 2)).max() <= 1 + 1e-6


TINY = keras_vit.ViTConfig(
    patch_size=8, num_layers=2, hidden_size=16, mlp_dim=32, num_heads=2
)


@pytest.mark.parametrize(
    "changes",
    [
        {"classifier": "token", "num_registers": 2},
        {"classifier": "gap", "num_registers": 1},
        {"classifier": "gap", "num_registers": 1, "pool_prefix": True},
        {"classifier": "token_gap", "num_registers": 1},
    ],
    ids=str,
)
def test_the_readers_are_the_heads(changes):
    """Each token's share, measured: the head's input for one token that is 1."""
    config = keras_vit.PlainViTConfig(
        patch_size=8, num_layers=1, hidden_size=16, mlp_dim=16, num_heads=2, **changes
    )
    model = keras_vit.plain_vit(config, image_size=(16, 24), num_classes=3)
    norm = model.get_layer("encoder_norm")
    reads = keras.Model(norm.output, model.get_layer("head").input)
    count = norm.output.shape[1]
    ones = np.eye(count, dtype="float32")[:, :, None].repeat(16, axis=2)
    shares = keras.ops.convert_to_numpy(reads(ones)).mean(axis=1)
    np.testing.assert_allclose(readers(model), shares, atol=1e-6)
    assert (
        page_query(model)
        == {
            "token": "the class token",
            "token_gap": "the class token and the mean of the patches, in the mean,",
            "gap": "the mean of all tokens"
            if "pool_prefix" in changes
            else "the mean of the patches",
        }[changes["classifier"]]
    )


def looking(monkeypatch, model, patterns):
    """Lets each layer of `model` attend as [T, T] `patterns` say, in all heads."""
    for layer, pattern in enumerate(patterns):
        block = model.get_layer(f"encoderblock_{layer}")
        answer = keras.ops.convert_to_tensor(pattern[None, None], "float32")
        monkeypatch.setattr(block, "attention_scores", lambda z, answer=answer: answer)


def looks(tokens, **at):
    """Attention of each token on itself, but for those that look `at` another one."""
    pattern = np.eye(tokens)
    for query, key in at.items():
        pattern[int(query[1:])] = np.eye(tokens)[key]
    return pattern


@pytest.mark.parametrize("registers", [0, 2])
def test_hand_made_attention_gives_the_hand_computed_picture(registers, monkeypatch):
    """The class token looks at patch 2, which looked at patch 5: half of a half."""
    config = dataclasses.replace(TINY, num_registers=registers)
    model = keras_vit.vit(config, image_size=(16, 24), num_classes=3)
    first = registers + 1
    below = looks(first + 6, **{f"t{first + 2}": first + 5})
    above = looks(first + 6, t0=first + 2)
    looking(monkeypatch, model, [below, above])
    maps = attention_rollout(model, np.zeros((1, 16, 24, 3), np.float32), resized=False)
    np.testing.assert_allclose(maps, [[[0, 0, 0.25], [0, 0, 0.25]]], atol=1e-7)


def test_gap_models_average_the_rows_of_the_patches(monkeypatch):
    """Registers are not read; every patch looks at patch 4 and, itself, at itself."""
    config = dataclasses.replace(TINY, classifier="gap", num_registers=1)
    model = keras_vit.vit(config, image_size=(16, 24), num_classes=3)
    all_at_4 = looks(7, **{f"t{1 + patch}": 1 + 4 for patch in range(6)})
    looking(monkeypatch, model, [all_at_4, np.eye(7)])
    images = np.zeros((1, 16, 24, 3), np.float32)
    maps = attention_rollout(model, images, resized=False)
    ours = np.full((2, 3), 1 / 12)  # A sixth of the half that the identity leaves.
    ours[1, 1] += 1 / 2
    np.testing.assert_allclose(maps, [ours], atol=1e-6)


@pytest.mark.parametrize("size", [(32, 32), (24, 56)])
def test_maps_are_resized_as_pillow_resizes(size):
    """Bilinear between middles of patches, as the paper's notebook does by OpenCV."""
    image = pytest.importorskip("PIL.Image")
    model = keras_vit.vit(TINY, image_size=size, num_classes=3)
    images = np.random.default_rng(0).uniform(-9, 9, (3, *size, 3)).astype(np.float32)
    small = attention_rollout(model, images, resized=False)
    large = attention_rollout(model, images, batch_size=2)
    assert large.shape == (3, *size)
    for one, other in zip(small, large, strict=True):
        theirs = image.fromarray(one).resize(size[::-1], image.Resampling.BILINEAR)
        np.testing.assert_allclose(other, np.asarray(theirs), atol=1e-6)


@pytest.mark.parametrize("side", [33, 72])
def test_a_hybrids_maps_fit_images_that_its_patches_do_not(side):
    """Patches of 16 px: 3 over 33 px, which stick out; 5 over 72, the last one half."""
    resnet = dataclasses.replace(
        keras_vit.VARIANTS["R50+ViT-B/16"].resnet, num_layers=(1,), width=32
    )
    config = dataclasses.replace(TINY, patch_size=4, resnet=resnet)
    model = keras_vit.vit(config, image_size=(side, 64), num_classes=3)
    images = np.random.default_rng(0).normal(size=(2, side, 64, 3)).astype(np.float32)
    small = attention_rollout(model, images, resized=False)
    large = attention_rollout(model, images)
    assert large.shape == (2, side, 64)
    # Between 7 and 8, where the first row of patches has its middle.
    np.testing.assert_allclose(
        large[:, 7:9, 7:9].mean((1, 2)),
        small[:, 0, 0]
        + (small[:, 0, 1] - small[:, 0, 0] + small[:, 1, 0] - small[:, 0, 0]) / 64,
        rtol=1e-3,
    )


@pytest.mark.parametrize("classifier", ["token", "gap", "map"])
def test_what_the_output_attends_to_is_the_heads_row(classifier):
    config = dataclasses.replace(TINY, classifier=classifier, num_registers=1)
    model = keras_vit.vit(config, image_size=(16, 24), num_classes=3)
    images = np.random.default_rng(0).uniform(-9, 9, (3, 16, 24, 3)).astype(np.float32)
    scores = scores_of(model, images)
    prefix = config.num_prefix_tokens
    rows = (
        scores[..., 0, :] if classifier == "token" else scores[..., prefix:, :].mean(-2)
    )
    found = output_attention(model, images, batch_size=2)
    np.testing.assert_allclose(
        found, rows[..., prefix:].reshape(3, 2, 2, 2, 3), atol=1e-6
    )


@pytest.mark.parametrize("pooling", ["token", "avg", "max"])
def test_pooling_over_all_tokens_reads_all_rows(pooling):
    """The builders' "avg" and "max" pool the class token with the patches."""
    model = keras_vit.ViT_Ti16(
        weights=None, include_top=False, pooling=pooling, input_shape=(32, 48, 3)
    )
    images = np.random.default_rng(0).uniform(-9, 9, (1, 32, 48, 3)).astype(np.float32)
    joint = np.eye(7)
    for layer in scores_of(model, images)[0]:
        joint = (layer.mean(0) + np.eye(7)) / 2 @ joint
    row = joint[0] if pooling == "token" else joint.mean(0)
    found = attention_rollout(model, images, resized=False)
    np.testing.assert_allclose(found[0].ravel(), row[1:], atol=1e-6)
    task = keras_vit.for_task(model, 3)
    again = attention_rollout(task, images, resized=False)
    np.testing.assert_allclose(again, found, atol=1e-6)


@pytest.mark.parametrize(
    "function", [attention_rollout, output_attention, attention_distance]
)
def test_no_images_and_no_batch(function):
    model = keras_vit.vit(TINY, image_size=(16, 24), num_classes=3)
    images = np.zeros((2, 16, 24, 3), np.float32)
    with pytest.raises(ValueError, match="Received: none"):
        function(model, images[:0])
    for batch_size in (0, -1):
        with pytest.raises(ValueError, match=f"Received: batch_size={batch_size}"):
            function(model, images, batch_size)


@pytest.mark.parametrize(
    "function",
    [
        attention_scores,
        attention_rollout,
        rollout,
        output_attention,
        attention_distance,
        all_of_attention,
    ],
)
def test_models_without_global_attention_are_refused_by_name(function):
    resnet = keras_vit.resnet(
        keras_vit.ResNetConfig(num_layers=(1,), width=32),
        image_size=(32, 32),
        num_classes=3,
    )
    config = dataclasses.replace(TINY, classifier="gap", attention="axial")
    axial = keras_vit.vit(config, image_size=(32, 32), num_classes=3)
    images = np.zeros((1, 32, 32, 3), np.float32)
    with pytest.raises(NoAttentionError, match="a ResNet without any attention"):
        function(resnet, images)
    with pytest.raises(NoAttentionError, match="along rows and columns"):
        function(axial, images)


PEAK = """
import sys
from pathlib import Path

import numpy as np

import keras_vit

def held(what):  # KiB that this process holds, or held at most.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))

model = keras_vit.ViT_B16(weights=None, include_top=False)
images = np.random.default_rng(0).normal(size=(64, 224, 224, 3)).astype("float32")
before = held("VmRSS")
if sys.argv[1] == "plain":
    model.predict(images, batch_size=64, verbose=0)
else:
    keras_vit.inspection.attention_rollout(model, images, batch_size=64)
print(held("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.tensorflow_only
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_rollout_holds_less_than_two_plain_forward_passes(agree):
    """64 images at 224 px on ViT-B/16, at once; beyond what the model itself holds."""
    plain, rollout = (
        int(
            subprocess.run(
                [sys.executable, "-c", PEAK, what],
                check=True,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[2],
            ).stdout
        )
        for what in ("plain", "rollout")
    )
    agree("rollout's memory over a plain pass's", rollout / plain, 1, 1)
    assert rollout < 2 * plain


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
    # 2 * 1.6 * 32 / 48 + 0.6 by 3 * 1.6 inches, 150 dots an inch.
    assert drawn.shape[:2] == (410, 720)
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
    with pytest.raises(OSError, match=r"Cannot write .*maps.png"):
        plots.attention_maps(*pictures, ["a", "b", "c"], tmp_path / "maps.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("position_at", ["stem", "every_layer_shared"])
def test_keras_before_3_15_gives_the_same_scores(position_at, monkeypatch):
    """There a Function cannot start between layers (make colab, make floor)."""
    keras.utils.set_random_seed(0)
    config = keras_vit.ViTConfig(
        patch_size=8,
        num_layers=3,
        hidden_size=24,
        mlp_dim=32,
        num_heads=3,
        position_at=position_at,
    )
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=2)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    scores = scores_of(model, images)
    function = keras.Function

    def disconnected(inputs, outputs):
        if inputs is not model.input:
            raise ValueError("Graph disconnected")
        return function(inputs, outputs)

    monkeypatch.setattr(keras, "Function", disconnected)
    again = scores_of(model, images)
    np.testing.assert_allclose(again, scores, atol=1e-6)
