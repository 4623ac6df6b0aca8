"""Every notebook: in smoke size, and as it is committed."""

import math
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow_only

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
COLAB = "https://colab.research.google.com/"

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return pytest.importorskip("nbformat").read(path, as_version=4)


def test_every_notebook_is_here():
    assert {path.stem for path in NOTEBOOKS} == {
        *("quickstart", "finetune_cifar10", "higher_resolution", "hybrid"),
        *("look_inside", "few_shot", "masked_patches", "export_and_serve", "tpu"),
    }


@each
def test_notebook_is_listed(path):
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text()


@each
def test_badge_opens_the_notebook_itself(path):
    links = re.findall(
        r"\[!\[Open in Colab\]\((\S+)\)\]\((\S+)\)", read(path).cells[0].source
    )
    ((picture, address),) = links
    assert picture == f"{COLAB}assets/colab-badge.svg"
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    repository = about.get("urls", {}).get(
        "Repository", "https://github.com/keras-vit/keras-vit"
    )
    place = repository.removeprefix("https://github.com/")
    assert address == f"{COLAB}github/{place}/blob/main/examples/{path.name}"
    assert f"git+{repository}" in read(path).cells[1].source


@each
def test_notebook_is_committed_without_outputs(path):
    notebook = read(path)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@each
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Jupyter's own.
def test_notebook_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_SMOKE", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    shutil.copy(path, tmp_path)
    notebook = read(tmp_path / path.name)
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # Raises with the cell's traceback when one fails.
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    printed = "".join(output.get("text", "") for output in last.outputs)
    (done,) = re.findall(r"^done:.*$", printed, re.MULTILINE)
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|\bnan\b|\binf\b", done)
    assert numbers
    assert all(math.isfinite(float(number.replace(",", ""))) for number in numbers)
