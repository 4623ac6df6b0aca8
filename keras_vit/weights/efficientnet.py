"""The published EfficientNet checkpoints, Noisy Student's B0 to B7 and L2 among them.

They are TensorFlow 1 checkpoints of tensorflow/tpu, models/official/efficientnet:
`noisy_student_efficientnet-b0.tar.gz` and its like hold a directory with a
`model.ckpt`. A tensor is `efficientnet-b0/blocks_3/conv2d_1/kernel`, say, and its
moving average that and `/ExponentialMovingAverage`; of L2 the averages alone were
published.

Sources of the layout: efficientnet_model.py and utils.py (`get_ema_vars`) there, and
that repository's issue 818, which lists B1's and L2's tensors; keras-team/keras,
keras/applications/efficientnet_weight_update_util.py; lukemelas/EfficientNet-PyTorch,
tf_to_pytorch/convert_tf_to_pt/load_tf_weights.py.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.weights.checkpoint import Report, Row

AVERAGE = "/ExponentialMovingAverage"
STEM = "stem/conv2d/kernel"

_LAYER = re.compile(r"(stem|head|blocks_\d+)_(se_)?(.+)")
_TENSOR = re.compile(
    r"(stem|head|blocks_\d+)/.*(kernel|bias|gamma|beta|moving_mean|moving_variance)"
)


def load_efficientnet(model: keras.Model, source: str | os.PathLike[str]) -> Report:
    """Fills `model` with an official checkpoint, as of Table 2's Noisy Student.

    The averaged values are loaded where the file has them, the moving statistics'
    included, as its own evaluation does.

    Args:
        model: see `keras_vit.models.efficientnet`.
        source: the checkpoint's directory, or its path without the `.index`.

    Returns:
        A `Report`, tensor by tensor. A head of another number of classes is "fresh",
        and keeps the values it had; "unused" is the file's where the model has none.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        ValueError: if it is damaged, holds NaNs, or is of another architecture; the
            model is then unchanged.
    """
    from tensorflow import errors, train  # Only a TensorFlow checkpoint needs it.

    prefix = _prefix(source)
    try:
        reader = train.load_checkpoint(prefix)
        shapes = _shapes(reader.get_variable_to_shape_map(), prefix)
        wanted = dict(_entries(model))
        rows = _rows(model, wanted, shapes, prefix)
        values = {
            row.name: reader.get_tensor(shapes[row.name][0])
            for row in rows
            if row.status == "loaded"
        }
    except (errors.OpError, RuntimeError, IndexError) as error:
        raise ValueError(
            f"Expected a whole TensorFlow checkpoint. Received: {prefix!r} ({error}). "
            "Unpack the archive again, or download it again"
        ) from error
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise ValueError(
                f"Expected finite weights. Received: NaN or infinity in {name} of "
                f"{prefix!r}"
            )
    for name, value in values.items():
        wanted[name].assign(value)
    return Report(prefix, tuple(rows))


def _prefix(source: str | os.PathLike[str]) -> str:
    """The path without `.index`; in a directory the only one, or the latest."""
    path = Path(source)
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) > 1:
            from tensorflow import train

            found = [Path(f"{train.latest_checkpoint(str(path))}.index")]
    else:
        found = [Path(f"{str(path).removesuffix('.index')}.index")]
    if not found or not found[0].is_file():
        raise FileNotFoundError(
            "Expected a TensorFlow checkpoint: its directory, or its path without "
            f"'.index', e.g. 'efficientnet-b0/model.ckpt'. Received: {str(source)!r}"
        )
    return str(found[0]).removesuffix(".index")


def _shapes(
    stored: Mapping[str, list[int]], prefix: str
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name without the scope: (name in the file, shape).

    The average's where there is one; the optimizer's slots and the global step are
    left out.
    """
    tensors = {name.removesuffix(AVERAGE): name for name in sorted(stored)}
    scopes = [name.removesuffix(STEM) for name in tensors if name.endswith(STEM)]
    if len(scopes) != 1:
        raise ValueError(
            "Expected the checkpoint of one EfficientNet, with a tensor "
            f"'efficientnet-b0/{STEM}' or the like. Received: {prefix!r} with "
            f"{len(scopes)} of them among {', '.join(sorted(stored)[:4])}, ..."
        )
    scope = scopes[0]
    return {
        name.removeprefix(scope): (original, tuple(stored[original]))
        for name, original in tensors.items()
        if name.startswith(scope) and _TENSOR.fullmatch(name.removeprefix(scope))
    }


def _entries(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """The official name of each variable, without the scope, and the variable."""
    for layer in model.layers:
        for variable in layer.weights:
            match = _LAYER.fullmatch(layer.name)
            if match is None:
                raise ValueError(
                    "Expected a model of keras_vit.models.efficientnet. Received: "
                    f"model={model.name!r} with a layer {layer.name!r}"
                )
            part, se, name = match[1], "se/" if match[2] else "", match[3]
            depthwise = "depthwise_" if name == "depthwise_conv2d" else ""
            yield f"{part}/{se}{name}/{depthwise}{variable.name}", variable


def _rows(
    model: keras.Model,
    wanted: Mapping[str, Any],
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
    prefix: str,
) -> list[Row]:
    """What becomes of each tensor, in the model's order.

    Raises:
        ValueError: if one other than the head's is missing, is of another shape, or
            has no place in the model.
    """
    rows = []
    for name, variable in wanted.items():
        ours = tuple(variable.shape)
        theirs = shapes[name][1] if name in shapes else None
        if theirs == ours:
            rows.append(Row(name, "loaded", theirs, ours))
        elif name.startswith("head/dense/"):
            rows.append(Row(name, "fresh", theirs, ours, "new head"))
        else:
            what = "is missing" if theirs is None else f"is {theirs}, not {ours}"
            raise _mismatch(model, prefix, f"{name} {what}")
    for name in sorted(shapes.keys() - wanted.keys()):
        if not name.startswith("head/dense/"):
            raise _mismatch(model, prefix, f"{name} has no place in the model")
        rows.append(Row(name, "unused", shapes[name][1], None, "classifier dropped"))
    return rows


def _mismatch(model: keras.Model, prefix: str, what: str) -> ValueError:
    return ValueError(
        f"Expected a checkpoint of the model's architecture: {what}. Received: "
        f"model={model.name!r}, {prefix!r}. Build it with the config of that size: "
        "EFFICIENTNET_VARIANTS['EfficientNet-B0'] and its like"
    )
