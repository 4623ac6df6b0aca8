"""What a user waits for before the first image: importing, and building with weights.

    python benchmarks/startup.py

Imports are timed in fresh processes, in turn, and the medians compared; ViT-B/16 is
built and filled from an npz of its full size, written to a temporary folder first.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def import_seconds(statement: str) -> float:
    """Seconds a fresh process takes to run an import statement."""
    code = (
        f"import time; start = time.perf_counter(); {statement}; "
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Prints the two figures."""
    rounds = [
        [import_seconds(f"import {module}") for module in ("keras", "keras_vit")]
        for _ in range(5)
    ]
    keras_alone, with_ours = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    print(f"import keras      {keras_alone:.2f} s")
    print(f"import keras_vit  {with_ours:.2f} s: {with_ours - keras_alone:+.2f} s")

    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ViT-B_16.npz"
        keras_vit.weights.save(keras_vit.ViT_B16(weights=None), path)
        for attempt in ("first", "second"):
            start = time.perf_counter()
            keras_vit.ViT_B16(weights=path)
            seconds = time.perf_counter() - start
            print(f"build and load ViT-B/16 ({attempt} time)  {seconds:.2f} s")


if __name__ == "__main__":
    main()
