"""Runs that a kill cannot lose: checkpoints that continue to the same bits.

    RUN/begun.json                          what is trained, on what, with what seed
    RUN/start/step-0000000000.npz, .json    the first weights
    RUN/checkpoints/step-0000000120.npz     every variable after 120 updates
    RUN/checkpoints/step-0000000120.json    its size and sha256

The .json is written last: without it the .npz next to it does not count.
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
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import keras
import numpy as np

from keras_vit._lazy import renamed
from keras_vit.files import file_sha256, parse_json, replacing, write_json
from keras_vit.training import certificate as certificates
from keras_vit.training.distribution import Workers
from keras_vit.training.runs import HISTORY, RunStatus, read_run

__all__ = [
    "Checkpoints",
    "Preempted",
    "RunStatus",
    "SaveOptions",
    "Saved",
    "read_run",
]

__getattr__ = renamed(__name__, Told="RunStatus")

INFO = "info"  # In an npz: JSON of what is no variable, under the same checksum.


class SaveOptions(TypedDict, total=False):
    """Keyword arguments of `fit` and `transfer`: how a run is saved.

    SIGTERM and Ctrl-C save at once.

    Attributes:
        save_steps: updates between two checkpoints; default: None, `save_minutes` only.
        save_minutes: minutes between two checkpoints, or None; default: 10.
        keep: the number of checkpoints that stay; default: 2.
        wait: whether to wait while another process trains in the folder, in place of
            `RunInUse`; default: False.
    """

    save_steps: int | None
    save_minutes: float | None
    keep: int
    wait: bool


class Preempted(SystemExit):
    """The process was asked to end, and its run is saved.

    By SIGTERM or Ctrl-C.

    Unless it is caught the process ends, with the status that the signal gives: 128 and
    its number.

    Args:
        step: updates that are saved.
        signum: the signal.
    """

    def __init__(self, step: int, signum: int) -> None:
        super().__init__(128 + signum)
        self.step = step


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint that was read and found whole.

    Attributes:
        step: updates made.
        variables: arrays by name, as `Checkpoints.save` was given them.
        info: what the caller saved in addition to the variables.
    """

    step: int
    variables: dict[str, np.ndarray]
    info: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, of which the newest `keep` stay.

    Two are the least that survive damage to one of them. One that `newest` has found
    damaged does not count, and goes at the next `save`.

    Args:
        folder: folder of the checkpoints, created if absent.
        keep: how many stay, 1 or more.

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
        """Writes a checkpoint, whole or not at all, then drops what is too old.

        Args:
            step: updates made.
            variables: arrays [...] of any shape, by name.
            info: plain JSON values, kept under the same checksum.

        Raises:
            OSError: if the disk is full; the checkpoints before stay as they are.
        """
        values = self.folder / f"step-{step:010}.npz"
        told = np.frombuffer(json.dumps(dict(info)).encode(), np.uint8)
        arrays: dict[str, Any] = {**variables, INFO: told}
        with replacing(values) as temporary:
            with temporary.open("wb") as file:
                np.savez(file, **arrays)
            size, sha256 = temporary.stat().st_size, file_sha256(temporary)
        write_json(values.with_suffix(".json"), {"bytes": size, "sha256": sha256})
        self._damaged.discard(values.stem)
        self._drop_old()

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, whole or not, in order."""
        return sorted(map(_step, self._manifests()))

    def newest(self, last: int | None = None) -> Saved | None:
        """The newest whole checkpoint; warns of each newer one that is damaged.

        Args:
            last: the step after which none counts; None: all count.

        Returns:
            A `Saved`; None where there are no checkpoints.

        Raises:
            ValueError: if there are checkpoints and none is whole.
        """
        damaged = []
        for manifest in self._manifests():
            if last is not None and _step(manifest) > last:
                continue
            try:
                saved = _read(manifest)
            except (OSError, ValueError, KeyError, TypeError) as error:
                damaged.append(f"{manifest.with_suffix('.npz')} ({error})")
                self._damaged.add(manifest.stem)
                continue
            if damaged:
                warnings.warn(
                    f"Damaged: {'; '.join(damaged)}. The run goes on from step "
                    f"{saved.step}, the newest checkpoint that is whole",
                    stacklevel=2,
                )
            return saved
        if damaged:
            raise ValueError(
                "Expected a whole checkpoint to go on from. Received: "
                f"{'; '.join(damaged)}. Start the run anew in another folder"
            )
        return None

    def _manifests(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.json"), reverse=True)

    def _drop_old(self) -> None:
        stems = [manifest.stem for manifest in self._manifests()]
        whole = [stem for stem in stems if stem not in self._damaged]
        kept = whole[: self.keep]
        for file in self.folder.glob("step-*"):  # The .json last, as it vouches.
            if file.stem not in kept:
                file.with_suffix(".json").unlink(missing_ok=True)
                file.unlink(missing_ok=True)
        for file in self.folder.glob(".writing-*"):  # Of a process that was killed.
            file.unlink(missing_ok=True)


def _step(manifest: Path) -> int:
    return int(manifest.stem.removeprefix("step-"))


def _read(manifest: Path) -> Saved:
    told = parse_json(manifest.read_text())
    values = manifest.with_suffix(".npz")
    size = values.stat().st_size
    if size != told["bytes"]:
        raise ValueError(f"{size} of {told['bytes']} bytes")
    if file_sha256(values) != told["sha256"]:
        raise ValueError("its sha256 is another")
    with np.load(values, allow_pickle=False) as file:
        variables = dict(file)
    info = parse_json(variables.pop(INFO).tobytes())
    return Saved(_step(manifest), variables, info)


def model_variables(model: keras.Model) -> dict[str, Any]:
    """Weights and the states of dropout's generators, by place.

    Keras numbers some names as a process happens to make them.
    """
    return {f"model/{place:05}": v for place, v in enumerate(model.variables)}


def generator_states(model: keras.Model) -> list[Any]:
    """What dropout draws from: variables that are no weights."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def seed_torch(model: keras.Model, step: int) -> None:
    """Makes the dropout of update `step` a function of it and of the model's seeds.

    On torch, Keras's dropout draws from torch's own generator and not from a state of
    the layer's, and so do others, as torch's data loader.
    """
    import torch

    seeds = [keras.ops.convert_to_numpy(state)[0] for state in generator_states(model)]
    if seeds:
        sequence = np.random.SeedSequence([*map(int, seeds), step])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))


def training_variables(model: keras.Model) -> dict[str, Any]:
    """Every variable that training changes.

    Those of the model, and the optimizer's moments, averages and count of updates.
    """
    model.optimizer.build(model.trainable_variables)
    return model_variables(model) | {
        f"optimizer/{place:05}": variable
        for place, variable in enumerate(model.optimizer.variables)
    }


def capture(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The variables' values, as `Checkpoints.save` takes them."""
    return {
        name: plain(keras.ops.convert_to_numpy(variable))
        for name, variable in variables.items()
    }


def restore(variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Puts back what `capture` gave, to the bit.

    Raises:
        ValueError: if the model or its optimizer is another; nothing is changed then.
    """
    differing = sorted(variables.keys() ^ values.keys()) or [
        f"{name}, {tuple(variable.shape)} and {values[name].shape}"
        for name, variable in variables.items()
        if tuple(variable.shape) != values[name].shape
    ]
    if differing:
        raise ValueError(
            "Expected a checkpoint of this model and optimizer. Received: one that "
            f"differs in {', '.join(differing[:4])}. Build them as they were, or start "
            "another run"
        )
    for name, variable in variables.items():
        assign(variable, values[name])


def assign(variable: Any, value: np.ndarray) -> None:
    """The bits of `plain` back into a variable."""
    own = keras.ops.convert_to_numpy(variable).dtype
    variable.assign(value.view(own) if own.name == "bfloat16" else value)


def plain(value: np.ndarray) -> np.ndarray:
    """Numbers that an npz knows: bfloat16 as the integers of its bits."""
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value


def keep_start(run: Path, model: keras.Model, workers: Workers) -> None:
    """Keeps a model's variables in a run's folder, or puts back those kept there.

    Of a run that has checkpoints none are kept: the training has begun.
    """
    starts = Checkpoints(run / "start")
    begun = bool(Checkpoints(run / "checkpoints").steps())
    try:
        saved = starts.newest()
    except ValueError as error:
        if not begun:
            raise
        warnings.warn(f"{error}, to replay it from step 0", stacklevel=2)
        return
    workers.meet()  # All have looked before the chief writes.
    values = None if saved else capture(model_variables(model))
    if saved is not None:
        restore(model_variables(model), saved.variables)
    elif values is not None and workers.chief and not begun:
        starts.save(0, values, {})


def check_same(path: Path, given: Mapping[str, Any], writes: bool = True) -> None:
    """Writes what a run is, or compares with what was written.

    Args:
        path: path of the run's `begun.json`.
        given: plain JSON values: the recipe, the data's fingerprint, ...
        writes: whether this process is the one that writes.

    Raises:
        ValueError: naming each value that is another than when the run was begun.
    """
    given = json.loads(json.dumps(given))  # Tuples become lists, as in the file.
    if not path.exists():
        if writes:
            write_json(path, given)
        return
    try:
        begun = dict(parse_json(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected a run's own JSON. Received: {str(path)!r} ({error}). Start the "
            "run anew in another folder"
        ) from error
    check_order(
        begun, given, str(path), "or --resume never (resume='never') to begin anew"
    )
    check_equal(
        begun,
        given,
        "The run was begun otherwise than it would go on. Expected what "
        f"{str(path)!r} says",
        "Give the same again, another folder, or --resume never (resume='never') to "
        "begin anew",
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
            f"Expected a run whose images come in the order {is_now!r}. Received: "
            f"{where!r} of a run with {drawn}. Use the version of keras_vit and the "
            f"--distribute that it was begun with, {otherwise}"
        )


def check_equal(begun: Any, given: Any, expected: str, remedy: str) -> None:
    """Raises ValueError, naming each value of `begun` that is another in `given`."""
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
    """The signal that has come, SIGTERM or SIGINT; see `terminations`."""

    signum: int | None = None


@contextlib.contextmanager
def terminations() -> Iterator[Termination]:
    """Notes SIGTERM and Ctrl-C, inside, in the place of ending the process.

    Schedulers send SIGTERM before they take the machine away. A second Ctrl-C ends at
    once. Signals reach the main thread alone; on another one nothing is noted.
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
    """The recipe's optimizer, without the loss scaling of mixed_float16 around it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def synchronize(model: keras.Model) -> None:
    """Makes the variables those of this moment: JAX trains on copies."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


class EMACallback(keras.callbacks.Callback):
    """Evaluates the averaged weights (EMA), and trains on with the others' very bits.

    `keras.callbacks.SwapEMAWeights` swaps by adding and subtracting, which costs last
    digits, and `fit` overwrites the weights by their averages whenever it ends; here
    only the end of the training does.

    The optimizer updates the averages by Keras's rule (3.12 to 3.15): they start from
    the weights after the first update, see `Recipe.ema`.

    Args:
        total_steps: updates of the whole training.
    """

    def __init__(self, total_steps: int) -> None:
        super().__init__()
        self.total_steps = total_steps
        self._raw: list[np.ndarray] = []

    @property
    def _optimizer(self) -> Any:
        return own_optimizer(self.model)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged weights, inside."""
        self.put_in()
        try:
            yield
        finally:
            self.put_back()

    def put_in(self) -> None:
        """Gives the model its averaged weights."""
        weights = self.model.trainable_variables
        self._raw = [keras.ops.convert_to_numpy(weight).copy() for weight in weights]
        asked, self._optimizer.use_ema = self._optimizer.use_ema, True
        self._optimizer.finalize_variable_values(weights)
        self._optimizer.use_ema = asked
        self._unshare()

    def put_back(self) -> None:
        """Gives the model the weights that it trains on with."""
        for weight, value in zip(
            self.model.trainable_variables, self._raw, strict=False
        ):
            weight.assign(value)
        self._raw = []

    def _unshare(self) -> None:
        """Makes the weights arrays of their own.

        On JAX the averages and the weights that they were assigned to are one array,
        which a step that donates the weights deletes for both.
        """
        for weight in self.model.trainable_variables:
            weight.assign(keras.ops.copy(weight))

    def on_train_end(self, logs: Any = None) -> None:
        self._unshare()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._optimizer.use_ema = True

    def on_test_begin(self, logs: Any = None) -> None:
        self.put_in()

    def on_test_end(self, logs: Any = None) -> None:
        self.put_back()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        last = self._optimizer.iterations.numpy() == self.total_steps
        self._optimizer.use_ema = last  # What `fit` asks when it ends.


class CheckpointCallback(keras.callbacks.Callback):
    """The history of one training; in a folder, the training can be cut and resumed.

    A training is `period`s of updates with an evaluation after each. Belongs inside
    `terminations`, and before `EMACallback`, whose last act is not to be saved.

    Args:
        total_steps: updates of the whole training.
        period: updates between two evaluations.
        metrics: the objects that the model was compiled with.
        workers: the processes of the training, of whom the chief writes.
        by_loss: whether the best evaluation is that of the least loss, not of the
            highest accuracy.
        folder: folder of the run; None keeps the history alone, in memory.
        averaged: where evaluations are of averaged weights.
        save_best: called when an evaluation was the best so far.
        termination: see `terminations`.
        save_steps: updates between two checkpoints, or None.
        save_minutes: minutes between two checkpoints, or None.
        keep: checkpoints that stay.
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
        self.rows: list[dict[str, float]] = []
        self.best = -math.inf
        self.pending: dict[str, float] | None = None  # Of a period to be evaluated.
        self.certificate: certificates.Certificate | None = None
        self.certified: keras.Model | None = None  # None: what trains.
        self._checkpoints: Checkpoints | None = None
        if folder is not None:
            self._checkpoints = Checkpoints(folder / "checkpoints", keep)
        self._cut: list[np.ndarray] = []  # The metrics of a period cut in two.
        self._saved_step = 0
        self._tried_at, self._tried_step = time.monotonic(), 0

    def resume(self, saved: Saved | None = None) -> None:
        """Puts a checkpoint into the model and here: the folder's newest whole one.

        Lines of the history after it, which are to come again, are dropped.

        Args:
            saved: the checkpoint, where there is no folder; None: from the beginning.
        """
        if self._checkpoints is not None:
            saved = self._checkpoints.newest()
        if saved is not None:
            values = dict(saved.variables)
            self._cut = [
                values.pop(name) for name in sorted(values) if _is_metric(name)
            ]
            restore(training_variables(self.model), values)
            self.step = self._saved_step = self._tried_step = saved.step
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
        """Writes a checkpoint of this moment."""
        if self._checkpoints is None:
            return
        synchronize(self.model)
        metrics = self._metric_variables() if self.step % self.period else []
        values = capture(training_variables(self.model)) | {
            f"metrics/{place:05}": plain(self.workers.each(variable))
            for place, variable in enumerate(metrics)
        }
        info = {"rows": self.rows, "best": self.best, "pending": self.pending}
        if self.certificate is not None:
            info["links"] = self.certificate.links
        if self.workers.chief:
            self._checkpoints.save(self.step, values, info)
        self._saved_step = self.step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._cut:  # `fit` has just reset them.
            for variable, value in zip(
                self._metric_variables(), self._cut, strict=True
            ):
                self.workers.give(variable, value)
            self._cut = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if keras.backend.backend() == "torch":
            seed_torch(self.model, self.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        self._check_finite((logs or {}).get("loss", 0.0))
        if self.step % self.period == 0:
            self.pending = {key: float(value) for key, value in (logs or {}).items()}
        asked, due = self.workers.any(self._is_asked(), self._is_due())
        if asked:
            self._end()
        if due and self.step % self.period:
            self._save_in_between()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        (asked,) = self.workers.any(self._is_asked())
        if asked:
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
        """Adds a link of this moment to a certificate."""
        synchronize(self.model)
        metrics = {name: value for name, value in row.items() if name != "step"}
        variables = training_variables(self.model)
        variables |= model_variables(self.certified or self.model)
        certificate.add(self.step, capture(variables), metrics)

    def _write_lines(self) -> None:
        """Writes the history and the certificate, each whole or not at all."""
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
            f"checkpoint before it is of step {self._saved_step}{kept}. Take a lower "
            "base_lr, a longer warm-up or a smaller clip_norm"
        )

    def _is_asked(self) -> bool:
        return self.termination.signum is not None

    def _end(self) -> None:
        """Ends this process: it was asked to, or another one of the training was."""
        signum = self.termination.signum or signal.SIGTERM
        self.save()
        self.workers.meet()  # Nobody ends while the chief writes.
        print(
            f"Ended by {signal.Signals(signum).name} after step {self.step}, which is "
            f"saved in {str(self.folder)!r}. The same call goes on from there",
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
        """What cannot be written costs a warning, not the training."""
        try:
            yield
        except OSError as error:
            warnings.warn(
                f"The training goes on from step {self.step} without {without}. "
                f"{error.strerror}",
                stacklevel=2,
            )

    def metrics(self) -> list[keras.metrics.Metric]:
        """The loss's mean, which Keras owns, and ours, built or not."""
        (loss,) = [m for m in self.model.metrics if m.name == "loss"]
        return [loss, *self.own_metrics]

    def _metric_variables(self) -> list[Any]:
        return [variable for metric in self.metrics() for variable in metric.variables]


def _is_metric(name: str) -> bool:
    return name.startswith("metrics/")


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
