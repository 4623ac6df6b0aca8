"""Writing a model as another library's checkpoint: npz, timm, Hugging Face."""

import dataclasses
import errno
import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_vit import configs
from keras_vit.configs import ResNetConfig, ViTConfig
from keras_vit.facts import Preprocessing
from keras_vit.files import replacing, replacing_all
from keras_vit.layers.embeddings import quantized
from keras_vit.models.description import describe
from keras_vit.models.vision import facts_of
from keras_vit.weights import names, variables
from keras_vit.weights.architecture import config_of
from keras_vit.weights.contents import infer

FORMATS = ("npz", "timm", "hf")
# What a file of tensors does not tell, and `infer` takes from the paper.
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

    Whole or not at all. LoRA is merged into the kernels.

    Args:
        model: a model of this library.
        path: "npz": of the file. "timm" and "hf": of the folder, which receives
            `model.safetensors` and `config.json` (and, "hf",
            `preprocessor_config.json`); timm.create_model("local-dir:FOLDER",
            pretrained=True) and transformers' from_pretrained(FOLDER) read it. A path
            that ends in .safetensors is the file's, with the same JSON next to it.
        format: "npz", the official code's (BiT's own names for a BiT), "timm" or "hf".
        numbering: of an npz: "pre-linen", as the released files, or "linen", as
            today's code.

    Raises:
        ValueError: if `format` or `numbering` is unknown, `path` has another format's
            ending, the JSON next to a .safetensors file is of another checkpoint, the
            model is quantized, or it has parts that the format has no names for: in
            "timm" and "hf" axial attention (D.6) and positions other than "1d" (D.4).
        OSError: if the disk is full or the folder not writable.
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
    if format == "npz":
        _warn_of_untold(model, tensors, path)
        written = _npz(tensors, numbering)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **written)
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
    """Whether a path is that of the file; a folder of that name stays a folder."""
    return path.suffix == ".safetensors" and not path.is_dir()


ENDINGS = (".npz", ".safetensors", ".h5", ".keras", ".bin", ".pt", ".pth")


def _check_ending(path: Path, format: str) -> None:
    """A path that ends as another format's files do is neither file nor folder here."""
    own = ".npz" if format == "npz" else ".safetensors"
    if path.suffix in ENDINGS and path.suffix != own and not path.is_dir():
        kind = "a file that ends in .npz"
        if format != "npz":
            kind = "a folder, or a file that ends in .safetensors,"
        raise ValueError(
            f"Expected {kind} for format={format!r}. Received: format={format!r}, "
            f"path={str(path)!r}. Give another path or format"
        )


def _check_beside(path: Path, files: Mapping[str, Any]) -> None:
    """A new checkpoint is not to change the config.json of one that is there."""
    for name, content in files.items():
        beside = path.with_name(name)
        if beside.exists() and beside.read_text("utf-8") != _as_text(content):
            raise ValueError(
                f"Expected no {name} of another checkpoint next to the file. Received: "
                f"path={str(path)!r}, with {str(beside)!r} there. Choose another folder"
            )


def _save_safetensors(tensors: dict[str, np.ndarray], path: Path) -> None:
    try:
        save_file(tensors, path, {"format": "pt"})
    except SafetensorError as error:  # Of a full disk, too: "... (os error 28)".
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
            f"Expected a model of ViT layers alone. Received: model={model.name!r} "
            f"with layers that format={format!r} has no names for: "
            f"{', '.join(unnamed)}. Use model.save('model.keras')"
        )
    return {
        name: tensor
        for _, named in entries
        for entry in named
        for name, tensor in entry.split().items()
    }


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


def _warn_of_untold(
    model: keras.Model, tensors: Mapping[str, np.ndarray], path: str | os.PathLike[str]
) -> None:
    """Names what is to be said again when the npz is read."""
    config = config_of(model)
    told = infer(tensors, "the model").config
    say = [
        f"{field}={getattr(config, field)!r}"
        for field in (*UNTOLD, *KERNELS, "pool_padding")
        if getattr(config, field, None) != getattr(told, field, None)
    ]
    if isinstance(config, ViTConfig) and config.position != "2d":
        rows, columns = describe(model)["grid"]
        places = rows * columns
        has_table = any(name.endswith("/pos_embedding") for name in tensors)
        if has_table and rows != columns and round(places**0.5) ** 2 == places:
            say.append(f"grid={(rows, columns)}")
    if say:
        warnings.warn(
            "The npz format does not hold all of the model: read "
            f"{path} back with {', '.join(say)}",
            stacklevel=3,
        )


def _pooled(
    config: ViTConfig | ResNetConfig,
    tensors: Mapping[str, np.ndarray],
    path: str | os.PathLike[str],
) -> ViTConfig | ResNetConfig:
    """Without a head, torch's files are the same whether tokens are pooled or not."""
    kinds: dict[str, configs.Classifier] = {
        "unpooled": "gap",
        "token_unpooled": "token",
    }
    if (
        isinstance(config, ResNetConfig)
        or "head/kernel" in tensors
        or config.classifier not in kinds
    ):
        return config
    warnings.warn(
        "A file without a head does not say whether tokens are pooled: read "
        f"{path} back with classifier={config.classifier!r}",
        stacklevel=3,
    )
    return dataclasses.replace(config, classifier=kinds[config.classifier])


def _refuse(format: str, what: str) -> ValueError:
    return ValueError(
        f"Expected a model that format={format!r} has names for. Received: {what}. "
        "format='npz' and model.save('model.keras') keep it"
    )


def _check_expressible(
    config: ViTConfig | ResNetConfig, format: str, classifiers: tuple[str, ...]
) -> None:
    if isinstance(config, ResNetConfig):
        if config.unit != "v2" or config.pool_padding != "zero":
            what = f"unit={config.unit!r}, pool_padding={config.pool_padding!r}"
            raise _refuse(format, what)
        return
    for field, values in (
        ("classifier", classifiers),
        ("position", ("1d",)),
        ("position_at", ("stem",)),
        ("attention", ("full",)),
    ):
        if getattr(config, field) not in values:
            raise _refuse(format, f"{field}={getattr(config, field)!r}")


def _warn_of_numerics(config: ViTConfig | ResNetConfig, library: str) -> None:
    """What the library computes otherwise, whatever its config says."""
    theirs = configs.numerics_of(config, library)
    if library == "hf":
        theirs.pop("layer_norm_epsilon", None)  # Its config says it.
    theirs.pop("gelu", None)  # Both configs say it.
    differing = [
        f"{field}={value!r}"
        for field, value in theirs.items()
        if getattr(config, field) != value
    ]
    if differing:
        warnings.warn(
            f"{library} computes with {', '.join(differing)}, which this model does "
            "not: expect logits about 1e-5 apart",
            stacklevel=4,
        )


def _split_tokens(
    tensors: dict[str, np.ndarray], config: ViTConfig
) -> dict[str, np.ndarray]:
    """`cls` as the tokens that torch libraries know, DeiT's head as its two."""
    if "cls" in tensors:
        cls = tensors.pop("cls")
        own = configs.CLASS_TOKENS[config.classifier]
        split = {
            "cls_token": cls[:, : min(own, 1)],
            "dist_token": cls[:, 1:own],
            "reg_token": cls[:, own:],
        }
        tensors |= {name: token for name, token in split.items() if token.shape[1]}
    tensors["pos_embed"] = tensors.pop(variables.POSITIONS)
    if config.classifier == "distilled" and "head/kernel" in tensors:
        kernel, bias = tensors.pop("head/kernel") * 2, tensors.pop("head/bias")
        for name, half in zip(("head", "head_dist"), np.split(kernel, 2), strict=True):
            tensors |= {f"{name}/kernel": half, f"{name}/bias": bias}
    return tensors


def _preprocessing(model: keras.Model) -> Preprocessing:
    """The model's preprocessing, with a mean and a deviation for each channel."""
    return facts_of(model).preprocessing.for_channels(model.input_shape[-1])


def _ours(preprocessing: Preprocessing) -> dict[str, Any]:
    """The preprocessing in our words: no other library's have all of it."""
    return {"keras_vit": dataclasses.asdict(preprocessing)}


TIMM_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
TIMM_BITS = {
    (3, 4, 6, 3): "resnetv2_50x1_bit",
    (3, 4, 23, 3): "resnetv2_101x1_bit",
    (3, 8, 36, 3): "resnetv2_152x2_bit",
}


def _timm(
    model: keras.Model,
    config: ViTConfig | ResNetConfig,
    tensors: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Timm's tensors and its config.json."""
    _check_expressible(config, "timm", ("token", "gap", "map", "distilled"))
    _warn_of_numerics(config, "timm")
    _, height, width, channels = model.input_shape
    classes = len(tensors["head/bias"]) if "head/bias" in tensors else 0
    arguments: dict[str, Any] = {"in_chans": channels}
    if isinstance(config, ResNetConfig):
        architecture, more = _timm_bit(config)
        written = names.TIMM_BIT.write(tensors)
        first, last = "stem.conv", "head.fc"
    else:
        architecture, more = _timm_vit(config, (height, width))
        written = names.TIMM.write(_split_tokens(tensors, config))
        first, last = "patch_embed.proj", "head"
        if config.resnet is not None:
            first = "patch_embed.backbone.stem.conv"
    if architecture == TIMM_HYBRIDS[()]:
        first = "patch_embed.backbone.conv"
        written = {
            name.replace("backbone.stem.", "backbone."): tensor
            for name, tensor in written.items()
        }
    preprocessing, labels = _preprocessing(model), facts_of(model).labels
    crop = preprocessing.crop
    pretrained = {
        "num_classes": classes,
        "input_size": [channels, height, width],
        "fixed_input_size": isinstance(config, ViTConfig),
        "crop_pct": 1.0 if crop is None else crop,
        "crop_mode": "squash" if crop is None else "center",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "first_conv": first,
        "classifier": last,
    }
    content = {
        "architecture": architecture,
        "num_classes": classes,
        "model_args": arguments | more,
        "pretrained_cfg": pretrained,
        **({} if labels is None else {"label_names": list(labels)}),
        **_ours(preprocessing),
    }
    return written, {"config.json": content}


def _timm_vit(
    config: ViTConfig, image_size: tuple[int, int]
) -> tuple[str, dict[str, Any]]:
    if config.representation_size is not None:
        raise _refuse("timm", f"representation_size={config.representation_size}")
    arguments: dict[str, Any] = {
        "img_size": list(image_size),
        "embed_dim": config.hidden_size,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "mlp_ratio": _ratio(config.mlp_dim, config.hidden_size),
        "act_layer": "gelu_tanh" if config.gelu == "tanh" else "gelu",
    }
    architecture = "vit_base_patch16_224"
    if config.resnet is not None:
        units = config.resnet.num_layers
        if config.classifier == "distilled":
            raise _refuse("timm", "a hybrid with a distillation token")
        if units not in TIMM_HYBRIDS or config.resnet.width != 64:
            raise _refuse(
                "timm", f"a stem of units {units}, width {config.resnet.width}"
            )
        architecture = TIMM_HYBRIDS[units]
    if config.resnet is None or not config.resnet.num_layers:
        arguments["patch_size"] = config.patch_size
    elif config.patch_size != 1:
        raise _refuse("timm", f"patch_size={config.patch_size} on a feature map")
    if config.classifier == "distilled":
        architecture = "deit_base_distilled_patch16_224"
    if config.classifier in ("gap", "map"):
        pool = "avg" if config.classifier == "gap" else "map"
        arguments |= {"class_token": False, "global_pool": pool, "fc_norm": False}
    if config.num_registers:
        if config.classifier == "distilled":
            raise _refuse("timm", "registers beside a distillation token")
        arguments["reg_tokens"] = config.num_registers
    return architecture, arguments


def _ratio(mlp_dim: int, hidden_size: int) -> float:
    """What timm multiplies the hidden size by, and rounds down."""
    ratio = mlp_dim / hidden_size
    exact = int(hidden_size * ratio) == mlp_dim
    return ratio if exact else (mlp_dim + 0.5) / hidden_size


def _timm_bit(config: ResNetConfig) -> tuple[str, dict[str, Any]]:
    """Timm knows 50x1, 50x3, ...; another width is told as its channels."""
    if config.num_layers not in TIMM_BITS:
        raise _refuse("timm", f"a BiT of units {config.num_layers}")
    architecture = TIMM_BITS[config.num_layers]
    factor = 2 if architecture == "resnetv2_152x2_bit" else 1  # Its own, multiplied.
    if config.width == 64 * factor:
        return architecture, {}
    if config.width % factor:
        raise _refuse("timm", f"a BiT of width {config.width}")
    width = config.width // factor
    channels = [4 * width * 2**stage for stage in range(4)]
    return architecture, {"stem_chs": width, "channels": channels}


def _hf(
    model: keras.Model,
    config: ViTConfig | ResNetConfig,
    tensors: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Transformers' tensors, config.json and preprocessor_config.json."""
    _check_expressible(config, "hf", ("token", "distilled"))
    _warn_of_numerics(config, "hf")
    _, height, width, channels = model.input_shape
    classes = len(tensors["head/bias"]) if "head/bias" in tensors else 0
    known = facts_of(model).labels or [f"LABEL_{i}" for i in range(classes)]
    labels = {str(i): label for i, label in enumerate(known[:classes])}
    common = {
        "num_channels": channels,
        "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()},
    }
    if isinstance(config, ResNetConfig):
        written = names.HF_BIT.write(tensors)
        own = _hf_bit(config)
        suffix = "ForImageClassification" if classes else "Model"
    else:
        if config.num_registers:
            raise _refuse("hf", f"num_registers={config.num_registers}")
        if config.representation_size is not None and classes:
            raise _refuse("hf", "a head behind pre_logits")
        dialect = names.HF_DEIT if config.classifier == "distilled" else names.HF
        written = dialect.write(_split_tokens(tensors, config))
        own = _hf_vit(config, (height, width))
        suffix = "ForImageClassification" if classes else "Model"
        if config.classifier == "distilled" and classes:
            suffix += "WithTeacher"
    kinds = {"vit": "ViT", "vit-hybrid": "ViTHybrid", "deit": "DeiT", "bit": "Bit"}
    content = {"architectures": [kinds[own["model_type"]] + suffix], **own, **common}
    content |= _ours(_preprocessing(model))
    preprocessing = _preprocessing(model)
    resample = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
    processor = {
        **_hf_resize(preprocessing.crop, height, width),
        "do_resize": True,
        "resample": resample[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    return written, {"config.json": content, "preprocessor_config.json": processor}


def _hf_resize(crop: float | None, height: int, width: int) -> dict[str, Any]:
    """The processor of transformers that resizes so, and its sizes."""
    sides = {"height": height, "width": width}
    if crop is None:
        return {"image_processor_type": "ViTImageProcessor", "size": sides}
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": int(min(height, width) / crop)},
        "do_center_crop": True,
        "crop_size": sides,
    }


def _hf_vit(config: ViTConfig, image_size: tuple[int, int]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model_type": "deit" if config.classifier == "distilled" else "vit",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": list(image_size),
        "patch_size": config.patch_size,
        "qkv_bias": True,
    }
    if config.representation_size is not None:
        fields["pooler_output_size"] = config.representation_size
    if config.resnet is None:
        return fields
    stages = len(config.resnet.num_layers)
    if not stages or config.classifier == "distilled":
        raise _refuse("hf", f"a stem of units {config.resnet.num_layers}")
    stride, channels = config.resnet.stride, 4 * config.resnet.width * 2 ** (stages - 1)
    backbone = _hf_bit(config.resnet) | {
        "layer_type": "bottleneck",
        "global_padding": "SAME",
        "embedding_dynamic_padding": True,
        "out_features": [f"stage{stages}"],
    }
    return fields | {
        "model_type": "vit-hybrid",
        "backbone_config": backbone,
        "backbone_featmap_shape": [1, channels, *(-(-s // stride) for s in image_size)],
    }


def _hf_bit(config: ResNetConfig) -> dict[str, Any]:
    return {
        "model_type": "bit",
        "embedding_size": config.width,
        "hidden_sizes": [
            4 * config.width * 2**stage for stage in range(len(config.num_layers))
        ],
        "depths": list(config.num_layers),
        "layer_type": "preactivation",
        "hidden_act": "relu",
        "num_groups": 32,
        "global_padding": None,
        "embedding_dynamic_padding": False,
        "width_factor": 1,
    }
