"""Options that several commands have, each described once."""

import dataclasses
import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_vit import export_formats, recipe_fields
from keras_vit.cli import completion
from keras_vit.cli.fields import Changes, FieldsOf
from keras_vit.configs import ViTConfig
from keras_vit.recipes import Recipe

Triple = tuple[float, float, float]
SEEDS: dict[str, Any] = {"min": 0, "max": 2**32 - 1}  # As NumPy's generators accept.


def variant_named(variant: str, folders: bool = False) -> str:
    """Returns the paper's spelling of a variant; raises if there is no builder."""
    from keras_vit.configs import find_variant
    from keras_vit.weights.sources import spelling

    known = completion.variants()
    if (name := find_variant(variant)) in known:
        return str(name)
    wrote = "a folder that `keras-vit finetune` or `pretrain` wrote"
    spelled = {name.lower(): name for name in known}
    close = difflib.get_close_matches(variant.lower(), spelled, n=2)
    if folders and not close:
        found = ", ".join(completion.runs()) or "none"
        raise ValueError(
            f"Expected {wrote}, or a variant of `keras-vit weights list`. Received: "
            f"{variant!r}, which is neither{spelling(variant)}. Such folders here: "
            f"{found}"
        )
    others = f", or {wrote}" if folders else ""
    hint = f" Did you mean {' or '.join(spelled[at] for at in close)}?" if close else ""
    raise ValueError(
        f"Expected one of {', '.join(known)}{others}. Received: {variant}.{hint} "
        "`keras-vit weights list` prints the weights of each"
    )


def variant_of_option(context: typer.Context, value: str) -> str:
    """Returns an option's variant; a misspelled one is an error before Keras starts."""
    return value if context.resilient_parsing else variant_named(value)


def model_of_option(context: typer.Context, value: str | None) -> str | None:
    """Returns an option's variant or path; checks the spelling of a variant."""
    from keras_vit.weights.sources import is_remote

    if value is None or context.resilient_parsing or Path(value).exists():
        return value
    if is_remote(value) or export_formats.of_file(Path(value)) is not None:
        return value
    return variant_named(value, folders=True)


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
            "a TFDS name such as cifar10. Also accepted without --data."
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


LicenseAllow = Annotated[
    str | None,
    typer.Option(
        help="Licenses to accept, e.g. apache-2.0,mit; weights of a different or "
        "unstated license are refused before they are downloaded [default: any]."
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
            help="A folder that `finetune` or `pretrain` wrote, a .keras file, "
            "hf://ORG/NAME, or a variant, e.g. ViT-B/16 [default: ViT-B/16; a weights "
            "file tells its own]. `predict` also opens files of `export`: .tflite, "
            ".onnx, .xml.",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.tags,
            help="Weights of a variant: a tag, a file, a URL, hf://ORG/NAME[@REVISION],"
            " timm:NAME, or 'none' [default: imagenet21k+imagenet2012].",
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
        typer.Option(
            help="Channel deviations that a weights file expects [default: its "
            "config.json's, or 0.5 each]."
        ),
    ] = None
    license_allow: LicenseAllow = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedModel(OpenedModel):
    """A model that a new head is put on."""

    weights: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.tags,
            help="Weights of a variant: a tag such as imagenet21k, a file, a URL, "
            "hf://ORG/NAME[@REVISION], timm:NAME, or 'none' [default: the variant's "
            "ImageNet-21k weights].",
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
            "weights file, hf://ORG/NAME, or a variant, e.g. ViT-B/16; --model MODEL "
            "is the same.",
        ),
    ] = dataclasses.field()  # Else the base's default is inherited.


_RECIPE: dict[str, Any] = {
    "kind": Recipe,
    "default": "the recipe's",
    "defaults": {
        "accumulation_steps": "parts of 32 images for each device",
        "augment": "the recipe's, or each task's own",
        "image_size": "the recipe's; a weights file's own",
    },
    "limits": {
        name: {"min": field.least}
        for name, field in recipe_fields.FIELDS.items()
        if field.least is not None
    }
    | {"lora_rank": {"min": 1, "metavar": "RANK"}},
    "types": {"augment": Literal["inception", "flip", "none"]},
}
_CHANGES = {
    "total_steps": "--steps",
    "epochs": "--epochs",
    "warmup_steps": "--warmup",
    "base_lr": "--learning-rate --lr",
    "batch_size": "--batch-size",
    "accumulation_steps": "--parts",
    "image_size": "--image-size",
    "augment": "--augment",
    "remat": "--remat",
}
_TUNING = {"freeze": "--freeze", "lora_rank": "--lora", "ema": "--ema"}
TuningChanges = Annotated[Changes, FieldsOf(names=_CHANGES | _TUNING, **_RECIPE)]
PretrainingChanges = Annotated[Changes, FieldsOf(names=_CHANGES, **_RECIPE)]
_CONFIG: dict[str, Any] = {
    "kind": ViTConfig,
    "default": "the variant's",
    "limits": {  # Beyond these no model is built.
        "patch_size": {"min": 1, "max": 4096},
        "num_layers": {"min": 1, "max": 1000},
        "hidden_size": {"min": 1, "max": 2**16},
        "mlp_dim": {"min": 1, "max": 2**18},
        "num_heads": {"min": 1, "max": 2**12},
    },
    "types": {"classifier": Literal["token", "gap", "map"]},  # With K logits.
}
_SIZES = {
    "patch_size": "--patch-size",
    "num_layers": "--layers",
    "hidden_size": "--hidden-size",
    "mlp_dim": "--mlp-dim",
    "num_heads": "--heads",
}
_KINDS = {"classifier": "--classifier", "position": "--position"}
Sizes = Annotated[Changes, FieldsOf(names=_SIZES, **_CONFIG)]
Architecture = Annotated[Changes, FieldsOf(names=_SIZES | _KINDS, **_CONFIG)]


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
    typer.Option(
        min=0, help="Minutes between two checkpoints; SIGTERM and Ctrl-C save too."
    ),
]


Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Wait while another process trains in --output; else exit with 75.",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saving:
    """When a training is saved, and whether it waits for its folder."""

    save_minutes: SaveMinutes = 10
    wait: Wait = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints(Saving):
    """When a training is saved, whether it is resumed, and which checkpoints stay."""

    resume: Annotated[
        Literal["auto", "never"],
        typer.Option(help="Resume the run in --output, or start again."),
    ] = "auto"
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            help="Newest checkpoints to keep; `runs replay` starts from any of them.",
        ),
    ] = 2


Variant = Annotated[
    str,
    typer.Option(
        autocompletion=completion.variants,
        callback=variant_of_option,
        help="The variant, e.g. ViT-B/16, R50+ViT-B/16, BiT-R50x1.",
    ),
]
Images = Annotated[int, typer.Option(min=1, help="Images in a batch.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON on standard output, and other messages on standard error.",
    ),
]
TestSeed = Annotated[
    int | None,
    typer.Option(
        **SEEDS,
        help="Random seed of the test share, if the data has no test set [default: the"
        " run's, whose training never saw that share].",
    ),
]
TuningRecipe = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.rows,
        help="A row of Table 4 [default: the data set's own, else oxford_flowers102's: "
        "500 steps].",
    ),
]
PretrainingRecipe = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.recipes,
        help="A recipe of `keras-vit recipes`; for MODEL-imagenet21k the name of the "
        "data is enough [default: imagenet2012, or masked-patches].",
    ),
]
