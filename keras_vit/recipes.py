"""Tables 3 and 4 and related recipes as values. Standard library only.

`FINETUNE` is Table 4. `PRETRAIN` is Table 3 and the recipes of the other published
checkpoints. `bit_hyperrule` and `augreg` compute a recipe for a task. Use
`dataclasses.replace` to change one. Comments cite sources outside the tables.
"""

import dataclasses
import operator
from typing import Any, Literal

from keras_vit import arguments, recipe_fields

__all__ = [
    "AUGREG",
    "FINETUNE",
    "IMAGES",
    "PRETRAIN",
    "Recipe",
    "augreg",
    "bit_hyperrule",
    "find",
    "finetune_row",
    "source",
]

_UPDATE_STAYS = ("accumulation_steps", "remat")
# Fields and the optimizers that use them.
_OPTIMIZERS_OF = {
    "momentum": ("sgd", "adafactor"),
    "beta1": ("adam",),
    "beta2": ("adam", "adafactor"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The training of a model: one row of Table 3 or 4, with the table's caption.

    The defaults are Table 4's: SGD with momentum, cosine decay, no weight decay,
    gradients clipped at global norm 1, and a learning rate chosen on a held-out share
    of the training set.

    Attributes:
        base_lr: learning rate after the warm-up (Tables 3 and 4), or several to compare
            on held-out training images.
        total_steps: number of updates (Table 4's "Steps"); set either this or `epochs`.
        epochs: passes over all training images (Table 3's "Epochs"); `for_images`
            converts them to steps.
        held_out: share of the training set for the sweep of several rates (B.1.1),
            above 0 and below 1.
        warmup_steps: updates in which the learning rate rises from 0: 10k in Table 3;
            for Table 4 from vit_jax/configs.
        batch_size: images per update: 4096 in Table 3, 512 in Table 4.
        image_size: height and width (H, W) in pixels: 224 in Table 3, 384 in Table 4.
        decay: "cosine" (Table 4), "linear" (Table 3) or "staircase" (BiT-HyperRule): a
            factor of 0.1 at each boundary except the first.
        boundaries: boundaries of a "staircase": updates, the first of which ends the
            warm-up; or shares of all updates, in (0, 1), after `warmup_steps`.
        optimizer: "sgd" (Table 4), "adam" (Table 3) or "adafactor" (big_vision).
        momentum: momentum of "sgd" and "adafactor", in [0, 1).
        beta1: decay of the first moment for "adam" (Table 3), in [0, 1).
        beta2: decay of the second moment for "adam" (Table 3), in [0, 1); the maximum
            decay for "adafactor" (arXiv:2106.04560).
        weight_decay: decay of kernels, relative to the learning rate (Table 3's "Weight
            decay"). `wd` in big_vision's configs is its product with the rate.
        momentum_dtype: "float32" or "bfloat16"; vit_jax/train.py uses bfloat16 for SGD,
            big_vision for all optimizers.
        layer_decay: BEiT's factor between the rates of successive layers; see
            `optim.layer_rates`. None: one rate.
        clip_norm: largest global norm of the gradients (Tables 3 and 4); None: any.
        ema: factor of Polyak averaging, 0.9999 in Table 2's ImageNet rows (4.1); None:
            no averaging. The average starts from the weights after the first update
            (Keras's rule). An average that starts from the initial weights differs by
            ema^T times the first update after T updates. With a warm-up there is no
            difference, because its first rate is 0.
        sam_rho: radius of SAM (arXiv:2010.01412), or None.
        accumulation_steps: number of parts into which a batch is split, to save memory.
        remat: whether to keep only the inputs of blocks in training and rematerialize
            the rest, to save memory.
        freeze: whether to train only the head.
        lora_rank: rank of the LoRA (arXiv:2106.09685) that is trained in the encoder,
            together with the head; None: no LoRA. At most one of `freeze`, `lora_rank`
            and `layer_decay`.
        loss: "softmax", or "sigmoid" (one for every class, as in big_vision).
        label_smoothing: share of the labels spread over all classes (4.3), in [0, 1);
            for the softmax.
        head_bias_init: initial value of the head's bias (big_vision's
            `init_head_bias`). For this and the next two fields, which change the model,
            None keeps the model's value.
        dropout_rate: Table 3's "Dropout", in [0, 1), or None.
        stochastic_depth: drop rate of the last block, in [0, 1) (AugReg, section 3.3),
            or None.
        augment: augmentation of training images: "inception" crops and flips (vit_jax);
            "crop" is BiT's crop with flips; "crop_only", without flips, is for VTAB's
            labels of direction; "flip"; "none".
        resize: (H, W) in pixels before a "crop" (BiT-HyperRule), at least `image_size`;
            None for other augmentations. `at_size` scales it with the image size.
        randaugment: (layers, magnitude) of RandAugment (AugReg), or None.
        mixup: both parameters of mixup's beta distribution (AugReg, BiT); 0: no mixup.
        cutmix: both parameters of CutMix's beta distribution (arXiv:1905.04899).
        random_erasing: probability of Random Erasing, in [0, 1] (arXiv:1708.04896).

    Raises:
        ValueError: if a value is not valid for its field, two fields contradict each
            other, or the optimizer would ignore a `momentum`, `beta1` or `beta2` that
            is not the default.
    """

    base_lr: tuple[float, ...]
    total_steps: int | None = None
    epochs: float | None = None
    held_out: float = 0.0
    warmup_steps: int = 0
    batch_size: int = 512
    image_size: tuple[int, int] = (384, 384)
    decay: Literal["cosine", "linear", "staircase"] = "cosine"
    boundaries: tuple[float, ...] = ()

    optimizer: Literal["sgd", "adam", "adafactor"] = "sgd"
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"
    layer_decay: float | None = None
    clip_norm: float | None = 1.0
    ema: float | None = None
    sam_rho: float | None = None
    accumulation_steps: int = 1
    remat: bool = False
    freeze: bool = False
    lora_rank: int | None = None

    loss: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0
    head_bias_init: float | None = None
    dropout_rate: float | None = None
    stochastic_depth: float | None = None

    augment: Literal["inception", "crop", "crop_only", "flip", "none"] = "inception"
    resize: tuple[int, int] | None = None
    randaugment: tuple[int, int] | None = None
    mixup: float = 0.0
    cutmix: float = 0.0
    random_erasing: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # Values may come from JSON or NumPy.
            plain = recipe_fields.plain(getattr(self, field.name))
            object.__setattr__(self, field.name, plain)
        recipe_fields.check(vars(self))
        self._check_length()
        self._check_together()
        self._check_unused()

    def _check_length(self) -> None:
        self._expect(
            self.batch_size % self.accumulation_steps == 0,
            "batch_size to be a multiple of accumulation_steps",
            "batch_size",
            "accumulation_steps",
        )
        self._expect(
            (self.total_steps is None) != (self.epochs is None),
            "either total_steps or epochs",
            "total_steps",
            "epochs",
        )
        self._expect(
            len(self.base_lr) == 1 or self.held_out > 0,
            "a share of the training set between 0 and 1 to compare several learning "
            "rates on",
            "held_out",
            "base_lr",
        )

    def _check_together(self) -> None:
        self._expect(
            (self.decay == "staircase") == bool(self.boundaries),
            "boundaries for decay='staircase', and only for it",
            "decay",
            "boundaries",
        )
        self._expect(
            not (self.boundaries and self.warmup_steps) or self._has_shares,
            "warmup_steps=0 with boundaries in updates (the first ends the warm-up)",
            "warmup_steps",
            "boundaries",
        )
        self._expect(
            self.augment.startswith("crop") == (self.resize is not None),
            "resize for augment='crop' or 'crop_only', and only for them",
            "augment",
            "resize",
        )
        self._expect(
            self.resize is None or all(map(operator.ge, self.resize, self.image_size)),
            "resize of at least image_size, the size of the crop (Recipe.at_size "
            "changes both)",
            "resize",
            "image_size",
        )
        self._expect(
            self.loss == "softmax" or not self.label_smoothing,
            "label_smoothing with loss='softmax'",
            "loss",
            "label_smoothing",
        )
        adapted = {
            "freeze": self.freeze,
            "lora_rank": self.lora_rank is not None,
            "layer_decay": self.layer_decay is not None,
        }
        chosen = [field for field, on in adapted.items() if on]
        self._expect(
            len(chosen) < 2, "at most one of freeze, lora_rank, layer_decay", *adapted
        )

    def _check_unused(self) -> None:
        """Raises for a value that the optimizer would ignore."""
        for field in dataclasses.fields(self):
            users = _OPTIMIZERS_OF.get(field.name, (self.optimizer,))
            self._expect(
                self.optimizer in users or getattr(self, field.name) == field.default,
                f"{field.name} only with optimizer {' or '.join(map(repr, users))}, "
                f"otherwise its default, {field.default}",
                "optimizer",
                field.name,
            )

    def _expect(self, holds: bool, law: str, *fields: str) -> None:
        if not holds:
            received = ", ".join(
                f"{field}={getattr(self, field)!r}" for field in fields
            )
            raise ValueError(f"Expected {law}. Received: {received}")

    @property
    def freezes(self) -> bool:
        """Whether only the head is trained, or the head and LoRA."""
        return self.freeze or self.lora_rank is not None

    @property
    def steps(self) -> int:
        """`total_steps`, in updates.

        Raises:
            ValueError: if the recipe has epochs instead.
        """
        if self.total_steps is None:
            raise ValueError(
                "Expected a recipe with total_steps. Received: "
                f"epochs={self.epochs}. Convert them with Recipe.for_images(count)"
            )
        return self.total_steps

    @property
    def _has_shares(self) -> bool:
        return bool(self.boundaries) and all(0 < at < 1 for at in self.boundaries)

    @property
    def staircase(self) -> tuple[int, ...]:
        """The end of the warm-up and each drop of a "staircase", in updates.

        Raises:
            ValueError: if the recipe has epochs instead of steps, or too few updates
                for the shares in `boundaries`.
        """
        if not self._has_shares:
            return tuple(int(update) for update in self.boundaries)
        falls = [round(share * self.steps) for share in self.boundaries]
        updates = (max(self.warmup_steps, 1), *falls)
        self._expect(
            list(updates) == sorted(set(updates)),
            "a warm-up that ends before the first of boundaries, and boundaries at "
            "different updates",
            "total_steps",
            "warmup_steps",
            "boundaries",
        )
        return updates

    def identity(self) -> dict[str, Any]:
        """The fields that define a training run, as plain values: all but two.

        `accumulation_steps` and `remat` affect only memory and time. A run can resume
        with other values, such as on a different number of devices (B.1.1's batch
        stays 512).

        Returns:
            The values by field.
        """
        kept = dataclasses.asdict(self)
        return {
            name: value for name, value in kept.items() if name not in _UPDATE_STAYS
        }

    def for_images(self, count: int) -> "Recipe":
        """The recipe with Table 3's epochs converted to steps, for a training set.

        Args:
            count: number of training images; see `IMAGES`.

        Returns:
            A recipe with `total_steps`, rounded to the nearest step as in big_vision
            (utils.py, `steps`), at least 1. A recipe with steps is returned unchanged.

        Raises:
            ValueError: if there are no images.

        Examples:
            >>> recipe = PRETRAIN["ViT-B/16-imagenet21k"]
            >>> recipe.for_images(IMAGES["imagenet21k"]).steps  # 90 epochs.
            311948
        """
        if count < 1:
            raise ValueError(f"Expected at least one image. Received: count={count}")
        if self.epochs is None:
            return self
        steps = max(1, round(self.epochs * count / self.batch_size))
        return dataclasses.replace(self, total_steps=steps, epochs=None)

    def at_size(self, image_size: tuple[int, int]) -> "Recipe":
        """The recipe for images of a different size, with the same relative crops.

        Args:
            image_size: (H, W) in pixels.

        Returns:
            A copy in which each side of `resize`, if set, is scaled by the same ratio
            as that side of `image_size` and rounded to whole pixels.

        Raises:
            ValueError: if the size is not two positive integers.

        Examples:
            >>> recipe = bit_hyperrule(1000, 32 * 32)  # Crops 128 px out of 160.
            >>> recipe.at_size((32, 32)).resize
            (40, 40)
        """
        if self.resize is None:
            return dataclasses.replace(self, image_size=image_size)
        # First without `resize`, which must be at least as large as the new size.
        plain = dataclasses.replace(
            self, image_size=image_size, augment="none", resize=None
        )
        height, width = (
            round(resize * new / old)
            for resize, old, new in zip(
                self.resize, self.image_size, plain.image_size, strict=True
            )
        )
        return dataclasses.replace(plain, augment=self.augment, resize=(height, width))

    def model_options(self) -> dict[str, float]:
        """The fields of a `ViTConfig` that the recipe sets (Table 3: dropout).

        Returns:
            Values by field, for `dataclasses.replace`, without those that are None.

        Examples:
            >>> import dataclasses, keras_vit
            >>> recipe = keras_vit.recipes.PRETRAIN["ViT-B/16-imagenet21k"]
            >>> config = dataclasses.replace(
            ...     keras_vit.VARIANTS["ViT-B/16"], **recipe.model_options()
            ... )
            >>> config.dropout_rate
            0.1
        """
        options = {
            "dropout_rate": self.dropout_rate,
            "stochastic_depth_rate": self.stochastic_depth,
            "head_bias_init": self.head_bias_init,
        }
        return {name: value for name, value in options.items() if value is not None}


_SWEEP = (0.001, 0.003, 0.01, 0.03)

FINETUNE = {
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
"""Table 4 (B.1.1) as `Recipe`s, by the data set's name in TFDS.

"vtab" is for each of the 19 tasks. The warm-ups are those of the official configs
(vit_jax). "imagenet2012-512" and "imagenet2012-518" are for ViT-L/16 and ViT-H/14 in
Table 2 (4.1), with 512 and 518 pixels per side and Polyak averaging.
"""
FINETUNE |= {
    f"imagenet2012-{side}": dataclasses.replace(
        FINETUNE["imagenet2012"], image_size=(side, side), ema=0.9999
    )
    for side in (512, 518)
}

IMAGES = {
    "jft300m": 303_000_000,
    "imagenet21k": 14_197_122,
    "imagenet2012": 1_281_167,
}
"""Training images by data set, from Table 6, image-net.org (2011) and ILSVRC-2012."""

# Table 3's caption: Adam, batches of 4096, 10k steps of warm-up, 224 px, gradients
# clipped on ImageNet only. It does not name the loss. Images with several labels (JFT,
# ImageNet-21k) have the sigmoid here, with the head's bias of big_vision's vit_i21k.py;
# others have the softmax.
_TABLE_3 = Recipe(
    epochs=7,
    base_lr=(8e-4,),
    optimizer="adam",
    batch_size=4096,
    warmup_steps=10_000,
    image_size=(224, 224),
    decay="linear",
    weight_decay=0.1,
    clip_norm=None,
    dropout_rate=0.0,
)
_MANY_LABELS: dict[str, Any] = {"loss": "sigmoid", "head_bias_init": -10.0}


def _table_3() -> dict[str, Recipe]:
    """Every model of every row, as MODEL-DATA, or MODEL-DATA-EPOCHSep for "7/14"."""
    jft = (
        (("ViT-B/16", "ViT-B/32"), (7,), 8e-4),
        (("ViT-L/32",), (7,), 6e-4),
        (("ViT-L/16",), (7, 14), 4e-4),
        (("ViT-H/14",), (14,), 3e-4),
        (("R50x1", "R50x2"), (7,), 1e-3),
        (("R101x1",), (7,), 8e-4),
        (("R152x1", "R152x2"), (7,), 6e-4),
        (("R50+ViT-B/16", "R50+ViT-B/32"), (7,), 8e-4),
        (("R50+ViT-L/32",), (7,), 2e-4),
        (("R50+ViT-L/16",), (7, 14), 4e-4),
    )
    imagenet21k = (
        (("ViT-B/16", "ViT-B/32"), (90,), 1e-3),
        (("ViT-L/16", "ViT-L/32"), (30, 90), 1e-3),
    )
    # "ViT-*": the models with ImageNet pre-training in Table 5.
    imagenet = ((("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"), (300,), 3e-3),)
    regularized: dict[str, Any] = {"weight_decay": 0.03, "dropout_rate": 0.1}
    scratch: dict[str, Any] = {
        "decay": "cosine",
        "weight_decay": 0.3,
        "clip_norm": 1.0,
        "dropout_rate": 0.1,
    }
    rows = {}
    for data, table, changes in (
        ("jft300m", jft, _MANY_LABELS),
        ("imagenet21k", imagenet21k, _MANY_LABELS | regularized),
        ("imagenet2012", imagenet, scratch),
    ):
        for models, lengths, base_lr in table:
            for model in models:
                for epochs in lengths:
                    suffix = f"-{epochs}ep" if len(lengths) > 1 else ""
                    rows[f"{model}-{data}{suffix}"] = dataclasses.replace(
                        _TABLE_3, epochs=epochs, base_lr=(base_lr,), **changes
                    )
    return rows


# AugReg (arXiv:2106.10270), section 3.2; RANDAUG_DEF and MIXUP_DEF in big_vision's
# configs/vit_i1k.py. Magnitude 0 is "actually not nothing".
_AUGREG: dict[str, dict[str, Any]] = {
    "none": {},
    "light1": {"randaugment": (2, 0)},
    "light2": {"randaugment": (2, 10), "mixup": 0.2},
    "medium1": {"randaugment": (2, 15), "mixup": 0.2},
    "medium2": {"randaugment": (2, 15), "mixup": 0.5},
    "strong1": {"randaugment": (2, 20), "mixup": 0.5},
    "strong2": {"randaugment": (2, 20), "mixup": 0.8},
}


def augreg(
    augmentation: str,
    *,
    regularization: bool = False,
    data: str = "imagenet21k",
    weight_decay: float = 0.1,
    epochs: float = 300,
) -> Recipe:
    """A recipe of AugReg's grid (arXiv:2106.10270, section 3; big_vision's configs).

    Args:
        augmentation: "none", "light1", "light2", "medium1", "medium2", "strong1" or
            "strong2".
        regularization: whether dropout and stochastic depth are both 0.1, or both 0.
        data: "imagenet21k" or "imagenet2012".
        weight_decay: weight decay relative to the learning rate; 0.1 or 0.03 in the
            published checkpoints' names. big_vision's `wd` of 1e-4 is 0.1 of its 1e-3.
        epochs: number of epochs; 300 for the checkpoints, also 30 in the study.

    Returns:
        A `Recipe` with epochs: Adam, batches of 4096, 224 px, the sigmoid loss.

    Raises:
        ValueError: if the augmentation or the data set is unknown.
    """
    heads = {"imagenet21k": -10.0, "imagenet2012": -6.9}  # vit_i21k.py, vit_i1k.py.
    if augmentation not in _AUGREG or data not in heads:
        raise ValueError(
            f"Expected augmentation to be one of {', '.join(_AUGREG)}, and data one of "
            f"{', '.join(heads)}. Received: augmentation={augmentation!r}, "
            f"data={data!r}"
        )
    rate = 0.1 if regularization else 0.0
    return Recipe(
        epochs=epochs,
        base_lr=(1e-3,),
        optimizer="adam",
        momentum_dtype="bfloat16",
        batch_size=4096,
        warmup_steps=10_000,
        image_size=(224, 224),
        weight_decay=weight_decay,
        loss="sigmoid",
        head_bias_init=heads[data],
        dropout_rate=rate,
        stochastic_depth=rate,
        **_AUGREG[augmentation],
    )


AUGREG: dict[str, Recipe] = {
    f"augreg-{data}-{augmentation}{suffix}": augreg(
        augmentation, regularization=bool(suffix), data=data
    )
    for data in ("imagenet21k", "imagenet2012")
    for augmentation in _AUGREG
    for suffix in ("", "-reg")
}
"""AugReg's grid (arXiv:2106.10270) as `Recipe`s: 28 recipes of `augreg`, 300 epochs.

"augreg-imagenet21k-medium1-reg" is augmentation "medium1" with dropout and stochastic
depth. Names without "-reg" have neither. All are in `PRETRAIN`.
"""


def bit_hyperrule(num_images: int, image_area: int) -> Recipe:
    """BiT-HyperRule (arXiv:1912.11370, section 3.3; big_transfer, bit_hyperrule.py).

    Args:
        num_images: number of training images.
        image_area: H * W of the images, in pixels.

    Returns:
        A `Recipe` with steps and the learning rate 0.003. Crops are 128 px (of 160) for
        images smaller than 96 x 96, else 480 px (of 512). Mixup is used for 20,000
        images or more.

    Raises:
        ValueError: if either is not positive.
    """
    if num_images < 1 or image_area < 1:
        raise ValueError(
            "Expected positive num_images and image_area. Received: "
            f"num_images={num_images}, image_area={image_area}"
        )
    if num_images < 20_000:
        boundaries: tuple[int, ...] = (100, 200, 300, 400, 500)
    elif num_images < 500_000:
        boundaries = (500, 3_000, 6_000, 9_000, 10_000)
    else:
        boundaries = (500, 6_000, 12_000, 18_000, 20_000)
    resize, crop = (160, 128) if image_area < 96 * 96 else (512, 480)
    return Recipe(
        total_steps=boundaries[-1],
        base_lr=(0.003,),
        decay="staircase",
        boundaries=boundaries[:-1],
        clip_norm=None,
        augment="crop",
        resize=(resize, resize),
        image_size=(crop, crop),
        mixup=0.1 if num_images >= 20_000 else 0.0,
    )


PRETRAIN: dict[str, Recipe] = {
    **_table_3(),
    # big_vision's configs/vit_s16_i1k.py (arXiv:2205.01580): 76.5 % on ImageNet. The
    # model averages its tokens (classifier="gap", position="sincos2d"); `wd` is 1e-4.
    "vit_s16_i1k": Recipe(
        epochs=90,
        base_lr=(1e-3,),
        optimizer="adam",
        momentum_dtype="bfloat16",
        batch_size=1024,
        warmup_steps=10_000,
        image_size=(224, 224),
        weight_decay=0.1,
        randaugment=(2, 10),
        mixup=0.2,
    ),
}
"""Pre-trainings as `Recipe`s: Table 3 (B.1), B.1.2, and others; see `source`.

Table 3's names are MODEL-DATA, such as "ViT-B/16-imagenet21k", and MODEL-DATA-14ep for
"7/14" epochs. "R50x1-jft300m-sgd" and "R152x2-jft300m-sgd" are the SGD columns of Table
7; its Adam columns are Table 3's "R50x1-jft300m" and "R152x2-jft300m". The others are
from B.1.2 ("masked-patches"), arXiv:2106.01548 ("...-sam"), arXiv:2106.10270 (`AUGREG`)
and big_vision ("vit_s16_i1k"). "cifar10-scratch" is ours.
"""
# The `sam` checkpoints (arXiv:2106.01548): Table 3's last row with SAM. The radius is
# that of the SAM paper (arXiv:2010.01412), not tuned for a ViT.
PRETRAIN |= {
    f"{model}-imagenet2012-sam": dataclasses.replace(
        PRETRAIN[f"{model}-imagenet2012"], sam_rho=0.05
    )
    for model in ("ViT-B/16", "ViT-B/32")
}
PRETRAIN |= AUGREG
# Table 7 (D.1) has its two ResNets with Adam (Table 3's rows) and with SGD and "the
# hyperparameters recommended by Kolesnikov et al. (2020)", for 7 epochs. BiT
# (arXiv:1912.11370, section 3.3) has momentum 0.9, a rate of 0.03 times the batch over
# 256, 5,000 updates of warm-up, weight decay 1e-4, and on JFT a tenth of the rate after
# epochs 10, 23, 30 and 37 of 40. D.1 does not state them for 7 epochs; the same shares
# are used. BiT's decay is part of the loss, so momentum turns it into 1e-4 / (1 - 0.9),
# which is also the decoupled decay in big_vision's configs/bit_i21k.py.
PRETRAIN |= {
    f"{model}-jft300m-sgd": Recipe(
        epochs=7,
        base_lr=(0.03 * 4096 / 256,),
        momentum=0.9,
        batch_size=4096,
        warmup_steps=5_000,
        image_size=(224, 224),
        decay="staircase",
        boundaries=tuple(epoch / 40 for epoch in (10, 23, 30, 37)),
        weight_decay=1e-3,
        clip_norm=None,
        **_MANY_LABELS,
    )
    for model in ("R50x1", "R152x2")
}
# 4.6 and B.1.2: ViT-B/16 on JFT-300M, "ca. 14 epochs"; gains flatten after 100k steps.
# Weight decay and clipping are not mentioned there and not used.
PRETRAIN["masked-patches"] = Recipe(
    total_steps=1_000_000,
    base_lr=(2e-4,),
    optimizer="adam",
    batch_size=4096,
    warmup_steps=10_000,
    image_size=(224, 224),
    clip_norm=None,
)
# Ours, for a few thousand images of 32 px: Table 3's Adam, with a smaller beta2 for the
# few steps. docs/howto/pretrain.md reports its accuracy.
PRETRAIN["cifar10-scratch"] = Recipe(
    epochs=8,
    base_lr=(2e-3,),
    optimizer="adam",
    beta2=0.95,
    batch_size=64,
    warmup_steps=60,
    image_size=(32, 32),
    weight_decay=0.1,
    dropout_rate=0.0,
    augment="flip",
)


def finetune_row(data: str) -> str:
    """The name of Table 4's row for a data set; oxford_flowers102 if it has none.

    Args:
        data: a TFDS name, with or without splits, or a path.

    Returns:
        A key of `FINETUNE`.

    Examples:
        >>> finetune_row("cifar100:train[:10%]"), finetune_row("photos/")
        ('cifar100', 'oxford_flowers102')
    """
    own = data.split(":")[0]
    return own if own in FINETUNE else "oxford_flowers102"


_LISTED = 6  # The rows of Table 3 on ImageNet-21k.


def find(name: str) -> Recipe:
    """The recipe with a name in `FINETUNE` (Table 4) or `PRETRAIN` (Table 3).

    Args:
        name: a key of either.

    Returns:
        The `Recipe`; use `dataclasses.replace` to change a copy.

    Raises:
        ValueError: if there is none.
    """
    if name in FINETUNE:
        return FINETUNE[name]
    if name in PRETRAIN:
        return PRETRAIN[name]
    names = (*FINETUNE, *PRETRAIN)
    rows = [row for row in names if name.lower() in row.lower()]
    hint = arguments.did_you_mean(arguments.similar(name, names))
    if rows:
        listed, more = rows[:_LISTED], len(rows) - _LISTED
        hint = f" Names that contain it: {', '.join(listed)}"
        hint += f" and {more} more" if more > 0 else ""
    raise ValueError(
        "Expected the name of a recipe in FINETUNE (Table 4) or PRETRAIN (Table 3). "
        f"Received: {name!r}.{hint}"
    )


def source(name: str) -> str:
    """The source of a recipe's numbers.

    Args:
        name: a key of `FINETUNE` or `PRETRAIN`.

    Returns:
        The paper with the table or section, and the code for values it does not state.

    Raises:
        ValueError: if there is no recipe with this name.

    Examples:
        >>> source("ViT-B/16-imagenet21k")
        'arXiv:2010.11929v2, Table 3 (B.1)'
    """
    find(name)
    if name in AUGREG:
        return (
            "arXiv:2106.10270, section 3 (AugReg); big_vision, configs/vit_i21k.py and "
            "vit_i1k.py"
        )
    if name == "vit_s16_i1k":
        return "arXiv:2205.01580; big_vision, configs/vit_s16_i1k.py"
    if name == "masked-patches":
        return "arXiv:2010.11929v2, B.1.2 (4.6)"
    if name == "cifar10-scratch":
        return "ours, after arXiv:2010.11929v2, Table 3 (B.1); docs/howto/pretrain.md"
    if name.endswith("-sgd"):
        return (
            "arXiv:2010.11929v2, Table 7 (D.1); BiT (arXiv:1912.11370), section 3.3; "
            "big_vision, configs/bit_i21k.py"
        )
    if name.endswith("-sam"):
        return "arXiv:2106.01548; arXiv:2010.11929v2, Table 3; rho: arXiv:2010.01412"
    if name in PRETRAIN:
        return "arXiv:2010.11929v2, Table 3 (B.1)"
    if name.startswith("imagenet2012-"):
        return "arXiv:2010.11929v2, Tables 4 (B.1.1) and 2 (4.1: resolution, averaging)"
    return "arXiv:2010.11929v2, Table 4 (B.1.1); warm-up: vit_jax/configs"
