"""Write a model as another library's checkpoint: npz, timm, Hugging Face."""

import contextlib
import dataclasses
import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_vit import configs
from keras_vit.arguments import counted
from keras_vit.callers import warn
from keras_vit.facts import Preprocessing
from keras_vit.families import family_of
from keras_vit.files import replacing, replacing_all
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers.embeddings import quantized
from keras_vit.layers.encoder import uninitialized
from keras_vit.models.description import check_one_size, describe, stride_of
from keras_vit.models.vision import facts_of
from keras_vit.weights import names, variables
from keras_vit.weights.architecture import config_of
from keras_vit.weights.reading import infer
from keras_vit.weights.torch_layouts import Layout, refuse

FORMATS = ("npz", "timm", "hf")
# Fields that tensors do not show; `infer` assumes the paper's values.
UNTOLD = (
    *("gelu", "layer_norm_epsilon", "classifier", "resnet"),
    *("position", "position_at", "num_heads"),
)
KERNELS = ("kernel_epsilon", "epsilon_outside", "group_norm_epsilon")


def save(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str = "npz",
    *,
    numbering: str = "pre-linen",
) -> None:
    """Writes a model's weights for the official code, timm or transformers.

    An interrupted call leaves no partial files. LoRA is merged into the kernels.

    Args:
        model: a model of this library.
        path: path of the file for "npz"; path of the folder for "timm" and "hf". The
            folder receives `model.safetensors` and `config.json` (for "hf" also
            `preprocessor_config.json`). timm.create_model("local-dir:FOLDER",
            pretrained=True) and transformers' from_pretrained(FOLDER) read it. A path
            that ends in .safetensors is that file, with the same JSON next to it.
        format: "npz", the official code's format (for a BiT with BiT's names), "timm"
            or "hf".
        numbering: numbering in an npz: "pre-linen", as in the released files, or
            "linen", as in the current code.

    Raises:
        ValueError: if `format` or `numbering` is unknown, `path` has a different
            format's suffix, the JSON next to a .safetensors file belongs to another
            checkpoint, the model is quantized, it has operations that its config does
            not describe (such as a different pooling before the head), or the format
            cannot represent it:
            "npz" has no plain ViTs of later papers; "timm" and "hf" have no axial
            attention (D.6) and only the positions "1d" (D.4).
        OSError: if the disk is full or the folder is not writable.
    """
    if format not in FORMATS or numbering not in ("pre-linen", "linen"):
        raise ValueError(
            f"Expected format to be one of {', '.join(FORMATS)} and numbering "
            "'pre-linen' or 'linen'. "
            f"Received: format={format!r}, numbering={numbering!r}"
        )
    path = Path(path)
    _check_ending(path, format)
    tensors = _tensors(model, format)
    _check_graph(model, path)
    if format == "npz":
        _check_npz(config_of(model))
        _warn_of_untold(model, tensors, path)
        written: dict[str, Any] = _npz(tensors, numbering)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **written)
        return
    config = _pooled(config_of(model), tensors, path)
    write = _timm if format == "timm" else _hf
    written, files = write(model, config, dict(tensors))
    target = path
    if not _is_safetensors(path):
        target = path / "model.safetensors"
    elif not path.exists():
        _check_beside(path, files)
    paths = [target, *(target.with_name(name) for name in files)]
    with replacing_all(paths) as (temporary, *others):
        _save_safetensors(written, temporary)
        for other, content in zip(others, files.values(), strict=True):
            other.write_text(_as_text(content), encoding="utf-8")


def _as_text(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"


def _is_safetensors(path: Path) -> bool:
    """Whether a path is a .safetensors file, and not a folder with such a name."""
    return path.suffix.lower() == ".safetensors" and not path.is_dir()


ENDINGS = (".npz", ".safetensors", ".h5", ".keras", ".bin", ".pt", ".pth")


def _check_ending(path: Path, format: str) -> None:
    """Raises if the path has the suffix of a different format."""
    own = ".npz" if format == "npz" else ".safetensors"
    ending = path.suffix.lower()
    if ending in ENDINGS and ending != own and not path.is_dir():
        kind = "a file that ends in .npz"
        if format != "npz":
            kind = "a folder, or a file that ends in .safetensors,"
        raise ValueError(
            f"Expected {kind} for format={format!r}. Received: format={format!r}, "
            f"path={str(path)!r}. Use a different path or format"
        )


def _check_beside(path: Path, files: Mapping[str, Any]) -> None:
    """Raises if an existing checkpoint's config.json would be changed."""
    for name, content in files.items():
        beside = path.with_name(name)
        if beside.exists() and beside.read_text("utf-8") != _as_text(content):
            raise ValueError(
                f"Expected no {name} of another checkpoint next to the file. Received: "
                f"path={str(path)!r} next to {str(beside)!r}. Choose a different folder"
            )


def _save_safetensors(tensors: dict[str, np.ndarray], path: Path) -> None:
    try:
        save_file(tensors, path, {"format": "pt"})
    except SafetensorError as error:  # Also for a full disk: "... (os error 28)".
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


def _tensors(model: keras.Model, format: str) -> dict[str, np.ndarray]:
    """The model's tensors under canonical names; raises for one without a name."""
    if found := quantized(model):
        raise ValueError(
            "Expected a model in floating point. Received: "
            f"model={model.name!r}, quantized in {', '.join(found[:3])}. Save "
            "before quantizing, or use model.save('model.keras')"
        )
    entries = [(layer, list(variables.of_layer(layer))) for layer in model.layers]
    unnamed = [layer.name for layer, named in entries if layer.weights and not named]
    if unnamed:
        raise ValueError(
            f"Expected a model of ViT layers only. Received: model={model.name!r} "
            f"with layers that format={format!r} has no names for: "
            f"{', '.join(unnamed)}. Use model.save('model.keras')"
        )
    return {
        name: tensor
        for _, named in entries
        for entry in named
        for name, tensor in entry.split().items()
    }


def _check_graph(model: keras.Model, path: Path) -> None:
    """Raises for operations that are not in a file; without a head, warns.

    The files contain the tensors and the config. Neither shows a user's operations
    before the first layer, or between the encoder and the head.
    """
    first = next(layer for layer in model.layers if layer.weights)
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        found = (
            f"{counted(len(model.inputs), 'input')} and "
            f"{counted(len(model.outputs), 'output')}"
        )
    elif first.input is not model.inputs[0]:
        found = f"operations before {first.name!r}"
    else:
        has_head = any(layer.name == "head" for layer in model.layers)
        expected, found = _after_encoder(model, has_head)
        if found == expected:
            return
        found = f"{found or 'nothing'} instead of {expected or 'nothing'}"
        if not has_head:
            warn(
                f"A file without a head does not store the pooling, here {found}. Read "
                f"{path} back with weights={str(path)!r}, include_top=False and the "
                "same pooling",
            )
            return
    raise ValueError(
        "Expected a model whose config describes all of its operations. Received: "
        f"model={model.name!r} with {found}, which the file would not store. Use "
        "model.save('model.keras')"
    )


def _after_encoder(model: keras.Model, has_head: bool) -> tuple[str, str]:
    """The operations after the encoder: of the model's config, and of the model."""
    config = config_of(model)
    family = family_of(config)
    with uninitialized():
        images = keras.Input(_some_shape(model, config))
        features = family.encode(images, config)
        outputs = family.classify(features, config, 2 if has_head else None, None)
    last = keras.Model(images, features).operations[-1].name
    layers = {layer.name: layer for layer in model.layers}
    found = "other layers"
    if last in layers:
        with contextlib.suppress(ValueError):  # The outputs need something else, too.
            found = _between(layers[last].output, model.outputs[0])
    return _between(features, outputs), found


def _some_shape(model: keras.Model, config: Any) -> tuple[int, ...]:
    """A shape of images, (H, W, C), that the model accepts."""
    height, width, channels = model.input_shape[1:]
    if None in (height, width) and family_of(config).has_patches:
        stride = stride_of(model) * config.patch_size
        height, width = (stride * places for places in _grid(model))
    return height, width, channels


def _between(start: keras.KerasTensor, end: keras.KerasTensor) -> str:
    """The operations from one tensor to another that change an inference."""
    if start is end:
        return ""
    kinds = [type(at).__name__ for at in keras.Model(start, end).operations]
    # The activation of a classifier's scores is an argument of every builder.
    if kinds[-1] in ("Activation", "Softmax"):
        kinds.pop()
    return ", ".join(at for at in kinds if at not in ("InputLayer", "Dropout"))


def _npz(tensors: Mapping[str, np.ndarray], numbering: str) -> dict[str, np.ndarray]:
    if "gn_final/scale" in tensors and not any("/attention/" in n for n in tensors):
        return names.BIT.write(tensors)
    if numbering == "linen":
        return dict(tensors)
    return {
        names.renumber(name, names.PRE_LINEN): (
            names.NORM.write(tensor) if names.is_group_norm(name) else tensor
        )
        for name, tensor in tensors.items()
    }


def _check_npz(config: Any) -> None:
    """Raises for a model that the official code cannot build."""
    family = family_of(config)
    if not family.npz:
        raise refuse("npz", f"{family.title}, which the official code cannot build")


def _warn_of_untold(
    model: keras.Model, tensors: Mapping[str, np.ndarray], path: str | os.PathLike[str]
) -> None:
    """Warns about the arguments that are required to read the npz back."""
    config = config_of(model)
    told = infer(tensors, "the model").config
    say = [
        f"{field}={getattr(config, field)!r}"
        for field in (*UNTOLD, *KERNELS, "pool_padding")
        if getattr(config, field, None) != getattr(told, field, None)
    ]
    if any(name.endswith("/pos_embedding") for name in tensors):
        rows, columns = _grid(model)
        places = rows * columns
        if rows != columns and round(places**0.5) ** 2 == places:
            say.append(f"grid={(rows, columns)}")
    if say:
        warn(
            "The npz format does not store all of the model's config. Read "
            f"{path} back with {', '.join(say)}",
        )


def _grid(model: keras.Model) -> tuple[int, int]:
    """The grid of a model's table, also for a model of any image size."""
    own = [
        at.grid for at in model.layers if isinstance(at, AddPositionEmbs) and at.grid
    ]
    grid: tuple[int, int] = own[0] if own else describe(model)["grid"]
    return grid


def _pooled(
    config: Any, tensors: Mapping[str, np.ndarray], path: str | os.PathLike[str]
) -> Any:
    """A pooled config for a model without a head: torch's files are the same."""
    kinds = {"unpooled": "gap", "token_unpooled": "token"}
    classifier = getattr(config, "classifier", None)
    if "head/kernel" in tensors or classifier not in kinds:
        return config
    warn(
        "A file without a head does not show whether tokens are pooled. Read "
        f"{path} back with classifier={classifier!r}",
    )
    return dataclasses.replace(config, classifier=kinds[classifier])


def _warn_of_numerics(config: Any, library: str, layout: Layout) -> None:
    """Warns about numerics of the library that its config cannot change."""
    theirs = configs.numerics_of(config, library)
    if layout.epsilon is not None:
        theirs["layer_norm_epsilon"] = layout.epsilon
    if library == "hf":
        theirs.pop("layer_norm_epsilon", None)  # Configurable in transformers.
    for stated in ("gelu", "activation"):  # Configurable in both libraries.
        theirs.pop(stated, None)
    differing = [
        f"{field}={value!r}"
        for field, value in theirs.items()
        if getattr(config, field) != value
    ]
    if differing:
        warn(
            f"{library} uses {', '.join(differing)}, unlike this model. Expect logits "
            "to differ by about 1e-5",
        )


def _preprocessing(model: keras.Model) -> Preprocessing:
    """The model's preprocessing, with a mean and a deviation for each channel."""
    return facts_of(model).preprocessing.for_channels(model.input_shape[-1])


def _ours(preprocessing: Preprocessing) -> dict[str, Any]:
    """The preprocessing under our names: other libraries cannot express all of it."""
    return {"keras_vit": dataclasses.asdict(preprocessing)}


def _timm(
    model: keras.Model, config: Any, tensors: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Timm's tensors and its config.json."""
    layout, classes = _layout(model, config, tensors, "timm")
    _, height, width, channels = model.input_shape
    preprocessing, labels = _preprocessing(model), facts_of(model).labels
    crop = preprocessing.crop
    pretrained = {
        "num_classes": classes,
        "input_size": [channels, height, width],
        "fixed_input_size": family_of(config).has_patches,
        "crop_pct": 1.0 if crop is None else crop,
        "crop_mode": "center" if crop and not preprocessing.squash else "squash",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "first_conv": layout.first,
        "classifier": layout.last,
    }
    content = {
        "architecture": layout.kind,
        "num_classes": classes,
        "model_args": {"in_chans": channels, **layout.words},
        "pretrained_cfg": pretrained,
        **({} if labels is None else {"label_names": list(labels)}),
        **_ours(preprocessing),
    }
    return layout.tensors, {"config.json": content}


def _layout(
    model: keras.Model, config: Any, tensors: dict[str, np.ndarray], format: str
) -> tuple[Layout, int]:
    """The family's layout in another library, and K (0 without a head)."""
    head = tensors.get("head/kernel")
    classes = 0 if head is None else head.shape[-1]
    family = family_of(config)
    if family.has_patches:
        check_one_size(model)
    if format not in family.layouts:
        raise refuse(format, family.title)
    layout: Layout = family.layouts[format](
        config, tensors, model.input_shape[1:3], classes
    )
    _warn_of_numerics(config, format, layout)
    return layout, classes


def _hf(
    model: keras.Model, config: Any, tensors: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Transformers' tensors, config.json and preprocessor_config.json."""
    layout, classes = _layout(model, config, tensors, "hf")
    _, height, width, channels = model.input_shape
    known = facts_of(model).labels or [f"LABEL_{i}" for i in range(classes)]
    labels = {str(i): label for i, label in enumerate(known[:classes])}
    preprocessing = _preprocessing(model)
    content = {
        "architectures": [layout.kind],
        **layout.words,
        "num_channels": channels,
        "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()},
        **_ours(preprocessing),
    }
    resample = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
    processor = {
        **_hf_resize(preprocessing, height, width),
        "do_resize": True,
        "resample": resample[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    return layout.tensors, {
        "config.json": content,
        "preprocessor_config.json": processor,
    }


def _hf_resize(preprocessing: Preprocessing, height: int, width: int) -> dict[str, Any]:
    """The transformers processor with this resizing, and its sizes."""
    sides = {"height": height, "width": width}
    if preprocessing.crop is None:
        return {"image_processor_type": "ViTImageProcessor", "size": sides}
    larger = preprocessing.size_before_crop((height, width))
    kind, size = "Bit", {"shortest_edge": min(larger)}
    if preprocessing.squash:
        kind, size = "DeiT", dict(zip(sides, larger, strict=True))
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "size": size,
        "do_center_crop": True,
        "crop_size": sides,
    }
