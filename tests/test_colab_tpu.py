"""JAX and TensorFlow's CPU build in one process, as on Colab's TPU runtime.

`make colab-tpu` runs this with Colab's versions and the installation of
docs/howto/colab.md; eight devices of the host platform stand for a TPU's cores.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import skip_without

skip_without("jax")
pytestmark = pytest.mark.tensorflow_only

DEVICES = """
import json
import sys

import jax

before = [str(device) for device in jax.devices()]
import tensorflow as tf

import keras
import keras_vit

with tf.device("CPU"):
    batch = next(iter(tf.data.Dataset.range(8).batch(8).as_numpy_iterator()))
doubled = jax.pmap(lambda x: 2 * x)(batch)
print(json.dumps({
    "before": before,
    "after": [str(device) for device in jax.devices()],
    "doubled": [int(x) for x in doubled],
    "keras": keras.distribution.list_devices(),
    "tensorflow": [device.device_type for device in tf.config.list_physical_devices()],
}))
"""


def test_jax_keeps_its_devices_next_to_tensorflow():
    done = subprocess.run(
        [sys.executable, "-c", DEVICES],
        env=os.environ
        | {
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["before"]) == 8
    assert found["after"] == found["before"]
    assert found["keras"] == [f"cpu:{i}" for i in range(8)]
    assert found["doubled"] == list(range(0, 16, 2))
    assert found["tensorflow"] == ["CPU"]
