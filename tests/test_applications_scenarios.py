"""The scenarios of Keras's own applications_test.py, for every family's builder."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import applications
from keras_vit.configs import ResNetConfig
from tests.layers import by_hand
from tests.test_applications import FAMILIES, TINY

pytestmark = pytest.mark.tensorflow_only

CONFIGS = {"ViT-Ti/16": TINY, **FAMILIES}
SHAPE = (32, 48, 3)


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def images_of(shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (2, *shape)).astype("float32")


@pytest.fixture(params=["channels_last", "channels_first"], autouse=True)
def data_format(request):
    """Keras's setting, which must not matter; Keras's own test has both too."""
    before = keras.config.image_data_format()
    keras.config.set_image_data_format(request.param)
    yield
    keras.config.set_image_data_format(before)


@pytest.fixture(params=CONFIGS)
def application(request):
    """A builder, what its features end in, and the shape of features for a size."""
    config = CONFIGS[request.param]
    if not isinstance(config, ResNetConfig):
        stride = config.resnet.stride if config.resnet else 1
        pixels, prefix = config.patch_size * stride, config.num_prefix_tokens
        build = applications.ViTBuilder(request.param, config)
        return (
            build,
            config.hidden_size,
            lambda height, width: (prefix + (height // pixels) * (width // pixels),),
        )
    build = applications.ResNetBuilder(request.param, config)
    stride = config.stride
    return (
        build,
        4 * config.width * 2 ** (len(config.num_layers) - 1),
        lambda height, width: (-(-height // stride), -(-width // stride)),
    )


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_notop_variable_input_channels(application, channels):
    build, last, places = application
    shape = (*SHAPE[:2], channels)
    model = build(weights=None, include_top=False, input_shape=shape)
    assert model.input_shape == (None, *shape)
    assert model.output_shape == (None, *places(*SHAPE[:2]), last)
    assert np.isfinite(numpy(model(images_of(shape)))).all()


@pytest.mark.parametrize("size", [(64, 64), (32, 80), (80, 32)])
def test_notop_custom_input_shape(application, size):
    build, last, places = application
    model = build(weights=None, include_top=False, input_shape=(*size, 3))
    assert model.output_shape == (None, *places(*size), last)


def test_notop_custom_input_tensor(application):
    build, last, places = application
    images = keras.Input((64, 96, 4), name="custom_input")
    halved = keras.layers.Conv2D(3, 2, 2, data_format="channels_last")(images)
    model = build(weights=None, include_top=False, input_tensor=halved)
    assert model.input_shape == (None, 64, 96, 4)
    assert model.output_shape == (None, *places(32, 48), last)
    assert model.layers[0].name == "custom_input"


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_pooling(application, pooling):
    build, last, _ = application
    options = {"weights": None, "include_top": False, "input_shape": SHAPE}
    model = build(pooling=pooling, **options)
    assert model.output_shape == (None, last)
    whole = build(**options)
    by_hand.randomize(whole, 0.1)
    model.set_weights(whole.get_weights())
    features = numpy(whole(images_of(SHAPE)))
    places = tuple(range(1, features.ndim - 1))
    reduced = {"avg": features.mean(places), "max": features.max(places)}[pooling]
    np.testing.assert_allclose(numpy(model(images_of(SHAPE))), reduced, atol=1e-5)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", None])
def test_classifier_activation(application, activation):
    model = application[0](
        weights=None, input_shape=SHAPE, classifier_activation=activation
    )
    assert model.layers[-1].activation.__name__ == (activation or "linear")


@pytest.mark.parametrize("classes", [2, 5, 1000])
def test_classes(application, classes):
    model = application[0](weights=None, input_shape=SHAPE, classes=classes)
    assert model.output_shape == (None, classes)
    np.testing.assert_allclose(numpy(model(images_of(SHAPE))), 1 / classes, rtol=1e-5)


def test_serialized_and_deserialized(application):
    model = application[0](weights=None, input_shape=SHAPE, classes=3)
    by_hand.randomize(model, 0.1)
    config = keras.saving.serialize_keras_object(model)
    again = keras.saving.deserialize_keras_object(config)
    assert [v.path for v in again.weights] == [v.path for v in model.weights]
    again.set_weights(model.get_weights())
    expected = numpy(model(images_of(SHAPE)))
    np.testing.assert_array_equal(numpy(again(images_of(SHAPE))), expected)


@pytest.fixture
def saved(application, tmp_path):
    """A builder, a model of it with logits of 3 classes, and its weights' file."""
    build = application[0]
    model = build(
        weights=None, input_shape=SHAPE, classes=3, classifier_activation=None
    )
    by_hand.randomize(model, 0.1)
    keras_vit.weights.save(model, tmp_path / "weights.npz", format="npz")
    return build, model, tmp_path / "weights.npz"


def test_weights_file(saved):
    build, model, file = saved
    images, options = images_of(SHAPE), {"weights": file, "input_shape": SHAPE}
    logits = numpy(model(images))
    same = build(classifier_activation=None, **options)
    np.testing.assert_allclose(numpy(same(images)), logits, atol=1e-5)
    probabilities = numpy(build(**options)(images))
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    np.testing.assert_allclose(
        probabilities, exponents / exponents.sum(-1, keepdims=True), atol=1e-5
    )
    fresh = build(classes=7, classifier_activation=None, **options)
    assert (numpy(fresh(images)) == 0).all()  # A new head; what is below is loaded.
    below = [
        numpy(keras.Model(at.input, at.get_layer("head").input)(images))
        for at in (model, fresh)
    ]
    np.testing.assert_allclose(below[1], below[0], atol=1e-5)
    assert build(include_top=False, **options).output_shape[0] is None


@pytest.mark.parametrize("channels", [1, 4])
def test_weights_file_for_other_channels(saved, channels):
    """Gray images are as the same gray in three channels: 3.2's adapted kernel."""
    build, model, file = saved
    gray = images_of((*SHAPE[:2], 1))
    adapted = build(
        weights=file,
        input_shape=(*SHAPE[:2], channels),
        classifier_activation=None,
    )
    assert adapted.input_shape == (None, *SHAPE[:2], channels)
    if channels == 1:
        expected = numpy(model(np.repeat(gray, 3, axis=-1)))
        np.testing.assert_allclose(numpy(adapted(gray)), expected, atol=2e-4)
    else:
        assert np.isfinite(numpy(adapted(images_of((*SHAPE[:2], channels))))).all()


def test_a_weights_file_that_is_not_there(application, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        application[0](weights=tmp_path / "none.npz", input_shape=SHAPE)
