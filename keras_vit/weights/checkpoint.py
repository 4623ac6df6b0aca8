"""Load a checkpoint into a model and report the result for each tensor.

The rules follow `load_pretrained` of vit_jax/checkpoint.py (section 3.2) but are
stricter. The head may be new, `pre_logits` may be dropped, positions are resized, and
the first kernel is adapted to the number of channels. Any other mismatch raises an
error before a variable is changed.
"""

import collections
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.callers import warn
from keras_vit.configs import (
    CheckpointConfig,
)
from keras_vit.facts import OFFICIAL, Preprocessing, Provenance
from keras_vit.families import family_of, sizes_of, variant_of
from keras_vit.layers import AddPositionEmbs, resize_position_embeddings
from keras_vit.layers.embeddings import check_unadapted
from keras_vit.models.vision import VisionModel, facts_of
from keras_vit.normalization import per_channel
from keras_vit.weights import variables
from keras_vit.weights.architecture import config_of
from keras_vit.weights.parsed import Grid, ParsedCheckpoint
from keras_vit.weights.reading import infer, read


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor of a `Report` and how it was loaded (3.2).

    Attributes:
        name: the official code's name, in its current numbering.
        status: "loaded"; "resized" (positions or the first kernel); "fresh" (in a new
            head); "unused" (in the file's head).
        file_shape: shape in the file; None if the file does not contain the tensor.
        model_shape: shape in the model; None if the model does not contain it.
        note: the change in words, such as the old and the new grid.
    """

    name: str
    status: str
    file_shape: tuple[int, ...] | None
    model_shape: tuple[int, ...] | None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `load` (3.2) for each tensor; prints as a table.

    Attributes:
        source: the file that was read.
        rows: one row per tensor: `name`, `status` ("loaded", "resized", "fresh" or
            "unused"), `file_shape` and `model_shape` (None: absent), `note`.
        zero_head: whether the file's head was loaded and is all zeros, which makes
            predictions uniform.
        dialect: the naming scheme of the file's tensors: "official" (vit_jax),
            "big_vision", "bit", "timm", "hf" (transformers), "hf-tf", "tfvit" or
            "keras-hub".
        numerics: the GELU and the epsilons that the file requires, and assumptions
            that were made, in words.
        preprocessing: how images become input, from the `config.json` next to the
            file; without one, that of the official code.
    """

    source: str
    rows: tuple[Row, ...]
    zero_head: bool = False
    dialect: str = "official"
    numerics: tuple[str, ...] = ()
    preprocessing: Preprocessing = OFFICIAL

    def names(self, status: str) -> list[str]:
        """Returns the canonical names of the tensors with a status.

        Args:
            status: "loaded", "resized", "fresh" or "unused".
        """
        return [row.name for row in self.rows if row.status == status]

    def __str__(self) -> str:
        counts = collections.Counter(row.status for row in self.rows)
        lines = [
            f"{self.source}: "
            + ", ".join(
                f"{counts[status]} {status}"
                for status in ("loaded", "resized", "fresh", "unused")
            )
        ]
        lines += [f"  {self.dialect} dialect; {'; '.join(self.numerics)}"]
        lines += [f"  {self.preprocessing}"]
        width = max(len(row.name) for row in self.rows)
        for row in self.rows:
            shapes = " -> ".join(
                "-" if shape is None else str(shape)
                for shape in (row.file_shape, row.model_shape)
            )
            if row.file_shape == row.model_shape:
                shapes = str(row.file_shape)
            note = f"  ({row.note})" if row.note else ""
            lines.append(f"  {row.status:8}{row.name:{width}}  {shapes}{note}")
        return "\n".join(lines)


def load(
    model: keras.Model, source: str | os.PathLike[str], *, grid: Grid | None = None
) -> Report:
    """Fills `model` with a checkpoint's tensors (3.2), in any dialect.

    Positions are resized to the model's grid, and the first kernel is adapted to its
    channels. The model keeps its GELU and its epsilons. If the file requires different
    ones, a warning lists them.

    Args:
        model: a model of this library.
        source: a file, an index of shards, or the folder that contains them;
            "file.npz:img" is one tower of a big_vision file. Also a repository of the
            Hugging Face Hub, "hf://ORG/NAME[@REVISION]" or "timm:NAME", or the URL of
            a weights file.
        grid: (rows, columns) of the file's position table, if it is neither the
            model's grid nor a square.

    Returns:
        A `Report` with one row per tensor. "fresh" tensors (in a head with a different
        number of classes) keep their values.

    Raises:
        FileNotFoundError: if the file does not exist.
        DownloadError: if it cannot be downloaded.
        ValueError: if the file is damaged, contains pickled objects or NaNs, or has a
            different architecture, or if the model has LoRA or is quantized. The model
            is then unchanged.
    """
    heads = {layer.num_heads for layer in model.layers if hasattr(layer, "num_heads")}
    known = heads.pop() if len(heads) == 1 else None
    fold = getattr(facts_of(model).config, "layer_scale", None) is None
    parsed = read(source, grid=grid, num_heads=known, fold=fold)
    report = assign(model, parsed)
    _warn_of_numerics(config_of(model), parsed)
    return report


def _warn_of_numerics(config: Any, parsed: ParsedCheckpoint) -> None:
    """Warns if the file requires another GELU or other epsilons than the model's."""
    ours = _computed_with(config)
    differing = [
        f"{field}={value!r}"
        for field, value in _computed_with(parsed.config).items()
        if ours.get(field, value) != value
    ]
    if differing:
        warn(
            f"{parsed.where} requires {', '.join(differing)} ({parsed.dialect}), "
            "which this model does not use. keras_vit.from_checkpoint builds a model "
            "that does",
        )


def assign(model: keras.Model, parsed: ParsedCheckpoint, **published: Any) -> Report:
    """`load` for a checkpoint that has been read.

    A `VisionModel` also receives the checkpoint's preprocessing, labels and provenance.
    `published` contains the fields of `Provenance` that only a tag determines.
    """
    check_unadapted(model, "load first, then enable them")
    _check_pre_logits(model, parsed)
    tensors = parsed.tensors
    rows: list[Row] = []
    values: list[tuple[Any, np.ndarray]] = []
    for entry in variables.entries(model):
        found = [tensors[name] for name in entry.names if name in tensors]
        if _is_fresh(entry, found, tensors):
            rows += [
                Row(name, "fresh", tensors[name].shape, entry.shape, "new head")
                if name in tensors
                else Row(name, "fresh", None, entry.shape)
                for name in entry.names
            ]
            continue
        if len(found) < len(entry.names):
            missing = next(name for name in entry.names if name not in tensors)
            raise _mismatch(model, parsed, f"{missing} is missing")
        for i, (name, tensor) in enumerate(zip(entry.names, found, strict=True)):
            found[i], row = _fit(model, parsed, name, tensor, entry.shape)
            rows.append(row)
            if not np.isfinite(found[i]).all():
                raise ValueError(
                    "Expected finite weights. Received: NaN or infinity in "
                    f"{name} of {parsed.where}"
                )
        values.append((entry.variable, entry.merge(found)))
    rows += _unused(model, parsed, {row.name for row in rows})
    for variable, value in values:
        variable.assign(value)
    loaded = {row.name for row in rows if row.status == "loaded"}
    zero_head = "head/kernel" in loaded and not tensors["head/kernel"].any()
    report = Report(
        parsed.where,
        tuple(rows),
        zero_head,
        parsed.dialect,
        _numerics(parsed),
        parsed.preprocessing,
    )
    if isinstance(model, VisionModel):
        model.facts = dataclasses.replace(
            model.facts,
            preprocessing=_for_channels(parsed, model.inputs[0].shape[-1]),
            labels=(parsed.labels if "head/bias" in loaded else None) or model.labels,
            provenance=_provenance(report, parsed, published),
        )
    return report


def _provenance(
    report: Report, parsed: ParsedCheckpoint, published: Mapping[str, Any]
) -> Provenance:
    """The report without shapes, as it is stored in a model."""
    source = parsed.source
    if source is not None:
        fields = ("revision", "file", "license")
        published = {at: getattr(source, at) for at in fields} | dict(published)
    return Provenance(
        source=report.source,
        sha256=parsed.sha256,
        dialect=report.dialect,
        numerics=report.numerics,
        loaded=len(report.names("loaded")),
        resized=tuple(report.names("resized")),
        fresh=tuple(report.names("fresh")),
        left_out=tuple(report.names("unused")),
        **published,
    )


def _for_channels(parsed: ParsedCheckpoint, channels: int) -> Preprocessing:
    """The checkpoint's preprocessing for images with this number of channels."""
    preprocessing = parsed.preprocessing
    changes: dict[str, Any] = {}
    for name in ("mean", "std"):
        values = getattr(preprocessing, name)
        try:
            per_channel(values, channels, name)
        except ValueError:
            changes[name] = (sum(values) / len(values),)
    if changes:
        warn(
            f"{parsed.where} has a normalization for {parsed.num_channels} channels, "
            f"but the model has {channels}. The averages over the channels are used: "
            f"{changes}. Set model.preprocessing to change this",
        )
    return dataclasses.replace(preprocessing, **changes)


def _numerics(parsed: ParsedCheckpoint) -> tuple[str, ...]:
    """The GELU and the epsilons that the file requires, in words."""
    computed = _computed_with(parsed.config)
    words = [f"{key}={value!r}" for key, value in computed.items()]
    return (f"{parsed.numerics} numerics", *words, *parsed.notes)


def _computed_with(config: CheckpointConfig) -> dict[str, Any]:
    """The GELU and the epsilons of a config, and those of a hybrid's stem."""
    fields = {field: getattr(config, field) for field in config.numerics_by("paper")}
    stem = fields.pop("resnet", None)
    told = {field: fields[field] for field in sorted(fields)}
    return told if stem is None else told | _computed_with(stem)


def _is_fresh(
    entry: variables.Entry, found: list[np.ndarray], tensors: Mapping[str, np.ndarray]
) -> bool:
    """Whether the entry belongs to a classifier that the file cannot fill."""
    name = entry.names[0]
    if name.startswith("head/"):
        return not found or found[0].shape[-1:] != entry.shape[-1:]
    if name.startswith("pre_logits/"):
        return not found and "head/kernel" not in tensors
    return False


def _check_pre_logits(model: keras.Model, parsed: ParsedCheckpoint) -> None:
    """Raises if the file's head needs the `pre_logits` that the model does not have."""
    tensors = parsed.tensors
    ours = {layer.name: layer for layer in model.layers}
    if (
        "pre_logits/kernel" in tensors
        and "pre_logits" not in ours
        and "head" in ours
        and "head/kernel" in tensors
        and tensors["head/kernel"].shape[-1] == ours["head"].units
        and tensors["head/kernel"].any()
    ):
        raise ValueError(
            "Expected the hidden layer that this file's head was trained with. "
            f"Received: model={model.name!r} without pre_logits, {parsed.where} with "
            f"pre_logits/kernel {tensors['pre_logits/kernel'].shape}. Build with "
            f"representation_size={tensors['pre_logits/bias'].shape[0]} to keep both, "
            "or with a different number of classes for a new head"
        )


def _fit(
    model: keras.Model,
    parsed: ParsedCheckpoint,
    name: str,
    tensor: np.ndarray,
    shape: tuple[int, ...],
) -> tuple[np.ndarray, Row]:
    """A tensor in the model's shape, and its row in the report."""
    folder, _, table = name.rpartition("/")
    if folder.startswith("Transformer/posembed_"):
        layer = model.get_layer(folder.removeprefix("Transformer/"))
        if table == "pos_embedding":
            return _fit_positions(model, parsed, layer, name, tensor, shape)
        if table != "prefix_embedding" and _same_but(1, tensor.shape, shape):
            return _fit_axis(name, tensor, shape)
    if tensor.shape == shape:
        return tensor, Row(name, "loaded", shape, shape)
    first = name in ("embedding/kernel", "conv_root/kernel")
    if first and _same_but(2, tensor.shape, shape):
        note = f"{tensor.shape[2]} to {shape[2]} channels"
        row = Row(name, "resized", tensor.shape, shape, note)
        return adapt_channels(tensor, shape[2]), row
    raise _mismatch(model, parsed, f"{name} is {tensor.shape}, not {tuple(shape)}")


def _same_but(axis: int, file: tuple[int, ...], model: tuple[int, ...]) -> bool:
    return len(file) == len(model) and all(
        i == axis or a == b for i, (a, b) in enumerate(zip(file, model, strict=True))
    )


def _fit_positions(
    model: keras.Model,
    parsed: ParsedCheckpoint,
    layer: AddPositionEmbs,
    name: str,
    table: np.ndarray,
    shape: tuple[int, ...],
) -> tuple[np.ndarray, Row]:
    prefix, new_grid = layer.num_prefix_tokens, layer.grid
    cls = parsed.tensors.get("cls")
    if not _same_but(1, table.shape, shape):
        raise _mismatch(model, parsed, f"{name} is {table.shape}, not {shape}")
    bare = getattr(layer, "num_bare_tokens", 0)
    if (0 if cls is None else cls.shape[1]) != prefix + bare:
        ours = f"{prefix} class tokens" if prefix else "no class token"
        what = f"{name} is {table.shape}, the model has {ours}"
        raise _mismatch(model, parsed, what)
    if new_grid is None and table.shape != shape:
        what = f"{name} is {table.shape}, and the model's positions have no grid"
        raise _mismatch(model, parsed, what)
    positions = table.shape[-2] - prefix
    old_grid = position_grid(positions, new_grid, parsed.grid, parsed.where)
    if new_grid is None or old_grid == new_grid:
        return table, Row(name, "loaded", shape, shape)
    note = f"grid {old_grid[0]}x{old_grid[1]} to {new_grid[0]}x{new_grid[1]}"
    row = Row(name, "resized", table.shape, shape, note)
    return resize_position_embeddings(table, old_grid, new_grid, prefix), row


def _fit_axis(
    name: str, table: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, Row]:
    """Resizes the position table of one axis (D.4, 2-D)."""
    old, new = table.shape[1], shape[1]
    if old == new:
        return table, Row(name, "loaded", shape, shape)
    row = Row(name, "resized", table.shape, shape, f"{old} to {new} places")
    return resize_position_embeddings(table, (1, old), (1, new), 0), row


def position_grid(
    positions: int, model_grid: Grid | None, grid: Grid | None, where: str
) -> Grid:
    """The (rows, columns) of a file's position table.

    This is `grid` if given, else the model's grid if the counts are equal, else a
    square.

    Raises:
        ValueError: if none of these has `positions` cells.
    """
    side = round(max(positions, 0) ** 0.5)
    for candidate in (
        grid,
        None if grid else model_grid,
        None if grid else (side, side),
    ):
        if candidate is not None and candidate[0] * candidate[1] == positions > 0:
            return candidate[0], candidate[1]
    raise ValueError(
        f"Expected a position table with a known grid: {positions} positions are "
        "neither the model's grid nor a square. "
        f"Received: grid={grid}, model's grid={model_grid}, {where}. "
        "Set grid=(rows, columns) to the file's grid"
    )


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Adapts a first kernel to other channels: [P, P, C, D] -> [P, P, channels, D].

    For more channels, the file's channels are repeated in turn, and each is divided by
    its number of copies. For fewer, each is the file's sum divided by their number. In
    both cases an image with equal channels has the same embedding as before.
    """
    old = kernel.shape[2]
    if channels < old:
        mean = kernel.sum(axis=2, keepdims=True) / channels
        return np.repeat(mean, channels, axis=2)
    source = np.arange(channels) % old
    copies = np.bincount(source)[source].astype(kernel.dtype)
    return np.asarray(kernel[:, :, source] / copies[:, None])


def _unused(model: keras.Model, parsed: ParsedCheckpoint, used: set[str]) -> list[Row]:
    """Rows for classifier tensors that the model lacks; raises for other tensors."""
    rows = []
    for name in sorted(set(parsed.tensors) - used):
        if not name.startswith(("head/", "pre_logits/", "MAPHead_0/")):
            raise _mismatch(model, parsed, f"the model has no {name}")
        shape = parsed.tensors[name].shape
        rows.append(Row(name, "unused", shape, None, "classifier dropped"))
    return rows


def _mismatch(model: keras.Model, parsed: ParsedCheckpoint, what: str) -> ValueError:
    """The error for a file of a different architecture; describes both."""
    shapes = {
        name: np.broadcast_to(np.float32(0), entry.shape)
        for entry in variables.entries(model)
        for name in entry.names
    }
    return ValueError(
        f"Expected a checkpoint of the model's architecture: {what}. Received: "
        f"model={model.name!r} ({_words(infer(shapes, 'the model').config)}), "
        f"{parsed.where} ({_words(parsed.config)}). keras_vit.from_checkpoint "
        "builds the model for a file"
    )


def _words(config: CheckpointConfig) -> str:
    """The sizes, after the variant's name if they match a variant."""
    sizes = {key: size for key, size in sizes_of(config).items() if key != "resnet"}
    if classifier := getattr(config, "classifier", None):
        sizes["classifier"] = classifier
    told = ", ".join(f"{key}={size!r}" for key, size in sizes.items())
    return f"{variant_of(config) or family_of(config).title}: {told}"
