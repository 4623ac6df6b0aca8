"""Sweeps the batch of each model and library to the largest that fits; for peers.py.

Each batch runs in a separate process, so that the peak memory belongs to this batch.
Batches are doubled until one does not fit; bisection then finds the largest to within
an eighth.

MFU is the model's FLOPs (two for each multiply-add counted by `costs`, and three times
as many in an update) divided by the device's peak in `keras_vit.inspection.DEVICES`
(Chowdhery et al., arXiv:2204.02311, appendix B). "of product" divides by the fastest
product of the MLP's shape instead, measured in the same process.
"""

import argparse
import dataclasses
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import keras_vit_command  # noqa: F401 (`keras_vit` then imports no Keras.)
from keras_vit.inspection.counting import Costs, costs
from keras_vit.inspection.devices import DEVICES, PAPERS_UTILISATION

ROWS = ("ours-jax", "ours-torch", "timm", "timm-compiled")
MODELS = ("ViT-S/16@224", "ViT-B/16@224", "ViT-L/16@224", "ViT-B/16@384")
CALLS = ("forward", "training")
ROUNDS = 3
PASSES = {"forward": 1, "training": 3}
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|MemoryError|bad_alloc", re.I
)


class Process(Protocol):
    """The interface of `peers.Worker`."""

    errors: Path

    def ask(self, what: str, **more: Any) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Point:
    """Measurements for one batch size."""

    batch: int
    seconds: list[float]  # Per call, by round.
    memory: int  # Peak bytes; on a CPU, of the process.
    product: float  # FLOP/s of the product of the MLP's shape.
    device: str

    @property
    def images_per_second(self) -> float:
        """Median over the rounds."""
        return self.batch / statistics.median(self.seconds)


@dataclasses.dataclass
class Series:
    """All batches of a library, a model and a call."""

    row: str
    model: str  # A variant, "@", and pixels per side.
    what: str
    points: list[Point] = dataclasses.field(default_factory=list)
    largest: int = 0
    too_large: int | None = None  # The smallest batch that did not fit.
    failure: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> Point:
        """The fastest batch."""
        return max(self.points, key=lambda point: point.images_per_second)

    def shown(self) -> Iterator[tuple[str, Point]]:
        """Yields the fastest batch, and the largest if it is a different one."""
        yield self.row, self.best
        last = max(self.points, key=lambda point: point.batch)
        if last is not self.best:
            yield "  largest", last


def split(model: str) -> tuple[str, int]:
    """Splits a variant and its pixels per side: "ViT-B/16@384".

    Raises:
        ValueError: if it has a different form.
    """
    variant, _, pixels = model.partition("@")
    if not pixels.isdecimal():
        raise ValueError(f"Expected VARIANT@PIXELS. Received: {model!r}")
    costs(variant, (int(pixels), int(pixels)))
    return variant, int(pixels)


def search(fits: Callable[[int], bool], smallest: int, most: int) -> tuple[int, Any]:
    """Returns the largest batch that fits, to an eighth, and the smallest that doesn't.

    Args:
        fits: function that tries a batch.
        smallest: first batch; if it does not fit, its half and so on are tried.
        most: larger batches are not tried.
    """
    batch, best, failed = smallest, 0, None
    while failed is None and batch <= most:
        if fits(batch):
            best, batch = batch, 2 * batch
        else:
            failed = batch
    while failed is not None and not best and failed > 1:
        if fits(failed // 2):
            best = failed // 2
        else:
            failed //= 2
    while failed is not None and best and failed - best > max(1, best // 8):
        middle = (best + failed) // 2
        if fits(middle):
            best = middle
        else:
            failed = middle
    return best, failed


def measure(
    series: Series,
    start: Callable[[int], Process],
    options: argparse.Namespace,
    report: Callable[[str], None],
) -> None:
    """Fills a series; `start(batch)` starts a process for each batch."""

    def fits(batch: int) -> bool:
        worker = start(batch)
        try:
            point, versions = _point(worker, series, batch, options.seconds)
        except RuntimeError as error:
            told = f"{error}\n{worker.errors.read_text(errors='replace')}"
            if OUT_OF_MEMORY.search(told) or "SIGKILL" in str(error):
                report(f"{series.row} {series.model} {series.what}: {batch} do not fit")
                return False
            raise
        finally:
            worker.close()
        series.points.append(point)
        series.versions = versions
        speed = point.images_per_second
        report(
            f"{series.row} {series.model} {series.what}, batch {batch}: {speed:.1f} "
            f"images/s, {point.memory / 2**30:.2f} GiB"
        )
        return True

    try:
        series.largest, series.too_large = search(fits, options.smallest, options.most)
    except RuntimeError as error:
        series.failure = str(error)
        report(f"{series.row} {series.model} {series.what} failed: {error}")


def _point(
    worker: Process, series: Series, batch: int, least: float
) -> tuple[Point, dict[str, str]]:
    facts = worker.ask("facts")
    worker.ask(series.what, calls=2)
    once = worker.ask(series.what, calls=1)["seconds"]
    calls = min(1000, max(1, math.ceil(least / once)))
    seconds = [worker.ask(series.what, calls=calls)["seconds"] for _ in range(ROUNDS)]
    memory = worker.ask("memory")["bytes"]  # Before the product allocates its arrays.
    worker.ask("peak", calls=2)
    product = min(worker.ask("peak", calls=10)["seconds"] for _ in range(ROUNDS))
    multiplied = math.prod(facts["product"])
    point = Point(batch, seconds, memory, 2 * multiplied / product, facts["device"])
    return point, facts["versions"]


@dataclasses.dataclass(frozen=True)
class Scale:
    """Reference values for the measurements."""

    peak: float | None  # FLOP/s of the device, if it is known.
    dtype: str  # "bfloat16" on a GPU.

    def counted(self, model: str, batch: int = 1) -> Costs:
        """Returns the `Costs` of a model, with the memory of a batch."""
        variant, side = split(model)
        return costs(variant, (side, side), batch, dtype=self.dtype, optimizer="sgd")

    def flops(self, series: Series) -> float:
        """Returns the FLOPs of one image."""
        return 2 * PASSES[series.what] * self.counted(series.model).multiply_adds

    def mfu(self, series: Series, point: Point) -> float | None:
        """Returns the model's FLOP/s divided by the device's peak."""
        done = point.images_per_second * self.flops(series)
        return None if self.peak is None else done / self.peak

    def share(self, series: Series, point: Point) -> float:
        """Returns the model's FLOP/s divided by those of the measured product."""
        return point.images_per_second * self.flops(series) / point.product

    def memory(self, series: Series, point: Point) -> int:
        """Returns the bytes predicted by `costs`."""
        used = self.counted(series.model, point.batch).memory
        return used.inference_total if series.what == "forward" else used.training_total

    def images_per_second(self, series: Series) -> float | None:
        """Returns images/s of training at the utilization assumed by `costs --plan`."""
        if series.what == "forward" or self.peak is None:
            return None
        return self.peak * PAPERS_UTILISATION / self.flops(series)


def peak_of(device: str) -> float | None:
    """Returns the FLOP/s of a device by its driver's name; None if it is unknown."""
    name = re.sub(r"[^A-Z0-9]", "", device.upper())
    for known in sorted(DEVICES, key=len, reverse=True):
        if all(part in name for part in known.upper().split("-")):
            return DEVICES[known].teraflops * 1e12
    return None


HEADER = (
    f"{'':16}{'batch':>6}{'images/s':>32}{'MFU':>6}{'of':>9}{'memory':>9}"
    f"{'costs:':>9}{'':>7}{'costs:':>10}{'':>7}\n"
    f"{'':16}{'':>6}{'':>32}{'':>6}{'product':>9}{'GiB':>9}"
    f"{'GiB':>9}{'ratio':>7}{'images/s':>10}{'ratio':>7}"
)


def table(measured: list[Series], scale: Scale) -> str:
    """Formats a table for each model; ratios are measured over predicted."""
    lines: list[str] = []
    for model in dict.fromkeys(series.model for series in measured):
        variant, side = split(model)
        adds = scale.counted(model).multiply_adds
        lines += ["", f"{variant}, {side} px, {adds:,} multiply-adds an image", HEADER]
        for what in CALLS:
            own = [s for s in measured if (s.model, s.what) == (model, what)]
            lines += [what] if own else []
            for series in own:
                lines += _lines(series, scale)
    return "\n".join(lines[1:])


def _lines(series: Series, scale: Scale) -> Iterator[str]:
    if not series.points:
        yield f"{series.row:16}  {series.failure or 'not one image fits'}"
        return
    for name, point in series.shown():
        rates = sorted(point.batch / second for second in point.seconds)
        middle = point.images_per_second
        spread = f"{middle:,.1f} ({rates[0]:,.1f} to {rates[-1]:,.1f})"
        mfu, predicted = scale.mfu(series, point), scale.images_per_second(series)
        used, expected = point.memory, scale.memory(series, point)
        yield (
            f"{name:16}{point.batch:6}{spread:>32}{_number(mfu, 6)}"
            f"{scale.share(series, point):9.2f}{used / 2**30:9.2f}"
            f"{expected / 2**30:9.2f}{used / expected:7.2f}"
            + _number(predicted, 10, 1)
            + _number(None if predicted is None else middle / predicted, 7)
        )
    if series.failure:
        yield f"{'':16}  then: {series.failure}"


def _number(value: float | None, width: int, digits: int = 2) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width},.{digits}f}"


def told(measured: list[Series], scale: Scale, title: str) -> dict[str, Any]:
    """Returns every figure, for JSON."""
    rows = []
    for series in measured:
        points = [
            dataclasses.asdict(point)
            | {
                "images_per_second": point.images_per_second,
                "mfu": scale.mfu(series, point),
                "share_of_product": scale.share(series, point),
                "predicted_memory": scale.memory(series, point),
                "predicted_images_per_second": scale.images_per_second(series),
            }
            for point in sorted(series.points, key=lambda point: point.batch)
        ]
        rows.append(dataclasses.asdict(series) | {"points": points})
    return {"title": title, "scale": dataclasses.asdict(scale), "rows": rows}


def run(
    options: argparse.Namespace,
    rows: list[Any],
    start: Callable[[Any, str, int], Process],
    report: Callable[[str], None],
) -> None:
    """Measures every row and model, prints the table, writes JSON.

    Args:
        options: options of peers.py.
        rows: rows of peers.py.
        start: function of (row, model, batch) that starts a process.
        report: function called with a line of progress.
    """
    measured: list[Series] = []
    dtype = "bfloat16" if options.device == "gpu" else "float32"
    scale, title = Scale(None, dtype), ""
    for model in options.models:
        for what in CALLS:
            for row in rows:
                series = Series(row.name, model, what)
                measure(
                    series,
                    lambda batch, row=row, model=model: start(row, model, batch),  # type: ignore[misc]
                    options,
                    report,
                )
                measured.append(series)
                names = [point.device for s in measured for point in s.points]
                device = names[0] if names else options.device
                peak = options.peak and options.peak * 1e12
                if options.device == "gpu" and not peak:
                    peak = peak_of(device)
                scale = Scale(peak, dtype)
                known = "peak unknown" if peak is None else f"{peak / 1e12:g} TFLOP/s"
                title = f"{device} ({known}), {dtype}"
                if options.json:  # After each series, because a run takes hours.
                    text = json.dumps(told(measured, scale, title), indent=2)
                    options.json.write_text(text + "\n")
    print(title, table(measured, scale), sep="\n")
    installed = {" ".join(pair) for s in measured for pair in s.versions.items()}
    print(f"With {', '.join(sorted(installed))}")
