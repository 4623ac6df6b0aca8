"""The same training on one device, two devices and two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_vit import launching
from keras_vit.recipes import Recipe
from tests.conftest import skip_without
from tests.training.worker import MINI

pytest.importorskip("tensorflow")

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).parents[2]
LAUNCHER = Path(launching.__file__)
EXACT = ("plain", "accumulation", "SAM", "SAM in parts", "ema", "mixup", "ready")
EXACT += ("lora", "masked patches")
ON_JAX = ("plain", "ema", "accumulation", "SAM in parts")


def started(folder, word, *cases, workers=1, **environment):
    """Runs `worker.py` in processes of its own, which end well."""
    command = [sys.executable, WORKER, word, folder, *cases]
    if workers > 1:
        command = [sys.executable, LAUNCHER, workers, *command]
    variables = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    variables |= {"PYTHONPATH": str(ROOT), **environment}
    process = subprocess.run(
        [*map(str, command)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert process.returncode == 0, process.stdout


def found(folder):
    """What came of every case."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def numbers(history):
    """Every number of every evaluation, [10, ...]."""
    assert len(history) == 10
    return [[row[key] for key in sorted(row)] for row in history]


def losses(history):
    return [[row["loss"], row["val_loss"]] for row in history]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes folders with 100 images to train on and 21 to be judged by."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (121, 32, 32, 3)).astype(np.uint8)
    labels = rng.integers(0, 3, 121)
    told = {"x_train": images[:100], "y_train": labels[:100]}
    told |= {"x_test": images[100:], "y_test": labels[100:]}

    def made(name):
        path = tmp_path_factory.mktemp(name)
        np.savez(path / "data.npz", **told)
        return path

    return made


@pytest.fixture(scope="module")
def alone(folder):
    """One device."""
    path = folder("alone")
    started(path, "none", *EXACT, "bfloat16", "float16", "kept")
    return path


@pytest.fixture(scope="module")
def mirrored(folder):
    """Two devices of one process, and what Keras does there."""
    path = folder("mirrored")
    upstream = ("evaluated to its end", "accumulated by Keras")
    upstream += ("overflow on the second replica", "metric of each replica")
    upstream += ("units that replicas drop", "clipped before the sum")
    started(path, "mirrored", *EXACT, "bfloat16", "float16", *upstream)
    return path


@pytest.fixture(scope="module")
def workers(folder):
    """Two processes; in the last of them a run is told to end after 9 updates."""
    path = folder("workers")
    cases = (*EXACT, "bfloat16", "told to end")
    started(path, "multiworker", *cases, workers=2)
    return path


@pytest.mark.parametrize("case", EXACT)
def test_two_devices_train_as_one(case, alone, mirrored, agree):
    ours, theirs = numbers(found(mirrored)[case]), numbers(found(alone)[case])
    agree(f"two devices, {case}", ours, theirs, 1e-5)


@pytest.mark.parametrize("case", EXACT)
def test_two_processes_train_as_one(case, alone, workers, agree):
    ours, theirs = numbers(found(workers)[case]), numbers(found(alone)[case])
    agree(f"two processes, {case}", ours, theirs, 1e-5)


@pytest.mark.parametrize(("case", "atol"), [("bfloat16", 1e-2), ("float16", 2e-3)])
def test_mixed_precision(case, atol, alone, mirrored, workers, agree):
    """Sums over half a batch round elsewhere, by about what the precision does."""
    theirs = losses(found(alone)[case])
    agree(f"two devices, {case}", losses(found(mirrored)[case]), theirs, atol)
    if case in found(workers):
        agree(f"two processes, {case}", losses(found(workers)[case]), theirs, atol)
    in_float32 = losses(found(alone)["plain"])
    agree(f"one device, {case} and float32", theirs, in_float32, atol)


# What Keras and TensorFlow do without us. A test that fails here says: they mended it.


def test_keras_clips_before_the_sum(alone, mirrored):
    other = numbers(found(mirrored)["clipped before the sum"])
    assert np.abs(np.subtract(other, numbers(found(alone)["plain"]))).max() > 0.1


def test_keras_accumulates_on_no_replicas(mirrored):
    """keras#20582"""
    assert "merge_call" in found(mirrored)["accumulated by Keras"]


def test_a_distributed_evaluation_does_not_end_where_its_data_does(mirrored):
    told = found(mirrored)["evaluated to its end"]
    assert told["by steps"] == pytest.approx(told["mean"], rel=1e-6)
    assert told["to its end"] < 0.9 * told["mean"]


def test_an_overflow_anywhere_leaves_the_weights(mirrored):
    told = found(mirrored)["overflow on the second replica"]
    assert told["LossScale"] == [1.0, 2.0]  # The weight stays, the scale is halved.
    assert told["LossScaleOptimizer"] == [-np.inf, 4.0]


def test_replicas_drop_units_of_their_own(mirrored):
    told = found(mirrored)["units that replicas drop"]
    assert told["by Keras"] > 450  # The same half on both.
    for both in told["apart"]:
        assert 200 < both < 300  # A quarter: 250 and 14 of standard deviation.
    assert len(set(told["apart"])) == 2


def test_keras_cannot_reduce_over_processes(folder):
    """keras#20585, tensorflow#72388"""
    path = folder("reduce")
    started(path, "as TensorFlow has it", "reduced by Keras", workers=2)
    assert "PerReplica" in found(path)["reduced by Keras"]
    assert "Received: CollectiveAllReduceStrategy" in found(path)["refusal"]


# Runs that go on with another number of workers.


def test_all_workers_end_at_one_step_when_one_is_told_to(workers):
    assert found(workers)["told to end"] == {"step": 9, "code": 143}
    names = [path.name for path in (workers / "run/checkpoints").glob("*.json")]
    assert sorted(names) == ["step-0000000008.json", "step-0000000009.json"]


def test_a_metric_comes_back_as_each_replica_had_it(mirrored):
    told = found(mirrored)["metric of each replica"]
    assert told["again"] == [float(np.float32(0.1)), float(np.float32(0.7))]
    assert told["of one"] == [1.5, 1.5]


def test_what_two_workers_began_one_ends(workers, alone, agree):
    started(workers, "none", "kept")
    ours, theirs = numbers(found(workers)["kept"]), numbers(found(alone)["kept"])
    agree("two processes began, one ended", ours, theirs, 1e-5)


def test_what_one_worker_began_two_end(alone, folder, agree):
    path = folder("two")
    started(path, "none", "told to end")
    assert found(path)["told to end"] == {"step": 9, "code": 143}
    started(path, "multiworker", "kept", workers=2)
    ours, theirs = numbers(found(path)["kept"]), numbers(found(alone)["kept"])
    agree("one process began, two ended", ours, theirs, 1e-5)
    lines = (path / "run/history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found(path)["kept"]


# JAX: keras.distribution.


@pytest.fixture(scope="module")
def on_jax(folder):
    skip_without("jax")

    def histories(name, devices, word, model_parallel=1):
        flags = f"--xla_force_host_platform_device_count={devices}"
        jax = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
        path = folder(name)
        jax["MODEL_PARALLEL"] = str(model_parallel)
        started(path, word, *ON_JAX, "moments apart from weights", **jax)
        return found(path)

    return histories


@pytest.fixture(scope="module")
def one_on_jax(on_jax):
    return on_jax("jax", 1, "none")


@pytest.mark.parametrize(("devices", "model_parallel"), [(2, 1), (4, 2), (8, 4)])
def test_devices_of_jax_train_as_one(
    devices, model_parallel, on_jax, one_on_jax, agree
):
    several = on_jax(f"jax{devices}", devices, "auto", model_parallel)
    for case in ON_JAX:
        ours, theirs = numbers(several[case]), numbers(one_on_jax[case])
        agree(f"{devices} devices of JAX, {case}", ours, theirs, 1e-5)
    where = several["moments apart from weights"]
    assert where["apart"] == []
    assert len(where["cut"]) == (12 if model_parallel > 1 else 0)


def test_settings_are_those_of_the_worker():
    """The curves above are of a training whose gradients are clipped."""
    assert Recipe(total_steps=1, base_lr=(0.1,), held_out=0.1).clip_norm == 1.0
    assert MINI.is_file()
