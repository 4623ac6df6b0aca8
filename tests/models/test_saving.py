"""Files that Keras writes of our models: those of 0.1 too, and the legacy .h5."""

import dataclasses
import json
import zipfile

import keras
import numpy as np
import pytest
from packaging.version import Version

import keras_vit
from keras_vit import applications
from keras_vit.configs import CLASS_TOKENS, ResNetConfig, ViTConfig
from keras_vit.families import family_of
from tests.conftest import REFERENCE
from tests.models.test_vit import perturbed

# Written by 0.1, whose models held Keras's GetItem operation; io.npz has their logits.
SAVED = REFERENCE.parent / "saved"
TINY = ViTConfig(patch_size=8, num_layers=1, hidden_size=12, mlp_dim=16, num_heads=3)
OF_0_1 = {
    "token": dataclasses.replace(TINY, num_registers=1),
    "distilled": dataclasses.replace(TINY, classifier="distilled"),
}
IMAGES = np.random.default_rng(0).standard_normal((2, 16, 16, 3)).astype("float32")


def outputs(model, images=IMAGES):
    return keras.ops.convert_to_numpy(model(images))


def build(config, classes=5):
    family = family_of(config)
    make, size = family.build, IMAGES.shape[1:3] if family.has_patches else (32, 32)
    return make(config, image_size=size, num_classes=classes)


MODELS = {
    **{
        f"{classifier}-{registers}": dataclasses.replace(
            TINY, classifier=classifier, num_registers=registers
        )
        for classifier in CLASS_TOKENS
        for registers in (0, 2)
    },
    "axial": dataclasses.replace(TINY, classifier="gap", attention="axial"),
    "hybrid": dataclasses.replace(
        TINY,
        patch_size=1,
        resnet=ResNetConfig(num_layers=(1,), width=32, unit="v1"),
    ),
    "bit": ResNetConfig(num_layers=(1,), width=32),
    "axial-resnet": ResNetConfig(num_layers=(1,), width=32, unit="axial"),
}


def is_only_layers(model):
    """An operation that is no layer has no name in a legacy .h5."""
    return all(isinstance(part, keras.layers.Layer) for part in model.operations)


@pytest.mark.parametrize("name", MODELS)
def test_legacy_h5_loads_back(name, tmp_path):
    model = perturbed(build(MODELS[name]))
    assert is_only_layers(model)
    model.save(tmp_path / "model.h5")
    again = keras.models.load_model(tmp_path / "model.h5", compile=False)
    images = np.ones((2, *model.input_shape[1:]), "float32")
    np.testing.assert_array_equal(outputs(again, images), outputs(model, images))
    with pytest.raises(
        ValueError, match=r"Read it with keras\.models\.load_model\(path\)"
    ):
        keras_vit.from_checkpoint(tmp_path / "model.h5")


@pytest.mark.parametrize("pooling", [None, "token", "avg", "max"])
def test_a_builders_model_is_only_layers(pooling):
    model = keras_vit.ViT_Ti16(
        include_top=False, weights=None, input_shape=(32, 32, 3), pooling=pooling
    )
    assert is_only_layers(model)


def keras_of(path):
    """The version of Keras that wrote a `.keras` file."""
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read("metadata.json"))["keras_version"]


@pytest.mark.skipif(
    Version(keras.version()) < Version(keras_of(SAVED / "token.keras")),
    reason="Keras does not read files of a newer Keras (Dense: quantization_config)",
)
@pytest.mark.parametrize("name", OF_0_1)
def test_keras_files_of_0_1(name):
    with np.load(SAVED / "io.npz") as io:
        images, theirs = io["images"], io[name]
    model = keras.models.load_model(SAVED / f"{name}.keras", compile=False)
    np.testing.assert_allclose(outputs(model, images), theirs, atol=1e-6)


@pytest.mark.parametrize("name", OF_0_1)
def test_weights_files_of_0_1(name):
    with np.load(SAVED / "io.npz") as io:
        images, theirs = io["images"], io[name]
    model = build(OF_0_1[name])
    model.load_weights(SAVED / f"{name}.weights.h5")
    np.testing.assert_allclose(outputs(model, images), theirs, atol=1e-6)


VIT = applications.ViTBuilder("ViT-Ti/16", TINY)
BIT = applications.ResNetBuilder("BiT-R50x1", ResNetConfig(num_layers=(1,), width=32))


def test_a_builder_reads_what_save_weights_wrote(tmp_path):
    model = perturbed(VIT(weights=None, input_shape=(32, 32, 3), classes=5))
    model.save_weights(tmp_path / "m.weights.h5")
    (tmp_path / "renamed.h5").write_bytes((tmp_path / "m.weights.h5").read_bytes())
    for name in ("m.weights.h5", "renamed.h5"):
        path = tmp_path / name
        again = VIT(weights=path, input_shape=(32, 32, 3))
        images = np.ones((2, 32, 32, 3), "float32")
        np.testing.assert_array_equal(outputs(again, images), outputs(model, images))
        assert again.provenance.dialect == "keras"
    larger = VIT(weights=path, input_shape=(48, 64, 1), classes=3)
    assert larger.provenance.fresh == ("head/kernel", "head/bias")
    assert len(larger.provenance.resized) == 2
    features = VIT(
        weights=path, input_shape=(32, 32, 3), include_top=False, pooling="token"
    )
    assert features.output_shape == (None, 12)


def test_a_builder_reads_what_save_weights_wrote_of_other_options(tmp_path):
    """Images that are not square, dropout's seeds, `pre_logits`, numerics, features."""
    options = {"dropout_rate": 0.1, "representation_size": 7, "gelu": "erf"}
    shape, path = (16, 32, 3), tmp_path / "m.weights.h5"
    images = np.ones((2, *shape), "float32")
    model = perturbed(VIT(weights=None, input_shape=shape, classes=5, **options))
    model.save_weights(path)
    again = VIT(weights=path, input_shape=shape, **options)
    np.testing.assert_array_equal(outputs(again, images), outputs(model, images))
    with pytest.raises(ValueError, match="load_weights"):  # Of which of the two?
        VIT(weights=path, input_shape=(32, 32, 3), **options)
    bare = {"include_top": False, "input_shape": shape}
    model = perturbed(VIT(weights=None, **bare))
    model.save_weights(path)
    again = VIT(weights=path, **bare)
    np.testing.assert_array_equal(outputs(again, images), outputs(model, images))


def test_save_weights_of_another_model(tmp_path):
    model, path = build(TINY), tmp_path / "m.weights.h5"
    model.save_weights(path)
    for other in (
        applications.ViTBuilder("ViT-Ti/16", dataclasses.replace(TINY, num_layers=2)),
        applications.ViTBuilder("ViT-Ti/16", dataclasses.replace(TINY, mlp_dim=8)),
        BIT,
    ):
        with pytest.raises(
            ValueError, match=r"Received: .*model\.load_weights\(path\)"
        ):
            other(weights=path)
    for read in (keras_vit.from_checkpoint, lambda p: keras_vit.weights.load(model, p)):
        with pytest.raises(ValueError, match=r"model\.save_weights.*load_weights"):
            read(path)


def test_a_resnets_builder_reads_what_save_weights_wrote(tmp_path):
    model = perturbed(BIT(weights=None, input_shape=(32, 32, 3), classes=3))
    model.save_weights(tmp_path / "m.weights.h5")
    again = BIT(weights=tmp_path / "m.weights.h5", input_shape=(32, 32, 3))
    images = np.ones((1, 32, 32, 3), "float32")
    np.testing.assert_array_equal(outputs(again, images), outputs(model, images))
