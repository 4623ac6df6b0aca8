"""Options that several commands have."""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_vit.cli import completing

Triple = tuple[float, float, float]
SEEDS: dict[str, Any] = {"min": 0, "max": 2**32 - 1}  # As NumPy's generators accept.
MOST_PIXELS = 65_535  # Of a side: a JPEG's limit.


def check_variant(variant: str, folders: bool = False) -> None:
    """Raises for a variant that no builder is of, in words for what it looks like."""
    from keras_vit.configs import builder_name

    known = completing.variants()
    if builder_name(variant) in map(builder_name, known):
        return
    wrote = "a folder that `keras-vit finetune` or `pretrain` wrote"
    spelled = {name.lower(): name for name in known}
    close = difflib.get_close_matches(variant.lower(), spelled, n=2)
    if folders and not close:
        found = ", ".join(completing.runs()) or "none"
        raise ValueError(
            f"Expected {wrote}, or a variant of `keras-vit weights list`. Received: "
            f"{variant!r}, which is neither. Such folders here: {found}"
        )
    others = f", or {wrote}" if folders else ""
    hint = f" Did you mean {' or '.join(spelled[at] for at in close)}?" if close else ""
    raise ValueError(
        f"Expected one of {', '.join(known)}{others}. Received: {variant}.{hint} "
        "`keras-vit weights list` says what there is of each"
    )


def variant_of_option(context: typer.Context, value: str) -> str:
    """Returns an option's variant; a misspelled one is an error before Keras starts."""
    if not context.resilient_parsing:  # A TAB.
        check_variant(value)
    return value


def model_of_option(context: typer.Context, value: str | None) -> str | None:
    """Returns an option's variant or path; checks the spelling of a variant."""
    if value is None or context.resilient_parsing or Path(value).exists():
        return value
    check_variant(value, folders=True)
    return value


Data = Annotated[
    str,
    typer.Option(
        help="A folder of images (train/CLASS/*.jpg and test/CLASS/*.jpg, or "
        "CLASS/*.jpg), one that `keras-vit data pack` wrote, an .npz, 'digits', or a "
        "TFDS name such as cifar10."
    ),
]
Corrupt = Annotated[
    Literal["stop", "skip"],
    typer.Option(help="What to do about unreadable images of a folder."),
]
MeanOption = Annotated[
    Triple | None,
    typer.Option(help="Channel means the weights expect, in 0..1 [default: 0.5 each]."),
]
StdOption = Annotated[
    Triple | None,
    typer.Option(help="Channel deviations the weights expect [default: 0.5 each]."),
]
# Of both fine-tunings.
Pretrained = Annotated[
    str | None,
    typer.Option(
        autocompletion=completing.models,
        callback=model_of_option,
        help="The variant, e.g. ViT-B/16, or a folder that `pretrain` wrote [default: "
        "ViT-B/16; a weights file tells its own].",
    ),
]
PretrainedWeights = Annotated[
    str | None,
    typer.Option(
        autocompletion=completing.tags,
        help="A tag such as imagenet21k, a file, or 'none' [default: the variant's "
        "ImageNet-21k weights].",
    ),
]
Rates = Annotated[
    list[float] | None,
    typer.Option(
        help="Learning rate; several are tried on a held-out share of the training "
        "images [default: the recipe's sweep]."
    ),
]
ImageSize = Annotated[
    str | None,
    typer.Option(
        help="Pixels, 384 or 384x512 (height x width) [default: the recipe's; a "
        "weights file's own]."
    ),
]
Freeze = Annotated[bool, typer.Option("--freeze", help="Train the head alone.")]
Lora = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="RANK",
        help="Train low-rank changes of the encoder's matrices (LoRA, "
        "arXiv:2106.09685) and the head alone, e.g. 8.",
    ),
]
Ema = Annotated[float | None, typer.Option(help="Polyak averaging, e.g. 0.9999.")]
Gelu = Annotated[
    Literal["tanh", "erf"] | None,
    typer.Option(help="The weights' GELU [default: tanh, the published ones']."),
]
NumHeads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Attention heads of a weights file that does not show them [default: the "
        "file's, its config.json's or its known width's].",
    ),
]
# Of every training.
Steps = Annotated[int | None, typer.Option(min=1, help="Updates.")]
Warmup = Annotated[int | None, typer.Option(min=0, help="Updates of warm-up.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images an update.")]
Parts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Parts a batch is cut in to save memory [default: of 32 images a device].",
    ),
]
Augment = Annotated[
    Literal["inception", "flip", "none"] | None,
    typer.Option(help="Of training images: random crop and flip, flip, none."),
]
MixedPrecision = Annotated[
    bool | None,
    typer.Option(help="bfloat16 compute [default: on TPUs].", show_default=False),
]
Distribute = Annotated[
    Literal["auto", "none", "mirrored", "multiworker", "tpu"],
    typer.Option(
        help="One device, this machine's, the processes of TF_CONFIG, a TPU; auto: "
        "what is there."
    ),
]
Tpu = Annotated[
    str | None, typer.Option(help="A TPU's name or address, or local [default: local].")
]
ModelParallel = Annotated[
    int,
    typer.Option(min=1, help="On JAX: devices that the blocks' matrices are cut over."),
]
Remat = Annotated[
    bool,
    typer.Option(
        "--remat",
        help="Keep the blocks' inputs alone and compute the rest twice: less memory.",
    ),
]
Resume = Annotated[
    Literal["auto", "never"],
    typer.Option(help="Go on with the run in --output, or begin anew."),
]
SaveMinutes = Annotated[
    float,
    typer.Option(min=0, help="Between two checkpoints; SIGTERM and Ctrl-C save too."),
]


def pixels(text: str | None, option: str = "--image-size") -> tuple[int, int] | None:
    """'384' or '384x512' as (H, W)."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(map(_is_side, sides)):
        raise ValueError(
            "Expected pixels as 384 or 384x512 (height x width), each from 1 to "
            f"{MOST_PIXELS}. Received: {option} {text}"
        )
    return int(sides[0]), int(sides[-1])


def _is_side(text: str) -> bool:
    return text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST_PIXELS


ModelOption = Annotated[
    str | None,
    typer.Option(
        autocompletion=completing.models,
        callback=model_of_option,
        help="A folder that `finetune` wrote, or a variant [default: ViT-B/16; a "
        "weights file tells its own].",
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        autocompletion=completing.tags,
        help="Of a variant: a tag or a file [default: imagenet21k+imagenet2012].",
    ),
]
Images = Annotated[int, typer.Option(min=1, help="Images a batch.")]
TestSeed = Annotated[
    int | None,
    typer.Option(
        **SEEDS,
        help="Of the test share, where the data has no test set [default: the run's, "
        "whose training never saw that share].",
    ),
]

# Sizes in the place of a variant's (D.2); beyond these limits no model is built.
PatchSize = Annotated[
    int | None,
    typer.Option(
        min=1, max=4096, help="Patch size P in pixels [default: the variant's]."
    ),
]
Layers = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Number of layers [default: the variant's]."),
]
HiddenSize = Annotated[
    int | None,
    typer.Option(min=1, max=2**16, help="Hidden size D [default: the variant's]."),
]
MlpDim = Annotated[
    int | None,
    typer.Option(min=1, max=2**18, help="MLP size [default: the variant's]."),
]
Heads = Annotated[
    int | None,
    typer.Option(min=1, max=2**12, help="Number of heads [default: the variant's]."),
]
