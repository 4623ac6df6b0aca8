"""Read a checkpoint of any dialect."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import configs
from keras_vit.callers import warn
from keras_vit.configs import (
    CheckpointConfig,
)
from keras_vit.facts import Preprocessing
from keras_vit.families import FAMILIES, family_of
from keras_vit.files import file_sha256
from keras_vit.weights import names, plain
from keras_vit.weights.config_json import (
    PREPROCESSING_FIELDS,
    RESNET_FIELDS,
    Stated,
    stated_beside,
)
from keras_vit.weights.parsed import Grid, ParsedCheckpoint
from keras_vit.weights.renaming import Renaming
from keras_vit.weights.sources import WEIGHTS, Source, resolve
from keras_vit.weights.tensors import INDEX_SUFFIX, open_tensors


def read(
    source: str | os.PathLike[str] | Source,
    *,
    grid: Grid | None = None,
    numerics: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    num_heads: int | None = None,
    renamed: Renaming | None = None,
    fold: bool = False,
) -> ParsedCheckpoint:
    """Reads a checkpoint of any dialect.

    Args:
        source: a file, an index of shards, or a folder with `model.safetensors`; one
            of several towers in a file, such as "lit.npz:img"; or any other source
            that `sources.resolve` accepts.
        grid: (rows, columns) of the position table, if known.
        numerics: "paper", "timm" or "hf" instead of the dialect's numerics.
        overrides: fields of the config that take precedence over the file.
        num_heads: k of the target model, for a file that does not state it.
        renamed: a dialect's names for the names in the file.
        fold: whether to multiply LayerScale into the layers before it.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is damaged, has no known dialect, or is not a ViT or a
            ResNet; if its config.json contradicts its tensors or requires something
            that no layer here supports; or if the number of heads is not known.
    """
    source = resolve(source)
    path, where = source.path, source.name
    stated = stated_beside(path)
    beside = stated.fields
    chosen = {**beside, **(overrides or {})}
    likely = grid or beside.get("grid")
    with _open(path) as file, ThreadPoolExecutor(1) as beside_the_reading:
        sha256 = beside_the_reading.submit(_sha256, source)
        found = names.canonical(
            file,
            where,
            heads=chosen.get("num_heads", num_heads),
            map_heads=chosen.get("map_heads"),
            patches=None if likely is None else math.prod(likely),
            embedded=stated.facts.get("embedded_tokens"),
            architecture=stated.architecture,
            subtree=source.subtree,
            renamed=renamed,
        )
    if stated.architecture is not None and found.dialect == "timm":
        _warn_of_architecture(stated.architecture, where)
    _warn_of_missing_config(source, stated)
    asked = overrides or {}
    hints = _hints(found, chosen, stated.facts)
    if not (stated.fields or stated.facts):
        _check_positions_told(found, asked, where)
    if fold:
        found = dataclasses.replace(found, tensors=plain.folded(found.tensors))
    if found.is_translated and not plain.is_shown(found.tensors, hints):
        found = names.as_paper(found)
    parsed = infer(found.tensors, where, hints)
    if likely is not None and math.prod(likely) == parsed.num_positions:
        grid = likely  # A config for a different resolution has no information.
    elif likely is not None and parsed.num_positions is None:
        grid = likely  # Without a table: the size of the training.
    _check_facts(parsed, found.traits, stated.facts, asked)
    _warn_of_activation(found, chosen, where)
    beside = _in_words_of(parsed.config, beside)
    asked = _in_words_of(parsed.config, asked)
    _check_used(parsed.config, asked, where)
    told = {key: value for key, value in beside.items() if key not in asked}
    _check_sizes(parsed.config, told, where)
    own = numerics or found.numerics
    fields = configs.numerics_of(parsed.config, own)
    if numerics is None:  # The names may also show some of these fields.
        fields |= {key: found.hints[key] for key in fields.keys() & found.hints.keys()}
    else:  # An argument takes precedence over the config.json.
        beside = {key: value for key, value in beside.items() if key not in fields}
    given = {**fields, **beside, **asked}
    _check_normalization(stated.fields, parsed)
    return dataclasses.replace(
        parsed,
        config=_replaced(parsed.config, given, where),
        grid=None if grid is None else (grid[0], grid[1]),
        dialect=found.dialect,
        numerics=own,
        notes=(*found.notes, *_assumed_scaling(found, beside)),
        preprocessing=Preprocessing(
            **{key: beside[key] for key in beside.keys() & PREPROCESSING_FIELDS}
        ),
        labels=_labels(stated.fields, parsed),
        sha256=sha256.result(),
        source=source,
    )


def _assumed_scaling(found: names.Canonical, stated: Mapping[str, Any]) -> list[str]:
    """The report's note if no file states how other libraries' images are scaled."""
    known = "mean" in stated or not found.is_translated
    return [] if known else ["images assumed to be scaled to [-1, 1]"]


def _check_positions_told(
    found: names.Canonical, asked: Mapping[str, Any], where: str
) -> None:
    """Raises if positions may be rotary and no config.json states whether they are."""
    bare = found.hints.get("position") == "none" or found.traits.get("of_eva")
    if bare and not found.traits["relative_position"] and "rotary" not in asked:
        raise ValueError(
            "Expected a config.json next to a file that may have rotary positions, "
            f"which no tensor shows. Received: none next to {where}. Add the file, or "
            "set rotary=keras_vit.RotaryConfig(...), or rotary=None for no rotary "
            "positions"
        )


def _warn_of_activation(
    found: names.Canonical, chosen: Mapping[str, Any], where: str
) -> None:
    """Warns about a CLIP without a config: exact GELU or quick-GELU is not known."""
    is_clip = found.traits.get("pre_norm") and found.dialect in ("hf", "open_clip")
    if is_clip and not {"gelu", "activation"} & chosen.keys():
        warn(
            f"{where} does not state its activation. The exact GELU, as in OpenCLIP, "
            "is assumed. For OpenAI's CLIP, set activation='quick_gelu'",
        )


def _check_used(config: Any, asked: Mapping[str, Any], where: str) -> None:
    """Raises for an override that the file's family of models does not have."""
    own = {field.name for field in dataclasses.fields(config)} | RESNET_FIELDS
    unused = [
        f"{name}={value!r}"
        for name, value in asked.items()
        if name not in own and value != plain.DEFAULTS.get(name)
    ]
    if unused:
        raise ValueError(
            f"Expected fields of {family_of(config).title}. Received: "
            f"{', '.join(unused)} for {where}, which have no effect. Remove fields "
            "that the model does not have"
        )


def _in_words_of(config: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Converts `gelu` to a `PlainViTConfig`'s `activation`, or the reverse."""
    found = dict(fields)
    if not hasattr(config, "gelu") and "gelu" in found:
        gelu = found.pop("gelu")
        found.setdefault("activation", configs.GELUS.get(gelu, gelu))
    elif not hasattr(config, "activation") and "activation" in found:
        gelus = {activation: gelu for gelu, activation in configs.GELUS.items()}
        activation = found.pop("activation")
        if activation not in gelus:
            raise ValueError(
                f"Expected the activation {' or '.join(gelus)} for "
                f"{family_of(config).title}. Received: activation={activation!r}"
            )
        found["gelu"] = gelus[activation]
    return found


def _sha256(source: Source) -> str | None:
    """The hash of the weights file; None for shards."""
    if source.sha256 is not None:
        return source.sha256
    files = [source.path, *(source.path / name for name in WEIGHTS)]
    file = next((at for at in files if at.is_file()), None)
    if file is None or file.name.endswith(INDEX_SUFFIX):
        return None
    return file_sha256(file)


def _labels(
    stated: Mapping[str, Any], parsed: ParsedCheckpoint
) -> tuple[str, ...] | None:
    """The names of the file's classes; None for a file without a head.

    Raises:
        ValueError: if the number of names is not the head's number of outputs.
    """
    labels, num_classes = stated.get("labels"), parsed.num_classes
    if labels is None or num_classes is None:
        return None
    if len(labels) != num_classes:
        raise ValueError(
            f"Expected {num_classes} labels in the config.json, one for each output of "
            f"the head in {parsed.where}. Received: {len(labels)} labels"
        )
    return tuple(labels)


def _check_normalization(stated: Mapping[str, Any], parsed: ParsedCheckpoint) -> None:
    """Raises if the mean or the deviation has a wrong number of channels.

    Three values are accepted: other libraries also write three for gray images.
    """
    counts = (1, 3, parsed.num_channels)
    for name in ("mean", "std"):
        values = stated.get(name, (0,))
        if len(values) not in counts:
            raise ValueError(
                f"Expected one value for each of the {parsed.num_channels} channels in "
                f"{name} of the config.json next to {parsed.where}, or one for all. "
                f"Received: {name}={list(values)}"
            )


def _warn_of_missing_config(source: Source, stated: Stated) -> None:
    """Warns about a repository without a config.json, which has to be assumed."""
    is_npz = source.path.suffix == ".npz"  # The official code has no config.json.
    if source.revision is not None and not is_npz and not stated.fields:
        warn(
            f"{source.name} has no config.json. GELU, epsilons, pooling and "
            "preprocessing are assumed to be the defaults of the library that wrote "
            "it. If they are not, set numerics=, gelu= or classifier=",
        )


def _warn_of_architecture(architecture: str, where: str) -> None:
    warn(
        f"timm's architecture {architecture!r} of {where} is unknown. If its "
        "config.json does not state GELU, epsilons and pooling, timm's defaults are "
        "assumed. Compare the outputs with timm's",
    )


def _hints(
    found: names.Canonical, chosen: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields that tensors do not show: from names, config.json and arguments."""
    hints = dict(found.hints)
    if facts.get("unpooled"):
        token = found.traits.get("class_token")
        hints["classifier"] = "token_unpooled" if token else "unpooled"
    for key in {"classifier", "num_registers", "position", *plain.SWITCHES}:
        if key in chosen:
            hints[key] = chosen[key]
    is_other = hints.get("classifier") != found.hints.get("classifier")
    if is_other and "num_registers" not in chosen:  # Counted for that classifier.
        hints.pop("num_registers", None)
    return hints


def _check_facts(
    parsed: ParsedCheckpoint,
    traits: Mapping[str, Any],
    facts: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> None:
    """Raises if the config.json contradicts the tensors."""
    config: Any = parsed.config
    sizes = family_of(config).sizes_shown(config)
    shown: dict[str, Any] = {"num_channels": parsed.num_channels, **traits}
    if parsed.num_classes is not None:
        shown["num_classes"] = parsed.num_classes
    shown |= sizes
    if "norm" in facts:
        shown["norm"] = getattr(config, "norm", "layer_norm")
    gated = getattr(config, "gated_mlp", False)  # Its width is defined differently.
    if (
        not gated
        and "mlp_dim" in sizes
        and (ratio := facts.get("mlp_ratio")) is not None
    ):
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
                f"as in the tensors of {parsed.where}. Received: {value!r}"
            )


_FACTS = {  # Descriptions of facts in a config.json.
    "class_token": "class_token (global_pool='token' needs one)",
    "num_registers": "the number of register tokens",
    "layer_scale": "init_values (LayerScale)",
    "positions": "pos_embed (a table)",
    "map_head": "global_pool 'map'",
    "head_norm": "fc_norm",
    "norm": "norm_layer",
    "mlp_norm": "scale_mlp_norm",
    "attention_norm": "scale_attn_norm",
}


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether the folder contains a checkpoint of timm, transformers or keras-hub."""
    return any(
        found
        for name in ("model.safetensors*", *WEIGHTS)
        for found in Path(path).glob(name)
    )


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The file's tensors; keras-hub stores a classifier's head in a second file.

    In a folder with several formats, safetensors is preferred, as in transformers.
    """
    if path.is_dir() and not any(path.glob("model.safetensors*")):
        path = next((path / at for at in WEIGHTS if (path / at).is_file()), path)
    task = path.with_name("task.weights.h5")
    with open_tensors(path) as file:
        if path.name != "model.weights.h5" or not task.is_file():
            yield file
            return
        with open_tensors(task) as head:
            yield {**file, **_hub_head(head)}


def _hub_head(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Names the numbered dense layers of keras-hub's head: first pre_logits, if any."""
    layers = sorted({name.split("/")[1] for name in tensors if "layers/dense" in name})
    called = dict(zip(reversed(layers), ("predictions", "pre_logits"), strict=False))
    return {
        name.replace(f"layers/{layer}/", f"{called[layer]}/"): tensors[name]
        for layer in called
        for name in tensors
        if name.startswith(f"layers/{layer}/")
    }


def _check_sizes(config: CheckpointConfig, told: Mapping[str, Any], where: str) -> None:
    """Raises if the config.json's sizes are not those of the tensors."""
    for key, shown in family_of(config).sizes_shown(config).items():
        value = told.get(key)
        value = tuple(value) if isinstance(value, list) else value
        if value is not None and value != shown:
            raise ValueError(
                f"Expected {key}={shown!r} in the config.json, as in the tensors of "
                f"{where}. Received: {key}={value!r}"
            )


def _replaced(
    config: CheckpointConfig, given: Mapping[str, Any], where: str
) -> CheckpointConfig:
    """The config with the given fields; stem fields of a hybrid apply to its stem."""
    own = {field.name for field in dataclasses.fields(config)}
    changes = {key: value for key, value in given.items() if key in own}
    stem = {key: given[key] for key in given.keys() & RESNET_FIELDS - own}
    if stem:  # Empty for a ResNet, where they are direct fields.
        stem_config = changes.get("resnet", getattr(config, "resnet", None))
        if stem_config is None:
            raise ValueError(
                f"Expected a hybrid or ResNet for {', '.join(sorted(stem))}. "
                f"Received: {where}, {family_of(config).title}"
            )
        changes["resnet"] = dataclasses.replace(stem_config, **stem)
    return dataclasses.replace(config, **changes)


def infer(
    tensors: Mapping[str, np.ndarray],
    where: str,
    hints: Mapping[str, Any] | None = None,
) -> ParsedCheckpoint:
    """Infers the architecture from canonical tensors.

    Raises:
        ValueError: if they are not those of a ViT or a ResNet.
    """
    try:
        hints = hints or {}
        for family in FAMILIES.values():
            if family.tensor in tensors and family.shown(tensors, hints):
                parsed: ParsedCheckpoint = family.infer(tensors, where, hints)
                return parsed
        raise KeyError("embedding/kernel")
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            "Expected the tensors of a ViT (embedding/kernel, Transformer/"
            "encoderblock_0/...) or of a ResNet (conv_root/kernel, block1/unit1/...). "
            f"Received: {where}; missing or with a wrong shape: {error}"
        ) from error
