"""Section 3.2: a new head, a new resolution."""

import keras
import numpy as np
import pytest

import keras_vit
from tests.conftest import REFERENCE
from tests.models.test_vit import perturbed, tiny


def test_for_task_removes_pre_logits_and_starts_at_zero():
    model = keras_vit.from_checkpoint(REFERENCE / "vit_mini_rep.npz")
    task = keras_vit.for_task(model, 3)
    names = [layer.name for layer in task.layers]
    assert "pre_logits" not in names
    assert names[-1] == "head"
    assert task.output_shape == (None, 3)
    assert not any(w.any() for w in task.get_layer("head").get_weights())
    assert task.get_layer("encoderblock_0") is model.get_layer("encoderblock_0")
    again = keras_vit.for_task(task, 4)
    assert again.output_shape == (None, 4)


def test_for_task_on_features_and_tokens():
    assert keras_vit.for_task(tiny(num_classes=None), 3).output_shape == (None, 3)
    tokens = keras_vit.ViT_Ti16(
        include_top=False, weights=None, input_shape=(32, 32, 3)
    )
    assert keras_vit.for_task(tokens, 3).output_shape == (None, 5, 3)


@pytest.mark.parametrize("classes", [0, -1, 2.5, None])
def test_for_task_wants_classes(classes):
    with pytest.raises(ValueError, match="Expected classes to be a positive integer"):
        keras_vit.for_task(tiny(), classes)


def test_for_task_takes_numpy_integers():
    assert keras_vit.for_task(tiny(), np.int64(3)).output_shape == (None, 3)


def test_for_task_never_puts_a_head_on_logits():
    images = keras.Input((16, 24, 3))
    nested = keras.Model(images, tiny()(images))
    with pytest.raises(ValueError, match=r"pass model\.get_layer"):
        keras_vit.for_task(nested, 3)
    features = tiny(num_classes=None)
    mine = keras.layers.Dense(7, name="mine")(features.output)
    with pytest.raises(ValueError, match="ends in the Dense layer 'mine'"):
        keras_vit.for_task(keras.Model(features.input, mine), 3)


@pytest.mark.parametrize("image_size", [64, (64,), (64, 64, 3)])
def test_at_resolution_wants_two_sides(image_size):
    with pytest.raises(ValueError, match=r"Expected image_size \(H, W\)"):
        keras_vit.at_resolution(tiny(), image_size)


def test_at_resolution_keeps_weights_and_leaves_the_model():
    model = perturbed(tiny())
    model.get_layer("encoderblock_0").trainable = False
    larger = keras_vit.at_resolution(model, (40, 16))
    assert larger.input_shape == (None, 40, 16, 3)
    assert larger.name == model.name
    assert not larger.get_layer("encoderblock_0").trainable
    for old, new in zip(model.weights, larger.weights, strict=True):
        assert old is not new
        if "pos_embedding" not in old.path:
            np.testing.assert_array_equal(
                keras.ops.convert_to_numpy(old), keras.ops.convert_to_numpy(new)
            )
    same = keras_vit.at_resolution(model, (16, 24))
    images = np.ones((1, 16, 24, 3), "float32")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(model(images)),
        keras.ops.convert_to_numpy(same(images)),
    )


def test_at_resolution_refuses_what_no_patch_fits():
    with pytest.raises(ValueError, match="N = HW"):
        keras_vit.at_resolution(tiny(), (20, 24))


def test_at_resolution_wants_a_vit():
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="PatchEmbedding"):
        keras_vit.at_resolution(dense, (16, 16))


def test_at_resolution_of_a_users_own_head():
    model = tiny(num_classes=None)
    longer = keras.Model(model.input, keras.layers.Dense(2, name="mine")(model.output))
    assert keras_vit.at_resolution(longer, (32, 32)).get_layer("mine").units == 2


def test_a_compiled_model_is_compiled_at_another_resolution():
    model = tiny()
    assert not keras_vit.at_resolution(model, (32, 32)).compiled
    model.compile(
        keras.optimizers.SGD(0.25), "mean_squared_error", weighted_metrics=["mae"]
    )
    larger = keras_vit.at_resolution(model, (32, 32))
    assert larger.compiled
    assert float(keras.ops.convert_to_numpy(larger.optimizer.learning_rate)) == 0.25
    images = np.zeros((2, 32, 32, 3), "float32")
    found = larger.evaluate(images, np.ones((2, *larger.output_shape[1:])), verbose=0)
    assert len(found) == 2
