"""Layouts of timm and transformers for plain ViTs of later papers.

A layout is the inverse of reading. It uses the same tables of names (`names`) and
writes the config from which `config_json` reads the same fields. Each class has a row
with its configurable fields and the values of its fixed ones.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from keras_vit.configs import PlainViTConfig
from keras_vit.weights import names
from keras_vit.weights.names import Dialect
from keras_vit.weights.plain import DEFAULTS
from keras_vit.weights.torch_layouts import (
    Layout,
    check_square,
    ratio,
    refuse,
    split_tokens,
)

# timm's architecture, the dialect, the arguments and the epsilon of the norms.
_Made: TypeAlias = tuple[str, Dialect, dict[str, Any], float]
_NORMS = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}
_POOLS = {"token": "token", "gap": "avg", "map": "map"}
# Values of transformers' hidden_act.
_ACTS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
# Used only in training; no file contains them.
_RATES = {"dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"}


@dataclasses.dataclass(frozen=True)
class _Row:
    """The configs that a class of another library supports.

    Attributes:
        free: its configurable fields.
        fixed: other fields that differ from the paper's, and their values.
    """

    free: frozenset[str]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def differing(self, config: PlainViTConfig) -> dict[str, Any]:
        """The fields of `config` that it does not support."""
        expected = {**DEFAULTS, **self.fixed}
        return {
            field: getattr(config, field)
            for field in expected.keys() - self.free - _RATES
            if getattr(config, field) != expected[field]
        }


def _row(free: str, **fixed: Any) -> _Row:
    return _Row(frozenset(free.split()), fixed)


def _checked(
    config: PlainViTConfig, rows: Mapping[str, _Row], format: str, likely: str
) -> None:
    """Raises for fields that the class `likely` does not support."""
    if differing := rows[likely].differing(config):
        what = ", ".join(f"{key}={differing[key]!r}" for key in sorted(differing))
        raise refuse(format, f"{what} for {likely}")


# The classes of timm; `pool_prefix` with "map" is checked separately.
_TIMM = {
    "VisionTransformer": _row(
        "classifier num_registers pool_prefix norm layer_norm_epsilon embedding_norm "
        "pre_norm final_norm head_norm activation gated_mlp mlp_norm attention_norm "
        "qk_norm qkv_bias out_bias mlp_bias patch_bias layer_scale position "
        "position_tokens"
    ),
    "Eva": _row(
        "classifier num_registers pool_prefix map_heads map_mlp_dim layer_norm_epsilon "
        "post_norm pre_norm final_norm head_norm activation gated_mlp mlp_norm "
        "attention_norm qk_norm qkv_bias patch_bias layer_scale position "
        "position_tokens rotary"
    ),
    "Beit": _row(
        "classifier num_registers final_norm head_norm activation gated_mlp mlp_norm "
        "qkv_bias layer_scale position",
        relative_position=True,
    ),
}


def timm(
    config: PlainViTConfig,
    tensors: dict[str, np.ndarray],
    image_size: tuple[int, int],
    num_classes: int,
) -> Layout:
    """A plain ViT of a later paper as timm's `VisionTransformer`, `Eva` or `Beit`.

    Raises:
        ValueError: if no class supports the config.
    """
    del num_classes  # Written elsewhere in timm's config.
    is_eva = (
        config.rotary is not None
        or config.post_norm
        or config.qkv_bias == "qv"
        or (config.gated_mlp and config.mlp_norm)
    )
    kind = "Eva" if is_eva else "VisionTransformer"
    if config.relative_position:
        kind = "Beit"
    _checked(config, _TIMM, "timm", kind)
    if config.classifier not in _POOLS:
        raise refuse("timm", f"classifier={config.classifier!r}")
    placed, tokens = config.position_tokens, config.num_prefix_tokens
    if placed not in (None, 0, tokens):
        raise refuse("timm", f"position_tokens={placed} of {tokens}")
    if config.patch_bias == config.pre_norm or config.out_bias != config.mlp_bias:
        raise refuse(
            "timm",
            f"patch_bias={config.patch_bias}, pre_norm={config.pre_norm}, "
            f"out_bias={config.out_bias}, mlp_bias={config.mlp_bias}",
        )
    make = {"Eva": _eva, "Beit": _beit, "VisionTransformer": _vision_transformer}
    architecture, dialect, words, epsilon = make[kind](config)
    tensors = split_tokens(tensors, config)
    if kind == "Beit" and "reg_token" in tensors:  # Beit's class token, not pooled.
        tensors["cls_token"] = tensors.pop("reg_token")
    written = names.packed(dialect.write(tensors))
    return Layout(
        written,
        architecture,
        {
            "img_size": list(image_size),
            "patch_size": config.patch_size,
            "embed_dim": config.hidden_size,
            "depth": config.num_layers,
            "num_heads": config.num_heads,
            "qkv_bias": config.qkv_bias != "none",
            "init_values": config.layer_scale,
            "global_pool": _POOLS[config.classifier],
            **words,
        },
        "patch_embed.proj",
        "head",
        epsilon,
    )


def _vision_transformer(config: PlainViTConfig) -> _Made:
    """The config as timm's `VisionTransformer`."""
    if config.gated_mlp and config.activation != "silu":
        raise refuse("timm", "a gated MLP other than SwiGLU")
    own, norm = config.num_class_tokens, _NORMS[config.norm]
    words: dict[str, Any] = {
        "mlp_ratio": ratio(config.mlp_dim * (1 + config.gated_mlp), config.hidden_size),
        "act_layer": config.activation,
        "norm_layer": norm,
        "embed_norm_layer": norm if config.embedding_norm else None,
        "class_token": bool(own),
        "reg_tokens": config.num_prefix_tokens - own,
        "no_embed_class": config.position_tokens == 0,
        "pos_embed": "learn" if config.position == "1d" else "none",
        "pool_include_prefix": config.pool_prefix,
        "fc_norm": config.head_norm,
        "final_norm": config.final_norm or config.head_norm,
        "pre_norm": config.pre_norm,
        "qk_norm": config.qk_norm,
        "scale_attn_norm": config.attention_norm,
        "scale_mlp_norm": config.mlp_norm,
        "proj_bias": config.out_bias,
    }
    architecture, epsilon = "vit_base_patch16_224", 1e-6
    if config.layer_norm_epsilon == 1e-5 and config.norm == "layer_norm":
        del words["norm_layer"]  # CLIP's architectures have this epsilon.
        architecture, epsilon = "vit_base_patch16_clip_224", 1e-5
    elif config.gated_mlp:
        architecture = "vit_giant_patch14_dinov2"
    return architecture, names.TIMM, words, epsilon


def _check_act(config: PlainViTConfig) -> None:
    """Raises unless the activation is the exact GELU or SwiGLU, as in Eva and Beit."""
    if config.activation != ("silu" if config.gated_mlp else "gelu"):
        raise refuse(
            "timm",
            f"activation={config.activation!r}, gated_mlp={config.gated_mlp}: Eva and "
            "Beit have the exact GELU or SwiGLU",
        )


_TIMM_KINDS = {"grid": "cat", "centered": "dinov3", "mixed": "mixed"}


def _eva(config: PlainViTConfig) -> _Made:
    """The config as timm's `Eva`."""
    _check_act(config)
    is_map = config.classifier == "map"
    if config.pool_prefix != is_map:
        raise refuse(
            "timm",
            f"classifier={config.classifier!r} with pool_prefix={config.pool_prefix} "
            "for Eva",
        )
    # The architecture determines the epsilon; only PE has "map".
    architectures = {
        (1e-6, False): "eva02_base_patch14_224",
        (1e-5, False): "vit_small_patch16_dinov3",
        (1e-5, True): "vit_pe_core_base_patch16_224",
    }
    epsilon = config.layer_norm_epsilon
    if (epsilon, is_map) not in architectures:
        raise refuse(
            "timm",
            f"layer_norm_epsilon={epsilon}, classifier={config.classifier!r} for Eva",
        )
    words: dict[str, Any] = {
        "mlp_ratio": ratio(config.mlp_dim, config.hidden_size),
        "class_token": bool(config.num_class_tokens),
        "num_reg_tokens": config.num_prefix_tokens - config.num_class_tokens,
        "no_embed_class": config.position_tokens == 0,
        "use_abs_pos_emb": config.position == "1d",
        "attn_type": "eva" if config.qkv_bias == "qv" else "rope",
        "qkv_fused": True,
        "qk_norm": config.qk_norm,
        "swiglu_mlp": config.gated_mlp,
        "scale_mlp": config.mlp_norm,
        "scale_attn_inner": config.attention_norm,
        "use_post_norm": config.post_norm,
        "use_pre_transformer_norm": config.pre_norm,
        "use_post_transformer_norm": config.final_norm,
        "use_fc_norm": config.head_norm,
        "dynamic_img_size": False,
        "use_rot_pos_emb": config.rotary is not None,
        "ref_feat_shape": None,
    }
    if is_map:
        pool = ratio(config.map_mlp_dim or config.mlp_dim, config.hidden_size)
        words |= {
            "attn_pool_num_heads": config.heads_of_map,
            "attn_pool_mlp_ratio": pool,
        }
    if (rotary := config.rotary) is not None:
        words |= {
            "rope_type": _TIMM_KINDS[rotary.kind],
            "rope_temperature": rotary.temperature,
            "rope_grid_offset": rotary.offset,
            "rope_grid_indexing": "xy" if rotary.order == "xy" else "ij",
            "rope_rotate_half": rotary.half,
            "ref_feat_shape": rotary.reference_grid and list(rotary.reference_grid),
        }
    split = config.gated_mlp and config.mlp_norm
    dialect = names.TIMM_EVA_SPLIT if split else names.TIMM_EVA
    return architectures[epsilon, is_map], dialect, words, epsilon


def _beit(config: PlainViTConfig) -> _Made:
    """The config as timm's `Beit`."""
    _check_act(config)
    if config.final_norm == config.head_norm or config.qkv_bias == "full":
        raise refuse(
            "timm",
            f"final_norm={config.final_norm}, head_norm={config.head_norm}, "
            f"qkv_bias={config.qkv_bias!r} for Beit",
        )
    words = {
        "mlp_ratio": ratio(config.mlp_dim, config.hidden_size),
        "swiglu_mlp": config.gated_mlp,
        "scale_mlp": config.mlp_norm,
        "use_abs_pos_emb": config.position == "1d",
        "use_rel_pos_bias": True,
        "use_fc_norm": config.head_norm,
    }
    dialect = names.TIMM_EVA_SPLIT if config.gated_mlp else names.TIMM_EVA
    return "beit_base_patch16_224", dialect, words, 1e-6


# The models of transformers by model_type; the first that supports a config is used.
_HF = {
    "beit": _row(
        "classifier activation layer_norm_epsilon layer_scale relative_position "
        "position num_registers final_norm head_norm",
        qkv_bias="qv",
    ),
    "clip_vision_model": _row(
        "activation layer_norm_epsilon head_bias", pre_norm=True, patch_bias=False
    ),
    "dinov2": _row(
        "classifier activation gated_mlp layer_norm_epsilon qkv_bias layer_scale"
    ),
    "dinov2_with_registers": _row(
        "classifier activation gated_mlp layer_norm_epsilon qkv_bias layer_scale "
        "num_registers",
        position_tokens=1,
    ),
    "dinov3_vit": _row(
        "activation gated_mlp layer_norm_epsilon qkv_bias out_bias mlp_bias "
        "layer_scale num_registers rotary",
        position="none",
    ),
}


def hf(
    config: PlainViTConfig,
    tensors: dict[str, np.ndarray],
    image_size: tuple[int, int],
    num_classes: int,
) -> Layout:
    """A plain ViT of a later paper as the class of transformers for its family.

    The families are CLIP's image tower, DINOv2 with and without registers, DINOv3 and
    BEiT.

    Raises:
        ValueError: if transformers has no class for the config.
    """
    kind = min(_HF, key=lambda at: len(_HF[at].differing(config)))
    _checked(config, _HF, "hf", kind)
    words: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": _ACTS[config.activation],
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": list(image_size),
        "patch_size": config.patch_size,
    }
    tensors = split_tokens(tensors, config)
    if kind != "dinov3_vit":  # The others require square position tables.
        words["image_size"] = check_square(image_size, kind)
    if kind == "clip_vision_model":
        return _hf_clip(config, tensors, words, num_classes)
    if kind == "dinov3_vit":
        return _hf_dinov3(config, tensors, words, num_classes)
    if kind == "beit":
        return _hf_beit(config, tensors, words, num_classes)
    return _hf_dinov2(config, tensors, words, num_classes)


def _hf_clip(
    config: PlainViTConfig,
    tensors: dict[str, np.ndarray],
    words: dict[str, Any],
    num_classes: int,
) -> Layout:
    if num_classes and config.head_bias:
        raise refuse(
            "hf",
            "head_bias=True for a CLIP: transformers classifies the mean of its "
            "patches",
        )
    if not num_classes:
        dialect = names.HF_CLIP.spelled(())
        return Layout(dialect.write(tensors), "CLIPVisionModel", words)
    words["projection_dim"] = num_classes
    dialect = names.HF_CLIP.spelled(("vision_model.",))
    return Layout(dialect.write(tensors), "CLIPVisionModelWithProjection", words)


def _hf_dinov2(
    config: PlainViTConfig,
    tensors: dict[str, np.ndarray],
    words: dict[str, Any],
    num_classes: int,
) -> Layout:
    if config.layer_scale is None or config.qkv_bias == "qv":
        raise refuse(
            "hf",
            f"layer_scale={config.layer_scale}, qkv_bias={config.qkv_bias!r} for a "
            "DINOv2",
        )
    if config.classifier != ("token_gap" if num_classes else "token"):
        raise refuse(
            "hf",
            f"classifier={config.classifier!r}, num_classes={num_classes}: DINOv2's "
            "head reads the class token and the mean of the patches ('token_gap')",
        )
    width = config.hidden_size
    ratios = [at for at in range(1, 65) if _dinov2_mlp(config, at) == config.mlp_dim]
    if not ratios or (config.gated_mlp and config.activation != "silu"):
        raise refuse(
            "hf",
            f"mlp_dim={config.mlp_dim}, hidden_size={width}, gated_mlp="
            f"{config.gated_mlp}, activation={config.activation!r} for a DINOv2",
        )
    del words["intermediate_size"]
    words |= {
        "mlp_ratio": ratios[0],
        "use_swiglu_ffn": config.gated_mlp,
        "qkv_bias": config.qkv_bias != "none",
    }
    if config.gated_mlp:
        words["hidden_act"] = "gelu"  # Unused by a gated MLP.
    dialect = names.HF_DINOV2_GATED if config.gated_mlp else names.HF_DINOV2
    kind = "Dinov2"
    mask = {}
    if words["model_type"] == "dinov2":
        words["use_mask_token"] = False
    else:
        words["num_register_tokens"] = config.num_registers
        kind = "Dinov2WithRegisters"
        dialect = dialect.spelled(("dinov2_with_registers.",))
        mask = _mask_token(dialect, (1, width))
    kind += "ForImageClassification" if num_classes else "Model"
    return Layout(dialect.write(tensors) | mask, kind, words)


def _dinov2_mlp(config: PlainViTConfig, mlp_ratio: int) -> int:
    """The width of DINOv2's hidden layer; two thirds, rounded up, if it is gated."""
    hidden = config.hidden_size * mlp_ratio
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if config.gated_mlp else hidden


def _mask_token(dialect: Dialect, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Zeros for the mask token of pre-training, which transformers expects."""
    prefix = next(iter(dialect.prefixes), "")
    return {f"{prefix}embeddings.mask_token": np.zeros(shape, np.float32)}


def _hf_dinov3(
    config: PlainViTConfig,
    tensors: dict[str, np.ndarray],
    words: dict[str, Any],
    num_classes: int,
) -> Layout:
    rotary = config.rotary
    told = {"kind": "centered", "order": "yx", "half": True, "offset": 0.0}
    is_theirs = rotary is not None and all(
        getattr(rotary, field) == value for field, value in told.items()
    )
    if rotary is None or not is_theirs or num_classes or config.layer_scale is None:
        raise refuse(
            "hf",
            f"rotary={rotary}, layer_scale={config.layer_scale}, "
            f"num_classes={num_classes} for a DINOv3",
        )
    words |= {
        "rope_theta": rotary.temperature,
        "num_register_tokens": config.num_registers,
        "use_gated_mlp": config.gated_mlp,
        "query_bias": config.qkv_bias != "none",
        "key_bias": config.qkv_bias == "full",
        "value_bias": config.qkv_bias != "none",
        "proj_bias": config.out_bias,
        "mlp_bias": config.mlp_bias,
    }
    dialect = names.HF_DINOV3.spelled(())
    mask = _mask_token(dialect, (1, 1, config.hidden_size))
    return Layout(dialect.write(tensors) | mask, "DINOv3ViTModel", words)


def _hf_beit(
    config: PlainViTConfig,
    tensors: dict[str, np.ndarray],
    words: dict[str, Any],
    num_classes: int,
) -> Layout:
    """BEiT, with a norm after the mean of the patches or before the class token."""
    mean = config.classifier == "gap"
    norms = {"final_norm": not mean, "head_norm": mean, "num_registers": int(mean)}
    differing = {
        field: getattr(config, field)
        for field, value in norms.items()
        if getattr(config, field) != value
    }
    if config.position == "none" and not config.relative_position:
        raise refuse("hf", "a BEiT without positions")
    if differing or config.classifier not in ("gap", "token"):
        raise refuse("hf", f"classifier={config.classifier!r}, {differing} for a BEiT")
    tensors["cls_token"] = tensors.pop("reg_token" if mean else "cls_token")
    words |= {
        "layer_scale_init_value": config.layer_scale or 0.0,
        "use_relative_position_bias": config.relative_position,
        "use_absolute_position_embeddings": config.position == "1d",
        "use_mean_pooling": mean,
    }
    kind = "BeitForImageClassification" if num_classes else "BeitModel"
    return Layout(names.HF_BEIT.write(tensors), kind, words)
