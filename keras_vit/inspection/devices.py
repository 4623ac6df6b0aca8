"""Peak FLOP/s and memory of devices, and the share of the peak reached in training.

Table 2's unit is the TPUv3 core. The peak is for dense products of bfloat16 with sums
in float32; for the T4, which has no bfloat16, of float16. NVIDIA's data sheets print
twice the number if they count sparsity. GPU memory is as printed by nvidia-smi.
"""

import dataclasses

from keras_vit import paper

__all__ = [
    "DEVICES",
    "MEASURED_UTILISATION",
    "PAPERS_UTILISATION",
    "Device",
    "device_of",
    "paper_utilisation",
]

DAY = 86_400  # Seconds.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A device with its maker's numbers.

    Attributes:
        teraflops: dense peak, 10^12 FLOP/s of bfloat16 (float16 for the T4).
        memory: memory in bytes.
        source: publication of the peak.
    """

    teraflops: float
    memory: int
    source: str


_MIB, _GIB = 2**20, 2**30
_TPU = "docs.cloud.google.com/tpu/docs/"
_NVIDIA = "NVIDIA's data sheet, as listed in glennklockwood.com/garden/processors/"

DEVICES = {
    # Half a chip of 123 TFLOP/s and 32 GiB: the unit of Table 2.
    "TPUv3-core": Device(teraflops=61.5, memory=16 * _GIB, source=_TPU + "v3"),
    "TPUv4": Device(teraflops=275, memory=32 * _GIB, source=_TPU + "v4"),
    "TPUv5e": Device(teraflops=197, memory=16 * _GIB, source=_TPU + "v5e"),
    "TPUv5p": Device(teraflops=459, memory=95 * _GIB, source=_TPU + "v5p"),
    "TPUv6e": Device(teraflops=918, memory=32 * _GIB, source=_TPU + "v6e"),
    "A100-40GB": Device(teraflops=312, memory=40_960 * _MIB, source=_NVIDIA + "A100"),
    "A100-80GB": Device(teraflops=312, memory=81_920 * _MIB, source=_NVIDIA + "A100"),
    "H100": Device(teraflops=989, memory=81_559 * _MIB, source=_NVIDIA + "h100"),
    "H200": Device(
        teraflops=989,
        memory=143_771 * _MIB,
        source="hmc-tech.com/gpu/nvidia-h100-vs-nvidia-h200-sxm-vs-nvidia-gb200",
    ),
    "B200": Device(  # HGX, 1,000 W: 4.5 PFLOP/s with sparsity.
        teraflops=2250, memory=183_359 * _MIB, source=_NVIDIA + "B200"
    ),
    "L4": Device(  # 242 TFLOP/s with sparsity.
        teraflops=121,
        memory=23_034 * _MIB,
        source="NVIDIA's data sheet, nvidia.com/en-us/data-center/l4",
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


_SHORT = {"a100": "A100-40GB"}  # The smaller one, which Colab has.


def device_of(name: str) -> Device:
    """Returns the device with a name, in any case.

    Args:
        name: a name in `DEVICES`, such as "H100"; "A100" is the one with 40 GB.

    Returns:
        The `Device`.

    Raises:
        ValueError: if the name is unknown.
    """
    name_in_full = _SHORT.get(name.lower(), name).lower()
    for known, device in DEVICES.items():
        if known.lower() == name_in_full:
            return device
    raise ValueError(f"Expected one of {', '.join(DEVICES)}. Received: device={name!r}")


def paper_utilisation(*models: str) -> float:
    """Returns the share of a TPUv3 core's peak that models of Table 2 reached.

    It is Table 6's exaFLOPs for 14 epochs of JFT-300M, divided by the FLOPs at peak in
    Table 2's core-days. The paper has no FLOPs and epochs for BiT-R152x4.

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
"""0.345, the share of Table 2's ViT-L/16 and ViT-H/14; see `paper_utilisation`."""

# Reported to this project: 0.23 to 0.29 on an H100, 0.44 on an A100. The paper's two,
# 0.32 and 0.43, lie between them. Measured here (docs/performance.md, "On a GPU"): 0.34
# on an H100 with JAX and 0.23 with torch, for ViT-B/16 without an input pipeline.
MEASURED_UTILISATION = (0.23, 0.44)
"""Lowest and highest utilization reported for well-tuned training of ViTs."""
