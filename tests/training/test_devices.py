"""Several devices of one process on JAX, and what a backend refuses.

TensorFlow's devices and processes: `test_distribution`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit.training import fit, strategy
from keras_vit.training.distribution import Workers
from tests.training.test_fitting import ready, recipe, with_a_head

BACKEND = keras.backend.backend()
FEATURES = {
    "clipped": {"clip_norm": 0.1},
    "SAM in parts": {"sam_rho": 0.1, "accumulation_steps": 2, "ema": 0.5},
}
DEVICES = {"one": ("none", 1), "copied": ("mirrored", 1), "cut": ("mirrored", 2)}


def train_on_devices(folder):
    """Trains by every case of FEATURES on every case of DEVICES."""
    for where, (word, model_parallel) in DEVICES.items():
        devices = strategy(word, model_parallel=model_parallel)
        for name, changes in FEATURES.items():
            with devices.scope():
                model = with_a_head()
                settings = recipe(batch_size=16, total_steps=2, **changes)
                result = fit(model, settings, ready(count=2, size=16), verbose=0)
            kernel = model.get_layer("encoderblock_0").mlp.dense_0.kernel.value
            told = {
                "history": result.history,
                "replicas": Workers.under(devices).replicas,
                "shares": sorted({at.data.shape for at in kernel.addressable_shards}),
                "devices": len(kernel.devices()),
            }
            path = Path(folder, f"{where}, {name}")
            path.with_suffix(".json").write_text(json.dumps(told))
            np.savez(path.with_suffix(".npz"), *model.get_weights())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Trainings of a process with four devices."""
    folder = tmp_path_factory.mktemp("devices")
    code = (
        "import sys; from tests.training import test_devices as here; "
        "here.train_on_devices(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def told(folder, where, name):
    path = Path(folder, f"{where}, {name}")
    with np.load(path.with_suffix(".npz")) as arrays:
        return json.loads(path.with_suffix(".json").read_text()), dict(arrays)


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution")
@pytest.mark.parametrize("name", FEATURES)
def test_copies_on_devices_of_jax_train_as_one(name, folder):
    assert_same_training(folder, "copied", name, replicas=4, share=[16, 32])


@pytest.mark.skipif(BACKEND != "jax", reason="keras.distribution")
@pytest.mark.parametrize("name", FEATURES)
def test_a_model_cut_over_devices_of_jax_trains_as_one(name, folder):
    assert_same_training(folder, "cut", name, replicas=2, share=[16, 16])


def assert_same_training(folder, where, name, replicas, share):
    one, expected = told(folder, "one", name)
    several, found = told(folder, where, name)
    assert (one["devices"], one["replicas"]) == (1, 1)
    assert (several["devices"], several["replicas"]) == (4, replicas)
    assert several["shares"] == [share]
    for ours, theirs in zip(several["history"], one["history"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5, err_msg=key)


# What a backend cannot do is one error that names it, and what works instead.


TWO = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}


@pytest.mark.skipif(BACKEND != "torch", reason="torch has one device")
@pytest.mark.parametrize("word", ["mirrored", "tpu"])
def test_torch_refuses_several_devices(word):
    with pytest.raises(
        ValueError, match=rf"on torch: .*Received: '{word}'\. Use KERAS_BACKEND=tensor"
    ):
        strategy(word)
    assert Workers.under(strategy("auto")).replicas == 1


@pytest.mark.skipif(BACKEND != "torch", reason="torch has one device")
@pytest.mark.parametrize("word", ["multiworker", "auto"])
def test_torch_refuses_several_processes(word, monkeypatch):
    """With "auto" each worker would train the whole run alone."""
    monkeypatch.setenv("TF_CONFIG", json.dumps(TWO))
    with pytest.raises(
        ValueError, match=rf"on torch: .*'{word}', a cluster of 2 workers"
    ):
        strategy(word)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX cuts models")
def test_other_backends_than_jax_refuse_to_cut_a_model():
    with pytest.raises(
        ValueError, match=rf"on {BACKEND}: .*model_parallel=2\. Use KERAS_BACKEND=jax"
    ):
        strategy(model_parallel=2)
