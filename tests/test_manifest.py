"""The manifest of a folder: every damaged, missing and additional file is named."""

import json
import shutil
import subprocess
import sys

import pytest

from keras_vit import manifest
from keras_vit.files import write_json

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture
def folder(tmp_path):
    """A finished folder of a few files."""
    data = {"name": "photos", "fingerprint": "ab" * 32}
    write_json(tmp_path / "begun.json", {"data": data, "seed": 0})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-1.npz").write_bytes(bytes(range(256)))
    (tmp_path / "model.keras").write_bytes(b"a model")
    manifest.write(tmp_path)
    return tmp_path


def test_a_whole_folder(folder):
    (folder / ".lock").touch()  # Of a training that waits.
    for picture in ("curves.png", "inspect.html", "figure_6.png"):
        (folder / picture).touch()  # Of `keras-vit runs show` and `inspect`.
    found = manifest.verify(folder)
    assert found.whole
    assert found.files == 3
    assert found.data["name"] == "photos"
    assert {"keras_vit", "python"} <= found.versions.keys()


def test_every_flipped_bit_is_found(folder):
    path = folder / "checkpoints/step-1.npz"
    content = path.read_bytes()
    for place in (0, 100, 255):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            assert manifest.verify(folder).changed == ("checkpoints/step-1.npz",)
    path.write_bytes(content)
    assert manifest.verify(folder).whole


def test_every_flipped_bit_of_the_manifest_is_found(folder):
    path = folder / manifest.FILE
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        if not damaged[place : place + 1].isspace():  # White space means nothing.
            with pytest.raises(ValueError, match="manifest is damaged"):
                manifest.verify(folder)


def test_missing_additional_and_later_files(folder):
    (folder / "model.keras").unlink()
    (folder / "checkpoints/more").write_text("more")
    found = manifest.verify(folder)
    assert not found.whole
    assert found.missing == ("model.keras",)
    assert found.additional == ("checkpoints/more",)
    manifest.add(folder, "checkpoints/more")
    assert manifest.verify(folder).additional == ()


def test_a_single_file(tmp_path):
    for name in ("m.xml", "m.bin"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "other").write_text("of somebody else")
    file = tmp_path / "m.xml"
    manifest.write_beside(file, tmp_path / "m.bin")
    found = manifest.verify(file)
    assert (found.whole, found.files) == (True, 2)
    (tmp_path / "m.bin").write_bytes(b"m.bim")
    file.unlink()
    found = manifest.verify(file)
    assert (found.changed, found.missing) == (("m.bin",), ("m.xml",))
    with pytest.raises(ValueError, match=r"m\.bin\.manifest\.json.*or convert wrote"):
        manifest.verify(tmp_path / "m.bin")


@pytest.fixture
def study(tmp_path):
    """A folder of two runs of one command, with a result of both."""
    for run in ("run-0", "run-1"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "model.keras").write_text(run)
        manifest.write(tmp_path / run)
    (tmp_path / "transfer.json").write_text("{}")
    manifest.write(tmp_path)
    return tmp_path


def test_a_folder_of_runs(study):
    paths, loose = manifest.inside(study)
    assert paths == [study, study / "run-0", study / "run-1"]
    assert loose == []
    assert all(manifest.verify(path).whole for path in paths)
    assert manifest.verify(study).files == 3  # The result and two manifests.
    (study / "run-1/run.json").write_text("{}")
    assert manifest.verify(study).whole
    assert manifest.verify(study / "run-1").additional == ("run.json",)
    manifest.add(study / "run-1", "run.json")
    assert all(manifest.verify(path).whole for path in paths)
    (study / "run-1/model.keras").write_text("run-2")
    assert manifest.verify(study / "run-1").changed == ("model.keras",)
    shutil.rmtree(study / "run-0")
    assert manifest.verify(study).missing == ("run-0/manifest.json",)


def test_a_folder_of_anything(study, shell):
    """Runs, an exported file, and what is in no manifest."""
    (study / "manifest.json").unlink()
    (study / "m.onnx").write_text("exported")
    manifest.write_beside(study / "m.onnx")
    paths, loose = manifest.inside(study)
    assert paths == [study / "run-0", study / "run-1", study / "m.onnx"]
    assert loose == ["transfer.json"]
    code, out, _ = shell("runs", "verify", study)
    assert code == 0
    assert f"{study}: 1 file without a manifest: transfer.json" in out
    assert out.endswith("3 of 3 are unchanged\n")
    (study / "m.onnx").write_text("otherwise")
    code, out, _ = shell("runs", "verify", study)
    assert code == 1
    assert "changed: m.onnx\n" in out
    assert out.endswith("2 of 3 are unchanged\n")


def test_a_folder_without(tmp_path):
    with pytest.raises(ValueError, match="version of an export"):
        manifest.verify(tmp_path)
    write_json(tmp_path / "begun.json", {})
    with pytest.raises(ValueError, match="keras-vit runs show"):
        manifest.verify(tmp_path)


def test_a_command_without_keras(folder):
    command = [sys.executable, "-X", "importtime", "-m", "keras_vit_command"]
    command += ["runs", "verify", str(folder)]

    def run():
        done = subprocess.run(command, capture_output=True, text=True)
        assert "tensorflow" not in done.stderr
        return done.returncode, done.stdout

    code, out = run()
    assert code == 0
    assert f"data: photos, {'ab' * 32}\nall files are unchanged\n" in out
    told = json.loads((folder / "begun.json").read_text())
    write_json(folder / "begun.json", told | {"seed": 1})
    code, out = run()
    assert code == 1
    assert out.endswith("changed: begun.json\n")
