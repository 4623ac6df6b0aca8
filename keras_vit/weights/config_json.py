"""The `config.json` beside a checkpoint: ours, timm's, transformers' or keras-hub's."""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from keras_vit.configs import ResNetConfig, ViTConfig
from keras_vit.weights.tensors import MAX_JSON

Grid: TypeAlias = tuple[int, int]
VIT_FIELDS = {field.name for field in dataclasses.fields(ViTConfig)}
RESNET_FIELDS = {field.name for field in dataclasses.fields(ResNetConfig)}
_FIELDS = VIT_FIELDS | RESNET_FIELDS | {"mean", "std", "grid", "interpolation"}
_FIELDS -= {"resnet"}  # Its fields stand beside the others.
# What the tensors' shapes say, whatever a config.json says.
SIZES = ("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads")


def config_beside(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `config.json` beside a checkpoint, in our words.

    It may be ours (fields of `ViTConfig` or `ResNetConfig`, `mean`, `std`, `grid`,
    `interpolation`), timm's, keras-hub's or transformers', with its
    `preprocessor_config.json`.

    Args:
        path: the checkpoint's file, or its folder.

    Returns:
        A dict of those fields, empty where there is no such file: `mean` and `std` by
        channel in units of the 0..1 range, `grid` (rows, columns).

    Raises:
        ValueError: if it is not a JSON object of these fields.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    config = _json(folder / "config.json")
    if "architecture" in config.values:
        return _timm_config(config)
    if "model_type" in config.values:
        processor = _json(folder / "preprocessor_config.json")
        return _hf_config(config) | _hf_preprocessing(processor)
    if config.values.get("class_name") == "ViTBackbone":
        return _hub_config(config, _json(folder / "task.json"))
    if config.values.keys() - _FIELDS:
        raise ValueError(
            f"Expected fields among {', '.join(sorted(_FIELDS))}, or timm's or "
            f"transformers' own. Received: {str(config.file)!r} with "
            f"{json.dumps(config.values)[:200]}"
        )
    fields = {key: config.take(key, _OWN.get(key, _TEXT)) for key in config.values}
    nullable = "representation_size"  # null: without.
    return {
        k: value for k, value in fields.items() if k == nullable or value is not None
    }


_Kind: TypeAlias = tuple[str, Callable[[Any], bool]]


def _is_positive(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e6 < value < 1e6


def _is_list(value: Any, of: Callable[[Any], bool], lengths: range) -> bool:
    return isinstance(value, list) and len(value) in lengths and all(map(of, value))


# What a value may be: the words for it, and the test.
_INTEGER: _Kind = "a positive integer", _is_positive
_COUNT: _Kind = "an integer, 0 or more", lambda v: type(v) is int and 0 <= v < 2**31
_NUMBER: _Kind = "a number", _is_number
_POSITIVE: _Kind = "a positive number", lambda v: _is_number(v) and v > 0
_TEXT: _Kind = "a string", lambda v: isinstance(v, str)
_OBJECT: _Kind = "an object", lambda v: isinstance(v, dict)
_BOOL: _Kind = "true or false", lambda v: isinstance(v, bool)
_MEAN: _Kind = "a list of numbers", lambda v: _is_list(v, _is_number, range(1, 65))
_STD: _Kind = (
    "a list of positive numbers",
    lambda v: _is_list(v, _POSITIVE[1], range(1, 65)),
)
_PAIR: _Kind = (
    "a list of two positive integers",
    lambda v: _is_list(v, _is_positive, range(2, 3)),
)
_TRIPLE: _Kind = (
    "a list of three positive integers",
    lambda v: _is_list(v, _is_positive, range(3, 4)),
)
_SHAPE: _Kind = (
    "a list of four positive integers",
    lambda v: _is_list(v, _is_positive, range(4, 5)),
)
_SIDES: _Kind = (
    "a positive integer or two",
    lambda v: _is_positive(v) or _PAIR[1](v),
)
_UNITS: _Kind = (
    "a positive integer or a list of them",
    lambda v: _is_positive(v) or _is_list(v, _is_positive, range(100)),
)
_OWN: dict[str, _Kind] = {  # The others are text.
    **dict.fromkeys((*SIZES, "representation_size", "width"), _INTEGER),
    "num_layers": _UNITS,
    "num_registers": _COUNT,
    **dict.fromkeys(("dropout_rate", "attention_dropout_rate"), _NUMBER),
    "head_bias_init": _NUMBER,
    **dict.fromkeys(("layer_norm_epsilon", "group_norm_epsilon"), _POSITIVE),
    "kernel_epsilon": _POSITIVE,
    "epsilon_outside": _BOOL,
    "grid": _PAIR,
    "mean": _MEAN,
    "std": _STD,
}


@dataclasses.dataclass(frozen=True)
class _Json:
    """A JSON object of a file, empty where there is no such file."""

    file: Path
    values: Mapping[str, Any]

    def take(self, key: str, kind: _Kind) -> Any:
        """A value, None where it is null or left out; raises where it is no `kind`."""
        value = self.values.get(key)
        words, test = kind
        if value is None or test(value):
            return value
        raise ValueError(
            f"Expected {key} in {str(self.file)!r} to be {words}. "
            f"Received: {key}={json.dumps(value)[:80]}"
        )

    def inner(self, key: str) -> "_Json":
        """The object under `key`."""
        return _Json(self.file, self.take(key, _OBJECT) or {})


def _json(file: Path) -> _Json:
    if not file.is_file():
        return _Json(file, {})
    try:
        with file.open("rb") as stream:
            value = json.loads(stream.read(MAX_JSON).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected a JSON object. Received: {str(file)!r} ({error})"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f"Expected a JSON object. Received: {str(file)!r} with {str(value)[:80]}"
        )
    return _Json(file, value)


# transformers' hidden_act and timm's act_layer.
GELUS = {
    "gelu": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_tanh": "tanh",
}
_PIL = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def _gelu(config: _Json, key: str) -> dict[str, str]:
    name = config.take(key, _TEXT)
    if name is None:
        return {}
    if name not in GELUS:
        raise ValueError(
            f"Expected {key} to be one of {', '.join(GELUS)} (section 3.1: a GELU). "
            f"Received: {key}={name!r} in {str(config.file)!r}"
        )
    return {"gelu": GELUS[name]}


def _taken(config: _Json, *fields: tuple[str, str, _Kind]) -> dict[str, Any]:
    """Our fields under our names, of (ours, theirs, kind); none that is left out."""
    found = {ours: config.take(theirs, kind) for ours, theirs, kind in fields}
    return {ours: value for ours, value in found.items() if value is not None}


# What neither tensors nor config.json tell of timm's architectures, but their names do:
# heads that are not as wide as their hidden size lets expect, and SigLIP 2's GELU.
_TIMM_NAMES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"^vit_(giantopt|base_patch16_gap)_", {"num_heads": 16}),
    (
        r"^vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_"
        r"|^vit_large_patch16_siglip_(gap_)?512",
        {"gelu": "tanh"},
    ),
)


def _timm_config(config: _Json) -> dict[str, Any]:
    arguments = config.inner("model_args")
    pretrained = config.inner("pretrained_cfg")
    if not pretrained.values:
        pretrained = config
    size = arguments.take("img_size", _SIDES)
    if size is None:
        size = (pretrained.take("input_size", _TRIPLE) or [])[1:]
    architecture = config.take("architecture", _TEXT) or ""
    patch_size = _patch_in(architecture, arguments.take("patch_size", _SIDES))
    pool = arguments.values.get("global_pool", config.values.get("global_pool"))
    named = [told for name, told in _TIMM_NAMES if re.search(name, architecture)]
    return {
        **{key: value for told in named for key, value in told.items()},
        **_gelu(arguments, "act_layer"),
        **_taken(arguments, ("num_heads", "num_heads", _INTEGER)),
        **_grid(size, patch_size),
        **({"classifier": "gap"} if pool == "avg" else {}),
        **_taken(
            pretrained,
            ("mean", "mean", _MEAN),
            ("std", "std", _STD),
            ("interpolation", "interpolation", _TEXT),
        ),
    }


def _patch_in(architecture: str, given: Any) -> Any:
    """The pixels of a patch in timm's vit_base_patch16_224 or vit_base_r50_s16_224."""
    if "_r_s16_p8" in architecture:  # The patch is of the root's map.
        return 4 * given if isinstance(given, int) else 32
    if hybrid := re.search(r"_r\d+_s([0-9]{1,4})", architecture):
        return int(hybrid[1])
    match = re.search(r"patch([0-9]{1,4})", architecture)
    return given or (int(match[1]) if match else None)


def _grid(size: Any, patch_size: Any) -> dict[str, Grid]:
    """The grid of the position table, where size and patch tell it."""
    sides = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(sides) != 2 or not isinstance(patch_size, int) or patch_size < 1:
        return {}
    return {"grid": (sides[0] // patch_size, sides[1] // patch_size)}


_HF_RESNET = {"hidden_act": "relu", "num_groups": 32, "output_stride": 32}


def _check_hf(config: _Json, **built: Any) -> None:
    """Refuses what transformers can be told to compute and no layer here does."""
    for key, value in built.items():
        received = config.values.get(key, value)
        if received != value and str(received).upper() != value:
            raise ValueError(
                f"Expected {key}={json.dumps(value)} of transformers' config, which is "
                f"what the layers here compute. Received: {key}={json.dumps(received)} "
                f"in {str(config.file)!r}"
            )


def _hf_config(config: _Json) -> dict[str, Any]:
    if config.values["model_type"] == "bit":
        _check_hf(config, global_padding=None, **_HF_RESNET)
    if config.values.get("backbone_config") is not None:
        backbone = config.inner("backbone_config")
        _check_hf(backbone, global_padding="SAME", **_HF_RESNET)
    _check_hf(config, pooler_act="tanh")
    fields = _taken(
        config,
        ("num_heads", "num_attention_heads", _INTEGER),
        ("layer_norm_epsilon", "layer_norm_eps", _POSITIVE),
    )
    if "num_attention_heads" in config.values:
        fields |= _gelu(config, "hidden_act")
    size = config.take("image_size", _SIDES)
    if config.values.get("backbone_config") is not None:  # Patches of its map.
        size = (config.take("backbone_featmap_shape", _SHAPE) or [])[2:]
    return fields | _grid(size, config.take("patch_size", _SIDES))


def _hf_preprocessing(config: _Json) -> dict[str, Any]:
    fields = _taken(config, ("mean", "image_mean", _MEAN), ("std", "image_std", _STD))
    if (resample := config.take("resample", _COUNT)) in _PIL:
        fields["interpolation"] = _PIL[resample]
    return fields


def _hub_config(config: _Json, task: _Json) -> dict[str, Any]:
    backbone = config.inner("config")
    patch = backbone.take("patch_size", _SIDES)
    fields = {
        **_taken(
            backbone,
            ("num_heads", "num_heads", _INTEGER),
            ("layer_norm_epsilon", "layer_norm_epsilon", _POSITIVE),
        ),
        **_grid(
            (backbone.take("image_shape", _TRIPLE) or [])[:2],
            patch[0] if isinstance(patch, list) else patch,
        ),
    }
    if task.inner("config").values.get("pooling") == "gap":
        if backbone.values.get("use_class_token", True):
            raise ValueError(
                "Expected a mean over patches (D.3). Received: keras-hub's 'gap' over "
                "the class token, too"
            )
        fields["classifier"] = "gap"
    return fields
