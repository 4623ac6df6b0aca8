"""Published checkpoints: tag and variant -> file, size, mirrors, labels (plain data).

The registry contains every ViT and hybrid checkpoint of google-research/
vision_transformer (vit_jax): the paper's (arXiv:2010.11929v2, section 4.1) and the
later SAM, GSAM and AugReg ones. It also contains the BiT baselines of google-research/
big_transfer, and published outputs for known inputs. Standard library only.

A tag lists copies of the same training run only. The source of each copy, a public page
or a conversion script, is cited next to it; no hashes were published.

Glossary: a tag is a training run ("imagenet21k"), and a variant is an architecture in
the paper's spelling ("ViT-B/16"). i21k is ImageNet-21k, i1k is ImageNet-2012. A dialect
is the naming of the tensors in a file ("npz", "timm", "hf").
"""

import dataclasses
import difflib
import fractions
import math
import re
from typing import Literal
from urllib.parse import quote

from keras_vit.arguments import did_you_mean
from keras_vit.configs import find_variant

Format = Literal["npz", "timm", "hf"]
Labels = Literal["imagenet21k", "imagenet2012"]

BUCKET = "https://storage.googleapis.com/vit_models/"
BIT_BUCKET = "https://storage.googleapis.com/bit_models/"
VIT_KERAS = "https://github.com/faustomorales/vit-keras/releases/download/dl/"
HUB = "https://huggingface.co/{}/resolve/{}/model.safetensors"
NUM_CLASSES: dict[Labels, int] = {"imagenet21k": 21_843, "imagenet2012": 1_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mirror:
    """A copy of a checkpoint: its URL and its dialect.

    Attributes:
        url: URL of the file.
        format: "npz" is the official file itself; "timm" and "hf" are safetensors.
    """

    url: str
    format: Format


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One published file: its contents and its location.

    Attributes:
        variant: name in the paper's spelling, such as "R50+ViT-B/16".
        tag: tag of the training, such as "imagenet21k".
        path: path in the official bucket, `BUCKET` or `BIT_BUCKET`.
        size: published size in MiB or GiB, with its last digit; None: unpublished.
        image_size: (H, W) in pixels of the training images.
        num_classes: K of the head.
        labels: classes of the head, "imagenet21k" or "imagenet2012".
        mirrors: copies in the order in which they are tried.
        origin: paper of the training.
        licence: license in vision_transformer's LICENSE, big_transfer's sources and the
            copies' model cards.
        sha256: None, since no hash of an official npz was published.
        value_range: range of the pixels in training.
        accuracy: top-1 in percent on ImageNet, if published.
        accuracy_source: source of the accuracy: "Table 5", "vit_jax" or "timm".
        zero_head: whether the head is all zeros, which makes predictions uniform.
    """

    variant: str
    tag: str
    path: str
    size: str | None
    image_size: tuple[int, int]
    num_classes: int
    labels: Labels
    mirrors: tuple[Mirror, ...]
    origin: str = ""
    licence: str = "Apache-2.0"
    sha256: str | None = None
    value_range: tuple[float, float] = (-1.0, 1.0)
    accuracy: float | None = None
    accuracy_source: str = ""
    zero_head: bool = False

    def size_bounds(self) -> tuple[int, int] | None:
        """Returns the range of bytes that round to `size` at its last digit."""
        if self.size is None:
            return None
        number, unit = self.size.split()
        bytes_per_unit = {"MiB": 2**20, "GiB": 2**30}[unit]
        half = fractions.Fraction(1, 2 * 10 ** len(number.partition(".")[2]))
        value = fractions.Fraction(number)
        lower, upper = (value - half) * bytes_per_unit, (value + half) * bytes_per_unit
        return math.ceil(lower), math.floor(upper)


# vit_jax.ipynb, cell 10: `gsutil ls -lh`, google-research/vision_transformer@c6de1e5.
# gsutil omits a final zero ("331.4 MiB"), which is added here. GSAM: only names are
# known (maciejbalawejder/Vision-Transformer, weights/download.sh), hence "?". sam's
# S/16 is three times the size of its parameters: the file contains more than them.
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
ViT-B/16      393.69 MiB   331.40 MiB   330.29 MiB   330.30 MiB   ?
ViT-B/32      400.01 MiB   336.89 MiB   -            336.61 MiB   ?
ViT-L/16      1.22 GiB     1.14 GiB     1.13 GiB     1.13 GiB     -
ViT-L/32      1.23 GiB     1.14 GiB     -            1.14 GiB     -
ViT-H/14      2.46 GiB     -            -            -            -
ViT-B/8       393.72 MiB   334.78 MiB   -            -            -
R26+ViT-B/32  450.23 MiB   -            -            -            -
R50+ViT-B/16  439.85 MiB   377.57 MiB   -            -            -
R50+ViT-L/32  1.31 GiB     -            -            -            -
"""

# Top-1 on ImageNet with its source. Table 5: fine-tuned at 384 px, no Polyak; vit_jax's
# README reports 84.12, 81.31, 85.05 and 81.13 instead, so a difference of a few tenths
# is no error. vit_jax: the expected values for the two files in its README
# (29.10.2020). timm measured BiT's files (docs/models/big-transfer.md).
_TUNED = "imagenet21k+imagenet2012"
_TOP_1 = {
    ("ViT-B/16", _TUNED): (83.97, "Table 5"),
    ("ViT-B/32", _TUNED): (81.28, "Table 5"),
    ("ViT-L/16", _TUNED): (85.15, "Table 5"),
    ("ViT-L/32", _TUNED): (80.99, "Table 5"),
    ("ViT-B/16", f"{_TUNED}-224"): (81.2, "vit_jax"),
    ("ViT-L/16", f"{_TUNED}-224"): (82.7, "vit_jax"),
    ("BiT-R50x1", _TUNED): (80.19, "timm"),
    ("BiT-R50x3", _TUNED): (83.75, "timm"),
    ("BiT-R101x1", _TUNED): (82.21, "timm"),
    ("BiT-R101x3", _TUNED): (84.38, "timm"),
    ("BiT-R152x2", _TUNED): (84.40, "timm"),
    ("BiT-R152x4", _TUNED): (84.95, "timm"),
}

_VIT_PAPER = "ViT (arXiv:2010.11929)"
_BIT_PAPER = "BiT (arXiv:1912.11370)"
_ORIGINS = {  # By the tag up to its first "-"; without the paper's tags.
    "sam": "SAM (arXiv:2106.01548)",
    "gsam": "GSAM (arXiv:2203.08065)",
    "augreg": "AugReg (arXiv:2106.10270)",
}
# Released after the paper, together with its files.
_NOT_IN_THE_PAPER = ("ViT-B/8", "R26+ViT-B/32", "BiT-R152x2")

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
# Fine-tuned from a different pre-training than the row above, by resolution.
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

# Copies of the same training runs on Hugging Face. timm's are named
# <architecture>_<pixels>.<training>; its `orig_in21k` has no head and no pre_logits.
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
_TIMM_COPIES = {  # tag: (timm's name of the training, the variants copied there)
    "imagenet21k": ("orig_in21k", (*_B_AND_L, "ViT-H/14", "R50+ViT-B/16")),
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
# Google's copies (i21k: the pooler is pre_logits). Their cards name the training runs:
# "weights were converted from the timm repository ... who already converted the weights
# from JAX". They were uploaded in March 2021, before AugReg, when timm had only these
# runs (its changelog of 26 and 30.10.2020). The hybrid's card does not name its run;
# transformers' convert_vit_hybrid_timm_to_pytorch.py does: timm's vit_base_r50_s16_384,
# then orig_in21k_ft_in1k.
_GOOGLE_COPIES = {
    "imagenet21k": (*_B_AND_L, "ViT-H/14"),
    "imagenet21k+imagenet2012": (*_B_AND_L, "R50+ViT-B/16"),
    "imagenet21k+imagenet2012-224": ("ViT-B/16", "ViT-L/16"),
}
# If `main` has no model.safetensors, the commit or pull request that has it: the Hub's
# conversion of `main` by SFconvertbot (the repositories' file listings).
_REVISIONS = {
    "google/vit-large-patch32-224-in21k": "1170e42b7c584b04363ac5ad6b246001e8ba9113",
    "google/vit-large-patch16-224": "8041a8c7b0517e25d4cfa63f2e2e35b50b853386",
    "google/vit-large-patch16-384": "refs%2Fpr%2F1",
    "google/vit-large-patch32-384": "7cb790d8aa73dc7882e7190b95f2dbde837abe21",
}

# BiT-S (ILSVRC-2012), BiT-M (i21k, with its trained head: big_transfer, issue 7) and
# BiT-M fine-tuned: big_transfer's README and KNOWN_MODELS.
# The copies: timm/models/resnetv2.py, which loaded these URLs before it used the Hub.
# Its `goog_teacher_*` and `goog_distilled_*` are other runs (arXiv:2106.05237).
# google/bit-50 was also made from timm's, but no listing of its safetensors was found.
# Pixels are timm's, 448 or 480 ("only one at 480x480?"); big_transfer fine-tunes all at
# 480 now. Any size works: the network is convolutional.
_BIT = ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
_BIT_TAGS = {  # tag: (family, suffix of the file's name, timm's name if copied there)
    "imagenet2012": ("S", "", None),
    "imagenet21k": ("M", "", "goog_in21k"),
    "imagenet21k+imagenet2012": ("M", "-ILSVRC2012", "goog_in21k_ft_in1k"),
}


def _hub(repository: str, dialect: Format) -> Mirror:
    url = HUB.format(repository, _REVISIONS.get(repository, "main"))
    return Mirror(url=url, format=dialect)


def _copies(variant: str, tag: str, pixels: int) -> list[Mirror]:
    """The copies of a ViT or a hybrid outside the official bucket."""
    mirrors = []
    if tag in ("imagenet21k", "imagenet21k+imagenet2012") and variant in _B_AND_L:
        file = f"{variant.replace('/', '_')}_{tag}.npz"
        mirrors.append(Mirror(url=VIT_KERAS + quote(file), format="npz"))
    # "-224" occurs only in this library's names of AugReg runs.
    copies = _TIMM_COPIES.get(tag) or _TIMM_COPIES.get(tag.removesuffix("-224"))
    if copies and variant in copies[1]:
        name = f"{_TIMM_NAMES[variant]}_{pixels}.{copies[0]}"
        mirrors.append(_hub(f"timm/{name}", "timm"))
    if variant in _GOOGLE_COPIES.get(tag, ()):
        name = _TIMM_NAMES[variant].replace("_", "-")
        name = name.replace("vit-base-r50-s16", "vit-hybrid-base-bit")
        ending = "-in21k" if tag == "imagenet21k" else ""
        mirrors.append(_hub(f"google/{name}-{pixels}{ending}", "hf"))
    return mirrors


def _row(
    variant: str,
    tag: str,
    url: str,
    copies: list[Mirror],
    *,
    origin: str,
    size: str | None,
    pixels: int,
) -> Checkpoint:
    labels: Labels = "imagenet21k" if tag.endswith("imagenet21k") else "imagenet2012"
    bucket = next(bucket for bucket in (BUCKET, BIT_BUCKET) if url.startswith(bucket))
    accuracy, accuracy_source = _TOP_1.get((variant, tag), (None, ""))
    return Checkpoint(
        variant=variant,
        tag=tag,
        path=url.removeprefix(bucket),
        size=size,
        image_size=(pixels, pixels),
        num_classes=NUM_CLASSES[labels],
        labels=labels,
        mirrors=(Mirror(url=quote(url, safe=":/"), format="npz"), *copies),
        origin=origin,
        accuracy=accuracy,
        accuracy_source=accuracy_source,
        zero_head=tag == "imagenet21k" and not variant.startswith("BiT"),
    )


def _vit_row(
    variant: str, tag: str, path: str, size: str | None, px: int
) -> Checkpoint:
    origin = _ORIGINS.get(tag.partition("-")[0], _VIT_PAPER)
    if origin == _VIT_PAPER and variant in _NOT_IN_THE_PAPER:
        origin = "vit_jax, not in the paper"
    copies = _copies(variant, tag, px)
    url = BUCKET + path
    return _row(variant, tag, url, copies, origin=origin, size=size, pixels=px)


def _bit_rows() -> list[Checkpoint]:
    rows = []
    for tag, (family, ending, word) in _BIT_TAGS.items():
        for name in _BIT:
            variant = f"BiT-{name}"
            after = variant in _NOT_IN_THE_PAPER
            copy = f"timm/resnetv2_{name.removeprefix('R')}_bit.{word}"
            row = _row(
                variant,
                tag,
                f"{BIT_BUCKET}BiT-{family}-{name}{ending}.npz",
                [_hub(copy, "timm")] if word else [],
                origin="big_transfer, not in the paper" if after else _BIT_PAPER,
                size=None,
                pixels=(480 if name == "R152x4" else 448) if ending else 224,
            )
            rows.append(row)
    return rows


def _published_rows() -> list[Checkpoint]:
    """Files such as imagenet21k/ViT-B_16.npz; "-224" is part of a file's name."""
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
            rows.append(_vit_row(cells[0], tag, path, size, px))
    return rows


def _augreg_path(variant: str, data: str, recipe: str, ending: str = "") -> str:
    """The path of a file; all in timm's list have pre-training learning rate 1e-3."""
    name = variant.replace("ViT-", "").replace("+", "_").replace("/", "_")
    return f"augreg/{name}-{data}-300ep-lr_0.001-aug_{recipe}{ending}.npz"


def _augreg_rows() -> list[Checkpoint]:
    rows = []
    for variant, (size, recipe, _) in _AUGREG_I21K.items():
        path = _augreg_path(variant, "i21k", recipe)
        rows.append(_vit_row(variant, "augreg-imagenet21k", path, size, 224))
    for px, suffix in ((384, ""), (224, "-224")):
        ending = f"--imagenet2012-steps_20k-lr_{{}}-res_{px}"
        for variant, (_, recipe, lr) in _AUGREG_I21K.items():
            if (variant, px) == ("ViT-B/8", 384):
                continue  # Not in timm's list.
            recipe = _AUGREG_OTHER.get((variant, px), recipe)
            path = _augreg_path(variant, "i21k", recipe, ending.format(lr))
            tag = f"augreg-imagenet21k+imagenet2012{suffix}"
            rows.append(_vit_row(variant, tag, path, None, px))
        for variant, recipe in _AUGREG_I1K.items():
            path = _augreg_path(variant, "i1k", recipe, ending.format("0.01"))
            rows.append(
                _vit_row(variant, f"augreg-imagenet2012{suffix}", path, None, px)
            )
    return rows


CHECKPOINTS: tuple[Checkpoint, ...] = (
    *_published_rows(),
    *_augreg_rows(),
    *_bit_rows(),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """Published outputs of a checkpoint for a known input.

    An image is resized to `image_size` with Pillow, which antialiases. "squash" resizes
    both sides; "crop" resizes the shortest side and crops the center. A pixel x in
    0..255 becomes x / `half_range` - 1.

    Attributes:
        variant: name in the paper's spelling.
        tag: tag of the training.
        image: URL, or a constant value of the scaled input.
        image_size: (H, W) in pixels of the input.
        resize: "none", "squash" or "crop".
        interpolation: filter of the resizing, or None.
        half_range: half of the pixels' range.
        output: "logits", "probabilities" (their softmax), or "class_token" (the class
            token after `encoder_norm`).
        expected: (class or feature, value) for each published value.
        tolerance: absolute tolerance; the source's tolerance, if it states one.
        numerics: "paper", or "hf": exact GELU (erf), LayerNorm epsilon 1e-12.
        source: the repository and the file.
        believed: unverified assumptions behind the numbers.
    """

    variant: str
    tag: str
    image: str | float
    image_size: tuple[int, int]
    resize: Literal["none", "squash", "crop"] = "none"
    interpolation: Literal["bilinear", "bicubic"] | None = None
    half_range: float = 127.5
    output: Literal["logits", "probabilities", "class_token"]
    expected: tuple[tuple[int, float], ...]
    tolerance: float
    numerics: Literal["paper", "hf"]
    source: str
    believed: str = ""


# The test fixture: COCO val2017's 000000039769, two cats.
_CATS = (
    "https://raw.githubusercontent.com/huggingface/transformers/"
    "d05a9215b4f311963e465b99753ac711fb828893/"
    "tests/fixtures/tests_samples/COCO/000000039769.png"
)
_SAME_B16 = (
    "google/vit-base-patch16-224 is ViT-B_16-224.npz, according to its card and timm's "
    "changelog (30.10.2020); the tensors were not compared"
)
REFERENCES = (
    Reference(
        variant="ViT-B/32",
        tag="imagenet21k+imagenet2012",
        image="https://picsum.photos/id/997/384/384",
        image_size=(384, 384),
        half_range=128,
        output="probabilities",
        expected=(
            (975, 0.52548),  # lakeside
            (976, 0.16299),  # promontory
            (980, 0.12497),  # volcano
            (979, 0.04307),  # valley
            (972, 0.02912),  # cliff
            (978, 0.02730),  # seashore
            (525, 0.01116),  # dam
            (974, 0.00892),  # geyser
            (977, 0.00597),  # sandbar
            (970, 0.00570),  # alp
        ),
        tolerance=0.005,  # Our choice, for JPEG decoders and a TPU's matmuls.
        numerics="paper",
        source="google-research/vision_transformer@c6de1e5, vit_jax.ipynb, cells 42-44",
        believed="picsum.photos still serves the same bytes",
    ),
    Reference(
        variant="ViT-B/16",
        tag="imagenet21k+imagenet2012-224",
        image=0.5,
        image_size=(224, 224),
        output="logits",
        expected=((0, 0.0112), (1, -0.5065), (2, -0.7792)),
        tolerance=1e-4,
        numerics="hf",
        source="elixir-nx/bumblebee@21b5954, test/bumblebee/vision/vit_test.exs",
        believed=_SAME_B16,
    ),
    Reference(
        variant="ViT-B/16",
        tag="imagenet21k+imagenet2012-224",
        image=0.5,
        image_size=(224, 224),
        output="class_token",
        expected=((0, 0.4435), (1, 0.4302), (2, -0.1585)),
        tolerance=1e-4,
        numerics="hf",
        source="elixir-nx/bumblebee@21b5954, test/bumblebee/vision/vit_test.exs",
        believed=_SAME_B16,
    ),
    Reference(
        variant="ViT-B/16",
        tag="imagenet21k+imagenet2012-224",
        image=_CATS,
        image_size=(224, 224),
        resize="squash",
        interpolation="bilinear",
        output="logits",
        expected=((0, -0.2744), (1, 0.8215), (2, -0.0836)),
        tolerance=1e-4,
        numerics="hf",
        source="huggingface/transformers, tests/models/vit/test_modeling_vit.py",
        believed=_SAME_B16,
    ),
    Reference(
        variant="R50+ViT-B/16",
        tag="imagenet21k+imagenet2012",
        image=_CATS,
        image_size=(384, 384),
        resize="crop",
        interpolation="bicubic",
        output="logits",
        expected=((0, -1.9090), (1, -0.4993), (2, -0.2389)),
        tolerance=1e-4,
        numerics="hf",
        source="huggingface/transformers, tests/models/vit_hybrid/"
        "test_modeling_vit_hybrid.py",
        believed="google/vit-hybrid-base-bit-384 is R50+ViT-B_16.npz, and its images "
        "are resized as in timm's vit_base_r50_s16_384, according to its conversion "
        "script; the tensors were not compared",
    ),
    Reference(
        variant="BiT-R50x1",
        tag="imagenet21k+imagenet2012",
        image=_CATS,
        image_size=(448, 448),
        resize="crop",
        interpolation="bilinear",
        output="logits",
        expected=((0, -0.6526), (1, -0.5263), (2, -1.4398)),
        tolerance=1e-4,
        numerics="hf",
        source="huggingface/transformers, tests/models/bit/test_modeling_bit.py",
        believed="google/bit-50 is BiT-M-R50x1-ILSVRC2012.npz, and its images are "
        "resized as in timm's resnetv2_50x1_bitm, the default of its conversion "
        "script; the tensors were not compared",
    ),
)


def tags(variant: str) -> tuple[str, ...]:
    """Returns every tag published for a variant.

    Args:
        variant: name in the paper's spelling, or the builder's name.
    """
    name = find_variant(variant)
    return tuple(row.tag for row in CHECKPOINTS if row.variant == name)


def find(variant: str, tag: str) -> Checkpoint:
    """Returns the checkpoint of a variant and a tag.

    Args:
        variant: name in the paper's spelling, or the builder's name.
        tag: tag of the training.

    Raises:
        ValueError: if there is none; the message lists the variant's tags.
    """
    name = find_variant(variant)
    rows = [row for row in CHECKPOINTS if row.variant == name]
    for row in rows:
        if row.tag == tag:
            return row
    exist = [row.tag for row in rows]
    if not exist:
        variants = sorted({row.variant for row in CHECKPOINTS})
        raise ValueError(
            f"Expected a variant with published weights: {', '.join(variants)}. "
            f"Received: variant={variant!r}, tag={tag!r}. Pass weights=None or a file."
        )
    close = difflib.get_close_matches(tag, exist, n=2)
    if tag.lower() in ("imagenet", "imagenet1k", "imagenet-1k"):  # As in Keras.
        close = [row.tag for row in rows if row.labels == "imagenet2012"][:1]
    hint = did_you_mean(map(repr, close))
    raise ValueError(
        f"Expected a tag published for {variant}: {', '.join(exist)}. "
        f"Received: tag={tag!r}.{hint}"
    )


def select(variant: str | None = None, tag: str | None = None) -> list[Checkpoint]:
    """Returns the rows of a variant, of a tag, of both, or all.

    Args:
        variant: name in the paper's spelling, or the builder's name; None: any.
        tag: tag of the training; None: any.

    Raises:
        ValueError: if there is none.
    """
    if variant is not None and tag is not None:
        return [find(variant, tag)]
    if tag is not None:
        rows = [row for row in CHECKPOINTS if row.tag == tag]
        if not rows:
            exist = ", ".join(dict.fromkeys(row.tag for row in CHECKPOINTS))
            raise ValueError(
                f"Expected tag to be one of {exist}. Received: tag={tag!r}"
            )
        return rows
    if variant is not None:
        return [find(variant, own) for own in tags(variant)] or [find(variant, "")]
    return list(CHECKPOINTS)


def references(variant: str, tag: str) -> tuple[Reference, ...]:
    """Returns the published outputs of a checkpoint; most have none.

    Args:
        variant: name in the paper's spelling, or the builder's name.
        tag: tag of the training.
    """
    name = find_variant(variant)
    return tuple(
        reference
        for reference in REFERENCES
        if reference.tag == tag and reference.variant == name
    )
