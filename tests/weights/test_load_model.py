"""Damaged files of Keras's `model.save`: our own words, whatever bit is flipped."""

import random

import keras
import numpy as np
import pytest

from keras_vit.weights.keras_files import load_model

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def saved(tmp_path):
    images = keras.Input((2,))
    model = keras.Model(images, keras.layers.Dense(2, name="head")(images))
    model.save(tmp_path / "model.keras")
    return model, tmp_path / "model.keras"


def test_a_flipped_bit_is_named_or_changes_nothing(saved):
    model, path = saved
    content, draws = path.read_bytes(), random.Random(0)
    said = []
    for _ in range(100):
        damaged = bytearray(content)
        damaged[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = load_model(path).get_weights()
        except ValueError as error:
            said.append(str(error).replace(str(path), ""))
        else:  # A date, or another field that zip does not need.
            for ours, theirs in zip(loaded, model.get_weights(), strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert len(said) > 50
    for text in said:
        assert text.startswith("Expected a model that Keras saved. Received: ")
        assert "safe" not in text


def test_a_cut_file(saved):
    _, path = saved
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"model\.keras.*damaged.*from a copy"):
        load_model(path)


def test_a_missing_file_is_not_called_damaged(tmp_path):
    missing = tmp_path / "model.keras"
    with pytest.raises(
        FileNotFoundError, match=r"model\.keras', which does not exist$"
    ):
        load_model(missing)


def test_python_code_is_not_run(tmp_path):
    images = keras.Input((2,))
    model = keras.Model(images, keras.layers.Lambda(lambda x: 2 * x)(images))
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"contains Python code.*not run") as refusal:
        load_model(tmp_path / "model.keras")
    assert "unsafe" not in str(refusal.value)
