"""Damaged files: one clear error or tensors, whatever byte has changed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.weights import dialects

COPIES = int(os.environ.get("KERAS_VIT_FUZZ", "60"))
PROCESSES = min(os.cpu_count() or 1, 4)
pytestmark = [
    pytest.mark.tensorflow_only,  # Files are read by the same code on every backend.
    pytest.mark.skipif(
        sys.platform != "linux" or importlib.util.find_spec("jax") is None,
        reason="limits memory and forks as Linux does; Keras on NumPy imports jax",
    ),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What `fuzzing.py` says of every dialect, and of those it found errors in."""
    folders = []
    for write in dialects.DIALECTS:
        folders.append(tmp_path_factory.mktemp("fuzz") / write.__name__)
        folders[-1].mkdir()
        write(folders[-1])
    script = Path(__file__).with_name("fuzzing.py")
    runs = [
        subprocess.Popen(
            [sys.executable, "-P", script, "0", str(COPIES), *folders[i::PROCESSES]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        for i in range(PROCESSES)
    ]
    texts = [run.communicate() for run in runs]
    lines = [json.loads(line) for out, _ in texts for line in out.splitlines()]
    return {line.pop("name"): line for line in lines}, "".join(e for _, e in texts)


@pytest.mark.parametrize("write", dialects.DIALECTS, ids=lambda write: write.__name__)
def test_damaged_copies(write, reports):
    report = reports[0].get(write.__name__)
    assert report is not None, f"a process has crashed:\n{reports[1]}"
    print(f"\n{write.__name__}: {COPIES} copies, {report}")
    assert not report["bugs"], reports[1]
    assert sum(report["bytes"].values()) == sum(report["tensors"].values()) == COPIES
    assert report["bytes"]["refused"]
    assert report["scalars"]["refused"]
    if write.__name__.startswith(("npz", "known")):  # A CRC or hash guards every value.
        assert "changed" not in report["bytes"]
