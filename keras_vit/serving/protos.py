"""Convert TensorFlow Serving's protos to arrays and back; sizes are checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.serving.errors import invalid

VALUES = {  # TensorProto's field for each dtype, as Tensor::AsProtoField fills it.
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int_val"),
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
    "object": "string_val",
}


def parse(
    request: Any, dtypes: Mapping[str, np.dtype], max_bytes: int | None = None
) -> dict[str, np.ndarray]:
    """Converts the inputs of a PredictRequest to arrays; strings are `object`.

    Args:
        request: the proto.
        dtypes: dtypes of the signature's inputs, by name.
        max_bytes: maximum size of an array; a proto with a single value can declare
            any shape.

    Raises:
        Refused: INVALID_ARGUMENT, if names or dtypes differ, or the values of a tensor
            do not match its shape.
    """
    if set(request.inputs) != set(dtypes):
        raise invalid(
            f"Expected the inputs {sorted(dtypes)}. Received: {sorted(request.inputs)}"
        )
    return {
        name: _array(request.inputs[name], dtype, name, max_bytes)
        for name, dtype in dtypes.items()
    }


def fill(protos: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as the TensorProtos of a map, each value in its dtype's field."""
    for name, value in arrays.items():
        proto = protos[name]
        proto.dtype = tf.as_dtype(value.dtype).as_datatype_enum
        for length in value.shape:
            proto.tensor_shape.dim.add(size=length)
        field = VALUES.get(value.dtype.name)
        if field is None:
            proto.tensor_content = value.tobytes()
        else:
            getattr(proto, field).extend(value.ravel().tolist())


def _array(proto: Any, dtype: np.dtype, name: str, max_bytes: int | None) -> np.ndarray:
    expected = tf.as_dtype(dtype)
    if proto.dtype != expected.as_datatype_enum:
        raise invalid(
            f"Expected input {name!r} of {expected.name}. Received: {_dtype(proto)}"
        )
    shape = [dimension.size for dimension in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or any(length < 0 for length in shape):
        raise invalid(f"Expected a shape of input {name!r}. Received: {shape}")
    count = 1
    for length in shape:
        count *= length  # Python's integers do not overflow.
    if dtype.kind == "O" and count != len(proto.string_val):
        raise invalid(
            f"Expected {count} strings in input {name!r}, according to its shape "
            f"{shape}. Received: {len(proto.string_val)}"
        )
    if max_bytes is not None and count * dtype.itemsize > max_bytes:
        raise invalid(
            f"Expected input {name!r} of at most {max_bytes} bytes. "
            f"Received: {shape} of {expected.name}"
        )
    try:
        return np.asarray(tf.make_ndarray(proto))
    except (ValueError, TypeError, OverflowError) as wrong:
        raise invalid(
            f"Expected the values of input {name!r} to fit {expected.name} {shape}. "
            f"Received: {wrong}"
        ) from wrong


def _dtype(proto: Any) -> str:
    try:
        return str(tf.as_dtype(proto.dtype).name)
    except TypeError:
        return f"dtype={proto.dtype}"
