"""The command line: `keras-vit demo | finetune | transfer | pretrain | ...`."""

import dataclasses
import importlib
import importlib.metadata
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import keras

    from keras_vit.data.sources import Source
    from keras_vit.evaluation.cards import Card
    from keras_vit.evaluation.classification import Task
    from keras_vit.paper import Accuracy
    from keras_vit.recipes import Recipe
    from keras_vit.weights.registry import Checkpoint

app = typer.Typer(
    rich_markup_mode=None,
    help="The Vision Transformer paper (arXiv:2010.11929v2) from a shell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console(markup=False, highlight=False, soft_wrap=True)
errors = Console(stderr=True, style="red", markup=False, soft_wrap=True)

Triple = tuple[float, float, float]
HALF: Triple = (0.5, 0.5, 0.5)

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
        help="The variant, e.g. ViT-B/16 [default: ViT-B/16; a weights file tells its "
        "own]."
    ),
]
PretrainedWeights = Annotated[
    str | None,
    typer.Option(
        help="A tag such as imagenet21k, a file, or 'none' [default: the variant's "
        "ImageNet-21k weights]."
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
Ema = Annotated[float | None, typer.Option(help="Polyak averaging, e.g. 0.9999.")]
Gelu = Annotated[
    Literal["tanh", "erf"] | None,
    typer.Option(help="The weights' GELU [default: tanh, the published ones']."),
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


@dataclasses.dataclass
class Run:
    """A trained model in a folder: `model.keras` and what its user must know."""

    classes: list[str]
    mean: Triple
    std: Triple
    details: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Writes `run.json` beside the model."""
        from keras_vit.files import write_json

        write_json(folder / "run.json", dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Run":
        """Reads `run.json`."""
        expected = (
            "Expected a folder that `keras-vit finetune` wrote, with model.keras and "
            f"run.json. Received: {str(folder)!r}"
        )
        missing = [
            name
            for name in ("model.keras", "run.json")
            if not (folder / name).is_file()
        ]
        if missing:
            raise ValueError(f"{expected} without {' and '.join(missing)}")
        try:
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            mean, std = tuple(run["mean"]), tuple(run["std"])
            return cls(run["classes"], mean, std, run["details"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{expected}, whose run.json is damaged") from error


@app.command()
def finetune(
    context: typer.Context,
    data: Data,
    model: Pretrained = None,
    weights: PretrainedWeights = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the model, its history and run.json.")
    ] = Path("runs/finetune"),
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A row of Table 4 [default: the data set's own, else "
            "oxford_flowers102's: 500 steps]."
        ),
    ] = None,
    steps: Steps = None,
    warmup: Warmup = None,
    lr: Rates = None,
    batch_size: BatchSize = None,
    parts: Parts = None,
    image_size: ImageSize = None,
    augment: Augment = None,
    freeze: Freeze = False,
    ema: Ema = None,
    mixed_precision: MixedPrecision = None,
    remat: Remat = False,
    distribute: Distribute = "auto",
    tpu: Tpu = None,
    model_parallel: ModelParallel = 1,
    gelu: Gelu = None,
    mean: MeanOption = None,
    std: StdOption = None,
    seed: Annotated[int, typer.Option(help="Of order, crops and dropout.")] = 0,
    on_corrupt: Corrupt = "stop",
    resume: Resume = "auto",
    save_minutes: SaveMinutes = 10,
) -> None:
    """Fine-tunes a pretrained ViT on your images, as Table 4 of the paper does."""
    import keras_vit

    replicas = _on_devices(context, distribute, tpu, model_parallel, mixed_precision)
    source = _prepared(data, seed, on_corrupt)
    settings = _changed(
        _table_4(recipe, data),
        len(source.train),
        replicas,
        total_steps=steps,
        warmup_steps=warmup,
        base_lr=tuple(lr) if lr else None,
        batch_size=batch_size,
        accumulation_steps=parts,
        image_size=_size(image_size),
        augment=augment,
        remat=remat or None,
        freeze=freeze or None,
        ema=ema,
    )
    size = None if image_size is None else settings.image_size
    network = _pretrained(model, weights, size, settings.image_size, gelu)
    network = keras_vit.for_task(network, len(source.classes))
    mean, std = _normalization(weights, mean, std)
    told = {"data": data, "model": model, "weights": weights, "seed": seed}
    options = {"resume": resume, "save_minutes": save_minutes}
    _train(network, settings, source, output, (mean, std), told, **options)


def _pretrained(
    model: str | None,
    weights: str | None,
    file_size: tuple[int, int] | None,
    size: tuple[int, int] | None,
    gelu: str | None,
) -> Any:
    """A pretrained model: of a file, for images of `file_size`, or of a builder.

    None is the size of the weights.
    """
    import keras_vit

    overrides: dict[str, Any] = {} if gelu is None else {"gelu": gelu}
    if model is None and _is_checkpoint(weights):
        network = keras_vit.from_checkpoint(weights, image_size=file_size, **overrides)
        console.print(str(network.checkpoint_report).splitlines()[0])
        return network
    return _builder(model or "ViT-B/16")(
        include_top=False,
        pooling=_pooling(model or "ViT-B/16"),
        input_shape=None if size is None else (*size, 3),
        **({} if weights is None else {"weights": _none(weights)}),
        **overrides,
    )


def _train(
    network: Any,
    recipe: "Recipe",
    source: Any,
    output: Path,
    normalization: tuple[Triple, Triple],
    told: dict[str, Any],
    **options: Any,
) -> None:
    """Trains a network and leaves a folder that `predict` and `evaluate` take."""
    import keras_vit
    from keras_vit.training.distribution import Workers

    mean, std = normalization
    console.print(
        f"{len(source.train)} training images of {len(source.classes)} classes, "
        f"{network.input_shape[1]}x{network.input_shape[2]} px, "
        f"{network.count_params():,} parameters"
    )
    result = keras_vit.training.fit(
        network,
        recipe,
        source,
        mean=mean,
        std=std,
        seed=told["seed"],
        output=output,
        verbose=_progress(),
        **options,
    )
    details = {
        **told,
        "learning_rate": result.learning_rate,
        "test_accuracy": result.test_accuracy,
        "keras_vit": keras_vit.__version__,
    }
    if Workers.of(network).chief:
        Run(list(source.classes), mean, std, details).save(output)
    if result.test_accuracy is not None:
        right = round(result.test_accuracy * result.test_images)
        console.print(
            f"test accuracy {result.test_accuracy:.2%} "
            f"({right} of {result.test_images} images)"
        )
    console.print(f"wrote {output}; next: keras-vit predict --model {output} IMAGE...")


@app.command()
def pretrain(
    context: typer.Context,
    data: Data,
    model: Annotated[
        str, typer.Option(help="The variant, e.g. ViT-B/16, R50+ViT-B/16, BiT-R50x1.")
    ] = "ViT-B/16",
    recipe: Annotated[
        str | None,
        typer.Option(
            help="As `keras-vit recipes` names it; of MODEL-imagenet21k the data is "
            "enough [default: imagenet2012]."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the model, its history and checkpoints.")
    ] = Path("runs/pretrain"),
    patch_size: Annotated[
        int | None, typer.Option(help="P in pixels, in the place of the variant's.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Depth, in the place of the variant's (D.2).")
    ] = None,
    hidden_size: Annotated[int | None, typer.Option(help="D, likewise.")] = None,
    mlp_dim: Annotated[int | None, typer.Option(help="MLP size, likewise.")] = None,
    heads: Annotated[int | None, typer.Option(help="k, likewise.")] = None,
    classifier: Annotated[
        Literal["token", "gap", "map"] | None,
        typer.Option(help="What the head reads (D.3), likewise."),
    ] = None,
    position: Annotated[
        Literal["none", "1d", "2d", "sincos2d", "relative"] | None,
        typer.Option(help="Positions (D.4), likewise."),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training images.")
    ] = None,
    steps: Steps = None,
    warmup: Warmup = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch_size: BatchSize = None,
    parts: Parts = None,
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Pixels, 224 or 224x320 (height x width) [default: the recipe's]."
        ),
    ] = None,
    augment: Augment = None,
    mixed_precision: MixedPrecision = None,
    remat: Remat = False,
    distribute: Distribute = "auto",
    tpu: Tpu = None,
    model_parallel: ModelParallel = 1,
    seed: Annotated[int, typer.Option(help="Of weights, order, crops, dropout.")] = 0,
    on_corrupt: Corrupt = "stop",
    resume: Resume = "auto",
    save_minutes: SaveMinutes = 10,
) -> None:
    """Trains a model from random weights, as Table 3 of the paper does."""
    _check_variant(model)
    replicas = _on_devices(context, distribute, tpu, model_parallel, mixed_precision)
    source = _prepared(data, seed, on_corrupt)
    row = _table_3(model, recipe or "imagenet2012")
    if epochs or steps:  # The other of the two is the recipe's no more.
        row = dataclasses.replace(row, epochs=epochs, total_steps=steps)
    settings = _changed(
        row,
        len(source.train),
        replicas,
        warmup_steps=warmup,
        base_lr=None if lr is None else (lr,),
        batch_size=batch_size,
        accumulation_steps=parts,
        image_size=_size(image_size),
        augment=augment,
        remat=remat or None,
    )
    shape = _given(
        patch_size=patch_size,
        num_layers=layers,
        hidden_size=hidden_size,
        mlp_dim=mlp_dim,
        num_heads=heads,
        classifier=classifier,
        position=position,
    )
    network = _from_scratch(model, settings, len(source.classes), **shape)
    told = {"data": data, "model": model, "recipe": recipe, "seed": seed}
    options = {"resume": resume, "save_minutes": save_minutes}
    _train(network, settings, source, output, (HALF, HALF), told, **options)


@app.command()
def transfer(
    context: typer.Context,
    data: Data,
    model: Pretrained = None,
    weights: PretrainedWeights = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Final trainings, a seed each; the paper has 3.")
    ] = 3,
    output: Annotated[
        Path, typer.Option(help="Folder for run-0, run-1, ... and transfer.json.")
    ] = Path("runs/transfer"),
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A row of Table 4, whose data set --data is [default: by its name, "
            "else oxford_flowers102's: 500 steps]."
        ),
    ] = None,
    pretrained_on: Annotated[
        Literal["imagenet21k", "imagenet2012", "jft300m"] | None,
        typer.Option(help="For the paper's number [default: what --weights tells]."),
    ] = None,
    steps: Steps = None,
    warmup: Warmup = None,
    lr: Rates = None,
    batch_size: BatchSize = None,
    parts: Parts = None,
    image_size: ImageSize = None,
    augment: Augment = None,
    freeze: Freeze = False,
    ema: Ema = None,
    mixed_precision: MixedPrecision = None,
    remat: Remat = False,
    distribute: Distribute = "auto",
    tpu: Tpu = None,
    model_parallel: ModelParallel = 1,
    gelu: Gelu = None,
    mean: MeanOption = None,
    std: StdOption = None,
    seed: Annotated[
        int, typer.Option(help="Of the first run; the next ones have the next seeds.")
    ] = 0,
    on_corrupt: Corrupt = "stop",
    resume: Resume = "auto",
    save_minutes: SaveMinutes = 10,
) -> None:
    """Measures how a model transfers as section 4.1 does, beside the paper's number.

    The learning rates are tried once; the best one trains RUNS models on all training
    images. Prints the sweep, each run, mean and deviation, and what differs from the
    paper. The same command goes on with what was cut, and adds runs.
    """
    import keras_vit
    from keras_vit.training.distribution import Workers

    replicas = _on_devices(context, distribute, tpu, model_parallel, mixed_precision)
    source = _prepared(data, seed, on_corrupt)
    settings = _changed(
        _table_4(recipe, data),
        len(source.train),
        replicas,
        total_steps=steps,
        warmup_steps=warmup,
        base_lr=tuple(lr) if lr else None,
        batch_size=batch_size,
        accumulation_steps=parts,
        image_size=_size(image_size),
        augment=augment,
        remat=remat or None,
        freeze=freeze or None,
        ema=ema,
    )
    size = None if image_size is None else settings.image_size
    network = _pretrained(model, weights, size, settings.image_size, gelu)
    settings = dataclasses.replace(settings, image_size=network.input_shape[1:3])
    mean, std = _normalization(weights, mean, std)
    tag = weights or "imagenet21k"  # What a builder takes, where the paper has it.
    told = tag if tag in keras_vit.recipes.IMAGES else None
    result = keras_vit.training.transfer(
        network,
        source,
        recipe=settings,
        row=recipe,
        pretrained_on=pretrained_on or told,
        runs=runs,
        mean=mean,
        std=std,
        seed=seed,
        output=output,
        resume=resume,
        save_minutes=save_minutes,
        verbose=_progress(),
    )
    if Workers.of(network).chief:
        for run in range(runs):
            details = {"data": data, "model": model, "weights": weights, "run": run}
            details |= {"seed": seed}  # The first run's: it draws the test share.
            kept = Run(list(source.classes), mean, std, details)
            kept.save(output / f"run-{run}")
    console.print(str(result))
    next_one = f"keras-vit predict --model {output / 'run-0'} IMAGE..."
    console.print(f"wrote {output}; next: {next_one}")


def _from_scratch(
    variant: str, recipe: "Recipe", classes: int, **shape: Any
) -> "keras.Model":
    """A variant with random weights, as the recipe wants it built."""
    import keras_vit

    config = keras_vit.VARIANTS[variant]
    asked: dict[str, Any] = recipe.model_options() | shape
    if isinstance(config, keras_vit.ResNetConfig):
        build: Any = keras_vit.resnet
        asked = {key: value for key, value in asked.items() if value}  # No dropout.
    elif isinstance(config, keras_vit.ViTConfig):
        build = keras_vit.vit
    else:
        raise ValueError(
            "Expected a ViT, a hybrid or a ResNet (4.1). Received: "
            f"--model {variant}, a baseline of other authors"
        )
    unknown = asked.keys() - {field.name for field in dataclasses.fields(config)}
    if unknown:
        raise ValueError(
            f"Expected options that {variant} has. Received: "
            f"{', '.join(sorted(unknown))}"
        )
    config = dataclasses.replace(config, **asked)
    return build(config, image_size=recipe.image_size, num_classes=classes)


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {key: value for key, value in options.items() if value is not None}


def _on_devices(
    context: typer.Context,
    distribute: Any,
    tpu: str | None,
    model_parallel: int,
    mixed_precision: bool | None,
) -> int:
    """Runs the rest of the command on these devices; returns how many they are.

    A model is built under their strategy and in their precision. Worker 0 alone prints.
    """
    import keras

    from keras_vit.training import distribution

    strategy = distribution.strategy(distribute, tpu=tpu, model_parallel=model_parallel)
    context.with_resource(strategy.scope())
    workers = distribution.Workers(strategy)
    console.quiet = not workers.chief
    if distribution.on_tpu(strategy) if mixed_precision is None else mixed_precision:
        keras.config.set_dtype_policy("mixed_bfloat16")
    return workers.replicas


def _prepared(data: str, seed: int, on_corrupt: Any) -> "Source":
    """The data of a training, whose seed is set before a model is."""
    import keras

    from keras_vit.data import sources

    keras.utils.set_random_seed(seed)
    return sources.open_source(data, seed=seed, on_corrupt=on_corrupt)


def _table_3(model: str, name: str) -> "Recipe":
    """The recipe of a name, or of a model and the data it is for."""
    from keras_vit.recipes import PRETRAIN, find

    return PRETRAIN.get(f"{model.removeprefix('BiT-')}-{name}") or find(name)


def _table_4(name: str | None, data: str) -> "Recipe":
    """The row of a name, or the data set's own."""
    from keras_vit.recipes import FINETUNE, finetune_row

    if name is not None and name not in FINETUNE:
        raise ValueError(
            f"Expected one of {', '.join(FINETUNE)}. Received: --recipe {name}"
        )
    return FINETUNE[name or finetune_row(data)]


def _changed(row: "Recipe", images: int, devices: int, **options: Any) -> "Recipe":
    """A recipe for so many images with the options that were given.

    What was not given fits a machine of one's own: parts of 32 images on each device,
    and a warm-up of a fifth of the steps at most.
    """
    changes = _given(**options)
    batch = changes.get("batch_size", row.batch_size)
    part = 32 * devices
    changes.setdefault("accumulation_steps", batch // part if batch % part == 0 else 1)
    recipe = dataclasses.replace(row, **changes).for_images(images)
    if "warmup_steps" in changes:
        return recipe
    warmup = min(recipe.warmup_steps, recipe.steps // 5)
    return dataclasses.replace(recipe, warmup_steps=warmup)


def _is_checkpoint(weights: str | None) -> TypeGuard[str]:
    """Whether `weights` is a file, or a folder as timm and transformers write it."""
    if weights is None:
        return False
    from keras_vit.weights.contents import is_folder

    return Path(weights).is_file() or is_folder(weights)


def _beside(weights: str | None) -> dict[str, Any]:
    """The config.json beside a weights file; nothing for a tag."""
    import keras_vit

    return keras_vit.weights.config_beside(weights) if _is_checkpoint(weights) else {}


def _normalization(
    weights: str | None, mean: Triple | None, std: Triple | None
) -> tuple[Triple, Triple]:
    """Mean and deviation: the options, else the file's config.json, else 0.5."""
    beside = _beside(weights)
    mean = mean or tuple(beside.get("mean", HALF))
    std = std or tuple(beside.get("std", HALF))
    return mean, std


def _progress() -> int:
    """Keras's `verbose`: bars for a terminal, a line an epoch for a file."""
    return 1 if sys.stdout.isatty() else 2


def _size(text: str | None, option: str = "--image-size") -> tuple[int, int] | None:
    """'384' or '384x512' as (H, W)."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdigit() and int(side) for side in sides):
        raise ValueError(
            "Expected pixels as 384 or 384x512 (height x width). "
            f"Received: {option} {text}"
        )
    return int(sides[0]), int(sides[-1])


def _none(weights: str) -> str | None:
    return None if weights.lower() == "none" else weights


def _pooling(variant: str) -> str:
    """What a new head reads: the class token where there is one (D.3)."""
    from keras_vit.configs import VARIANTS, ViTConfig, builder_name

    config = VARIANTS.get(builder_name(variant))
    is_token = isinstance(config, ViTConfig) and config.classifier == "token"
    return "token" if is_token else "avg"


def _builder(variant: str) -> Any:
    """The builder of a variant in either spelling."""
    import keras_vit
    from keras_vit.configs import builder_name

    _check_variant(variant)
    return getattr(keras_vit, builder_name(variant))


def _check_variant(variant: str) -> None:
    import keras_vit
    from keras_vit.configs import VARIANTS, builder_name

    built = [known for known in VARIANTS if hasattr(keras_vit, builder_name(known))]
    if builder_name(variant) not in built:
        known = ", ".join(variant for variant in built if "_" not in variant)
        raise ValueError(
            f"Expected one of {known}, or a folder that `keras-vit "
            f"finetune` wrote. Received: --model {variant}"
        )


def _open_model(
    model: str | None, weights: str | None, mean: Triple | None, std: Triple | None
) -> tuple[Any, Run]:
    """A trained model and its run: from a run's folder, a variant, or a file."""
    import keras

    import keras_vit
    from keras_vit.applications import imagenet2012_labels

    if model is not None and Path(model).is_dir():
        run = Run.load(Path(model))
        run.mean, run.std = mean or run.mean, std or run.std
        return keras.models.load_model(Path(model) / "model.keras"), run
    if model is None and _is_checkpoint(weights):
        network = keras_vit.from_checkpoint(weights)
    else:
        network = _builder(model or "ViT-B/16")(
            weights=weights or "imagenet21k+imagenet2012",
            classifier_activation=None,
        )
    if "head" not in {layer.name for layer in network.layers}:
        raise ValueError(
            "Expected weights with a head, one output for each class. Received: "
            f"{weights} without. keras-vit finetune makes one"
        )
    count = network.output_shape[-1]
    classes = (
        list(imagenet2012_labels())
        if count == 1000
        else [f"class {i}" for i in range(count)]
    )
    return network, Run(classes, *_normalization(weights, mean, std), {})


ModelOption = Annotated[
    str | None,
    typer.Option(
        help="A folder that `finetune` wrote, or a variant [default: ViT-B/16; a "
        "weights file tells its own]."
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        help="Of a variant: a tag or a file [default: imagenet21k+imagenet2012]."
    ),
]


@app.command()
def predict(
    images: Annotated[
        list[Path], typer.Argument(help="Image files, or folders of them.")
    ],
    model: ModelOption = None,
    weights: WeightsOption = None,
    top: Annotated[
        int, typer.Option(min=1, help="Classes to print for each image.")
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object a line.")
    ] = False,
    mean: MeanOption = None,
    std: StdOption = None,
) -> None:
    """Prints the most probable classes of images."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_vit.data import preprocessing

    files = [file for path in images for file in _image_files(path)]
    network, run = _open_model(model, weights, mean, std)
    size, channels = network.input_shape[1:3], network.input_shape[-1]
    failed = 0
    for file in files:
        try:
            image = preprocessing.decode(tf.io.read_file(str(file)))
        except (tf.errors.OpError, ValueError) as error:
            failed += 1
            reason = str(getattr(error, "message", error)).splitlines()[0]
            reason = reason.rpartition("}} ")[2].removesuffix(" [Op:DecodeImage]")
            errors.print(f"{file}: not a readable image ({reason})")
            continue
        image = preprocessing.prepare(image, size, run.mean, run.std, channels)
        logits = network(np.asarray(image)[None], training=False)
        scores = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
        best = np.argsort(-scores)[:top]
        _print_prediction(
            file, [(run.classes[i], float(scores[i])) for i in best], as_json
        )
    if failed:
        raise typer.Exit(1)


def _image_files(path: Path) -> list[Path]:
    from keras_vit.data.sources import IMAGE_SUFFIXES

    if path.is_dir():
        found = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES
        )
        if not found:
            raise ValueError(
                f"Expected images ({', '.join(sorted(IMAGE_SUFFIXES))}) in the folder. "
                f"Received: {str(path)!r}"
            )
        return found
    if not path.exists():
        raise ValueError(f"Expected an image or a folder. Received: {str(path)!r}")
    return [path]


def _print_prediction(file: Path, best: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        classes = [{"class": name, "probability": score} for name, score in best]
        print(json.dumps({"image": str(file), "top": classes}, ensure_ascii=False))
        return
    table = Table(
        title=Text(str(file)), title_justify="left", show_header=False, box=None
    )
    for name, score in best:
        table.add_row(f"{score:7.2%}", name)
    console.print(table)


@app.command()
def evaluate(
    data: Annotated[
        str | None,
        typer.Option(
            help="As in `finetune` [default: what the run was trained on]. With "
            "--imagenet: a TFDS name, or the set's folder [default: TFDS's]."
        ),
    ] = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    imagenet: Annotated[
        Literal["val", "real", "v2", "a", "r", "sketch", "objectnet"] | None,
        typer.Option(help="One of the sets of ImageNet's classes, by its own rules."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Of --imagenet real: real.json, but for TFDS's own."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results card: card.json, .md and .html, its pictures, "
            "and what was said of every image, which `compare` takes."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The model's name in the card [default: --model's]."),
    ] = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Print each class's accuracy.")
    ] = False,
    temperature: Annotated[
        bool,
        typer.Option(
            "--temperature",
            help="Print what temperature scaling does; it keeps all logits in memory.",
        ),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 32,
    mean: MeanOption = None,
    std: StdOption = None,
    on_corrupt: Corrupt = "stop",
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of the test share, where the data has no test set [default: the "
            "run's, whose training never saw that share]."
        ),
    ] = None,
) -> None:
    """Prints accuracy and calibration on test images, every one of them counted.

    With 95 % intervals; the loss is the mean negative log-likelihood, ece the expected
    calibration error.
    """
    from keras_vit.evaluation.cards import Card
    from keras_vit.evaluation.classification import classify
    from keras_vit.inspection import plots

    if output is not None:
        plots.check()
    network, run = _open_model(model, weights, mean, std)
    if seed is None:
        seed = run.details.get("seed", 0)
    task = _task(data, imagenet, labels, run, seed, on_corrupt)
    found = classify(
        network,
        task,
        batch_size=batch_size,
        mean=run.mean,
        std=run.std,
        keep_logits=temperature,
    )
    card = Card.of(
        network,
        found,
        name=name or model or weights or "ViT-B/16",
        command=shlex.join(["keras-vit", *sys.argv[1:]]),
        weights_file=_weights_file(model, weights),
    )
    _print_results(card)
    try:
        if found.logits is not None:
            card = card.with_temperatures(found.logits)
            _print_scaled(card)
    finally:  # Where no temperature is the best, the evaluation is not lost.
        if output is not None:
            card.write(output)
            console.print(
                f"wrote {output / 'card.html'}; keras-vit compare takes {output}"
            )
    if per_class:
        console.print(_per_class_table(card))


def _task(
    data: str | None,
    imagenet: str | None,
    labels: Path | None,
    run: Run,
    seed: int,
    on_corrupt: Any,
) -> "Task":
    """The images to evaluate on: of ImageNet's family, else a source's."""
    from keras_vit.data import sources
    from keras_vit.evaluation.classification import task_of
    from keras_vit.evaluation.imagenet import open_task

    if imagenet is not None:
        return open_task(imagenet, data=data, labels=labels, on_corrupt=on_corrupt)
    if labels is not None:
        raise ValueError(
            "Expected --labels with --imagenet real. Received: --labels "
            f"{labels} without"
        )
    data = data or run.details.get("data")
    if data is None:
        raise ValueError(
            "Expected a data set, or a model that `keras-vit finetune` wrote. "
            "Received: no --data"
        )
    return task_of(sources.open_source(data, seed=seed, on_corrupt=on_corrupt))


def _weights_file(model: str | None, weights: str | None) -> Path | None:
    """The file that the weights were read from, if it was one."""
    if model is not None and Path(model).is_dir():
        return Path(model) / "model.keras"
    return Path(weights) if weights is not None and Path(weights).is_file() else None


def _print_results(card: "Card") -> None:
    names = {"loss": "nll", "top_1": "top_1", "top_5": "top_5", "ece": "ece"}
    for name, key in names.items():
        found = card.results[key]
        interval = f"(95 %: {found.low:.4f} to {found.high:.4f})"
        console.print(f"{name:6} {found.value:.4f}  {interval}")
    images, right = len(card.images), int(card.images.right.sum())
    console.print(f"{right} of {images} images right")
    if card.data["without_label"]:
        console.print(f"{card.data['without_label']} more have no label")


def _print_scaled(card: "Card") -> None:
    temperatures = " and ".join(f"{t:.4f}" for t in card.temperatures)
    nll, ece = (card.scaled[key].value for key in ("nll", "ece"))
    console.print(
        f"scaled by temperatures {temperatures}, each half by the other's: loss "
        f"{nll:.4f}, ece {ece:.4f}"
    )


def _per_class_table(card: "Card") -> Table:
    if not card.has_classes:
        raise ValueError(
            "Expected images of one class each for --per-class. Received: "
            f"{card.data['name']}, whose labels are sets"
        )
    table = Table(box=None, pad_edge=False)
    for title, justify in (
        ("class", "left"),
        ("accuracy", "right"),
        ("right", "right"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    classes = card.data["classes"]
    for name, right, images in zip(
        classes, *card.images.per_class(len(classes)), strict=True
    ):
        share = f"{right / images:.4f}" if images else ""
        table.add_row(Text(name), share, f"{right} of {images}")
    return table


@app.command()
def compare(
    cards: Annotated[
        list[Path],
        typer.Argument(help="Two or more folders that `evaluate --output` wrote."),
    ],
) -> None:
    """Prints results side by side, each less the first card's, image by image.

    Cards of the same images are compared by paired bootstrap and McNemar's exact test;
    cards of Table 2's data sets are printed in its layout, beside the paper's.
    """
    from keras_vit.evaluation.cards import Card
    from keras_vit.evaluation.comparison import table_2

    if len(cards) < 2:
        raise ValueError("Expected two cards or more. Received: one")
    loaded = [Card.load(path) for path in cards]
    for letter, path, card in zip(_letters(loaded), cards, loaded, strict=True):
        images = f"{card.data['images']:,} images"
        console.print(f"{letter}: {path}, {card.name} on {card.data['name']}, {images}")
    for table in (_cards_table(loaded), _differences_table(loaded)):
        console.print()
        console.print(table)
    columns, rows = table_2(loaded)
    if rows:
        table = Table(box=None, pad_edge=False, title_justify="left")
        table.title = "Table 2, the paper's columns first"
        for column in columns:
            table.add_column(Text(column))
        for row in rows:
            table.add_row(*map(Text, row))
        console.print()
        console.print(table)


def _cards_table(cards: "list[Card]") -> Table:
    """A column for each card: its results."""
    from keras_vit.evaluation.card_pages import shown
    from keras_vit.evaluation.cards import RESULTS

    table = Table(box=None, pad_edge=False)
    for letter in ("", *_letters(cards)):
        table.add_column(letter)
    for key in RESULTS:
        found = [shown(key, card.results[key]) for card in cards]
        cells = [f"{value} ({interval})".replace(" %", "") for value, interval in found]
        table.add_row(f"{key} %" if key.startswith("top") else key, *cells)
    return table


def _differences_table(cards: "list[Card]") -> Table:
    """A column for each card but the first: what it has more."""
    from keras_vit.evaluation.comparison import difference

    table = Table(box=None, pad_edge=False)
    rows: dict[str, list[str]] = {
        name: [] for name in ("top_1", "right alone", "McNemar p", "nll")
    }
    table.add_column("")
    for letter, card in zip(_letters(cards)[1:], cards[1:], strict=True):
        table.add_column(f"{letter} less A")
        found = difference(cards[0], card)
        points = (100 * n for n in dataclasses.astuple(found.top_1))
        told = ["{:+.2f} ({:+.2f} to {:+.2f}) points".format(*points)]
        if found.nll is None:
            told += ["unpaired: other images or labels", "", ""]
        else:
            nll = "{:+.4f} ({:+.4f} to {:+.4f})".format(*dataclasses.astuple(found.nll))
            alone = f"{letter} {found.only_second}, A {found.only_first}"
            told += [alone, f"{found.p:.3g}", nll]
        for cells, text in zip(rows.values(), told, strict=True):
            cells.append(text)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _letters(cards: "list[Card]") -> list[str]:
    """What tables call the cards: A to Z, then by number."""
    return [chr(65 + n) if n < 26 else str(n + 1) for n in range(len(cards))]


@app.command(epilog="Example: keras-vit vtab --model ViT-L/16 --runs 3")
def vtab(
    context: typer.Context,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            help="As Table 9 names them, e.g. dtd clevr-count [default: all 19].",
            show_default=False,
        ),
    ] = None,
    model: Pretrained = None,
    weights: PretrainedWeights = None,
    output: Annotated[
        Path,
        typer.Option(help="Folder of the results; the same command goes on in it."),
    ] = Path("runs/vtab"),
    listed: Annotated[
        bool, typer.Option("--list", help="Print the tasks and their data, and stop.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print what --output has, and stop.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw Figure 2 to this file, with --show too.")
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Trainings of each task; Table 2 has three.")
    ] = 1,
    steps: Steps = None,
    warmup: Warmup = None,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="Learning rate; several are tried on the 200 validation images "
            "[default: 0.01]."
        ),
    ] = None,
    batch_size: BatchSize = None,
    parts: Parts = None,
    image_size: Annotated[
        str | None,
        typer.Option(help="Pixels, 384 or 384x512 (height x width) [default: 384]."),
    ] = None,
    augment: Annotated[
        Literal["inception", "flip", "none"] | None,
        typer.Option(
            help="One for all tasks [default: each task's own, that its labels bear]."
        ),
    ] = None,
    freeze: Freeze = False,
    mixed_precision: MixedPrecision = None,
    remat: Remat = False,
    distribute: Annotated[
        Literal["auto", "none", "mirrored", "tpu"],
        typer.Option(help="As in `finetune`; one process."),
    ] = "auto",
    tpu: Tpu = None,
    gelu: Gelu = None,
    mean: MeanOption = None,
    std: StdOption = None,
    seed: Annotated[int, typer.Option(help="Of the first run; then one more.")] = 0,
    save_minutes: SaveMinutes = 10,
) -> None:
    """Fine-tunes on the 19 tasks of VTAB-1k and prints Table 9 beside the paper's.

    A task whose data is not there is named and left out.
    """
    if listed:
        console.print(_vtab_tasks())
        return
    from keras_vit.evaluation import vtab as evaluation
    from keras_vit.inspection import plots

    if show:
        scores = evaluation.read(output)
    else:
        from keras_vit.data import vtab as data
        from keras_vit.recipes import FINETUNE

        chosen = [data.find(name) for name in tasks] if tasks else data.TASKS
        replicas = _on_devices(context, distribute, tpu, 1, mixed_precision)
        settings = _changed(
            FINETUNE["vtab"],
            1000,
            replicas,
            total_steps=steps,
            warmup_steps=warmup,
            base_lr=tuple(lr) if lr else None,
            batch_size=batch_size,
            accumulation_steps=parts,
            image_size=_size(image_size),
            augment=augment,
            remat=remat or None,
            freeze=freeze or None,
        )
        size = settings.image_size
        network = _pretrained(model, weights, size, size, gelu)
        mean, std = _normalization(weights, mean, std)
        scores = evaluation.run(
            network,
            chosen,
            output=output,
            recipe=settings,
            runs=runs,
            seed=seed,
            mean=mean,
            std=std,
            augment="task" if augment is None else "recipe",
            save_minutes=save_minutes,
            verbose=_progress(),
        )
    rows = {str(output): scores, **evaluation.paper_rows()}
    console.print(_vtab_table({n: evaluation.cells(row) for n, row in rows.items()}))
    for remark in evaluation.remarks(scores):
        console.print(remark)
    if picture is not None:
        bars = {name: evaluation.groups(row) for name, row in rows.items()}
        plots.task_groups(bars, picture)
        console.print(f"Figure 2: {picture}")


def _vtab_tasks() -> Table:
    """Two lines a task, 80 columns wide at most."""
    from keras_vit.data import vtab as data

    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("classes", justify="right")
    table.add_column("TFDS, and what of it is trained/tested on", no_wrap=True)
    table.add_column("tested", justify="right")
    for group in data.GROUPS:
        table.add_row(Text(group, "bold"))
        for task in data.TASKS:
            if task.group == group:
                splits = f"{task.train800}+{task.val200}/{task.test}"
                said = Text(f"{task.tfds}\n{splits}")
                images = f"{task.test_images:,}"
                table.add_row(task.word, str(task.classes), said, images)
    return table


def _vtab_table(rows: dict[str, dict[str, str]]) -> Table:
    """Table 9 turned on its side: a line a task, then Figure 2's groups."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in rows:
        table.add_column(name, justify="right")
    for task in next(iter(rows.values())):
        table.add_row(task, *(said[task] for said in rows.values()))
    return table


@app.command()
def recipes(
    name: Annotated[
        str | None, typer.Argument(help="One recipe, in detail [default: all].")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, with every field.")
    ] = False,
) -> None:
    """Prints Tables 3 and 4 and the recipes of other published checkpoints."""
    from keras_vit.recipes import FINETUNE, PRETRAIN, find, source

    rows = {name: find(name)} if name else FINETUNE | PRETRAIN
    if as_json:
        fields = {
            key: dataclasses.asdict(row) | {"source": source(key)}
            for key, row in rows.items()
        }
        print(json.dumps(fields[name] if name else fields, indent=2))
    elif name is None:
        console.print(_recipes_table(rows))
        console.print("keras-vit recipes NAME prints one with its source")
    else:
        table = Table(box=None, pad_edge=False, show_header=False, title=Text(name))
        table.title_justify = "left"
        for key, value in _said(rows[name]).items():
            table.add_row(key, value)
        console.print(table)
        console.print(source(name))


def _said(row: "Recipe") -> dict[str, str]:
    """A recipe's fields that say something: no option that is off."""
    fields = dataclasses.asdict(row)
    if row.optimizer != "adam":
        del fields["beta1"]
    if row.optimizer == "sgd":
        del fields["beta2"]
    if row.optimizer == "adam":
        del fields["momentum"]
    return {key: _in_words(value) for key, value in fields.items() if value}


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _recipes_table(rows: dict[str, "Recipe"]) -> Table:
    """One line a recipe, 80 columns wide at most."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("recipe", "length", "base lr", "decay", "wd", "optimizer"):
        table.add_column(column, no_wrap=True)
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row.epochs:g} epochs" if row.epochs else f"{row.total_steps} steps",
            "-".join(f"{lr:g}" for lr in sorted({row.base_lr[0], row.base_lr[-1]})),
            row.decay,
            f"{row.weight_decay:g}",
            row.optimizer + (" + SAM" if row.sam_rho else ""),
        )
    return table


@app.command()
def paper(
    table: Annotated[
        Literal["table2", "table5", "table6", "table7", "table9"] | None,
        typer.Argument(help="One table [default: all of them]."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, with every field.")
    ] = False,
) -> None:
    """Prints the paper's own accuracies, a line for each."""
    from keras_vit.paper import TABLES

    wanted = {
        name: rows
        for name, rows in TABLES.items()
        if table in (None, name.lower().replace(" ", ""))
    }
    if as_json:
        every = [dataclasses.asdict(row) for rows in wanted.values() for row in rows]
        print(json.dumps(every, indent=2))
        return
    for name, rows in wanted.items():
        console.print(_papers_table(name, rows))


def _papers_table(name: str, rows: Iterable["Accuracy"]) -> Table:
    """A line for each number, 80 columns wide at most."""
    table = Table(box=None, pad_edge=False, title=Text(name), title_justify="left")
    for column in ("model", "pre-training", "data", "top-1 %"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        how = f", {row.epochs} epochs" if row.epochs else ""
        how += ", SGD" if row.optimizer == "sgd" else ""
        percent = f"{row.percent:.1f}" if name == "Table 9" else f"{row.percent:.2f}"
        spread = "" if row.std is None else f" +- {row.std:.2f}"
        table.add_row(row.model, row.pretrained_on + how, row.dataset, percent + spread)
    return table


@app.command(
    epilog="Example: keras-vit fewshot --data photos --shots 5 --shots all --knn"
)
def fewshot(
    data: Data,
    model: Annotated[
        str | None,
        typer.Option(
            help="A variant, e.g. ViT-B/16, or a folder that `finetune` wrote "
            "[default: ViT-B/16; a weights file tells its own]."
        ),
    ] = None,
    weights: PretrainedWeights = None,
    shots: Annotated[
        list[str] | None,
        typer.Option(
            help="Training images of each class, or all; several are each tried "
            "[default: 1, 5, 10, 25]."
        ),
    ] = None,
    l2: Annotated[
        list[float] | None,
        typer.Option(help="Weight of the penalty; likewise [default: 1024]."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Draws of the shots, by the seeds 0, 1, ...")
    ] = 3,
    knn: Annotated[
        bool, typer.Option("--knn", help="The 20 nearest neighbours' accuracy, too.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="A logistic regression's accuracy, too.")
    ] = False,
    image_size: Annotated[
        str | None,
        typer.Option(
            help="Pixels, 384 or 384x512 (height x width) [default: the weights' own]."
        ),
    ] = None,
    before_crop: Annotated[
        str | None,
        typer.Option(
            help="Resize to these pixels, then cut out the middle: 256 is big_vision's "
            "for 224 [default: resize to the model's size]."
        ),
    ] = None,
    gelu: Annotated[
        Literal["tanh", "erf"] | None,
        typer.Option(help="The weights' GELU [default: their own]."),
    ] = None,
    mean: MeanOption = None,
    std: StdOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 32,
    on_corrupt: Corrupt = "stop",
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of the test share, where the data has no test set [default: the "
            "run's, whose training never saw that share]."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A .json file for the numbers.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A picture of accuracy against shots.")
    ] = None,
) -> None:
    """Prints the few-shot accuracy of frozen features (4.1, Figure 4)."""
    from keras_vit import evaluation
    from keras_vit.data import sources
    from keras_vit.evaluation import features, few_shot
    from keras_vit.files import write_json

    network, run = _frozen(model, weights, _size(image_size), gelu, mean, std)
    if seed is None:
        seed = run.details.get("seed", 0)
    source: Any = sources.open_source(data, seed=seed, on_corrupt=on_corrupt)
    options: dict[str, Any] = {
        "mean": run.mean,
        "std": run.std,
        "batch_size": batch_size,
        "before_crop": _size(before_crop, "--before-crop"),
    }
    asked: dict[str, Any] = {
        "shots": [_shots(text) for text in shots or ("1", "5", "10", "25")],
        "l2": l2 or 2.0**10,
        "seeds": range(seeds),
    }
    if knn or probe:  # They read every image: the regressions need none again.
        few_shot.check(features.opened(source), **asked)
        source = evaluation.gather(network, source, **options)
        network, options = None, {}
    result = evaluation.fewshot(network, source, **asked, **options)
    console.print(str(result))
    judges = ([evaluation.knn] if knn else []) + (
        [evaluation.linear_probe] if probe else []
    )
    probes = [judge(None, source) for judge in judges]
    for one in probes:
        console.print(str(one))
    if output is not None:
        told = {"data": data, "model": model, "weights": weights, "seed": seed}
        told |= {"mean": run.mean, "std": run.std, "gelu": gelu}
        told |= {"image_size": image_size, "before_crop": before_crop}
        numbers = {"fewshot": result.as_dict(), "probes": list(map(vars, probes))}
        write_json(output, told | numbers)
        console.print(f"numbers: {output}")
    if plot is not None:
        _plot_shots(result, plot)
        console.print(f"picture: {plot}")


def _shots(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _frozen(
    model: str | None,
    weights: str | None,
    image_size: tuple[int, int] | None,
    gelu: str | None,
    mean: Triple | None,
    std: Triple | None,
) -> tuple[Any, Run]:
    """A model to read features of, and its run: no head is needed, and none is lost."""
    import keras

    import keras_vit

    if model is not None and Path(model).is_dir():
        if gelu is not None or weights is not None:
            raise ValueError(
                "Expected --weights and --gelu with a variant or a weights file. "
                f"Received: --model {model}, a run that has its own"
            )
        run = Run.load(Path(model))
        run.mean, run.std = mean or run.mean, std or run.std
        network = keras.models.load_model(Path(model) / "model.keras", compile=False)
        if image_size is not None:
            network = keras_vit.at_resolution(network, image_size)
        return network, run
    run = Run([], *_normalization(weights, mean, std), {})
    return _pretrained(model, weights, image_size, image_size, gelu), run


def _plot_shots(result: Any, path: Path) -> None:
    """Draws a line for each l2, and a level for each regression on all images."""
    from keras_vit.inspection import plots

    several = len({row.l2 for row in result.rows}) > 1
    lines: dict[str, dict[int, tuple[float, float, float]]] = {}
    levels: dict[str, float] = {}
    for row in result.rows:
        name = f"l2 {row.l2:g}" if several else "mean, 95 % interval"
        if row.shots == "all":
            levels[f"all images, {name}" if several else "all images"] = row.mean
        else:
            low_high = row.interval or (row.mean, row.mean)
            lines.setdefault(name, {})[row.shots] = (row.mean, *low_high)
    plots.shots(lines, path, levels)


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: keras-vit launch --workers 2 -- finetune --data photos",
)
def launch(
    workers: Annotated[
        int, typer.Option(help="Processes; they share cores and GPUs equally.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="After --: a command of keras-vit and its options, as each worker "
            "runs it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Trains in several processes of this machine, where no scheduler starts them.

    Each runs COMMAND with the TF_CONFIG by which they find each other; finetune,
    transfer and pretrain get --distribute multiworker unless COMMAND has --distribute.
    Lines come out with the worker's number before them. If a worker fails, the
    others are stopped and the exit code is its own; SIGTERM and Ctrl-C let all of
    them save and end.
    """
    from keras_vit import launching

    words = command or []
    launching.check(words, workers)
    distributed = any(word.partition("=")[0] == "--distribute" for word in words)
    if words[0] in ("finetune", "transfer", "pretrain") and not distributed:
        words = [*words, "--distribute", "multiworker"]
    # -P: like `keras-vit`, workers import nothing from the folder they are called in.
    python = [sys.executable, "-P"]
    program = [*python, launching.__file__, str(workers)]
    os.execv(sys.executable, [*program, *python, "-m", "keras_vit.cli", *words])


data_app = typer.Typer(
    help="Data sets: shards that are read at random.", no_args_is_help=True
)
app.add_typer(data_app, name="data")


@data_app.command()
def pack(
    source: Annotated[
        str, typer.Argument(help="A folder of images, or a TFDS name, as in --data.")
    ],
    output: Annotated[
        Path, typer.Argument(help="The folder to write; it is there whole or not.")
    ],
    shards: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of the training images [default: one for every 10,000]."
        ),
    ] = None,
    split: Annotated[
        Literal["all", "train"], typer.Option(help="With or without test images.")
    ] = "all",
    on_corrupt: Corrupt = "stop",
    seed: Annotated[
        int, typer.Option(help="Of the test share, where the data has no test set.")
    ] = 0,
) -> None:
    """Writes a data set as TFRecord shards with an index; --data then takes them."""
    from keras_vit.data import packing, sources

    opened = sources.open_source(source, seed=seed, on_corrupt=on_corrupt)
    packing.pack(opened, output, shards=shards, split=split)
    size = sum(file.stat().st_size for file in output.iterdir()) / 2**20
    count = len(list(output.glob("*.tfrecord")))
    tested = 0 if split == "train" or opened.test is None else len(opened.test)
    console.print(
        f"{output}: {len(opened.train)} training and {tested} test images of "
        f"{len(opened.classes)} classes, {count} shards, {size:.0f} MiB"
    )


runs_app = typer.Typer(
    help="Trainings: how far they are and how they went.", no_args_is_help=True
)
app.add_typer(runs_app, name="runs")


@runs_app.command("show")
def show_runs(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders that `finetune` or `pretrain` writes or wrote."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="The picture [default: curves.png in the first folder]."),
    ] = None,
) -> None:
    """Prints trainings' evaluations and draws their curves, while they run or after."""
    from keras_vit.inspection import plots
    from keras_vit.training import resume, watching

    curves = {}
    for run in runs:
        told = resume.read_run(run)
        curves[str(run)] = watching.read(run / watching.FOLDER)
        console.print(_evaluations(run, told))
    picture = output or runs[0] / "curves.png"
    plots.curves(curves, picture)
    console.print(f"curves: {picture}; tensorboard --logdir {runs[0]} has them too")


def _evaluations(run: Path, told: Any) -> Table:
    """A line for each evaluation of a run."""
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = Text(f"{run}: {told.step} of {told.total_steps} updates")
    names = list(dict.fromkeys(name for row in told.history for name in row))
    for name in names:
        table.add_column(name, justify="right")
    for row in told.history:
        table.add_row(*(f"{row[name]:.5g}" if name in row else "" for name in names))
    return table


weights_app = typer.Typer(
    help="The published weights: what there is, and copies of it.",
    no_args_is_help=True,
)
app.add_typer(weights_app, name="weights")


@weights_app.command("list")
def list_weights(
    variant: Annotated[
        str | None, typer.Option(help="One variant: ViT-B/16 or ViT_B16.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="One tag: imagenet21k.")] = None,
    urls: Annotated[
        bool, typer.Option("--urls", help="Where each source is, in order of trial.")
    ] = False,
) -> None:
    """Prints every tag and variant with its sources, size, head, origin and licence."""
    from keras_vit.weights.registry import select

    trainings: dict[str, list[Checkpoint]] = {}
    for row in select(variant, tag):
        title = f"{row.tag}: {row.origin}, {row.licence}"
        trainings.setdefault(title, []).append(row)
    for title, rows in trainings.items():
        console.print(_training_table(title, rows))
        for row in rows if urls else ():
            console.print(row.variant)
            for mirror in row.mirrors:
                console.print(f"  {mirror.format:4} {mirror.url}")
        console.print()
    console.print(
        "sources: the official npz, then copies, as they are tried"
        + ("" if urls else "; --urls has them")
    )


def _training_table(title: str, rows: list["Checkpoint"]) -> Table:
    """The variants of one training, 80 columns wide at most."""
    table = Table(box=None, pad_edge=False, title=Text(title), title_justify="left")
    for name in ("variant", "pixels", "head", "size", "top-1 %", "sources"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        dialects = ", ".join(mirror.format for mirror in row.mirrors)
        top_1 = f"{row.accuracy} ({row.accuracy_source})" if row.accuracy else ""
        table.add_row(
            row.variant,
            str(row.image_size[0]),
            "zeros" if row.zero_head else str(row.num_classes),
            row.size or "",
            top_1,
            f"{dialects}: one source" if len(row.mirrors) == 1 else dialects,
        )
    return table


@weights_app.command()
def fetch(
    tag: Annotated[str, typer.Argument(help="A tag of `keras-vit weights list`.")],
    to: Annotated[Path, typer.Option(help="Folder for the files; created if absent.")],
    variant: Annotated[
        str | None, typer.Option(help="One variant instead of all of the tag.")
    ] = None,
) -> None:
    """Copies a tag's official files into a folder, for machines without a network."""
    from keras_vit.weights import download

    for path in download.fetch(tag, to, variant):
        console.print(str(path))
    console.print(f"there, set KERAS_VIT_WEIGHTS to the copy of {to}")


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint: npz (official, big_vision, BiT), safetensors (timm, "
            "Hugging Face), h5 (TFViT, keras-hub), a folder of them, or a .keras file."
        ),
    ],
    output: Annotated[
        Path, typer.Argument(help="The file; of timm and hf, the folder.")
    ],
    to: Annotated[
        Literal["npz", "timm", "hf", "keras"],
        typer.Option(help="The dialect to write."),
    ],
    image_size: Annotated[
        str | None,
        typer.Option(help="Pixels to resize positions to, 384 or 384x512."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="A new, zero head of so many classes.")
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(help="Rows x columns of the positions, where they are no square."),
    ] = None,
    numerics: Annotated[
        Literal["paper", "timm", "hf"] | None,
        typer.Option(help="Whose GELU and epsilons to compute with [default: IN's]."),
    ] = None,
) -> None:
    """Rewrites a checkpoint for another library, and says what became of it."""
    import keras

    import keras_vit

    size = _size(image_size)
    if to == "keras":
        output = output.with_suffix(".keras")
    if source.suffix == ".keras":
        model = keras.models.load_model(source)
        if size is not None:
            model = keras_vit.at_resolution(model, size)
        if classes is not None:
            model = keras_vit.for_task(model, classes)
    else:
        model = keras_vit.from_checkpoint(
            source,
            image_size=size,
            classes=classes,
            grid=_size(grid, "--grid"),
            numerics=numerics,
        )
        console.print("\n".join(str(model.checkpoint_report).splitlines()[:2]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        if to == "keras":
            from keras_vit.files import replacing

            with replacing(output) as temporary:
                model.save(temporary)
        else:
            keras_vit.weights.save(model, output, format=to)
    for warning in said:
        if issubclass(warning.category, UserWarning):
            errors.print(str(warning.message))
    console.print(f"{output}: {model.count_params():,} parameters, {to}")


@app.command()
def doctor() -> None:
    """Prints what is installed, what is missing, and how to get it."""
    import keras

    from keras_vit.weights import download

    table = Table(title="keras-vit doctor", title_justify="left", box=None)
    table.add_column("what")
    table.add_column("found")
    table.add_column("what to do")
    table.add_row("Python", sys.version.split()[0])
    table.add_row(
        "backend", keras.backend.backend(), "KERAS_BACKEND=jax|torch changes it"
    )
    packages = {
        "keras-vit-paper": "",
        "keras": "",
        "tensorflow": "",
        "jax": "optional: pip install jax",
        "torch": "optional: pip install torch",
        "matplotlib": "pictures: pip install 'keras-vit-paper[plots]'",
        "tensorflow-datasets": "TFDS names: pip install 'keras-vit-paper[tfds]'",
        "scikit-learn": "the demo: pip install 'keras-vit-paper[demo]'",
    }
    for package, remedy in packages.items():
        try:
            table.add_row(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            table.add_row(package, Text("missing", "yellow"), remedy)
    table.add_row("devices", ", ".join(_devices()), _advice_on_devices())
    cache = download.cache_dir()
    files = list(cache.rglob("*.npz")) if cache.is_dir() else []
    size = sum(file.stat().st_size for file in files) / 2**20
    writable = os.access(
        next(p for p in (cache, *cache.parents) if p.exists()), os.W_OK
    )
    table.add_row(
        "weights cache",
        f"{cache}: {len(files)} files, {size:.0f} MiB"
        + ("" if writable else ", not writable"),
        "KERAS_HOME moves it",
    )
    table.add_row(
        "KERAS_VIT_WEIGHTS",
        _own_mirror(),
        "a directory or base URL that comes before any mirror",
    )
    console.print(table)


def _advice_on_devices() -> str:
    """What --distribute auto takes here, and what is put right for it."""
    import keras

    from keras_vit.training import distribution

    backend = keras.backend.backend()
    if backend == "torch":
        return "one device: KERAS_BACKEND=tensorflow or jax distributes"
    taken = distribution.found()
    mended = {
        "mirrored": "keras#20582, clipping, float16",
        "multiworker": "keras#20582, keras#20585, clipping, float16",
        "tpu": "clipping; not run by us on a TPU, whose maintained way is JAX",
    }
    advice = f"--distribute auto: {taken}"
    if backend == "tensorflow" and taken in mended:
        advice += f" (ours differ from Keras in: {mended[taken]})"
    return advice if taken == "tpu" else f"{advice}; {_advice_on_tpus(backend)}"


def _advice_on_tpus(backend: str) -> str:
    package = "'jax[tpu]'" if backend == "jax" else "--no-deps tensorflow-tpu"
    return f"on a TPU VM: pip install {package}"


def _own_mirror() -> str:
    value = os.environ.get("KERAS_VIT_WEIGHTS")
    if not value:
        return "not set"
    is_url = value.startswith(("http://", "https://"))
    is_there = is_url or Path(value).expanduser().is_dir()
    return value if is_there else f"{value}: no such directory"


def _devices() -> list[str]:
    """The accelerators the backend sees, else the CPU."""
    import keras

    if keras.backend.backend() == "torch":
        torch = importlib.import_module("torch")
        count = torch.cuda.device_count()
        return [torch.cuda.get_device_name(i) for i in range(count)] or ["cpu"]
    return [str(device) for device in keras.distribution.list_devices()] or ["cpu"]


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for what it makes.")] = Path(
        "demo"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 500,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Trains, explains, exports and serves a small ViT on real digits; no download."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit
    from keras_vit.data import pipelines, sources
    from keras_vit.inspection import attention_rollout, plots

    keras.utils.set_random_seed(seed)
    source = sources.open_source("digits", seed=seed)
    config = keras_vit.ViTConfig(
        patch_size=4, num_layers=4, hidden_size=64, mlp_dim=128, num_heads=4
    )
    network = keras_vit.vit(config, image_size=(32, 32), num_classes=10)
    recipe = keras_vit.recipes.Recipe(
        total_steps=steps,
        base_lr=(0.03,),
        held_out=0.1,
        warmup_steps=steps // 10,
        batch_size=64,
        image_size=(32, 32),
        augment="none",
    )
    console.print(
        f"a ViT of {network.count_params():,} parameters on {len(source.train)} "
        "handwritten digits (scikit-learn), 8x8 px resized to 32x32"
    )
    result = keras_vit.training.fit(
        network,
        recipe,
        source,
        seed=seed,
        output=output,
        resume="never",
        verbose=_progress(),
    )
    details = {"data": "digits", "seed": seed}
    Run(list(source.classes), HALF, HALF, details).save(output)
    console.print(
        f"test accuracy {result.test_accuracy:.2%} on {result.test_images} digits"
    )
    batches = pipelines.eval_pipeline(
        source.test or source.train,
        image_size=(32, 32),
        batch_size=8,
        mean=HALF,
        std=HALF,
    )
    images, labels = next(iter(batches.as_numpy_iterator()))
    picture = output / "attention.png"
    plots.attention_maps(
        images / 2 + 0.5,
        attention_rollout(network, images),
        [f"a {source.classes[label]}" for label in labels],
        picture,
    )
    saved = output / "saved_model"
    network.export(saved, verbose=False)
    served = tf.saved_model.load(str(saved))
    scores = served.serve(images[:1])
    digit = source.classes[int(np.argmax(scores[0]))]
    console.print(f"attention picture: {picture}")
    console.print(f"SavedModel: {saved}; it says the first digit is a {digit}")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.")
    ] = False,
) -> None:
    if version:
        from keras_vit._version import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Runs the command line; an expected error is one message, not a traceback."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        errors.print(f"keras-vit: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
