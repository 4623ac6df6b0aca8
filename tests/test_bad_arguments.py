"""Bad values at every argument of every public layer, config, builder and function.

Each has to give an error that names the argument, or a model that works.
"""

import dataclasses
import inspect
import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import applications, layers
from keras_vit.configs import EfficientNetConfig, ResNetConfig
from keras_vit.families import family_of
from keras_vit.layers.convolution import RootPool
from keras_vit.self_supervision import CorruptPatches, MaskedPatchPredictor
from tests.models.families import V1, V2
from tests.test_applications import FAMILIES, TINY
from tests.test_conformance import LAYERS

pytestmark = pytest.mark.tensorflow_only

BAD = (
    *(0, -1, 1.5, math.nan, math.inf, -math.inf, True, "x", "", None, (), [1], {}),
    *(10**12, -(10**12), 10**5000, 1e300, 1e-300, np.float32("nan"), np.int64(-1)),
    *(np.array([1, 2]), b"x", object()),
)
LONG = "an integer that Python does not print"
LARGE = 2**22  # Numbers: what is made of good values has far fewer.


def is_fine(outputs):
    """Whether what was made gives finite numbers, and not too many of them."""
    for x in keras.tree.flatten(outputs):
        values = keras.ops.convert_to_numpy(x)
        if not values.size or values.size > LARGE or not np.isfinite(values).all():
            return False
    return True


def is_refused(make, argument, value):
    """Whether `make` names the argument in its error, or works; else why not."""
    try:
        outputs = make(value)
    except (ValueError, TypeError) as error:
        if argument in str(error):
            return None
        return f"{type(error).__name__} without the name: {str(error)[:150]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None if is_fine(outputs) else "was accepted and gives no finite numbers"


def bad_values(good):
    """Bad values, also in each place of a sequence; sequences of other lengths."""
    yield from BAD
    if isinstance(good, tuple):
        for place in range(len(good)):
            for value in BAD:
                yield (*good[:place], value, *good[place + 1 :])
        yield (*good, *good)
        yield good[:-1]


def shown(value):
    try:
        return repr(value)
    except ValueError:
        return LONG


def faults(call, good, argument):
    """What is wrong with the answers to bad values of one argument."""
    found = {}
    for value in bad_values(good[argument]):
        reason = is_refused(
            lambda value: call(**(good | {argument: value})), argument, value
        )
        if reason is not None:
            found[shown(value)] = reason
    return found


def arguments_of(function):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }


def cases(good):
    return [
        pytest.param(name, argument, id=f"{name}-{argument}")
        for name, arguments in good.items()
        for argument in arguments
    ]


# Layers, alone.

LAYERS_TOO = LAYERS | {
    "RootPool": ({"padding": "zero"}, (6, 4, 3)),
    "CorruptPatches": (
        {"corrupt": 0.5, "mask": 0.5, "replace": 0.3, "seed": 3},
        (6, 4),
    ),
}
OTHERS = {"RootPool": RootPool, "CorruptPatches": CorruptPatches}


@pytest.mark.parametrize(
    ("name", "argument"), cases({name: case[0] for name, case in LAYERS_TOO.items()})
)
def test_layers(name, argument):
    kind = OTHERS.get(name) or getattr(layers, name)
    good, shape = LAYERS_TOO[name]
    images = np.random.default_rng(0).uniform(-1, 1, (2, *shape)).astype("float32")

    def call(**arguments):
        layer = kind(**arguments)
        again = kind.from_config(layer.get_config())
        return again(images)

    assert is_fine(call(**good))
    assert not faults(call, good, argument)


# Configs, and the models of them.

SIZE = (32, 48)
IMAGES = np.random.default_rng(1).uniform(-1, 1, (1, *SIZE, 3)).astype("float32")
EFFICIENT = EfficientNetConfig(
    width_coefficient=0.25,
    depth_coefficient=0.2,
    image_size=32,
    dropout_rate=0.1,
    drop_connect_rate=0.1,
)


def fields(config):
    return {at.name: getattr(config, at.name) for at in dataclasses.fields(config)}


CONFIGS = {
    "ViTConfig": fields(dataclasses.replace(TINY, num_layers=1)),
    "ResNetConfig": fields(dataclasses.replace(V2, num_layers=(1,))),
    "EfficientNetConfig": fields(EFFICIENT),
}


def model_of(config):
    return family_of(config).build(config, image_size=SIZE, num_classes=2)


@pytest.mark.parametrize(("name", "argument"), cases(CONFIGS))
def test_configs(name, argument):
    def call(**arguments):
        config = getattr(keras_vit.configs, name)(**arguments)
        hash(config)
        return model_of(config)(IMAGES)

    assert not faults(call, CONFIGS[name], argument)


MAKERS = {
    "vit": (keras_vit.vit, TINY),
    "hybrid": (keras_vit.vit, dataclasses.replace(TINY, patch_size=1, resnet=V1)),
    "resnet": (keras_vit.resnet, dataclasses.replace(V2, num_layers=(1,))),
    "axial resnet": (keras_vit.resnet, FAMILIES["Axial-ResNet50"]),
    "efficientnet": (keras_vit.efficientnet, EFFICIENT),
}


def maker_arguments(name):
    make, config = MAKERS[name]
    good = arguments_of(make) | {
        "config": config,
        "image_size": SIZE,
        "num_classes": 2,
        "name": "mine",
    }
    return good


def images_for(model):
    """Some for the model's input: 32 px for a side that is open."""
    height, width, channels = model.input_shape[1:]
    return np.zeros((1, height or 32, width or 32, channels), "float32")


@pytest.mark.parametrize(
    ("name", "argument"), cases({name: maker_arguments(name) for name in MAKERS})
)
def test_models(name, argument):
    def call(**arguments):
        model = MAKERS[name][0](**arguments)
        return model(images_for(model))

    assert not faults(call, maker_arguments(name), argument)


# Builders.

BUILDERS = {"ViT-Ti/16": TINY, **FAMILIES}


def builder(variant):
    config = BUILDERS[variant]
    make = (
        applications.ResNetBuilder
        if isinstance(config, ResNetConfig)
        else applications.ViTBuilder
    )
    return make(variant, config)


def builder_arguments(variant):
    return arguments_of(builder(variant)) | {
        "weights": None,
        "input_shape": (*SIZE, 3),
        "classes": 2,
    }


@pytest.mark.parametrize(
    ("name", "argument"), cases({name: builder_arguments(name) for name in BUILDERS})
)
def test_builders(name, argument):
    build = builder(name)

    def call(**arguments):
        model = build(**arguments)
        return model(images_for(model))

    for changes in ({}, {"include_top": False}):
        good = builder_arguments(name) | changes
        if argument not in changes:
            assert not faults(call, good, argument), changes


@pytest.mark.parametrize(
    "shape",
    [
        (32, 32, 0),
        (None, 33, 3),
        (None, 32, 0),
        224,
        (224, 224),
        (0, 32, 3),
        (33, 32, 3),
    ],
)
def test_an_impossible_input_shape_of_a_vit(shape):
    with pytest.raises(ValueError, match=r"Expected input_shape.*Received: input_sha"):
        keras_vit.ViT_Ti16(weights=None, input_shape=shape)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_resnet_of_open_sides(channels):
    options = {"weights": None, "include_top": False, "pooling": "avg"}
    build = builder("BiT-R50x2")
    opened = build(input_shape=(None, None, channels), **options)
    fixed = build(input_shape=(40, 33, channels), **options)
    fixed.set_weights(opened.get_weights())
    images = np.ones((1, 40, 33, channels), "float32")
    np.testing.assert_allclose(opened(images), fixed(images), atol=1e-5)
    resized = keras_vit.at_resolution(opened, (40, 33))
    np.testing.assert_allclose(resized(images), fixed(images), atol=1e-5)
    with pytest.raises(ValueError, match=r"Expected input_shape.*Received: input_sha"):
        builder("Axial-ResNet50")(input_shape=(None, None, channels), **options)


def test_an_input_shape_that_is_not_the_input_tensors():
    images = keras.Input((*SIZE, 3))
    same = {"weights": None, "classes": 2, "input_tensor": images}
    builder("ViT-Ti/16")(input_shape=(*SIZE, 3), **same)
    with pytest.raises(ValueError, match=r"input_shape.*input_tensor.*\(48, 32, 3\)"):
        builder("ViT-Ti/16")(input_shape=(48, 32, 3), **same)


# Transfer and pre-training.


def tiny(name="vit"):
    config = dataclasses.replace(TINY, num_layers=1)
    return keras_vit.vit(config, image_size=SIZE, num_classes=2, name=name)


FUNCTIONS = {
    "for_task": {"model": tiny(), "classes": 3},
    "at_resolution": {"model": tiny(), "image_size": SIZE},
    "MaskedPatchPredictor": arguments_of(MaskedPatchPredictor)
    | {"backbone": tiny(), "seed": 1},
}


@pytest.mark.parametrize(("name", "argument"), cases(FUNCTIONS))
def test_functions(name, argument):
    function = getattr(keras_vit, name, MaskedPatchPredictor)

    def call(**arguments):
        model = function(**arguments)
        return model(images_for(model))

    assert not faults(call, FUNCTIONS[name], argument)


def test_at_resolution_of_other_models():
    for name in ("hybrid", "resnet", "axial resnet"):
        make, config = MAKERS[name]
        model = make(config, image_size=SIZE, num_classes=2)

        def call(image_size, model=model):
            resized = keras_vit.at_resolution(model, image_size)
            return resized(images_for(resized))

        assert not faults(call, {"image_size": SIZE}, "image_size"), name


@pytest.mark.parametrize("argument", ["old_grid", "new_grid", "num_prefix_tokens"])
def test_resize_position_embeddings(argument):
    good = {"old_grid": (2, 3), "new_grid": (4, 3), "num_prefix_tokens": 1}
    table = np.ones((1, 7, 4), "float32")

    def call(**arguments):
        return keras_vit.layers.resize_position_embeddings(table, **arguments)

    assert not faults(call, good, argument)


def test_top_of_decode_predictions():
    predictions = np.linspace(0, 1, 1000)[None]

    def call(top):
        return [row[2] for row in keras_vit.decode_predictions(predictions, top)[0]]

    assert not faults(call, {"top": 5}, "top")
