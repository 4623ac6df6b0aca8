"""keras-cv's layers in our pipeline, which takes any callable."""

import keras_cv
import numpy as np
import pytest

import keras_vit
from keras_vit import ViTConfig, recipes, training
from keras_vit.data import pipelines, splits

pytestmark = pytest.mark.tensorflow_only

PIXELS = (0, 255)
LAYERS = {
    "RandAugment": lambda: keras_cv.layers.RandAugment(
        value_range=PIXELS, augmentations_per_image=2, magnitude=0.5
    ),
    "AugMix": lambda: keras_cv.layers.AugMix(value_range=PIXELS),
    "RandomCutout": lambda: keras_cv.layers.RandomCutout(0.5, 0.5),
    "RandomColorJitter": lambda: keras_cv.layers.RandomColorJitter(
        PIXELS, 0.3, 0.3, 0.3, 0.1
    ),
    "Grayscale": lambda: keras_cv.layers.Grayscale(output_channels=3),
}


def batches(transform, count=16):
    """Batches of 8 of `count` images of noise, as they are but for `transform`."""
    shape = (count, 16, 24, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return pipelines.train_pipeline(
        splits.Arrays(images, np.arange(count) % 2),
        image_size=shape[1:3],
        batch_size=8,
        seed=0,
        augment="none",
        transform=transform,
    )


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_the_pipeline(name):
    before, after = (
        list(batches(transform).take(4).as_numpy_iterator())
        for transform in (None, LAYERS[name]())
    )
    unlike = []
    for (images, labels), (changed, same) in zip(before, after, strict=True):
        assert (changed.dtype, changed.shape) == ("float32", (8, 16, 24, 3))
        assert same.dtype == "int64"
        np.testing.assert_array_equal(same, labels)
        assert np.abs(changed).max() <= 1 + 1e-6  # Scaled after it, to [-1, 1].
        unlike += (np.abs(changed - images).max((1, 2, 3)) > 1 / 255).tolist()
    assert sum(unlike) > 16  # Of 32: what is drawn may leave an image as it is.


def test_what_a_layer_draws_does_not_repeat():
    """Which `transform` says of itself; ours are functions of the seed."""
    layer = LAYERS["RandomCutout"]()
    first, second = (next(iter(batches(layer)))[0] for _ in range(2))
    assert not np.array_equal(first, second)
    first, second = (next(iter(batches(None)))[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_fit_trains_on_them():
    config = ViTConfig(
        patch_size=8, num_layers=1, hidden_size=16, mlp_dim=32, num_heads=2
    )
    model = keras_vit.vit(config, image_size=(16, 24), num_classes=2)
    before = model.get_weights()
    recipe = recipes.Recipe(total_steps=4, base_lr=(0.1,), batch_size=8)
    result = training.fit(model, recipe, batches(LAYERS["RandAugment"]()), verbose=0)
    assert np.isfinite(result.history[-1]["loss"])
    assert not np.array_equal(before[0], model.get_weights()[0])
