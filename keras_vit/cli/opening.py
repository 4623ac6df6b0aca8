"""Models, data, recipes and devices, as options name them."""

import dataclasses
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import typer

from keras_vit.cli import completing
from keras_vit.cli.options import HALF, Triple, pixels
from keras_vit.cli.shell import console, helped_by, printable

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.data.sources import Source
    from keras_vit.recipes import Recipe


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
            "Expected a folder that `keras-vit finetune` or `pretrain` wrote to its "
            f"end, with model.keras and run.json. Received: {str(folder)!r}"
        )
        missing = [
            name
            for name in ("model.keras", "run.json")
            if not (folder / name).is_file()
        ]
        if missing:
            begun = (folder / "begun.json").is_file()
            hint = f". How far it is: keras-vit runs show {folder}" if begun else ""
            raise ValueError(f"{expected} without {' and '.join(missing)}{hint}")
        try:
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            mean, std = tuple(run["mean"]), tuple(run["std"])
            return cls(run["classes"], mean, std, run["details"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{expected}, whose run.json is damaged") from error


def open_pretrained(
    model: str | None,
    weights: str | None,
    file_size: tuple[int, int] | None,
    size: tuple[int, int] | None,
    gelu: str | None,
    mean: Triple | None,
    std: Triple | None,
) -> tuple[Any, Run]:
    """A pretrained model and its run, whose mean and deviation are the options' first.

    A run's folder or a weights file for images of `file_size`, or a builder for `size`;
    None is their own.
    """
    import keras_vit

    if model is not None and Path(model).is_dir():
        if gelu is not None or weights is not None:
            raise ValueError(
                "Expected --weights and --gelu with a variant or a weights file. "
                f"Received: --model {model}, a run that has its own"
            )
        network, run = open_run(Path(model), mean, std)
        if predicts_patches(network):
            network = network.backbone
        if file_size is not None:
            network = keras_vit.at_resolution(network, file_size)
        return network, run
    run = Run([], *_normalization(weights, mean, std), {})
    overrides: dict[str, Any] = {} if gelu is None else {"gelu": gelu}
    if model is None and _is_checkpoint(weights):
        network = keras_vit.from_checkpoint(weights, image_size=file_size, **overrides)
        console.print(str(network.checkpoint_report).splitlines()[0])
        return network, run
    network = _builder(model or "ViT-B/16", weights)(
        include_top=False,
        pooling=_pooling(model or "ViT-B/16"),
        input_shape=None if size is None else (*size, 3),
        **({} if weights is None else {"weights": _none(weights)}),
        **overrides,
    )
    return network, run


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {key: value for key, value in options.items() if value is not None}


def on_devices(
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

    if tpu is not None and "tpu" not in (distribute, distribution.found()):
        raise ValueError(
            "Expected --tpu where there is one, or with --distribute tpu. Received: "
            f"--tpu {tpu}, --distribute {distribute}"
        )
    strategy = distribution.strategy(distribute, tpu=tpu, model_parallel=model_parallel)
    context.with_resource(strategy.scope())
    workers = distribution.Workers(strategy)
    console.quiet = not workers.chief
    if distribution.on_tpu(strategy) if mixed_precision is None else mixed_precision:
        keras.config.set_dtype_policy("mixed_bfloat16")
    return workers.replicas


def open_data(data: str, seed: int, on_corrupt: Any, labels: bool = True) -> "Source":
    """The data of a training, whose seed is set before a model is."""
    import keras

    from keras_vit.data import sources

    keras.utils.set_random_seed(seed)
    return sources.open_source(data, seed=seed, on_corrupt=on_corrupt, labels=labels)


def table_4(name: str | None, data: str) -> "Recipe":
    """The row of a name, or the data set's own."""
    from keras_vit.recipes import FINETUNE, finetune_row

    if name is not None and name not in FINETUNE:
        raise ValueError(
            f"Expected one of {', '.join(FINETUNE)}. Received: --recipe {name}. "
            "`keras-vit recipes` prints them"
        )
    return FINETUNE[name or finetune_row(data)]


def changed(
    row: "Recipe",
    images: int,
    devices: int,
    *,
    steps: int | None = None,
    warmup: int | None = None,
    lr: Sequence[float] | None = None,
    batch_size: int | None = None,
    parts: int | None = None,
    image_size: str | None = None,
    augment: str | None = None,
    remat: bool = False,
    freeze: bool = False,
    lora: int | None = None,
    ema: float | None = None,
) -> "Recipe":
    """A recipe for so many images with the options that were given.

    What was not given fits a machine of one's own: parts of 32 images on each device,
    and a warm-up of a fifth of the steps at most.
    """
    changes = given(
        total_steps=steps,
        warmup_steps=warmup,
        base_lr=tuple(lr) if lr else None,
        batch_size=batch_size,
        accumulation_steps=parts,
        image_size=pixels(image_size),
        augment=augment,
        remat=remat or None,
        freeze=freeze or None,
        lora_rank=lora,
        ema=ema,
    )
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


def _none(weights: str) -> str | None:
    return None if weights.lower() == "none" else weights


def _pooling(variant: str) -> str:
    """What a new head reads: the class token where there is one (D.3)."""
    from keras_vit.configs import VARIANTS, ViTConfig, builder_name

    config = VARIANTS.get(builder_name(variant))
    is_token = isinstance(config, ViTConfig) and config.classifier == "token"
    return "token" if is_token else "avg"


def _builder(variant: str, weights: str | None) -> Any:
    """The builder of a variant in either spelling, for these weights."""
    import keras_vit
    from keras_vit.configs import builder_name
    from keras_vit.weights import registry

    check_variant(variant, folders=True)
    if weights is not None and _none(weights) and not _is_path(weights):
        with helped_by("keras-vit weights list"):
            registry.find(variant, weights)
    return getattr(keras_vit, builder_name(variant))


def _is_path(weights: str) -> bool:
    """Whether a builder takes it for a file or a folder, not for a tag."""
    return Path(weights).exists() or bool(Path(weights).suffix)


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


def open_run(folder: Path, mean: Triple | None, std: Triple | None) -> tuple[Any, Run]:
    """The model of a run's folder and its run, with these in the place of its own."""
    import keras

    run = Run.load(folder)
    run.mean, run.std = mean or run.mean, std or run.std
    return keras.models.load_model(folder / "model.keras", compile=False), run


def predicts_patches(network: Any) -> bool:
    """Whether it is of masked patch prediction (4.6), not a classifier."""
    from keras_vit.self_supervision import MaskedPatchPredictor

    return isinstance(network, MaskedPatchPredictor)


def open_model(
    model: str | None, weights: str | None, mean: Triple | None, std: Triple | None
) -> tuple[Any, Run]:
    """A trained model and its run: from a run's folder, a variant, or a file."""
    import keras_vit

    if model is not None and Path(model).is_dir():
        network, run = open_run(Path(model), mean, std)
        if predicts_patches(network):
            raise ValueError(
                "Expected a model with a head, one output for each class. Received: "
                f"{model!r}, masked patch prediction. keras-vit finetune --model "
                f"{model} puts one on"
            )
        return network, run
    if model is None and _is_checkpoint(weights):
        network = keras_vit.from_checkpoint(weights)
    else:
        weights = weights or "imagenet21k+imagenet2012"
        network = _builder(model or "ViT-B/16", weights)(
            weights=weights,
            classifier_activation=None,
        )
    classes = _class_names(network)
    if not classes:
        raise ValueError(
            "Expected weights with a head, one output for each class. Received: "
            f"{weights} without. keras-vit finetune makes one"
        )
    return network, Run(classes, *_normalization(weights, mean, std), {})


def open_any(
    model: str,
    weights: str | None,
    gelu: str | None,
    mean: Triple | None,
    std: Triple | None,
) -> tuple[Any, Run]:
    """A model as it is, with a head or without, and its run.

    From a run's folder, a weights file, or a variant's `weights`.
    """
    import keras_vit

    is_file = _is_checkpoint(model)
    is_run = Path(model).is_dir() and not is_file
    if (is_file or is_run) and weights is not None:
        raise ValueError(
            "Expected --weights with a variant. Received: --weights "
            f"{weights} and {model}, which has its own"
        )
    if is_run:
        if gelu is not None:
            raise ValueError(
                "Expected --gelu with a variant or a weights file. Received: --gelu "
                f"{gelu} and {model}, a run that has its own"
            )
        return open_run(Path(model), mean, std)
    overrides: dict[str, Any] = {} if gelu is None else {"gelu": gelu}
    if is_file:
        network = keras_vit.from_checkpoint(model, **overrides)
        console.print(str(network.checkpoint_report).splitlines()[0])
    else:
        weights = weights or "imagenet21k+imagenet2012"
        network = _builder(model, weights)(
            weights=_none(weights),
            classifier_activation=None,
            **overrides,
        )
    normalization = _normalization(model if is_file else weights, mean, std)
    return network, Run(_class_names(network), *normalization, {})


def _class_names(network: Any) -> list[str]:
    """Of the outputs of a published head; none without a head."""
    from keras_vit.applications import imagenet2012_labels

    if "head" not in {layer.name for layer in network.layers}:
        return []
    count = network.output_shape[-1]
    if count == 1000:
        return list(imagenet2012_labels())
    return [f"class {i}" for i in range(count)]


def image_files(path: Path) -> list[Path]:
    """An image, or every one below a folder."""
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


def read_image(file: Path, network: Any, run: Run) -> "np.ndarray":
    """An image as a network of a run takes it, [H, W, C].

    Raises:
        ValueError: naming the file, if it is no readable image.
    """
    import numpy as np
    import tensorflow as tf

    from keras_vit.data import preprocessing

    try:
        # Python reads it: TensorFlow takes no file name that is not UTF-8.
        image = preprocessing.decode(file.read_bytes())
    except (tf.errors.OpError, ValueError, OSError) as error:
        told = getattr(error, "message", None) or getattr(error, "strerror", None)
        reason = str(told or error).splitlines()[0]
        reason = reason.rpartition("}} ")[2].partition(" [Op:")[0]
        raise ValueError(unreadable(file, reason)) from error
    size, channels = network.input_shape[1:3], network.input_shape[-1]
    return np.asarray(preprocessing.prepare(image, size, run.mean, run.std, channels))


def unreadable(file: Path, reason: str) -> str:
    """What a file is told of that is no image."""
    return f"{printable(file)}: not a readable image ({reason})"
