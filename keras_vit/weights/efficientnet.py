"""The published EfficientNet checkpoints, including Noisy Student's B0 to B7 and L2.

They are TensorFlow 1 checkpoints from tensorflow/tpu, models/official/efficientnet.
Archives such as `noisy_student_efficientnet-b0.tar.gz` contain a directory with a
`model.ckpt`. A tensor has a name like `efficientnet-b0/blocks_3/conv2d_1/kernel`; its
moving average has the suffix `/ExponentialMovingAverage`. For L2 only the averages
were published.

Sources of the layout: efficientnet_model.py and utils.py (`get_ema_vars`) there, and
that repository's issue 818, which lists the tensors of B1 and L2; keras-team/keras,
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
    """Fills `model` with an official checkpoint, such as Table 2's Noisy Student.

    Averaged values are loaded where the file has them, including those of the moving
    statistics, as in the official evaluation.

    Args:
        model: see `keras_vit.models.efficientnet`.
        source: the checkpoint's directory, or its path without the `.index`.

    Returns:
        A `Report` with one row per tensor. A head with a different number of classes is
        "fresh" and keeps its values; the file's head is "unused" if the model has none.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        ValueError: if it is damaged, contains NaNs, or has a different architecture;
            the model is then unchanged.
    """
    from tensorflow import errors, train  # Only TensorFlow checkpoints need it.

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
    """The path without `.index`; in a directory, the only or the latest one."""
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
    """Maps names without the scope to (name in the file, shape).

    The average is used if there is one. The optimizer's slots and the global step are
    omitted.
    """
    tensors = {name.removesuffix(AVERAGE): name for name in sorted(stored)}
    scopes = [name.removesuffix(STEM) for name in tensors if name.endswith(STEM)]
    if len(scopes) != 1:
        raise ValueError(
            "Expected the checkpoint of one EfficientNet, with one tensor such as "
            f"'efficientnet-b0/{STEM}'. Received: {prefix!r} with {len(scopes)} such "
            f"tensors among {', '.join(sorted(stored)[:4])}, ..."
        )
    scope = scopes[0]
    return {
        name.removeprefix(scope): (original, tuple(stored[original]))
        for name, original in tensors.items()
        if name.startswith(scope) and _TENSOR.fullmatch(name.removeprefix(scope))
    }


def _entries(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Each variable with its official name, without the scope."""
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
    """The report's row for each tensor, in the model's order.

    Raises:
        ValueError: if a tensor outside the head is missing, has a different shape, or
            is not in the model.
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
            raise _mismatch(model, prefix, f"the model has no {name}")
        rows.append(Row(name, "unused", shapes[name][1], None, "classifier dropped"))
    return rows


def _mismatch(model: keras.Model, prefix: str, what: str) -> ValueError:
    return ValueError(
        f"Expected a checkpoint of the model's architecture: {what}. Received: "
        f"model={model.name!r}, {prefix!r}. Build the model with the config of that "
        "size, such as EFFICIENTNET_VARIANTS['EfficientNet-B0']"
    )
