"""`keras-vit weights`, called as a shell calls it; nothing here needs a network."""

import functools

import numpy as np
import pytest

import keras_vit
from keras_vit import manifest
from keras_vit.weights.registry import CHECKPOINTS, find
from tests.conftest import FIXTURES

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def shell(shell, monkeypatch):
    """Runs `keras-vit weights` at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return functools.partial(shell, "weights")


def rows(text):
    """The cells of the lines that begin with a variant."""
    lines = [line.split() for line in text.splitlines() if "iT" in line.split(" ")[0]]
    return [cells for cells in lines if len(cells) > 1]


def test_list_is_the_registry_in_80_columns(shell):
    code, text, errors = shell("list")
    assert (code, errors) == (0, "")
    assert max(map(len, text.splitlines())) <= 80
    listed = sorted(cells[0] for cells in rows(text))
    assert listed == sorted(row.variant for row in CHECKPOINTS)
    assert "imagenet21k: ViT (arXiv:2010.11929), Apache-2.0" in text
    assert "imagenet21k: BiT (arXiv:1912.11370), Apache-2.0" in text
    alone = sum(len(row.mirrors) == 1 for row in CHECKPOINTS)
    assert text.count("npz: one source") == alone > 0
    assert "http" not in text


def test_list_of_one_variant(shell):
    _, text, _ = shell("list", "--variant", "ViT_L32")
    lines = [" ".join(cells) for cells in rows(text)]
    assert "ViT-L/32 384 1000 1.14 GiB 80.99 (Table 5) npz, npz, timm, hf" in lines
    assert "ViT-L/32 224 zeros 1.23 GiB npz, npz, timm, hf" in lines
    assert "ViT-B" not in text
    assert shell("list", "--variant", "ViT-L/32")[1] == text


def test_list_of_one_tag_with_urls(shell):
    code, text, _ = shell("list", "--tag", "sam", "--variant", "ViT-B/16", "--urls")
    assert code == 0
    expected = [f"  {m.format:4} {m.url}" for m in find("ViT-B/16", "sam").mirrors]
    assert [line for line in text.splitlines() if "http" in line] == expected
    _, text, _ = shell("list", "--tag", "gsam")
    assert {cells[0] for cells in rows(text)} == {
        "ViT-S/16",
        "ViT-S/32",
        "ViT-B/16",
        "ViT-B/32",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tag", "gsan"), "Expected tag to be one of imagenet21k, "),
        (("--variant", "ViT-Q/7"), "Received: variant='ViT-Q/7'"),
        (("--variant", "ViT-H/14", "--tag", "sam"), "Received: tag='sam'"),
    ],
)
def test_list_of_nothing(shell, words, message):
    code, text, errors = shell("list", *words)
    assert (code, text) == (1, "")
    assert message in errors
    assert "Traceback" not in errors


def test_fetch(shell, tmp_path, monkeypatch):
    """From one's own directory, so without a network."""
    own = tmp_path / "own" / "gsam" / "ViT-B_16.npz"
    own.parent.mkdir(parents=True)
    np.savez(own, kernel=np.ones(3, np.float32))
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "own"))
    usb = tmp_path / "usb"
    code, text, _ = shell("fetch", "gsam", "--to", usb, "--variant", "ViT_B16")
    assert code == 0
    assert text.splitlines() == [
        str(usb / "gsam" / "ViT-B_16.npz"),
        f"on the offline machine, set KERAS_VIT_WEIGHTS to the copy of {usb}",
    ]
    assert (usb / "gsam" / "ViT-B_16.npz").read_bytes() == own.read_bytes()
    assert (usb / "SHA256SUMS").is_file()


def test_fetch_of_nothing(shell, tmp_path):
    code, _, errors = shell("fetch", "gsan", "--to", tmp_path / "usb")
    assert code == 1
    assert "Expected tag to be one of imagenet21k, " in errors
    code, _, errors = shell("fetch", "sam", "--to", tmp_path, "--variant", "ViT-S/32")
    assert code == 1
    assert "Received: tag='sam'" in errors
    assert not (tmp_path / "usb").exists()
    assert shell("fetch", "sam")[0] == 2  # Without --to.


HF = FIXTURES / "dialects" / "hf_vit_new_names"
CARD = b"---\nlicense: cc-by-nc-4.0\n---\n"


@pytest.fixture
def named(hub):
    """A repository of a tiny ViT; its commit."""
    files = {path.name: path.read_bytes() for path in HF.iterdir()}
    return hub.add("meta/vit-tiny", files | {"README.md": CARD})


def test_show_of_a_repository(shell, named):
    code, text, _ = shell("show", "hf://meta/vit-tiny")
    assert code == 0
    lines = text.splitlines()[1:]  # The first one is of every opened weights file.
    cells = {line[:14].strip(): line[15:] for line in lines}
    assert cells["source"] == "hf://meta/vit-tiny"
    assert cells["revision"] == named
    assert cells["file"] == "model.safetensors"
    assert cells["license"] == "cc-by-nc-4.0"
    assert len(cells["sha256"]) == 64
    assert cells["left out"] == "none"
    assert cells["preprocessing"].startswith("mean ")


def test_show_refuses_a_license(shell, hub, named):
    words = ("show", "hf://meta/vit-tiny", "--license-allow", "apache-2.0,mit")
    code, text, errors = shell(*words)
    assert (code, text) == (1, "")
    assert "under apache-2.0 or mit" in errors
    assert hub.downloads() == ["README.md"]
    code, text, errors = shell(*words[:-1], "mit,cc-by-nc-4.0")
    assert (code, errors) == (0, "")


def test_a_model_of_a_repository_keeps_its_license(shell, named, tmp_path):
    file = tmp_path / "vit.keras"
    keras_vit.from_checkpoint("hf://meta/vit-tiny").save(file)
    assert f"hf://meta/vit-tiny\nrevision       {named}\n" in shell("show", file)[1]
    code, _, errors = shell("show", file, "--license-allow", "mit")
    assert code == 1
    assert "license 'cc-by-nc-4.0'" in errors


def test_errors_of_names(shell, hub):
    code, text, errors = shell("show", "google/vit-base-patch16-224")
    assert (code, text) == (1, "")
    assert "use 'hf://google/vit-base-patch16-224'" in errors
    code, _, errors = shell("show", "hf://google/none")
    assert code == 1
    assert "does not exist or is private" in errors
    assert "Traceback" not in errors
    assert hub.url in errors


def test_convert_of_a_repository(shell, named, tmp_path):
    code, text, _ = shell.func(  # `keras-vit`, not `keras-vit weights`.
        "convert", "hf://meta/vit-tiny", tmp_path / "timm", "--to", "timm"
    )
    assert code == 0
    assert f"hf://meta/vit-tiny at commit {named}: " in text
    written = manifest.verify(tmp_path / "timm" / "model.safetensors")
    assert (written.whole, written.files) == (True, 2)
