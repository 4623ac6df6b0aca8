"""What computes: the peaks of devices, and the share of one that the paper reached.

Table 2's unit is the TPUv3 core; the other devices are not in the paper. A peak is that
of dense products of bfloat16 with sums in float32; the T4 has float16 instead. A GPU's
memory is what its driver, nvidia-smi, says of it. What a device costs an hour is its
user's to say.
"""

import dataclasses

from keras_vit import paper

__all__ = ["DEVICES", "PAPERS_UTILISATION", "Device", "device_of", "paper_utilisation"]

DAY = 86_400  # Seconds.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """One device, as its maker has it (not in the paper).

    Attributes:
        teraflops: dense peak, 10^12 FLOP/s of bfloat16 (float16 of the T4).
        memory: in bytes.
        source: where the peak is from.
    """

    teraflops: float
    memory: int
    source: str


_MIB, _GIB = 2**20, 2**30
_TPU = "docs.cloud.google.com/tpu/docs/"
_NVIDIA = "NVIDIA's data sheet, as listed in glennklockwood.com/garden/processors/"

DEVICES = {
    # Half a chip, of 123 TFLOP/s and 32 GiB: the unit of Table 2.
    "TPUv3-core": Device(teraflops=61.5, memory=16 * _GIB, source=_TPU + "v3"),
    "TPUv4": Device(teraflops=275, memory=32 * _GIB, source=_TPU + "v4"),
    "A100-40GB": Device(teraflops=312, memory=40_960 * _MIB, source=_NVIDIA + "A100"),
    "A100-80GB": Device(teraflops=312, memory=81_920 * _MIB, source=_NVIDIA + "A100"),
    "H100": Device(teraflops=989, memory=81_559 * _MIB, source=_NVIDIA + "h100"),
    "H200": Device(
        teraflops=989,
        memory=143_771 * _MIB,
        source="hmc-tech.com/gpu/nvidia-h100-vs-nvidia-h200-sxm-vs-nvidia-gb200",
    ),
    "RTX4090": Device(
        teraflops=165.2,
        memory=24_564 * _MIB,
        source="waredb.com/processor/nvidia-geforce-rtx-4090",
    ),
    "T4": Device(
        teraflops=65,
        memory=15_360 * _MIB,
        source="sysrqmts.com/gpus/compare/nvidia-a100-sxm4-40-gb-vs-nvidia-tesla-t4",
    ),
}
"""Every `Device` by name, each with its source."""


def device_of(name: str) -> Device:
    """The device of a name, in any case (not in the paper).

    Args:
        name: of `DEVICES`: "H100".

    Returns:
        The `Device`.

    Raises:
        ValueError: if there is none.
    """
    for known, device in DEVICES.items():
        if known.lower() == name.lower():
            return device
    raise ValueError(f"Expected one of {', '.join(DEVICES)}. Received: device={name!r}")


def paper_utilisation(*models: str) -> float:
    """The share of a TPUv3 core's peak that models of Table 2 computed with.

    Table 6's exaFLOPs of 14 epochs of JFT-300M over what Table 2's core-days could have
    done. BiT-R152x4's FLOPs and epochs are in no table of the paper.

    Args:
        *models: "ViT-L/16", "ViT-H/14", or both.

    Returns:
        A share, in (0, 1].

    Examples:
        >>> round(paper_utilisation("ViT-L/16", "ViT-H/14"), 3)
        0.345
    """
    done = sum(paper.EXAFLOPS[model, 14] for model in models) * 1e18
    days = sum(paper.CORE_DAYS[model, "jft300m"] for model in models)
    return done / (days * DAY * DEVICES["TPUv3-core"].teraflops * 1e12)


PAPERS_UTILISATION = paper_utilisation("ViT-L/16", "ViT-H/14")  # 0.43 and 0.32.
"""0.345, that of Table 2's ViT-L/16 and ViT-H/14 together; see `paper_utilisation`."""
