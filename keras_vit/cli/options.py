"""Options that several commands have: dataclasses, a field for each option.

A command has a parameter of such a class, and `grouped` gives its fields to typer. An
option is described once, and the functions that read options take one object.
"""

import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_vit.cli import completion

Triple = tuple[float, float, float]
SEEDS: dict[str, Any] = {"min": 0, "max": 2**32 - 1}  # As NumPy's generators accept.
MOST_PIXELS = 65_535  # Of a side: a JPEG's limit.


def check_variant(variant: str, folders: bool = False) -> None:
    """Raises for a variant that no builder is of, in words for what it looks like."""
    from keras_vit.configs import builder_name

    known = completion.variants()
    if builder_name(variant) in map(builder_name, known):
        return
    wrote = "a folder that `keras-vit finetune` or `pretrain` wrote"
    spelled = {name.lower(): name for name in known}
    close = difflib.get_close_matches(variant.lower(), spelled, n=2)
    if folders and not close:
        found = ", ".join(completion.runs()) or "none"
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


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Gives typer the fields of a command's dataclass parameters as its options."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _fields(groups[name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            own = {
                field.name: values.pop(field.name)
                for field in dataclasses.fields(group)
            }
            values[name] = group(**own)
        command(**values)

    named: Any = run
    named.__signature__ = inspect.Signature(parameters)
    named.__annotations__ = {at.name: at.annotation for at in parameters}
    del named.__wrapped__  # Whose own parameters typer would read.
    return run


def _fields(group: Any) -> list[inspect.Parameter]:
    """A parameter for each field of a group."""
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if field.default is dataclasses.MISSING
            else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]


def given(group: Any = None, /, **options: Any) -> dict[str, Any]:
    """The options that were given, of a group or by name."""
    every = options if group is None else vars(group) | options
    return {name: value for name, value in every.items() if value is not None}


Corrupt = Annotated[
    Literal["stop", "skip"],
    typer.Option(help="What to do about unreadable images of a folder."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageData:
    """Images with labels, and what to do about the unreadable ones."""

    data: Annotated[
        str,
        typer.Option(
            help="A folder of images (train/CLASS/*.jpg and test/CLASS/*.jpg, or "
            "CLASS/*.jpg), one that `keras-vit data pack` wrote, an .npz, 'digits', or "
            "a TFDS name such as cifar10."
        ),
    ]
    on_corrupt: Corrupt = "stop"


NumHeads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Attention heads of a weights file that does not show them [default: the "
        "file's, its config.json's or its known width's].",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """Which model is opened, and what its weights file does not state."""

    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.models,
            callback=model_of_option,
            help="A folder that `finetune` or `pretrain` wrote, a .keras file, or a "
            "variant, e.g. ViT-B/16 [default: ViT-B/16; a weights file tells its own].",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.tags,
            help="Of a variant: a tag, a file, or 'none' [default: "
            "imagenet21k+imagenet2012].",
        ),
    ] = None
    gelu: Annotated[
        Literal["tanh", "erf"] | None,
        typer.Option(help="The weights' GELU [default: their own]."),
    ] = None
    num_heads: NumHeads = None
    mean: Annotated[
        Triple | None,
        typer.Option(
            help="Channel means that a weights file expects, in 0..1 [default: its "
            "config.json's, or 0.5 each]."
        ),
    ] = None
    std: Annotated[
        Triple | None,
        typer.Option(help="Its channel deviations [default: likewise]."),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedModel(OpenedModel):
    """A model that a new head is put on."""

    weights: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.tags,
            help="Of a variant: a tag such as imagenet21k, a file, or 'none' [default: "
            "the variant's ImageNet-21k weights].",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedModel(OpenedModel):
    """A model that has to be named, before anything else."""

    model: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.models,
            callback=model_of_option,
            help="A folder that `finetune` or `pretrain` wrote, a .keras file, a "
            "weights file, or a variant, e.g. ViT-B/16; --model MODEL is the same.",
        ),
    ] = dataclasses.field()  # Else the base's default is inherited.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeChanges:
    """What a training does otherwise than its recipe."""

    steps: Annotated[int | None, typer.Option(min=1, help="Updates.")] = None
    warmup: Annotated[int | None, typer.Option(min=0, help="Updates of warm-up.")] = (
        None
    )
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="Learning rate; several are tried on held-out training images "
            "[default: the recipe's]."
        ),
    ] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images an update.")] = (
        None
    )
    parts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Parts a batch is cut in to save memory [default: of 32 images a "
            "device].",
        ),
    ] = None
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Pixels, 384 or 384x512 (height x width) [default: the recipe's; a "
            "weights file's own]."
        ),
    ] = None
    augment: Annotated[
        Literal["inception", "flip", "none"] | None,
        typer.Option(
            help="Of training images: random crop and flip, flip, none [default: the "
            "recipe's, or each task's own]."
        ),
    ] = None
    remat: Annotated[
        bool,
        typer.Option(
            "--remat",
            help="Keep the blocks' inputs alone and compute the rest twice: less "
            "memory.",
        ),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningChanges(RecipeChanges):
    """Those of a fine-tuning."""

    freeze: Annotated[bool, typer.Option("--freeze", help="Train the head alone.")] = (
        False
    )
    lora: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="RANK",
            help="Train low-rank changes of the encoder's matrices (LoRA, "
            "arXiv:2106.09685) and the head alone, e.g. 8.",
        ),
    ] = None
    ema: Annotated[
        float | None, typer.Option(help="Polyak averaging, e.g. 0.9999.")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingChanges(RecipeChanges):
    """Those of a pre-training."""

    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None  # type: ignore[assignment]
    epochs: Annotated[
        float | None, typer.Option(help="Passes over all training images.")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """What one process computes on."""

    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"] | None,
        typer.Option(
            help="Keras's dtype policy; mixed_float16 for a T4 or V100 [default: "
            "mixed_bfloat16 on TPUs, else float32].",
            show_default=False,
        ),
    ] = None
    mixed_precision: Annotated[
        bool | None,
        typer.Option(
            help="Deprecated: --precision mixed_bfloat16, --precision float32.",
            hidden=True,
        ),
    ] = None
    distribute: Annotated[
        Literal["auto", "none", "mirrored", "tpu"],
        typer.Option(help="One device, this machine's, a TPU; auto: what is there."),
    ] = "auto"
    tpu: Annotated[
        str | None,
        typer.Option(help="A TPU's name or address, or local [default: local]."),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster(Devices):
    """What all processes of a training compute on."""

    distribute: Annotated[
        Literal["auto", "none", "mirrored", "multiworker", "tpu"],
        typer.Option(
            help="One device, this machine's, the processes of TF_CONFIG, a TPU; auto: "
            "what is there."
        ),
    ] = "auto"  # type: ignore[assignment]
    model_parallel: Annotated[
        int,
        typer.Option(
            min=1, help="On JAX: devices that the blocks' matrices are cut over."
        ),
    ] = 1


SaveMinutes = Annotated[
    float,
    typer.Option(min=0, help="Between two checkpoints; SIGTERM and Ctrl-C save too."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When a training is saved, and whether it goes on."""

    resume: Annotated[
        Literal["auto", "never"],
        typer.Option(help="Go on with the run in --output, or begin anew."),
    ] = "auto"
    save_minutes: SaveMinutes = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes in the place of a variant's (D.2); beyond these no model is built."""

    patch_size: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help="Patch size P in pixels [default: the variant's]."
        ),
    ] = None
    num_layers: Annotated[
        int | None,
        typer.Option(
            "--layers",
            min=1,
            max=1000,
            help="Number of layers [default: the variant's].",
        ),
    ] = None
    hidden_size: Annotated[
        int | None,
        typer.Option(min=1, max=2**16, help="Hidden size D [default: the variant's]."),
    ] = None
    mlp_dim: Annotated[
        int | None,
        typer.Option(min=1, max=2**18, help="MLP size [default: the variant's]."),
    ] = None
    num_heads: Annotated[
        int | None,
        typer.Option(
            "--heads",
            min=1,
            max=2**12,
            help="Number of heads [default: the variant's].",
        ),
    ] = None


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


Variant = Annotated[
    str,
    typer.Option(
        autocompletion=completion.variants,
        callback=variant_of_option,
        help="The variant, e.g. ViT-B/16, R50+ViT-B/16, BiT-R50x1.",
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
