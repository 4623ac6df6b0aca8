"""TensorFlow Serving's JSON: request bodies to arrays, and arrays to response bodies.

The row format is {"instances": [...]} -> {"predictions": [...]}, with one element for
each instance. The column format is {"inputs": ...} -> {"outputs": ...}, with one entry
for each input. The name of a single input is optional, and that of a single output is
omitted. {"b64": "..."} represents bytes, at any depth. The rules are those of
tensorflow/serving's g3doc/api_rest.md and util/json_tensor.cc.
"""

import base64
import binascii
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from keras_vit.serving.errors import invalid

Arrays: TypeAlias = dict[str, np.ndarray]
Dtypes: TypeAlias = Mapping[str, np.dtype]

MOST_DIMENSIONS = 32  # The limit of NumPy 1; NumPy 2 allows 64.
# By NumPy's dtype kind: a float may be written as 1, but an integer not as 1.0.
JSON_TYPES: dict[str, set[type]] = {
    "f": {int, float},
    "i": {int},
    "u": {int},
    "b": {bool},
    "O": {str, dict},
}


class Request(NamedTuple):
    """The content of a request body."""

    signature: str
    inputs: Arrays
    by_row: bool  # The body has "instances", so the response has "predictions".


def parse(body: bytes | bytearray, dtypes_of: Callable[[str], Dtypes]) -> Request:
    """Reads the body of a `:predict`.

    Args:
        body: UTF-8 JSON; NaN, Infinity and -Infinity are numbers.
        dtypes_of: function from a signature to the dtypes of its inputs by name;
            strings are `object`.

    Raises:
        Refused: INVALID_ARGUMENT, with the reason, or any error of `dtypes_of`.
    """
    content = _loads(body)
    signature = content.get("signature_name", "")
    if not isinstance(signature, str):
        raise invalid(
            "Expected 'signature_name' to be a string. "
            f"Received: a {type(signature).__name__}"
        )
    signature = signature or "serving_default"
    dtypes = dtypes_of(signature)
    if ("instances" in content) == ("inputs" in content):
        raise invalid(
            "Expected one of 'instances' (row format) and 'inputs' (column format). "
            f"Received: the keys {sorted(content)}"
        )
    by_row = "instances" in content
    columns = (
        _columns(content["instances"], dtypes)
        if by_row
        else _named(content["inputs"], dtypes, "'inputs'")
    )
    inputs = {name: array(columns[name], dtypes[name], name) for name in dtypes}
    return Request(signature, inputs, by_row)


def answer(outputs: Arrays, by_row: bool) -> bytes:
    """Returns the response body of outputs by name, [B, ...] each; strings are bytes.

    Numbers are the shortest decimals that are parsed to the same bits. An output named
    `..._bytes` is written as base64, other strings as text.

    Raises:
        ValueError: if rows are written and outputs differ in their first dimension.
    """
    columns = {name: _listed(name, value) for name, value in outputs.items()}
    single = len(columns) == 1
    if not by_row:
        content = next(iter(columns.values())) if single else columns
        return _dumps({"outputs": content})
    if single:
        return _dumps({"predictions": next(iter(columns.values()))})
    rows = zip(*columns.values(), strict=True)
    return _dumps(
        {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}
    )


def error(message: str) -> bytes:
    """Returns the response body of an error."""
    return _dumps({"error": message})


def array(value: Any, dtype: np.dtype, name: str) -> np.ndarray:
    """Converts a nested list to an array; refuses ragged lists and other dtypes."""
    flat, shape = _dense(value, name)
    others = set(map(type, flat)) - JSON_TYPES.get(dtype.kind, set())
    if others:
        types = ", ".join(sorted(found.__name__ for found in others))
        raise invalid(
            f"Expected input {name!r} of {_type_name(dtype)}. Received: {types}"
        )
    if dtype.kind == "O":
        filled = np.empty(len(flat), dtype=object)
        filled[:] = [_bytes(element, name) for element in flat]
        return filled.reshape(shape)
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype=dtype).reshape(shape)
    except (OverflowError, FloatingPointError) as wrong:
        raise invalid(
            f"Expected the values of input {name!r} to fit {_type_name(dtype)}. "
            f"Received: {wrong}"
        ) from wrong


def _loads(body: bytes | bytearray) -> dict[str, Any]:
    try:
        content = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as wrong:
        raise invalid(f"Expected a JSON body. Received: {wrong}") from wrong
    if not isinstance(content, dict):
        raise invalid(
            "Expected a JSON object such as {'instances': [...]} as the body. "
            f"Received: a {type(content).__name__}"
        )
    return content


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def _is_named(element: Any) -> bool:
    """Whether an element has named inputs; {"b64": "..."} is bytes, a value."""
    return isinstance(element, dict) and not _is_bytes(element)


def _is_bytes(element: dict[str, Any]) -> bool:
    return set(element) == {"b64"} and isinstance(element["b64"], str)


def _columns(instances: Any, dtypes: Dtypes) -> dict[str, Any]:
    """Converts the elements of the row format to a list for each input."""
    if not isinstance(instances, list) or not instances:
        raise invalid(
            "Expected 'instances' to be a list with one element or more. Received: "
            + ("an empty list" if instances == [] else f"a {type(instances).__name__}")
        )
    named = set(map(_is_named, instances))
    if len(named) > 1:
        raise invalid(
            "Expected 'instances' to contain only values or only objects with named "
            "inputs. Received: both"
        )
    rows = [
        _named(element, dtypes, f"element {place} of 'instances'")
        for place, element in enumerate(instances)
    ]
    return {name: [row[name] for row in rows] for name in dtypes}


def _named(value: Any, dtypes: Dtypes, where: str) -> dict[str, Any]:
    """Returns the inputs by name; the name of a single input is optional."""
    given: dict[str, Any]
    if _is_named(value):
        given = value
    elif len(dtypes) == 1:
        given = dict.fromkeys(dtypes, value)
    else:
        raise invalid(
            f"Expected {where} to be an object with the inputs {sorted(dtypes)}. "
            f"Received: a {type(value).__name__}"
        )
    if set(given) != set(dtypes):
        raise invalid(
            f"Expected {where} to have the inputs {sorted(dtypes)}. "
            f"Received: {sorted(given)}"
        )
    return given


def _dense(value: Any, name: str) -> tuple[list[Any], tuple[int, ...]]:
    """Returns the elements and the shape of a nested list."""
    flat: list[Any] = [value]
    shape: list[int] = []
    while flat and set(map(type, flat)) == {list}:
        lengths = set(map(len, flat))
        if len(lengths) > 1:
            raise invalid(
                f"Expected lists of equal length at each depth of input {name!r}. "
                f"Received: lengths {sorted(lengths)} at depth {len(shape)}"
            )
        if len(shape) == MOST_DIMENSIONS:
            raise invalid(
                f"Expected input {name!r} with at most {MOST_DIMENSIONS} dimensions. "
                "Received: deeper lists"
            )
        shape.append(lengths.pop())
        flat = list(itertools.chain.from_iterable(flat))
    if list in set(map(type, flat)):
        raise invalid(
            f"Expected all values of input {name!r} at the same depth. Received: "
            f"lists and values at depth {len(shape)}"
        )
    return flat, tuple(shape)


def _bytes(element: Any, name: str) -> bytes:
    if isinstance(element, str):
        return element.encode("utf-8", "surrogatepass")
    if not _is_bytes(element):
        raise invalid(
            f"Expected bytes of input {name!r} as {{'b64': '...'}}. "
            f"Received: an object with the keys {sorted(element)}"
        )
    try:
        return base64.b64decode(element["b64"], validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise invalid(
            f"Expected base64 in input {name!r}. Received: {wrong}"
        ) from wrong


def _type_name(dtype: np.dtype) -> str:
    return "strings, or {'b64': '...'} for bytes" if dtype.kind == "O" else str(dtype)


def _listed(name: str, value: np.ndarray) -> Any:
    if value.dtype.kind == "O":
        convert = np.vectorize(
            _base64 if name.endswith("_bytes") else _text, otypes=[object]
        )
        return convert(value).tolist() if value.size else value.tolist()
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:
        # Converted as text: float32's 0.2 as a double would be 0.20000000298.
        return value.astype(str).astype(np.float64).tolist()
    return value.tolist()


def _base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode("ascii")}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
