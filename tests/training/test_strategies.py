"""Strategies in one process: which is chosen, what it refuses, its batches and step."""

import json
import re
import types

import keras
import numpy as np
import pytest

from keras_vit.facts import OFFICIAL
from tests.conftest import skip_without

tf = pytest.importorskip("tensorflow")

from keras_vit.training import distribution, fit, optim  # noqa: E402
from keras_vit.training.distribution import Workers  # noqa: E402
from keras_vit.training.inputs import Batches  # noqa: E402
from tests.training.test_fitting import recipe, source, tiny  # noqa: E402, F401

pytestmark = pytest.mark.tensorflow_only


# Which strategy.


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


@pytest.mark.parametrize(
    ("processes", "devices", "word"),
    [
        (1, ["cpu:0"], "none"),
        (1, ["gpu:0", "gpu:1"], "mirrored"),
        (1, ["tpu:0", "tpu:1"], "tpu"),
        (2, ["tpu:0", "tpu:1"], "multiworker"),
    ],
)
def test_found_on_jax(processes, devices, word, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(distribution, "_processes_of_jax", lambda: processes)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: devices)
    assert distribution.found() == word


# What it does.


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


def test_replicas_do_not_train_on_unequal_shares(source):  # noqa: F811
    """Their mean would be of means: a batch of 3 would be cut into 2 and 1."""
    workers = distribution._TensorFlowWorkers(tf.distribute.get_strategy())
    workers.replicas = 2
    images = np.zeros((11, 32, 32, 3), np.float32)
    ready = tf.data.Dataset.from_tensor_slices((images, np.zeros(11, int))).batch(8)
    made = Batches(tiny(), recipe(), ready, None, OFFICIAL, 0, 0, workers)
    batches = iter(made.all()[0](start_step=0))
    assert len(next(batches)[0]) == 8
    with pytest.raises(tf.errors.InvalidArgumentError, match="a multiple of 2 images"):
        next(batches)


@pytest.mark.parametrize(("count", "step"), [(2, 7), (60, 311_947), (20, 999_999)])
def test_many_workers_agree_on_a_late_step(count, step, monkeypatch):
    """Sums of the steps themselves are beyond the whole numbers of float32."""
    workers = distribution._TensorFlowWorkers(tf.distribute.get_strategy())
    workers.count = count

    def sums(*others):
        def of_all(values):
            each = [np.array(divmod(at, 4096), np.float32) for at in others]
            return np.sum([values] * (count - len(each)) + each, axis=0)

        return of_all

    monkeypatch.setattr(workers, "_sums", sums())
    workers.check_step(step)
    monkeypatch.setattr(workers, "_sums", sums(step - 1))
    with pytest.raises(ValueError, match=rf"step {step} on worker 0, \d+\.\d on aver"):
        workers.check_step(step)
