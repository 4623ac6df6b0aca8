"""Training on several devices and machines.

    with keras_vit.training.strategy("mirrored").scope():
        model = keras_vit.ViT_B16(include_top=False, pooling="token")
        model = keras_vit.for_task(model, 10)
        keras_vit.training.fit(model, recipe, data)

The batch of a recipe is divided among all devices: each of R replicas trains on B / R
images, and the update equals that of a single device with all B images.

Keras 3 behaves differently or fails in these cases. Each is fixed in one place:

- It clips the gradients of each replica before they are summed (`optim._Decoupled` sums
  first), and checks only the first replica for float16 overflow (`LossScale`).
- Its `gradient_accumulation_steps` fails on several replicas (keras#20582): `stepping`
  accumulates within the step.
- `MultiWorkerMirroredStrategy.reduce` does not accept Keras's dict of scalars
  (keras#20585): `MultiWorker`, in this module.
- It evaluates one additional batch of zeros: `Batches` counts the batches.
- Every replica drops the same units: `Workers.draw_apart`.
"""

import functools
import json
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.pipelines import Shard
from keras_vit.environment import versions
from keras_vit.recipes import Recipe
from keras_vit.training.rendezvous import (
    cluster,
    different_versions,
    is_described,
    wait_for,
)

__all__ = ["strategy"]

Word = Literal["auto", "none", "mirrored", "multiworker", "tpu"]
WORDS: tuple[Word, ...] = ("auto", "none", "mirrored", "multiworker", "tpu")


class MultiWorker(tf.distribute.MultiWorkerMirroredStrategy):
    """`MultiWorkerMirroredStrategy` that works with Keras 3.

    Keras reduces a dict of scalars along axis 0, the batch axis, which scalars do not
    have. The error is `Attempt to convert a value (PerReplica...)`, keras#20585,
    tensorflow#72388.
    """

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        def one(leaf: Any) -> Any:
            first = self.experimental_local_results(leaf)[0]
            along = axis if len(first.shape) else None
            return super(MultiWorker, self).reduce(reduce_op, leaf, along)

        return keras.tree.map_structure(one, value)


APART = 1_000_003  # Difference between the seeds of two replicas.
KNOWN = (MultiWorker, tf.distribute.MirroredStrategy, tf.distribute.TPUStrategy)


def strategy(
    word: Word = "auto", *, tpu: str | None = None, model_parallel: int = 1
) -> Any:
    """Returns a strategy; build and train a model in its `scope()`.

    It is a `tf.distribute` strategy on TensorFlow and a `keras.distribution`
    distribution on JAX. On torch it is one device. The paper trains on TPUs (4.1).

    Args:
        word: devices to use. "none": one device. "mirrored": all devices of this
            machine. "multiworker": all processes of the cluster in TF_CONFIG (see
            `keras-vit launch`), on JAX also of a cluster that JAX detects or that
            `jax.distributed.initialize` has joined. "tpu": a TPU. "auto": the first of
            tpu, multiworker and mirrored that is available, else none.
        tpu: name or address of a TPU, or "local" on a TPU VM, the default.
        model_parallel: number of devices to shard a model's matrices over, only for JAX
            in one process. It must divide the number of devices; the remaining factor
            is data-parallel.

    Returns:
        The strategy or distribution. For one device it is TensorFlow's default, whose
        scope has no effect.

    Raises:
        ValueError: if the word is unknown, or the devices, the cluster or the backend
            are not available, with the reason and the remedy.
    """
    if word not in WORDS:
        raise ValueError(f"Expected one of {', '.join(WORDS)}. Received: {word!r}")
    backend = keras.backend.backend()
    if backend == "jax":
        return _on_jax(found() if word == "auto" else word, model_parallel)
    if model_parallel != 1:
        raise ValueError(
            f"Expected model_parallel=1 on {backend}: keras.distribution shards a "
            f"model only on JAX. Received: model_parallel={model_parallel}. "
            f"Use KERAS_BACKEND=jax to shard it. To save memory on {backend}, use a "
            "smaller batch, more accumulation steps or remat=True"
        )
    if backend == "torch":
        return _on_torch(word)
    return _ON_TENSORFLOW[found() if word == "auto" else word](tpu)


def found() -> Word:
    """Returns the strategy that "auto" selects on this machine."""
    if keras.backend.backend() == "jax":
        if _processes_of_jax() > 1 or (is_described() and len(cluster()[0]) > 1):
            return "multiworker"
        devices = keras.distribution.list_devices()
        kind: Word = "tpu" if "tpu" in devices[0] else "mirrored"
        return kind if len(devices) > 1 else "none"
    if os.environ.get("TPU_NAME") or tf.config.list_physical_devices("TPU"):
        return "tpu"
    if os.environ.get("TF_CONFIG") and len(cluster()[0]) > 1:
        return "multiworker"
    return "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "none"


def _one_device(tpu: str | None) -> Any:
    return tf.distribute.get_strategy()


def _mirrored(tpu: str | None) -> Any:
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        return tf.distribute.MirroredStrategy([gpu.name for gpu in gpus])
    cpus = [cpu.name for cpu in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(cpus)


def _multiworker(tpu: str | None) -> Any:
    addresses, index = cluster()
    wait_for(addresses, index, versions=versions())
    return MultiWorker()


def _tpu(tpu: str | None) -> Any:
    name = tpu or os.environ.get("TPU_NAME") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(name)
    except (ValueError, OSError, tf.errors.OpError) as error:
        raise ValueError(
            f"Expected a TPU. Received: tpu={name!r}, with TensorFlow's error: "
            f"{str(error).strip()[:300]}. On a TPU VM, install tensorflow-tpu and use "
            "'local'. Elsewhere, use the TPU's name or grpc:// address. Without a TPU, "
            "use distribute='auto', which selects the available devices"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


_ON_TENSORFLOW: dict[str, Callable[[str | None], Any]] = {
    "none": _one_device,
    "mirrored": _mirrored,
    "multiworker": _multiworker,
    "tpu": _tpu,
}


def _on_jax(word: Word, model_parallel: int) -> Any:
    if word == "multiworker":
        _join_on_jax()
    try:
        devices = keras.distribution.list_devices("tpu" if word == "tpu" else None)
    except RuntimeError:  # From JAX, if it has no library for TPUs.
        devices = []
    if word == "tpu" and not devices:
        raise ValueError(
            "Expected a TPU. Received: 'tpu' on a machine where JAX finds none. On a "
            "TPU VM, run `pip install 'jax[tpu]'`"
        )
    processes = _processes_of_jax()
    if processes > 1 and word in ("none", "mirrored"):
        raise ValueError(
            "Expected 'multiworker', 'tpu' or 'auto' because jax.distributed is "
            f"initialized and arrays span all processes. Received: {word!r}, "
            f"{processes} processes"
        )
    _check_equal_devices(processes)
    if processes > 1 and model_parallel != 1:
        raise ValueError(
            "Expected model_parallel=1 in several processes: one process writes the "
            "checkpoints and must have the whole model. Received: "
            f"model_parallel={model_parallel}, {processes} processes. To shard a "
            "model, use one process with all devices of a machine"
        )
    devices = devices[:1] if word == "none" else devices
    if model_parallel < 1 or len(devices) % model_parallel:
        raise ValueError(
            "Expected model_parallel to divide the number of devices. Received: "
            f"model_parallel={model_parallel}, {len(devices)} devices"
        )
    if word == "none":
        return tf.distribute.get_strategy()  # The default: its scope has no effect.
    if model_parallel == 1:  # `Workers` gives each process its share of the data.
        return keras.distribution.DataParallel(
            devices=devices, auto_shard_dataset=False
        )
    mesh = keras.distribution.DeviceMesh(
        (len(devices) // model_parallel, model_parallel), ("batch", "model"), devices
    )
    return keras.distribution.ModelParallel(
        layout_map=_layout_map(mesh), batch_dim_name="batch"
    )


def _check_equal_devices(processes: int) -> None:
    """Raises ValueError unless all processes have the same number of devices."""
    if processes == 1:
        return
    import jax

    owners = [device.process_index for device in jax.devices()]
    counts = [owners.count(process) for process in range(processes)]
    if len(set(counts)) > 1:
        raise ValueError(
            "Expected the same number of devices in each process, because each gets "
            "an equal share of a batch. Received: "
            f"{', '.join(map(str, counts))} devices in processes 0 to "
            f"{processes - 1}. Select devices with CUDA_VISIBLE_DEVICES"
        )


def _processes_of_jax() -> int:
    """Returns the number of JAX processes; does not initialize devices if it is one."""
    import jax

    return jax.process_count() if jax.distributed.is_initialized() else 1


def _join_on_jax() -> None:
    """Joins the processes of the cluster, unless the caller has done so.

    If the environment does not describe a cluster, JAX detects it (TPU pods, SLURM).
    """
    import jax

    if not jax.distributed.is_initialized():
        if not hasattr(jax.config, "jax_enable_preemption_service"):
            raise ValueError(
                "Expected jax 0.10 or newer. Its SIGTERM handler can be disabled, so "
                "that a run of several processes is saved when it is stopped. "
                f"Received: jax {jax.__version__}. Run `pip install -U jax`, or train "
                "in one process, which uses all devices of a host"
            )
        given: dict[str, Any] = {}
        if is_described():
            addresses, index = cluster()
            wait_for(addresses, index, versions=versions())
            given = {"coordinator_address": addresses[0], "process_id": index}
            given |= {"num_processes": len(addresses)}
            given |= {"cluster_detection_method": "deactivate"}
        change: Callable[[str, Any], None] = jax.config.update
        change("jax_cpu_collectives_implementation", "gloo")
        # It would replace Python's SIGTERM handler, which saves the run.
        change("jax_enable_preemption_service", False)
        try:
            jax.distributed.initialize(
                **given,
                initialization_timeout=120,  # Seconds.
                shutdown_timeout_seconds=60,  # Time that a failed worker waits.
            )
        except ValueError:
            cluster()  # Raises an error if no cluster is described.
            raise
        except RuntimeError as error:
            raise ValueError(
                "Expected jax.distributed to connect all workers. Received: "
                f"{str(error).strip()[:300]}. Call it in a separate process, before "
                "JAX computes anything"
            ) from error
    own_versions = json.dumps(versions()).encode()
    text = np.zeros(2048, np.uint8)
    text[: len(own_versions)] = np.frombuffer(own_versions, np.uint8)
    workers = (bytes(row).rstrip(b"\0") for row in _gathered(text))
    if problem := different_versions(dict(enumerate(map(json.loads, workers)))):
        raise ValueError(problem)
    _share_a_seed()


def _share_a_seed() -> None:
    """Gives unseeded processes the first one's seed, so that weights start equal."""
    state = random.getstate()
    draw = random.getrandbits(23)  # A float32 can represent it.
    random.setstate(state)
    draws = _gathered(np.array([draw], np.float32))
    if np.ptp(draws):
        keras.utils.set_random_seed(int(draws[0, 0]))


def _gathered(values: np.ndarray) -> np.ndarray:
    """Gathers the values of each JAX process, [processes, ...]."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(values))


def _on_torch(word: Word) -> Any:
    """One device: Keras 3.15 has no `keras.distribution` on torch (keras#23418)."""
    workers = len(cluster()[0]) if is_described() else 1
    if word not in ("auto", "none") or (word == "auto" and workers > 1):
        received = repr(word) + (f", a cluster of {workers} workers" * (workers > 1))
        raise ValueError(
            "Expected strategy 'none' on torch: Keras trains on one device there "
            f"(keras#23418). Received: {received}. Use KERAS_BACKEND=tensorflow or "
            "jax to train on several devices"
        )
    return tf.distribute.get_strategy()  # The default: its scope has no effect.


def _layout_map(mesh: keras.distribution.DeviceMesh) -> Any:
    """Shards the first matrix of each pair by columns, and the second by rows.

    The heads and hidden units between them are never gathered. One sum over the devices
    follows each pair (arXiv:1909.08053, section 3).
    """
    layouts = keras.distribution.LayoutMap(mesh)
    for first, second in (("qkv", "out"), ("Dense_0", "Dense_1")):
        layouts[f"encoderblock_.*/{first}/kernel"] = (None, "model")
        layouts[f"encoderblock_.*/{first}/bias"] = ("model",)
        layouts[f"encoderblock_.*/{second}/kernel"] = ("model", None)
    return layouts


def on_tpu(strategy: Any) -> bool:
    """Whether a strategy's devices are TPUs, whose native dtype is bfloat16."""
    if keras.backend.backend() == "jax":
        return any("tpu" in name for name in keras.distribution.list_devices())
    return isinstance(strategy, tf.distribute.TPUStrategy)


class Workers:
    """The processes and devices of a training run; this base class has one device.

    Attributes:
        index: index of this process; 0 is the chief, the only one that writes files.
        count: number of processes.
        replicas: number of replicas in all processes, among which a batch is divided.
    """

    index, count, replicas = 0, 1, 1

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    @staticmethod
    def under(strategy: Any) -> "Workers":
        """Returns the workers of a strategy."""
        if not isinstance(strategy, tf.distribute.Strategy):
            return _JaxWorkers(strategy)
        if strategy.num_replicas_in_sync > 1 or isinstance(strategy, MultiWorker):
            return _TensorFlowWorkers(strategy)
        return Workers(strategy)

    @classmethod
    def of(cls, model: keras.Model) -> "Workers":
        """Returns the workers of the strategy that a model was built under."""
        if keras.backend.backend() == "tensorflow":
            return cls.under(model.distribute_strategy)
        devices = keras.distribution.distribution()
        if devices is None and (count := _devices_of(model)) > 1:
            raise ValueError(
                "Expected a model to be trained in the scope of its strategy. "
                f"Received: a model on {count} devices, outside of a scope. Put the "
                "model and `fit` into `with strategy.scope():`"
            )
        return cls.current()

    @classmethod
    def current(cls) -> "Workers":
        """Returns the workers of the current strategy."""
        devices = None
        if keras.backend.backend() != "tensorflow":
            devices = keras.distribution.distribution()
        return cls.under(devices or tf.distribute.get_strategy())

    @property
    def chief(self) -> bool:
        return self.index == 0

    def scope(self) -> Any:
        """Returns the scope in which variables must be created."""
        return self._strategy.scope()

    def check(self, recipe: Recipe, batch_size: int) -> None:
        """Raises ValueError if a batch cannot be divided among the devices."""
        parts = recipe.accumulation_steps
        if batch_size % (self.replicas * parts):
            raise ValueError(
                "Expected batch_size to be a multiple of devices times "
                f"accumulation_steps. Received: batch_size={batch_size}, "
                f"{self.replicas} devices in {self.count} processes, "
                f"accumulation_steps={parts}"
            )

    def batches(self, made: Callable[[Shard], tf.data.Dataset]) -> Any:
        """Returns a dataset that puts a part of each global batch on each replica.

        Args:
            made: function from a shard (index of this worker, number of workers), as in
                `pipelines.train_pipeline`, to the batches of this worker.
        """
        return made((self.index, self.count))

    def share(self, batches: Any) -> Any:
        """Returns this process's part of ready batches that `fit` does not divide."""
        return batches

    def any(self, *flags: bool) -> list[bool]:
        """Returns whether each flag is set in any process; all processes call this."""
        if self.count == 1:
            return list(flags)
        return [bool(total) for total in self._sums(np.array(flags, np.float32))]

    def meet(self) -> None:
        """Waits until every process has called this."""
        self.any(False)

    def check_step(self, step: int) -> None:
        """Raises ValueError unless every process resumes from the same step."""
        if self.count == 1:
            return
        digits = np.array(divmod(step, 4096), np.float32)  # Their sums are exact.
        sums = self._sums(digits)
        if (sums != digits * self.count).any():
            mean = float(sums @ [4096, 1]) / self.count
            raise ValueError(
                "Expected every worker to find the same newest checkpoint. Received: "
                f"step {step} on worker {self.index}, {mean:.1f} on average. Put the "
                "run's folder on a disk that all workers share"
            )

    def each(self, variable: keras.Variable) -> np.ndarray:
        """Returns a metric variable's value on each replica, float32 [R].

        With one replica, and on JAX, it is a single number, [].
        """
        number: np.ndarray = keras.ops.convert_to_numpy(variable)
        return number

    def give(self, variable: keras.Variable, values: np.ndarray) -> None:
        """Restores the values of `each`, bit-exact on the same number of replicas.

        On a different number of replicas, the sum is restored.
        """
        variable.assign(np.sum(values))

    def draw_apart(self, states: Sequence[keras.Variable]) -> None:
        """Gives dropout a different seed on each replica, as vit_jax/train.py does.

        On JAX, dropout is drawn for the whole batch, on any number of devices.

        Args:
            states: states of the generators, (seed, count) each, equal on all replicas.
        """

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of the values, float32, over all processes."""
        return values


def divisible(batches: tf.data.Dataset, parts: int) -> tf.data.Dataset:
    """Returns the same batches, which raise an error if they have no equal parts.

    Unequal parts would have the same weight in the mean over devices and over
    accumulated parts.
    """
    if parts == 1:
        return batches

    def checked(*batch: Any) -> Any:
        count = tf.shape(tf.nest.flatten(batch)[0])[0]
        tf.debugging.assert_equal(
            count % parts,
            0,
            f"Expected the batch size to be a multiple of {parts} images, the number "
            "of devices (in training, times accumulation_steps). Dataset.batch(..., "
            "drop_remainder=True) omits the last, smaller batch",
        )
        return batch if len(batch) > 1 else batch[0]

    return batches.map(checked)


def _devices_of(model: keras.Model) -> int:
    """Returns the number of JAX devices that hold a model's variables."""
    if keras.backend.backend() != "jax":
        return 1
    return max((len(v.value.devices()) for v in model.variables), default=1)


class _JaxWorkers(Workers):
    """JAX processes, each of which feeds its own devices.

    An array over all devices is a single value. All processes must assign variables and
    read metrics at the same time, as in one process.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy)
        mesh = strategy.device_mesh
        self.replicas = mesh.shape[mesh.axis_names.index(strategy.batch_dim_name)]
        self.count = _processes_of_jax()
        if self.count > 1:
            import jax

            self.index = jax.process_index()

    def share(self, batches: Any) -> Any:
        if self.count == 1 or not isinstance(batches, tf.data.Dataset):
            return batches

        def part(x: Any) -> Any:
            share = tf.shape(x)[0] // self.count
            return x[self.index * share : (self.index + 1) * share]

        return divisible(batches, self.replicas).map(
            lambda *batch: tf.nest.map_structure(part, batch)
        )

    def _sums(self, values: np.ndarray) -> np.ndarray:
        sums: np.ndarray = _gathered(values).sum(axis=0)
        return sums


class _TensorFlowWorkers(Workers):
    """Replicas of `tf.distribute`, in one process or several."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy)
        self.replicas = strategy.num_replicas_in_sync
        if self.replicas > 1 and not isinstance(strategy, KNOWN):
            raise ValueError(
                "Expected a strategy from keras_vit.training.strategy, or a Mirrored "
                "or TPU strategy: Keras fails or trains incorrectly with others. "
                f"Received: {type(strategy).__name__}"
            )
        if isinstance(strategy, MultiWorker):
            addresses, self.index = cluster()
            self.count = len(addresses)

    def check(self, recipe: Recipe, batch_size: int) -> None:
        super().check(recipe, batch_size)
        if self.count > 1 and recipe.momentum_dtype == "bfloat16":
            raise ValueError(
                "Expected momentum_dtype='float32' in several processes: TensorFlow "
                "cannot create bfloat16 variables there (CollectiveBcastSend). "
                f"Received: momentum_dtype={recipe.momentum_dtype!r}, {self.count} "
                "processes. Use float32, or KERAS_BACKEND=jax"
            )

    def batches(self, made: Callable[[Shard], tf.data.Dataset]) -> Any:
        if self.replicas == 1:
            return made((0, 1))

        def parts(context: tf.distribute.InputContext) -> tf.data.Dataset:
            pipelines = context.num_input_pipelines
            batches = made((context.input_pipeline_id, pipelines))
            local = context.num_replicas_in_sync // pipelines
            if local == 1:
                return batches
            share = tf.nest.flatten(batches.element_spec)[0].shape[0] // local
            return batches.rebatch(share, drop_remainder=True)

        return self._strategy.distribute_datasets_from_function(parts)

    def each(self, variable: keras.Variable) -> np.ndarray:
        if self.replicas == 1:
            return super().each(variable)
        parts = self._parts(variable)
        places = np.zeros(self.replicas, np.float32)
        first = self.index * len(parts)
        places[first : first + len(parts)] = [part.numpy() for part in parts]
        return self._sums(places) if self.count > 1 else places

    def give(self, variable: keras.Variable, values: np.ndarray) -> None:
        if np.size(values) != self.replicas:
            super().give(variable, values)
            return
        parts = self._parts(variable)
        first = self.index * len(parts)
        for part, value in zip(parts, np.ravel(values)[first:], strict=False):
            part.assign(value)

    def draw_apart(self, states: Sequence[keras.Variable]) -> None:
        for state in states:
            seed, count = keras.ops.convert_to_numpy(state)
            parts = self._parts(state)
            for replica, part in enumerate(parts, self.index * len(parts)):
                if replica:
                    replica_seed = (int(seed) + APART * replica) % 2**32
                    part.assign(np.array([replica_seed, count], seed.dtype))

    def _parts(self, variable: keras.Variable) -> Sequence[Any]:
        """Returns a variable's copies on this process's replicas."""
        parts: Sequence[Any] = self._strategy.experimental_local_results(variable.value)
        return parts

    def _sums(self, values: np.ndarray) -> np.ndarray:
        local = self.replicas // self.count  # Each replica adds its process's values.
        return self._sum_of_replicas(tf.constant(values)) / local

    @functools.cached_property
    def _sum_of_replicas(self) -> Callable[[Any], np.ndarray]:
        @tf.function
        def sums(values: Any) -> Any:
            each = self._strategy.run(tf.identity, args=(values,))
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)

        return lambda values: sums(values).numpy()
