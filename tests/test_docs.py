"""README and docstrings: what they print is run, what they name exists."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import keras
import pytest
import typer.main

import keras_vit
from keras_vit.cli import app
from keras_vit.configs import (
    AXIAL_RESNETS,
    AXIAL_VARIANTS,
    BIT_VARIANTS,
    HYBRID_VARIANTS,
    VIT_VARIANTS,
    builder_name,
)
from keras_vit.weights import registry
from tests.models.test_vit import PARAMETERS

ROOT = Path(__file__).parents[1]
PACKAGE = Path(keras_vit.__file__).parent
README = (ROOT / "README.md").read_text()
# vit_jax/models_test.py; timm's published counts of BiT, to two places of a million.
OTHER_PARAMETERS = {
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
}
FACTS = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))


def blocks(language, page="README.md"):
    text = (ROOT / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_python(block, page, namespace, capsys):
    """Runs a block of a page; it prints what it promises."""
    capsys.readouterr()
    exec(compile(block, page, "exec"), namespace)
    promised = re.findall(r"^(?:print.*)?# (\(.*\)|task\.npz.*)$", block, re.M)
    promised += re.findall(r"print\(.*\)  # (.*)$", block, re.M)
    printed = capsys.readouterr().out
    for line in promised:
        assert line in printed


def run(page, capsys):
    """The page's Python in order, in one namespace."""
    namespace = {}
    for block in blocks("python", page):
        run_python(block, page, namespace, capsys)


@pytest.mark.tensorflow_only
@pytest.mark.slow
def test_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    """In order, in one namespace; weights come from a directory made here."""
    served = tmp_path / "imagenet21k"
    served.mkdir()
    source = keras_vit.ViT_B16(
        weights=None, classes=21_843, representation_size=768, name="source"
    )
    keras_vit.weights.save(source, served / "ViT-B_16.npz")  # 393.69 MiB, as published.
    del source
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run("README.md", capsys)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("page", FACTS)
@pytest.mark.filterwarnings("ignore:The npz format:UserWarning")
def test_python_of_the_facts_runs(page, tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    run(page, capsys)


def test_commands_of_the_pages_exist():
    command = typer.main.get_command(app)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    seen = 0
    for block in [block for page in PAGES for block in blocks("bash", page)]:
        # What `keras-vit launch ... -- finetune ...` runs is a command too.
        block = block.replace("\\\n", " ").replace(" -- ", "\nkeras-vit ")
        for line in block.splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["make"]:
                assert words[1] in targets
                seen += 1
            if words[:1] == ["keras-vit"] and not words[1].startswith("-"):
                named = command.commands[words[1]]
                if hasattr(named, "commands"):  # keras-vit weights list
                    named = named.commands[words[2]]
                options = {opt for param in named.params for opt in param.opts}
                given = {word for word in words if word.startswith("--")}
                assert given <= options | {"--help"}
                seen += 1
    assert seen >= 7


def test_paths_named_in_pages_exist():
    for page in PAGES:
        text = (ROOT / page).read_text()
        for path in re.findall(
            r"`((?:keras_vit|tests|examples|benchmarks)/[\w./]+)`", text
        ):
            # The package may be installed, away from the pages.
            home = PACKAGE.parent if path.startswith("keras_vit/") else ROOT
            assert (home / path).exists(), f"{page} names {path}"
        for path in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert ((ROOT / page).parent / path).exists(), f"{page} links {path}"


def test_paper_map_answers_for_every_section():
    paper_map = README.partition("## The paper, section by section")[2]
    sections = ["3.1", "3.2", "B.1", "B.1.1", "B.1.2"]
    sections += [f"4.{i}" for i in range(1, 7)] + [f"D.{i}" for i in range(1, 11)]
    for section in sections:
        assert re.search(rf"(?<![\w.]){re.escape(section)}(?![\w]|\.\d)", paper_map)


def test_table_of_models_is_the_registrys():
    rows = re.findall(r"^\| (\S+) \| `(\w+)` \| ([\d,]+) \|(.*)\|(.*)\|$", README, re.M)
    known = VIT_VARIANTS | HYBRID_VARIANTS | BIT_VARIANTS
    assert [row[0] for row in rows] == [*known, *AXIAL_VARIANTS, *AXIAL_RESNETS]
    for variant, name, parameters, plain, tuned in rows:
        assert name == builder_name(variant)
        assert hasattr(keras_vit, name)
        published = PARAMETERS | OTHER_PARAMETERS  # tests/inspection: all by counting.
        counted = int(parameters.replace(",", ""))
        assert published.get(variant, counted) == counted
        published = {tag: registry.find(variant, tag) for tag in registry.tags(variant)}
        assert re.findall(r"`([^`]+)`", plain) == [
            tag for tag, of in published.items() if of.labels == "imagenet21k"
        ]
        assert tuned.strip() == "; ".join(
            f"`{tag}`: {of.image_size[0]}{told(of)}"
            for tag, of in published.items()
            if tag.endswith("21k+imagenet2012")
        )


def told(published):
    """The accuracy of a row, and whose it is where it is not the paper's."""
    if not published.accuracy:
        return ""
    whose = "" if published.accuracy_source == "Table 5" else " (timm)"
    return f", {published.accuracy} %{whose}"


def modules():
    for module in pkgutil.walk_packages(keras_vit.__path__, "keras_vit."):
        yield module.name


@pytest.mark.parametrize("name", modules())
@pytest.mark.filterwarnings("ignore")
def test_docstrings_run(name):
    if keras.backend.backend() != "tensorflow" and name.startswith(
        ("keras_vit.data", "keras_vit.training", "keras_vit.cli")
    ):
        pytest.skip("of TensorFlow's half")
    module = importlib.import_module(name)
    assert module.__doc__
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=flags).failed == 0


def test_versions_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", changelog, re.M)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(
        rf"\[{re.escape(keras_vit.__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1]
    )
