"""Estimates the time of a training step on 8 to 512 devices.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --device h100 --devices 8 64 512 --storage 50

    step = max(compute, input) + the part of the all-reduce that is not hidden

- compute: three times the forward FLOPs of a device's share of the batch, divided by
  its peak times a utilization. The utilization is the paper's: the FLOPs of Table 2's
  models divided by those at peak in Table 2's core-days.
- input: the JPEGs of a batch, divided by the storage bandwidth for all devices.
- all-reduce: on a ring of N each device sends 2 (N - 1) / N times the gradients, four
  bytes per parameter, over its slowest link.

Not included: decoding, the lower utilization of small shares of a batch, evaluation,
checkpoints, and other traffic on the network.
"""

import argparse
import dataclasses

from keras_vit import paper
from keras_vit.configs import VIT_VARIANTS
from keras_vit.inspection import costs
from keras_vit.inspection.devices import DAY
from keras_vit.inspection.devices import DEVICES as PEAKS
from keras_vit.inspection.planning import CLASSES, IMAGE_BYTES
from keras_vit.recipes import FINETUNE, IMAGES, PRETRAIN, Recipe

TPU_V3_CORE, A100, H100 = (  # FLOP/s.
    PEAKS[name].teraflops * 1e12 for name in ("TPUv3-core", "A100-80GB", "H100")
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A device; bytes per second are in one direction."""

    peak: float  # FLOP/s in bfloat16, dense.
    link: float  # Bytes/s between two devices of a machine.
    machine: int  # Number of devices in a machine.
    network: float  # Bytes/s between two machines.

    def slowest(self, devices: int) -> float:
        """Returns the bytes/s of the slowest link in a ring of `devices`."""
        return self.link if devices <= self.machine else min(self.link, self.network)


DEVICES = {  # Sources are in docs/scaling.md.
    # One of a chip's four links: 340 TB/s of all-reduce by 1024 chips.
    "tpu-v3": Device(peak=TPU_V3_CORE, link=83e9, machine=8, network=83e9),
    "a100": Device(peak=A100, link=300e9, machine=8, network=12.5e9),
    "h100": Device(peak=H100, link=450e9, machine=8, network=200e9),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run: a model, a recipe and its data."""

    variant: str
    recipe: Recipe
    data: str

    @property
    def steps(self) -> float:
        """Updates."""
        recipe = self.recipe
        if recipe.total_steps is not None:
            return recipe.total_steps
        return (recipe.epochs or 0) * IMAGES[self.data] / recipe.batch_size

    @property
    def step_flops(self) -> float:
        """FLOPs of an update: 2 per multiply-add, 3 passes, a head of 1000 classes."""
        one_image = costs(self.variant, self.recipe.image_size)
        return 6 * self.recipe.batch_size * one_image.multiply_adds

    @property
    def flops(self) -> float:
        """FLOPs of the whole training run."""
        return self.steps * self.step_flops

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients in float32."""
        size, classes = self.recipe.image_size, CLASSES[self.data]
        return 4 * costs(self.variant, size, num_classes=classes).parameters


def ring_bytes(gradients: float, devices: int) -> float:
    """Returns the bytes a device sends in a ring all-reduce: scatter, then gather."""
    return 2 * (devices - 1) / devices * gradients


def pretraining(variant: str, data: str, epochs: int) -> Run:
    """Returns a row of Table 3."""
    row = f"{variant}-{data}"
    recipe = PRETRAIN.get(row) or PRETRAIN[f"{row}-{epochs}ep"]
    return Run(variant, dataclasses.replace(recipe, epochs=epochs), data)


# Table 2's TPUv3-core-days of pre-training. On JFT both have Table 6's 14 epochs (the
# accuracies are Table 5's). On ImageNet-21k it is 90 of Table 3's "30/90", because with
# 30 epochs the utilization would be a third of the others'.
TABLE_2 = {
    "ViT-H/14, JFT-300M": (
        pretraining("ViT-H/14", "jft300m", 14),
        paper.CORE_DAYS["ViT-H/14", "jft300m"],
    ),
    "ViT-L/16, JFT-300M": (
        pretraining("ViT-L/16", "jft300m", 14),
        paper.CORE_DAYS["ViT-L/16", "jft300m"],
    ),
    "ViT-L/16, ImageNet-21k": (
        pretraining("ViT-L/16", "imagenet21k", 90),
        paper.CORE_DAYS["ViT-L/16", "imagenet21k"],
    ),
}
TABLE_6 = {  # exaFLOPs of (model, epochs) on JFT-300M.
    row: exa for row, exa in paper.EXAFLOPS.items() if row[0] in VIT_VARIANTS
}
ROWS = (
    pretraining("ViT-B/16", "imagenet21k", 90),
    pretraining("ViT-L/16", "imagenet21k", 90),
    pretraining("ViT-H/14", "jft300m", 14),
    Run("ViT-B/16", FINETUNE["imagenet2012"], "imagenet2012"),
)


def utilization(*left_out: str) -> float:
    """Returns the share of its peak that a TPUv3 core reached in Table 2's rows."""
    rows = [row for name, row in TABLE_2.items() if name not in left_out]
    available = sum(days for _, days in rows) * DAY * TPU_V3_CORE
    return sum(run.flops for run, _ in rows) / available


def core_days(name: str) -> float:
    """Returns TPUv3-core-days of a row of Table 2, from the others' utilization."""
    run, _ = TABLE_2[name]
    return run.flops / (utilization(name) * TPU_V3_CORE * DAY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """The parts of an update, in seconds."""

    compute: float
    input: float
    all_reduce: float
    hidden: float  # The part of the all-reduce during the backward pass.

    @property
    def seconds(self) -> float:
        return max(self.compute, self.input) + self.all_reduce - self.hidden


def step(
    run: Run, devices: int, device: Device, storage: float, overlap: float
) -> Step:
    """Estimates an update of `run` on a number of devices.

    Args:
        run: training run.
        devices: N.
        device: kind of device.
        storage: bytes/s for all devices together.
        overlap: share of the backward pass, two thirds of the compute, during which an
            all-reduce may run.
    """
    compute = run.step_flops / (devices * device.peak * utilization())
    sent = ring_bytes(run.gradient_bytes, devices)
    all_reduce = sent / device.slowest(devices)
    return Step(
        compute=compute,
        input=run.recipe.batch_size * IMAGE_BYTES / storage,
        all_reduce=all_reduce,
        hidden=min(all_reduce, overlap * 2 / 3 * compute),
    )


def print_check() -> None:
    """Compares the model with Tables 6 and 2."""
    print(f"{'FLOPs':24}{'counted':>10}{'Table 6':>10}")
    for (variant, epochs), exa in TABLE_6.items():
        counted = pretraining(variant, "jft300m", epochs).flops / 1e18
        print(f"{f'{variant}, {epochs} epochs':24}{counted:>10.0f}{exa:>10}")
    columns = f"{'Table 2':>10}{'of peak':>10}{'from the others':>18}{'ratio':>8}"
    print(f"\n{'TPUv3-core-days':24}{columns}")
    for name, (run, days) in TABLE_2.items():
        share = run.flops / (days * DAY * TPU_V3_CORE)
        told = core_days(name)
        print(f"{name:24}{days:>10}{share:>10.2f}{told:>18.0f}{told / days:>8.2f}")


def print_row(run: Run, device: Device, options: argparse.Namespace) -> None:
    """Prints a training run on every number of devices."""
    recipe = run.recipe
    print(
        f"\n{run.variant}, {recipe.image_size[0]} px, batch {recipe.batch_size}, "
        f"{run.data}: {run.steps:,.0f} updates, "
        f"{run.gradient_bytes / 1e9:.2f} GB of gradients\n"
        f"{'':>7}{'ms of':>9}{'':>9}{'all-':>9}{'whole':>9}{'':>10}{'of it':>9}\n"
        f"{'devices':>7}{'compute':>9}{'input':>9}{'reduce':>9}{'step':>9}"
        f"{'images/s':>10}{'compute':>9}{'days':>9}{'device-days':>13}"
    )
    for devices in options.devices:
        told = step(run, devices, device, options.storage * 1e9, options.overlap)
        days = run.steps * told.seconds / DAY
        print(
            f"{devices:>7}{told.compute * 1e3:>9.1f}{told.input * 1e3:>9.1f}"
            f"{told.all_reduce * 1e3:>9.1f}{told.seconds * 1e3:>9.1f}"
            f"{recipe.batch_size / told.seconds:>10,.0f}"
            f"{told.compute / told.seconds:>9.2f}{days:>9.3g}{devices * days:>13,.1f}"
        )


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="tpu-v3",
        help="kind of device; a tpu-v3 is a core, two to a chip (default tpu-v3)",
    )
    parser.add_argument(
        "--devices",
        type=int,
        nargs="+",
        default=[8, 16, 32, 64, 128, 256, 512],
        metavar="N",
        help="numbers of devices (default 8 16 32 64 128 256 512)",
    )
    parser.add_argument(
        "--peak",
        type=float,
        metavar="TFLOP/s",
        help="peak of a device in bfloat16, instead of that of --device",
    )
    parser.add_argument(
        "--link",
        type=float,
        metavar="GB/s",
        help="bandwidth of the ring's slowest link, one way, instead of --device's",
    )
    parser.add_argument(
        "--storage",
        type=float,
        default=10,
        metavar="GB/s",
        help="storage bandwidth for all devices together (default 10)",
    )
    parser.add_argument(
        "--overlap",
        type=float,
        default=0,
        metavar="SHARE",
        help="share of the backward pass in which the all-reduce may run, 0 to 1 "
        "(default 0, the worst case: it waits for the last gradient)",
    )
    options = parser.parse_args(arguments)
    told = (*options.devices, options.peak, options.link, options.storage)
    if any(number is not None and number <= 0 for number in told):
        parser.error("devices and speeds are greater than 0")
    if not 0 <= options.overlap <= 1:
        parser.error(f"--overlap is from 0 to 1, not {options.overlap:g}")
    device = DEVICES[options.device]
    if options.peak is not None:
        device = dataclasses.replace(device, peak=options.peak * 1e12)
    if options.link is not None:
        link = options.link * 1e9
        device = dataclasses.replace(device, link=link, network=link)
    print_check()
    print(
        f"\n{options.device}: {device.peak / 1e12:g} TFLOP/s, of which "
        f"{utilization():.2f} is used; a ring over {device.link / 1e9:g} GB/s,\n"
        f"{device.network / 1e9:g} GB/s between machines of {device.machine}; "
        f"storage of {options.storage:g} GB/s, {IMAGE_BYTES // 1000} kB an image"
    )
    for run in ROWS:
        print_row(run, device, options)


if __name__ == "__main__":
    main()
