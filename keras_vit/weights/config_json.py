"""Read `config.json` next to a checkpoint: ours, timm's, transformers', keras-hub's."""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from keras_vit.configs import PlainViTConfig, ResNetConfig, RotaryConfig
from keras_vit.facts import INTERPOLATIONS, Preprocessing
from keras_vit.weights import timm_names
from keras_vit.weights.parsed import VIT_FIELDS, VIT_SIZES, Grid
from keras_vit.weights.tensors import MAX_JSON

RESNET_FIELDS = {field.name for field in dataclasses.fields(ResNetConfig)}
PREPROCESSING_FIELDS = {field.name for field in dataclasses.fields(Preprocessing)}
_FIELDS = VIT_FIELDS | RESNET_FIELDS | PREPROCESSING_FIELDS | {"grid", "labels"}
# Fields of plain ViTs of later papers, except `rotary`.
_PLAIN = {
    field.name: getattr(field.type, "__name__", str(field.type))
    for field in dataclasses.fields(PlainViTConfig)
    if field.name not in VIT_FIELDS | {"rotary"}
}
_FIELDS |= _PLAIN.keys()
_FIELDS -= {"resnet"}  # Its fields are next to the others.


def config_beside(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the `config.json` next to a checkpoint, under this library's names.

    The file may be this library's (fields of `ViTConfig`, `ResNetConfig` or
    `Preprocessing`, `grid`, `labels`), or timm's, keras-hub's or transformers', with
    its `preprocessor_config.json`.

    Args:
        path: the checkpoint's file or its folder.

    Returns:
        A dict of those fields, empty if there is no `config.json`. `grid` is (rows,
        columns); `labels` are the names of the classes.

    Raises:
        ValueError: if the file is not a JSON object with these fields.
    """
    return stated_beside(path).fields


@dataclasses.dataclass(frozen=True)
class Stated:
    """The facts in the JSON files next to a checkpoint.

    Attributes:
        fields: the fields that `config_beside` returns; they take precedence.
        facts: values that the tensors must agree with: sizes under `ViTConfig`'s names,
            and "num_channels", "num_classes", "mlp_ratio", "class_token",
            "num_registers", "qkv_bias", "layer_scale", "positions" and "map_head";
            also "embedded_tokens" (whether the tokens before the patches have
            positions), "unpooled", and the switches of a `PlainViTConfig`.
        architecture: a timm name that no table in this library contains, or None.
    """

    fields: dict[str, Any]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    architecture: str | None = None


def stated_beside(path: str | os.PathLike[str]) -> Stated:
    """The facts in the `config.json` next to a checkpoint; errors as there."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    config = _json(folder / "config.json")
    if "architecture" in config.values:
        return _with_ours(_timm_config(config), config)
    if "model_type" in config.values:
        stated = _hf_config(config)
        processor = _json(folder / "preprocessor_config.json")
        kind = str(config.values["model_type"])
        fields = stated.fields | _hf_preprocessing(processor, kind)
        return _with_ours(dataclasses.replace(stated, fields=fields), config)
    if config.values.get("class_name") == "ViTBackbone":
        return _hub_config(config, _json(folder / "task.json"))
    if config.values.keys() - _FIELDS:
        raise ValueError(
            f"Expected fields among {', '.join(sorted(_FIELDS))}, or a config.json of "
            f"timm or transformers. Received: {str(config.file)!r} with "
            f"{json.dumps(config.values)[:200]}"
        )
    fields = {key: config.take(key, _OWN.get(key, _TEXT)) for key in config.values}
    nullable = "representation_size"  # null: no hidden layer.
    return Stated(
        {k: value for k, value in fields.items() if k == nullable or value is not None}
    )


def _with_ours(stated: Stated, config: "_Json") -> Stated:
    """Adds the exact preprocessing that `weights.save` wrote under "keras_vit"."""
    ours = config.inner("keras_vit")
    stated_here = PREPROCESSING_FIELDS & ours.values.keys()
    fields = {key: ours.take(key, _OWN[key]) for key in stated_here}
    return dataclasses.replace(stated, fields=stated.fields | fields)


_Kind: TypeAlias = tuple[str, Callable[[Any], bool]]


def _is_positive(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e6 < value < 1e6


def _is_list(value: Any, of: Callable[[Any], bool], lengths: range) -> bool:
    return isinstance(value, list) and len(value) in lengths and all(map(of, value))


# The kinds of values: a description and a test of each.
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
_FILTER: _Kind = (
    f"one of {', '.join(INTERPOLATIONS)}",
    lambda v: v in INTERPOLATIONS,
)
_CROP: _Kind = "a share in (0, 1]", lambda v: _is_number(v) and 0 < v <= 1
_NAMES: _Kind = (
    "a list of strings",
    lambda v: isinstance(v, list) and all(isinstance(at, str) for at in v),
)
_OWN: dict[str, _Kind] = {  # All other fields are text.
    **dict.fromkeys((*VIT_SIZES, "representation_size", "width"), _INTEGER),
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
    "interpolation": _FILTER,
    "antialias": _BOOL,
    "crop": _CROP,
    "squash": _BOOL,
    "labels": _NAMES,
    **{
        name: {"bool": _BOOL, "int": _COUNT, "float": _NUMBER}[kind.split(" ")[0]]
        for name, kind in _PLAIN.items()
        if kind.split(" ")[0] in ("bool", "int", "float")
    },
}


@dataclasses.dataclass(frozen=True)
class _Json:
    """The JSON object in a file; empty if the file does not exist."""

    file: Path
    values: Mapping[str, Any]

    def take(self, key: str, kind: _Kind) -> Any:
        """A value; None if null or absent. Raises if it is not of this kind."""
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


# Values of transformers' hidden_act and timm's act_layer.
GELUS = {
    "gelu": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_tanh": "tanh",
}
# For plain ViTs of later papers: other libraries' names, and ours.
ACTIVATIONS = {"quick_gelu": "quick_gelu", "quickgelu": "quick_gelu", "silu": "silu"}
_PIL = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def _gelu(config: _Json, key: str) -> dict[str, str]:
    name = config.take(key, _TEXT)
    if not name:
        return {}
    if name in ACTIVATIONS:
        return {"activation": ACTIVATIONS[name]}
    if name not in GELUS:
        raise ValueError(
            f"Expected {key} to be one of {', '.join(GELUS | ACTIVATIONS)}. "
            f"Received: {key}={name!r} in {str(config.file)!r}"
        )
    return {"gelu": GELUS[name]}


def _taken(config: _Json, *fields: tuple[str, str, _Kind]) -> dict[str, Any]:
    """The fields that are present, under our names, from (ours, theirs, kind)."""
    found = [(ours, config.take(theirs, kind)) for ours, theirs, kind in fields]
    return {ours: value for ours, value in found if value is not None}


_TIMM_BIT = re.compile(r"^resnetv2_[0-9]+x[0-9]_bit")
# Arguments of timm that do not change a trained model's predictions at its size.
_TIMM_INERT = {
    *("img_size", "dynamic_img_size", "dynamic_img_pad", "weight_init", "fix_init"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate"),
    *("attn_drop_rate", "drop_path_rate", "zero_init_last", "strict_img_size"),
    *("head_init_scale", "qkv_fused", "swiglu_align_to", "attn_pool_mlp_ratio"),
}
# Arguments of timm of which our layers support these values; null is timm's default.
_TIMM_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("norm_layer", "embed_norm_layer"),
        ("layernorm", "LayerNorm", "layernormfp32", "rmsnorm", "rmsnormfp32", ""),
    ),
    "act_layer": (*GELUS, *ACTIVATIONS, ""),
    "pos_embed": ("learn", "none", ""),
    "global_pool": ("token", "avg", "map", ""),
    "attn_layer": ("", "attn"),
    "attn_type": ("eva", "rope"),
    "rope_type": ("cat", "dinov3", "mixed"),
    "rope_grid_indexing": ("ij", "xy"),
    **dict.fromkeys(("attn_only_layer_scale", "use_shared_rel_pos_bias"), (False,)),
    **dict.fromkeys(("block_fn", "mlp_layer", "embed_layer", "backbone"), ()),
    "num_kv_heads": (),
}
# Arguments of timm that are read, for facts that the tensors do not show.
_TIMM_READ = {
    *("patch_size", "embed_dim", "depth", "mlp_ratio", "in_chans", "num_classes"),
    *("class_token", "reg_tokens", "num_reg_tokens", "num_heads", "no_embed_class"),
    *("qkv_bias", "proj_bias", "init_values", "qk_norm", "swiglu_mlp"),
    *("pre_norm", "use_pre_transformer_norm", "fc_norm", "use_fc_norm"),
    *("final_norm", "use_post_transformer_norm", "use_post_norm"),
    *("scale_attn_norm", "scale_attn_inner", "scale_mlp_norm", "scale_mlp"),
    *("pool_include_prefix", "attn_pool_num_heads"),
    *("use_abs_pos_emb", "use_rel_pos_bias", "use_rot_pos_emb", "ref_feat_shape"),
    *("rope_temperature", "rope_grid_offset", "rope_rotate_half"),
}
_TIMM_ROTARY = {"cat": "grid", "dinov3": "centered", "mixed": "mixed"}
_TIMM_BIT_ONLY: dict[str, tuple[Any, ...]] = {
    "global_pool": ("avg",),
    "preact": (True,),
    "avg_down": (False,),
    "output_stride": (32,),
    "stem_type": ("fixed",),
    "act_layer": ("relu",),
    **dict.fromkeys(("conv_layer", "norm_layer", "block_fn", "basic"), ()),
}


def _check_timm(
    config: _Json, given: _Json, allowed: Mapping[str, tuple[Any, ...]], read: set[str]
) -> None:
    """Raises for arguments of timm that no layer here supports."""
    for key, value in given.values.items():
        if value is None or key in read or key in _TIMM_INERT:
            continue
        values = allowed.get(key)
        if values is None:
            raise ValueError(
                f"Expected arguments of timm's VisionTransformer or BiT in model_args. "
                f"Received: {key}={json.dumps(value)[:80]} in {str(config.file)!r}, "
                "which may change the model's output. If it does not, remove it from "
                "the file"
            )
        if value not in values or type(value) is not type(values[0]):
            words = " or ".join(json.dumps(value) for value in values) or "null"
            raise ValueError(
                f"Expected {key} to be {words}, which this library's layers support. "
                f"Received: {key}={json.dumps(value)[:80]} in {str(config.file)!r}"
            )


def _timm_config(config: _Json) -> Stated:
    arguments = config.inner("model_args")
    pretrained = config.inner("pretrained_cfg")
    if not pretrained.values:
        pretrained = config
    architecture = (config.take("architecture", _TEXT) or "").partition(".")[0]
    is_bit = _TIMM_BIT.match(architecture) is not None
    if what := timm_names.family_refused(architecture):
        raise ValueError(
            "Expected a ViT or a ResNet that this library's layers can compute. "
            f"Received: architecture={architecture!r}, with {what}, in "
            f"{str(config.file)!r}. Use timm for this model"
        )
    heads = timm_names.HEADS.get(architecture)
    given = _Json(
        config.file,
        {
            **timm_names.options_of(architecture),
            **{k: v for k, v in config.values.items() if k == "global_pool"},
            **arguments.values,
        },
    )
    facts = {
        **_taken(
            given,
            ("patch_size", "patch_size", _SIDES),
            ("hidden_size", "embed_dim", _INTEGER),
            ("num_layers", "depth", _INTEGER),
            ("mlp_ratio", "mlp_ratio", _POSITIVE),
            ("num_channels", "in_chans", _INTEGER),
            ("num_classes", "num_classes", _COUNT),
            ("class_token", "class_token", _BOOL),
            ("num_registers", "reg_tokens", _COUNT),
            ("num_registers", "num_reg_tokens", _COUNT),
            ("qkv_bias", "qkv_bias", _BOOL),
            ("qk_norm", "qk_norm", _BOOL),
            ("gated_mlp", "swiglu_mlp", _BOOL),
            ("pre_norm", "pre_norm", _BOOL),
            ("pre_norm", "use_pre_transformer_norm", _BOOL),
            ("final_norm", "final_norm", _BOOL),
            ("head_norm", "fc_norm", _BOOL),
            ("head_norm", "use_fc_norm", _BOOL),
            ("attention_norm", "scale_attn_norm", _BOOL),
            ("attention_norm", "scale_attn_inner", _BOOL),
            ("mlp_norm", "scale_mlp_norm", _BOOL),
            ("mlp_norm", "scale_mlp", _BOOL),
            ("relative_position", "use_rel_pos_bias", _BOOL),
        ),
        **_taken(config, ("num_classes", "num_classes", _COUNT)),
    }
    fields: dict[str, Any] = {}
    if is_bit:
        read = {"in_chans", "num_classes", "stem_chs", "channels", "layers"}
        read |= {"width_factor", "bottle_ratio"}
        _check_timm(config, given, _TIMM_BIT_ONLY, read)
        facts = {k: v for k, v in facts.items() if k in ("num_channels", "num_classes")}
    else:
        fields |= _gelu(given, "act_layer")
        _check_timm(config, given, _TIMM_ONLY, _TIMM_READ | {"norm_eps"})
        fields |= _timm_switches(given)
        if norm := given.take("norm_layer", _TEXT):
            facts["norm"] = "rms_norm" if "rms" in norm else "layer_norm"
        if "init_values" in given.values:
            scale = given.take("init_values", _NUMBER)
            facts["layer_scale"] = bool(scale)
        if (bare := given.take("no_embed_class", _BOOL)) is not None:
            facts["embedded_tokens"] = not bare
        if (positions := given.take("pos_embed", _TEXT)) is not None:
            facts["positions"] = positions == "learn"
        if (absolute := given.take("use_abs_pos_emb", _BOOL)) is not None:
            facts["positions"] = absolute
        pooled = _timm_pool(given)
        fields |= pooled.pop("fields", {})
        facts = pooled | facts
        if heads is not None:
            fields["num_heads"] = heads
        fields |= _taken(given, ("num_heads", "num_heads", _INTEGER))
    if isinstance(patch := facts.get("patch_size"), list):
        facts["patch_size"] = patch[0]
        if patch[0] != patch[1]:
            raise ValueError(
                "Expected square patches (3.1). "
                f"Received: patch_size={patch} in {str(config.file)!r}"
            )
    size = arguments.take("img_size", _SIDES)
    if size is None:
        size = (pretrained.take("input_size", _TRIPLE) or [])[1:]
    return Stated(
        {
            **fields,
            **_grid(size, _patch_in(architecture, facts.get("patch_size"))),
            **_taken(
                pretrained,
                ("mean", "mean", _MEAN),
                ("std", "std", _STD),
                ("interpolation", "interpolation", _FILTER),
            ),
            **_timm_resize(pretrained),
            **_taken(config, ("labels", "label_names", _NAMES)),
        },
        facts,
        architecture if heads is None and not is_bit else None,
    )


def _timm_switches(given: _Json) -> dict[str, Any]:
    """Fields of a `PlainViTConfig` that no tensor shows."""
    fields = {
        **_taken(
            given,
            ("layer_norm_epsilon", "norm_eps", _POSITIVE),
            ("post_norm", "use_post_norm", _BOOL),
            ("pool_prefix", "pool_include_prefix", _BOOL),
            ("map_heads", "attn_pool_num_heads", _INTEGER),
            ("final_norm", "final_norm", _BOOL),
            ("final_norm", "use_post_transformer_norm", _BOOL),
        ),
    }
    if fields.get("final_norm"):  # May follow the pooling: tensors show it.
        del fields["final_norm"]
    if given.take("use_rot_pos_emb", _BOOL):
        fields["rotary"] = _timm_rotary(given)
    return fields


def _timm_rotary(given: _Json) -> RotaryConfig:
    grid = given.take("ref_feat_shape", _SIDES)
    found = _taken(
        given,
        ("temperature", "rope_temperature", _POSITIVE),
        ("offset", "rope_grid_offset", _NUMBER),
        ("half", "rope_rotate_half", _BOOL),
    )
    kind = _TIMM_ROTARY[given.values.get("rope_type") or "cat"]
    if kind == "grid" and grid is not None:
        found["reference_grid"] = (grid, grid) if isinstance(grid, int) else grid
    order = "xy" if given.values.get("rope_grid_indexing") == "xy" else "yx"
    return RotaryConfig(kind=kind, order=order, **found)  # type: ignore[arg-type]


def _timm_resize(pretrained: _Json) -> dict[str, Any]:
    """Timm resizes with Pillow, which antialiases; the default is a center crop."""
    if pretrained.take("interpolation", _FILTER) is None:
        return {}
    mode = pretrained.take("crop_mode", _TEXT) or "center"
    share = pretrained.take("crop_pct", _CROP)
    if mode not in ("center", "squash"):
        raise ValueError(
            "Expected crop_mode 'center' or 'squash'. Received: "
            f"crop_mode={mode!r} in {str(pretrained.file)!r}"
        )
    if mode == "center":
        return {"antialias": True} | ({} if share is None else {"crop": share})
    squashed = {"crop": share, "squash": True}
    return {"antialias": True} | ({} if share in (None, 1) else squashed)


def _timm_pool(given: _Json) -> dict[str, Any]:
    """The fields and facts in timm's `global_pool`."""
    pool = given.take("global_pool", _TEXT)
    if pool is None:
        return {}
    if pool == "":
        return {"unpooled": True, "map_head": False}
    if pool == "avg":
        return {"fields": {"classifier": "gap"}, "map_head": False}
    if pool == "token":
        return {"class_token": True, "map_head": False}
    return {"map_head": True}


def _patch_in(architecture: str, given: Any) -> Any:
    """The patch size in px of timm's vit_base_patch16_224 or vit_base_r50_s16_224."""
    if "_r_s16_p8" in architecture:  # A patch of the root's feature map.
        return 4 * given if isinstance(given, int) else 32
    if hybrid := re.search(r"_r\d+_s([0-9]{1,4})", architecture):
        return int(hybrid[1])
    match = re.search(r"patch([0-9]{1,4})", architecture)
    if match is None and re.match("flexivit_|test_vit", architecture):
        return given or 16
    return given or (int(match[1]) if match else None)


def _grid(size: Any, patch_size: Any) -> dict[str, Grid]:
    """The grid of the position table, if image and patch sizes determine it."""
    sides = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(sides) != 2 or not isinstance(patch_size, int) or patch_size < 1:
        return {}
    grid = sides[0] // patch_size, sides[1] // patch_size
    return {"grid": grid} if all(grid) else {}


_HF_RESNET = {"hidden_act": "relu", "num_groups": 32, "output_stride": 32}


def _check_hf(config: _Json, **built: Any) -> None:
    """Raises for values of transformers' config that no layer here supports."""
    for key, value in built.items():
        received = config.values.get(key, value)
        if received != value and str(received).upper() != value:
            raise ValueError(
                f"Expected {key}={json.dumps(value)} in transformers' config, which "
                f"this library's layers support. Received: {key}="
                f"{json.dumps(received)} in {str(config.file)!r}"
            )


# Models of transformers with the layers of this library.
_HF_TYPES = {
    *("vit", "deit", "vit_msn", "vit-hybrid", "vit_hybrid", "vit_mae", "ijepa"),
    *("dinov2", "dinov2_with_registers", "dinov3_vit", "bit"),
    *("beit", "data2vec-vision"),
}
# Defaults of transformers' classes for fields that config.json omits.
_CLIP = {
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 12,
}
_SIGLIP = {**_CLIP, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
_DINOV3 = {"hidden_act": "gelu", "layer_norm_eps": 1e-5}
_HF_TOWERS: dict[str, dict[str, Any]] = {  # Defaults of image towers, by model.
    **dict.fromkeys(("clip", "metaclip_2", "chinese_clip", "altclip"), _CLIP),
    **dict.fromkeys(("siglip", "siglip2"), _SIGLIP),
}
_TOWER = "_vision_model"
# transformers' image processors whose `size`, if a number, is the shorter side, and the
# models that use them. For all others it is the side of a square.
_HF_ASPECT_PROCESSORS = ("CLIP", "ChineseCLIP", "Bit", "ViTHybrid")
_HF_ASPECT_MODELS = {
    *("clip", "metaclip_2", "chinese_clip", "altclip", "bit"),
    *("dinov2", "dinov2_with_registers", "vit-hybrid", "vit_hybrid"),
}
_HF_REFUSED = {  # Families of transformers that no layer here supports.
    "swin": "windows and stages (Swin)",
    "swinv2": "windows and stages (Swin)",
    "pvt": "stages (PVT)",
    "pvt_v2": "stages (PVT)",
    "cvt": "convolutional stages (CvT)",
    "levit": "convolutional stages (LeViT)",
    "mobilevit": "convolutional stages (MobileViT)",
    "mobilevitv2": "convolutional stages (MobileViT)",
    "efficientformer": "convolutional stages (EfficientFormer)",
    "hiera": "stages (Hiera)",
    "mvitv2": "stages (MViT)",
    "convnext": "convolutions (ConvNeXt)",
    "convnextv2": "convolutions (ConvNeXt)",
    "dinov3_convnext": "convolutions (ConvNeXt)",
    "sam": "windowed attention (SAM)",
    "sam_vision_model": "windowed attention (SAM)",
    "vitdet": "windowed attention (ViTDet)",
    "yolos": "detection tokens (YOLOS)",
    "vivit": "video (ViViT)",
    "videomae": "video (VideoMAE)",
    "timesformer": "video (TimeSformer)",
    "vjepa2": "video (V-JEPA 2)",
    "aimv2": "a separate layout (AIMv2); timm's copy is readable",
    "aimv2_vision_model": "a separate layout (AIMv2); timm's copy is readable",
    "pixtral": "images of any size (Pixtral)",
}


def _hf_config(config: _Json) -> Stated:
    kind = config.take("model_type", _TEXT)
    if (kind or "").removesuffix(_TOWER) in _HF_TOWERS:
        return _hf_tower(config)
    if kind in _HF_REFUSED:
        raise ValueError(
            "Expected a plain ViT or a ResNet that this library's layers can compute. "
            f"Received: model_type={kind!r}, with {_HF_REFUSED[kind]}, in "
            f"{str(config.file)!r}. Use transformers for this model"
        )
    if kind not in _HF_TYPES:
        known = ", ".join(sorted({*_HF_TYPES, *_HF_TOWERS}))
        raise ValueError(
            f"Expected model_type to be one of {known}, the models of transformers "
            f"that this library's layers can compute. Received: model_type={kind!r} in "
            f"{str(config.file)!r}"
        )
    labels = config.take("id2label", _OBJECT)
    names = {} if labels is None else _hf_labels(labels)
    facts = {
        **_taken(config, ("num_channels", "num_channels", _INTEGER)),
        **({} if labels is None else {"num_classes": len(labels)}),
    }
    if kind == "bit":
        _check_hf(config, layer_type="preactivation", embedding_dynamic_padding=False)
        _check_hf(config, global_padding=None, **_HF_RESNET)
        return Stated(names, facts)
    is_hybrid = config.values.get("backbone_config") is not None
    if is_hybrid:
        backbone = config.inner("backbone_config")
        _check_hf(backbone, layer_type="bottleneck", embedding_dynamic_padding=True)
        _check_hf(backbone, global_padding="SAME", **_HF_RESNET)
        facts.pop("num_channels", None)  # Of the image or of the feature map.
    if kind == "dinov3_vit":
        config = _with_defaults(config, _DINOV3)
    _check_hf(config, pooler_act="tanh")
    facts |= _taken(
        config,
        ("gated_mlp", "use_swiglu_ffn", _BOOL),
        ("gated_mlp", "use_gated_mlp", _BOOL),
        ("relative_position", "use_relative_position_bias", _BOOL),
        ("positions", "use_absolute_position_embeddings", _BOOL),
        ("hidden_size", "hidden_size", _INTEGER),
        ("num_layers", "num_hidden_layers", _INTEGER),
        ("mlp_dim", "intermediate_size", _INTEGER),
        ("mlp_ratio", "mlp_ratio", _POSITIVE),
        ("num_registers", "num_register_tokens", _COUNT),
        ("qkv_bias", "qkv_bias", _BOOL),
    )
    patch_size = config.take("patch_size", _SIDES)
    if isinstance(patch_size, int):
        facts["patch_size"] = patch_size
    fields = {
        **_taken(
            config,
            ("num_heads", "num_attention_heads", _INTEGER),
            ("layer_norm_epsilon", "layer_norm_eps", _POSITIVE),
        ),
        **_gelu(config, "hidden_act"),
    }
    if config.take("use_swiglu_ffn", _BOOL):  # Its activation is not hidden_act.
        fields.pop("gelu", None)
        fields["activation"] = "silu"
    if kind == "dinov3_vit":
        fields["rotary"] = _hf_rotary(config)
    if kind == "ijepa":
        fields["classifier"] = "gap"
    mean = config.take("use_mean_pooling", _BOOL)
    if kind in ("beit", "data2vec-vision") and mean is not False:
        fields["final_norm"] = False  # A norm, if any, follows the mean.
    size = config.take("image_size", _SIDES)
    if is_hybrid:  # Patches of the feature map.
        size = (config.take("backbone_featmap_shape", _SHAPE) or [])[2:]
    return Stated(names | fields | _grid(size, patch_size), facts)


def _with_defaults(config: _Json, defaults: Mapping[str, Any]) -> _Json:
    """The object with the library's defaults for absent fields."""
    return _Json(config.file, {**defaults, **config.values})


def _hf_rotary(config: _Json) -> RotaryConfig:
    """DINOv3's rotary positions."""
    inner = config.inner("rope_parameters")
    theta = inner.take("rope_theta", _POSITIVE) or config.take("rope_theta", _POSITIVE)
    return RotaryConfig(kind="centered", temperature=theta or 100.0, half=True)


def _hf_tower(config: _Json) -> Stated:
    """The image tower of a CLIP or a SigLIP, separate or within the whole model."""
    kind = str(config.values["model_type"])
    own = config if kind.endswith(_TOWER) else config.inner("vision_config")
    own = _with_defaults(own, _HF_TOWERS[kind.removesuffix(_TOWER)])
    fields = {
        **_taken(
            own,
            ("num_heads", "num_attention_heads", _INTEGER),
            ("layer_norm_epsilon", "layer_norm_eps", _POSITIVE),
        ),
        **_gelu(own, "hidden_act"),
    }
    facts = _taken(
        own,
        ("hidden_size", "hidden_size", _INTEGER),
        ("num_layers", "num_hidden_layers", _INTEGER),
        ("mlp_dim", "intermediate_size", _INTEGER),
        ("num_channels", "num_channels", _INTEGER),
        ("patch_size", "patch_size", _INTEGER),
    )
    size = own.take("image_size", _SIDES)
    return Stated(fields | _grid(size, facts.get("patch_size")), facts)


def _hf_labels(labels: Mapping[str, Any]) -> dict[str, Any]:
    """The names of the classes in order; "LABEL_0", "LABEL_1", ... are not names."""
    names = [labels.get(str(number)) for number in range(len(labels))]
    named = all(isinstance(name, str) for name in names) and any(
        name != f"LABEL_{number}" for number, name in enumerate(names)
    )
    return {"labels": names} if named else {}


def _hf_preprocessing(config: _Json, kind: str) -> dict[str, Any]:
    fields = _taken(config, ("mean", "image_mean", _MEAN), ("std", "image_std", _STD))
    if config.take("do_normalize", _BOOL) is False:
        fields |= {"mean": [0.0], "std": [1.0]}
    resample = config.take("resample", _COUNT)
    if resample is None:
        return fields
    if resample not in _PIL:
        raise ValueError(
            f"Expected resample in {', '.join(map(str, _PIL))}, Pillow's filters. "
            f"Received: resample={resample} in {str(config.file)!r}"
        )
    resize = {"interpolation": _PIL[resample], "antialias": True}
    return fields | _hf_crop(config, kind) | resize


def _hf_crop(config: _Json, kind: str) -> dict[str, Any]:
    """The share of the resized image that a center crop keeps."""
    size, crops = config.values.get("size"), config.take("do_center_crop", _BOOL)
    if isinstance(size, dict):
        is_square = "shortest_edge" not in size
    else:
        is_square = not _hf_keeps_aspect(config, kind)
    edge = _hf_side(config, "size", "height" if is_square else "shortest_edge")
    if edge is None:
        return {}
    share = min((_hf_side(config, "crop_size", "height") or edge) / edge, 1.0)
    if not is_square:
        return {"crop": 1.0 if crops is False else share}
    return {"crop": share, "squash": True} if crops and share < 1 else {}


def _hf_side(config: _Json, key: str, side: str) -> int | None:
    """One side of a size, which is an object with it or a number."""
    is_object = isinstance(config.values.get(key), dict)
    held, name = (config.inner(key), side) if is_object else (config, key)
    found: int | None = held.take(name, _INTEGER)
    return found


def _hf_keeps_aspect(config: _Json, kind: str) -> bool:
    """Whether a `size` that is a number is the shorter side, or that of a square."""
    processor = config.take("image_processor_type", _TEXT)
    processor = processor or config.take("feature_extractor_type", _TEXT)
    if processor:
        return str(processor).startswith(_HF_ASPECT_PROCESSORS)
    return kind.removesuffix(_TOWER) in _HF_ASPECT_MODELS


def _hub_config(config: _Json, task: _Json) -> Stated:
    backbone = config.inner("config")
    patch = backbone.take("patch_size", _SIDES)
    shape = backbone.take("image_shape", _TRIPLE) or []
    fields = {
        **_taken(
            backbone,
            ("num_heads", "num_heads", _INTEGER),
            ("layer_norm_epsilon", "layer_norm_epsilon", _POSITIVE),
        ),
        **_grid(shape[:2], patch[0] if isinstance(patch, list) else patch),
    }
    has_token = backbone.take("use_class_token", _BOOL) is not False
    pooling = task.inner("config").take("pooling", _TEXT)
    if pooling == "gap":
        if has_token:
            raise ValueError(
                "Expected a mean over patches (D.3). Received: keras-hub's 'gap', "
                "which includes the class token"
            )
        fields["classifier"] = "gap"
    elif pooling is not None and (pooling != "token" or not has_token):
        raise ValueError(
            "Expected keras-hub's pooling with a class token, or 'gap' without one "
            f"(D.3). Received: pooling={pooling!r}, use_class_token={has_token} in "
            f"{str(task.file)!r}"
        )
    facts = {
        **_taken(
            backbone,
            ("hidden_size", "hidden_dim", _INTEGER),
            ("num_layers", "num_layers", _INTEGER),
            ("mlp_dim", "mlp_dim", _INTEGER),
            ("qkv_bias", "use_mha_bias", _BOOL),
        ),
        "class_token": has_token,
        **({"num_channels": shape[2]} if shape else {}),
    }
    return Stated(fields, facts)


def model_types() -> list[str]:
    """The `model_type`s of transformers that can be read."""
    return sorted(_HF_TYPES)
