"""Table 4 as values: how each data set is fine-tuned (B.1.1). Standard library only."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row of Table 4 with the settings its caption shares.

    SGD with momentum, cosine decay, no weight decay, gradients clipped at global norm
    1, the learning rate chosen on a held-out share of the training set.
    """

    total_steps: int  # Updates.
    base_lr: tuple[float, ...]  # Swept on the held-out share when there are several.
    held_out: float  # Share of the training set the sweep is judged on.
    warmup_steps: int  # vit_jax/configs/common.py, augreg.py; not in the paper.
    batch_size: int = 512
    image_size: tuple[int, int] = (384, 384)  # (H, W), pixels.
    decay: Literal["cosine", "linear"] = "cosine"
    momentum: float = 0.9
    clip_norm: float | None = 1.0
    augment: Literal["inception", "flip", "none"] = "inception"  # input_pipeline.py.
    freeze: bool = False  # Train the head alone.
    ema: float | None = None  # Polyak averaging; Table 2's ImageNet rows use 0.9999.
    accumulation_steps: int = 1  # Parts a batch is cut in, where memory is short.

    def __post_init__(self) -> None:
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                "Expected batch_size to be a multiple of accumulation_steps. Received: "
                f"batch_size={self.batch_size}, "
                f"accumulation_steps={self.accumulation_steps}"
            )
        if self.total_steps < 1 or not self.base_lr:
            raise ValueError(
                "Expected at least one step and one learning rate. Received: "
                f"total_steps={self.total_steps}, base_lr={self.base_lr}"
            )
        if len(self.base_lr) > 1 and not 0 < self.held_out < 1:
            raise ValueError(
                "Expected a share between 0 and 1 to judge several learning rates on. "
                f"Received: held_out={self.held_out}, base_lr={self.base_lr}"
            )


_SWEEP = (0.001, 0.003, 0.01, 0.03)

FINETUNE = {  # Table 4; the warm-ups are those of the official configs.
    "imagenet2012": Recipe(
        total_steps=20_000,
        base_lr=(0.003, 0.01, 0.03, 0.06),
        held_out=0.01,
        warmup_steps=500,
    ),
    "cifar100": Recipe(
        total_steps=10_000, base_lr=_SWEEP, held_out=0.02, warmup_steps=500
    ),
    "cifar10": Recipe(
        total_steps=10_000, base_lr=_SWEEP, held_out=0.02, warmup_steps=500
    ),
    "oxford_iiit_pet": Recipe(
        total_steps=500, base_lr=_SWEEP, held_out=0.1, warmup_steps=100
    ),
    "oxford_flowers102": Recipe(
        total_steps=500, base_lr=_SWEEP, held_out=0.1, warmup_steps=100
    ),
    "vtab": Recipe(total_steps=2_500, base_lr=(0.01,), held_out=0.2, warmup_steps=500),
}
