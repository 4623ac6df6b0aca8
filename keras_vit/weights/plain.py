"""Plain ViTs of later papers: detection by canonical tensors, and the config."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit import configs
from keras_vit.configs import PlainViTConfig
from keras_vit.weights.parsed import (
    VIT_SIZES,
    ParsedCheckpoint,
    check_tokens,
    count_of,
    shape_of,
)
from keras_vit.weights.variables import NORMS, POSITIONS

BLOCK = "Transformer/encoderblock_0"
ATTENTION = f"{BLOCK}/MultiHeadDotProductAttention_0"
MLP = f"{BLOCK}/MlpBlock_0"
FIELDS = {field.name for field in dataclasses.fields(PlainViTConfig)}
# Fields that a `ViTConfig` can also express: zeros replace tensors that a file lacks.
_EXPRESSED = {
    *("classifier", "num_registers", "position", "position_tokens"),
    *("qkv_bias", "out_bias", "patch_bias", "activation", "map_heads", "map_mlp_dim"),
    *("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"),
    "layer_norm_epsilon",
}
SWITCHES = FIELDS - {*VIT_SIZES, "num_registers", "classifier"}
"""Fields of a `PlainViTConfig` that are not a variant's size."""
DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(PlainViTConfig)
    if field.name not in VIT_SIZES
}


def is_shown(tensors: Mapping[str, np.ndarray], hints: Mapping[str, Any]) -> bool:
    """Whether a checkpoint of patches and blocks cannot be expressed as a `ViTConfig`.

    Args:
        tensors: tensors by canonical name.
        hints: fields that tensors do not show.
    """
    if "conv_root/kernel" in tensors or f"{BLOCK}/LayerNorm_0/scale" not in tensors:
        return False
    fields = _switches(tensors) | {
        field: hints[field] for field in hints.keys() & DEFAULTS.keys()
    }
    heads = fields.get("map_heads") not in (None, hints.get("num_heads"))
    width = fields.get("map_mlp_dim") is not None
    return (
        any(fields[at] != DEFAULTS[at] for at in fields.keys() - _EXPRESSED)
        or fields.get("activation") in ("quick_gelu", "silu")
        or fields.get("classifier") == "token_gap"
        or heads
        or width
    )


def _switches(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Every switch that tensors show, including those with the paper's value."""

    def has(name: str) -> bool:
        return name in tensors

    biases = {at: has(f"{ATTENTION}/{at}/bias") for at in ("query", "key", "value")}
    fields: dict[str, Any] = {
        "norm": "layer_norm" if has(f"{BLOCK}/LayerNorm_0/bias") else "rms_norm",
        "embedding_norm": has(f"{NORMS['embedding_norm']}/scale"),
        "pre_norm": has(f"{NORMS['pre_norm']}/scale"),
        "head_norm": has(f"{NORMS['head_norm']}/scale"),
        "gated_mlp": has(f"{MLP}/Gate/kernel"),
        "mlp_norm": has(f"{MLP}/LayerNorm_0/scale"),
        "attention_norm": has(f"{ATTENTION}/LayerNorm_0/scale"),
        "qk_norm": has(f"{ATTENTION}/query_norm/scale"),
        "qkv_bias": "none",
        "out_bias": has(f"{ATTENTION}/out/bias"),
        "mlp_bias": has(f"{MLP}/Dense_1/bias"),
        "layer_scale": 1e-5 if has(f"{BLOCK}/LayerScale_0/gamma") else None,
        "relative_position": has(f"{ATTENTION}/relative_position_bias"),
    }
    # A missing part is missing by design only if another part implies it.
    fields["final_norm"] = (
        has(f"{NORMS['encoder_norm']}/scale") or not (fields["head_norm"])
    )
    fields["patch_bias"] = has("embedding/bias") or not fields["pre_norm"]
    if biases["query"]:
        fields["qkv_bias"] = "full" if biases["key"] else "qv"
    probe = "MAPHead_0/MlpBlock_0/Dense_0/kernel"
    if has(probe) and has(f"{MLP}/Dense_0/kernel"):
        own, width = (tensors[at].shape[1:] for at in (probe, f"{MLP}/Dense_0/kernel"))
        fields["map_mlp_dim"] = own[0] if own and own != width else None
    return fields


def infer(
    tensors: Mapping[str, np.ndarray], where: str, hints: Mapping[str, Any]
) -> ParsedCheckpoint:
    """The config of a plain ViT from its canonical tensors.

    Args:
        tensors: tensors by canonical name.
        where: the file, for messages.
        hints: fields that tensors do not show.

    Raises:
        ValueError: if `hints` contradict the tensors.
        KeyError: if a tensor is missing or has a wrong number of axes.
    """
    patch_size, _, channels, hidden_size = shape_of(tensors, "embedding/kernel", 4)
    _, num_heads, _ = shape_of(tensors, f"{ATTENTION}/query/kernel", 3)
    _, mlp_dim = shape_of(tensors, f"{MLP}/Dense_0/kernel", 2)
    tokens = tensors["cls"].shape[1] if "cls" in tensors else 0
    table = tensors.get(POSITIONS)
    fields: dict[str, Any] = {
        **_switches(tensors),
        "patch_size": patch_size,
        "num_layers": count_of(tensors, "Transformer/encoderblock_{i}/", 0),
        "hidden_size": hidden_size,
        "mlp_dim": mlp_dim,
        "num_heads": num_heads,
        "classifier": "map" if "MAPHead_0/probe" in tensors else "token",
        "position": "none" if table is None else "1d",
        **{field: hints[field] for field in hints.keys() & FIELDS},
    }
    pooled = not tokens or fields["head_norm"]
    if fields["classifier"] == "token" and pooled and "classifier" not in hints:
        fields["classifier"] = "gap"
    if "num_registers" not in hints:
        own = configs.PLAIN_CLASS_TOKENS[fields["classifier"]]
        fields["num_registers"] = max(tokens - own, 0)
    config = PlainViTConfig(**fields)
    check_tokens(config, tokens, where)
    if "pre_logits/kernel" in tensors and "head/kernel" not in tensors:
        raise ValueError(
            "Expected no hidden layer (pre_logits; transformers' pooler) after "
            f"the tokens of {config.family}. Received: {where} with pre_logits of "
            f"{tensors['pre_logits/kernel'].shape}. from_checkpoint(names="
            "[(r'^pooler\\..*', None)]) ignores it"
        )
    placed = config.position_tokens
    head = tensors.get("head/kernel")
    return ParsedCheckpoint(
        where=where,
        tensors=tensors,
        config=config,
        num_channels=channels,
        num_classes=None if head is None else head.shape[-1],
        num_positions=None
        if table is None
        else table.shape[-2] - (tokens if placed is None else placed),
    )


def sizes(config: PlainViTConfig) -> dict[str, Any]:
    """The sizes that tensors show, under the names in config.json."""
    return {field: getattr(config, field) for field in VIT_SIZES}


def folded(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Multiplies LayerScale into the layers before it; the function is unchanged.

    Raises:
        ValueError: if a factor does not have the size of its layer.
    """
    found = {name: at for name, at in tensors.items() if "/LayerScale_" not in name}
    before = ("MultiHeadDotProductAttention_0/out", "MlpBlock_0/Dense_1")
    for name in tensors.keys() - found.keys():
        block, _, scale = name.rpartition("/LayerScale_")
        layer = f"{block}/{before[int(scale[0])]}"
        for part in ("kernel", "bias"):
            tensor = found.get(f"{layer}/{part}")
            if tensor is None:
                continue
            if tensor.shape[-1:] != tensors[name].shape:
                raise ValueError(
                    f"Expected LayerScale of shape ({tensor.shape[-1]},). "
                    f"Received: {name} of shape {tensors[name].shape}"
                )
            found[f"{layer}/{part}"] = tensor * tensors[name]
    return found
