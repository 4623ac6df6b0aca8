"""Models are channels-last, whatever `keras.config.set_image_data_format` says."""

import ast
import inspect
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.configs import EfficientNetConfig
from keras_vit.inspection import attention_rollout
from keras_vit.self_supervision import MaskedPatchPredictor
from tests.models.families import FAMILIES, SIZE, build, names

SOURCES = sorted(Path(keras_vit.__file__).parent.rglob("*.py"))
IMAGES = np.random.default_rng(3).uniform(-1, 1, (2, *SIZE, 3)).astype("float32")


@pytest.fixture
def channels_first():
    """Keras's setting at its other value, for the time of a test."""
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    yield
    keras.config.set_image_data_format(before)


def accepts_data_format(thing):
    """Whether a layer, or a class above it, or an operation has this argument."""
    functions = (
        [base.__init__ for base in thing.__mro__ if "__init__" in vars(base)]
        if inspect.isclass(thing)
        else [thing]
    )
    try:
        return any("data_format" in inspect.signature(f).parameters for f in functions)
    except (TypeError, ValueError):  # Builtins have no signature.
        return False


LAYERS = {
    name for name, kind in vars(keras.layers).items() if accepts_data_format(kind)
}
OPERATIONS = {
    f"{room}{name}"
    for room, module in (
        ("ops.", keras.ops),
        ("ops.nn.", keras.ops.nn),
        ("ops.image.", keras.ops.image),
        ("utils.", keras.utils),
    )
    for name, function in vars(module).items()
    if callable(function) and accepts_data_format(function)
}


def dotted(node):
    """ "keras.ops.image.resize" for its syntax tree; "" for what is no such name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def reads_the_setting(name):
    """Whether a dotted name is one of Keras's that take `data_format`."""
    return name.split(".")[-1] in LAYERS or name.removeprefix("keras.") in OPERATIONS


def omissions(source):
    """Names in `source` that are used, or called, without `data_format=`."""
    tree = ast.parse(source)
    explicit = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(
            keyword.arg == "data_format"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value == "channels_last"
            for keyword in node.keywords
        )
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "keras."
        ):
            room = f"{node.module.removeprefix('keras.')}."
            yield from (at.name for at in node.names if room + at.name in OPERATIONS)
        name = dotted(node)
        if name and reads_the_setting(name) and id(node) not in explicit:
            yield name


@pytest.mark.tensorflow_only
def test_the_scan_finds_what_it_is_for():
    assert {"Conv2D", "Flatten", "GlobalMaxPooling1D", "RandomRotation"} <= LAYERS
    assert {"ops.conv", "ops.max_pool", "ops.image.resize"} <= OPERATIONS
    explicit = "keras.layers.Flatten(data_format='channels_last')(x)"
    assert not list(omissions(explicit))
    for wrong in (
        "keras.layers.Flatten()(x)",
        "keras.layers.Flatten(data_format='channels_first')(x)",
        "kinds = {'avg': layers.GlobalAveragePooling1D}",
        "from keras.layers import Conv2D\nConv2D(3, 3)",
        "class Mine(keras.layers.Conv2D): pass",
        "ops.average_pool(x, 2)",
        "keras.ops.image.resize(x, size)",
        "from keras.ops import max_pool",
        "from keras.ops.image import resize",
    ):
        assert list(omissions(wrong)), wrong


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("path", SOURCES, ids=[path.name for path in SOURCES])
def test_every_layer_and_operation_states_its_data_format(path):
    assert not list(omissions(path.read_text(encoding="utf-8")))


def outputs(model, weights, images=IMAGES):
    model.set_weights(weights)
    return keras.ops.convert_to_numpy(model(images))


EVERYWHERE = {"distilled", "2d", "hybrid", "bit", "axial resnet"}


@pytest.mark.parametrize("name", names(FAMILIES, EVERYWHERE))
def test_every_family_is_the_same_under_channels_first(name, channels_first):
    first = build(name)
    keras.config.set_image_data_format("channels_last")
    last = build(name)
    assert first.output_shape == last.output_shape == (None, 5)
    weights = last.get_weights()
    expected = outputs(last, weights)
    np.testing.assert_array_equal(outputs(first, weights), expected)
    keras.config.set_image_data_format("channels_first")
    np.testing.assert_array_equal(outputs(last, weights), expected)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("pooling", [None, "token", "avg", "max"])
@pytest.mark.parametrize("builder", ["ViT_Ti16", "BiT_R50x1"])
def test_pooling_is_the_same_under_channels_first(builder, pooling, channels_first):
    if (builder, pooling) == ("BiT_R50x1", "token"):
        return  # It has no class token.
    options = {"weights": None, "include_top": False, "pooling": pooling}
    make = getattr(keras_vit, builder)
    first = make(input_shape=(*SIZE, 3), **options)
    keras.config.set_image_data_format("channels_last")
    last = make(input_shape=(*SIZE, 3), **options)
    assert first.output_shape == last.output_shape
    weights = last.get_weights()
    np.testing.assert_array_equal(outputs(first, weights), outputs(last, weights))


@pytest.mark.tensorflow_only
def test_an_efficientnet_is_the_same_under_channels_first(channels_first):
    config = EfficientNetConfig(
        width_coefficient=0.25, depth_coefficient=0.2, image_size=32, dropout_rate=0.0
    )
    first = keras_vit.models.efficientnet(config, num_classes=5)
    keras.config.set_image_data_format("channels_last")
    last = keras_vit.models.efficientnet(config, num_classes=5)
    images = IMAGES[:, :32, :32]
    weights = last.get_weights()
    np.testing.assert_array_equal(
        outputs(first, weights, images), outputs(last, weights, images)
    )


@pytest.mark.tensorflow_only
def test_what_is_made_of_a_model_is_the_same_under_channels_first(
    channels_first, tmp_path
):
    """Saved, resized, given a task, looked into, and pre-trained (3.2, 4.6, D.8)."""

    def derived():
        keras.utils.set_random_seed(0)
        model = build("distilled")
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        larger = keras_vit.at_resolution(model, (48, 48))
        predicted = MaskedPatchPredictor(model, seed=1)(IMAGES)
        return [
            again(IMAGES),
            larger(np.zeros((1, 48, 48, 3), "float32")),
            keras_vit.for_task(model, 3)(IMAGES),
            attention_rollout(model, IMAGES),
            *(predicted[key] for key in sorted(predicted)),
        ]

    first = derived()
    keras.config.set_image_data_format("channels_last")
    for ours, expected in zip(first, derived(), strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(expected)
        )
