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
SHOWS = {  # In smoke size: how many pictures, and words among what is printed.
    "quickstart": (1, ("5,489,482 parameters", "(None, 64, 64, 3)", "[1, 17, 192]")),
    "finetune_cifar10": (
        2,
        ("(0.001, 0.003, 0.01, 0.03)", "5,120,000 images", "the paper's is 98.95 %"),
    ),
    "higher_resolution": (
        2,
        ("(1, 65, 192) -> (1, 193, 192)", "43 of 44 arrays are the same"),
    ),
    "hybrid": (2, ("pool_root  (16, 16, 64)", "cls        (5, 192)", "6,337,704")),
    "look_inside": (5, ("(160, 32, 32, 3) -1.0 1.0", "page.html, ")),
    "dense_features": (3, ("block_4          (2, 14, 14, 96)", "nearest patch: ")),
    "few_shot": (1, ("721 images to train on", "random weights: linear probe")),
    "masked_patches": (1, ("50% corrupted", "from scratch: ", "with 20 labels")),
    "export_and_serve": (1, ("- 0.00 not a whole JPEG", "of 359 PNG files")),
    "tpu": (1, ("Expected a TPU.", "TPU: False", "after 4 steps on no TPU")),
}

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return pytest.importorskip("nbformat").read(path, as_version=4)


def test_every_notebook_is_here():
    assert {path.stem for path in NOTEBOOKS} == set(SHOWS)


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
    monkeypatch.delenv("MPLBACKEND", raising=False)  # Jupyter's own keeps pictures.
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    shutil.copy(path, tmp_path)
    notebook = read(tmp_path / path.name)
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # Raises with the cell's traceback when one fails.
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    shown = [output.get("data", {}) for output in outputs]
    printed = "\n".join(
        output.get("text", "") + data.get("text/plain", "")
        for output, data in zip(outputs, shown, strict=True)
    )
    pictures, words = SHOWS[path.stem]
    assert sum("image/png" in data for data in shown) == pictures
    assert [said for said in words if said not in printed] == []
    last = "".join(output.get("text", "") for output in code[-1].outputs)
    (done,) = re.findall(r"^done:.*$", last, re.MULTILINE)
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|\bnan\b|\binf\b", done)
    assert numbers
    assert all(math.isfinite(float(number.replace(",", ""))) for number in numbers)
