"""Checkpoints by name: the Hugging Face Hub, on the loopback, and URLs."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.weights import DownloadError, sources
from tests.conftest import FIXTURES
from tests.weights.hub import TOKEN

HF = FIXTURES / "dialects" / "hf_vit_new_names"
SHARDED = FIXTURES / "dialects" / "hf_vit_sharded"
TIMM = FIXTURES / "dialects" / "timm_vit"
BIT = FIXTURES / "dialects" / "hf_bit"
CARD = b"---\nlicense: apache-2.0\ntags:\n- vit\n---\n# A ViT\n"


def files(folder, **more):
    """A repository's files; `more` by their names, with "_" for "."."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    return found | {name.replace("_", ".", 1): at for name, at in more.items()}


def outputs(model):
    shape = (2, *model.input_shape[1:])
    images = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32)
    return np.asarray(model.predict_on_batch(images.reshape(shape)))


def message(raised):
    text = str(raised.value)
    assert text.startswith("Expected ")
    assert "Received: " in text
    return text


def test_a_repository_is_read_as_its_folder(hub):
    commit = hub.add("google/vit-tiny", files(HF, README_md=CARD, flax_bin=b"x" * 9))
    model = keras_vit.from_checkpoint("hf://google/vit-tiny")
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(HF))
    )
    found = model.provenance
    digest = hashlib.sha256((HF / "model.safetensors").read_bytes()).hexdigest()
    assert found.source == "hf://google/vit-tiny"
    assert (found.revision, found.file) == (commit, "model.safetensors")
    assert (found.sha256, found.license) == (digest, "apache-2.0")
    assert f"hf://google/vit-tiny at commit {commit}: " in str(found)
    assert sorted(hub.downloads()) == [
        *("README.md", "config.json", "model.safetensors", "preprocessor_config.json")
    ]


def test_what_is_cached_is_not_downloaded_again(hub):
    hub.add("google/vit-tiny", files(HF, README_md=CARD))
    first = sources.resolve("hf://google/vit-tiny")
    hub.log.clear()
    assert sources.resolve("hf://google/vit-tiny") == first
    assert hub.downloads() == []


@pytest.mark.parametrize("spelled", ["timm:vit.tiny_1", "hf://timm/vit.tiny_1"])
def test_timm_by_its_short_form(hub, spelled):
    hub.add("timm/vit.tiny_1", TIMM)
    model = keras_vit.from_checkpoint(spelled)
    assert model.provenance.source == "hf://timm/vit.tiny_1"
    assert model.provenance.dialect == "timm"


def test_a_path_of_a_name_is_the_name(hub):
    hub.add("google/vit-tiny", HF)
    found = sources.resolve(Path("hf://google/vit-tiny"))
    assert found.name == "hf://google/vit-tiny"


def test_a_revision_is_a_branch_or_a_commit(hub):
    first = hub.add("google/vit-tiny", TIMM)
    old = hub.add("google/vit-tiny", TIMM, branch="refs/pr/1")
    second = hub.add("google/vit-tiny", {"model.safetensors": b"another"})
    assert sources.resolve(f"hf://google/vit-tiny@{first}").revision == first
    assert sources.resolve("hf://google/vit-tiny@refs/pr/1").revision == old
    assert sources.resolve("hf://google/vit-tiny").revision == second


def test_shards_are_downloaded_with_their_index(hub):
    hub.add("google/vit-tiny", SHARDED)
    model = keras_vit.from_checkpoint("hf://google/vit-tiny")
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(SHARDED))
    )
    assert model.provenance.file == "model.safetensors.index.json"
    assert model.provenance.sha256 is None


def test_one_npz_of_any_name(hub, tmp_path):
    source = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3), classes=5)
    source.get_layer("head").kernel.assign(np.ones((192, 5)))
    keras_vit.weights.save(source, tmp_path / "mine.npz")
    hub.add("me/mine", {"mine.npz": (tmp_path / "mine.npz").read_bytes()})
    model = keras_vit.from_checkpoint("hf://me/mine", num_heads=3)
    assert model.provenance.file == "mine.npz"
    built = keras_vit.ViT_Ti16(
        weights="hf://me/mine", input_shape=(32, 32, 3), classifier_activation=None
    )
    np.testing.assert_array_equal(outputs(built), outputs(model))
    report = keras_vit.weights.load(built, "hf://me/mine")
    assert report.source == "hf://me/mine"


def test_license_of_its_own_name(hub):
    card = b"---\nlicense: other\nlicense_name: dinov3-license\n---\n"
    hub.add("meta/vit", files(HF, README_md=card))
    assert sources.resolve("hf://meta/vit").license == "dinov3-license"


def test_licenses_are_allowed_before_weights_are_downloaded(hub, tmp_path):
    card = b"---\nlicense: cc-by-nc-4.0\n---\n"
    hub.add("meta/vit", files(HF, README_md=card))
    hub.add("me/vit", HF)
    with pytest.raises(ValueError, match=r"license 'cc-by-nc-4\.0'") as raised:
        keras_vit.from_checkpoint("hf://meta/vit", license_allow=["Apache-2.0", "mit"])
    assert "under apache-2.0 or mit (license_allow)" in message(raised)
    assert hub.downloads() == ["README.md"]
    with pytest.raises(ValueError, match="no stated license"):
        keras_vit.ViT_B16(weights="hf://me/vit", license_allow=["mit"])
    with pytest.raises(ValueError, match="no stated license"):
        keras_vit.from_checkpoint(HF, license_allow="mit")
    assert sources.resolve("hf://meta/vit", "mit, CC-BY-NC-4.0").revision


def test_the_license_of_a_tag():
    with pytest.raises(ValueError, match=r"license 'Apache-2\.0'"):
        keras_vit.ViT_B16(weights="imagenet21k", license_allow=["mit"])


def test_offline_the_cache_is_read(hub, monkeypatch):
    from huggingface_hub import constants

    hub.add("google/vit-tiny", files(HF, README_md=CARD))
    first = sources.resolve("hf://google/vit-tiny")
    hub.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sources.resolve("hf://google/vit-tiny", "apache-2.0") == first
    assert hub.log == []


def test_without_a_connection_the_cache_is_read_with_a_warning(hub, monkeypatch):
    from huggingface_hub import constants

    hub.add("google/vit-tiny", HF)
    first = sources.resolve("hf://google/vit-tiny")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.warns(UserWarning, match=f"the cache, at commit {first.revision}"):
        assert sources.resolve("hf://google/vit-tiny") == first


@pytest.mark.parametrize("offline", [True, False])
def test_offline_without_a_cache_names_the_command(hub, monkeypatch, offline):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="On a connected machine") as raised:
        sources.resolve("hf://google/vit-tiny@v1")
    assert (
        "\n  hf download google/vit-tiny --revision v1 --include '*.json' "
        "'*.safetensors' --local-dir FOLDER\n" in message(raised)
    )
    assert ("HF_HUB_OFFLINE is set" in str(raised.value)) == offline


def test_offline_with_a_part_of_it(hub, monkeypatch):
    from huggingface_hub import constants

    hub.add("google/vit-tiny", files(HF, README_md=CARD))
    with pytest.raises(ValueError, match="license"):
        sources.resolve("hf://google/vit-tiny", "mit")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match=r"a cache with README\.md"):
        sources.resolve("hf://google/vit-tiny")


def test_a_private_repository(hub, monkeypatch):
    hub.add("me/secret", HF, access="private")
    with pytest.raises(DownloadError, match="does not exist or is private") as raised:
        sources.resolve("hf://me/secret")
    assert "HF_TOKEN" in message(raised)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert sources.resolve("hf://me/secret").file == "model.safetensors"


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_gated_repository(hub, monkeypatch, token):
    hub.add("meta/dino", HF, access="gated")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(DownloadError, match="is gated") as raised:
        sources.resolve("hf://meta/dino")
    assert f"HTTP {403 if token else 401}" in message(raised)
    assert f"Accept its conditions on {hub.url}/meta/dino; a token is read" in str(
        raised.value
    )


def test_a_revision_that_does_not_exist(hub):
    hub.add("google/vit-tiny", HF)
    with pytest.raises(DownloadError, match="Received: 'v9'") as raised:
        sources.resolve("hf://google/vit-tiny@v9")
    assert f"{hub.url}/google/vit-tiny/commits/main" in message(raised)


@pytest.mark.parametrize(
    "name",
    [
        "hf://google",
        "hf://google/vit/more",
        "hf://../etc/passwd",
        "hf://google/..",
        "hf://google/vit@../../x",
        "hf://google/vit@",
        "hf://google/vit tiny",
        "hf://google/vit?x=1",
        "hf://google/vit\n",
        "hf://google/%2e%2e",
        "timm:",
        "timm:a/b",
    ],
)
def test_a_malformed_name(hub, name):
    with pytest.raises(ValueError, match="hf://ORG/NAME") as raised:
        sources.resolve(name)
    assert repr(name) in message(raised)
    assert hub.log == []


@pytest.mark.parametrize("load", [keras_vit.from_checkpoint, sources.resolve])
@pytest.mark.parametrize(
    "name", ["google/vit-base-patch16-224", "timm/vit_base_patch16_224.augreg_in21k"]
)
def test_a_name_without_its_scheme(load, name):
    with pytest.raises(FileNotFoundError, match=f"use 'hf://{name}'"):
        load(name)
    with pytest.raises((FileNotFoundError, ValueError), match=f"use 'hf://{name}'"):
        keras_vit.ViT_B16(weights=name)


def test_a_missing_file_is_no_repository():
    with pytest.raises(FileNotFoundError, match="does not exist") as raised:
        keras_vit.from_checkpoint("folder/model.safetensors")
    assert "hf://" not in str(raised.value)


def test_a_repository_without_weights_lists_what_is_there(hub):
    hub.add("me/torch", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(ValueError, match=r"with config\.json, pytorch_model\.bin") as r:
        keras_vit.from_checkpoint("hf://me/torch")
    assert "keras-vit convert FILE" in message(r)
    hub.add("me/empty", {})
    with pytest.raises(ValueError, match="with no files"):
        keras_vit.from_checkpoint("hf://me/empty")
    hub.add("me/two", {"a.npz": b"", "b.npz": b""})
    with pytest.raises(ValueError, match=r"with a\.npz, b\.npz"):
        keras_vit.from_checkpoint("hf://me/two")
    assert hub.downloads() == []


def test_a_repository_without_config_json_asks_for_the_heads(hub):
    tensors = {"model.safetensors": (HF / "model.safetensors").read_bytes()}
    hub.add("me/bare", tensors)
    with pytest.raises(ValueError, match="num_heads"):
        keras_vit.from_checkpoint("hf://me/bare")
    with pytest.warns(UserWarning, match=r"has no config\.json"):
        keras_vit.from_checkpoint("hf://me/bare", num_heads=2)


def test_a_missing_shard(hub):
    held = files(SHARDED)
    gone = next(name for name in held if "-of-" in name)
    del held[gone]
    hub.add("me/half", held)
    with pytest.raises(ValueError, match=f"without {gone}") as raised:
        keras_vit.from_checkpoint("hf://me/half")
    assert "hf://me/half" in message(raised)
    assert hub.downloads() == ["model.safetensors.index.json"]


@pytest.mark.parametrize("index", [b"{}", b"[]", b"{", b'{"weight_map": {"a": 1}}'])
def test_a_damaged_index(hub, index):
    hub.add("me/half", {"model.safetensors.index.json": index})
    with pytest.raises(ValueError, match=r"shards") as raised:
        keras_vit.from_checkpoint("hf://me/half")
    message(raised)


def test_a_file_larger_than_the_disk(hub, monkeypatch):
    hub.add("me/large", HF)
    hub.repositories["me/large"].sizes["model.safetensors"] = 10**15
    with pytest.raises(DownloadError, match="Expected 1,000,000,000") as raised:
        sources.resolve("hf://me/large")
    assert "HF_HOME" in message(raised)
    assert hub.downloads() == []
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10))
    hub.add("me/small", HF)
    with pytest.raises(DownloadError, match="10 bytes free"):
        sources.resolve("hf://me/small")


def test_cached_files_need_no_free_disk(hub, monkeypatch):
    hub.add("me/small", HF)
    keras_vit.from_checkpoint("hf://me/small")
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10))
    keras_vit.from_checkpoint("hf://me/small")


def test_a_config_that_contradicts_the_tensors(hub):
    config = json.loads((HF / "config.json").read_text())
    config["hidden_size"] *= 2
    hub.add("me/odd", files(HF) | {"config.json": json.dumps(config).encode()})
    with pytest.raises(ValueError, match="hidden_size") as raised:
        keras_vit.from_checkpoint("hf://me/odd")
    assert "hf://me/odd" in message(raised)


def test_a_truncated_file_in_the_cache(hub):
    hub.add("google/vit-tiny", HF)
    found = sources.resolve("hf://google/vit-tiny")
    blob = (found.path / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-9])
    with pytest.raises(DownloadError, match="truncated or damaged") as raised:
        keras_vit.from_checkpoint("hf://google/vit-tiny")
    assert f"Delete {blob} to download it again" in message(raised)
    blob.unlink()
    assert sources.resolve("hf://google/vit-tiny") == found


def test_a_truncated_transfer_leaves_no_file(hub):
    hub.add("google/vit-tiny", HF)
    hub.faults["model.safetensors"] = "truncated"
    with pytest.raises(DownloadError) as raised:
        sources.resolve("hf://google/vit-tiny")
    message(raised)
    assert not list(hub.cache.rglob("model.safetensors"))
    hub.faults.clear()
    assert sources.resolve("hf://google/vit-tiny").file == "model.safetensors"


@pytest.mark.parametrize("status", [500, 429])
def test_a_hub_that_fails(hub, status):
    hub.add("google/vit-tiny", HF)
    hub.faults["google/vit-tiny"] = status
    with pytest.raises(DownloadError, match=f"HTTP {status}") as raised:
        sources.resolve("hf://google/vit-tiny")
    assert "Try again later" in message(raised)


def test_a_card_that_is_not_yaml(hub):
    hub.add("me/odd", files(HF, README_md=b"---\nlicense: [\n---\n"))
    with pytest.raises(ValueError, match="model card") as raised:
        sources.resolve("hf://me/odd")
    message(raised)


def test_environment_variables_are_read(hub):
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE of a process of its own."""
    commit = hub.add("google/vit-tiny", HF)
    code = (
        "from keras_vit.weights import sources\n"
        "print(sources.resolve('hf://google/vit-tiny').revision)"
    )
    for offline in ("0", "1"):
        environment = os.environ | hub.environment | {"HF_HUB_OFFLINE": offline}
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert printed.stdout.strip() == commit
    assert [path for _, path in hub.log].count("/api/models/google/vit-tiny") == 1


def url_of(hub, file="model.safetensors", name="google/vit-tiny"):
    return f"{hub.url}/{name}/resolve/main/{file}"


def test_the_url_of_a_file_with_its_config(hub):
    hub.add("google/vit-tiny", HF)
    model = keras_vit.from_checkpoint(url_of(hub))
    np.testing.assert_array_equal(
        outputs(model), outputs(keras_vit.from_checkpoint(HF))
    )
    found = model.provenance
    assert found.source == url_of(hub)
    assert (found.file, found.revision) == ("model.safetensors", None)
    hub.log.clear()
    assert sources.resolve(url_of(hub)).sha256 == found.sha256
    assert hub.log == []


def test_the_url_of_a_file_without_a_config(hub):
    hub.add("google/vit-tiny", {"model.safetensors": files(HF)["model.safetensors"]})
    with pytest.raises(ValueError, match="num_heads"):
        keras_vit.from_checkpoint(url_of(hub))


@pytest.mark.parametrize("file", ["", "model.bin", "model", "a.safetensors.index.json"])
def test_a_url_of_something_else(hub, file):
    with pytest.raises(ValueError, match="the URL of a weights file") as raised:
        sources.resolve(url_of(hub, file))
    message(raised)
    assert hub.log == []


def test_a_url_that_fails(hub):
    with pytest.raises(DownloadError, match="HTTP 4"):
        sources.resolve(url_of(hub))
    hub.add("google/vit-tiny", HF)
    hub.faults["config.json"] = 500
    with pytest.raises(DownloadError, match="HTTP 500"):
        sources.resolve(url_of(hub))
