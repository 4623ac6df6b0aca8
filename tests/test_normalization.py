"""Mean and deviation are validated once, wherever they enter."""

import decimal
import math

import numpy as np
import pytest

import keras_vit
from keras_vit import normalization

pytestmark = pytest.mark.tensorflow_only

BAD_STD = [
    *((0.0, 0.0, 0.0), (0.5, 0.0, 0.5), (-0.5,), (math.nan,), (0.5, math.inf, 0.5)),
    *((), "0.5", 0.5, None, ("0.5",), (None,), (True,), ((0.5,),), {"a": 0.5}),
    *([decimal.Decimal(1)], np.zeros(3), np.full(3, np.nan), (10**400,)),
    *((1e-50,), (0.5, 1e-40, 0.5)),  # Zero as a float32, or below its smallest normal.
]
BAD_MEAN = [(math.nan,), (0.5, math.inf, 0.5), (), "0.5", 0.5, None, ("0.5",), (True,)]


@pytest.mark.parametrize("std", BAD_STD, ids=str)
def test_a_deviation_is_positive_and_finite(std):
    with pytest.raises(ValueError, match=r"Expected std, .*Received: std="):
        normalization.checked((0.5,), std)


@pytest.mark.parametrize("mean", BAD_MEAN, ids=str)
def test_a_mean_is_finite(mean):
    with pytest.raises(ValueError, match=r"Expected mean, .*Received: mean="):
        normalization.checked(mean, (0.5,))


@pytest.mark.parametrize("values", [(0.5, 0.5), (0.4, 0.5), (0.1, 0.2, 0.3, 0.4)])
def test_values_are_one_or_one_for_each_channel(values):
    for pair in ((values, (0.5,)), ((0.5,), values)):
        with pytest.raises(ValueError, match=r"one value for each channel.*3 channels"):
            normalization.checked(*pair, 3)


def test_good_values_become_tuples_of_floats():
    mean, std = normalization.checked([0, 1, 0.5], np.float32([0.5, 0.25, 1]), 3)
    assert (mean, std) == ((0.0, 1.0, 0.5), (0.5, 0.25, 1.0))
    assert {type(value) for value in (*mean, *std)} == {float}
    assert normalization.checked((0.5,), normalization.HALF, 4)[1] == (0.5, 0.5, 0.5)


def tiny():
    config = keras_vit.ViTConfig(
        patch_size=16, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=1
    )
    return keras_vit.vit(config, image_size=(32, 32), num_classes=2)


def source():
    from keras_vit.data import sources, splits

    images = np.zeros((4, 32, 32, 3), np.uint8)
    split = splits.Arrays(images, np.arange(4) % 2)
    return sources.Source("images", ("a", "b"), split, split)


def fit(**options):
    recipe = keras_vit.recipes.Recipe(total_steps=1, base_lr=(0.1,), batch_size=2)
    keras_vit.training.fit(tiny(), recipe, source(), verbose=0, **options)


def transfer(**options):
    keras_vit.training.transfer(tiny(), source(), verbose=0, **options)


def vtab(**options):
    keras_vit.evaluation.vtab.run(tiny(), ["DTD"], output="OUT", verbose=0, **options)


def classify(**options):
    from keras_vit.evaluation import classification

    task = classification.task_of(source())
    classification.classify(tiny(), task, verbose=False, **options)


def gather(**options):
    keras_vit.evaluation.gather(tiny(), source(), verbose=False, **options)


def page(**options):
    keras_vit.inspection.Page.of(tiny(), np.zeros((1, 32, 32, 3)), **options)


def export(**options):
    keras_vit.serving.export(tiny(), "OUT", **options)


def export_file(**options):
    keras_vit.serving.export_file(tiny(), "OUT.tflite", **options)


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.5,), (0.0,) * 3), ((math.nan,) * 3, (0.5,)), ((0.4, 0.5), (0.5,))],
)
@pytest.mark.parametrize(
    "function",
    [fit, transfer, vtab, classify, gather, page, export, export_file],
)
def test_every_function_refuses_them(function, mean, std, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    law = "Expected (mean|std|one value for each channel)[, ].*Received: "
    with pytest.raises(ValueError, match=law):
        function(preprocessing=keras_vit.Preprocessing(mean=mean, std=std))
    assert not list(tmp_path.iterdir())


def test_masked_patch_prediction_refuses_them():
    config = keras_vit.ViTConfig(
        patch_size=16, num_layers=1, hidden_size=8, mlp_dim=8, num_heads=1
    )
    backbone = keras_vit.vit(config, image_size=(32, 32), num_classes=None)
    for mean, std in (((0.5,), (0.0,)), ((math.nan,), (0.5,)), ((0.4, 0.5), (0.5,))):
        with pytest.raises(ValueError, match=r"Expected .*Received: "):
            keras_vit.self_supervision.MaskedPatchPredictor(
                backbone, preprocessing=keras_vit.Preprocessing(mean=mean, std=std)
            )
