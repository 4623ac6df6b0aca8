"""What a checkpoint holds: its tensors, and the model and numerics that they need."""

import contextlib
import dataclasses
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import configs
from keras_vit.configs import ResNetConfig, ViTConfig
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.files import file_sha256
from keras_vit.weights import names
from keras_vit.weights.config_json import (
    PREPROCESSING_FIELDS,
    RESNET_FIELDS,
    SIZES,
    Grid,
    stated_beside,
)
from keras_vit.weights.tensors import open_tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """A checkpoint, read: canonical tensors and what the model for them must be."""

    where: str
    tensors: Mapping[str, np.ndarray]
    config: ViTConfig | ResNetConfig
    num_channels: int
    num_classes: int | None
    num_positions: int | None  # Of patches, in a learned table; None: there is none.
    grid: Grid | None = None  # Of the positions, where something tells.
    dialect: str = "official"
    numerics: str = "paper"
    notes: tuple[str, ...] = ()  # What was assumed, for the report.
    dropped_classes: int | None = None  # Of a head in the file that is left out.
    preprocessing: Preprocessing = OFFICIAL
    labels: tuple[str, ...] | None = None
    sha256: str | None = None


def read(
    source: str | os.PathLike[str],
    *,
    grid: Grid | None = None,
    numerics: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    num_heads: int | None = None,
) -> Contents:
    """Reads a checkpoint of any dialect.

    Args:
        source: a file, an index of shards, or a folder with `model.safetensors`; of
            a file of several towers, one, as "lit.npz:img".
        grid: (rows, columns) of its position table, where known.
        numerics: "paper", "timm" or "hf" in the place of the dialect's own.
        overrides: fields of the config, stronger than anything in the file.
        num_heads: k of the model to be filled, for a file that does not state it.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, of no known dialect, or of no ViT or ResNet, if
            its config.json contradicts its tensors or states what no layer here
            computes, or if the number of heads is not known.
    """
    path, subtree = _subtree(source)
    stated = stated_beside(path)
    beside = stated.fields
    chosen = {**beside, **(overrides or {})}
    likely = grid or beside.get("grid")
    with _open(path) as file:
        found = names.canonical(
            file,
            str(source),
            heads=chosen.get("num_heads", num_heads),
            patches=None if likely is None else math.prod(likely),
            embedded=stated.facts.get("embedded_tokens"),
            architecture=stated.architecture,
            subtree=subtree,
        )
    if stated.architecture is not None and found.dialect == "timm":
        _warn_of_architecture(stated.architecture, str(source))
    asked = overrides or {}
    contents = infer(found.tensors, str(source), _hints(found, chosen, stated.facts))
    if likely is not None and math.prod(likely) == contents.num_positions:
        grid = likely  # A config of another resolution than the table's tells nothing.
    elif likely is not None and contents.num_positions is None:
        grid = likely  # Of no table: the size that it was trained for.
    _check_facts(contents, found.traits, stated.facts, asked)
    told = {key: value for key, value in beside.items() if key not in asked}
    _check_sizes(contents.config, told, str(source))
    own = numerics or found.numerics
    fields = configs.numerics_of(contents.config, own)
    if numerics is not None:  # Stronger than the file beside, as it was asked for.
        beside = {key: value for key, value in beside.items() if key not in fields}
    given = {**fields, **beside, **(overrides or {})}
    return dataclasses.replace(
        contents,
        config=_replaced(contents.config, given, str(source)),
        grid=None if grid is None else (grid[0], grid[1]),
        dialect=found.dialect,
        numerics=own,
        notes=found.notes,
        dropped_classes=found.dropped_classes,
        preprocessing=Preprocessing(
            **{key: beside[key] for key in beside.keys() & PREPROCESSING_FIELDS}
        ),
        labels=_labels(stated.fields, contents.num_classes),
        sha256=file_sha256(path) if path.is_file() else None,
    )


def _labels(
    stated: Mapping[str, Any], num_classes: int | None
) -> tuple[str, ...] | None:
    """The names of the file's own classes."""
    labels = stated.get("labels")
    return tuple(labels) if labels and len(labels) == num_classes else None


def _warn_of_architecture(architecture: str, where: str) -> None:
    warnings.warn(
        f"timm's architecture {architecture!r}, which {where} is of, is unknown here: "
        "GELU, epsilons and pooling that its config.json does not state are assumed to "
        "be timm's defaults. Compare outputs with timm's",
        stacklevel=4,
    )


def _hints(
    found: names.Canonical, chosen: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields that tensors do not show: by their names, as stated, as asked."""
    hints = dict(found.hints)
    if facts.get("unpooled"):
        token = found.traits.get("class_token")
        hints["classifier"] = "token_unpooled" if token else "unpooled"
    for key in ("classifier", "num_registers", "position"):
        if key in chosen:
            hints[key] = chosen[key]
    is_other = hints.get("classifier") != found.hints.get("classifier")
    if is_other and "num_registers" not in chosen:  # Counted for that classifier.
        hints.pop("num_registers", None)
    return hints


def _check_facts(
    contents: Contents,
    traits: Mapping[str, Any],
    facts: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> None:
    """A config.json that contradicts the tensors is of another checkpoint."""
    config = contents.config
    shown: dict[str, Any] = {"num_channels": contents.num_channels, **traits}
    if contents.num_classes is not None:
        shown["num_classes"] = contents.num_classes
    if isinstance(config, ViTConfig):
        shown |= {key: getattr(config, key) for key in SIZES}
        if (ratio := facts.get("mlp_ratio")) is not None:
            shown["mlp_ratio"] = config.mlp_dim / config.hidden_size
            if int(config.hidden_size * ratio) == config.mlp_dim:  # As timm rounds.
                shown["mlp_ratio"] = ratio
    overridden = {"position": "positions", "classifier": "map_head"}
    ignored = {overridden.get(key, key) for key in asked}
    if "classifier" in asked:
        ignored |= {"class_token", "num_registers"}
    for key, value in facts.items():
        if key in shown and key not in ignored and shown[key] != value:
            raise ValueError(
                f"Expected {_FACTS.get(key, key)} {shown[key]!r} in the config.json, "
                f"as the tensors of {contents.where} have it. Received: {value!r}"
            )


_FACTS = {  # Of a config.json, in words.
    "class_token": "class_token (global_pool='token' needs one)",
    "num_registers": "the number of register tokens",
    "layer_scale": "init_values (LayerScale)",
    "positions": "pos_embed (a table)",
    "map_head": "global_pool 'map'",
}


def _subtree(source: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """big_vision's "file.npz:img" as the file and the tower."""
    path, colon, subtree = str(source).rpartition(":")
    if colon and not Path(source).exists() and re.fullmatch(r"\w+", subtree):
        return Path(path), subtree
    return Path(source), None


_H5 = ("model.weights.h5", "tf_model.h5")


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether timm, transformers or keras-hub wrote a checkpoint into this folder."""
    return any(
        found
        for name in ("model.safetensors*", *_H5)
        for found in Path(path).glob(name)
    )


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The file's tensors; keras-hub keeps a classifier's head in a second file.

    Of a folder with both, safetensors, as transformers reads it.
    """
    if path.is_dir() and not any(path.glob("model.safetensors*")):
        path = next((path / h5 for h5 in _H5 if (path / h5).is_file()), path)
    task = path.with_name("task.weights.h5")
    with open_tensors(path) as file:
        if path.name != "model.weights.h5" or not task.is_file():
            yield file
            return
        with open_tensors(task) as head:
            yield {**file, **_hub_head(head)}


def _hub_head(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """keras-hub numbers the dense layers of a head: pre_logits, if any, is first."""
    layers = sorted({name.split("/")[1] for name in tensors if "layers/dense" in name})
    called = dict(zip(reversed(layers), ("predictions", "pre_logits"), strict=False))
    return {
        name.replace(f"layers/{layer}/", f"{called[layer]}/"): tensors[name]
        for layer in called
        for name in tensors
        if name.startswith(f"layers/{layer}/")
    }


def _check_sizes(
    config: ViTConfig | ResNetConfig, told: Mapping[str, Any], where: str
) -> None:
    """A config.json is not to build a model that its file cannot fill."""
    shown: dict[str, Any] = {"representation_size": None, **vars(config)}
    if isinstance(config, ViTConfig):
        shown |= {} if config.resnet is None else {"width": config.resnet.width}
    elif config.unit != "axial":
        shown.pop("num_heads")
    for key in (*SIZES, "representation_size", "width"):
        value = told.get(key)
        value = tuple(value) if isinstance(value, list) else value
        if value is not None and key in shown and value != shown[key]:
            raise ValueError(
                f"Expected {key}={shown[key]!r} in the config.json, as the tensors of "
                f"{where} have it. Received: {key}={value!r}"
            )


def _replaced(
    config: ViTConfig | ResNetConfig, given: Mapping[str, Any], where: str
) -> ViTConfig | ResNetConfig:
    """The config with the fields given; those of a hybrid's stem go to the stem."""
    own = {field.name for field in dataclasses.fields(config)}
    changes = {key: value for key, value in given.items() if key in own}
    stem = {key: given[key] for key in given.keys() & RESNET_FIELDS - own}
    if stem and isinstance(config, ViTConfig):
        if config.resnet is None:
            raise ValueError(
                f"Expected a hybrid or ResNet for {', '.join(sorted(stem))}. "
                f"Received: {where}, a ViT on pixels"
            )
        stem_config = changes.get("resnet", config.resnet)
        changes["resnet"] = dataclasses.replace(stem_config, **stem)
    return dataclasses.replace(config, **changes)


def infer(
    tensors: Mapping[str, np.ndarray],
    where: str,
    hints: Mapping[str, Any] | None = None,
) -> Contents:
    """Reads the architecture off canonical tensors.

    Raises:
        ValueError: if they are not those of a ViT or a ResNet.
    """
    try:
        if "embedding/kernel" in tensors:
            return _infer_vit(tensors, where, hints or {})
        return _infer_resnet(tensors, where)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            "Expected the tensors of a ViT (embedding/kernel, Transformer/"
            "encoderblock_0/...) or of a ResNet (conv_root/kernel, block1/unit1/...). "
            f"Received: {where} without or with another shape of {error}"
        ) from error


def _shape(tensors: Mapping[str, np.ndarray], name: str, dims: int) -> tuple[int, ...]:
    shape = tensors[name].shape
    if len(shape) != dims or 0 in shape:
        raise KeyError(f"{name}, which is {shape} and should have {dims} axes")
    return tuple(shape)


def _infer_vit(
    tensors: Mapping[str, np.ndarray], where: str, hints: Mapping[str, Any]
) -> Contents:
    patch_size, _, channels, hidden_size = _shape(tensors, "embedding/kernel", 4)
    axial = any(name.startswith("Transformer/encoderblock_0/row/") for name in tensors)
    block = "Transformer/encoderblock_0" + ("/row" if axial else "")
    attention = f"{block}/MultiHeadDotProductAttention_0"
    _, num_heads, _ = _shape(tensors, f"{attention}/query/kernel", 3)
    _, mlp_dim = _shape(tensors, f"{block}/MlpBlock_0/Dense_0/kernel", 2)
    position, positions, grid = _infer_positions(tensors, attention)
    tokens = tensors["cls"].shape[1] if "cls" in tensors else 0
    resnet = None
    if "conv_root/kernel" in tensors:
        resnet = _infer_stages(tensors)
        channels = tensors["conv_root/kernel"].shape[2]
    fields = {
        "patch_size": patch_size,
        "num_layers": _count(tensors, "Transformer/encoderblock_{i}/", 0),
        "hidden_size": hidden_size,
        "mlp_dim": mlp_dim,
        "num_heads": num_heads,
        "classifier": _infer_classifier(tensors, tokens, hidden_size),
        "representation_size": _width(tensors, "pre_logits"),
        "resnet": resnet,
        "position": position,
        "position_at": _infer_position_at(tensors),
        "attention": "axial" if axial else "full",
        **hints,
    }
    if tokens and "num_registers" not in hints:
        own = configs.CLASS_TOKENS[fields["classifier"]]
        fields["num_registers"] = max(tokens - own, 0)
    config = ViTConfig(**fields)
    if tokens != config.num_prefix_tokens:
        raise ValueError(
            f"Expected {config.num_prefix_tokens} tokens before the patches "
            f"(classifier={config.classifier!r}, num_registers={config.num_registers})."
            f" Received: {where}, whose cls has {tokens}"
        )
    if positions is not None and position != "2d":
        positions -= config.num_prefix_tokens
    return Contents(
        where=where,
        tensors=tensors,
        config=config,
        num_channels=channels,
        num_classes=_width(tensors, "head"),
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
    """The kind (D.4), how many places it has, and their grid if that is told."""
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
    return "sincos2d", None, None  # big_vision's, which has nothing to save.


def _infer_position_at(tensors: Mapping[str, np.ndarray]) -> str:
    for table, place in (("shared", "every_layer_shared"), ("1", "every_layer")):
        if any(name.startswith(f"Transformer/posembed_{table}/") for name in tensors):
            return place
    return "stem"


def _infer_resnet(tensors: Mapping[str, np.ndarray], where: str) -> Contents:
    config = _infer_stages(tensors)
    return Contents(
        where=where,
        tensors=tensors,
        config=config,
        num_channels=tensors["conv_root/kernel"].shape[2],
        num_classes=_width(tensors, "head"),
        num_positions=None,
    )


def _infer_stages(tensors: Mapping[str, np.ndarray]) -> ResNetConfig:
    width = _shape(tensors, "conv_root/kernel", 4)[-1]
    unit: configs.Unit = "v1" if "gn_root/scale" in tensors else "v2"
    attention = "block1/unit1/attention/row/query/kernel"
    stages = range(1, _count(tensors, "block{i}/", 1) + 1)
    return ResNetConfig(
        num_layers=tuple(
            _count(tensors, f"block{stage}/unit{{i}}/", 1) for stage in stages
        ),
        width=width,
        unit="axial" if attention in tensors else unit,
        num_heads=tensors[attention].shape[1] if attention in tensors else 8,
        **configs.NUMERICS["paper"][unit],
    )


def _count(tensors: Mapping[str, np.ndarray], pattern: str, first: int) -> int:
    """How many numbers `pattern` finds for {i}; raises where one is left out."""
    number = pattern.replace("{i}", "([0-9]{1,4})")
    found = {int(match[1]) for name in tensors if (match := re.match(number, name))}
    missing = set(range(first, first + len(found))) - found
    if missing:
        raise KeyError(pattern.replace("{i}", str(min(missing))))
    return len(found)


def _width(tensors: Mapping[str, np.ndarray], layer: str) -> int | None:
    """The outputs of a dense layer, None where the file has none."""
    if not {f"{layer}/kernel", f"{layer}/bias"} & tensors.keys():
        return None
    _shape(tensors, f"{layer}/kernel", 2)
    return _shape(tensors, f"{layer}/bias", 1)[0]
