"""Plans a run from a sentence, such as "ViT-L/16 imagenet21k 30 epochs on 8xH100".

Models, data and recipes are those of Tables 3 and 4; FLOPs are counted as in Table 6.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

from keras_vit._lazy import renamed
from keras_vit.arguments import percent
from keras_vit.configs import find_variant
from keras_vit.inspection.counting import Costs, costs
from keras_vit.inspection.devices import (
    DEVICES,
    MEASURED_UTILISATION,
    PAPERS_UTILISATION,
    Device,
    device_of,
)
from keras_vit.inspection.memory import Memory
from keras_vit.recipes import FINETUNE, IMAGES, PRETRAIN, Recipe, finetune_row

__all__ = ["CLASSES", "FinetunePlan", "MemoryFit", "Plan", "plan"]

__getattr__ = renamed(__name__, Fit="MemoryFit")

GRAMMAR = "MODEL DATA N epochs on COUNTxDEVICE"
EXAMPLE = "ViT-L/16 imagenet21k 30 epochs on 8xH100"
FINETUNE_GRAMMAR = "finetune MODEL on N DATA on COUNTxDEVICE"
FINETUNE_EXAMPLE = "finetune ViT-B/16 on 720 photos on 1xT4"
# 4.1 for JFT's 18k; the published checkpoints for the 21,843 of ImageNet-21k.
CLASSES = {"jft300m": 18_291, "imagenet21k": 21_843, "imagenet2012": 1000}
"""K by pre-training data, from 4.1 and, for ImageNet-21k, published checkpoints."""
# The rest is for the compiler, its workspaces and fragmentation. With rematerialization
# less is usable: a process held a third more than counted (`benchmarks/memory.py`).
USABLE, USABLE_REMATERIALIZED = 0.9, 0.7
MOST_EPOCHS = 1_000_000
IMAGE_BYTES = 110_000
"""Size of an ImageNet JPEG; MLPerf Storage's ResNet-50 assumes 114,660."""
# Images/s of 500x375 pixels that one core decodes, crops and scales: half of the 1,917
# of two cores (`benchmarks/data.py --enlarge 500x375`, docs/performance.md).
DECODED_BY_A_CORE = 960
_SENTENCE = re.compile(r"(\S+) (\S+) (\d+\.?\d*) epochs? on (\d+)x(\S+)")
_FINETUNE = re.compile(r"finetune (\S+) on ([\d,]*\d) (\S+) on (\d+)x(\S+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """Memory of a device's share of a batch, and the parts that it is divided into.

    Attributes:
        rematerialized: whether the backward pass computes the blocks again.
        parts: number of parts; `Recipe.accumulation_steps`.
        memory: bytes, with weights, gradients and the optimizer's state.
    """

    rematerialized: bool
    parts: int
    memory: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Planned:
    """A training run on devices: its FLOPs, memory, hours and price.

    Memory (16-bit activations) and time are estimates; `costs` lists what they include.
    Input, all-reduce and evaluation are not included; see `benchmarks/scaling.py`.
    """

    model: str
    devices: int
    device: str
    image_size: tuple[int, int] | None = None
    batch: int | None = None
    utilisation: float = PAPERS_UTILISATION
    price: float | None = None

    def _check(self) -> None:
        if self.images_an_update % self.devices:
            raise ValueError(
                "Expected a batch that is a multiple of the devices. Received: "
                f"batch={self.images_an_update}, devices={self.devices}"
            )
        self.counted().euros(  # Checks the other fields.
            1, price=self.price or 0, device=self.device, utilisation=self.utilisation
        )

    @property
    def recipe(self) -> tuple[str, Recipe]:
        """The row of the table, with its name."""
        raise NotImplementedError

    @property
    def num_classes(self) -> int:
        """K of the head."""
        raise NotImplementedError

    @property
    def images_seen(self) -> float:
        """Images of all updates together."""
        raise NotImplementedError

    @property
    def images_an_update(self) -> int:
        """Images per update: `batch`, or the recipe's."""
        return self.recipe[1].batch_size if self.batch is None else self.batch

    def counted(self, images: int = 1) -> Costs:
        """Counts the costs, with the memory for a number of images on a device.

        Args:
            images: images at once.

        Returns:
            The `Costs` at the plan's image size and classes.
        """
        _, recipe = self.recipe
        return costs(
            self.model,
            recipe.image_size if self.image_size is None else self.image_size,
            images,
            num_classes=self.num_classes,
            dtype="bfloat16",
            optimizer=recipe.optimizer,
        )

    @property
    def exaflops(self) -> float:
        """10^18 FLOPs, without the additional ones of rematerialization."""
        return self.counted().exaflops(self.images_seen)

    @property
    def hours(self) -> float:
        """Duration in hours on all devices together."""
        return self.device_hours / self.devices

    @property
    def device_hours(self) -> float:
        """Hours on a single device."""
        return self.counted().hours(self.images_seen, self.device, self.utilisation)

    @property
    def hours_measured(self) -> tuple[float, float]:
        """`hours` at the highest and the lowest share of `MEASURED_UTILISATION`."""
        least, greatest = MEASURED_UTILISATION
        at_peak = self.hours * self.utilisation
        return at_peak / greatest, at_peak / least

    @property
    def euros(self) -> float | None:
        """Price of the device-hours, in euros; None without `price`."""
        if self.price is None:
            return None
        return self.counted().euros(
            self.images_seen,
            price=self.price,
            device=self.device,
            utilisation=self.utilisation,
        )

    @property
    def rematerializes(self) -> bool:
        """Whether there are Transformer blocks, which `remat` applies to."""
        memory = self.counted().memory
        return memory.rematerialized != memory.training

    def fit(self, rematerialized: bool) -> MemoryFit | None:
        """Returns the fewest parts with which a device's share fits its memory.

        Args:
            rematerialized: whether the backward pass computes the blocks again.

        Returns:
            A `MemoryFit`; None if not even one image fits.
        """
        share = self.images_an_update // self.devices
        room = _room(device_of(self.device), rematerialized)
        for parts in range(1, share + 1):
            if share % parts:
                continue
            memory = self.counted(share // parts).memory
            needed = _needed(memory, rematerialized, parts)
            if needed <= room:
                return MemoryFit(
                    rematerialized=rematerialized, parts=parts, memory=needed
                )
        return None

    @property
    def rematerialized_hours(self) -> float:
        """`hours` with rematerialization, which computes the blocks' forward twice."""
        counted = self.counted()
        again = sum(
            products
            for layer, products in counted.by_layer.items()
            if layer.startswith("encoderblock_")
        )
        return self.hours * (1 + again / counted.multiply_adds / 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(_Planned):
    """A planned pre-training (Tables 3 and 6); `print` shows its costs.

    FLOPs, memory (16-bit activations) and time are estimates; `costs` lists what they
    include. Input, all-reduce and evaluation are not included; see
    `benchmarks/scaling.py`.

    Attributes:
        model: a name in `VARIANTS`.
        data: a name in `recipes.IMAGES`.
        epochs: number above 0 and below 1,000,000.
        devices: number of devices, a divisor of the batch.
        device: a name in `devices.DEVICES`.
        image_size: (H, W) in pixels [default: the recipe's].
        batch: images per update on all devices [default: the recipe's].
        utilisation: see `Costs.hours`.
        price: euros per hour of one device; None: no price.

    Raises:
        ValueError: if a field is unknown or out of range, or the batch is not a
            multiple of the devices.
    """

    data: str
    epochs: float

    def __post_init__(self) -> None:
        if self.data not in IMAGES:
            raise ValueError(
                f"Expected data to be one of {', '.join(IMAGES)}. "
                f"Received: data={self.data!r}"
            )
        positive = min(self.epochs, self.devices, self.images_an_update) > 0
        if not positive or self.epochs >= MOST_EPOCHS:
            raise ValueError(
                "Expected positive epochs, devices and batch, and less than "
                f"{MOST_EPOCHS:,} epochs. Received: epochs={self.epochs}, "
                f"devices={self.devices}, batch={self.images_an_update}"
            )
        self._check()

    @property
    def recipe(self) -> tuple[str, Recipe]:
        """Table 3's row with its name; ViT-B/16's for a model that has none.

        If a model has several rows, the one with the nearest number of epochs.
        """
        model = find_variant(self.model) or self.model
        row = f"{model.removeprefix('BiT-')}-{self.data}"
        if row in PRETRAIN:
            return row, PRETRAIN[row]
        of_epochs = [
            (abs(float(epochs) - self.epochs), name)
            for name in PRETRAIN
            for epochs in re.findall(rf"^{re.escape(row)}-(\d+)ep$", name)
        ]
        name = min(of_epochs)[1] if of_epochs else f"ViT-B/16-{self.data}"
        return name, PRETRAIN[name]

    @property
    def num_classes(self) -> int:
        """K of the pre-training data."""
        return CLASSES[self.data]

    @property
    def images_seen(self) -> float:
        """Epochs times the number of images in the data."""
        return self.epochs * IMAGES[self.data]

    @property
    def updates(self) -> int:
        """Updates in total, rounded as in `Recipe.for_images`."""
        return max(1, round(self.images_seen / self.images_an_update))

    @property
    def images_a_second(self) -> float:
        """Images per second on all devices together, without rematerialization."""
        return self.images_seen / self.hours / 3600

    @property
    def decoding_cores(self) -> int:
        """Processor cores, over all machines, needed to decode `images_a_second`."""
        return math.ceil(self.images_a_second / DECODED_BY_A_CORE)

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights and optimizer state in float32."""
        memory = self.counted().memory
        return memory.weights + memory.optimizer

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetunePlan(_Planned):
    """A planned fine-tuning by a row of Table 4; `print` shows its costs.

    The length of a row is in updates, so that the number of images changes only the
    epochs. A row with several learning rates trains once with each, and again with the
    best one.

    Attributes:
        model: a name in `VARIANTS`.
        data: a name in `recipes.FINETUNE`; any other word, such as "photos", selects
            the row for folders of images, oxford_flowers102's.
        images: number of training images, 1 or more.
        classes: K of the head.
        devices: number of devices, a divisor of the batch.
        device: a name in `devices.DEVICES`.
        image_size: (H, W) in pixels [default: the recipe's, 384].
        batch: images per update on all devices [default: the recipe's, 512].
        utilisation: see `Costs.hours`.
        price: euros per hour of one device; None: no price.

    Raises:
        ValueError: if a field is unknown or out of range, or the batch is not a
            multiple of the devices.
    """

    data: str
    images: int
    classes: int = 10

    def __post_init__(self) -> None:
        if min(self.images, self.devices, self.images_an_update, self.classes) <= 0:
            raise ValueError(
                "Expected positive images, classes, devices and batch. Received: "
                f"images={self.images}, classes={self.classes}, "
                f"devices={self.devices}, batch={self.images_an_update}"
            )
        self._check()

    @property
    def recipe(self) -> tuple[str, Recipe]:
        """Table 4's row, with its name."""
        name = finetune_row(self.data)
        return name, FINETUNE[name]

    @property
    def num_classes(self) -> int:
        """`classes`."""
        return self.classes

    @property
    def trainings(self) -> int:
        """Number of training runs: one per learning rate, and one with the best."""
        rates = len(self.recipe[1].base_lr)
        return rates + 1 if rates > 1 else 1

    @property
    def updates(self) -> int:
        """Updates of all training runs together."""
        return self.trainings * self.recipe[1].steps

    @property
    def images_seen(self) -> float:
        """Images of all updates together."""
        return float(self.updates * self.images_an_update)

    def __str__(self) -> str:
        return "\n".join(_finetune_lines(self))


def _room(device: Device, rematerialized: bool) -> float:
    """Returns the usable bytes of a device."""
    return device.memory * (USABLE_REMATERIALIZED if rematerialized else USABLE)


def _needed(memory: Memory, rematerialized: bool, parts: int) -> int:
    """Returns the bytes of an update; parts add an accumulator of gradients."""
    total = memory.rematerialized_total if rematerialized else memory.training_total
    return total + (memory.gradients if parts > 1 else 0)


def plan(sentence: str, **changes: Any) -> Plan | FinetunePlan:
    """Parses a sentence; recipes are those of Tables 3 and 4.

    Args:
        sentence: "MODEL DATA N epochs on COUNTxDEVICE", e.g. "ViT-L/16 imagenet21k 30
            epochs on 8xH100"; or "finetune MODEL on N DATA on COUNTxDEVICE", e.g.
            "finetune ViT-B/16 on 720 photos on 1xT4".
        **changes: other fields of `Plan`: `image_size`, `batch`, `utilisation`,
            `price`.

    Returns:
        A `Plan`, or a `FinetunePlan`.

    Raises:
        ValueError: if the sentence has a different form or an unknown word, or for the
            reasons in `Plan`.

    Examples:
        >>> from keras_vit.inspection.planning import plan
        >>> run = plan("ViT-L/16 jft300m 14 epochs on 512xTPUv3-core")
        >>> round(run.exaflops)  # Table 6.
        1567
    """
    sentence = " ".join(sentence.split())
    tuned = _FINETUNE.fullmatch(sentence)
    if tuned is not None:
        model, images, data, count, device = tuned.groups()
        return FinetunePlan(
            model=model,
            data=data,
            images=int(images.replace(",", "")),
            devices=int(count),
            device=device,
            **changes,
        )
    words = _SENTENCE.fullmatch(sentence)
    if words is None:
        raise ValueError(
            f"Expected a plan of the form {GRAMMAR!r}, e.g. {EXAMPLE!r}, or "
            f"{FINETUNE_GRAMMAR!r}, e.g. {FINETUNE_EXAMPLE!r}. DATA in the first form: "
            f"{', '.join(IMAGES)}; DEVICE: {', '.join(DEVICES)}. "
            f"Received: {sentence!r}"
        )
    model, data, epochs, count, device = words.groups()
    return Plan(
        model=model,
        data=data,
        epochs=float(epochs),
        devices=int(count),
        device=device,
        **changes,
    )


def _lines(run: Plan) -> Iterator[str]:
    name, recipe = run.recipe
    height, width = run.image_size or recipe.image_size
    yield f"{run.model}, {height}x{width} px, {run.data}, {run.epochs:g} epochs"
    yield _line("images seen", f"{run.images_seen:,.0f}")
    yield _line(
        "updates", f"{run.updates:,}", f"of {run.images_an_update} images; {name}"
    )
    yield from _shared_lines(run)
    core_days = run.counted().core_days(run.images_seen)
    yield _line("TPUv3-core-days", f"{core_days:,.1f}", "at the paper's utilization")
    read = run.images_a_second * IMAGE_BYTES / 1e9
    yield _line(
        "images per second",
        f"{run.images_a_second:,.0f}",
        f"{read:.2g} GB/s from storage, at {IMAGE_BYTES // 1000} kB per image",
    )
    rate = f"{DECODED_BY_A_CORE:,} images/s of 500x375 each"
    yield _line("decoding cores", f"{run.decoding_cores:,}", rate)
    holds = "weights and optimizer state in float32"
    yield _line("a checkpoint", f"{run.checkpoint / 2**30:.1f} GiB", holds)
    if run.euros is not None:
        yield _line("euros", f"{run.euros:,.0f}", f"at {run.price:g} per device-hour")


def _finetune_lines(run: FinetunePlan) -> Iterator[str]:
    name, recipe = run.recipe
    height, width = run.image_size or recipe.image_size
    yield (
        f"Table 4 on {run.devices} x {run.device} with {run.images:,} {run.data}: "
        f"{run.hours:,.1f} hours"
    )
    yield f"{run.model}, {height}x{width} px, {run.classes} classes, row {name}"
    rates = len(recipe.base_lr)
    how = f"{rates} learning rates, then the best of them" if rates > 1 else "one rate"
    yield _line("training runs", f"{run.trainings}", how)
    yield _line(
        "updates",
        f"{run.updates:,}",
        f"of {run.images_an_update} images; {recipe.steps:,} per run",
    )
    epochs = recipe.steps * run.images_an_update / run.images
    yield _line("epochs per run", f"{epochs:,.1f}")
    yield from _shared_lines(run)
    one = run.hours / run.trainings
    yield _line("hours with one rate", f"{one:,.1f}", "as with --lr 0.01")
    if run.euros is not None:
        yield _line("euros", f"{run.euros:,.0f}", f"at {run.price:g} per device-hour")


def _shared_lines(run: Plan | FinetunePlan) -> Iterator[str]:
    """Yields the lines that both kinds of plan have."""
    _, recipe = run.recipe
    device = device_of(run.device)
    yield _line("exaFLOPs", f"{run.exaflops:,.1f}")
    peak = f"{device.teraflops:g} TFLOP/s, {device.memory / 2**30:.0f} GiB"
    yield f"on {run.devices} x {run.device} ({peak} each), 16 bits, {recipe.optimizer}"
    share = run.images_an_update // run.devices
    yield _line("images per device", f"{share:,}")
    yield _fit_line("memory per device", run.fit(False), _room(device, False), share)
    remark = f"at {percent(run.utilisation, 1)} of the peak"
    if run.rematerializes:
        yield _fit_line("  rematerialized", run.fit(True), _room(device, True), share)
        remark += f"; rematerialized {run.rematerialized_hours:,.1f}"
    yield _line("hours", f"{run.hours:,.1f}", remark)
    least, greatest = MEASURED_UTILISATION
    fast, slow = run.hours_measured
    yield _line(
        "  reported shares",
        f"{fast:,.1f} to {slow:,.1f}",
        f"at {percent(greatest, 0)} to {percent(least, 0)}, the reported spread of "
        "ViT training runs",
    )
    yield _line("device-hours", f"{run.device_hours:,.1f}")


def _line(name: str, value: str, remark: str = "") -> str:
    return f"{name:24}{value:>18}   {remark}".rstrip()


def _fit_line(name: str, fit: MemoryFit | None, room: float, share: int) -> str:
    if fit is None:
        remark = f"one image needs more than {room / 2**30:.1f} GiB"
        return _line(name, "does not fit", remark)
    parts = "1 part" if fit.parts == 1 else f"{fit.parts} parts"
    images = share // fit.parts
    return _line(name, f"{fit.memory / 2**30:.1f} GiB", f"in {parts} of {images}")
