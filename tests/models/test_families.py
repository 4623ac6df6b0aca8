"""Every family alike: saved, resized, given a task, looked into, described."""

import dataclasses
import math

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
from keras_vit.layers import AddPositionEmbs, TransformerBlock
from keras_vit.layers.embeddings import Composite
from keras_vit.weights.architecture import config_of
from tests.layers import by_hand
from tests.models.families import FAMILIES, RESNETS, SIZE, VITS, build, names, vit

IMAGES = np.random.default_rng(2).uniform(-1, 1, (2, *SIZE, 3)).astype("float32")
LARGER = (40, 72)
RELATIVE = {"relative", "axial, relative", "axial resnet"}


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def reloaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


@pytest.mark.parametrize("name", names(FAMILIES, {"bit"}))
def test_saved_half_frozen_and_reloaded(name, tmp_path):
    model = build(name)
    for layer in model.layers[: len(model.layers) // 2]:
        layer.trainable = False
    again = reloaded(model, tmp_path)
    np.testing.assert_allclose(numpy(again(IMAGES)), numpy(model(IMAGES)), atol=1e-6)
    assert [(v.path, v.trainable) for v in again.variables] == [
        (v.path, v.trainable) for v in model.variables
    ]
    assert 0 < len(again.trainable_variables) < len(again.variables)
    assert config_of(again) == config_of(model)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", ["axial, relative", "map", "hybrid", "bit", "2d"])
def test_mixed_precision_is_saved(name, tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build(name)
    finally:
        keras.config.set_dtype_policy("float32")
    again = reloaded(model, tmp_path)
    policies, expected = (
        [
            layer.dtype_policy.name
            for layer in whole._flatten_layers(include_self=False)
            if layer.weights
        ]
        for whole in (again, model)
    )
    assert policies == expected
    assert policies.count("mixed_bfloat16") > 5
    np.testing.assert_allclose(numpy(again(IMAGES)), numpy(model(IMAGES)), atol=1e-6)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", FAMILIES)
def test_the_config_is_read_off_the_model(name):
    assert config_of(build(name)) == FAMILIES[name]


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", ["axial, relative", "map", "hybrid", "bit"])
def test_what_is_frozen_inside_stays_frozen(name, tmp_path):
    model = build(name)
    for layer in model.layers:
        if isinstance(layer, Composite):
            layer.sublayers()[0].trainable = False
    expected = [v.path for v in model.trainable_variables]
    assert len(expected) < len(model.weights)
    again = reloaded(model, tmp_path)
    assert [v.path for v in again.trainable_variables] == expected


def line(table, new):
    """[old, D] -> [new, D]: linear, corners on corners."""
    places = np.linspace(0, len(table) - 1, new)
    columns = [np.interp(places, range(len(table)), column) for column in table.T]
    return np.stack(columns, axis=-1)


def resized_by_hand(layer, grid):
    """The tables of an AddPositionEmbs for another grid (3.2), by name."""
    rows, columns = layer.grid
    tables = {v.name: by_hand.values(v)[0] for v in layer.weights}
    if layer.kind == "1d":
        prefix = layer.num_prefix_tokens
        table = tables["pos_embedding"]
        places = table[prefix:].reshape(rows, columns, -1)
        places = np.stack([line(row, grid[1]) for row in places])
        places = np.stack([line(places[:, c], grid[0]) for c in range(grid[1])], axis=1)
        merged = places.reshape(grid[0] * grid[1], -1)
        return {"pos_embedding": np.concatenate([table[:prefix], merged])}
    if layer.kind == "2d":
        tables["x_embedding"] = line(tables["x_embedding"], grid[1])
        tables["y_embedding"] = line(tables["y_embedding"], grid[0])
    return tables


@pytest.mark.parametrize(
    "name", names([name for name in FAMILIES if name not in RELATIVE], {"2d", "hybrid"})
)
def test_at_resolution(name):
    model = build(name)
    before = model.get_weights()
    larger = keras_vit.at_resolution(model, LARGER)
    expected = build(name, LARGER)  # Another build, given what it should hold.
    for old, own in zip(model.layers, expected.layers, strict=True):
        if isinstance(old, AddPositionEmbs):
            tables = resized_by_hand(old, own.grid)
            own.set_weights([tables[v.name][None] for v in old.weights])
        else:
            own.set_weights(old.get_weights())
    images = np.random.default_rng(5).uniform(-1, 1, (1, *LARGER, 3)).astype("float32")
    np.testing.assert_allclose(
        numpy(larger(images)), numpy(expected(images)), atol=2e-6
    )
    assert config_of(larger) == config_of(model)
    for kept, value in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(kept, value)


@pytest.mark.parametrize("name", names(sorted(RELATIVE), {"relative"}))
@pytest.mark.parametrize("size", [LARGER, SIZE[::-1]])
def test_relative_positions_have_no_other_resolution(name, size):
    """Nor in a grid of as many tokens, where the offsets would fit and be wrong."""
    model = build(name)
    with pytest.raises(ValueError, match=r"resized \(3\.2\)\. Received: .*relative"):
        keras_vit.at_resolution(model, size)
    same = keras_vit.at_resolution(model, SIZE)
    np.testing.assert_array_equal(numpy(same(IMAGES)), numpy(model(IMAGES)))


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("size", [(7, 64), (0, 64)])
def test_a_hybrid_has_at_least_one_patch(size):
    with pytest.raises(ValueError, match=r"Expected image_size"):
        keras_vit.at_resolution(build("hybrid, 2x2"), size)


@pytest.mark.parametrize(
    "name",
    names(
        ["hybrid", "bit", "v1", "axial resnet", "map", "distilled", "axial"], {"map"}
    ),
)
@pytest.mark.parametrize("num_classes", [5, None])
def test_for_task(name, num_classes):
    model = build(name, num_classes=num_classes)
    task = keras_vit.for_task(model, 3)
    assert task.layers[-1].name == "head"
    assert (numpy(task(IMAGES)) == 0).all()
    ours = {layer.name: layer for layer in model.layers}
    for layer in task.layers[:-1]:
        assert ours[layer.name] is layer
    left = {layer.name for layer in model.layers} - {at.name for at in task.layers}
    assert left <= {"pre_logits", "head"}
    assert "pre_logits" not in [layer.name for layer in task.layers]
    task.get_layer("head").kernel.assign(np.ones(task.get_layer("head").kernel.shape))
    assert np.abs(numpy(task(IMAGES))).max() > 0


@pytest.mark.tensorflow_only
def test_for_task_wants_no_feature_map():
    model = keras_vit.resnet(RESNETS["bit"], image_size=SIZE, num_classes=None)
    features = keras.Model(model.input, model.get_layer("relu_final").output)
    with pytest.raises(ValueError, match=r"features \[B, D\].*\(None, 4, 6, 256\)"):
        keras_vit.for_task(features, 3)


@pytest.mark.parametrize(
    "name", [name for name in VITS if not name.startswith("axial")]
)
def test_attention_is_each_blocks_own(name):
    model = build(name, scale=0.3)
    scores = numpy(attention_scores(model, IMAGES))
    blocks = [at for at in model.layers if isinstance(at, TransformerBlock)]
    inputs = keras.Model(model.input, [block.input for block in blocks])(IMAGES)
    for i, (block, z) in enumerate(zip(blocks, inputs, strict=True)):
        for image in range(2):
            y = by_hand.layer_norm(by_hand.values(z)[image], block.layer_norm_0)
            expected = by_hand.attention(y, block.attention)[1]
            np.testing.assert_allclose(scores[image, i], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("hybrid", {}),
        ("every layer", {}),
        ("shared", {}),
        ("distilled", {}),
        ("map", {}),
        ("2d", {"classifier": "gap", "num_registers": 2}),
        ("2d", {"classifier": "gap"}),
    ],
)
def test_rollout_reads_the_row_the_head_reads(name, fields):
    config = dataclasses.replace(VITS[name], **fields)
    model = keras_vit.vit(config, image_size=SIZE, num_classes=5)
    by_hand.randomize(model, 0.3)
    prefix = config.num_prefix_tokens
    grid = (4, 6)
    maps = attention_rollout(model, IMAGES, resized=False)
    readers = np.zeros((len(IMAGES), prefix + math.prod(grid)))
    if config.classifier == "map":  # The probe asks.
        probe = model.get_layer("MAPHead_0")
        z = by_hand.values(keras.Model(model.input, probe.input)(IMAGES))
        for image in range(len(IMAGES)):
            readers[image, prefix:] = by_hand.probe_attention(z[image], probe).mean(0)
    elif config.classifier == "gap":  # All patches are read, no register.
        readers[:, prefix:] = 1 / math.prod(grid)
    else:
        own = 2 if config.classifier == "distilled" else 1
        readers[:, :own] = 1 / own
    expected = []
    for image, asked in zip(
        numpy(attention_scores(model, IMAGES)), readers, strict=True
    ):
        joint = np.eye(image.shape[-1])
        for layer in image:
            joint = (layer.mean(0) + np.eye(len(joint))) / 2 @ joint
        expected.append((asked @ joint)[prefix:].reshape(grid))
    np.testing.assert_allclose(maps, expected, atol=1e-6)
    assert np.ptp(maps, axis=(1, 2)).min() > 1e-5


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_shared_positions_leave_attention_as_it_is(layers):
    """Layers that share nothing but equal positions attend alike (D.4)."""
    shared = vit(position_at="every_layer_shared", num_layers=layers)
    apart = dataclasses.replace(shared, position_at="every_layer")
    ours, theirs = (
        keras_vit.vit(config, image_size=SIZE, num_classes=None)
        for config in (shared, apart)
    )
    by_hand.randomize(ours, 0.3)
    for layer in theirs.layers:
        own = "posembed_shared" if "posembed_" in layer.name else layer.name
        if layer.weights:
            layer.set_weights(ours.get_layer(own).get_weights())
    for function in (attention_scores, attention_rollout, output_attention):
        np.testing.assert_allclose(
            numpy(function(ours, IMAGES)), numpy(function(theirs, IMAGES)), atol=1e-6
        )
    np.testing.assert_allclose(
        attention_distance(ours, IMAGES), attention_distance(theirs, IMAGES), rtol=1e-5
    )


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("function", [attention_scores, attention_rollout])
@pytest.mark.parametrize("name", ["bit", "v1", "axial resnet", "axial"])
def test_what_does_not_attend_to_all_tokens_has_no_maps(function, name):
    with pytest.raises(ValueError, match=r"Expected a model .*Received: model="):
        function(build(name), IMAGES)


@pytest.mark.tensorflow_only
def test_figure_4_and_d2_are_one_replace():
    """ "ViT-b": all hidden dimensions of B halved; D.2's base of 8 layers."""
    small = dataclasses.replace(
        keras_vit.VARIANTS["ViT-B/32"], hidden_size=384, mlp_dim=1536, num_heads=6
    )
    model = keras_vit.vit(small, image_size=(224, 224), num_classes=1000)
    assert model.count_params() == (
        32 * 32 * 3 * 384 + 384 + 384 + 50 * 384  # Patches, class token, positions.
        + 12 * (4 * (384**2 + 384) + 2 * 384 * 1536 + 1536 + 384 + 4 * 384)
        + 2 * 384 + 1000 * 385
    )  # fmt: skip
    base = dataclasses.replace(
        keras_vit.VARIANTS["ViT-L/32"], num_layers=8, hidden_size=1024, mlp_dim=2048
    )
    one = keras_vit.vit(
        dataclasses.replace(base, num_layers=1), image_size=(224, 224), num_classes=10
    )
    block = one.get_layer("encoderblock_0")
    assert block.count_params() == 4 * (1024**2 + 1024) + 4 * 1024**2 + 3072 + 4096
    assert base.patch_size == 32


@pytest.mark.parametrize(
    ("fields", "law"),
    [
        ({"num_registers": -1}, "num_registers to be an integer, zero or more"),
        ({"num_registers": 1.5}, "num_registers to be an integer, zero or more"),
        ({"layer_norm_epsilon": -1e-6}, "layer_norm_epsilon to be positive"),
        ({"representation_size": 0}, "representation_size to be a positive integer"),
        ({"attention": "rows"}, "attention to be one of full, axial"),
        ({"classifier": ["token"]}, "classifier to be one of token"),
        ({"attention_dropout_rate": -0.1}, "attention_dropout_rate in"),
        ({"num_heads": 7}, "hidden_size to be a multiple of num_heads"),
        ({"mlp_dim": 32.0}, "mlp_dim to be a positive integer"),
    ],
)
def test_impossible_configs(fields, law):
    with pytest.raises(ValueError, match=rf"Expected .*{law}.* Received: "):
        vit(**fields)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("name", ["hybrid", "bit", "map", "axial, relative"])
def test_every_weight_is_reached_by_a_gradient(name):
    """Nothing is built that the answer does not depend on."""
    import tensorflow as tf

    model = build(name)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(IMAGES)))
    for variable, gradient in zip(
        model.trainable_weights,
        tape.gradient(loss, [v.value for v in model.trainable_weights]),
        strict=True,
    ):
        assert gradient is not None, variable.path
        assert np.abs(numpy(gradient)).max() > 0, variable.path
