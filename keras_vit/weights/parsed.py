"""A checkpoint under canonical names, and the config inferred from its tensors."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from keras_vit import configs
from keras_vit.configs import (
    CheckpointConfig,
    PlainViTConfig,
    ResNetConfig,
    ViTConfig,
)
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.weights.sources import Source

Grid: TypeAlias = tuple[int, int]
# The fields of a ViTConfig, and the sizes among them.
VIT_FIELDS = {field.name for field in dataclasses.fields(ViTConfig)}
VIT_SIZES = ("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParsedCheckpoint:
    """A checkpoint that has been read: canonical tensors, and their model's config."""

    where: str
    tensors: Mapping[str, np.ndarray]
    config: CheckpointConfig
    num_channels: int
    num_classes: int | None
    num_positions: int | None  # For patches, in a learned table; None: no table.
    grid: Grid | None = None  # The grid of the positions, if known.
    dialect: str = "official"
    numerics: str = "paper"
    notes: tuple[str, ...] = ()  # Assumptions, for the report.
    preprocessing: Preprocessing = OFFICIAL
    labels: tuple[str, ...] | None = None
    sha256: str | None = None
    source: Source | None = None  # None: the tensors come from a model.


def shape_of(
    tensors: Mapping[str, np.ndarray], name: str, dims: int
) -> tuple[int, ...]:
    """The shape of a tensor; raises KeyError if it does not have `dims` axes."""
    shape = tensors[name].shape
    if len(shape) != dims or 0 in shape:
        raise KeyError(f"{name}, which is {shape} and should have {dims} axes")
    return tuple(shape)


def check_tokens(config: ViTConfig | PlainViTConfig, tokens: int, where: str) -> None:
    """Raises unless a file has as many tokens before the patches as its config."""
    if tokens != config.num_prefix_tokens:
        raise ValueError(
            f"Expected {config.num_prefix_tokens} tokens before the patches "
            f"(classifier={config.classifier!r}, num_registers={config.num_registers})."
            f" Received: {where}, whose cls has {tokens}"
        )


def infer_vit(
    tensors: Mapping[str, np.ndarray], where: str, hints: Mapping[str, Any]
) -> ParsedCheckpoint:
    """The config of a ViT or a hybrid from its canonical tensors.

    Args:
        tensors: tensors by canonical name.
        where: the file, for messages.
        hints: fields that tensors do not show.

    Raises:
        ValueError: if `hints` contradict the tensors.
        KeyError: if a tensor is missing or has a wrong number of axes.
    """
    patch_size, _, channels, hidden_size = shape_of(tensors, "embedding/kernel", 4)
    axial = any(name.startswith("Transformer/encoderblock_0/row/") for name in tensors)
    block = "Transformer/encoderblock_0" + ("/row" if axial else "")
    attention = f"{block}/MultiHeadDotProductAttention_0"
    _, num_heads, _ = shape_of(tensors, f"{attention}/query/kernel", 3)
    _, mlp_dim = shape_of(tensors, f"{block}/MlpBlock_0/Dense_0/kernel", 2)
    position, positions, grid = _infer_positions(tensors, attention)
    tokens = tensors["cls"].shape[1] if "cls" in tensors else 0
    resnet = None
    if "conv_root/kernel" in tensors:
        resnet = _infer_stages(tensors)
        channels = tensors["conv_root/kernel"].shape[2]
    fields = {
        "patch_size": patch_size,
        "num_layers": count_of(tensors, "Transformer/encoderblock_{i}/", 0),
        "hidden_size": hidden_size,
        "mlp_dim": mlp_dim,
        "num_heads": num_heads,
        "classifier": _infer_classifier(tensors, tokens, hidden_size),
        "representation_size": width_of(tensors, "pre_logits"),
        "resnet": resnet,
        "position": position,
        "position_at": _infer_position_at(tensors),
        "attention": "axial" if axial else "full",
        **{field: hints[field] for field in hints.keys() & VIT_FIELDS},
    }
    if tokens and "num_registers" not in hints:
        own = configs.CLASS_TOKENS[fields["classifier"]]
        fields["num_registers"] = max(tokens - own, 0)
    config = ViTConfig(**fields)
    check_tokens(config, tokens, where)
    if positions is not None and position != "2d":
        positions -= config.num_prefix_tokens
    return ParsedCheckpoint(
        where=where,
        tensors=tensors,
        config=config,
        num_channels=channels,
        num_classes=width_of(tensors, "head"),
        num_positions=positions,
        grid=grid,
    )


def _infer_classifier(
    tensors: Mapping[str, np.ndarray], tokens: int, hidden_size: int
) -> str:
    if "MAPHead_0/probe" in tensors:
        return "map"
    if not tokens:
        return "gap"
    head = tensors.get("head/kernel")
    two = tokens >= 2 and head is not None and len(head) == 2 * hidden_size
    return "distilled" if two and "pre_logits/kernel" not in tensors else "token"


def _infer_positions(
    tensors: Mapping[str, np.ndarray], attention: str
) -> tuple[str, int | None, Grid | None]:
    """The kind of positions (D.4), their number, and their grid if known."""
    shared = any(name.startswith("Transformer/posembed_shared/") for name in tensors)
    folder = f"Transformer/posembed_{'shared' if shared else 'input'}"
    if f"{folder}/pos_embedding" in tensors:
        return "1d", tensors[f"{folder}/pos_embedding"].shape[-2], None
    if f"{folder}/x_embedding" in tensors:
        columns = tensors[f"{folder}/x_embedding"].shape[1]
        rows = tensors[f"{folder}/y_embedding"].shape[1]
        return "2d", rows * columns, (rows, columns)
    if f"{attention}/relative_embedding" in tensors:
        if "/row/" in attention:
            return "relative", None, None
        offsets = len(tensors[f"{attention}/relative_embedding"])
        return "relative", (offsets + 1) // 2, None
    return "sincos2d", None, None  # big_vision's, without weights.


def _infer_position_at(tensors: Mapping[str, np.ndarray]) -> str:
    for table, place in (("shared", "every_layer_shared"), ("1", "every_layer")):
        if any(name.startswith(f"Transformer/posembed_{table}/") for name in tensors):
            return place
    return "stem"


def infer_resnet(
    tensors: Mapping[str, np.ndarray], where: str, hints: Mapping[str, Any]
) -> ParsedCheckpoint:
    """The config of a ResNet from its canonical tensors, which determine all of it.

    Args:
        tensors: tensors by canonical name.
        where: the file, for messages.
        hints: unused.

    Raises:
        KeyError: if a tensor is missing or has a wrong number of axes.
    """
    config = _infer_stages(tensors)
    return ParsedCheckpoint(
        where=where,
        tensors=tensors,
        config=config,
        num_channels=tensors["conv_root/kernel"].shape[2],
        num_classes=width_of(tensors, "head"),
        num_positions=None,
    )


def _infer_stages(tensors: Mapping[str, np.ndarray]) -> ResNetConfig:
    width = shape_of(tensors, "conv_root/kernel", 4)[-1]
    unit: configs.Unit = "v1" if "gn_root/scale" in tensors else "v2"
    attention = "block1/unit1/attention/row/query/kernel"
    stages = range(1, count_of(tensors, "block{i}/", 1) + 1)
    return ResNetConfig(
        num_layers=tuple(
            count_of(tensors, f"block{stage}/unit{{i}}/", 1) for stage in stages
        ),
        width=width,
        unit="axial" if attention in tensors else unit,
        num_heads=tensors[attention].shape[1] if attention in tensors else 8,
        **configs.NUMERICS["paper"][unit],
    )


def count_of(tensors: Mapping[str, np.ndarray], pattern: str, first: int) -> int:
    """The number of values of {i} in `pattern`; raises if one is missing."""
    number = pattern.replace("{i}", "([0-9]{1,4})")
    found = {int(match[1]) for name in tensors if (match := re.match(number, name))}
    missing = set(range(first, first + len(found))) - found
    if missing:
        raise KeyError(pattern.replace("{i}", str(min(missing))))
    return len(found)


def width_of(tensors: Mapping[str, np.ndarray], layer: str) -> int | None:
    """The number of outputs of a dense layer; None if the file does not have it."""
    if not {f"{layer}/kernel", f"{layer}/bias"} & tensors.keys():
        return None
    shape_of(tensors, f"{layer}/kernel", 2)
    return shape_of(tensors, f"{layer}/bias", 1)[0]


def vit_sizes(config: ViTConfig) -> dict[str, Any]:
    """The sizes of a ViT that its tensors show, under the names in config.json."""
    fields = (*VIT_SIZES, "representation_size")
    sizes = {field: getattr(config, field) for field in fields}
    if config.resnet is not None:
        sizes["width"] = config.resnet.width
    return sizes


def resnet_sizes(config: ResNetConfig) -> dict[str, Any]:
    """The sizes of a ResNet that its tensors show, under the names in config.json."""
    sizes: dict[str, Any] = {"num_layers": config.num_layers, "width": config.width}
    if config.unit == "axial":
        sizes["num_heads"] = config.num_heads
    return sizes | {"representation_size": None}
