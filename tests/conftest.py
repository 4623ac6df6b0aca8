"""What every test shares: where fixtures are, and the parity table."""

import functools
import importlib
import importlib.util
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_VIT_CACHE_BYTES"] = "0"  # What one test computes is no other's.

import numpy as np
import pytest

from tests import browser

if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # On a machine with other work, an example can take longer than its limits.
    settings.register_profile(
        "unhurried",
        settings.default,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("unhurried")

# `make interop` runs these, in an environment with what they need.
collect_ignore = [] if "KERAS_VIT_INTEROP" in os.environ else ["interop"]


def skip_without(*modules):
    """Skips where a module is not installed; unlike `importorskip`, imports none.

    An imported JAX warns of each fork of the process, OpenVINO's among them.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)


FIXTURES = Path(__file__).parent / "fixtures"
REFERENCE = FIXTURES / "reference"
# CONTRIBUTING.md, "Real files": what it holds, and which tests use it.
REAL = Path(
    os.environ.get("KERAS_VIT_REAL", Path(__file__).parents[2] / "shared" / "real")
)

_parity: dict[str, tuple[float, float]] = {}


@pytest.fixture
def agree():
    """Compares with the reference; the report has the one nearest to its tolerance."""

    def compare(label, ours, theirs, atol):
        ours = np.asarray(ours, dtype=np.float64)
        theirs = np.asarray(theirs, dtype=np.float64)
        assert ours.shape == theirs.shape, label
        difference = float(np.abs(ours - theirs).max(initial=0.0))
        fixture = label.split(":")[0]
        pairs = [(difference, atol), _parity.get(fixture, (0.0, atol))]
        _parity[fixture] = max(pairs, key=lambda pair: pair[0] / (pair[1] or 1))
        assert difference <= atol, f"{label}: {difference:.2e} > {atol:.0e}"

    return compare


def reference(name):
    """The file of a fixture of the official code."""
    return REFERENCE / f"{name}.npz"


@pytest.fixture(scope="session")
def paper_facts():
    """PAPER.md: the paper's numbers, typed from the paper."""
    return (FIXTURES / "PAPER.md").read_text()


@pytest.fixture(scope="session")
def real():
    """The folder of real weights and photographs; without it tests of them skip."""
    if not REAL.is_dir():
        pytest.skip(
            "LOUD: needs the real ViT-S/14 and flowers12 in KERAS_VIT_REAL "
            "(CONTRIBUTING.md, 'Real files')"
        )
    return REAL


@pytest.fixture(scope="module")
def chromium():
    """A browser; without Chromium, Chrome or Edge tests of pages skip."""
    with browser.opened() as opened:
        yield opened


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hugging Face Hub on the loopback, with an empty cache."""
    from tests.weights.hub import connected

    with connected(tmp_path / "hf", monkeypatch) as hub:
        yield hub


@functools.cache
def commands_of(get_command, app, callbacks):
    """The commands of `keras-vit`, made once for all tests with these callbacks."""
    return get_command(app)


@pytest.fixture
def shell(monkeypatch, capsys):
    """Runs `keras-vit` at 200 columns: (exit code, standard output, standard error)."""
    import keras
    from typer import main

    from keras_vit import cli

    get_command = main.get_command

    def made_once(app):
        callbacks = tuple(command.callback for command in app.registered_commands)
        return commands_of(get_command, app, callbacks)

    monkeypatch.setattr(main, "get_command", made_once)
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """No test starts after KERAS_VIT_TESTS_UNTIL, in seconds since 1970."""
    if time.time() > float(os.environ.get("KERAS_VIT_TESTS_UNTIL", "inf")):
        pytest.skip("LOUD: the time for tests was over (KERAS_VIT_TESTS_UNTIL)")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """With KERAS_VIT_NO_SKIPS, where all is installed, a skipped test is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("KERAS_VIT_NO_SKIPS") and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def script(monkeypatch):
    """Imports a script of benchmarks/ by its name, as it is when it is run."""
    folder = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


def pytest_terminal_summary(terminalreporter):
    if _parity:
        terminalreporter.section("parity with the reference (largest difference)")
        for fixture, (difference, atol) in sorted(_parity.items()):
            terminalreporter.line(f"{fixture:44} {difference:9.2e}  (<= {atol:.1e})")
