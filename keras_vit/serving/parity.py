"""Compare the outputs of an exported file with those of the Keras model."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_vit.serving import isolated_run


def run_fresh(
    kind: str, path: Path, given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Computes a file's outputs for arrays, in a new process without Keras.

    Args:
        kind: key of `isolated_run.KINDS`, which selects the runtime.
        path: path of the file or folder.
        given: arrays that `isolated_run` expects for this kind.

    Raises:
        ValueError: if the process fails, with the last line of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, "in.npz"), Path(folder, "out.npz")
        np.savez(inputs, **given)  # type: ignore[arg-type]
        script = [
            sys.executable,
            "-I",
            isolated_run.__file__,
            kind,
            path,
            inputs,
            outputs,
        ]
        done = subprocess.run(list(map(str, script)), capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise ValueError(
                f"Expected {path} to run in a process without Keras. Received: "
                f"{lines[-1]}"
            )
        with np.load(outputs) as arrays:
            return dict(arrays)


def largest_difference(
    what: str, actual: np.ndarray, expected: np.ndarray, tolerance: float
) -> float:
    """Returns the largest absolute difference, which must be within `tolerance`.

    Raises:
        ValueError: if it exceeds `tolerance`, the shapes differ, or a value is NaN.
    """
    if actual.shape != expected.shape:
        raise ValueError(
            f"Expected {what} of shape {expected.shape}, as Keras computes it. "
            f"Received: {actual.shape} from the exported file; nothing was written"
        )
    difference = float(np.abs(actual - expected).max(initial=0.0))
    if not difference <= tolerance:  # Also true for NaN.
        raise ValueError(
            f"Expected {what} within {tolerance:.0e} of Keras's. Received: a "
            f"difference of {difference:.2e} from the exported file; nothing was "
            "written"
        )
    return difference
