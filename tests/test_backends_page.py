"""docs/backends.md: each cell's test exists and is run on its backend."""

import ast
import dataclasses
import os
import re
import subprocess
import sys

import pytest
import typer.main

from keras_vit.cli import app
from keras_vit.recipes import Recipe
from tests import features
from tests.features import BACKENDS, FEATURES, ROOT, Refused

pytestmark = pytest.mark.tensorflow_only

MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", " ")
CELLS = [
    (backend, cell.test if isinstance(cell, Refused) else cell)
    for backend in BACKENDS
    for cell in dict.fromkeys(feature.cell(backend) for feature in FEATURES)
]


def paths_on_torch():
    """What `make backends` runs on torch."""
    (line,) = re.findall(r"^\t\$\(QUIET\) KERAS_BACKEND=torch .*$", MAKEFILE, re.M)
    return [word for word in line.split() if word.startswith("tests/")]


def marks(test):
    """The marks of all cases of a test, as source.

    Raises:
        LookupError: if there is no such test.
    """
    path, _, name = test.partition("::")
    decorators, found = [], False
    for node in ast.parse((ROOT / "tests" / path).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == (
            "pytestmark"
        ):
            is_list = isinstance(node.value, ast.List)
            decorators += node.value.elts if is_list else [node.value]
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            decorators += node.decorator_list
            found = True
    if not found:
        raise LookupError(f"{path} has no {name}")
    return {ast.unparse(mark).removeprefix("pytest.mark.") for mark in decorators}


def backends_of(test):
    """Those that run a test, by its marks and the Makefile."""
    told = marks(test)
    if started := features.STARTED.get(test.partition("::")[0]):
        return {started}
    found = set(BACKENDS)
    if told & {"tensorflow_only", "slow"}:  # `make slow` runs on TensorFlow.
        found &= {"tensorflow"}
    for mark in told:
        if at := re.match(r"skipif\(.*(==|!=) '(\w+)'", mark):
            found &= {at[2]} if at[1] == "!=" else found - {at[2]}
    if not any(f"tests/{test}".startswith(path) for path in paths_on_torch()):
        found -= {"torch"}
    return found


@pytest.mark.parametrize(("backend", "test"), CELLS)
def test_the_test_of_a_cell_runs_on_its_backend(backend, test):
    assert backend in backends_of(test)


def test_marks_are_read():
    assert backends_of("test_cli.py::test_predict_prints_a_table") == {"tensorflow"}
    at = "training/test_devices.py::"
    assert backends_of(at + "test_torch_refuses_several_devices") == {"torch"}
    assert backends_of(at + "test_other_backends_than_jax_refuse_to_cut_a_model") == {
        "tensorflow",
        "torch",
    }
    assert backends_of("test_backend_commands.py::test_export") == {"jax", "torch"}
    with pytest.raises(LookupError, match="has no test_nothing"):
        marks("test_cli.py::test_nothing")


def test_every_field_of_a_recipe_is_in_a_row():
    fields = {field.name for field in dataclasses.fields(Recipe)}
    assert {name for feature in FEATURES for name in feature.fields} == fields


def test_every_command_is_accounted_for():
    commands = set(typer.main.get_command(app).commands)
    rows = {feature.command for feature in FEATURES if feature.command}
    groups = rows, features.SAME_EVERYWHERE, features.MADE_OF_OTHERS.keys()
    assert commands == set().union(*groups)
    assert len(commands) == sum(map(len, groups))


def test_the_page_shows_the_table():
    text = features.PAGE.read_text()
    _, _, rest = text.partition(features.BEGIN)
    shown, _, _ = rest.partition(features.END)
    assert shown == features.table(), "python -m tests.features"


def test_a_refusal_names_a_source():
    refusals = [
        cell
        for feature in FEATURES
        for cell in map(feature.cell, BACKENDS)
        if isinstance(cell, Refused)
    ]
    assert refusals
    assert all(cell.link.startswith("https://") for cell in refusals)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_pytest_collects_them(backend):
    """Cases too: a test with slow cases has others."""
    tests = {
        test
        for name, test in CELLS
        if name == backend and test.partition("::")[0] not in features.STARTED
    }
    files = sorted({f"tests/{test.partition('::')[0]}" for test in tests})
    which = ("-m", "not slow and not tensorflow_only")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *files, *which],
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line.partition("[")[0] for line in done.stdout.splitlines()}
    assert {f"tests/{test}" for test in tests} <= found
