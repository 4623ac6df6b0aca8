"""Type checkers report wrong calls of the public names, and no right ones."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_vit.configs import Overrides, PlainViTConfig, ResNetConfig, ViTConfig
from tests.conftest import FIXTURES

pytestmark = pytest.mark.tensorflow_only
ROOT = Path(__file__).parents[1]
CALLS = FIXTURES / "typed_calls.py"


def wrong_lines():
    """The numbers of the lines of `CALLS` that end in "# wrong"."""
    lines = CALLS.read_text().splitlines()
    first = next(number for number, at in enumerate(lines) if at.startswith("# Right"))
    calls = [at for at in lines[first:] if at and not at.startswith("#")]
    wrong = {number for number, at in enumerate(lines, 1) if at.endswith("# wrong")}
    assert (len(calls), len(wrong)) == (40, 20)
    return wrong


def test_mypy_reports_the_wrong_calls():
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", CALLS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(done.stdout, done.stderr)
    reported = re.findall(rf"^.*{CALLS.name}:(\d+): error: ", done.stdout, re.M)
    assert {int(line) for line in reported} == wrong_lines()
    assert all(f"{CALLS.name}:" in line for line in done.stdout.splitlines())


@pytest.fixture
def pyright():
    """The command, if it is installed and starts without a network."""
    beside = Path(sys.executable).parent
    command = shutil.which("pyright", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if command is None:
        pytest.skip("pyright is not installed")
    done = subprocess.run([command, "--version"], capture_output=True, text=True)
    if done.returncode or not done.stdout.startswith("pyright"):
        pytest.skip("pyright does not start without a network")
    return command


def test_pyright_reports_the_wrong_calls(pyright):
    done = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable, CALLS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    for at in found:
        print(at["range"]["start"]["line"] + 1, at["severity"], at["message"])
    reported = {
        at["range"]["start"]["line"] + 1 for at in found if at["severity"] == "error"
    }
    assert reported == wrong_lines()


def test_overrides_are_the_fields_of_the_configs():
    """Type checkers read a `TypedDict` only where it is written out."""
    fields = {
        **ViTConfig.__dataclass_fields__,
        **ResNetConfig.__dataclass_fields__,
        **PlainViTConfig.__dataclass_fields__,
    }
    assert Overrides.__annotations__.keys() == fields.keys()
    for name in ("gelu", "unit", "dropout_rate"):
        assert Overrides.__annotations__[name] == fields[name].type
