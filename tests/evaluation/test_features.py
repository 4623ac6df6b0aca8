"""Features of every image, once, in order; bad input in one error."""

import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import Arrays, Source, preprocessing
from keras_vit.evaluation import Features, backbone, extract, features
from tests.conftest import REFERENCE

MINI = REFERENCE / "vit_mini.npz"
SCALE = keras_vit.Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


@pytest.fixture(scope="module")
def model():
    return keras_vit.from_checkpoint(MINI)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (7, 80, 70, 3), np.uint8)


@pytest.fixture(scope="module")
def split(images):
    return Arrays(images, np.arange(7) % 3)


def by_hand(network, images):
    return keras.ops.convert_to_numpy(network(images, training=False))


def test_backbone_is_what_the_head_reads(agree):
    """The official pre-logits, after `pre_logits` where there is one."""
    for name in ("vit_mini", "vit_mini_rep"):
        io = np.load(REFERENCE / f"{name}_io.npz")
        network = backbone(keras_vit.from_checkpoint(REFERENCE / f"{name}.npz"))
        read = by_hand(network, io["images"])
        agree(f"{name}: backbone", read, io["pre_logits"], 1e-5)


def test_backbone_of_features_is_the_model_itself():
    headless = keras_vit.from_checkpoint(MINI, classes=0)
    assert headless.output_shape == (None, 32)
    assert backbone(headless) is headless
    layers = [keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(5)]
    sequential = keras.Sequential(layers)
    assert backbone(sequential) is sequential


def test_backbone_of_tokens_or_a_map_is_an_error(model):
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)
    unpooled = keras_vit.from_checkpoint(MINI, classifier="unpooled")
    for network in (tokens, unpooled):
        with pytest.raises(ValueError, match=r"\(None, 17, 32\).*pooling='token'"):
            backbone(network)
    images = keras.Input((8, 8, 3))
    with pytest.raises(ValueError, match=r"\(None, 7, 7, 4\).*pooling='avg'"):
        backbone(keras.Model(images, keras.layers.Conv2D(4, 2)(images)))


def test_backbone_of_probabilities_or_two_outputs_is_an_error():
    images = keras.Input((8, 8, 3))
    flat = keras.layers.Flatten()(images)
    scores = keras.layers.Dense(3, activation="softmax", name="predictions")(flat)
    with pytest.raises(ValueError, match=r"\(None, 3\), the output of a softmax"):
        backbone(keras.Model(images, scores))
    logits = keras.Model(images, keras.layers.Dense(3)(flat))
    inner = keras.Model(images, keras.ops.softmax(logits.output))
    for layers in ([inner], [logits, keras.layers.Softmax()]):
        with pytest.raises(ValueError, match="output of a softmax"):
            backbone(keras.Sequential([keras.Input((8, 8, 3)), *layers]))
    with pytest.raises(ValueError, match="one input and one output"):
        backbone(keras.Model(images, [flat, scores]))


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_extract_is_the_model_on_every_prepared_image(model, images, split, batch_size):
    """A last batch that is not full, and one that is larger than the split."""
    read, labels = extract(model, split, batch_size=batch_size, preprocessing=SCALE)
    prepared = [preprocessing.prepare(image, (64, 64), SCALE) for image in images]
    assert (read.dtype, labels.dtype) == ("float32", "int64")
    np.testing.assert_allclose(
        read, by_hand(backbone(model), np.stack(prepared)), atol=1e-5
    )
    assert labels.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_before_crop_is_big_visions_evaluation(model, images, split):
    """resize(72) | central_crop(64) | value_range(-1, 1): pixels cut to uint8."""
    read, _ = extract(model, split, before_crop=(72, 72))
    resized = [preprocessing.resize_uint8(image, (72, 72)) for image in images]
    cut = np.stack(resized)[:, 4:68, 4:68]
    expected = by_hand(backbone(model), cut.astype(np.float32) / 127.5 - 1)
    np.testing.assert_allclose(read, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"at least image_size.*before_crop=\(72, 60"):
        extract(model, split, before_crop=(72, 60))


def test_features_that_are_not_finite_name_the_image(split):
    images = keras.Input((4, 4, 3))
    flat = keras.layers.Flatten()(images)
    mean = keras.ops.mean(flat, axis=1, keepdims=True)
    model = keras.Model(images, keras.ops.log(mean))  # Of a dark image: NaN.
    pixels = np.full((5, 4, 4, 3), 255, np.uint8)
    pixels[3] = 0
    dark = Arrays(pixels, np.zeros(5, int))
    with pytest.raises(ValueError, match="image 3 of 5"):
        extract(model, dark, batch_size=2)


@pytest.mark.parametrize("size", [(None, None), (None, 8), (8, None)])
def test_extract_needs_a_known_size(split, size):
    images = keras.Input((*size, 3))
    model = keras.Model(images, keras.layers.GlobalAveragePooling2D()(images))
    with pytest.raises(ValueError, match="with a fixed image size"):
        extract(model, split)


X, Y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
NOT_A_NUMBER = np.array([[0, 0], [0, 0], [0, np.nan], [0, 0]], np.float32)
INFINITE = np.array([[0, 0], [-np.inf, 0], [0, 0], [0, 0]], np.float32)
BAD = {
    "integer features": ((X.astype(int), Y, X, Y), "train_x int64 (4, 2)"),
    "one axis": ((X[:, 0], Y, X, Y), "train_x float32 (4,)"),
    "other count": ((X, Y[:3], X, Y), "train_y int64 (3,)"),
    "float labels": ((X, Y, X, Y.astype(float)), "test_y float64 (4,)"),
    "a list": ((X, Y, X, [0, 1, 0, 1]), "test_y list"),
    "none": ((X[:0], Y[:0], X, Y), "train_x float32 (0, 2)"),
    "other width": ((X, Y, X[:, :1], Y), "same width"),
    "NaN": ((X, Y, NOT_A_NUMBER, Y), "infinity in test_x[2]"),
    "infinity": ((INFINITE, Y, X, Y), "infinity in train_x[1]"),
    "one class": ((X, 0 * Y, X, 0 * Y), "at least two classes"),
    "negative label": ((X, Y - 1, X, Y, ("a", "b")), "train_y from -1 to 0"),
    "unknown label": ((X, Y, X, Y + 1), "from 0 to 1, the training images' classes"),
    "unnamed label": ((X, Y, X, 2 * Y, ("a", "b")), "test_y from 0 to 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_features_are_one_error(case):
    arrays, message = BAD[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        Features(*arrays)


def test_gather_takes_a_source_or_ready_features(model, split):
    source = Source("three", ("a", "b", "c"), split, split.take(np.arange(4)))
    found = features.gather(model, source, verbose=False)
    assert found.train_x.shape == (7, 32)
    np.testing.assert_allclose(found.test_x, found.train_x[:4], atol=1e-5)
    assert found.classes == ("a", "b", "c")
    assert features.gather(None, found) is found
    assert features.gather(None, (X, Y, X, Y)).classes == ("0", "1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": None}, "test images. Received: 'three' without"),
        ({"classes": ("a", "b")}, "'three', train: from 0 to 2"),
        ({"classes": ("a",)}, "at least two classes. Received: a"),
        ({"train": Arrays(np.zeros((0, 4, 4, 3), np.uint8), [])}, "train is empty"),
    ],
)
def test_a_source_that_cannot_be_is_an_error_before_images_are_read(
    model, split, change, message
):
    parts = {"classes": ("a", "b", "c"), "train": split, "test": split} | change
    with pytest.raises(ValueError, match=re.escape(message)):
        features.gather(model, Source("three", **parts))


def test_a_model_and_features_do_not_go_together(model, split):
    with pytest.raises(ValueError, match="a model and images, or None"):
        features.gather(model, (X, Y, X, Y))
    with pytest.raises(ValueError, match="a model and images, or None"):
        features.gather(None, Source("three", ("a", "b", "c"), split, split))
    with pytest.raises(
        ValueError, match="four arrays train_x, train_y, test_x, test_y"
    ):
        features.gather(None, (X, Y))
