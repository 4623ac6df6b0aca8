"""Any model, written in any format and read again, is the same model or one error."""

import ast
import dataclasses
import os
import re
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import keras_vit
from keras_vit import weights
from keras_vit.configs import CLASS_TOKENS, NUMERICS, ResNetConfig, ViTConfig
from keras_vit.families import family_of
from keras_vit.weights.architecture import config_of

# Files are written by the same code on every backend, and JAX compiles every shape.
pytestmark = pytest.mark.tensorflow_only

FORMATS = ("npz", "timm", "hf")
# As many of each format; every run has the same ones.
EXAMPLES = int(os.environ.get("KERAS_VIT_EXAMPLES", "25"))
repeatable = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
RESNET_NUMERICS = [
    NUMERICS[library][unit]
    for library, unit in (("paper", "v1"), ("paper", "v2"), ("timm", "v1"))
]


@st.composite
def resnets(draw, unit):
    num_layers = draw(
        st.sampled_from([(), (1,), (1, 2)] if unit == "v1" else [(1,), (2, 1)])
    )
    return ResNetConfig(
        num_layers=num_layers,
        width=draw(st.sampled_from([32, 64])) if not num_layers else 32,
        unit=unit,
        num_heads=draw(st.sampled_from([4, 8])) if unit == "axial" else 8,
        pool_padding=draw(st.sampled_from(["zero", "inf"])) if unit != "v1" else "zero",
        **draw(st.sampled_from(RESNET_NUMERICS)),
    )


@st.composite
def vits(draw):
    """A small config of every kind, and what else a model is built with."""
    num_heads, depth = draw(st.sampled_from([(1, 8), (2, 4), (2, 8), (3, 4), (3, 8)]))
    attention = draw(st.sampled_from(["full", "full", "full", "axial"]))
    tokens = attention == "full"
    classifiers = [name for name, n in CLASS_TOKENS.items() if tokens or not n]
    resnet = draw(st.sampled_from([None, None, "v1"]))
    config = ViTConfig(
        patch_size=draw(st.integers(1, 2) if resnet else st.integers(2, 4)),
        num_layers=draw(st.integers(1, 2)),
        hidden_size=num_heads * depth,
        mlp_dim=draw(st.integers(5, 20)),
        num_heads=num_heads,
        classifier=draw(st.sampled_from(["token"] * tokens * 3 + classifiers)),
        representation_size=draw(st.sampled_from([None, None, 6])),
        gelu=draw(st.sampled_from(["tanh", "erf"])),
        layer_norm_epsilon=draw(st.sampled_from([1e-6, 1e-12])),
        resnet=draw(resnets("v1")) if resnet else None,
        position=draw(
            st.sampled_from(["1d"] * 4 + ["none", "2d", "sincos2d", "relative"])
        ),
        position_at=draw(
            st.sampled_from(["stem"] * 2 + ["every_layer", "every_layer_shared"])
        ),
        attention=attention,
        num_registers=draw(st.sampled_from([0, 0, 1, 2])) if tokens else 0,
    )
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    pixels = config.patch_size * (config.resnet.stride if config.resnet else 1)
    return config, {"image_size": (rows * pixels, columns * pixels), **draw(ends())}


def ends():
    channels, classes = st.integers(1, 4), st.sampled_from([None, 1, 3])
    return st.fixed_dictionaries({"num_channels": channels, "num_classes": classes})


@st.composite
def bits(draw):
    size = draw(st.sampled_from([(16, 16), (16, 24)]))
    unit = draw(st.sampled_from(["v2", "v2", "axial"]))
    return draw(resnets(unit)), {"image_size": size, **draw(ends())}


def built(config, arguments):
    """A model with no weight at its initial value."""
    build = family_of(config).build
    model = build(config, **arguments)
    rng = np.random.default_rng(0)
    model.set_weights(
        [rng.standard_normal(w.shape).astype("float32") for w in model.get_weights()]
    )
    return model


def told(message):
    """The arguments that a warning says to read a file with."""
    match = re.search(r" back with (.*)$", message)
    if match is None:
        return {}
    call = ast.parse(f"f({match[1]})", mode="eval").body
    values = {"ResNetConfig": ResNetConfig}
    return {
        word.arg: eval(compile(ast.Expression(word.value), "", "eval"), values)
        for word in call.keywords
    }


def saved(model, path, format):
    """Saves; returns what the file does not tell, and what the library does not do."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        weights.save(model, path, format)
    messages = [str(warning.message) for warning in caught]
    others = [text for text in messages if " back with " not in text]
    return {k: v for text in messages for k, v in told(text).items()}, others


def expressible(config, num_classes, image_size, format):
    """Whether the other library has such a model; npz has names for all."""
    if format == "npz":
        return True
    if isinstance(config, ResNetConfig):
        plain = config.unit == "v2" and config.pool_padding == "zero"
        return plain and format == "hf"  # timm's are of 50 layers and more.
    resnet = config.resnet
    classifier = config.classifier
    if not num_classes:  # Whether tokens are pooled is then no matter of the file.
        pooled = {"unpooled": "gap", "token_unpooled": "token"}
        classifier = pooled.get(classifier, classifier)
    if config.position != "1d" or config.attention != "full":
        return False
    if config.position_at != "stem":
        return False
    if format == "timm":
        return (
            classifier in ("token", "gap", "map", "distilled")
            and config.representation_size is None
            and not (classifier == "distilled" and config.num_registers)
            and (resnet is None or (resnet.num_layers, resnet.width) == ((), 64))
        )
    if classifier in ("gap", "map"):  # I-JEPA, and SigLIP's image tower.
        square = image_size[0] == image_size[1]
        return (
            not config.num_registers
            and config.representation_size is None
            and resnet is None
            and (classifier == "gap" or (not num_classes and square))
        )
    return (
        classifier in ("token", "distilled")
        and not config.num_registers
        and not (config.representation_size and num_classes)
        and (resnet is None or bool(resnet.num_layers))
        and not (resnet is not None and classifier == "distilled")
    )


def check(config, arguments, format):
    model = built(config, arguments)
    config = config_of(model)  # Without what a model of one layer does not show.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("model.npz" if format == "npz" else "model")
        if not expressible(
            config, arguments["num_classes"], arguments["image_size"], format
        ):
            event(f"{format}: refused")
            with pytest.raises(ValueError, match=r"Expected .*Received: ") as caught:
                saved(model, path, format)
            assert format in str(caught.value)
            assert not path.exists()
            return
        event(f"{format}: written")
        untold, computed = saved(model, path, format)
        size = arguments["image_size"]
        if format == "npz" or isinstance(config, ResNetConfig):
            untold["image_size"] = size
        again = keras_vit.from_checkpoint(path, **untold)
    assert again.input_shape == model.input_shape
    if computed:  # The library has epsilons of its own, and the user was told.
        config = with_numerics(config, config_of(again))
    assert config_of(again) == config
    before, after = model.get_weights(), again.get_weights()
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    if not computed:
        np.testing.assert_array_equal(logits(model), logits(again))


def logits(model):
    images = np.random.default_rng(1).uniform(-1, 1, (2, *model.input_shape[1:]))
    return keras.ops.convert_to_numpy(model(images.astype("float32")))


def with_numerics(config, other):
    fields = ("kernel_epsilon", "epsilon_outside", "group_norm_epsilon")
    fields += ("layer_norm_epsilon",)
    own = {field: getattr(other, field) for field in fields if hasattr(config, field)}
    if getattr(config, "resnet", None) is not None:
        own["resnet"] = with_numerics(config.resnet, other.resnet)
    return dataclasses.replace(config, **own)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are using a softmax")  # Of one patch.
@pytest.mark.parametrize("format", FORMATS)
@repeatable
@given(drawn=vits())
def test_vits_and_hybrids(format, drawn):
    check(*drawn, format)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are using a softmax")  # Of one patch.
@pytest.mark.parametrize("format", FORMATS)
@repeatable
@given(drawn=bits())
def test_resnets(format, drawn):
    check(*drawn, format)


def moved(model):
    """The model with random weights, in place."""
    rng = np.random.default_rng(1)
    model.set_weights(
        [w + 0.05 * rng.normal(size=w.shape) for w in model.get_weights()]
    )
    return model


IMAGES = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("pooling", ["token", "avg", "max", None])
def test_the_pooling_of_features(pooling, format, tmp_path):
    """Only Equation 4's is in a config; a head on another one would be lost."""
    path = tmp_path / ("file.npz" if format == "npz" else "folder")
    options = {"include_top": False, "pooling": pooling, "input_shape": (32, 32, 3)}
    model = moved(keras_vit.ViT_Ti16(weights=None, **options))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        weights.save(model, path, format)
    text = " ".join(str(one.message) for one in found)
    assert ("does not store the pooling" in text) == (pooling != "token")
    again = keras_vit.ViT_Ti16(weights=path, **options)
    np.testing.assert_allclose(again(IMAGES), model(IMAGES), rtol=0, atol=1e-5)
    task = keras_vit.for_task(model, 3)
    if pooling == "token":
        weights.save(task, tmp_path / path.name, format)
        return
    with pytest.raises(ValueError, match="instead of TakeTokens, Dense, which the fil"):
        weights.save(task, tmp_path / path.name, format)


def scaled_first():
    images = keras.layers.Rescaling(2.0)(keras.Input((32, 32, 3)))
    return keras_vit.ViT_Ti16(weights=None, input_tensor=images, classes=3)


def with_a_second_input():
    model = keras_vit.ViT_Ti16(weights=None, include_top=False, pooling="token")
    other = keras.Input((2,))
    joined = keras.layers.Concatenate()([model.output, other])
    return keras.Model([model.input, other], keras.layers.Dense(3, name="head")(joined))


def between():
    """The maps of blocks, without the norm."""
    return keras_vit.feature_maps(
        keras_vit.ViT_Ti16(weights=None, classes=3), [1, 3], norm=False
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("made", "found"),
    [
        (scaled_first, "operations before 'embedding'"),
        (with_a_second_input, "2 inputs and 1 output,"),
        (between, "1 input and 4 outputs"),
    ],
)
def test_operations_that_no_config_describes(made, found, format, tmp_path):
    with pytest.raises(ValueError, match=f"{found}.*model.save"):
        weights.save(made(), tmp_path / "file", format)
