"""Every notebook: its committed outputs, and its execution with small sizes."""

import importlib.util
import itertools
import math
import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow_only

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
COLAB = "https://colab.research.google.com/"
LARGEST = 400_000  # Bytes of a notebook with its outputs.
SHOWS = {  # How many pictures, and words among the printed ones, in every size.
    "quickstart": (1, ("5,491,786 parameters", "(None, 96, 96, 3)", "(1, 37, 192)")),
    "finetune_cifar10": (
        2,
        (
            "(0.001, 0.003, 0.01, 0.03)",
            "5,120,000 images",
            "<- chosen",
            "bit-equal",
            "the paper's is 98.95 %",
        ),
    ),
    "higher_resolution": (
        2,
        (
            "(1, 65, 192) -> (1, 193, 192)",
            "43 of 44 arrays are the same",
            "48 x 64, shuffled",
        ),
    ),
    "hybrid": (3, ("pool_root  (16, 16, 64)", "cls        (5, 192)", "6,337,704")),
    "look_inside": (5, ("32, 32, 3) -1.0 1.0", "one row apart", "page.html, ")),
    "dense_features": (3, ("nearest patch: ", "IoU with the astronaut's mask: ")),
    "few_shot": (1, ("721 images to train on", "random weights: linear probe")),
    "masked_patches": (1, ("50% corrupted", "from scratch: ", "points with ")),
    "export_and_serve": (1, ("- 0.00 not a whole JPEG", "of 359 PNG files")),
    "tpu": (1, ("Expected a TPU.", "TPU: False", "steps on no TPU")),
}
SMALL = {  # Values of lines `name = value`, and words that are printed with them.
    "quickstart": ({"count": 96, "epochs": 1}, ("20 test images",)),
    "finetune_cifar10": ({"pretraining_steps": 4, "steps": 5}, ("step 5: ",)),
    "higher_resolution": ({"count": 80, "epochs": 1, "tuning_epochs": 1}, ()),
    "hybrid": ({"count": 80, "epochs": 1}, ("of 16 test images",)),
    "look_inside": ({"count": 160, "epochs": 1}, ("(160, 32, 32, 3)",)),
    "dense_features": ({"head_epochs": 5}, ("block_4          (5, 14, 14, 96)",)),
    "few_shot": ({"steps": 4}, ()),
    "masked_patches": (
        {"layers": 1, "steps": 4, "label_count": 20, "tuning_steps": 2},
        ("with 20 labels",),
    ),
    "export_and_serve": ({"steps": 10}, ()),
    "tpu": ({"steps": 8}, ("after 8 steps",)),
}

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return pytest.importorskip("nbformat").read(path, as_version=4)


@pytest.fixture
def runner(script):
    """benchmarks/notebooks.py."""
    pytest.importorskip("nbclient")
    pytest.importorskip("nbformat")
    return script("notebooks")


def outputs_of(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def printed(outputs):
    return "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for output in outputs
    )


def check_shown(name, notebook, more=()):
    """Pictures and words of SHOWS, and a last line of finite numbers."""
    outputs = outputs_of(notebook)
    pictures, words = SHOWS[name]
    text = printed(outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == pictures
    assert [word for word in (*words, *more) if word not in text] == []
    (done,) = re.findall(r"^done:.*$", text, re.MULTILINE)
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|\bnan\b|\binf\b", done)
    assert numbers
    assert all(math.isfinite(float(number.replace(",", ""))) for number in numbers)


def with_values(notebook, values):
    """Replaces the only line `name = value` of each name, as a reader would."""
    for name, value in values.items():
        line = re.compile(rf"^{name} = .*$", re.MULTILINE)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert sum(len(line.findall(cell.source)) for cell in cells) == 1, name
        for cell in cells:
            cell.source = line.sub(f"{name} = {value}", cell.source)


def test_every_notebook_is_here():
    assert {path.stem for path in NOTEBOOKS} == set(SHOWS) == set(SMALL)


@each
def test_notebook_is_listed_with_its_seconds(path):
    """As measured when it was executed for the committed outputs."""
    table = (EXAMPLES / "README.md").read_text()
    (row,) = re.findall(rf"^\| \[`{path.name}`\].*$", table, re.MULTILINE)
    facts = read(path).metadata.keras_vit
    assert row.endswith(f"| {facts.cpu_seconds} | {facts.seconds} |")


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
def test_notebook_explains_each_step(path):
    """A title, text before each code cell, and what to try next."""
    cells = read(path).cells
    assert cells[0].source.startswith("# ")
    assert cells[-1].source.startswith("## What to try next\n")
    kinds = [cell.cell_type for cell in cells]
    assert ("code", "code") not in itertools.pairwise(kinds)
    for cell in cells:
        assert "SMOKE" not in cell.source
        assert "pytest" not in cell.source


@each
def test_links_lead_to_files_of_the_repository(path):
    text = "".join(cell.source for cell in read(path).cells)
    links = re.findall(r"\(https://github.com/[\w-]+/[\w-]+/blob/main/([^)]+)\)", text)
    assert [link for link in links if not (ROOT / link).is_file()] == []


@each
def test_notebook_is_committed_with_the_outputs_of_its_code(path, runner):
    notebook = read(path)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert path.stat().st_size < LARGEST
    assert notebook.metadata.keras_vit.code == runner.digest(notebook)
    cells = runner.code_cells(notebook)
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    check_shown(path.stem, notebook)
    outputs = outputs_of(notebook)
    assert {output.output_type for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    text = printed(outputs)
    private = r"(?<![\w.:/])/(?:tmp|home|root|work|usr|var)\b|\.\./|0x[0-9a-f]{6}|\x1b"
    assert re.findall(private, text) == []
    assert re.findall(r"(?i)warning|cuda|oneDNN|cpu_feature_guard", text) == []


@each
def test_notebook_becomes_a_page_that_fetches_nothing(path):
    """With its pictures as files, and the badge as a text link (docs/hooks.py)."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    repository = "https://github.com/keras-vit/keras-vit"
    text, pictures = hooks._notebook(f"examples/{path.name}", repository)
    shown = re.findall(r"!\[[^\]]+\]\((\S+)\)", text)
    assert shown == list(pictures)
    assert len(pictures) == SHOWS[path.stem][0]
    assert f"[Open in Colab]({COLAB}" in text
    assert f"blob/main/examples/{path.name})" in text
    assert text.count("```") % 2 == 0


@each
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Jupyter's own.
def test_notebook_runs(path, tmp_path, runner):
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    notebook = read(path)
    values, words = SMALL[path.stem]
    with_values(notebook, values)
    runner.execute(notebook, tmp_path, timeout=300)
    check_shown(path.stem, notebook, words)
