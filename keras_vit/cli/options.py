"""Options that several commands share."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_vit import arguments, export_formats, recipe_fields
from keras_vit.cli import completion
from keras_vit.cli.fields import Changes, FieldsOf
from keras_vit.configs import ViTConfig
from keras_vit.recipes import Recipe

Triple = tuple[float, float, float]
SEEDS: dict[str, Any] = {"min": 0, "max": 2**32 - 1}  # The range that NumPy accepts.


def variant_named(variant: str, folders: bool = False) -> str:
    """Returns the paper's spelling of a variant; raises if there is no builder."""
    from keras_vit.configs import find_variant
    from keras_vit.weights.sources import spelling

    known = completion.variants()
    if (name := find_variant(variant)) in known:
        return str(name)
    run_folder = "a folder written by `keras-vit finetune` or `pretrain`"
    close = arguments.similar(variant, known)
    if folders and not close:
        runs = ", ".join(completion.runs()) or "none"
        raise ValueError(
            f"Expected {run_folder}, or a variant of `keras-vit weights list`. "
            f"Received: {variant!r}, which is neither{spelling(variant)}. Finished "
            f"runs below the current folder: {runs}"
        )
    others = f", or {run_folder}" if folders else ""
    hint = arguments.did_you_mean(close)
    raise ValueError(
        f"Expected one of {', '.join(known)}{others}. Received: {variant}.{hint} "
        "`keras-vit weights list` prints the weights of each variant"
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
    typer.Option(help="Stop at an unreadable image of a folder, or skip it."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageData:
    """Labeled images, and the handling of unreadable ones."""

    data: Annotated[
        str,
        typer.Option(
            help="A folder of images (train/CLASS/*.jpg and test/CLASS/*.jpg, or "
            "CLASS/*.jpg), a folder written by `keras-vit data pack`, an .npz file, "
            "'digits', or a TFDS name such as cifar10. Also accepted as an argument, "
            "without --data."
        ),
    ]
    on_corrupt: Corrupt = "stop"


NumHeads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of attention heads, if a weights file does not contain it "
        "[default: from the file, its config.json or a known width].",
    ),
]


LicenseAllow = Annotated[
    str | None,
    typer.Option(
        help="Accepted licenses, e.g. apache-2.0,mit; weights with a different or no "
        "stated license are refused before they are downloaded [default: any]."
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """The model to open, and values that its weights file does not contain."""

    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.models,
            callback=model_of_option,
            help="A folder written by `finetune` or `pretrain`, a .keras file, "
            "hf://ORG/NAME, or a variant, e.g. ViT-B/16 [default: ViT-B/16, or the "
            "architecture of the weights file]. `predict` also opens exported files: "
            ".tflite, .onnx, .xml.",
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
        typer.Option(help="GELU of the model [default: that of its weights]."),
    ] = None
    num_heads: NumHeads = None
    mean: Annotated[
        Triple | None,
        typer.Option(
            help="Channel means for a weights file, in [0, 1] [default: from its "
            "config.json, or 0.5 each]."
        ),
    ] = None
    std: Annotated[
        Triple | None,
        typer.Option(
            help="Channel standard deviations for a weights file [default: from its "
            "config.json, or 0.5 each]."
        ),
    ] = None
    license_allow: LicenseAllow = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedModel(OpenedModel):
    """A model that receives a new head."""

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
    """A required model, the first argument of the command."""

    model: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.models,
            callback=model_of_option,
            help="A folder written by `finetune` or `pretrain`, a .keras file, a "
            "weights file, hf://ORG/NAME, or a variant, e.g. ViT-B/16. Also accepted "
            "as --model MODEL.",
        ),
    ] = dataclasses.field()  # Otherwise the default of the base class is inherited.


_RECIPE: dict[str, Any] = {
    "kind": Recipe,
    "default": "the recipe's",
    "defaults": {
        "accumulation_steps": "parts of 32 images for each device",
        "augment": "the recipe's, or the task's",
        "image_size": "the recipe's, or that of a weights file",
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
    "limits": {  # Models above these limits are refused.
        "patch_size": {"min": 1, "max": 4096},
        "num_layers": {"min": 1, "max": 1000},
        "hidden_size": {"min": 1, "max": 2**16},
        "mlp_dim": {"min": 1, "max": 2**18},
        "num_heads": {"min": 1, "max": 2**12},
    },
    "types": {"classifier": Literal["token", "gap", "map"]},  # Those with K logits.
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
    """Devices and precision of one process."""

    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"] | None,
        typer.Option(
            help="Keras dtype policy; use mixed_float16 on a T4 or V100 [default: "
            "mixed_bfloat16 on TPUs, else float32].",
            show_default=False,
        ),
    ] = None
    mixed_precision: Annotated[
        bool | None,
        typer.Option(
            help="Deprecated: use --precision mixed_bfloat16 or float32.",
            hidden=True,
        ),
    ] = None
    distribute: Annotated[
        Literal["auto", "none", "mirrored", "tpu"],
        typer.Option(
            help="Devices: one (none), all of this machine (mirrored) or a TPU (tpu); "
            "auto detects them."
        ),
    ] = "auto"
    tpu: Annotated[
        str | None,
        typer.Option(help="Name or address of a TPU, or local [default: local]."),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster(Devices):
    """Devices and precision of all processes of a training run."""

    distribute: Annotated[
        Literal["auto", "none", "mirrored", "multiworker", "tpu"],
        typer.Option(
            help="Devices: one (none), all of this machine (mirrored), all of the "
            "processes in TF_CONFIG (multiworker) or a TPU (tpu); auto detects them."
        ),
    ] = "auto"  # type: ignore[assignment]
    model_parallel: Annotated[
        int,
        typer.Option(
            min=1, help="On JAX: number of devices to shard the blocks' matrices over."
        ),
    ] = 1


SaveMinutes = Annotated[
    float,
    typer.Option(
        min=0, help="Minutes between checkpoints; SIGTERM and Ctrl-C also save one."
    ),
]


Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Wait while another process trains in --output, instead of exiting with "
        "code 75.",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saving:
    """Options for saving a training run and waiting for its folder."""

    save_minutes: SaveMinutes = 10
    wait: Wait = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints(Saving):
    """Options for saving, resuming and keeping checkpoints."""

    resume: Annotated[
        Literal["auto", "never"],
        typer.Option(help="Resume the run in --output, or start over."),
    ] = "auto"
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of newest checkpoints to keep; `runs replay` starts from any "
            "of them.",
        ),
    ] = 2


Variant = Annotated[
    str,
    typer.Option(
        autocompletion=completion.variants,
        callback=variant_of_option,
        help="Variant, e.g. ViT-B/16, R50+ViT-B/16, BiT-R50x1.",
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
        help="Random seed of the test share, if the data has no test set [default: "
        "that of the run, which was not trained on this share].",
    ),
]
TuningRecipe = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.rows,
        help="A row of Table 4 [default: that of the data set, else oxford_flowers102 "
        "with 500 steps].",
    ),
]
PretrainingRecipe = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.recipes,
        help="A recipe listed by `keras-vit recipes`; imagenet21k is short for "
        "MODEL-imagenet21k [default: imagenet2012, or masked-patches].",
    ),
]
