"""Measure the time to the first batch, and its memory, by the number of images.

    python benchmarks/scale.py [--images N ...] [--batch B]

Each N runs in a separate process, on an index without images, so only the order of an
epoch is measured: at step 0 and in the middle of epoch 7. Memory is the growth of the
resident set after a first small pipeline has started TensorFlow's threads. The index of
a packed folder, 24 bytes per image, is not included: it stays on disk, mapped into
memory (tests/data/test_packed.py, `test_a_large_index_stays_on_disk`).
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SIZES = (10**4, 10**6, 14_197_122, 10**8, 3 * 10**8)


def resident() -> int:
    """Returns the bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def first_batch(size: int, batch: int, step: int) -> float:
    """Returns the seconds from building a pipeline to the batch of a step."""
    from keras_vit.data import pipelines, splits

    class Numbers(splits.Indexed):
        """An index of `size` images; each image is its number."""

        def __init__(self) -> None:
            pass

        def __len__(self) -> int:
            return size

        def item(self, handle: Any) -> dict[str, Any]:
            return {"image": handle, "label": handle}

        def take(self, indices: Any) -> Any:
            raise NotImplementedError

        def fingerprint(self) -> str:
            raise NotImplementedError

    start = time.perf_counter()
    batches = pipelines.endless(
        Numbers(),
        lambda _, item: (item["image"], item["label"]),
        batch_size=batch,
        seed=0,
        start_step=step,
    )
    next(iter(batches))
    return time.perf_counter() - start


def measure(size: int, batch: int) -> None:
    """Prints the row for one N."""
    first_batch(100, batch, 0)
    before = resident()
    starts = (0, (7 * size + size // 2) // batch)
    seconds = [first_batch(size, batch, step) for step in starts]
    grown = (resident() - before) / 2**20
    print(
        f"{size:>13,}{seconds[0]:>10.2f}{seconds[1]:>14.2f}{grown:>14.0f}", flush=True
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        measure(given.one, given.batch)
        return
    print(f"batch of {given.batch}: seconds to the first one, and growth of memory")
    print(f"{'images':>13}{'step 0':>10}{'epoch 7.5':>14}{'MiB':>14}", flush=True)
    for size in given.images:
        options = ["--one", str(size), "--batch", str(given.batch)]
        subprocess.run([sys.executable, __file__, *options], check=True)


if __name__ == "__main__":
    main()
