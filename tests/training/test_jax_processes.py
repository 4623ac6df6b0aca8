"""The same training on JAX in one process and in two, and what ends a wrong setup."""

import json
import os
import subprocess
import sys

import keras
import pytest

from tests.conftest import skip_without
from tests.training.test_distribution import (  # noqa: F401
    EXACT,
    ROOT,
    WORKER,
    folder,
    found,
    losses,
    numbers,
    started,
)
from tests.training.test_rendezvous import free_addresses

skip_without("tensorflow", "jax")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

SAME = (*EXACT, "dropout", "bfloat16 momentum")
MIXED = ("float16", "float16 in parts", "bfloat16")


def on_jax(path, word, *cases, workers=1, devices=1):
    """Runs the cases on JAX in processes of so many devices each."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    variables = {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    started(path, word, *cases, workers=workers, **variables)
    return found(path)


@pytest.fixture(scope="module")
def one(folder):  # noqa: F811
    path = folder("one")
    on_jax(path, "none", *SAME, *MIXED, "kept")
    return path


@pytest.fixture(scope="module")
def two(folder):  # noqa: F811
    """Two processes; in the last of them a run is told to end after 9 updates."""
    path = folder("two")
    cases = ("unseeded", *SAME, *MIXED, "told to end")  # The others set a seed.
    on_jax(path, "multiworker", *cases, workers=2)
    return path


@pytest.mark.parametrize("case", SAME)
def test_two_processes_train_as_one(case, one, two, agree):
    # bfloat16 moments round a sum in another order to a neighbor: 2^-8 of an update.
    atol = 1e-4 if case == "bfloat16 momentum" else 1e-5
    ours, theirs = numbers(found(two)[case]), numbers(found(one)[case])
    agree(f"two processes of JAX, {case}", ours, theirs, atol)


@pytest.mark.parametrize("case", MIXED)
def test_mixed_precision(case, one, two, agree):
    atol = 1e-2 if case == "bfloat16" else 2e-3
    ours, theirs = losses(found(two)[case]), losses(found(one)[case])
    agree(f"two processes of JAX, {case}", ours, theirs, atol)


def test_processes_of_several_devices_train_as_one(one, folder, agree):  # noqa: F811
    cases = ("plain", "ready", "SAM in parts", "masked patches")
    four = on_jax(folder("four"), "auto", *cases, workers=2, devices=2)
    for case in cases:
        ours, theirs = numbers(four[case]), numbers(found(one)[case])
        agree(f"two processes of two devices of JAX, {case}", ours, theirs, 1e-5)


def test_processes_that_nobody_seeded_begin_equal(two):
    assert len(numbers(found(two)["unseeded"])) == 10


def test_all_end_at_one_step_and_any_number_goes_on(one, two, folder, agree):  # noqa: F811
    assert found(two)["told to end"] == {"step": 9, "code": 143}
    names = [path.name for path in (two / "run/checkpoints").glob("*.json")]
    assert sorted(names) == ["step-0000000008.json", "step-0000000009.json"]
    theirs = numbers(found(one)["kept"])
    ours = numbers(on_jax(two, "none", "kept")["kept"])
    agree("two processes of JAX began, one ended", ours, theirs, 1e-5)
    path = folder("began alone")
    on_jax(path, "none", "told to end")
    ours = numbers(on_jax(path, "multiworker", "kept", workers=2)["kept"])
    agree("one process of JAX began, two ended", ours, theirs, 1e-5)


def test_launch_finetunes_on_jax(tmp_path):
    line = "finetune --data digits --image-size 32 --steps 2 --warmup 0 --lr 0.01"
    line += " --batch-size 16 --parts 1 --output run --weights"
    mini = str(ROOT / "tests/fixtures/reference/vit_mini.npz")
    command = [sys.executable, "-m", "keras_vit_command", "launch", "--workers", "2"]
    done = subprocess.run(
        [*command, "--", *line.split(), mini],
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[worker 0] test accuracy" in done.stdout
    assert "[worker 1] test accuracy" not in done.stdout
    assert (tmp_path / "run/model.keras").is_file()


# Wrong setups: each process ends with one message.


def ended(path, *environments):
    """The exit codes and outputs of a "plain" training in these processes."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), "multiworker", str(path), "plain"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for variables in environments
    ]
    told = [process.communicate(timeout=300)[0] for process in processes]
    codes = [process.returncode for process in processes]
    return codes, told


def configured(addresses, index, **variables):
    task = {"type": "worker", "index": index}
    config = {"cluster": {"worker": addresses}, "task": task}
    return {"TF_CONFIG": json.dumps(config), "KERAS_BACKEND": "jax", **variables}


def test_a_worker_that_is_missing_is_named(tmp_path):
    addresses = free_addresses(2)
    codes, told = ended(tmp_path, configured(addresses, 0, PATIENCE="2"))
    assert codes == [1]
    assert "Expected 2 workers within 2 s. Received: no response" in told[0]


def test_two_workers_with_one_id_are_named(tmp_path):
    addresses = free_addresses(2)
    both = [configured(addresses, 1, PATIENCE="5")] * 2
    codes, told = ended(tmp_path, *both)
    assert codes == [1, 1]
    assert any(", the port of worker 1, to be free" in line for line in told)
    assert any("no response from" in line for line in told)


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_mixed_fleet_is_refused_by_name(backend, tmp_path):
    addresses = free_addresses(2)
    here = keras.__version__
    codes, told = ended(
        tmp_path,
        configured(addresses, 0, KERAS_BACKEND=backend),
        configured(addresses, 1, KERAS_BACKEND=backend, KERAS_VERSION="3.13.2"),
    )
    assert codes == [1, 1]
    for line in told:
        assert f"keras {here} in worker 0 and 3.13.2 in worker 1" in line


def test_workers_of_two_backends_are_refused_by_name(tmp_path):
    addresses = free_addresses(2)
    codes, told = ended(
        tmp_path,
        configured(addresses, 0),
        configured(addresses, 1, KERAS_BACKEND="tensorflow"),
    )
    assert codes == [1, 1]
    assert all("backend jax in worker 0 and tensorflow in worker 1" in t for t in told)


@pytest.mark.parametrize("version", [None, "3.13.2"])
def test_a_cluster_that_jax_detects(version, folder):  # noqa: F811
    """SLURM's variables, as for two tasks of this machine; there is no TF_CONFIG."""
    port = free_addresses(1)[0].rpartition(":")[2]
    shared = {"KERAS_BACKEND": "jax", "TF_CONFIG": "", "JAX_COORDINATOR_PORT": port}
    shared |= {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1"}
    shared |= {"SLURM_NTASKS": "2"}
    both = [
        {**shared, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}
        for task in range(2)
    ]
    path = folder("detected")
    if version is not None:
        both[1]["KERAS_VERSION"] = version
    codes, told = ended(path, *both)
    if version is None:
        assert codes == [0, 0], told
        assert len(numbers(found(path)["plain"])) == 10
    else:
        assert not found(path)
        assert 0 not in codes
        line = f"keras {keras.__version__} in worker 0 and 3.13.2 in worker 1"
        assert all(line in text for text in told)


MODEL_PARALLEL = """
from keras_vit.training import distribution
try:
    distribution.strategy("multiworker", model_parallel=2)
except ValueError as error:
    print(error)
for word in ("none", "mirrored"):
    try:
        distribution.strategy(word)
    except ValueError as error:
        print(error)
assert distribution.found() == "multiworker"
assert len(distribution.strategy().device_mesh.devices) == 2
"""


def test_what_several_processes_cannot(tmp_path):
    program = [sys.executable, str(ROOT / "keras_vit/launching.py"), "2"]
    done = subprocess.run(
        [*program, sys.executable, "-c", MODEL_PARALLEL],
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Expected model_parallel=1 in several processes") == 2
    assert done.stdout.count("Received: 'mirrored', 2 processes") == 2
