"""torch's pickles, which this process never opens."""

import importlib.util
import os
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit.weights import pickles
from tests.conftest import FIXTURES, skip_without

skip_without("torch")

TIMM = FIXTURES / "dialects" / "timm_vit"


@pytest.fixture(scope="module")
def state():
    """A state dict of timm's, as torch tensors."""
    import torch

    tensors = load_file(TIMM / "model.safetensors")
    return {name: torch.tensor(at) for name, at in tensors.items()}


def saved(path, value, **options):
    import torch

    torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("ending", [".pth", ".pt", ".bin"])
def test_a_state_dict(state, tmp_path, ending, shell):
    file = saved(tmp_path / f"x{ending}", state)
    with pytest.raises(ValueError, match="never unpickled") as raised:
        keras_vit.from_checkpoint(file)
    assert "keras-vit convert FILE.pth FILE.safetensors" in str(raised.value)
    output = tmp_path / "x.safetensors"
    code, text, _ = shell("convert", file, output)
    assert code == 0
    assert text.splitlines() == [f"{output}: {len(state)} tensors of {file}"]
    for name, tensor in load_file(output).items():
        np.testing.assert_array_equal(tensor, state[name].numpy())
    (tmp_path / "config.json").write_bytes((TIMM / "config.json").read_bytes())
    model = keras_vit.from_checkpoint(output)
    assert model.provenance.left_out == ()


def test_views_half_precision_and_other_values(tmp_path):
    import torch

    whole = torch.arange(12.0).reshape(3, 4)
    value = {
        "view": whole[:, 1:3],
        "same": whole,
        "half": whole.half(),
        "count": torch.tensor(3),
        "epoch": 7,
        "optimizer": {"state": {0: {"step": 1}}},
    }
    output = tmp_path / "x.safetensors"
    file = saved(tmp_path / "x.pt", value)
    assert pickles.convert(file, output) == ("", 4)
    np.testing.assert_array_equal(load_file(output)["view"], whole[:, 1:3])
    assert load_file(output)["half"].dtype == np.float16


def test_a_nested_state_dict(state, tmp_path):
    file = saved(
        tmp_path / "x.pth",
        {"model": state, "epoch": 3},
        _use_new_zipfile_serialization=False,
    )
    output = tmp_path / "x.safetensors"
    assert pickles.convert(file, output) == ("model", len(state))


def test_several_state_dicts(state, tmp_path):
    file = saved(tmp_path / "x.pth", {"student": state, "teacher": state})
    output = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match="'student', 'teacher'"):
        pickles.convert(file, output)
    assert not output.exists()
    assert pickles.convert(f"{file}:teacher", output) == ("teacher", len(state))
    with pytest.raises(ValueError, match="and the key 'ema'"):
        pickles.convert(f"{file}:ema", output)


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("by", ["torch", "pickle"])
def test_code_is_not_run(tmp_path, by):
    value = {"weight": Attack(tmp_path / "attacked")}
    file = tmp_path / "x.pth"
    if by == "torch":
        saved(file, value)
    else:
        file.write_bytes(pickle.dumps(value))
    output = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match="weights_only=True") as raised:
        pickles.convert(file, output)
    assert f"torch.load({str(file)!r}" in str(raised.value)
    assert not (tmp_path / "attacked").exists()
    assert sorted(at.name for at in tmp_path.iterdir()) == ["x.pth"]


def test_damaged_files(state, tmp_path):
    file = saved(tmp_path / "x.pth", state)
    content = file.read_bytes()
    for damaged in (content[:-100], content[: len(content) // 2], b"", b"text"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="Expected a pickle of tensors"):
            pickles.convert(file, tmp_path / "x.safetensors")
        assert not (tmp_path / "x.safetensors").exists()
    saved(file, [1, 2])
    with pytest.raises(ValueError, match=r"0 mappings of tensors \(none\)"):
        pickles.convert(file, tmp_path / "x.safetensors")


def test_without_torch_the_error_has_the_lines(state, tmp_path, monkeypatch):
    file = saved(tmp_path / "x.pth", state)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda at: None if at == "torch" else find(at)
    )
    output = tmp_path / "x.safetensors"
    with pytest.raises(ImportError, match="no torch") as raised:
        pickles.convert(file, output)
    lines = str(raised.value).splitlines()[1:]
    assert len(lines) == 3
    monkeypatch.undo()
    exec("\n".join(line.strip() for line in lines))  # They do what is said of them.
    assert load_file(output).keys() == state.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x.pth", "x.npz"), "that ends in .safetensors"),
        (("x.pth", "folder"), "that ends in .safetensors"),
        (("none.pth", "x.safetensors"), "does not exist"),
        (("x.pth", "x.safetensors", "--to", "timm"), "no options with a pickle"),
        ((TIMM, "folder"), "Expected --to npz, timm, hf or keras"),
    ],
)
def test_convert_of_what_it_does_not(
    state, tmp_path, monkeypatch, shell, words, message
):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "x.pth", state)
    code, text, errors = shell("convert", *words)
    assert (code, text) == (1, "")
    assert message in errors
    assert os.listdir() == ["x.pth"]
