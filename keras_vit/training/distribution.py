"""Many devices and many machines, from one word.

    with keras_vit.training.strategy("mirrored").scope():
        model = keras_vit.ViT_B16(include_top=False, pooling="token")
        model = keras_vit.for_task(model, 10)
        keras_vit.training.fit(model, recipe, data)

The batch of a recipe is that of all devices together: each of R replicas trains on
B / R of it, and the update is the one that a single device would make of all B.

Keras 3 says otherwise, or fails; each is put right in one place:

- It clips a replica's own gradients, before they are summed (`optim._Decoupled` sums
  first), and asks the first replica alone whether float16 overflowed (`LossScale`).
- Its `gradient_accumulation_steps` fails on several replicas (keras#20582): `stepping`
  accumulates in the step.
- `MultiWorkerMirroredStrategy.reduce` does not take what it gives (keras#20585):
  `MultiWorker`, here.
- It evaluates one batch of zeros more than there are: `Batches` counts them.
- Every replica drops the same units: `Workers.draw_apart`.
"""

import functools
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.pipelines import Shard
from keras_vit.recipes import Recipe

__all__ = ["strategy"]

Word = Literal["auto", "none", "mirrored", "multiworker", "tpu"]
WORDS: tuple[Word, ...] = ("auto", "none", "mirrored", "multiworker", "tpu")


class MultiWorker(tf.distribute.MultiWorkerMirroredStrategy):
    """`MultiWorkerMirroredStrategy` as Keras 3 calls it.

    Keras reduces a dict of scalars along axis 0, the axis of a batch, which scalars do
    not have: `Attempt to convert a value (PerReplica...)`, keras#20585,
    tensorflow#72388.
    """

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        def one(leaf: Any) -> Any:
            first = self.experimental_local_results(leaf)[0]
            along = axis if len(first.shape) else None
            return super(MultiWorker, self).reduce(reduce_op, leaf, along)

        return keras.tree.map_structure(one, value)


APART = 1_000_003  # Between the seeds of two replicas.
KNOWN = (MultiWorker, tf.distribute.MirroredStrategy, tf.distribute.TPUStrategy)


def strategy(
    word: Word = "auto", *, tpu: str | None = None, model_parallel: int = 1
) -> Any:
    """What a model is built and trained under: something with a `scope()`.

    On TensorFlow a `tf.distribute` strategy, on JAX a distribution of
    `keras.distribution`, on torch one device; not in the paper, which trains on TPUs
    (4.1).

    Args:
        word: "none", one device; "mirrored", every device of this machine;
            "multiworker", every process of the cluster (on TensorFlow the one in
            TF_CONFIG, see `keras-vit launch`); "tpu"; or "auto", the first of tpu,
            multiworker and mirrored that is there, else none.
        tpu: a TPU's name or address, or "local" on a TPU VM, the default.
        model_parallel: JAX: devices that a model's matrices are cut over, a divisor
            of their number; the rest of the product is data-parallel.

    Returns:
        The strategy or distribution; of one device TensorFlow's default, whose scope
        changes nothing.

    Raises:
        ValueError: if the word is unknown, or the devices, the cluster or the backend
            are not there; it says which, and what to do.
    """
    if word not in WORDS:
        raise ValueError(f"Expected one of {', '.join(WORDS)}. Received: {word!r}")
    backend = keras.backend.backend()
    if backend == "jax":
        return _on_jax(found() if word == "auto" else word, model_parallel)
    if model_parallel != 1:
        raise ValueError(
            f"Expected model_parallel=1 on {backend}: keras.distribution cuts a model "
            f"over devices on JAX only. Received: model_parallel={model_parallel}. "
            f"KERAS_BACKEND=jax cuts it; on {backend} a smaller batch, more "
            "accumulation steps and remat=True save memory"
        )
    if backend == "torch":
        return _on_torch(word)
    return _ON_TENSORFLOW[found() if word == "auto" else word](tpu)


def found() -> Word:
    """What "auto" stands for on this machine."""
    if keras.backend.backend() == "jax":
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
    addresses, own = cluster()
    wait_for(addresses, own)
    return MultiWorker()


def _tpu(tpu: str | None) -> Any:
    name = tpu or os.environ.get("TPU_NAME") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(name)
    except (ValueError, OSError, tf.errors.OpError) as error:
        raise ValueError(
            f"Expected a TPU. Received: tpu={name!r}, of which TensorFlow says: "
            f"{str(error).strip()[:300]}. On a TPU VM install tensorflow-tpu and give "
            "'local'; elsewhere give its name or grpc:// address; without one, "
            "distribute='auto' takes what is there"
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
        raise ValueError(
            "Expected another word on JAX: `fit` feeds the devices of one process "
            f"there. Received: {word!r}. KERAS_BACKEND=tensorflow runs it"
        )
    try:
        devices = keras.distribution.list_devices("tpu" if word == "tpu" else None)
    except RuntimeError:  # JAX's own, where it has no library for them.
        devices = []
    if word == "tpu" and not devices:
        raise ValueError(
            "Expected a TPU. Received: 'tpu' on a machine where JAX finds none. On a "
            "TPU VM: pip install 'jax[tpu]'"
        )
    devices = devices[:1] if word == "none" else devices
    if model_parallel < 1 or len(devices) % model_parallel:
        raise ValueError(
            "Expected model_parallel to divide the number of devices. Received: "
            f"model_parallel={model_parallel}, {len(devices)} devices"
        )
    if word == "none":
        return tf.distribute.get_strategy()  # The default: its scope changes nothing.
    if model_parallel == 1:
        return keras.distribution.DataParallel(devices=devices)
    mesh = keras.distribution.DeviceMesh(
        (len(devices) // model_parallel, model_parallel), ("batch", "model"), devices
    )
    return keras.distribution.ModelParallel(
        layout_map=_layout_map(mesh), batch_dim_name="batch"
    )


def _on_torch(word: Word) -> Any:
    """One device: Keras 3.15 has no `keras.distribution` on torch (keras#23418)."""
    workers = len(cluster()[0]) if os.environ.get("TF_CONFIG") else 1
    if word not in ("auto", "none") or (word == "auto" and workers > 1):
        received = repr(word) + (f", {workers} workers in TF_CONFIG" * (workers > 1))
        raise ValueError(
            "Expected strategy 'none' on torch: Keras trains on one device there "
            f"(keras#23418). Received: {received}. KERAS_BACKEND=tensorflow or jax "
            "trains on several devices"
        )
    return tf.distribute.get_strategy()  # The default: its scope changes nothing.


def _layout_map(mesh: keras.distribution.DeviceMesh) -> Any:
    """Of a block's matrices the first is cut by columns, the second by rows.

    What lies between them, heads and hidden units, is then never gathered; one sum
    over the devices follows each pair (arXiv:1909.08053, section 3).
    """
    layouts = keras.distribution.LayoutMap(mesh)
    for first, second in (("qkv", "out"), ("Dense_0", "Dense_1")):
        layouts[f"encoderblock_.*/{first}/kernel"] = (None, "model")
        layouts[f"encoderblock_.*/{first}/bias"] = ("model",)
        layouts[f"encoderblock_.*/{second}/kernel"] = ("model", None)
    return layouts


def cluster() -> tuple[list[str], int]:
    """Every worker's address, and which of them this process is: 0 is the chief.

    Raises:
        ValueError: naming the field of TF_CONFIG that is not as TensorFlow wants it.
    """
    text = os.environ.get("TF_CONFIG", "")

    def wrong(field: str, value: Any) -> ValueError:
        return ValueError(
            'Expected TF_CONFIG to be {"cluster": {"worker": ["HOST:PORT", ...]}, '
            '"task": {"type": "worker", "index": I}}, the same cluster in every '
            f"process and another index in each. Received: {field}={value!r}. "
            "`keras-vit launch --workers N -- ...` sets it on one machine"
        )

    try:
        told = json.loads(text)
    except ValueError as error:
        raise wrong("TF_CONFIG", text) from error
    jobs = told.get("cluster") if isinstance(told, dict) else None
    if not isinstance(jobs, dict) or not jobs.get("worker"):
        raise wrong("cluster", jobs)
    if unknown := jobs.keys() - {"chief", "worker"}:
        raise wrong("cluster", {name: jobs[name] for name in sorted(unknown)})
    for name, addresses in jobs.items():
        if not isinstance(addresses, list) or not all(map(_is_address, addresses)):
            raise wrong(f"cluster.{name}", addresses)
    task = told.get("task")
    if not isinstance(task, dict):
        raise wrong("task", task)
    kind, index = task.get("type"), task.get("index")
    if kind not in jobs:
        raise wrong("task.type", kind)
    if not isinstance(index, int) or not 0 <= index < len(jobs[kind]):
        raise wrong("task.index", index)
    chiefs = jobs.get("chief", [])
    return [*chiefs, *jobs["worker"]], index + (kind == "worker") * len(chiefs)


def _is_address(text: Any) -> bool:
    if not isinstance(text, str):
        return False
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit() and 0 < int(port) < 2**16


def wait_for(addresses: Sequence[str], own: int, seconds: float = 600) -> None:
    """Returns when every worker of the cluster has come, else raises.

    TensorFlow itself waits for an hour and then names nobody. Each worker listens on
    its own port and calls at the others'; whoever was there once has come.

    Args:
        addresses: of the workers, "HOST:PORT".
        own: which of them is this process.
        seconds: how long to wait.

    Raises:
        ValueError: naming the addresses where nobody was.
    """
    missing = [address for i, address in enumerate(addresses) if i != own]
    if not missing:
        return
    ends = time.monotonic() + seconds
    port = int(addresses[own].rpartition(":")[2])
    try:
        listening = socket.create_server(("", port))
    except OSError as error:
        raise ValueError(
            f"Expected port {port} of this machine to be free: TF_CONFIG gives it to "
            f"this worker. Received: {error.strerror}. Is another training running?"
        ) from error
    with listening:
        while missing:
            missing = [address for address in missing if not _is_there(address)]
            if missing and time.monotonic() > ends:
                raise ValueError(
                    f"Expected {len(addresses)} workers within {seconds:g} s. "
                    f"Received: nobody at {', '.join(missing)}. Is it started, and is "
                    "its port open to this machine?"
                )
            time.sleep(0.1 if missing else 0)


def _is_there(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def on_tpu(strategy: Any) -> bool:
    """Whether a strategy's devices are TPUs, whose own number is bfloat16."""
    if keras.backend.backend() == "jax":
        return any("tpu" in name for name in keras.distribution.list_devices())
    return isinstance(strategy, tf.distribute.TPUStrategy)


class Workers:
    """The processes and devices of one training.

    Attributes:
        index: of this process; 0 is the chief, the only one that writes files.
        count: of processes.
        replicas: that a batch is divided among, in all processes together.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.index, self.count, self.replicas = 0, 1, 1
        if isinstance(strategy, tf.distribute.Strategy):
            self.replicas = strategy.num_replicas_in_sync
            if self.replicas > 1 and not isinstance(strategy, KNOWN):
                raise ValueError(
                    "Expected a strategy of keras_vit.training.strategy, or a Mirrored "
                    "or TPU one: Keras trains wrongly, or not at all, under others. "
                    f"Received: {type(strategy).__name__}"
                )
            if isinstance(strategy, MultiWorker):
                addresses, self.index = cluster()
                self.count = len(addresses)
        else:
            mesh = strategy.device_mesh
            batch = mesh.axis_names.index(strategy.batch_dim_name)
            self.replicas = mesh.shape[batch]

    @classmethod
    def of(cls, model: keras.Model) -> "Workers":
        """Those that train a model: it was built under their strategy."""
        if keras.backend.backend() == "tensorflow":
            return cls(model.distribute_strategy)
        return cls(keras.distribution.distribution() or tf.distribute.get_strategy())

    @property
    def chief(self) -> bool:
        return self.index == 0

    def scope(self) -> Any:
        """Where a training's variables are made."""
        return self._strategy.scope()

    def check(self, recipe: Recipe, batch_size: int) -> None:
        """Raises ValueError where a recipe cannot be divided among the devices."""
        parts = recipe.accumulation_steps
        if batch_size % (self.replicas * parts):
            raise ValueError(
                "Expected a batch_size that is a multiple of devices times "
                f"accumulation_steps. Received: batch_size={batch_size}, "
                f"{self.replicas} devices in {self.count} processes, "
                f"accumulation_steps={parts}"
            )
        if self.count > 1 and recipe.momentum_dtype == "bfloat16":
            raise ValueError(
                "Expected momentum_dtype='float32' in several processes: TensorFlow "
                "makes no bfloat16 variable there (CollectiveBcastSend). Received: "
                f"momentum_dtype={recipe.momentum_dtype!r}, {self.count} processes"
            )

    def batches(self, made: Callable[[Shard], tf.data.Dataset]) -> Any:
        """A dataset whose global batches are `made`'s, a part on each replica.

        Args:
            made: of (this worker's index, how many there are), as
                `pipelines.train_pipeline` takes it, to this worker's batches.
        """
        if self.replicas == 1 or not isinstance(self._strategy, tf.distribute.Strategy):
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

    def any(self, *asked: bool) -> list[bool]:
        """What any of the processes asks, in all of them at the same moment."""
        if self.count == 1:
            return list(asked)
        return [bool(total) for total in self._sums(tf.constant(asked, tf.float32))]

    def meet(self) -> None:
        """Returns when every process has come here."""
        self.any(False)

    def check_step(self, step: int) -> None:
        """Raises ValueError unless every process goes on from the same step."""
        if self.count == 1:
            return
        (total,) = self._sums(tf.constant([step], tf.float32))
        if total != step * self.replicas:
            raise ValueError(
                "Expected every worker to find the same newest checkpoint: the run's "
                "folder has to be on a disk that all of them share. Received: step "
                f"{step} on worker {self.index}, {total / self.replicas:g} on average"
            )

    def each(self, variable: keras.Variable) -> np.ndarray:
        """A metric's number on each replica, float32 [R]: each counts what it has seen.

        One number, [], where there is one replica, and on JAX, where there is one sum.
        """
        parts = self._parts(variable)
        if self.replicas == 1 or not parts:
            number: np.ndarray = keras.ops.convert_to_numpy(variable)
            return number
        places = np.zeros(self.replicas, np.float32)
        first = self.index * len(parts)
        places[first : first + len(parts)] = [part.numpy() for part in parts]
        if self.count > 1:
            return self._sums(tf.constant(places)) / len(parts)
        return places

    def give(self, variable: keras.Variable, values: np.ndarray) -> None:
        """Puts back what `each` returned, to the bit on as many replicas.

        On another number the sum, in equal parts.
        """
        parts = self._parts(variable)
        if not parts or np.size(values) != self.replicas:
            variable.assign(np.sum(values))
            return
        first = self.index * len(parts)
        for part, value in zip(parts, np.ravel(values)[first:], strict=False):
            part.assign(value)

    def draw_apart(self, states: Sequence[keras.Variable]) -> None:
        """Gives each replica's dropout draws of its own, as vit_jax/train.py does.

        Args:
            states: of the generators, equal on all replicas: (seed, count) each.
        """
        for state in states:
            seed, count = keras.ops.convert_to_numpy(state)
            parts = self._parts(state)
            for replica, part in enumerate(parts, self.index * len(parts)):
                if replica:
                    own = (int(seed) + APART * replica) % 2**32
                    part.assign(np.array([own, count], seed.dtype))

    def _parts(self, variable: keras.Variable) -> Sequence[Any]:
        """The variables of this process's replicas; none on JAX."""
        if keras.backend.backend() != "tensorflow":
            return ()
        parts: Sequence[Any] = self._strategy.experimental_local_results(variable.value)
        return parts

    @functools.cached_property
    def _sums(self) -> Callable[[Any], np.ndarray]:
        @tf.function
        def sums(values: Any) -> Any:
            each = self._strategy.run(tf.identity, args=(values,))
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)

        return lambda values: sums(values).numpy()
