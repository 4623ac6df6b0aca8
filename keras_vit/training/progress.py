"""The progress line of a training run, 80 columns wide at most.

    step 238/500  1,097 img/s  12 s left  loss 0.041  acc 99.5 %

On a terminal and in a notebook it is rewritten in place, five times a second at most.
The line of an evaluation stays. In a log file there are only the lines of evaluations.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras

from keras_vit.training.callbacks import Watch

WIDTH = 80
INTERVAL = 0.2  # Seconds between two lines in place.


class ProgressLine(keras.callbacks.Callback):
    """Prints the progress of a training run; `close` ends the line in place.

    Args:
        watch: measures speed and remaining time; belongs before this callback.
        images: the evaluation images in words, such as "359 test images".
        kind: their kind, such as "test".
        verbose: 0 prints nothing, 1 a line in place, 2 a line for each evaluation;
            "auto" is 1 on a terminal or in a notebook, else 2.
        prefix: the start of each line, such as "rate 2/4".
    """

    def __init__(
        self, watch: Watch, images: str, kind: str, verbose: int | str, prefix: str = ""
    ) -> None:
        super().__init__()
        self.watch = watch
        self.images, self.kind, self.prefix = images, kind, prefix
        if verbose == "auto":
            verbose = 1 if _is_interactive() else 2
        self.in_place, self.is_silent = verbose == 1, not verbose
        self._columns = 0  # Of the line in place.
        self._shown = 0.0  # When it was written.

    def on_train_begin(self, logs: Any = None) -> None:
        self._in_place([self._step(), "compiling the training step"])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.in_place and time.perf_counter() - self._shown >= INTERVAL:
            parts = [self._step(), self._speed(), self._left()]
            self._in_place(fitted([*parts, *_metrics("", logs or {})], [1, 2]))

    def on_test_begin(self, logs: Any = None) -> None:
        self._in_place([self._step(), f"evaluating {self.images}"])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.is_silent:
            return
        parts = [
            self._step(),
            self._speed(),
            self._left() if self.watch.seconds_left else "",
            *_metrics("", logs or {}),
            *_metrics("val_", logs or {}, f"{self.kind} "),
        ]
        self._write(fitted(parts, [1, 2, 4, 3]))
        self.close()

    def _step(self) -> str:
        keeper = self.watch.keeper
        prefix = f"{self.prefix}  " if self.prefix else ""
        return f"{prefix}step {keeper.step}/{keeper.total_steps}"

    def _speed(self) -> str:
        speed = self.watch.images_per_second
        return f"{speed:,.0f} img/s" if speed else ""

    def _left(self) -> str:
        seconds = self.watch.seconds_left
        return "" if seconds is None else f"{duration(seconds)} left"

    def _in_place(self, parts: list[str]) -> None:
        if self.in_place:
            self._write(parts)
            self._shown = time.perf_counter()

    def _write(self, parts: list[str]) -> None:
        text = "  ".join(filter(None, parts))
        start, room = ("\r", self._columns) if self.in_place else ("", 0)
        sys.stdout.write(f"{start}{text:{room}}")
        sys.stdout.flush()
        self._columns = len(text)

    def close(self) -> None:
        """Ends the line in place, so that other output starts on a new line."""
        if self._columns:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._columns = 0


def fitted(parts: list[str], optional: list[int]) -> list[str]:
    """Parts of a line without those for which it has no room.

    Args:
        parts: texts, printed with two spaces between them; empty ones are left out.
        optional: indices of the parts to leave out, the least important first.
    """
    parts = list(parts)
    # A terminal starts a new line after its last column.
    room = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - 1
    for index in optional:
        if len("  ".join(filter(None, parts))) <= room:
            break
        parts[index] = ""
    return parts


def duration(seconds: float) -> str:
    """A time in its two largest units: "12 s", "4 min", "3 h 20 min", "2 d 5 h"."""
    minutes = round(seconds / 60)
    hours = round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def _metrics(prefix: str, logs: Mapping[str, float], kind: str = "") -> list[str]:
    """Loss and accuracy of Keras's logs as two parts; one is empty if it is absent."""
    loss, accuracy = logs.get(f"{prefix}loss"), logs.get(f"{prefix}accuracy")
    return [
        "" if loss is None else f"{kind}loss {float(loss):.3f}",
        "" if accuracy is None else f"acc {100 * float(accuracy):.1f} %",
    ]


def _is_interactive() -> bool:
    """Whether a line can be rewritten: on a terminal and in a notebook."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules
