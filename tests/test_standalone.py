"""The project needs nothing next to its folder: fixtures, pages, examples."""

import ast
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_vit
from tests import photos
from tests.conftest import FIXTURES, REFERENCE

ROOT = Path(__file__).parents[1]
PACKAGE = Path(keras_vit.__file__).parent  # May be installed, away from the pages.
MEBIBYTES = 20
# Files a user reads or runs; CONTRIBUTING.md, Makefile and tests/ are maintainers'.
FOR_USERS = (
    *("README.md", "CHANGELOG.md", "mkdocs.yml", "keras_vit_command.py"),
    *("docs/**/*", "examples/**/*", "benchmarks/**/*"),
)
TEXT = (".md", ".py", ".ipynb", ".yml", ".css", ".js", ".txt", ".config")
OUTSIDE = re.compile(
    r"\.\./shared|shared[/\\](real|reference)|flowers12|cifar10_subset"
)


def for_users():
    """Text files that users read or run, with their names."""
    found = [path for pattern in FOR_USERS for path in ROOT.glob(pattern)]
    found += PACKAGE.rglob("*")
    for path in sorted(found):
        if path.is_file() and path.suffix in TEXT:
            yield path, path.read_text()


def test_nothing_for_users_mentions_the_folder_beside_the_checkout():
    seen, mentions = 0, []
    for path, text in for_users():
        seen += 1
        for number, line in enumerate(text.splitlines(), 1):
            if OUTSIDE.search(line):
                mentions.append(f"{path}:{number}: {line.strip()}")
    assert seen > 150
    assert mentions == []


def test_fixtures_are_small():
    size = sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file())
    assert size <= MEBIBYTES * 10**6


def test_fixtures_are_read_and_whole():
    """Every file is named by a test; an array of NaN would compare with nothing."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for path in REFERENCE.glob("*.npz"):
        assert path.stem.removesuffix("_io") in tests, path
        with np.load(path) as file:
            for name in file.files:
                if file[name].dtype.kind == "f":
                    assert np.isfinite(file[name]).all(), f"{path}: {name}"


def test_only_tests_of_real_weights_read_files_outside():
    """The fixture `real`, in the tests that CONTRIBUTING.md lists."""
    users = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = {argument.arg for argument in node.args.args}
                if "real" in names:
                    users.add(path.relative_to(ROOT).as_posix())
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Real files")[2]
    listed = re.findall(r"`(tests/(?:\w+/)*test_\w+\.py)`", page.partition("\n## ")[0])
    assert sorted(users) == sorted(listed)


@pytest.mark.parametrize("name", photos.FILES)
def test_photographs_come_with_installed_packages(name):
    height, width, channels = photos.pixels(name).shape
    assert min(height, width) >= 300
    assert channels == 3


def test_tiles_are_of_photographs():
    small = photos.tiles(32, reduce=2)
    assert (len(small), len(photos.tiles(32))) == (266, 1118)
    assert small.shape[1:] == (32, 32, 3)
    assert len(np.unique(small.reshape(len(small), -1), axis=0)) > 260


def test_crops_that_benchmarks_measure_with(tmp_path):
    """The same files in every call, and images of the size that was asked for."""
    path = ROOT / "benchmarks/photographs.py"
    spec = importlib.util.spec_from_file_location("photographs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pytest.importorskip("sklearn", reason=photos.MISSING)
    first, second = (module.crops(tmp_path / name, 32) for name in ("a", "b"))
    files = sorted(path.relative_to(first) for path in first.rglob("*.jpg"))
    assert len(files) == 12 * (60 + 20)
    contents = [(first / file).read_bytes() for file in files]
    assert contents == [(second / file).read_bytes() for file in files]
    assert len(set(contents)) > 900
    with Image.open(first / files[0]) as image:
        assert (image.format, image.size) == ("JPEG", (32, 32))
