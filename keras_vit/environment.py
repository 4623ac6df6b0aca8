"""The software and hardware of this process: versions, processor, device, threads."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

import keras

from keras_vit._version import __version__


def versions() -> dict[str, str]:
    """Returns the versions of Python, Keras, TensorFlow, JAX and this library."""
    backend = keras.backend.backend()
    result = {"python": platform.python_version(), "keras_vit": __version__}
    result |= {"keras": keras.__version__, "backend": backend}
    import tensorflow as tf  # It prepares batches on every backend.

    result["tensorflow"] = tf.__version__
    if backend == "jax":
        import jax

        result["jax"] = jax.__version__
    return result


def environment() -> dict[str, Any]:
    """Returns versions, processor, device and threads, which can affect result bits."""
    backend = keras.backend.backend()
    result: dict[str, Any] = dict(versions())
    if backend == "torch":
        import torch

        result["torch"] = torch.__version__
    return {
        **result,
        "processor": _processor(),
        "device": _device(backend),
        "threads": _threads(backend),
    }


def _processor() -> str:
    """Returns the processor type."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def _device(backend: str) -> str:
    """Returns the type of the device that the backend uses."""
    if backend == "jax":
        import jax

        return str(jax.devices()[0].device_kind)
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    import tensorflow as tf

    if not (gpus := tf.config.list_physical_devices("GPU")):
        return "TPU" if tf.config.list_logical_devices("TPU") else "cpu"
    details = tf.config.experimental.get_device_details(gpus[0])
    return str(details.get("device_name", "GPU"))


def _threads(backend: str) -> int:
    """Returns the number of threads for one operation."""
    if backend == "torch":
        import torch

        return torch.get_num_threads()
    if backend == "tensorflow":
        import tensorflow as tf

        chosen = tf.config.threading.get_intra_op_parallelism_threads()
        if chosen := chosen or int(os.environ.get("TF_NUM_INTRAOP_THREADS", "0")):
            return int(chosen)
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
