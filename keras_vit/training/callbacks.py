"""Speed of a training run, and scalars for TensorBoard.

    RUN/tensorboard/events.out.tfevents...    every tag of `TAGS`, by update

`tensorboard --logdir RUN` draws them; `keras-vit runs show RUN` and `read` do not need
TensorBoard. The files are TFRecords of `Event`s, written without the tensorboard
package, which TensorFlow no longer installs.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_vit.callers import warn
from keras_vit.training.resume import CheckpointCallback, own_optimizer, synchronize

__all__ = ["read"]

Event: Any = tf.compat.v1.Event
START = tf.compat.v1.SessionLog.START

FOLDER = "tensorboard"
POINTS = 1000  # In a run: as many as TensorBoard keeps for one curve.
SECONDS = 1.0  # Shortest time over which a speed is measured.
TAGS = (
    "train/loss",
    "train/accuracy",
    "train/learning_rate",
    "train/gradient_norm",
    "train/images_per_second",
    "evaluation/loss",
    "evaluation/accuracy",
)


class Events:
    """An event file that starts after an update. A full disk ends it, with a warning.

    Args:
        folder: folder of the file, created if absent.
        step: updates made before. Older files' scalars of later updates are discarded,
            as in TensorBoard, because an interrupted run trains these updates again.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns():020}.keras_vit"
        self._writer: Any = tf.io.TFRecordWriter(str(folder / name))
        self._write(file_version="brain.Event:2")
        self._write(step=step + 1, session_log=tf.compat.v1.SessionLog(status=START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes `values` by tag and flushes the file."""
        listed = [
            tf.compat.v1.Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
        ]
        self._write(step=step, summary=tf.compat.v1.Summary(value=listed))

    def _write(self, **fields: Any) -> None:
        if self._writer is None:
            return
        event = Event(wall_time=time.time(), **fields)
        try:
            self._writer.write(event.SerializeToString())
            self._writer.flush()
        except tf.errors.OpError as error:
            self._writer = None
            warn(
                f"Training continues without scalars for TensorBoard. {error}",
            )


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the curves of a training run.

    If a kill cut a file in the middle of a record, the records before it are read.

    Args:
        folder: folder of the event files, `tensorboard` in the `output` of `fit`.

    Returns:
        For each tag of `TAGS` that was written, a list of (step, value) in the order of
        steps. A step is the number of updates made.
    """
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        records = tf.data.TFRecordDataset(str(path)).ignore_errors()
        for record in records.as_numpy_iterator():
            event = Event.FromString(record)
            if event.session_log.status == START:
                found = {
                    tag: {k: v for k, v in points.items() if k < event.step}
                    for tag, points in found.items()
                }
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return {tag: sorted(points.items()) for tag, points in found.items() if points}


class Watch(keras.callbacks.Callback):
    """Measures the speed of a training run and writes its scalars if it has a folder.

    Args:
        keeper: counts the steps; belongs before this callback.
        batch_size: images in an update.
        learning_rate: learning rate of an update, which is counted from 0.
        later_steps: updates that follow this run in the same call, such as those of a
            sweep's other learning rates; part of the remaining time.
    """

    def __init__(
        self,
        keeper: CheckpointCallback,
        batch_size: int,
        learning_rate: Callable[[int], Any],
        later_steps: int = 0,
    ) -> None:
        super().__init__()
        self.keeper = keeper
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.later_steps = later_steps
        self.images_per_second: float | None = None
        self._every = max(1, keeper.total_steps // POINTS)
        self._events: Events | None = None
        self._since: float | None = None  # When the last update ended.
        self._seconds, self._images = 0.0, 0  # Since the last measurement.
        self._written: dict[str, tuple[int, float]] = {}  # Updates, and their sum.
        self._evaluation_seconds = 0.0

    def begin(self) -> None:
        """Opens the event file after the keeper's `step` updates."""
        if self.keeper.folder is not None and self.keeper.workers.chief:
            self._events = Events(self.keeper.folder / FOLDER, self.keeper.step)

    @property
    def seconds_left(self) -> float | None:
        """Remaining time, with evaluations and later steps; None: not known yet."""
        if not self.images_per_second:
            return None
        steps = self.keeper.total_steps - self.keeper.step + self.later_steps
        updates = steps * self.batch_size / self.images_per_second
        evaluations = -(-steps // self.keeper.period)
        return updates + evaluations * self._evaluation_seconds

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._since = None  # The first update compiles, so it is not measured.
        self._written = {}
        count = self.keeper.step - self.keeper.mean_since
        if count:  # A resumed period: the metrics continue.
            self._written = {
                metric.name: (count, float(metric.result()) * count)
                for metric in self.keeper.metrics()
            }

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if self._since is not None:
            self._seconds += now - self._since
            self._images += self.batch_size
        self._since = now
        if self._images and self._seconds >= SECONDS:
            self.images_per_second = self._images / self._seconds
            self._seconds, self._images = 0.0, 0
        step = self.keeper.step
        if self._events is not None and step % self._every == 0:
            self._events.scalars(step, self._scalars(logs or {}))

    def _scalars(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Scalars of the updates since the last written ones."""
        synchronize(self.model)
        optimizer = own_optimizer(self.model)
        applied = int(optimizer.iterations.numpy())  # mixed_float16 leaves some out.
        values = {
            f"train/{name}": self._since_written(name, float(logs[name]))
            for name in ("loss", "accuracy")
            if name in logs
        }
        values["train/learning_rate"] = float(self.learning_rate(max(applied - 1, 0)))
        values["train/gradient_norm"] = float(optimizer.gradient_norm.numpy())
        if self.images_per_second is not None:
            values["train/images_per_second"] = self.images_per_second
        return values

    def _since_written(self, name: str, mean: float) -> float:
        """The mean since the last written update, from Keras's mean of the period."""
        count = self.keeper.step - self.keeper.mean_since
        before, total = self._written.get(name, (0, 0.0))
        self._written[name] = count, mean * count
        return (mean * count - total) / (count - before)

    def on_test_begin(self, logs: Any = None) -> None:
        self._evaluation_began = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        self._evaluation_seconds = time.perf_counter() - self._evaluation_began

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._events is not None and logs and "val_loss" in logs:
            names = [n for n in ("loss", "accuracy") if f"val_{n}" in logs]
            values = {f"evaluation/{name}": logs[f"val_{name}"] for name in names}
            self._events.scalars(self.keeper.step, values)
