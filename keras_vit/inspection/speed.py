"""Measures Figure 12 (D.5): images per second and the largest batch that fits.

Both are for inference, by input size. "Every single point" of the left half is the best
over the batch sizes tried. Each try runs in a child process, which may be killed when
out of memory. Batch sizes are doubled until a child runs out of memory, then bisected.

On a CPU, only the machine itself would stop a process. Therefore, a child limits its
own address space to the usage after the first image plus the rest of the limit.
"""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_vit import files
from keras_vit.configs import find_variant
from keras_vit.failures import is_out_of_memory
from keras_vit.families import family_of

__all__ = ["Figure12", "measure"]

SIZES = (64, 128, 224, 384, 512)  # Pixels per side.
MODELS = ("ViT-B/32", "ViT-B/16", "BiT-R50x1")  # Those of Table 6 that a CPU can run.
# Signals of a child out of memory: killed by the kernel, aborted, or a failed access.
_ENDS = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
_READY = "ready"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure12:
    """The measurements of Figure 12, by model and pixels.

    Sizes that do not fit are left out.

    Attributes:
        images_per_second: speed of inference, the best over the batches tried, by
            model name and pixels per side.
        largest_batch: number of images that fit, by model name and pixels per side.
        memory: memory limit of a child in bytes on a CPU; None on an accelerator.
        backend: backend of Keras.
    """

    images_per_second: dict[str, dict[int, float]]
    largest_batch: dict[str, dict[int, int]]
    memory: int | None
    backend: str

    def table(self) -> str:
        """Formats the numbers as lines of text.

        Returns:
            Text with a model and a size on each line.
        """
        lines = [f"{'':16}{'px':>6}{'images/s':>12}{'largest batch':>16}"]
        for model, speeds in self.images_per_second.items():
            for pixels, speed in speeds.items():
                largest = self.largest_batch[model][pixels]
                lines.append(f"{model:16}{pixels:>6}{speed:>12.1f}{largest:>16,}")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the numbers as JSON.

        Args:
            path: path of the file.
        """
        files.write_json(path, dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasurementLimits:
    """Limits of a measurement."""

    memory: int  # Bytes of a child on a CPU.
    largest: int  # Images; larger batches are not tried.
    seconds: float  # Minimum for each batch.


def measure(
    models: tuple[str, ...] = MODELS,
    sizes: tuple[int, ...] = SIZES,
    *,
    memory: int | None = None,
    largest: int = 1024,
    seconds: float = 1.0,
    report: Callable[[str], None] = print,
) -> Figure12:
    """Measures Figure 12 (D.5) on this machine, in child processes.

    Args:
        models: names of `VARIANTS`.
        sizes: pixels per side; for each model, those that its patches tile are used.
        memory: memory limit of a child in bytes on a CPU [default: 0.8 of the free
            memory].
        largest: largest batch to try.
        seconds: minimum time for each batch.
        report: called with a line of progress after every child.

    Returns:
        A `Figure12`.

    Raises:
        ValueError: if a model is unknown or accepts none of the sizes, if `memory` or
            `largest` is not positive, or if `seconds` is negative.
        RuntimeError: with its last output, if a child fails for any other reason than
            memory.
        OSError: without `memory` on a system other than Linux.
    """
    if largest < 1 or seconds < 0 or (memory is not None and memory < 1):
        raise ValueError(
            "Expected a positive memory and largest batch. Received: "
            f"memory={memory}, largest={largest}, seconds={seconds}"
        )
    names = [find_variant(model) or model for model in models]
    chosen = {model: _sizes_of(model, sizes) for model in names}
    room = int(0.8 * available_memory()) if memory is None else memory
    limits = MeasurementLimits(memory=room, largest=largest, seconds=seconds)
    speeds: dict[str, dict[int, float]] = {}
    batches: dict[str, dict[int, int]] = {}
    for model, own in chosen.items():
        speeds[model], batches[model] = {}, {}
        for pixels in own:
            fitting = search(model, pixels, limits, report)
            if fitting:
                speeds[model][pixels] = max(fitting.values())
                batches[model][pixels] = max(fitting)
    import keras

    return Figure12(
        images_per_second=speeds,
        largest_batch=batches,
        memory=None if _accelerated() else room,
        backend=keras.backend.backend(),
    )


def _sizes_of(model: str, sizes: tuple[int, ...]) -> list[int]:
    """Returns the sizes that the model can be built for."""
    from keras_vit.inspection.counting import costs

    possible = []
    refused: ValueError | None = None
    for pixels in sizes:
        try:
            costs(model, (pixels, pixels))
        except ValueError as error:
            refused = error
        else:
            possible.append(pixels)
    if refused is not None and not possible:
        raise refused
    return possible


def search(
    model: str, pixels: int, limits: MeasurementLimits, report: Callable[[str], None]
) -> dict[int, float]:
    """Measures images per second by batch, for batches that fit.

    Batches are doubled, then bisected. The largest one is within 10 % of one that does
    not fit, or is `limits.largest`.
    """
    fitting: dict[int, float] = {}

    def fit(batches: list[int]) -> int | None:
        """Tries batches in a child; returns the first that does not fit."""
        done = _child(model, pixels, batches, limits)
        fitting.update(done)
        failed = next((batch for batch in batches if batch not in done), None)
        best = max(fitting, default=0)
        report(
            f"{model} {pixels} px: {best} images fit"
            + ("" if failed is None else f", {failed} do not")
        )
        return failed

    ahead = list(_doubled(limits.largest))
    failed = fit(ahead)
    while failed is not None and failed != ahead[0]:  # Again, with empty memory.
        ahead = ahead[ahead.index(failed) :]
        failed = fit(ahead)
    if failed is None or not fitting:
        return fitting
    fits = max(fitting)
    while failed - fits > max(1, fits // 10):
        middle = (fits + failed) // 2
        if fit([middle]) is None:
            fits = middle
        else:
            failed = middle
    return fitting


def _doubled(largest: int) -> Iterator[int]:
    batch = 1
    while batch < largest:
        yield batch
        batch *= 2
    yield largest


def _child(
    model: str, pixels: int, batches: list[int], limits: MeasurementLimits
) -> dict[int, float]:
    """Runs batches in a child process; returns images per second of those that fit."""
    task = {
        "model": model,
        "pixels": pixels,
        "batches": batches,
        "memory": limits.memory,
        "seconds": limits.seconds,
    }
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "keras_vit.inspection.speed", json.dumps(task)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    first, *lines = done.stdout.splitlines() or [""]
    of_memory = -done.returncode in _ENDS or is_out_of_memory(done.stderr)
    if done.returncode and not of_memory:
        raise RuntimeError(
            f"Expected {model} to run at {pixels} px. Received: exit code "
            f"{done.returncode}, {done.stderr.strip()[-500:]}"
        )
    if first != _READY:  # Not even one image.
        return {}
    measured = [line.split() for line in lines if line.count(" ") == 1]
    return {int(batch): float(speed) for batch, speed in measured}


def _run(task: dict[str, Any]) -> None:
    """Runs in the child; prints "ready", then a line for each batch that fits."""
    import keras

    import keras_vit

    config = keras_vit.VARIANTS[task["model"]]
    size = (task["pixels"], task["pixels"])
    model = family_of(config).build(config, image_size=size, num_classes=1000)
    if _accelerated():
        model.compile(jit_compile=keras.backend.backend() != "torch")
    _speed(model, 1, 0.0)  # Allocates threads and anything else that is needed once.
    if not _accelerated():
        _limit(task["memory"])
    print(_READY, flush=True)
    for batch in task["batches"]:
        print(batch, _speed(model, batch, task["seconds"]), flush=True)


def _speed(model: Any, batch: int, seconds: float) -> float:
    """Returns images per second of a model's forward pass."""
    import numpy as np

    images = np.zeros((batch, *model.input_shape[1:]), "float32")
    return images_per_second(model.predict_on_batch, images, seconds)


def images_per_second(run: Callable[[Any], Any], images: Any, seconds: float) -> float:
    """Measures images per second of `run`, after one call, which compiles.

    Args:
        run: function called with `images`, [B, ...], repeatedly.
        images: batch of images.
        seconds: minimum duration; at least one call is measured.
    """
    run(images)
    runs, start = 0, time.perf_counter()
    while not runs or time.perf_counter() - start < seconds:
        run(images)
        runs += 1
    return len(images) * runs / (time.perf_counter() - start)


def _limit(memory: int) -> None:
    """Limits this process to `memory` bytes, resident memory included."""
    page = resource.getpagesize()
    mapped, resident = Path("/proc/self/statm").read_text().split()[:2]
    if int(resident) * page > memory:
        raise MemoryError(f"a batch of 1 takes more than {memory} bytes")
    room = (int(mapped) - int(resident)) * page + memory
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (room, hard))


def _accelerated() -> bool:
    """Returns whether the backend runs on a device with its own memory."""
    import keras

    if keras.backend.backend() == "torch":
        import torch

        return bool(torch.cuda.is_available())
    found = keras.distribution.list_devices()
    return any(not str(device).startswith("cpu") for device in found)


def available_memory() -> int:
    """Returns the free bytes of this machine or its control group, on Linux only.

    Raises:
        OSError: on another system.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError as error:
        raise OSError(
            "Expected Linux's /proc/meminfo to read the free memory. Received: "
            "none. Set the limit with memory= or --memory"
        ) from error
    (free,) = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        return min(int(free) * 1024, int(most) - int(used.read_text()))
    return int(free) * 1024


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
