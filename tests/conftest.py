"""What every test shares: where fixtures are, and the parity table."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest

# `make interop` runs these, in an environment with what they need.
collect_ignore = [] if "KERAS_VIT_INTEROP" in os.environ else ["interop"]

REFERENCE = Path(__file__).parent / "fixtures" / "reference"
SHARED = Path(__file__).parents[2] / "shared"

_parity: dict[str, tuple[float, float]] = {}


@pytest.fixture
def agree():
    """Compares with the reference and keeps the largest difference for the report."""

    def compare(label, ours, theirs, atol):
        ours = np.asarray(ours, dtype=np.float64)
        theirs = np.asarray(theirs, dtype=np.float64)
        assert ours.shape == theirs.shape, label
        difference = float(np.abs(ours - theirs).max(initial=0.0))
        fixture = label.split(":")[0]
        _parity[fixture] = (max(difference, _parity.get(fixture, (0.0,))[0]), atol)
        assert difference <= atol, f"{label}: {difference:.2e} > {atol:.0e}"

    return compare


def reference(name):
    """A fixture of the official code: the small ones are here, the others beside."""
    folders = (REFERENCE, SHARED / "reference" / "mini", SHARED / "reference" / "extra")
    for folder in folders:
        if (folder / f"{name}.npz").is_file():
            return folder / f"{name}.npz"
    pytest.skip(f"LOUD: {name}.npz is not in {REFERENCE}, and {SHARED} is absent")


@pytest.fixture(scope="session")
def shared():
    """The folder of data beside a checkout; tests that need it skip without it."""
    if not SHARED.is_dir():
        pytest.skip(f"LOUD: {SHARED} is absent, so this comparison did not run")
    return SHARED


@pytest.fixture
def shell(monkeypatch, capsys):
    """Runs `keras-vit` at 200 columns: (exit code, standard output, standard error)."""
    import keras

    from keras_vit import cli

    monkeypatch.setenv("COLUMNS", "200")
    policy = keras.config.dtype_policy()

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["keras-vit", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            sys.exit(cli.main())
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    yield run
    keras.config.set_dtype_policy(policy)


@pytest.fixture(scope="session")
def vtab_folder(tmp_path_factory):
    """The data sets of VTAB-1k with a few records each, prepared by TFDS."""
    pytest.importorskip("tensorflow_datasets")
    from tests.data import vtab_sets

    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    vtab_sets.prepare(folder)
    return folder


@pytest.fixture
def small_vtab(vtab_folder, monkeypatch):
    """The 19 tasks of VTAB-1k, sliced for the few records of their data sets."""
    from tensorflow_datasets.core import constants

    from keras_vit.data import vtab
    from tests.data import vtab_sets

    monkeypatch.setattr(constants, "DATA_DIR", str(vtab_folder))
    tasks = tuple(vtab_sets.small(task) for task in vtab.TASKS)
    monkeypatch.setattr(vtab, "TASKS", tasks)
    return {task.word: task for task in tasks}


def pytest_terminal_summary(terminalreporter):
    if _parity:
        terminalreporter.section("parity with the reference (largest difference)")
        for fixture, (difference, atol) in sorted(_parity.items()):
            terminalreporter.line(f"{fixture:44} {difference:9.2e}  (<= {atol:.0e})")
