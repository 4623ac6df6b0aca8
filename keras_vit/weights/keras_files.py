"""Files of Keras's `model.save_weights`, for a model with a known config.

They name layers by class and number and contain no architecture. A model with that
config and the file's image size loads the file through Keras. Its tensors are then
treated like those of any other checkpoint: positions are resized, and a new head is
possible.
"""

import os
import re
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from keras_vit.configs import ResNetConfig, ViTConfig
from keras_vit.families import family_of
from keras_vit.files import BROKEN_ZIP
from keras_vit.layers.encoder import uninitialized
from keras_vit.weights import variables
from keras_vit.weights.names import is_of_keras
from keras_vit.weights.parsed import Grid, ParsedCheckpoint
from keras_vit.weights.tensors import open_tensors

_PATCHES = "layers/patch_embedding/projection/vars/0"
_ROOT = "layers/std_conv2d/vars/0"
_POSITIONS = "layers/add_position_embs/vars/0"
_TOKENS = "layers/class_token/vars/0"
_SEED = "/seed_generator/"
_DENSE = re.compile(r"layers/dense(?:_([0-9]+))?/vars/1")
REMEDY = "Build the model as it was saved and call model.load_weights(path)"


def load_model(path: str | os.PathLike[str], compiled: bool = False) -> keras.Model:
    """Loads a model that Keras saved, after checking every byte of the file.

    If `compiled` is true, the optimizer is loaded, too.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is damaged or contains Python code.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            "Expected a model that Keras saved. Received: "
            f"{str(path)!r}, which does not exist"
        )
    damage = _damage(path) if path.suffix == ".keras" else None
    if damage is None:
        try:
            return keras.models.load_model(path, compile=compiled)
        except (ValueError, TypeError, OSError, KeyError, *BROKEN_ZIP) as error:
            damage = str(error)[:300]
            if "unsafe_deserialization" in str(error) or "safe_mode" in str(error):
                damage = "it contains Python code, such as a lambda, which is not run"
    raise ValueError(
        f"Expected a model that Keras saved. Received: {str(path)!r} ({damage}). "
        "Restore the file from a copy, or save the model again"
    )


def _damage(path: Path) -> str | None:
    """The problem with the archive of a .keras file; None if there is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except (OSError, NotImplementedError, *BROKEN_ZIP) as error:
        return f"a damaged archive: {error}"
    return None if member is None else f"damaged: the CRC of {member} differs"


def read(
    path: Path, config: ViTConfig | ResNetConfig, size: tuple[int, int] | None
) -> ParsedCheckpoint | None:
    """Reads a file of `model.save_weights` through a model of `config`.

    Args:
        path: any checkpoint file.
        config: the saved model's config.
        size: a possible image size (H, W) of the saved model, in pixels, in addition
            to square ones.

    Returns:
        The file's tensors under canonical names; None for any other kind of file.

    Raises:
        ValueError: if the file is damaged or its model has a different config.
    """
    if not path.is_file() or not _is_h5(path):
        return None
    with open_tensors(path) as file:  # Checked before Keras opens it.
        if not is_of_keras(file):
            return None
        shapes = {name: file.shape(name) for name in file if _SEED not in name}
        for name in shapes:
            if not np.isfinite(file[name]).all():
                raise ValueError(
                    "Expected finite weights. Received: NaN or infinity in "
                    f"{name} of {path}"
                )
    try:
        return _read(path, config, size, shapes)
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"Expected a model.save_weights file for {config}. Received: {path} "
            f"({str(error)[:300]}). {REMEDY}"
        ) from error


def _is_h5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def _read(
    path: Path,
    config: ViTConfig | ResNetConfig,
    size: tuple[int, int] | None,
    shapes: Mapping[str, tuple[int, ...]],
) -> ParsedCheckpoint:
    channels = shapes[_ROOT if _ROOT in shapes else _PATCHES][2]
    classes = _classes(config, shapes)
    positions, grid, image_size = None, None, (224, 224)
    family = family_of(config)
    if family.has_patches:
        grid = _grid(shapes, size, config.stride)
        positions = grid[0] * grid[1]
        image_size = (grid[0] * config.stride, grid[1] * config.stride)
    with uninitialized():
        model = family.build(
            config, image_size=image_size, num_classes=classes, num_channels=channels
        )
    _load(model, path, len(shapes))
    tensors = {
        name: tensor
        for entry in variables.entries(model)
        for name, tensor in entry.split().items()
    }
    return ParsedCheckpoint(
        where=str(path),
        tensors=tensors,
        config=config,
        num_channels=channels,
        num_classes=classes,
        num_positions=positions,
        grid=grid,
        dialect="keras",
    )


def _load(model: keras.Model, path: Path, count: int) -> None:
    """Loads the file; raises unless it contains exactly the model's weights."""
    if count != len(model.weights):
        raise ValueError(f"it has {count} weights, the model {len(model.weights)}")
    for weight in model.weights:
        weight.assign(np.full(weight.shape, np.nan, "float32"))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Keras warns about its own containers that it skips; weights are checked here.
        warnings.filterwarnings("ignore", "Skipping nested container")
        copy = path
        if not path.name.endswith(".weights.h5"):  # Keras requires this suffix.
            copy = Path(folder) / "copy.weights.h5"
            shutil.copyfile(path, copy)
        model.load_weights(copy)
    for weight in model.weights:
        if np.isnan(keras.ops.convert_to_numpy(weight)).any():
            raise ValueError(f"it does not contain {weight.path}")


def _classes(
    config: ViTConfig | ResNetConfig, shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    """The outputs of the last dense layer that is not `pre_logits`."""
    dense = {
        int(match[1] or 0): shape[0]
        for name, shape in shapes.items()
        if (match := _DENSE.fullmatch(name))
    }
    hidden = int(config != config.with_linear_head())
    units = [dense[number] for number in sorted(dense)][hidden:]
    return units[-1] if units else None


def _grid(
    shapes: Mapping[str, tuple[int, ...]], size: tuple[int, int] | None, pixels: int
) -> Grid:
    tokens = shapes[_TOKENS][1] if _TOKENS in shapes else 0
    count = shapes[_POSITIONS][-2] - tokens
    side = round(max(count, 0) ** 0.5)
    asked = (0, 0) if size is None else (-(-size[0] // pixels), -(-size[1] // pixels))
    for rows, columns in (asked, (side, side)):
        if rows * columns == count > 0:
            return rows, columns
    raise ValueError(f"{count} positions are neither a square nor those of {size}")
