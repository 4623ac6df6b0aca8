"""What is published: tag and variant -> file, size, mirrors, labels (plain data).

Every ViT and hybrid checkpoint of google-research/vision_transformer (vit_jax): the
paper's own (arXiv:2010.11929v2, section 4.1), and the SAM, GSAM and AugReg ones that
came after it. Standard library only.

Glossary: a tag is a training ("imagenet21k"), a variant an architecture in the
paper's spelling ("ViT-B/16"); i21k is ImageNet-21k, i1k ImageNet-2012.
"""

import dataclasses
import difflib
import fractions
import math
import re
from typing import Literal
from urllib.parse import quote

Format = Literal["npz", "timm", "hf"]
Labels = Literal["imagenet21k", "imagenet2012"]

BUCKET = "https://storage.googleapis.com/vit_models/"
VIT_KERAS = "https://github.com/faustomorales/vit-keras/releases/download/dl/"
HUB = "https://huggingface.co/{}/resolve/main/model.safetensors"
NUM_CLASSES: dict[Labels, int] = {"imagenet21k": 21_843, "imagenet2012": 1_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mirror:
    """One place that has a checkpoint, and the dialect it is written in there."""

    url: str
    format: Format  # "npz" is the official file itself; the others are safetensors.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One published file: what it holds and where it is."""

    variant: str  # In the paper's spelling: "R50+ViT-B/16".
    tag: str
    path: str  # Inside the official bucket.
    size: str | None  # As published, to its last place; None: unpublished.
    image_size: tuple[int, int]  # (H, W) of its position embeddings, in pixels.
    num_classes: int
    labels: Labels
    mirrors: tuple[Mirror, ...]  # In the order in which they are tried.
    sha256: str | None = None  # Nobody published one of an official npz.
    value_range: tuple[float, float] = (-1.0, 1.0)  # Of the pixels it was trained on.
    accuracy: float | None = None  # Top-1 in percent on ImageNet, where Table 5 has it.
    zero_head: bool = False  # The head is all zeros: predictions are uniform.

    def size_bounds(self) -> tuple[int, int] | None:
        """The byte counts that print as `size`: half a unit of its last place."""
        if self.size is None:
            return None
        number, unit = self.size.split()
        bytes_per_unit = {"MiB": 2**20, "GiB": 2**30}[unit]
        half = fractions.Fraction(1, 2 * 10 ** len(number.partition(".")[2]))
        value = fractions.Fraction(number)
        lower, upper = (value - half) * bytes_per_unit, (value + half) * bytes_per_unit
        return math.ceil(lower), math.floor(upper)


# vit_jax.ipynb, cell 10: `gsutil ls -lh`, google-research/vision_transformer@c6de1e5.
# gsutil leaves off a last zero ("331.4 MiB"), which is written out here. GSAM: names
# only (maciejbalawejder/Vision-Transformer, weights/download.sh), so "?". sam's S/16 is
# three times the size of its parameters: the file holds more than them.
_TAGS = (  # The columns of the table below.
    "imagenet21k",
    "imagenet21k+imagenet2012",
    "imagenet21k+imagenet2012-224",
    "sam",
    "gsam",
)
_SIZES = """
ViT-S/16      -            -            -            252.57 MiB   ?
ViT-S/32      -            -            -            -            ?
ViT-B/8       393.72 MiB   334.78 MiB   -            -            -
ViT-B/16      393.69 MiB   331.40 MiB   330.29 MiB   330.30 MiB   ?
ViT-B/32      400.01 MiB   336.89 MiB   -            336.61 MiB   ?
ViT-L/16      1.22 GiB     1.14 GiB     1.13 GiB     1.13 GiB     -
ViT-L/32      1.23 GiB     1.14 GiB     -            1.14 GiB     -
ViT-H/14      2.46 GiB     -            -            -            -
R26+ViT-B/32  450.23 MiB   -            -            -            -
R50+ViT-B/16  439.85 MiB   377.57 MiB   -            -            -
R50+ViT-L/32  1.31 GiB     -            -            -            -
"""

# Table 5, pre-trained on ImageNet-21k, fine-tuned on ImageNet at 384 px (no Polyak):
# the training of `imagenet21k+imagenet2012`. vit_jax's README repeats it with 84.12,
# 81.31, 85.05 and 81.13, so a difference of a few tenths is no error.
_TABLE_5 = {"ViT-B/16": 83.97, "ViT-B/32": 81.28, "ViT-L/16": 85.15, "ViT-L/32": 80.99}

# AugReg: the files in common use, timm's list (timm/models/vision_transformer.py and
# vision_transformer_hybrid.py); sizes from vit_jax's README, in whole MiB.
# variant: (size on i21k, augmentation-weight decay-dropout-stochastic depth, lr of the
# fine-tuning on ImageNet).
_AUGREG_I21K: dict[str, tuple[str | None, str, str]] = {
    "ViT-Ti/16": ("37 MiB", "none-wd_0.03-do_0.0-sd_0.0", "0.03"),
    "ViT-S/16": ("115 MiB", "light1-wd_0.03-do_0.0-sd_0.0", "0.03"),
    "ViT-S/32": ("118 MiB", "light1-wd_0.03-do_0.0-sd_0.0", "0.03"),
    "ViT-B/8": (None, "medium1-wd_0.1-do_0.0-sd_0.0", "0.01"),
    "ViT-B/16": ("391 MiB", "medium1-wd_0.1-do_0.0-sd_0.0", "0.01"),
    "ViT-B/32": ("398 MiB", "medium1-wd_0.03-do_0.0-sd_0.0", "0.03"),
    "ViT-L/16": ("1243 MiB", "medium1-wd_0.1-do_0.1-sd_0.1", "0.01"),
    "R+ViT-Ti/16": ("40 MiB", "none-wd_0.03-do_0.0-sd_0.0", "0.03"),
    "R26+ViT-S/32": ("170 MiB", "medium2-wd_0.03-do_0.0-sd_0.0", "0.03"),
    "R50+ViT-L/32": ("1337 MiB", "medium2-wd_0.1-do_0.0-sd_0.0", "0.01"),
}
# Fine-tuned from another pre-training than the row above, by resolution.
_AUGREG_OTHER = {
    ("ViT-B/32", 384): "light1-wd_0.1-do_0.0-sd_0.0",
    ("R26+ViT-S/32", 224): "light0-wd_0.03-do_0.1-sd_0.1",
    ("R50+ViT-L/32", 224): "medium1-wd_0.1-do_0.1-sd_0.1",
}
_AUGREG_I1K = {
    "ViT-S/16": "medium2-wd_0.1-do_0.0-sd_0.0",
    "ViT-B/16": "strong2-wd_0.1-do_0.1-sd_0.1",
    "ViT-B/32": "medium2-wd_0.1-do_0.1-sd_0.1",
}

# Copies of the same trainings on Hugging Face. timm's are named
# <architecture>_<pixels>.<training>; `orig_in21k` there lacks head and pre_logits.
_TIMM_NAMES = {
    "ViT-Ti/16": "vit_tiny_patch16",
    "ViT-S/16": "vit_small_patch16",
    "ViT-S/32": "vit_small_patch32",
    "ViT-B/8": "vit_base_patch8",
    "ViT-B/16": "vit_base_patch16",
    "ViT-B/32": "vit_base_patch32",
    "ViT-L/16": "vit_large_patch16",
    "ViT-L/32": "vit_large_patch32",
    "ViT-H/14": "vit_huge_patch14",
    "R+ViT-Ti/16": "vit_tiny_r_s16_p8",
    "R26+ViT-S/32": "vit_small_r26_s32",
    "R50+ViT-B/16": "vit_base_r50_s16",
    "R50+ViT-L/32": "vit_large_r50_s32",
}
_B_AND_L = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32")
_GOOGLE_COPIES = (*_B_AND_L, "ViT-H/14")  # Of `imagenet21k`; pooler is pre_logits.
_TIMM_COPIES = {  # tag: (timm's word for the training, the variants copied there)
    "imagenet21k": ("orig_in21k", (*_GOOGLE_COPIES, "R50+ViT-B/16")),
    "imagenet21k+imagenet2012": (
        "orig_in21k_ft_in1k",
        ("ViT-B/16", "ViT-L/32", "R50+ViT-B/16"),
    ),
    "imagenet21k+imagenet2012-224": ("orig_in21k_ft_in1k", ("ViT-B/16",)),
    "sam": ("sam_in1k", ("ViT-B/16", "ViT-B/32")),
    "augreg-imagenet21k": ("augreg_in21k", tuple(_AUGREG_I21K)),
    "augreg-imagenet21k+imagenet2012": ("augreg_in21k_ft_in1k", tuple(_AUGREG_I21K)),
    "augreg-imagenet2012": ("augreg_in1k", tuple(_AUGREG_I1K)),
}


def _mirrors(variant: str, tag: str, path: str, pixels: int) -> tuple[Mirror, ...]:
    """The official bucket first, then its copies."""
    mirrors = [Mirror(url=BUCKET + quote(path), format="npz")]
    if tag in ("imagenet21k", "imagenet21k+imagenet2012") and variant in _B_AND_L:
        file = f"{variant.replace('/', '_')}_{tag}.npz"
        mirrors.append(Mirror(url=VIT_KERAS + quote(file), format="npz"))
    # "-224" is only in this library's name of an AugReg or SAM training.
    copies = _TIMM_COPIES.get(tag) or _TIMM_COPIES.get(tag.removesuffix("-224"))
    hub: list[tuple[str, Format]] = []
    if copies and variant in copies[1]:
        hub.append((f"timm/{_TIMM_NAMES[variant]}_{pixels}.{copies[0]}", "timm"))
    if tag == "imagenet21k" and variant in _GOOGLE_COPIES:
        name = _TIMM_NAMES[variant].replace("_", "-")
        hub.append((f"google/{name}-224-in21k", "hf"))
    for repository, dialect in hub:
        mirrors.append(Mirror(url=HUB.format(repository), format=dialect))
    return tuple(mirrors)


def _row(variant: str, tag: str, path: str, size: str | None, px: int) -> Checkpoint:
    labels: Labels = "imagenet21k" if tag.endswith("imagenet21k") else "imagenet2012"
    return Checkpoint(
        variant=variant,
        tag=tag,
        path=path,
        size=size,
        image_size=(px, px),
        num_classes=NUM_CLASSES[labels],
        labels=labels,
        mirrors=_mirrors(variant, tag, path, px),
        accuracy=_TABLE_5.get(variant) if tag == "imagenet21k+imagenet2012" else None,
        zero_head=tag == "imagenet21k",
    )


def _published_rows() -> list[Checkpoint]:
    """imagenet21k/ViT-B_16.npz and its like; "-224" is part of a file's name."""
    rows = []
    table = [re.split(r"\s{2,}", line) for line in _SIZES.strip().splitlines()]
    for column, tag in enumerate(_TAGS, start=1):
        px = 384 if tag == "imagenet21k+imagenet2012" else 224
        folder, dash, ending = tag.partition("-")
        for cells in table:
            if cells[column] == "-":
                continue
            path = f"{folder}/{cells[0].replace('/', '_')}{dash}{ending}.npz"
            size = None if cells[column] == "?" else cells[column]
            rows.append(_row(cells[0], tag, path, size, px))
    return rows


def _augreg_path(variant: str, data: str, recipe: str, ending: str = "") -> str:
    """Every file of timm's list was pre-trained with learning rate 1e-3."""
    name = variant.replace("ViT-", "").replace("+", "_").replace("/", "_")
    return f"augreg/{name}-{data}-300ep-lr_0.001-aug_{recipe}{ending}.npz"


def _augreg_rows() -> list[Checkpoint]:
    rows = []
    for variant, (size, recipe, _) in _AUGREG_I21K.items():
        path = _augreg_path(variant, "i21k", recipe)
        rows.append(_row(variant, "augreg-imagenet21k", path, size, 224))
    for px, suffix in ((384, ""), (224, "-224")):
        ending = f"--imagenet2012-steps_20k-lr_{{}}-res_{px}"
        for variant, (_, recipe, lr) in _AUGREG_I21K.items():
            if (variant, px) == ("ViT-B/8", 384):
                continue  # Not on timm's list.
            recipe = _AUGREG_OTHER.get((variant, px), recipe)
            path = _augreg_path(variant, "i21k", recipe, ending.format(lr))
            tag = f"augreg-imagenet21k+imagenet2012{suffix}"
            rows.append(_row(variant, tag, path, None, px))
        for variant, recipe in _AUGREG_I1K.items():
            path = _augreg_path(variant, "i1k", recipe, ending.format("0.01"))
            rows.append(_row(variant, f"augreg-imagenet2012{suffix}", path, None, px))
    return rows


CHECKPOINTS: tuple[Checkpoint, ...] = (*_published_rows(), *_augreg_rows())


def _key(variant: str) -> str:
    """What "ViT-B/16" and the builder's name "ViT_B16" share: "vitb16"."""
    return re.sub("[^a-z0-9]", "", variant.lower())


def tags(variant: str) -> tuple[str, ...]:
    """Every tag published for `variant` (the paper's spelling or a builder's name)."""
    return tuple(row.tag for row in CHECKPOINTS if _key(row.variant) == _key(variant))


def find(variant: str, tag: str) -> Checkpoint:
    """The checkpoint of `variant` (the paper's spelling or a builder's name) and `tag`.

    Raises:
        ValueError: if there is none, with the tags that this variant has.
    """
    for row in CHECKPOINTS:
        if row.tag == tag and _key(row.variant) == _key(variant):
            return row
    exist = tags(variant)
    if not exist:
        variants = sorted({row.variant for row in CHECKPOINTS})
        raise ValueError(
            f"Expected a variant with published weights: {', '.join(variants)}. "
            f"Received: variant={variant!r}, tag={tag!r}. Pass weights=None or a file."
        )
    close = difflib.get_close_matches(tag, exist, n=2)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(
        f"Expected a tag published for {variant}: {', '.join(exist)}. "
        f"Received: tag={tag!r}.{hint}"
    )
