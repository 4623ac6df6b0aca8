"""Predictions of exported files, in their own runtimes, against the model's."""

import dataclasses
import io
import json
import subprocess
import sys

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.facts import Facts
from tests.layers import by_hand
from tests.models import families

tf = pytest.importorskip("tensorflow")
for package in ("ai_edge_litert", "onnx", "onnxruntime", "tf2onnx", "openvino"):
    pytest.importorskip(package)

from keras_vit.serving import ExportedModel, export_file  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

LABELS = ("red", "green", "blue", "Weiß", "black")
SUFFIXES = (".tflite", ".onnx", ".xml")
STATED = keras_vit.Preprocessing(
    mean=(0.4, 0.5, 0.45),
    std=(0.2, 0.25, 0.3),
    interpolation="bicubic",
    antialias=True,
    crop=0.9,
)


@pytest.fixture(scope="module")
def model():
    found = families.build("2d")
    by_hand.randomize(found.get_layer("head"), 1.0)
    found.facts = Facts(preprocessing=STATED, labels=LABELS)
    return found


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    for suffix in SUFFIXES:
        export_file(model, folder / f"m{suffix}", verbose=False)
    return folder


def encoded(seed=0, size=(40, 60)):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_predictions_are_the_models_for_rounded_pixels(model, exported, suffix):
    images = [encoded(seed) for seed in range(3)]
    as_pixels = dataclasses.replace(STATED, mean=(0.0,), std=(1 / 255,))
    pixels = keras_vit.data.preprocessing.prepare_all(
        images, families.SIZE, as_pixels, 3
    )
    scaled = (np.rint(pixels) / 255 - STATED.mean) / STATED.std
    outputs = model(scaled.astype(np.float32), training=False)
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))

    opened = ExportedModel(exported / f"m{suffix}", threads=1)
    assert opened.input_shape == (*families.SIZE, 3)
    assert opened.facts.preprocessing == STATED
    for found, row in zip(opened.predict(images, top=4), expected, strict=True):
        order = np.argsort(-row)[:4]
        assert found.classes == tuple(LABELS[i] for i in order)
        np.testing.assert_allclose(found.scores, row[order], atol=1e-5)


def test_files_paths_and_arrays_are_images_and_a_bad_one_has_a_status(
    exported, tmp_path
):
    opened = ExportedModel(exported / "m.tflite")
    path = tmp_path / "a.png"
    path.write_bytes(encoded())
    pixels = np.asarray(PIL.Image.open(path))
    first, second, third, bad = opened.predict([path, encoded(), pixels, b"no image"])
    assert first == second == third
    assert (bad.classes, bad.ok) == ((), False)
    assert "JPEG" in bad.status
    with pytest.raises(ValueError, match="Expected images"):
        opened.predict([np.zeros((4, 4), np.uint8)])
    with pytest.raises(FileNotFoundError):
        opened.predict([tmp_path / "none.png"])


WATCHED = """
import sys
import keras_vit_command
try:
    keras_vit_command.main()
finally:
    print({name.partition(".")[0] for name in sys.modules} & {"keras", "jax"})
"""


def test_the_command_imports_neither_keras_nor_jax(exported, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded())
    (expected,) = ExportedModel(exported / "m.onnx").predict([path])
    words = ("predict", path, "--model", exported / "m.onnx", "--json")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    row, modules = done.stdout.splitlines()
    assert json.loads(row)["top"][0]["class"] == expected.classes[0]
    assert modules == "set()"


@pytest.fixture
def copied(exported, tmp_path):
    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files_are_errors_of_ours(copied, suffix):
    path = copied / f"m{suffix}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"Received: m{suffix}, changed or missing"):
        ExportedModel(path)
    path.with_name(f"{path.name}.manifest.json").unlink()
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="Export it again"):
        ExportedModel(path)
    path.with_name(f"{path.name}.facts.json").unlink()
    with pytest.raises(ValueError, match="or export again"):
        ExportedModel(path)
    path.unlink()
    with pytest.raises(ValueError, match=r"Expected an exported file\. Received: no"):
        ExportedModel(path)
    with pytest.raises(ValueError, match=r"Expected a file of \.tflite, \.onnx, \.xml"):
        ExportedModel(path.with_suffix(".pb"))


def test_a_runtime_that_is_missing_is_named(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime.*\.\[onnx\]"):
        ExportedModel(exported / "m.onnx")


def test_scores_that_are_not_finite_are_an_error(exported, monkeypatch):
    opened = ExportedModel(exported / "m.onnx")
    monkeypatch.setattr(opened, "_run", lambda images: np.full((1, 5), np.nan))
    with pytest.raises(ValueError, match="Expected finite scores"):
        opened.predict([encoded()])


def test_the_command(exported, tmp_path, shell):
    path = tmp_path / "a.png"
    path.write_bytes(encoded())
    (expected,) = ExportedModel(exported / "m.xml").predict([path], top=2)
    words = ("predict", path, "--model", exported / "m.xml", "--top", 2, "--json")
    code, out, err = shell(*words)
    assert (code, err) == (0, "")
    top = json.loads(out)["top"]
    assert [row["class"] for row in top] == list(expected.classes)
    assert [row["probability"] for row in top] == list(expected.scores)
    code, _, err = shell(*words, "--gelu", "erf")
    assert code == 1
    assert "without --gelu: the exported file has its own" in err
    code, _, err = shell("evaluate", "--model", exported / "m.xml", "--data", "digits")
    assert code == 1
    assert "an exported file, which only `keras-vit predict` opens" in err
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    code, out, err = shell(*words, bad)
    assert code == 1
    assert len(out.splitlines()) == 1
    assert "not a readable image" in err
