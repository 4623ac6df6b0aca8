"""The runs in a folder: their state, evaluations and last change.

Imports neither Keras nor TensorFlow.
"""

import dataclasses
import os
import platform
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from keras_vit.files import parse_json

BEGUN = "begun.json"  # Identity of a run; written first.
HISTORY = "history.jsonl"  # A line for each evaluation.
FINISHED = "history.json"  # Written when a run ends.
CHECKPOINTS = "checkpoints"  # Files of a step: step-0000000120.npz and .json.
WRITER = ".writer.json"  # Host, process id and start time of the process that trains.
DEPTH = 3  # runs/transfer/run-0 and runs/vtab/TASK/run-0.


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """Progress of a run.

    Attributes:
        total_steps: updates of the whole run.
        history: a dict of metrics for each evaluation, with its "step".
        saved_step: step of the newest checkpoint; 0 without one.
    """

    total_steps: int
    history: list[dict[str, float]]
    saved_step: int = 0

    @property
    def step(self) -> int:
        """The step of the last evaluation or checkpoint; 0 before the first."""
        evaluated = int(self.history[-1]["step"]) if self.history else 0
        return max(evaluated, self.saved_step)


def read_run(folder: Path) -> RunStatus:
    """Returns the progress of a run, finished or not.

    Args:
        folder: the `output` of `fit`.

    Raises:
        ValueError: if the folder does not contain a run.
    """
    try:
        begun = parse_json((folder / BEGUN).read_text())
        written = folder / HISTORY
        lines = written.read_text().splitlines() if written.exists() else []
        history = [parse_json(line) for line in lines if line.endswith("}")]
        total_steps = begun["recipe"]["total_steps"]
        saved = [step_of(file) for file in (folder / CHECKPOINTS).glob("step-*.json")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected the folder of a run, with {BEGUN}. Received: {str(folder)!r} "
            f"({error}). `keras-vit finetune` and `pretrain` write one"
        ) from error
    return RunStatus(total_steps, history, max(saved, default=0))


def step_of(checkpoint: Path) -> int:
    """Returns the step in the name of a checkpoint's file."""
    return int(checkpoint.stem.removeprefix("step-"))


@dataclasses.dataclass(frozen=True)
class Run:
    """A line of `keras-vit runs list`.

    Attributes:
        folder: folder of the run.
        state: "finished", "training", "interrupted" or "damaged".
        status: its progress; None if damaged.
        changed: when a file of the folder was last written, in seconds since 1970.
    """

    folder: Path
    state: str
    status: RunStatus | None
    changed: float

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Reads the state of the run in a folder."""
        changed = max(file.stat().st_mtime for file in folder.iterdir())
        try:
            status = read_run(folder)
        except ValueError:
            return cls(folder, "damaged", None, changed)
        ended = (folder / FINISHED).is_file()
        return cls(
            folder, "finished" if ended else _unfinished(folder), status, changed
        )

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the last evaluation, in [0, 1]; None without one."""
        if self.status is None or not self.status.history:
            return None
        return self.status.history[-1].get("val_accuracy")

    def as_dict(self) -> dict[str, Any]:
        """The values of the line, for JSON."""
        return {
            "folder": str(self.folder),
            "state": self.state,
            "step": self.status and self.status.step,
            "total_steps": self.status and self.status.total_steps,
            "test_accuracy": self.accuracy,
            "last_written": self.written,
        }

    @property
    def written(self) -> str:
        """The time of the last change, local, to the minute."""
        return datetime.fromtimestamp(self.changed).strftime("%Y-%m-%d %H:%M")


def find(folder: Path) -> list[Run]:
    """Returns the runs below a folder, the most recently written first."""
    runs = map(Run.read, sorted(_folders(folder, DEPTH)))
    return sorted(runs, key=lambda run: run.changed, reverse=True)


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yields folders with a run, without the runs of a learning-rate sweep in them."""
    if (folder / BEGUN).is_file() and _is_of_one_run(folder):
        yield folder
    elif depth and folder.is_dir():
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.is_symlink():
                yield from _folders(inner, depth - 1)


def _is_of_one_run(folder: Path) -> bool:
    """Whether the folder is the `output` of `fit`, not of `transfer` or `vtab`."""
    return any((folder / name).exists() for name in (HISTORY, "start", CHECKPOINTS))


def _unfinished(folder: Path) -> str:
    """Returns "training" or "interrupted"; a process on another host is not checked."""
    owner = read_writer(folder)
    if owner is None:
        return "interrupted"
    try:
        if owner["host"] == platform.node():
            os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return "interrupted"
    except PermissionError:  # A process of a different user.
        pass
    return "training"


def read_writer(folder: Path) -> dict[str, Any] | None:
    """Returns host, pid and start of the process that trains; None if not known."""
    try:
        owner = parse_json((folder / WRITER).read_text(encoding="utf-8"))
        return {
            "host": owner["host"],
            "pid": int(owner["pid"]),
            "started": owner["started"],
        }
    except (OSError, ValueError, KeyError, TypeError):  # It just started or ended.
        return None
