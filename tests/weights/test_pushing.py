"""Uploads to a Hub on the loopback."""

import json

import numpy as np
import pytest
from huggingface_hub import metadata_load

import keras_vit
from keras_vit.weights import DownloadError, push
from tests.conftest import FIXTURES
from tests.weights.hub import TOKEN

HF = FIXTURES / "dialects" / "hf_vit_new_names"
CARD = b"---\nlicense: cc-by-nc-4.0\n---\n"


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def outputs(model):
    images = np.linspace(-1, 1, int(np.prod(model.input_shape[1:])), dtype=np.float32)
    return np.asarray(model.predict_on_batch(images.reshape(1, *model.input_shape[1:])))


def files(hub, name):
    return hub.repositories[name].find("main")[1]


def metadata(hub, name, folder):
    file = folder / "README.md"
    file.write_bytes(files(hub, name)["README.md"])
    return metadata_load(file)


def test_what_is_pushed_is_read_back(hub, token, tmp_path):
    files_of_base = {path.name: path.read_bytes() for path in HF.iterdir()}
    base = hub.add("google/vit-tiny", files_of_base | {"README.md": CARD})
    model = keras_vit.from_checkpoint("hf://google/vit-tiny")
    url = push(model, "hf://user/mine", sections={"Training": {"data": "a|b"}})
    held = files(hub, "user/mine")
    assert (
        url
        == f"{hub.url}/user/mine/commit/{hub.repositories['user/mine'].refs['main']}"
    )
    assert held.keys() == {
        *(".gitattributes", "README.md", "config.json", "model.safetensors"),
        "preprocessor_config.json",
    }
    again = keras_vit.from_checkpoint("hf://user/mine")
    np.testing.assert_allclose(outputs(again), outputs(model), atol=1e-6)
    assert again.provenance.license == "cc-by-nc-4.0"
    card = held["README.md"].decode()
    assert f"| revision | {base} |" in card
    assert "| source | hf://google/vit-tiny |" in card
    assert r"| data | a\|b |" in card
    assert 'keras_vit.from_checkpoint("hf://user/mine")' in card
    assert "from transformers import ViTForImageClassification\n" in card
    found = metadata(hub, "user/mine", tmp_path)
    assert found["base_model"] == "google/vit-tiny"
    assert found["library_name"] == "transformers"


def test_a_second_push_is_a_second_commit(hub, token, tmp_path):
    model = keras_vit.from_checkpoint(HF)
    first = push(model, "hf://user/mine")
    second = push(model, "hf://user/mine", license="apache-2.0")
    assert first != second
    assert metadata(hub, "user/mine", tmp_path)["license"] == "apache-2.0"
    assert len(hub.repositories["user/mine"].commits) == 3


def test_a_private_repository(hub, token):
    push(keras_vit.from_checkpoint(HF), "hf://user/mine", private=True)
    assert hub.repositories["user/mine"].access == "private"


def test_without_a_token(hub):
    with pytest.raises(DownloadError, match="HF_TOKEN"):
        push(keras_vit.from_checkpoint(HF), "hf://user/mine")
    assert not hub.repositories


def test_without_the_right_to_write(hub, token):
    with pytest.raises(DownloadError, match="HTTP 403"):
        push(keras_vit.from_checkpoint(HF), "hf://google/mine")


@pytest.mark.parametrize(
    "name",
    ["mine", "user/mine", "timm:mine", "hf://user/mine@v1", "hf://user", "https://x/y"],
)
def test_names_that_are_none(hub, token, name):
    with pytest.raises(ValueError, match="hf://"):
        push(keras_vit.from_checkpoint(HF), name)
    assert hub.log == []


def test_a_model_that_the_layout_cannot_hold(hub, token):
    sizes = {"patch_size": 8, "num_layers": 1, "hidden_size": 16, "mlp_dim": 32}
    config = keras_vit.ViTConfig(**sizes, num_heads=2, position="2d")
    model = keras_vit.vit(config, image_size=(16, 16), num_classes=3)
    with pytest.raises(ValueError, match=r"'hf'(.|\n)*'timm'"):
        push(model, "hf://user/mine")
    assert hub.log == []


def test_a_model_that_timm_has_and_transformers_has_not(hub, token, tmp_path):
    config = keras_vit.PlainViTConfig(
        patch_size=8,
        num_layers=1,
        hidden_size=16,
        mlp_dim=32,
        num_heads=2,
        rotary=keras_vit.RotaryConfig(),
    )
    model = keras_vit.plain_vit(config, image_size=(16, 16), num_classes=3)
    push(model, "hf://user/mine")
    assert metadata(hub, "user/mine", tmp_path)["library_name"] == "timm"
    card = files(hub, "user/mine")["README.md"].decode()
    assert 'timm.create_model("hf-hub:user/mine", pretrained=True)' in card
    again = keras_vit.from_checkpoint("hf://user/mine")
    assert again.config == config
    np.testing.assert_allclose(outputs(again), outputs(model), atol=1e-6)


def test_offline(hub, token, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="run the command again"):
        push(keras_vit.from_checkpoint(HF), "hf://user/mine")


def test_a_run_with_its_recipe_and_results(hub, token, shell, tmp_path, monkeypatch):
    """Trained, evaluated and pushed from the shell, without the paths of the data."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (100, 8, 8, 3), np.uint8)
    np.savez("noise.npz", x_train=pixels, y_train=np.arange(100) % 10)
    code, _, errors = shell(
        *("finetune", "--data", "noise.npz", "--weights", HF, "--output", "run"),
        *("--steps", 1, "--batch-size", 8, "--lr", 0.01),
    )
    assert code == 0, errors
    code, _, errors = shell("evaluate", "--model", "run", "--output", "card")
    assert code == 0, errors
    code, text, errors = shell(
        *("weights", "push", "run", "hf://user/digits", "--card", "card"),
        *("--license", "mit"),
    )
    assert code == 0, errors
    assert text.strip().startswith(f"{hub.url}/user/digits/commit/")
    card = files(hub, "user/digits")["README.md"].decode()
    titles = [line[3:] for line in card.splitlines() if line.startswith("## ")]
    assert titles == [
        *("Training", "Recipe", "Results", "Data of the results", "Preprocessing"),
        "Provenance",
    ]
    assert "| data | noise.npz |" in card
    assert "| name | noise.npz |" in card
    assert str(tmp_path) not in card
    assert "| total steps | 1 |" in card
    results = json.loads((tmp_path / "card" / "card.json").read_text())["results"]
    assert f"| top 1 | {100 * results['top_1']['value']:.2f} % (95 %: " in card
    config = json.loads(files(hub, "user/digits")["config.json"])
    assert len(config["id2label"]) == 10
