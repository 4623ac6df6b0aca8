"""Each command that runs a model, on JAX and on torch.

On TensorFlow: `test_cli` and its neighbors (`features.COMMANDS`).
"""

import json

import keras
import numpy as np
import pytest

import keras_vit
from tests.conftest import REFERENCE

pytest.importorskip("typer")
pytest.importorskip("tensorflow")

from keras_vit import serving
from tests.test_cli import CLASSES, MINI, QUICK, photos, trained  # noqa: F401

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="test_cli"
)
SMALL = ("--layers", 1, "--hidden-size", 16, "--mlp-dim", 32, "--heads", 2)
SMALL += ("--patch-size", 16, "--image-size", 32, "--batch-size", 8)


def test_finetune(photos, trained):  # noqa: F811
    details = json.loads((trained / "run.json").read_text())["details"]
    assert details["data"] == str(photos)
    assert details["test_accuracy"] == 1.0
    model = keras.models.load_model(trained / "model.keras")
    assert model.labels == CLASSES
    assert int(model.optimizer.iterations) == 30


def test_predict(shell, photos, trained):  # noqa: F811
    code, out, err = shell(
        "predict", "--model", trained, "--json", photos / "test/light"
    )
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["top"][0]["class"] for row in rows] == ["light"] * 5


def test_embed_and_search(shell, photos, trained, tmp_path):  # noqa: F811
    index, page = tmp_path / "embeddings.npz", tmp_path / "page.html"
    folder = photos / "test"
    code, out, err = shell("embed", folder, "--model", trained, "--output", index)
    assert code == 0, err
    assert "15 embeddings of width" in out
    query = min((folder / "light").iterdir())
    code, out, err = shell("search", index, query, "--output", page, "--top", 2)
    assert code == 0, err
    assert out.splitlines()[0] == f"1.0000  {query}"
    assert page.read_text().count("data:image/jpeg;base64,") == 3


def test_evaluate(shell, trained):  # noqa: F811
    code, out, err = shell("evaluate", "--model", trained)
    assert code == 0, err
    assert "15 of 15 images right" in out


def test_fewshot(shell, photos):  # noqa: F811
    code, out, err = shell(
        *("fewshot", "--weights", MINI, "--data", photos, "--shots", 2, "--seeds", 1)
    )
    assert code == 0, err
    assert "3 classes, 15 test images, features of width 32" in out


def test_inspect(shell, photos, trained, tmp_path):  # noqa: F811
    page = tmp_path / "page.html"
    code, out, err = shell(
        "inspect", trained, photos / "test/light", "--count", 2, "--output", page
    )
    assert code == 0, err
    assert "2 images" in out
    assert "Predictions" in page.read_text()


def test_pretrain(shell, photos, tmp_path):  # noqa: F811
    code, out, err = shell(
        *("pretrain", "--data", photos, "--recipe", "imagenet21k", "--epochs", 2),
        *(*SMALL, "--warmup", 0, "--output", tmp_path / "run"),
    )
    assert code == 0, err
    assert "test accuracy" in out
    history = json.loads((tmp_path / "run/history.json").read_text())
    assert history["recipe"]["optimizer"] == "adam"


def test_pretrain_masked_patches(shell, photos, tmp_path):  # noqa: F811
    code, out, err = shell(
        *("pretrain", "--objective", "masked-patches", "--data", photos, *SMALL),
        *("--steps", 2, "--lr", 1e-3, "--output", tmp_path / "run"),
    )
    assert code == 0, err
    assert "masked patches of test images: loss" in out


def test_transfer(shell, photos, tmp_path):  # noqa: F811
    code, out, err = shell(
        *("transfer", "--data", photos, "--weights", MINI, "--freeze", "--runs", 1),
        *("--augment", "none", "--steps", 4, "--batch-size", 8, "--lr", 0.05),
        *("--lr", 0.5, "--output", tmp_path / "out"),
    )
    assert code == 0, err
    assert "chosen" in out
    told = json.loads((tmp_path / "out/transfer.json").read_text())
    assert set(told["sweep"]) == {"0.05", "0.5"}


def test_data_size(shell, tmp_path):
    pytest.importorskip("sklearn")
    code, out, err = shell(
        *("data-size", "--data", "digits", "--model", "ViT-Ti/16", *SMALL),
        *("--recipe", "cifar10-scratch", "--steps", 1, "--subset", 0.1),
        *("--draws", 1, "--evaluations", 1, "--output", tmp_path / "sizes"),
    )
    assert code == 0, err
    assert "130" in out


def test_export(shell, trained, tmp_path):  # noqa: F811
    code, out, err = shell("export", trained, tmp_path / "served")
    assert code == 0, err
    assert "largest difference from Keras" in out
    facts = serving.read_facts(tmp_path / "served/1")
    assert facts.labels == CLASSES


def test_export_file_scores_as_this_backend_does(tmp_path):
    pytest.importorskip("ai_edge_litert")
    keras.utils.set_random_seed(0)
    model = keras_vit.from_checkpoint(str(REFERENCE / "vit_mini.npz"))
    model = keras_vit.for_task(model, 3)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    file = tmp_path / "model.tflite"
    written = serving.export_file(model, file, verbose=False)
    assert written.path == file
    assert written.agreement == 1
    size = (2, *model.input_shape[1:])
    images = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    logits = model.predict(model.preprocess(images), verbose=0)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    found = serving.formats.file_scores(file, images)
    np.testing.assert_allclose(found, shares, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=r"Expected new files\. Received: .*tflite"):
        serving.export_file(model, file, verbose=False)
