"""Whether an exported file says what the Keras model says."""

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
    """What a file says of arrays, in a process of its own that never imports Keras.

    Args:
        kind: see `isolated_run.KINDS`: what runs the file.
        path: path of the file or folder.
        given: what `fresh` takes for this kind.

    Raises:
        ValueError: if the process fails, with its last line.
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
            told = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise ValueError(
                f"Expected {path} to run in a process without Keras. Received: "
                f"{told[-1]}"
            )
        with np.load(outputs) as found:
            return dict(found)


def largest_difference(
    what: str, found: np.ndarray, expected: np.ndarray, tolerance: float
) -> float:
    """The largest absolute difference, if it is within `tolerance`.

    Raises:
        ValueError: if it is not, or the shapes differ, or a number is none.
    """
    if found.shape != expected.shape:
        raise ValueError(
            f"Expected {what} of shape {expected.shape}, as Keras computes it. "
            f"Received: {found.shape} from the exported file; nothing was written"
        )
    difference = float(np.abs(found - expected).max(initial=0.0))
    if not difference <= tolerance:  # NaN is not.
        raise ValueError(
            f"Expected {what} within {tolerance:.0e} of Keras's. Received: a "
            f"difference of {difference:.2e} from the exported file; nothing was "
            "written"
        )
    return difference
