"""Runs an exported model without Keras: `python -I fresh.py KIND PATH IN OUT`.

A script, not a module of the library: a process that runs it imports NumPy and what
runs the file, so that what it says of the file needs nothing that made it. IN and OUT
are npz files of arrays: images by the dtype that takes them, `uint8` and `float32`;
encoded ones are uint8 arrays too, `image_bytes/0` and on.
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]


def savedmodel(path: str, given: Arrays) -> dict[str, Any]:
    """Every signature's outputs, `signature/output`, by TensorFlow."""
    import tensorflow as tf

    encoded = [
        given[f"image_bytes/{i}"].tobytes()
        for i in range(sum(name.startswith("image_bytes/") for name in given))
    ]
    found: dict[str, Any] = {}
    for name, signature in tf.saved_model.load(path).signatures.items():
        ((argument, spec),) = signature.structured_input_signature[1].items()
        value = encoded if spec.dtype == tf.string else given[spec.dtype.name]
        outputs = signature(**{argument: tf.constant(value)})
        found |= {f"{name}/{key}": out.numpy() for key, out in outputs.items()}
    return found


KINDS = {"savedmodel": savedmodel}


def main(kind: str, path: str, given: str, found: str) -> None:
    """Reads arrays, runs the file on them, writes what it says."""
    for name in ("keras", "keras_vit"):  # TensorFlow imports Keras where it can.
        sys.modules[name] = None  # type: ignore[assignment]
    with np.load(given) as arrays:
        outputs = KINDS[kind](path, dict(arrays))
    strings = {key: out for key, out in outputs.items() if out.dtype == object}
    np.savez(found, **outputs | {key: out.astype("S") for key, out in strings.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
