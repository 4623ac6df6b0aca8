"""Every example, in smoke size."""

import importlib.util
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REFERENCE

pytestmark = pytest.mark.tensorflow_only

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_example_is_tested_and_listed():
    tested = {"quickstart", "finetune_folder", "finetune_cifar10"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
    listed = (EXAMPLES / "README.md").read_text()
    for path in (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")):
        assert f"`{path.name}`" in listed


def test_quickstart():
    pytest.importorskip("sklearn")
    assert 0 <= example("quickstart").main(smoke=True) <= 1


def test_finetune_folder(tmp_path):
    import tensorflow as tf

    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label, brightness in (("dark", 40), ("light", 210)):
            folder = tmp_path / "photos" / split / label
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = rng.integers(0, 40, (70, 80, 3)) + brightness
                image = tf.io.encode_jpeg(pixels.astype(np.uint8))
                (folder / f"{i}.jpg").write_bytes(image.numpy())
    accuracy = example("finetune_folder").main(
        tmp_path / "photos", REFERENCE / "vit_mini.npz", smoke=True
    )
    assert accuracy == 1


@pytest.mark.filterwarnings("ignore:.*training images are fewer")
def test_finetune_cifar10(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 20), ("test", 10)):
        arrays[f"x_{split}"] = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 10
    np.savez(tmp_path / "cifar.npz", **arrays)
    accuracy = example("finetune_cifar10").main(tmp_path / "cifar.npz", smoke=True)
    assert 0 <= accuracy <= 1


@pytest.mark.filterwarnings("ignore")  # Jupyter's own.
def test_notebook(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("KERAS_VIT_SMOKE", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    paths = (str(EXAMPLES.parent), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    shutil.copy(EXAMPLES / "quickstart.ipynb", tmp_path)
    notebook = nbformat.read(tmp_path / "quickstart.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # Raises with the cell's traceback when one fails.
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "served:" in printed
