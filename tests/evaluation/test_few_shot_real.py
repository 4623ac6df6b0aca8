"""Few-shot accuracy of a real ViT-S/14 on real photos: `KERAS_VIT_REAL`.

At 112 pixels, in a quarter of the time of the README's 224.
"""

import itertools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import evaluation
from keras_vit.data import open_source

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

SHOTS = (1, 5, 10, 25)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = {"preprocessing": keras_vit.Preprocessing(mean=MEAN, std=STD)}


@pytest.fixture(scope="module")
def flowers(real):
    return open_source(real / "flowers12")


@pytest.fixture(scope="module")
def model(real):
    file = real / "vit_s14" / "vit_s14_224_google.npz"
    return keras_vit.from_checkpoint(file, gelu="erf", image_size=(112, 112))


@pytest.fixture(scope="module")
def result(model, flowers):
    return evaluation.fewshot(model, flowers, shots=SHOTS, **IMAGENET)


def test_accuracy_rises_with_shots(result):
    """Monotonically, and by more than the intervals from 1 shot to 25."""
    rows = [result.at(shots) for shots in SHOTS]
    for fewer, more in itertools.pairwise(rows):
        assert fewer.mean < more.mean
        assert fewer.interval[0] < more.mean
    assert rows[0].interval[1] < rows[-1].interval[0]
    assert rows[-1].mean > 0.9


def test_shuffled_weights_are_far_behind(model, flowers, result):
    """Each kernel's entries permuted: the same numbers, and nothing learnt."""
    shuffled = keras.models.clone_model(model)
    rng = np.random.default_rng(0)
    shuffled.set_weights(
        [
            rng.permuted(values.ravel()).reshape(values.shape)
            if variable.name == "kernel"
            else values
            for variable, values in zip(model.weights, model.get_weights(), strict=True)
        ]
    )
    control = evaluation.fewshot(shuffled, flowers, shots=(10,), seeds=(0,), **IMAGENET)
    chance = 1 / len(flowers.classes)
    assert chance < control.at(10).mean < result.at(10).mean - 0.2
