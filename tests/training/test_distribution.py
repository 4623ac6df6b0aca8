"""The same training on one device, two devices and two processes."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit import launching
from keras_vit.facts import OFFICIAL
from keras_vit.recipes import Recipe
from tests.conftest import skip_without
from tests.training.worker import MINI

tf = pytest.importorskip("tensorflow")

from keras_vit.training import distribution, fit, optim  # noqa: E402
from keras_vit.training.distribution import Workers  # noqa: E402
from keras_vit.training.inputs import Batches  # noqa: E402
from tests.training.test_fitting import recipe, source, tiny  # noqa: E402, F401

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


def test_a_process_of_jax_takes_its_share_of_ready_batches(monkeypatch):
    skip_without("jax")
    mesh = types.SimpleNamespace(shape=(4,), axis_names=["batch"])
    two = types.SimpleNamespace(device_mesh=mesh, batch_dim_name="batch")
    monkeypatch.setattr(distribution, "_processes_of_jax", lambda: 2)
    workers = Workers.under(two)
    assert (workers.replicas, workers.count, workers.chief) == (4, 2, True)
    workers.index = 1
    ready = tf.data.Dataset.range(12).map(lambda i: (i, 2 * i))
    (batch,) = workers.share(ready.batch(12)).as_numpy_iterator()
    assert [part.tolist() for part in batch] == [[*range(6, 12)], [*range(12, 24, 2)]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="a multiple of 4 images"):
        list(workers.share(ready.batch(6)))
    assert workers.share(None) is None


# One process.


def test_the_step_compiles_whole(source):  # noqa: F811
    """XLA takes the exact update and evaluation of `fit`: shapes are known, and no op
    calls back to the host. A TPU runs nothing else."""
    model = tiny(dropout_rate=0.1)
    settings = recipe(mixup=0.2, randaugment=(1, 9), ema=0.9, clip_norm=1.0)
    workers = Workers.of(model)
    made = Batches(model, settings, source, None, OFFICIAL, 0, 0, workers)
    batch = next(iter(made.all()[0](start_step=0)))
    model.compile(
        optim.optimizer(made.recipe, 0.1, model),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=True,
    )
    model.train_on_batch(*batch)  # Builds what is built late.
    for step in (model.train_step, model.test_step):
        compiled = tf.function(step, jit_compile=True)
        text = compiled.experimental_get_compiler_ir(batch)(stage="hlo")
        assert not re.search(r"\b(infeed|outfeed|send|recv)\(|callback|<=\d", text)


def test_batches_have_static_shapes(source):  # noqa: F811
    model = tiny()
    workers = Workers.of(model)
    workers.replicas = 2  # As on two devices of JAX.
    made = Batches(model, recipe(), source, None, OFFICIAL, 0, 0, workers)
    train, judged = made.all()
    for batches in (train(start_step=0), judged.batches):
        for spec in tf.nest.flatten(batches.element_spec):
            assert None not in spec.shape
    images, labels, weights = zip(*judged.batches.take(judged.steps), strict=True)
    count = len(source.test)
    assert np.concatenate(weights).sum() == pytest.approx(len(labels) * len(labels[0]))
    kept = np.concatenate(labels)[np.concatenate(weights) > 0]
    np.testing.assert_array_equal(kept, np.asarray(source.test.labels))
    assert len(kept) == count < len(images) * len(images[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 9}, r"multiple of devices .* batch_size=9, 2 devices in 2 pro"),
        ({"accumulation_steps": 8}, "accumulation_steps=8"),
        ({"momentum_dtype": "bfloat16"}, "momentum_dtype='float32' in several"),
    ],
)
def test_recipes_that_cannot_be_divided(change, message, source, monkeypatch):  # noqa: F811
    workers = distribution._TensorFlowWorkers(tf.distribute.get_strategy())
    workers.count = workers.replicas = 2
    monkeypatch.setattr(Workers, "of", lambda model: workers)
    with pytest.raises(ValueError, match=message):
        fit(tiny(), recipe(**change), source)


def config(cluster, **task):
    return json.dumps({"cluster": cluster, "task": {"type": "worker", **task}})


TWO = {"worker": ["a:1", "b:2"]}
WRONG = {
    "": "TF_CONFIG=''",
    "{": "TF_CONFIG='{'",
    "[]": "cluster=None",
    config({}, index=0): "cluster={}",
    config({**TWO, "ps": ["c:3"]}, index=0): r"cluster=\{'ps'",
    config({"worker": "a:1"}, index=0): "cluster.worker='a:1'",
    config({"worker": ["a"]}, index=0): r"cluster.worker=\['a'\]",
    config({"worker": ["a:99999"]}, index=0): "cluster.worker=",
    config({**TWO, "chief": [3]}, index=0): r"cluster.chief=\[3\]",
    config({"worker": ["a:1", "a:1"]}, index=0): "cluster=",
    json.dumps({"cluster": TWO}): "task=None",
    config(TWO, type="evaluator", index=0): "task.type='evaluator'",
    config(TWO, index=2): "task.index=2",
    config(TWO, index="0"): "task.index='0'",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_tf_config_is_told_by_its_field(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=f"Received: {WRONG[text]}"):
        distribution.cluster()


def test_the_chief_comes_first(monkeypatch):
    cluster = {**TWO, "chief": ["c:3"]}
    monkeypatch.setenv("TF_CONFIG", config(cluster, index=1))
    assert distribution.cluster() == (["c:3", "a:1", "b:2"], 2)
    monkeypatch.setenv("TF_CONFIG", config(cluster, type="chief", index=0))
    assert distribution.cluster() == (["c:3", "a:1", "b:2"], 0)


def test_words(monkeypatch):
    with pytest.raises(ValueError, match="Expected one of auto, none, mirrored"):
        distribution.strategy("horovod")
    with pytest.raises(ValueError, match=r"Expected a TPU\. Received: tpu='local'"):
        distribution.strategy("tpu")
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
        distribution.strategy(model_parallel=2)
    default = tf.distribute.get_strategy()
    assert distribution.strategy() is distribution.strategy("none") is default
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert distribution.strategy() is default
    with pytest.raises(ValueError, match="Expected strategy 'none' on torch"):
        distribution.strategy("mirrored")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ValueError, match=r"Received: TF_CONFIG='\{'"):
        distribution.strategy("multiworker")
    monkeypatch.delenv("TF_CONFIG")
    monkeypatch.setattr(keras.distribution, "list_devices", lambda kind=None: [])
    with pytest.raises(ValueError, match="where JAX finds none"):
        distribution.strategy("tpu")

    def unknown(kind=None):  # What JAX says without its library for TPUs.
        raise RuntimeError("Backend 'tpu' failed to initialize")

    monkeypatch.setattr(keras.distribution, "list_devices", unknown)
    with pytest.raises(ValueError, match="where JAX finds none"):
        distribution.strategy("tpu")
    monkeypatch.setattr(keras.distribution, "list_devices", lambda kind=None: ["a"] * 3)
    with pytest.raises(ValueError, match="model_parallel=2, 3 devices"):
        distribution.strategy(model_parallel=2)


@pytest.mark.parametrize(
    ("variables", "kinds", "word"),
    [
        ({}, {}, "none"),
        ({}, {"GPU": 1}, "none"),
        ({}, {"GPU": 2}, "mirrored"),
        ({"TF_CONFIG": config(TWO, index=1)}, {"GPU": 2}, "multiworker"),
        ({"TF_CONFIG": config({"worker": ["a:1"]}, index=0)}, {}, "none"),
        ({"TPU_NAME": "pod"}, {}, "tpu"),
        ({}, {"TPU": 8}, "tpu"),
    ],
)
def test_auto(variables, kinds, word, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: [kind] * kinds.get(kind, 0)
    )
    made = {name: lambda tpu, name=name: (name, tpu) for name in distribution.WORDS}
    monkeypatch.setattr(distribution, "_ON_TENSORFLOW", made)
    assert distribution.strategy("auto", tpu="local") == (word, "local")


def test_a_tpu_by_its_name(monkeypatch):
    asked = []

    class Resolver:
        @staticmethod
        def connect(name):
            asked.append(name)
            raise tf.errors.NotFoundError(None, None, "no such TPU")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", Resolver)
    for tpu, name in ((None, "local"), ("grpc://10.0.0.1:8470",) * 2):
        with pytest.raises(ValueError, match="no such TPU"):
            distribution.strategy("tpu", tpu=tpu)
        assert asked.pop() == name
    monkeypatch.setenv("TPU_NAME", "pod")
    with pytest.raises(ValueError, match="tpu='pod'"):
        distribution.strategy("tpu")


def test_settings_are_those_of_the_worker():
    """The curves above are of a training whose gradients are clipped."""
    assert Recipe(total_steps=1, base_lr=(0.1,), held_out=0.1).clip_norm == 1.0
    assert MINI.is_file()
