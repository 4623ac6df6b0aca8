"""Peak memory of feature extraction and few-shot regressions, by number of features.

    python benchmarks/fewshot.py                             # 100,000 of width 768
    python benchmarks/fewshot.py --images 1000000 --width 1024 --test-images 50000

Synthetic images of 4 x 4 pixels go through a dense layer. Each row runs in a separate
process. Memory is the peak of the process (VmHWM) minus its memory at the start, with
the model built and run once (VmRSS). The matrix is that of all features, in float32.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ROWS: dict[str, Any] = {  # Name: the shots of its regressions.
    "extraction": (),
    "and few-shot": (1, 25, "all"),
}
BATCH = 1000


def held(what: str) -> float:
    """Returns the current (VmRSS) or peak (VmHWM) MiB of this process; Linux only."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(what)
    )
    return int(line.split()[1]) / 2**10


def measure(options: argparse.Namespace) -> None:
    """Prints one row."""
    import keras
    import numpy as np

    from keras_vit.data.splits import Arrays
    from keras_vit.evaluation import extract, fewshot
    from keras_vit.evaluation.features import Features

    rng = np.random.default_rng(0)

    def images(count: int) -> Arrays:
        pixels = rng.integers(0, 256, (count, 4, 4, 3), np.uint8)
        return Arrays(pixels, np.arange(count) % options.classes)

    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(options.width),
        ]
    )
    tested = images(options.test_images)
    trained = images(options.images - options.test_images)
    extract(model, tested.take(np.arange(BATCH)), batch_size=BATCH)
    before, start = held("VmRSS"), time.perf_counter()
    train = extract(model, trained, batch_size=BATCH)
    test = extract(model, tested, batch_size=BATCH)
    if ROWS[options.only]:
        fewshot(None, Features(*train, *test), shots=ROWS[options.only], seeds=(0,))
    seconds = time.perf_counter() - start
    matrix = (train[0].nbytes + test[0].nbytes) / 2**20
    peak = held("VmHWM") - before
    share = peak / matrix
    print(
        f"{options.only:14} {matrix:8.0f} {peak:8.0f} {share:7.2f} {seconds:9.1f}",
        flush=True,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--test-images", type=int, default=10_000, help="test images")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--only", choices=tuple(ROWS), help="one row, without the head")
    options = parser.parse_args()
    if options.only:
        measure(options)
        return
    print(
        f"{options.images} features of width {options.width}, {options.classes} classes"
    )
    print(f"{'':14} {'matrix':>8} {'peak':>8} {'share':>7} {'seconds':>9}  (MiB)")
    for row in ROWS:
        subprocess.run([sys.executable, *sys.argv, "--only", row], check=True)


if __name__ == "__main__":
    main()
