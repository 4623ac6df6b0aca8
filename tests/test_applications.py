"""The keras.applications face, on files the tests make."""

import copy
import dataclasses
import inspect
import pickle
import pydoc

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import applications
from keras_vit.configs import (
    NUMERICS,
    VARIANTS,
    EfficientNetConfig,
    ResNetConfig,
    ViTConfig,
    builder_name,
)
from keras_vit.weights import registry
from tests.conftest import REFERENCE
from tests.layers import by_hand

MINI = REFERENCE / "vit_mini.npz"

BUILDERS = sorted(
    {
        builder_name(variant)
        for variant, config in VARIANTS.items()
        if not isinstance(config, EfficientNetConfig)
    }
)


def numpy(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("name", BUILDERS)
def test_signature_is_that_of_keras_applications(name):
    builder = getattr(keras_vit, name)
    theirs = list(inspect.signature(keras.applications.ResNet50).parameters)
    ours = inspect.signature(builder).parameters
    positional = [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == theirs
    assert builder.__name__ == name
    documented = inspect.getdoc(builder)
    assert all(f"\n    {parameter}: " in documented for parameter in ours)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_is_documented_with_the_defaults_of_its_variant(name):
    builder = getattr(keras_vit, name)
    assert repr(builder) == f"<keras_vit.{name}: builder of {builder.variant}>"
    assert builder.config is VARIANTS[builder.variant]
    assert builder.__module__ == "keras_vit.applications"
    documented = inspect.getdoc(builder)
    assert documented.startswith(f"Builds {builder.variant} (")
    assert all(repr(tag) in documented for tag in registry.tags(builder.variant))
    words = " ".join(documented.split())
    for parameter in inspect.signature(builder).parameters.values():
        assert "variant" not in repr(parameter.default)
        if hasattr(builder.config, parameter.name) and parameter.name != "gelu":
            assert parameter.default == getattr(builder.config, parameter.name)
            assert f"{parameter.name}={parameter.default!r}" in words
    helped = pydoc.render_doc(builder, renderer=pydoc.plaintext)
    assert f"Builds {builder.variant} (" in helped
    assert "include_top: whether" in helped
    assert pickle.loads(pickle.dumps(builder)) is builder
    assert copy.deepcopy(builder) is builder


def test_builders_accept_positional_arguments():
    """In the order of keras.applications."""
    model = keras_vit.ViT_Ti16(
        False, None, None, (32, 48, 3), "avg", None, None, "positional"
    )
    assert (model.name, model.output_shape) == ("positional", (None, 192))
    model = keras_vit.BiT_R50x1(True, None, None, (32, 32, 3), None, 2, None)
    assert (model.name, model.output_shape) == ("bit_r50x1", (None, 2))
    with pytest.raises(TypeError, match="weigths"):
        keras_vit.ViT_Ti16(weigths=None)


@pytest.mark.tensorflow_only
def test_a_notebook_completes_and_explains_a_builder(capsys):
    """IPython prints one documentation and one signature with the real defaults."""
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell.user_ns["keras_vit"] = keras_vit
    line = "keras_vit.ViT_B16(wei"
    with pytest.importorskip("IPython.core.completer").provisionalcompleter():
        found = list(shell.Completer.completions(line, len(line)))
    assert "weights=" in [completion.text for completion in found]
    shell.run_line_magic("pinfo", "keras_vit.ViT_B16")
    printed = capsys.readouterr().out
    assert printed.count("include_top: whether") == 1
    assert "augreg-imagenet2012-224" in printed


def small(**kwargs):
    return keras_vit.ViT_Ti16(weights=None, input_shape=(32, 48, 3), **kwargs)


def test_top_and_activation():
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 48, 3))
    np.testing.assert_allclose(numpy(small(classes=4)(images)), 0.25)  # A zero head.
    assert (numpy(small(classes=4, classifier_activation=None)(images)) == 0).all()


def test_pooling_without_top():
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 48, 3)).astype("float32")
    tokens = small(include_top=False)
    expected = numpy(tokens(images))
    assert expected.shape == (2, 7, 192)
    for pooling, reduced in (
        ("token", expected[:, 0]),
        ("avg", expected.mean(1)),
        ("max", expected.max(1)),
    ):
        pooled = small(include_top=False, pooling=pooling)
        pooled.set_weights(tokens.get_weights())
        np.testing.assert_allclose(numpy(pooled(images)), reduced, atol=1e-5)


def test_impossible_pooling():
    with pytest.raises(ValueError, match="pooling='mean'"):
        small(include_top=False, pooling="mean")
    with pytest.raises(ValueError, match="class token"):
        small(include_top=False, pooling="token", classifier="gap")


def test_input_tensor():
    images = keras.Input((64, 64, 3))
    scaled = keras.layers.Rescaling(1 / 127.5, -1)(images)
    model = keras_vit.ViT_Ti16(weights=None, input_tensor=scaled, classes=2)
    assert model.input_shape == (None, 64, 64, 3)
    assert "rescaling" in " ".join(layer.name for layer in model.layers)


def test_unknown_tag_names_those_there_are():
    with pytest.raises(ValueError, match="imagenet21k"):
        keras_vit.ViT_B16(weights="imagenet22k")


def test_from_checkpoint_overrides_and_unknown_ones():
    model = keras_vit.from_checkpoint(
        REFERENCE / "vit_mini.npz", layer_norm_epsilon=1e-5, gelu="erf"
    )
    assert model.get_layer("encoder_norm").epsilon == 1e-5
    with pytest.raises(ValueError, match="depth"):
        keras_vit.from_checkpoint(REFERENCE / "vit_mini.npz", depth=3)


def test_what_a_checkpoint_fills_is_not_drawn_first(monkeypatch):
    def draw(*args, **kwargs):
        raise AssertionError("drawn")

    monkeypatch.setattr(keras.initializers.RandomUniform, "__call__", draw)
    model = keras_vit.from_checkpoint(MINI)
    kernel = model.get_layer("encoderblock_0").mlp.dense_0.kernel
    assert np.abs(numpy(kernel)).max() > 0.01
    with pytest.raises(AssertionError, match="drawn"):
        keras_vit.vit(VARIANTS["ViT-Ti/16"], image_size=(16, 16), num_classes=2)


def test_from_checkpoint_without_a_head_gives_features(tmp_path):
    with np.load(REFERENCE / "vit_mini.npz") as file:
        body = {key: file[key] for key in file.files if not key.startswith("head")}
    np.savez(tmp_path / "body.npz", **body)
    assert keras_vit.from_checkpoint(tmp_path / "body.npz").output_shape == (None, 32)


def test_preprocess_input_leaves_its_argument():
    x = np.array([0, 127, 128, 255], np.uint8).reshape(1, 2, 2, 1)
    kept = x.copy()
    y = keras_vit.preprocess_input(x)
    expected = (kept.astype(np.float32) - 127.5) / 127.5
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(x, kept)
    floats = x.astype(np.float32)
    keras_vit.preprocess_input(floats)
    np.testing.assert_array_equal(floats, kept)
    tensor = keras_vit.preprocess_input(keras.ops.convert_to_tensor(x))
    np.testing.assert_allclose(numpy(tensor), expected, atol=1e-7)


def test_decode_predictions():
    scores = np.zeros((2, 1000), np.float32)
    scores[0, [1, 0]] = 0.9, 0.1
    scores[1, 999] = 1
    first, second = keras_vit.decode_predictions(scores, top=2)
    assert first == [
        (1, "goldfish, Carassius auratus", pytest.approx(0.9)),
        (0, "tench, Tinca tinca", pytest.approx(0.1)),
    ]
    assert second[0][0] == 999
    assert len(applications.imagenet2012_labels()) == 1000
    with pytest.raises(ValueError, match="1000"):
        keras_vit.decode_predictions(scores[:, :10])


def test_decode_quantized_predictions():
    """Unsigned integers have no negatives."""
    scores = np.zeros((1, 1000), np.uint8)
    scores[0, [3, 7]] = 200, 55
    (best,) = keras_vit.decode_predictions(scores, top=2)
    assert [(row[0], row[2]) for row in best] == [(3, 200.0), (7, 55.0)]


def test_a_mirror_in_another_dialect_is_the_same_training(tmp_path, monkeypatch):
    """A tag's numerics are the paper's, though timm, who keeps the copy, uses erf."""
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    model = keras_vit.ViT_Ti16(weights=None, classes=1000, classifier_activation=None)
    rng = np.random.default_rng(0)
    for layer in ("head", "cls"):
        values = model.get_layer(layer).get_weights()
        model.get_layer(layer).set_weights(
            [0.02 * rng.standard_normal(v.shape) for v in values]
        )
    keras_vit.weights.save(model, tmp_path / "timm", format="timm")
    tag = "augreg-imagenet21k+imagenet2012-224"
    row = registry.find("ViT-Ti/16", tag)
    copy = tmp_path / f"{row.path.removesuffix('.npz')}.timm.safetensors"
    copy.parent.mkdir()
    (tmp_path / "timm" / "model.safetensors").rename(copy)
    again = keras_vit.ViT_Ti16(weights=tag, classifier_activation=None)
    found = again.provenance
    assert (found.dialect, found.variant, found.tag) == ("timm", row.variant, tag)
    assert found.license == row.licence
    assert found.source == str(copy)
    assert again.get_layer("encoderblock_0").gelu == "tanh"
    images = rng.uniform(-1, 1, (1, 224, 224, 3)).astype("float32")
    np.testing.assert_allclose(numpy(again(images)), numpy(model(images)), atol=1e-6)
    exact = keras_vit.ViT_Ti16(weights=tag, numerics="timm")
    assert exact.get_layer("encoderblock_0").gelu == "erf"
    with pytest.raises(ValueError, match="numerics to be one of paper, timm, hf"):
        keras_vit.ViT_Ti16(weights=None, numerics="jax")


@pytest.mark.tensorflow_only
def test_a_file_brings_its_numerics_to_a_builder_but_not_its_architecture(tmp_path):
    images = {"input_shape": (32, 32, 3), "classes": 3}
    ti = keras_vit.ViT_Ti16(weights=None, gelu="erf", **images)
    keras_vit.weights.save(ti, tmp_path, format="hf")
    again = keras_vit.ViT_Ti16(weights=tmp_path, **images)
    assert again.get_layer("encoderblock_0").gelu == "erf"
    assert (
        keras_vit.ViT_Ti16(weights=tmp_path, gelu="tanh", **images)
        .get_layer("encoderblock_0")
        .gelu
        == "tanh"
    )
    hybrid = REFERENCE / "hybrid_mini_stem.npz"
    with pytest.raises(ValueError, match=r"embedding/kernel is .*a hybrid"):
        keras_vit.ViT_Ti16(weights=hybrid, **images)
    with pytest.raises(ValueError, match="conv_root/kernel is missing"):
        keras_vit.R_ViT_Ti16(weights=MINI, **images)
    with pytest.raises(ValueError, match="conv_root/kernel is missing"):
        keras_vit.BiT_R50x1(weights=MINI, **images)


def test_loading_into_a_model_of_other_numerics_warns(tmp_path):
    mini = keras_vit.from_checkpoint(MINI, gelu="erf")
    keras_vit.weights.save(mini, tmp_path, format="timm")
    paper = keras_vit.from_checkpoint(MINI)
    with pytest.warns(UserWarning, match=r"requires gelu='erf' \(timm\)"):
        keras_vit.weights.load(paper, tmp_path)


# Builders of every family on configs small enough to build often.
V1 = ResNetConfig(num_layers=(1, 1), width=32, **NUMERICS["paper"]["v1"], unit="v1")
TINY = ViTConfig(patch_size=8, num_layers=2, hidden_size=24, mlp_dim=32, num_heads=3)
FAMILIES = {
    "R50+ViT-B/32": dataclasses.replace(TINY, patch_size=1, resnet=V1),
    "Axial-ViT-B/16": dataclasses.replace(TINY, classifier="gap", attention="axial"),
    "BiT-R50x2": ResNetConfig(num_layers=(1, 1), width=32),
    "Axial-ResNet50": ResNetConfig(num_layers=(1, 1), width=32, unit="axial"),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    """A builder of a family, its class token's place and the rank of its features."""
    config = FAMILIES[request.param]
    if isinstance(config, ResNetConfig):
        return applications.ResNetBuilder(request.param, config), None, 4
    token = 0 if config.classifier == "token" else None
    return applications.ViTBuilder(request.param, config), token, 3


@pytest.mark.tensorflow_only
def test_pooling_of_every_family(family):
    builder, token, rank = family
    shape = (33, 49, 3) if builder.__name__.startswith(("R50", "BiT")) else (32, 48, 3)
    images = np.random.default_rng(0).uniform(-1, 1, (2, *shape)).astype("float32")
    whole = builder(include_top=False, weights=None, input_shape=shape)
    by_hand.randomize(whole, 0.1)
    features = numpy(whole(images))
    assert features.ndim == rank
    places = tuple(range(1, rank - 1))
    expected = {"avg": features.mean(places), "max": features.max(places)}
    if token is not None:
        expected["token"] = features[:, token]
    for pooling, reduced in expected.items():
        pooled = builder(
            include_top=False, weights=None, input_shape=shape, pooling=pooling
        )
        pooled.set_weights(whole.get_weights())
        np.testing.assert_allclose(numpy(pooled(images)), reduced, atol=1e-5)
    if token is None:
        with pytest.raises(ValueError, match=r"class token for pooling='token'.*Rec"):
            builder(include_top=False, weights=None, pooling="token")
    with pytest.raises(
        ValueError, match=r"pooling to be one of None, token, avg, max.*'sum'"
    ):
        builder(include_top=False, weights=None, pooling="sum")


@pytest.mark.tensorflow_only
def test_top_of_every_family(family):
    builder, _, _ = family
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 48, 3)).astype("float32")
    scaled = keras.layers.Rescaling(2.0)(keras.Input((32, 48, 3)))
    model = builder(weights=None, classes=4, input_tensor=scaled)
    assert model.name == builder.__name__.lower()
    assert model.input_shape == (None, 32, 48, 3)
    np.testing.assert_allclose(numpy(model(images)), 0.25)
    by_hand.randomize(model, 0.1)
    plain = builder(
        weights=None,
        classes=np.int64(4),
        input_shape=(32, 48, 3),
        classifier_activation=None,
        name="mine",
    )
    assert plain.name == "mine"
    plain.set_weights(model.get_weights())
    logits = numpy(plain(2 * images))
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    expected = exponents / exponents.sum(-1, keepdims=True)
    np.testing.assert_allclose(numpy(model(images)), expected, atol=1e-5)


@pytest.mark.tensorflow_only
def test_defaults_of_every_family(family):
    """224 px, 1000 classes, and no weights where none are published."""
    builder, _, _ = family
    model = builder()
    assert model.input_shape == (None, 224, 224, 3)
    assert model.output_shape == (None, 1000)
    with pytest.raises(ValueError, match=r"Expected a variant with published weights"):
        builder(weights="imagenet21k")
    with pytest.raises(ValueError, match=r"Expected input_shape \(H, W, C\)"):
        builder(input_shape=(32, 32))


def test_default_weights_are_those_published():
    def default(name):
        parameters = inspect.signature(getattr(keras_vit, name)).parameters
        return parameters["weights"].default

    published = {name for name in BUILDERS if default(name) is not None}
    assert {name for name in BUILDERS if name not in published} == {
        "Axial_ResNet50",
        "Axial_ViT_B16",
        "Axial_ViT_B32",
        "BiT_R50x2",
        "BiT_R152x1",
        "BiT_R200x3",
        "R50_ViT_B32",
        "R50_ViT_L16",
    }
    for name in published:
        variant = next(v for v in VARIANTS if builder_name(v) == name and v != name)
        assert default(name) in registry.tags(variant)


@pytest.mark.tensorflow_only
def test_pool_padding_is_what_is_outside_of_the_root():
    config = FAMILIES["BiT-R50x2"]
    builder = applications.ResNetBuilder("BiT-R50x2", config)
    images = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    zero, inf = (
        builder(
            weights=None,
            include_top=False,
            input_shape=(32, 32, 3),
            **({"pool_padding": padding} if padding else {}),
        )
        for padding in (None, "inf")
    )
    assert zero.get_layer("pool_root").padding == "zero"
    inf.set_weights(zero.get_weights())
    assert np.abs(numpy(zero(images)) - numpy(inf(images))).max() > 1e-3
    with pytest.raises(ValueError, match=r"pool_padding to be one of zero, inf"):
        builder(weights=None, pool_padding="same")


@pytest.mark.tensorflow_only
def test_classifiers_that_a_family_cannot_have():
    builder = applications.ViTBuilder("Axial-ViT-B/16", FAMILIES["Axial-ViT-B/16"])
    with pytest.raises(ValueError, match=r"D\.6.*Received: classifier='token'"):
        builder(weights=None, classifier="token")
    model = builder(weights=None, classifier="map", input_shape=(32, 48, 3), classes=2)
    assert model.get_layer("MAPHead_0").output.shape == (None, 24)
    with pytest.raises(TypeError, match="classifier"):
        keras_vit.BiT_R50x1(weights=None, classifier="gap")


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("size", [(65, 97), (225, 224)])
def test_real_builders_at_any_size(size):
    hybrid = keras_vit.R_ViT_Ti16(weights=None, input_shape=(*size, 3), classes=2)
    grid = hybrid.get_layer("posembed_input").grid
    assert grid == tuple(-(-side // 4) // 8 for side in size)  # Rounded up, then cut.
    bit = keras_vit.BiT_R50x1(
        weights=None, include_top=False, input_shape=(*size, 3), pooling=None
    )
    assert bit.output_shape == (None, *(-(-side // 32) for side in size), 2048)
