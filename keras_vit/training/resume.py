"""Checkpoints of runs, which resume bit-exactly after an interruption.

    RUN/begun.json                          recipe, model, data and seed
    RUN/start/step-0000000000.npz, .json    the initial weights
    RUN/checkpoints/step-0000000120.npz     all variables after 120 updates
    RUN/checkpoints/step-0000000120.json    size and SHA-256 of the .npz

The .json is written last. An .npz without a .json is ignored.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import keras
import numpy as np

from keras_vit._lazy import renamed
from keras_vit.callers import warn
from keras_vit.files import file_sha256, parse_json, replacing, write_json
from keras_vit.training import certificate as certificates
from keras_vit.training.distribution import Workers
from keras_vit.training.runs import (
    CHECKPOINTS,
    HISTORY,
    RunStatus,
    read_run,
    step_of,
)

__all__ = [
    "Checkpoints",
    "Preempted",
    "RunStatus",
    "SaveOptions",
    "Saved",
    "read_run",
]

__getattr__ = renamed(__name__, Told="RunStatus")

INFO = "info"  # Key in an npz: JSON of the other values, under the same checksum.


class SaveOptions(TypedDict, total=False):
    """Keyword arguments of `fit` and `transfer` for saving a run.

    SIGTERM and Ctrl-C save immediately.

    Attributes:
        save_steps: updates between two checkpoints; default: None, only `save_minutes`.
        save_minutes: minutes between two checkpoints, or None; default: 10.
        keep: number of checkpoints to keep; default: 2.
        wait: whether to wait while a different process trains in the folder, instead of
            raising `RunInUse`; default: False.
    """

    save_steps: int | None
    save_minutes: float | None
    keep: int
    wait: bool


class Preempted(SystemExit):
    """Raised after SIGTERM or Ctrl-C, when the run is saved.

    If it is not caught, the process ends with the signal's status, 128 plus its number.

    Args:
        step: number of updates in the checkpoint.
        signum: the signal.
    """

    def __init__(self, step: int, signum: int) -> None:
        super().__init__(128 + signum)
        self.step = step


@dataclasses.dataclass(frozen=True)
class Saved:
    """An undamaged checkpoint that was read.

    Attributes:
        step: number of updates.
        variables: arrays by name, as passed to `Checkpoints.save`.
        info: other values that the caller saved.
    """

    step: int
    variables: dict[str, np.ndarray]
    info: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run; the newest `keep` are kept.

    Keep two or more to survive damage to one of them. A checkpoint that `newest` has
    found damaged does not count and is deleted by the next `save`.

    Args:
        folder: folder of the checkpoints, created if it does not exist.
        keep: number of checkpoints to keep, 1 or more.

    Raises:
        ValueError: if `keep` is less than 1.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"Expected keep to be 1 or more. Received: keep={keep}")
        self.folder = Path(folder)
        self.keep = keep
        self._damaged: set[str] = set()

    def save(
        self, step: int, variables: Mapping[str, np.ndarray], info: Mapping[str, Any]
    ) -> None:
        """Writes a checkpoint, completely or not at all, then deletes old ones.

        Args:
            step: number of updates.
            variables: arrays [...] of any shape, by name.
            info: plain JSON values, stored under the same checksum.

        Raises:
            OSError: if the disk is full. Earlier checkpoints are not changed.
        """
        values = self.folder / f"step-{step:010}.npz"
        encoded = np.frombuffer(json.dumps(dict(info)).encode(), np.uint8)
        arrays: dict[str, Any] = {**variables, INFO: encoded}
        with replacing(values) as temporary:
            with temporary.open("wb") as file:
                np.savez(file, **arrays)
            size, sha256 = temporary.stat().st_size, file_sha256(temporary)
        write_json(values.with_suffix(".json"), {"bytes": size, "sha256": sha256})
        self._damaged.discard(values.stem)
        self._drop_old()

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, damaged or not, in order."""
        return sorted(map(step_of, self._manifests()))

    def newest(self, last: int | None = None) -> Saved | None:
        """Reads the newest undamaged checkpoint; warns of each damaged newer one.

        Args:
            last: step after which checkpoints are ignored; None: all count.

        Returns:
            A `Saved`, or None if there are no checkpoints.

        Raises:
            ValueError: if there are checkpoints and all are damaged.
        """
        damaged = []
        for manifest in self._manifests():
            if last is not None and step_of(manifest) > last:
                continue
            try:
                saved = _read(manifest)
            except (OSError, ValueError, KeyError, TypeError) as error:
                damaged.append(f"{manifest.with_suffix('.npz')} ({error})")
                self._damaged.add(manifest.stem)
                continue
            if damaged:
                warn(
                    f"Damaged: {'; '.join(damaged)}. The run resumes from step "
                    f"{saved.step}, the newest undamaged checkpoint",
                )
            return saved
        if damaged:
            raise ValueError(
                "Expected an undamaged checkpoint to resume from. Received: "
                f"{'; '.join(damaged)}. Start the run again in a different folder"
            )
        return None

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.json"), reverse=True)

    def _drop_old(self) -> None:
        stems = [manifest.stem for manifest in self._manifests()]
        whole = [stem for stem in stems if stem not in self._damaged]
        kept = whole[: self.keep]
        for file in self.folder.glob("step-*"):  # An .npz counts only with its .json.
            if file.stem not in kept:
                file.with_suffix(".json").unlink(missing_ok=True)
                file.unlink(missing_ok=True)
        for file in self.folder.glob(".writing-*"):  # Left by a killed process.
            file.unlink(missing_ok=True)


def _read(manifest: Path) -> Saved:
    expected = parse_json(manifest.read_text())
    values = manifest.with_suffix(".npz")
    size = values.stat().st_size
    if size != expected["bytes"]:
        raise ValueError(f"{size} of {expected['bytes']} bytes")
    if file_sha256(values) != expected["sha256"]:
        raise ValueError("its sha256 differs")
    with np.load(values, allow_pickle=False) as file:
        variables = dict(file)
    info = parse_json(variables.pop(INFO).tobytes())
    return Saved(step_of(manifest), variables, info)


def model_variables(model: keras.Model) -> dict[str, Any]:
    """Returns the weights and the states of dropout's generators, by index.

    Keras numbers some names in the order in which a process creates layers.
    """
    return {f"model/{place:05}": v for place, v in enumerate(model.variables)}


def generator_states(model: keras.Model) -> list[Any]:
    """Returns the states of dropout's generators: variables that are not weights."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def seed_torch(model: keras.Model, step: int) -> None:
    """Makes dropout in update `step` depend only on the step and the model's seeds.

    On torch, Keras's dropout uses torch's generator instead of a state of the layer.
    Other code, such as torch's data loader, uses the same generator.
    """
    import torch

    seeds = [keras.ops.convert_to_numpy(state)[0] for state in generator_states(model)]
    if seeds:
        sequence = np.random.SeedSequence([*map(int, seeds), step])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))


def training_variables(model: keras.Model) -> dict[str, Any]:
    """Returns all variables that training changes.

    They are the model's variables, and the moments, averages and number of updates of
    its optimizer, which is built (`preparing.compiled`).
    """
    return model_variables(model) | {
        f"optimizer/{place:05}": variable
        for place, variable in enumerate(model.optimizer.variables)
    }


def capture(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the values of variables in the form for `Checkpoints.save`."""
    return {
        name: plain(keras.ops.convert_to_numpy(variable))
        for name, variable in variables.items()
    }


def restore(variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Restores the values of `capture`, bit-exactly.

    Raises:
        ValueError: if the model or its optimizer differs. Nothing is changed then.
    """
    differing = sorted(variables.keys() ^ values.keys()) or [
        f"{name}, {tuple(variable.shape)} and {values[name].shape}"
        for name, variable in variables.items()
        if tuple(variable.shape) != values[name].shape
    ]
    if differing:
        raise ValueError(
            "Expected a checkpoint of this model and optimizer. Received: one that "
            f"differs in {', '.join(differing[:4])}. Build them as in the original "
            "run, or start a new run"
        )
    for name, variable in variables.items():
        assign(variable, values[name])


def assign(variable: Any, value: np.ndarray) -> None:
    """Assigns a value of `plain` to a variable, bit-exactly."""
    dtype = keras.ops.convert_to_numpy(variable).dtype
    variable.assign(value.view(dtype) if dtype.name == "bfloat16" else value)


def plain(value: np.ndarray) -> np.ndarray:
    """Returns an array that an npz supports: bfloat16 as integers of the same bits."""
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value


def keep_start(run: Path, model: keras.Model, workers: Workers) -> None:
    """Stores a model's initial variables in a run's folder, or restores stored ones.

    If the run already has checkpoints, nothing is stored, since training has begun.
    """
    starts = Checkpoints(run / "start")
    begun = bool(Checkpoints(run / CHECKPOINTS).steps())
    try:
        saved = starts.newest()
    except ValueError as error:
        if not begun:
            raise
        warn(f"{error}, to replay it from step 0")
        return
    workers.meet()  # All must have read before the chief writes.
    values = None if saved else capture(model_variables(model))
    if saved is not None:
        restore(model_variables(model), saved.variables)
    elif values is not None and workers.chief and not begun:
        starts.save(0, values, {})


def check_same(path: Path, given: Mapping[str, Any], writes: bool = True) -> None:
    """Writes the identity of a run, or compares it with the stored one.

    Args:
        path: path of the run's `begun.json`.
        given: plain JSON values: the recipe, the data's fingerprint, ...
        writes: whether this process writes the file.

    Raises:
        ValueError: with each value that differs from the start of the run.
    """
    given = dict(json.loads(json.dumps(given)))  # Tuples become lists, as in the file.
    if not path.exists():
        if writes:
            write_json(path, given)
        return
    try:
        begun = dict(parse_json(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected the JSON file of a run. Received: {str(path)!r} ({error}). "
            "Start the run again in a different folder"
        ) from error
    if "config" not in begun:  # keras_vit 0.1 did not store it.
        given.pop("config", None)
    check_order(
        begun, given, str(path), "or --resume never (resume='never') to start again"
    )
    check_equal(
        begun,
        given,
        "The run cannot be resumed with different settings. Expected those in "
        f"{str(path)!r}",
        "Use the same settings, a different folder, or --resume never "
        "(resume='never') to start again",
    )


def check_order(begun: Any, given: Any, where: str, otherwise: str) -> None:
    """Raises ValueError if the order of an epoch was drawn by a different scheme.

    Args:
        begun: The run's stored identity; keras_vit 0.1 did not store the order.
        given: The identity of the present call.
        where: File that contains `begun`.
        otherwise: Remedy other than the version that began the run.
    """
    was, is_now = (facts.get("order") for facts in (begun, given))
    if was != is_now:
        drawn = "the shuffle of keras_vit 0.1" if was is None else repr(was)
        raise ValueError(
            f"Expected a run with the image order {is_now!r}. Received: "
            f"{where!r} of a run with {drawn}. Use the version of keras_vit and the "
            f"--distribute of the original run, {otherwise}"
        )


def check_equal(begun: Any, given: Any, expected: str, remedy: str) -> None:
    """Raises ValueError with each value of `begun` that differs in `given`."""
    given = json.loads(json.dumps(given))
    if changes := list(_differences(begun, given)):
        raise ValueError(f"{expected}. Received: {'; '.join(changes[:12])}. {remedy}")


def _differences(begun: Any, given: Any, name: str = "") -> Iterator[str]:
    if isinstance(begun, dict) and isinstance(given, dict):
        for key in sorted(begun.keys() | given.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(begun.get(key), given.get(key), inner)
    elif begun != given:
        yield f"{name} was {json.dumps(begun)}, is {json.dumps(given)}"


class Termination:
    """The received signal, SIGTERM or SIGINT; see `terminations`."""

    signum: int | None = None


@contextlib.contextmanager
def terminations() -> Iterator[Termination]:
    """Records SIGTERM and Ctrl-C instead of ending the process.

    Schedulers send SIGTERM before they stop a machine. A second Ctrl-C ends the process
    immediately. Only the main thread receives signals; others record nothing.
    """
    noted = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(signum: int, *_: object) -> None:
        noted.signum = signum
        signal.signal(signum, before[signum])

    before: dict[int, Any] = {
        signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)
    }
    for signum in before:
        signal.signal(signum, note)
    try:
        yield noted
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def own_optimizer(model: keras.Model) -> Any:
    """Returns the recipe's optimizer, without the loss scaling of mixed_float16."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def synchronize(model: keras.Model) -> None:
    """Updates the variables, because JAX trains on copies."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


class EMACallback(keras.callbacks.Callback):
    """Evaluates averaged weights (EMA), and restores the weights bit-exactly.

    `keras.callbacks.SwapEMAWeights` swaps by adding and subtracting, which loses
    precision. `fit` also replaces the weights by their averages whenever it ends. Here
    this happens only at the end of the run.

    The optimizer updates the averages by Keras's rule (3.12 to 3.15): they start from
    the weights after the first update, see `Recipe.ema`.

    Args:
        total_steps: updates of the whole run.
    """

    def __init__(self, total_steps: int) -> None:
        super().__init__()
        self.total_steps = total_steps
        self.step = 0  # Also counts updates that mixed_float16 leaves out.
        self._raw: list[np.ndarray] = []

    @property
    def _optimizer(self) -> Any:
        return own_optimizer(self.model)

    @property
    def _started(self) -> bool:
        """Whether there are averages: they are zeros before the first update."""
        return bool(self._optimizer.iterations.numpy())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Gives the model its averaged weights within a `with` block."""
        self.put_in()
        try:
            yield
        finally:
            self.put_back()

    def put_in(self) -> None:
        """Gives the model its averaged weights."""
        weights = self.model.trainable_variables
        self._raw = [keras.ops.convert_to_numpy(weight).copy() for weight in weights]
        before, self._optimizer.use_ema = self._optimizer.use_ema, self._started
        self._optimizer.finalize_variable_values(weights)
        self._optimizer.use_ema = before
        self._unshare()

    def put_back(self) -> None:
        """Restores the weights for training."""
        for weight, value in zip(
            self.model.trainable_variables, self._raw, strict=False
        ):
            weight.assign(value)
        self._raw = []

    def _unshare(self) -> None:
        """Copies the weights.

        On JAX, the averages and the weights share an array after the assignment. A step
        that donates the weights would delete it for both.
        """
        for weight in self.model.trainable_variables:
            weight.assign(keras.ops.copy(weight))

    def on_train_end(self, logs: Any = None) -> None:
        self._unshare()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._optimizer.use_ema = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1

    def on_test_begin(self, logs: Any = None) -> None:
        self.put_in()

    def on_test_end(self, logs: Any = None) -> None:
        self.put_back()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        last = self.step == self.total_steps
        self._optimizer.use_ema = last and self._started  # `fit` checks it at its end.


class CheckpointCallback(keras.callbacks.Callback):
    """Records the history of a run; with a folder, also saves it to be resumed.

    A run consists of periods of updates with an evaluation after each. Use the callback
    inside `terminations`, and before `EMACallback`, whose last change must not be
    saved.

    Args:
        total_steps: updates of the whole run.
        period: updates between two evaluations.
        metrics: metrics that the model was compiled with.
        workers: processes of the run; only the chief writes.
        by_loss: whether the best evaluation has the lowest loss instead of the highest
            accuracy.
        folder: folder of the run; None: the history is only kept in memory.
        averaged: callback that evaluates averaged weights, or None.
        save_best: function that is called after the best evaluation so far.
        termination: see `terminations`.
        save_steps: updates between two checkpoints, or None.
        save_minutes: minutes between two checkpoints, or None.
        keep: number of checkpoints to keep.
    """

    def __init__(
        self,
        total_steps: int,
        period: int,
        metrics: list[keras.metrics.Metric],
        workers: Workers,
        *,
        by_loss: bool = False,
        folder: Path | None = None,
        averaged: EMACallback | None = None,
        save_best: Callable[[], None] | None = None,
        termination: Termination | None = None,
        save_steps: int | None = None,
        save_minutes: float | None = None,
        keep: int = 2,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.total_steps = total_steps
        self.period = period
        self.own_metrics = metrics
        self.by_loss = by_loss
        self.workers = workers
        self.averaged = averaged
        self.save_best = save_best
        self.termination = termination or Termination()
        self.save_steps = save_steps
        self.save_minutes = save_minutes
        self.step = 0
        self.mean_since = 0  # The step after which the metrics were reset.
        self.rows: list[dict[str, float]] = []
        self.best = -math.inf
        self.pending: dict[str, float] | None = None  # Logs of a period to evaluate.
        self.certificate: certificates.Certificate | None = None
        self.certified: keras.Model | None = None  # None: the trained model.
        self._checkpoints: Checkpoints | None = None
        if folder is not None:
            self._checkpoints = Checkpoints(folder / CHECKPOINTS, keep)
        self._cut: list[np.ndarray] = []  # Metrics of an interrupted period,
        self._cut_since = 0  # which were reset after this step.
        self._saved_step = 0
        self._tried_at, self._tried_step = time.monotonic(), 0

    def resume(self, saved: Saved | None = None) -> None:
        """Restores the newest undamaged checkpoint of the folder.

        Later lines of the history are deleted, since they will be written again.

        Args:
            saved: the checkpoint if there is no folder; None: start from the beginning.
        """
        if self._checkpoints is not None:
            saved = self._checkpoints.newest()
        if saved is not None:
            values = dict(saved.variables)
            cut = [values.pop(name) for name in sorted(values) if _is_metric(name)]
            restore(training_variables(self.model), values)
            self.step = self._saved_step = self._tried_step = saved.step
            if cut and saved.info.get("period", self.period) == self.period:
                self._cut = cut
                begun = saved.step - saved.step % self.period
                self._cut_since = saved.info.get("mean_since", begun)
            if self.averaged is not None:
                self.averaged.step = self.step
            self.rows = saved.info["rows"]
            self.best = saved.info["best"]
            self.pending = saved.info["pending"]
            if self.certificate is not None:
                self.certificate.links += saved.info.get("links", [])
        self.workers.check_step(self.step)
        if self.certificate is not None and not self.certificate.links:
            self._certify(self.certificate, {})
        self._write_lines()

    def save(self) -> None:
        """Writes a checkpoint of the present state."""
        if self._checkpoints is None:
            return
        synchronize(self.model)
        metrics = self._metric_variables() if self.step % self.period else []
        values = capture(training_variables(self.model)) | {
            f"metrics/{place:05}": plain(self.workers.each(variable))
            for place, variable in enumerate(metrics)
        }
        info = {
            "rows": self.rows,
            "best": self.best,
            "pending": self.pending,
            "period": self.period,
            "mean_since": self.mean_since,
        }
        if self.certificate is not None:
            info["links"] = self.certificate.links
        if self.workers.chief:
            self._checkpoints.save(self.step, values, info)
        self._saved_step = self.step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.mean_since = self.step
        if self._cut:  # `fit` has just reset them.
            for variable, value in zip(
                self._metric_variables(), self._cut, strict=True
            ):
                self.workers.give(variable, value)
            self.mean_since, self._cut = self._cut_since, []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if keras.backend.backend() == "torch":
            seed_torch(self.model, self.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        self._check_finite((logs or {}).get("loss", 0.0))
        if self.step % self.period == 0:
            self.pending = {key: float(value) for key, value in (logs or {}).items()}
        ends, due = self.workers.any(self._is_asked(), self._is_due())
        if ends:
            self._end()
        if due and self.step % self.period:
            self._save_in_between()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        (ends,) = self.workers.any(self._is_asked())
        if ends:
            if self.averaged is not None:
                self.averaged.put_back()
            self._end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._check_finite((logs or {}).get("val_loss", 0.0))  # After its last update.
        self.pending = None
        row = {"step": self.step, **(logs or {})}
        self.rows.append({key: float(value) for key, value in row.items()})
        if self.certificate is not None:
            self._certify(self.certificate, self.rows[-1])
        score = row.get("val_accuracy", row.get("accuracy", -math.inf))
        if self.by_loss:
            score = -row.get("val_loss", row["loss"])
        if score > self.best:
            self.best = float(score)
            if self.save_best is not None:
                with self._going_on("the best evaluation's model"):
                    self.save_best()
        with self._going_on("a line of its history"):
            self._write_lines()
        (due,) = self.workers.any(self._is_due())
        if due and self.step < self.total_steps:
            self._save_in_between()

    def _certify(
        self, certificate: certificates.Certificate, row: Mapping[str, float]
    ) -> None:
        """Adds a link for the present state to a certificate."""
        synchronize(self.model)
        metrics = {name: value for name, value in row.items() if name != "step"}
        variables = training_variables(self.model)
        variables |= model_variables(self.certified or self.model)
        certificate.add(self.step, capture(variables), metrics)

    def _write_lines(self) -> None:
        """Writes the history and the certificate, each completely or not at all."""
        if self.folder is None or not self.workers.chief:
            return
        files: dict[str, list[Any]] = {HISTORY: self.rows}
        if self.certificate is not None:
            files[certificates.FILE] = self.certificate.links
        for name, lines in files.items():
            with replacing(self.folder / name) as temporary:
                temporary.write_text("".join(map(_line, lines)))

    def _check_finite(self, loss: float) -> None:
        if math.isfinite(loss):
            return
        kept = "" if self.folder is None else f", kept in {str(self.folder)!r}"
        raise ValueError(
            f"Expected a finite loss. Received: {loss} at step {self.step}; the last "
            f"checkpoint before it is of step {self._saved_step}{kept}. Use a lower "
            "base_lr, a longer warm-up or a smaller clip_norm"
        )

    def _is_asked(self) -> bool:
        return self.termination.signum is not None

    def _end(self) -> None:
        """Saves and ends this process after a signal to any process of the run."""
        signum = self.termination.signum or signal.SIGTERM
        self.save()
        self.workers.meet()  # All wait until the chief has written.
        print(
            f"\nStopped by {signal.Signals(signum).name} after step {self.step}, which "
            f"is saved in {str(self.folder)!r}. To resume, run the same command or the "
            "same Python call again.",
            file=sys.stderr,
        )
        raise Preempted(self.step, signum)

    def _is_due(self) -> bool:
        steps = self.step - self._tried_step
        minutes = (time.monotonic() - self._tried_at) / 60
        return (self.save_steps is not None and steps >= self.save_steps) or (
            self.save_minutes is not None and minutes >= self.save_minutes
        )

    def _save_in_between(self) -> None:
        with self._going_on("a new checkpoint"):
            self.save()
        self._tried_at, self._tried_step = time.monotonic(), self.step

    @contextlib.contextmanager
    def _going_on(self, without: str) -> Iterator[None]:
        """Turns a failed write into a warning, so that training continues."""
        try:
            yield
        except OSError as error:
            warn(
                f"Training continues from step {self.step} without {without}. "
                f"{error.strerror}",
            )

    def metrics(self) -> list[keras.metrics.Metric]:
        """Returns Keras's mean of the loss, and the compiled metrics, built or not."""
        (loss,) = [m for m in self.model.metrics if m.name == "loss"]
        return [loss, *self.own_metrics]

    def _metric_variables(self) -> list[Any]:
        return [variable for metric in self.metrics() for variable in metric.variables]


def _is_metric(name: str) -> bool:
    return name.startswith("metrics/")


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
