"""Export models from JAX and torch with TensorFlow, in a separate process.

A `.keras` file works on every backend, so the model is saved, then loaded and exported
with TensorFlow. Keras's exporters from JAX and torch require jax2tf and torch-xla, and
the latter fixes the batch size (keras#20685).
"""

import functools
import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import keras

from keras_vit.callers import warn

Exporter = TypeVar("Exporter", bound=Callable[..., Any])
MODEL, CALL, RESULT = "model.keras", "call.pickle", "result.pickle"
# Uses the CPU, because JAX reserves most of a GPU's memory.
ENVIRONMENT = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
SCRIPT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from keras_vit.serving import on_tensorflow; on_tensorflow.main(sys.argv[2])"
)


def exported_on_tensorflow(function: Exporter) -> Exporter:
    """Runs an exporter in a TensorFlow process if this process has another backend."""

    @functools.wraps(function)
    def export(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if keras.backend.backend() == "tensorflow":
            return function(model, *args, **kwargs)
        verbose = kwargs.pop("verbose", True)
        kwargs["verbose"] = False
        call = (function.__module__, function.__name__, args, kwargs)
        result = _run(model, call)
        if verbose:
            print(result)
        return result

    return cast(Exporter, export)


def _run(model: keras.Model, call: tuple[Any, ...]) -> Any:
    """Makes a call with this model in a TensorFlow process."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, MODEL))
        Path(folder, CALL).write_bytes(pickle.dumps(call))
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(sys.path), folder],
            env=os.environ | ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        result = Path(folder, RESULT)
        if not result.exists():
            raise RuntimeError(
                "Cannot export with TensorFlow: its process ended with code "
                f"{done.returncode}. {done.stderr.strip()[-500:]}"
            )
        value, warned = pickle.loads(result.read_bytes())
    for message in warned:
        warn(message)
    if isinstance(value, Exception):
        raise value
    return value


def main(folder: str) -> None:
    """Makes the call that the parent process stored in a folder."""
    module, name, args, kwargs = pickle.loads(Path(folder, CALL).read_bytes())
    value: Any
    with warnings.catch_warnings(record=True) as caught:
        try:
            model = keras.models.load_model(Path(folder, MODEL), compile=False)
            export = getattr(importlib.import_module(module), name)
            value = export(model, *args, **kwargs)
        except (ImportError, OSError, TypeError, ValueError) as error:
            value = error
    warned = [str(warning.message) for warning in caught]
    Path(folder, RESULT).write_bytes(pickle.dumps((value, warned)))
