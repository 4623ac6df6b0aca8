"""Load a checkpoint into a model, save one from it, and report tensor by tensor.

The rules are those of vit_jax/checkpoint.py's `load_pretrained` (section 3.2), made
strict: the head may be new, `pre_logits` may be dropped, positions are resized, the
first kernel is adapted to other channels, and anything else that does not fit raises
before a single variable has changed.
"""

import collections
import dataclasses
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_vit import configs
from keras_vit.layers import AddPositionEmbs, resize_position_embeddings
from keras_vit.layers.embeddings import check_unadapted, quantized
from keras_vit.weights import names
from keras_vit.weights.files import replacing
from keras_vit.weights.tensors import TensorFile, open_tensors

Grid: TypeAlias = tuple[int, int]


class Canonical(Mapping[str, np.ndarray]):
    """The tensors of a file under their canonical names, each read once."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._names = names.canonical(file)
        self._read: dict[str, np.ndarray] = {}

    def __enter__(self) -> "Canonical":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._read:
            self._read[name] = self._file[self._names[name]]
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read(source: str | os.PathLike[str]) -> Canonical:
    """Opens a checkpoint under canonical names; see `tensors.open_tensors`."""
    return Canonical(open_tensors(source))


@dataclasses.dataclass(frozen=True)
class Row:
    """One tensor: its canonical name, what became of it, and its shapes."""

    name: str
    status: str  # "loaded", "resized", "fresh" or "unused".
    file_shape: tuple[int, ...] | None  # None: not in the file.
    model_shape: tuple[int, ...] | None  # None: not in the model.
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What `load` did, tensor by tensor; prints as a table."""

    source: str
    rows: tuple[Row, ...]
    zero_head: bool = False  # The file's head was loaded and is all zeros.

    def names(self, status: str) -> list[str]:
        """The canonical names of the tensors with this status."""
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


def config_beside(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `config.json` beside a checkpoint: `ViTConfig` fields, `mean`, `std`, `grid`.

    Returns:
        A dict, empty where there is no such file.

    Raises:
        ValueError: if it is not a JSON object of these fields.
    """
    file = Path(path).parent / "config.json"
    if not file.is_file():
        return {}
    known = {field.name for field in dataclasses.fields(configs.ViTConfig)}
    known |= {"mean", "std", "grid"}
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(
            f"Expected a JSON object. Received: {str(file)!r} ({error})"
        ) from error
    if not isinstance(config, dict) or config.keys() - known:
        raise ValueError(
            f"Expected a JSON object with fields among {', '.join(sorted(known))}. "
            f"Received: {str(file)!r} with {json.dumps(config)[:200]}"
        )
    return config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contents:
    """What a checkpoint holds, inferred from its tensors."""

    config: configs.ViTConfig
    num_channels: int
    num_classes: int | None
    num_positions: int  # Of patches, without prefix tokens.


def infer(tensors: Mapping[str, np.ndarray], where: str) -> Contents:
    """Reads the architecture off a checkpoint's tensors.

    Raises:
        ValueError: if they are not those of a ViT.
    """
    if any(re.match(r"(conv_root|gn_root|block\d+)/", name) for name in tensors):
        raise ValueError(
            "Expected the tensors of a ViT. Received: the ResNet stem of a hybrid "
            f"(conv_root, block1/...) in {where}"
        )
    try:
        patch_size, _, num_channels, hidden_size = tensors["embedding/kernel"].shape
        block = "Transformer/encoderblock_0"
        _, num_heads, _ = tensors[
            f"{block}/MultiHeadDotProductAttention_0/query/kernel"
        ].shape
        mlp_dim = tensors[f"{block}/MlpBlock_0/Dense_0/kernel"].shape[1]
        positions = tensors[names.POSITIONS].shape[-2]
    except (KeyError, ValueError) as error:
        raise ValueError(
            "Expected the tensors of a ViT under the official names (embedding/kernel, "
            "Transformer/encoderblock_0/..., see keras_vit/weights/names.py). "
            f"Received: {where} with {', '.join(sorted(tensors)[:6])}, ... ({error})"
        ) from error
    blocks = {
        int(match[1])
        for name in tensors
        if (match := re.match(r"Transformer/encoderblock_(\d+)/", name))
    }
    config = configs.ViTConfig(
        patch_size=patch_size,
        num_layers=len(blocks),
        hidden_size=hidden_size,
        mlp_dim=mlp_dim,
        num_heads=num_heads,
        classifier="token" if "cls" in tensors else "gap",
        representation_size=(
            tensors["pre_logits/bias"].shape[0]
            if "pre_logits/bias" in tensors
            else None
        ),
    )
    head = tensors["head/bias"].shape[0] if "head/bias" in tensors else None
    return Contents(
        config=config,
        num_channels=num_channels,
        num_classes=head,
        num_positions=positions - config.num_prefix_tokens,
    )


def load(
    model: keras.Model, source: str | os.PathLike[str], *, grid: Grid | None = None
) -> Report:
    """Fills `model` with the tensors of a checkpoint file.

    Args:
        model: a ViT of this library.
        source: an official npz, in either numbering, with or without the prefix
            `opt/target/` or `params/`.
        grid: (rows, columns) of the file's position table, where it is neither the
            model's nor square.

    Returns:
        A `Report`, tensor by tensor. "fresh" tensors (a head of another class count)
        keep the values they had.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, holds pickled objects or NaNs, or is of
            another architecture; the model is then unchanged.
    """
    grid = grid or config_beside(source).get("grid")
    with read(source) as tensors:
        return assign(model, tensors, str(source), grid=grid)


def assign(
    model: keras.Model,
    tensors: Mapping[str, np.ndarray],
    where: str,
    *,
    grid: Grid | None = None,
) -> Report:
    """`load` for tensors already under their canonical names."""
    check_unadapted(model, "load first, then enable them")
    _check_pre_logits(model, tensors, where)
    rows: list[Row] = []
    values: list[tuple[Any, np.ndarray]] = []
    for entry in names.entries(model):
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
            raise _mismatch(model, tensors, where, f"{missing} is missing")
        for i, (name, tensor) in enumerate(zip(entry.names, found, strict=True)):
            found[i], row = _fit(model, tensors, where, name, tensor, entry.shape, grid)
            rows.append(row)
            if not np.isfinite(found[i]).all():
                raise ValueError(
                    "Expected finite weights. Received: NaN or infinity in "
                    f"{name} of {where}"
                )
        values.append((entry.variable, entry.merge(found)))
    rows += _unused(model, tensors, where, {row.name for row in rows})
    for variable, value in values:
        variable.assign(value)
    loaded = {row.name for row in rows if row.status == "loaded"}
    zero_head = "head/kernel" in loaded and not tensors["head/kernel"].any()
    return Report(where, tuple(rows), zero_head)


def _is_fresh(
    entry: names.Entry, found: list[np.ndarray], tensors: Mapping[str, np.ndarray]
) -> bool:
    """Whether the entry belongs to a classifier that the file cannot fill."""
    name = entry.names[0]
    if name.startswith("head/"):
        return not found or found[0].shape[-1] != entry.shape[-1]
    if name.startswith("pre_logits/"):
        return not found and "head/kernel" not in tensors
    return False


def _check_pre_logits(
    model: keras.Model, tensors: Mapping[str, np.ndarray], where: str
) -> None:
    """A trained head that stood behind `pre_logits` means nothing without it."""
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
            "Expected the hidden layer this file's head was trained behind. Received: "
            f"model={model.name!r} without pre_logits, {where} with "
            f"pre_logits/kernel {tensors['pre_logits/kernel'].shape}. Build with "
            f"representation_size={tensors['pre_logits/bias'].shape[0]} to keep both, "
            "or with another number of classes for a new head"
        )


def _fit(
    model: keras.Model,
    tensors: Mapping[str, np.ndarray],
    where: str,
    name: str,
    tensor: np.ndarray,
    shape: tuple[int, ...],
    grid: Grid | None,
) -> tuple[np.ndarray, Row]:
    """A tensor in the model's shape, and its row of the report."""
    if name == names.POSITIONS:
        return _fit_positions(model, tensors, where, tensor, shape, grid)
    if tensor.shape == shape:
        return tensor, Row(name, "loaded", shape, shape)
    if name == "embedding/kernel" and _same_but_channels(tensor.shape, shape):
        note = f"{tensor.shape[2]} to {shape[2]} channels"
        row = Row(name, "resized", tensor.shape, shape, note)
        return adapt_channels(tensor, shape[2]), row
    raise _mismatch(
        model, tensors, where, f"{name} is {tensor.shape}, not {tuple(shape)}"
    )


def _same_but_channels(file: tuple[int, ...], model: tuple[int, ...]) -> bool:
    return len(file) == 4 and (*file[:2], file[3]) == (*model[:2], model[3])


def _fit_positions(
    model: keras.Model,
    tensors: Mapping[str, np.ndarray],
    where: str,
    table: np.ndarray,
    shape: tuple[int, ...],
    grid: Grid | None,
) -> tuple[np.ndarray, Row]:
    (layer,) = (at for at in model.layers if isinstance(at, AddPositionEmbs))
    prefix, new_grid = layer.num_prefix_tokens, layer.grid
    if table.shape[-1] != shape[-1] or ("cls" in tensors) != bool(prefix):
        ours = "a class token" if prefix else "no class token"
        what = f"{names.POSITIONS} is {table.shape}, the model has {ours}"
        raise _mismatch(model, tensors, where, what)
    if new_grid is None and table.shape != shape:
        what = f"{names.POSITIONS} is {table.shape}, and the model's has no grid"
        raise _mismatch(model, tensors, where, what)
    old_grid = position_grid(table.shape[-2] - prefix, new_grid, grid, where)
    if new_grid is None or old_grid == new_grid:
        return table, Row(names.POSITIONS, "loaded", shape, shape)
    table = resize_position_embeddings(table, old_grid, new_grid, prefix)
    note = f"grid {old_grid[0]}x{old_grid[1]} to {new_grid[0]}x{new_grid[1]}"
    row = Row(names.POSITIONS, "resized", tensors[names.POSITIONS].shape, shape, note)
    return table, row


def position_grid(
    positions: int, model_grid: Grid | None, grid: Grid | None, where: str
) -> Grid:
    """The (rows, columns) of a file's position table.

    `grid` where given; the model's where the counts are equal; else a square.

    Raises:
        ValueError: if none of these holds `positions`.
    """
    side = round(positions**0.5)
    for candidate in (
        grid,
        None if grid else model_grid,
        None if grid else (side, side),
    ):
        if candidate is not None and candidate[0] * candidate[1] == positions:
            return candidate[0], candidate[1]
    raise ValueError(
        f"Expected a position table of a known grid: {positions} positions are neither "
        f"the model's grid nor a square. Received: grid={grid}, model's "
        f"grid={model_grid}, {where}. Give grid=(rows, columns) of the file"
    )


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """A first kernel for other images: [P, P, C, D] -> [P, P, channels, D].

    More channels repeat the file's in turn, each divided by its number of copies;
    fewer share their mean. Either way an image whose channels are all equal is
    embedded as before.
    """
    old = kernel.shape[2]
    if channels < old:
        mean = kernel.sum(axis=2, keepdims=True) / channels
        return np.repeat(mean, channels, axis=2)
    source = np.arange(channels) % old
    copies = np.bincount(source)[source].astype(kernel.dtype)
    return np.asarray(kernel[:, :, source] / copies[:, None])


def _unused(
    model: keras.Model, tensors: Mapping[str, np.ndarray], where: str, used: set[str]
) -> list[Row]:
    """Rows of the file's classifier tensors the model has no place for; else raises."""
    rows = []
    for name in sorted(set(tensors) - used):
        if not name.startswith(("head/", "pre_logits/")):
            raise _mismatch(model, tensors, where, f"{name} has no place in the model")
        rows.append(
            Row(name, "unused", tensors[name].shape, None, "classifier dropped")
        )
    return rows


def _mismatch(
    model: keras.Model, tensors: Mapping[str, np.ndarray], where: str, what: str
) -> ValueError:
    """The error of a file that is of another architecture, with both described."""
    ours = {name: entry for entry in names.entries(model) for name in entry.names}
    shapes = {name: np.broadcast_to(np.float32(0), ours[name].shape) for name in ours}
    try:
        file = _words(infer(tensors, where).config)
    except ValueError as error:
        file = str(error)
    return ValueError(
        f"Expected a checkpoint of the model's architecture: {what}. Received: "
        f"model={model.name!r} ({_words(infer(shapes, 'the model').config)}), "
        f"{where} ({file}). keras_vit.from_checkpoint builds the model a file needs"
    )


def _words(config: configs.ViTConfig) -> str:
    variant = next(
        (
            name
            for name, row in configs.VIT_VARIANTS.items()
            if all(
                getattr(row, field) == getattr(config, field)
                for field in ("patch_size", "num_layers", "hidden_size", "mlp_dim")
            )
        ),
        "a ViT",
    )
    return (
        f"{variant}: patch_size={config.patch_size}, num_layers={config.num_layers}, "
        f"hidden_size={config.hidden_size}, mlp_dim={config.mlp_dim}, "
        f"num_heads={config.num_heads}, classifier={config.classifier!r}"
    )


def save(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str = "npz",
    *,
    numbering: str = "pre-linen",
) -> None:
    """Writes a model's weights as an official npz, whole or not at all.

    LoRA is merged into the kernels.

    Args:
        model: a ViT of this library.
        path: of the file to write.
        format: "npz".
        numbering: "pre-linen", as the released files, or "linen", as today's code.

    Raises:
        ValueError: if `format` or `numbering` is unknown, or the model is quantized or
            has weights the format has no names for.
        OSError: if the disk is full or the folder not writable.
    """
    if format != "npz" or numbering not in ("pre-linen", "linen"):
        raise ValueError(
            "Expected format='npz' and numbering='pre-linen' or 'linen'. "
            f"Received: format={format!r}, numbering={numbering!r}"
        )
    if found := quantized(model):
        raise ValueError(
            "Expected a model in floating point. Received: "
            f"model={model.name!r}, quantized in {', '.join(found[:3])}. Save "
            "before quantizing, or use model.save('model.keras')"
        )
    entries = [(layer, list(names.of_layer(layer))) for layer in model.layers]
    unnamed = [layer.name for layer, named in entries if layer.weights and not named]
    if unnamed:
        raise ValueError(
            f"Expected a model of ViT layers alone. Received: model={model.name!r} "
            f"with layers that format={format!r} has no names for: "
            f"{', '.join(unnamed)}. Use model.save('model.keras')"
        )
    _warn_of_grid(model, path)
    table = names.PRE_LINEN if numbering == "pre-linen" else {}
    tensors = {
        names.renumber(name, table): tensor
        for _, named in entries
        for entry in named
        for name, tensor in entry.split().items()
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **tensors)


def _warn_of_grid(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """The official format has no grid: one that could pass for a square is named."""
    for layer in model.layers:
        if not isinstance(layer, AddPositionEmbs) or layer.grid is None:
            continue
        rows, columns = layer.grid
        if rows != columns and round((rows * columns) ** 0.5) ** 2 == rows * columns:
            warnings.warn(
                f"The official format does not say that positions are of a {rows}x"
                f"{columns} grid: read {path} back with grid={layer.grid}",
                stacklevel=3,
            )
