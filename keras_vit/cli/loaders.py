"""Opens the models, data, recipes and devices that options select."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import typer

from keras_vit import export_formats
from keras_vit.cli.fields import Changes, given
from keras_vit.cli.options import (
    Cluster,
    Devices,
    ImageData,
    OpenedModel,
    variant_named,
)
from keras_vit.cli.shell import console, errors, helped_by
from keras_vit.files import (
    IMAGE_SUFFIXES,
    files_below,
    may_wait,
    parse_json,
    printable,
    read_bytes,
)
from keras_vit.normalization import checked

if TYPE_CHECKING:
    import numpy as np

    from keras_vit.data.source import Source
    from keras_vit.recipes import Recipe


Purpose = Literal["classify", "any", "features"]


def save_details(folder: Path, details: dict[str, Any]) -> None:
    """Writes `run.json`, the last file of a run, with details of its training."""
    from keras_vit import manifest
    from keras_vit.files import write_json

    write_json(folder / "run.json", {"details": details})
    if (folder / manifest.FILE).exists():
        manifest.add(folder, "run.json")


def open_model(
    options: OpenedModel,
    *,
    purpose: Purpose,
    file_size: tuple[int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Opens a model from any source that a command accepts.

    Args:
        options: `model` is a `.keras` file, a run's folder, a weights file or its
            name, or a variant; None: the architecture of the weights file, else
            ViT-B/16. `weights` is a tag or a file for a variant, or a weights file
            without a variant. `num_heads`, `mean` and `std` require a weights file,
            `gelu` a weights file or a variant. `license_allow` applies to every model.
        purpose: "classify" for a model with a head, "any" for the unchanged model,
            "features" for a model that receives a new head.
        file_size: (H, W) in pixels for a model from a file; None: its own.
        size: (H, W) in pixels for a variant; None: its default.

    Returns:
        The model, and the details of its run, or an empty dictionary if it has none.

    Raises:
        ValueError: if there is no such model, or an option does not apply to it.
    """
    import keras_vit
    from keras_vit.models.vision import facts_of
    from keras_vit.weights.sources import check_license

    model, weights = options.model, options.weights
    if model is not None and export_formats.of_file(Path(model)) is not None:
        raise ValueError(
            "Expected a run, a .keras file, a weights file or a variant. Received: "
            f"{model}, an exported file, which only `keras-vit predict` opens"
        )
    path = next((at for at in (model, weights) if at is not None and _exists(at)), None)
    if path is not None and path == model and weights is not None:
        raise ValueError(
            "Expected --weights with a variant. Received: --weights "
            f"{weights} and {model}, which has its own weights"
        )
    is_trained = path is not None and path == model and not _is_checkpoint(path)
    is_raw = path is not None and not is_trained
    normalization = given(mean=options.mean, std=options.std)
    for option, value in normalization.items():
        if not is_raw:
            raise ValueError(
                f"Expected --{option} with a weights file. Received: --{option} "
                f"{value} without a weights file. Remove it: a run, a .keras file and "
                "a published tag have their own preprocessing"
            )
    is_only_file = is_raw and (model is None or path == model)
    if options.num_heads is not None and not is_only_file:
        raise ValueError(
            "Expected --num-heads with a weights file. Received: --num-heads "
            f"{options.num_heads} without a weights file. Remove it: a variant and a "
            "run have their own number of heads"
        )
    details: dict[str, Any] = {}
    allowed = options.license_allow
    overrides = given(
        gelu=options.gelu, num_heads=options.num_heads, license_allow=allowed
    )
    if is_trained:
        if options.gelu is not None:
            raise ValueError(
                "Expected --gelu with a variant or a weights file. Received: --gelu "
                f"{options.gelu} and {model}, which has its own GELU"
            )
        network, details = _open_trained(Path(str(model)))
        check_license(facts_of(network).provenance.license, allowed, str(model))
        if purpose == "features":
            network = network.backbone if predicts_patches(network) else network
            if file_size is not None:
                network = keras_vit.at_resolution(network, file_size)
    elif is_only_file and path is not None:
        resized = file_size if purpose == "features" else None
        network = keras_vit.from_checkpoint(path, image_size=resized, **overrides)
        if purpose != "classify":
            console.print(str(network.provenance).splitlines()[0])
    else:
        variant = model or "ViT-B/16"
        network = _build(variant, weights, purpose, size, overrides)
    if normalization:
        network.preprocessing = dataclasses.replace(
            network.preprocessing, **normalization
        )
    if purpose == "classify":
        _check_classifies(network, str(path or weights or model))
    return network, details


def _exists(path: str) -> bool:
    """Whether an option's value is a path; also true for a missing .keras file."""
    from keras_vit.weights.sources import is_remote

    return Path(path).exists() or path.endswith(".keras") or is_remote(path)


def _open_trained(path: Path) -> tuple[Any, dict[str, Any]]:
    """Opens a `.keras` file or a run's folder; returns the model and the details."""
    import keras_vit.self_supervision  # Registers the classes of a file.
    from keras_vit.weights.keras_files import load_model

    if path.is_dir():
        file, run = path / "model.keras", _read_run(path)
    else:
        file, run = path, {}
    if may_wait(file):
        raise ValueError(
            f"Expected a regular .keras file. Received: {str(file)!r}, which is a "
            "named pipe, a socket or a device"
        )
    network = load_model(file)
    if isinstance(network, keras_vit.models.VisionModel) or predicts_patches(network):
        return network, run.get("details", {})
    return _with_facts(network, run, file), run.get("details", {})


def _with_facts(network: Any, run: dict[str, Any], file: Path) -> Any:
    """Adds facts to a model: from the run.json of keras_vit 0.1, or the defaults."""
    from keras_vit.facts import Facts, Preprocessing
    from keras_vit.models import VisionModel

    if not run:
        errors.print(
            f"{printable(file)} does not state its preprocessing. Images are scaled to "
            "[-1, 1], as in the paper"
        )
    stated = {key: run[key] for key in ("mean", "std") if key in run}
    labels = run.get("classes")
    if labels is not None and len(labels) != network.output_shape[-1]:
        raise ValueError(
            f"Expected {network.output_shape[-1]} classes in "
            f"{str(file.with_name('run.json'))!r}, one for each output of its "
            f"model. Received: {len(labels)} classes. Restore the file, or train again"
        )
    facts = Facts(preprocessing=Preprocessing(**stated), labels=labels)
    try:
        return VisionModel(network.input, network.output, network.name, facts=facts)
    except ValueError as error:
        raise ValueError(f"{str(file.with_name('run.json'))!r}: {error}") from error


def _read_run(folder: Path) -> dict[str, Any]:
    """Reads a run's `run.json`; in keras_vit 0.1 it also has the model's facts."""
    expected = (
        "Expected the folder of a finished run of `keras-vit finetune` or `pretrain`, "
        f"with model.keras and run.json. Received: {str(folder)!r}"
    )
    missing = [
        name for name in ("model.keras", "run.json") if not (folder / name).is_file()
    ]
    if missing:
        begun = (folder / "begun.json").is_file()
        hint = f". Its progress: keras-vit runs show {folder}" if begun else ""
        raise ValueError(f"{expected} without {' and '.join(missing)}{hint}")
    try:
        run = parse_json((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(run["details"], dict):
            raise TypeError("details is not an object")
        classes = run.get("classes", [])
        if not isinstance(classes, list):
            raise TypeError("classes is not a list")
        if not all(isinstance(name, str) for name in classes):
            raise TypeError("classes contains a name that is not text")
        if "mean" in run or "std" in run:
            run["mean"], run["std"] = checked(run["mean"], run["std"])
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{expected}. Its run.json is damaged ({reason}). Restore the file, or "
            "train again"
        ) from error
    return dict(run)


def recipe_of(folder: Path) -> dict[str, Any]:
    """Reads the recipe of a run's `begun.json`; empty if there is no such file."""
    return _begun(folder, "recipe")


def _begun(folder: Path, key: str) -> dict[str, Any]:
    """Reads an object of a run's `begun.json`; empty if there is no such file."""
    file = folder / "begun.json"
    if not file.is_file():
        return {}
    try:
        return dict(parse_json(file.read_text(encoding="utf-8"))[key])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected a begun.json that contains the {key} of a run. Received: "
            f"{str(file)!r} ({type(error).__name__}: {error}). Restore the file"
        ) from error


def stored_data(data: str) -> str:
    """The `--data` of a run as it is stored: a path is absolute, for any folder."""
    return str(Path(data).absolute()) if Path(data).exists() else data


def open_test(
    data: str,
    seed: int | None,
    on_corrupt: Literal["stop", "skip"],
    model: str | None,
    details: dict[str, Any],
) -> "Source":
    """Opens data to test a model on.

    Args:
        data: as in `finetune`.
        seed: seed of the test share; None: that of the model's run, else 0.
        on_corrupt: as in `open_source`.
        model: `--model`.
        details: details of the model's run, or an empty dictionary.

    Returns:
        The source.

    Raises:
        ValueError: if there is no such data, or its test images are not the run's.
    """
    from keras_vit.data import sources

    chosen = details.get("seed", 0) if seed is None else seed
    source = sources.open_source(data, seed=chosen, on_corrupt=on_corrupt)
    if tests_trained_images(source, model, details):
        raise ValueError(
            f"Expected the images and the seed of {model}, because its test images "
            f"were drawn from them. Received: {data!r} with seed {chosen}, which has "
            "different ones: it would be tested on images that it was trained on. "
            "Restore the images, or use a --data with a test set: folders train and "
            "test"
        )
    return source


def tests_trained_images(
    source: "Source", model: str | None, details: dict[str, Any]
) -> bool:
    """Whether test images may be training images of a model's run.

    They may if they are drawn from the run's data, and its images or the seed differ.
    A run without labels (4.6) may have seen every image.
    """
    if not details.get("data") or not source.draws_test or "objective" in details:
        return False
    paths = Path(source.name), Path(details["data"])
    if source.name != details["data"] and not (
        all(path.exists() for path in paths) and paths[0].samefile(paths[1])
    ):
        return False
    trained = _begun(Path(str(model)), "data")
    return bool(trained) and trained.get("fingerprint") != source.fingerprint()


def warn_of_tested(
    source: "Source", model: str | None, details: dict[str, Any]
) -> None:
    """Prints that test images of further training may have been trained on."""
    if tests_trained_images(source, model, details):
        errors.print(
            f"the test images of {printable(source.name)} are drawn again, because "
            f"its images or the seed are not those of {printable(str(model))}. Some "
            "are training images of that run, and the test accuracy is too high. A "
            "folder with train and test has a fixed test set",
            style="yellow",
        )


def _build(
    variant: str,
    weights: str | None,
    purpose: Purpose,
    size: tuple[int, int] | None,
    overrides: dict[str, Any],
) -> Any:
    """Builds a variant with its published head, or without a head."""
    builder = _builder(variant, weights)
    if purpose != "features":
        weights = weights or "imagenet21k+imagenet2012"
        chosen = weights if purpose == "classify" else _none(weights)
        return builder(weights=chosen, classifier_activation=None, **overrides)
    return builder(
        include_top=False,
        pooling=_pooling(variant),
        input_shape=None if size is None else (*size, 3),
        **({} if weights is None else {"weights": _none(weights)}),
        **overrides,
    )


def _check_classifies(network: Any, source: str) -> None:
    if predicts_patches(network):
        raise ValueError(
            "Expected a model with a head, one output for each class. Received: "
            f"{source!r}, a model for masked patch prediction. keras-vit finetune "
            f"--model {source} adds a head"
        )
    if not class_names(network):
        raise ValueError(
            "Expected weights with a head, one output for each class. Received: "
            f"{source}, which has no head. keras-vit finetune adds one"
        )


def class_names(network: Any) -> list[str]:
    """Names of the classes; empty without a head."""
    from keras_vit.models.vision import labels_of

    if "head" not in {layer.name for layer in network.layers}:
        return []
    return list(labels_of(network))


def on_devices(context: typer.Context, devices: Devices) -> int:
    """Sets the strategy and precision of a command; returns the number of devices.

    The rest of the command builds its model under them. Only worker 0 prints.
    """
    import keras

    from keras_vit.training import distribution

    word, tpu = devices.distribute, devices.tpu
    if tpu is not None and "tpu" not in (word, distribution.found()):
        raise ValueError(
            "Expected --tpu on a machine with a TPU, or with --distribute tpu. "
            f"Received: --tpu {tpu}, --distribute {word}"
        )
    shards = devices.model_parallel if isinstance(devices, Cluster) else 1
    strategy = distribution.strategy(word, tpu=tpu, model_parallel=shards)
    context.with_resource(strategy.scope())
    workers = distribution.Workers.under(strategy)
    console.quiet = not workers.chief
    policy = _policy(devices)
    if policy is None and distribution.on_tpu(strategy):
        policy = "mixed_bfloat16"
    if policy is not None:
        keras.config.set_dtype_policy(policy)
    return workers.replicas


def _policy(devices: Devices) -> str | None:
    """The dtype policy of --precision or of its deprecated alias; None: neither."""
    if devices.mixed_precision is None:
        return devices.precision
    old = "--mixed-precision" if devices.mixed_precision else "--no-mixed-precision"
    policy = "mixed_bfloat16" if devices.mixed_precision else "float32"
    if devices.precision not in (None, policy):
        raise ValueError(
            f"Expected one precision. Received: --precision {devices.precision} and "
            f"{old}, which is deprecated and means --precision {policy}"
        )
    errors.print(f"{old} is deprecated. Use --precision {policy}", style="yellow")
    return policy


def open_data(images: ImageData, seed: int, labels: bool = True) -> "Source":
    """Opens the data of a training run; sets the random seed for the model, too."""
    import keras

    from keras_vit.data import sources

    keras.utils.set_random_seed(seed)
    return sources.open_source(
        images.data, seed=seed, on_corrupt=images.on_corrupt, labels=labels
    )


def table_4(name: str | None, data: str) -> "Recipe":
    """Returns the named row of Table 4, else that of the data set."""
    from keras_vit.recipes import FINETUNE, finetune_row

    if name is not None and name not in FINETUNE:
        raise ValueError(
            f"Expected one of {', '.join(FINETUNE)}. Received: --recipe {name}. "
            "`keras-vit recipes` lists them"
        )
    return FINETUNE[name or finetune_row(data)]


def changed(row: "Recipe", images: int, devices: int, options: Changes) -> "Recipe":
    """Returns a row as the recipe for a number of images, with the given options.

    Epochs and steps replace the row's length. The defaults fit a small machine: 32
    images at a time on each device, and at most a fifth of the steps for warm-up.
    """
    changes = dict(options)
    size, lengths = changes.pop("image_size", None), ("epochs", "total_steps")
    if any(name in changes for name in lengths):
        row = dataclasses.replace(row, **{n: changes.pop(n, None) for n in lengths})
    batch = changes.get("batch_size", row.batch_size)
    part = 32 * devices
    changes.setdefault("accumulation_steps", batch // part if batch % part == 0 else 1)
    if size is not None:
        row = row.at_size(size)
    recipe = dataclasses.replace(row, **changes).for_images(images)
    if "warmup_steps" in changes:
        return recipe
    warmup = min(recipe.warmup_steps, recipe.steps // 5)
    return dataclasses.replace(recipe, warmup_steps=warmup)


def _is_checkpoint(weights: str | None) -> TypeGuard[str]:
    """Whether `weights` is a file, a remote name or a folder of weights."""
    if weights is None:
        return False
    from keras_vit.weights.reading import is_folder
    from keras_vit.weights.sources import is_remote

    is_file = Path(weights).is_file() and not weights.endswith(".keras")
    return is_file or is_remote(weights) or is_folder(weights)


def _none(weights: str) -> str | None:
    return None if weights.lower() == "none" else weights


def _pooling(variant: str) -> str:
    """The input of a new head: the class token if there is one, else the mean (D.3)."""
    from keras_vit.configs import VARIANTS

    config = VARIANTS.get(variant)
    is_token = getattr(config, "classifier", None) == "token"
    return "token" if is_token else "avg"


def _builder(variant: str, weights: str | None) -> Any:
    """The builder of a variant in any spelling; raises if it has no such weights."""
    import keras_vit
    from keras_vit.configs import builder_name
    from keras_vit.weights import registry

    variant = variant_named(variant, folders=True)
    if weights is not None and _none(weights) and not _is_path(weights):
        with helped_by("keras-vit weights list"):
            registry.find(variant, weights)
    return getattr(keras_vit, builder_name(variant))


def _is_path(weights: str) -> bool:
    """Whether a builder treats `weights` as a file or folder, not as a tag."""
    from keras_vit.weights.sources import is_remote

    return Path(weights).exists() or bool(Path(weights).suffix) or is_remote(weights)


def predicts_patches(network: Any) -> bool:
    """Whether a model is for masked patch prediction (4.6), not a classifier."""
    from keras_vit.self_supervision import MaskedPatchPredictor

    return isinstance(network, MaskedPatchPredictor)


def image_files(path: Path) -> list[Path]:
    """An image, or every image below a folder."""
    if path.is_dir():
        listed = files_below(path, hidden=True, onerror=_skipped)
        images = [
            file
            for file in listed
            if file.suffix.lower() in IMAGE_SUFFIXES and _may_end(file)
        ]
        if not images:
            raise ValueError(
                f"Expected images ({', '.join(sorted(IMAGE_SUFFIXES))}) in the folder. "
                f"Received: {str(path)!r}"
            )
        return images
    if not path.exists():
        raise ValueError(f"Expected an image or a folder. Received: {str(path)!r}")
    return [path]


def _may_end(file: Path) -> bool:
    """Whether reading a file cannot block forever; prints a file that is skipped."""
    if may_wait(file):
        errors.print(f"skipped {printable(file)}: a named pipe, a socket or a device")
        return False
    return True


def _skipped(error: OSError) -> None:
    """Prints a folder that cannot be listed; ignores a folder deleted meanwhile."""
    if not isinstance(error, FileNotFoundError):
        errors.print(f"skipped {printable(error.filename)}: {error.strerror}")


def read_image(file: Path, network: Any) -> "np.ndarray":
    """Reads an image as model input, [H, W, C].

    Raises:
        ValueError: if the file, which the message names, is not a readable image.
    """
    import numpy as np
    import tensorflow as tf

    from keras_vit.data import decoding, preprocessing
    from keras_vit.models.vision import preprocessing_of

    try:
        encoded = read_bytes(file)
    except OSError as error:
        raise ValueError(unreadable(file, error.strerror or str(error))) from error
    try:
        image = decoding.decode(tf.constant(encoded))
    except tf.errors.OpError as error:
        reason = decoding.reason(encoded) or error.message
        raise ValueError(unreadable(file, reason)) from error
    size, channels = network.input_shape[1:3], network.input_shape[-1]
    stated = preprocessing_of(network)
    return np.asarray(preprocessing.prepare(image, size, stated, channels))


def unreadable(file: Path, reason: str) -> str:
    """Error message for an unreadable image."""
    return f"{printable(file)}: not a readable image ({reason})"
