"""The result of a training, in its folder next to the model."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from keras_vit import manifest
from keras_vit.files import parse_json, write_json
from keras_vit.recipes import Recipe
from keras_vit.training import callbacks, certificate
from keras_vit.training.runs import BEGUN, FINISHED, HISTORY


@dataclasses.dataclass(frozen=True)
class Result:
    """What `fit` did (Table 4).

    Attributes:
        learning_rate: the base rate trained with, chosen by the sweep if there was one.
        sweep: held-out accuracy in [0, 1] of every rate tried; empty without a sweep.
        history: one dict of metrics for each evaluation, with the "step" it was made
            at.
        test_accuracy: in [0, 1], on the source's test images; None where it has none.
        test_images: how many those are.
        left_out: unreadable images that the source did without (on_corrupt="skip").
    """

    learning_rate: float
    sweep: dict[float, float]
    history: list[dict[str, float]]
    test_accuracy: float | None
    test_images: int = 0
    left_out: int = 0

    def write(self, folder: Path, recipe: Recipe) -> None:
        """Writes `history.json`, by which a run has ended."""
        told = {"recipe": dataclasses.asdict(recipe), **dataclasses.asdict(self)}
        write_json(folder / FINISHED, told)


def finished(folder: Path) -> Result | None:
    """The result of the run in a folder; None while it has not ended.

    Raises:
        ValueError: if the file of it is damaged.
    """
    path = folder / FINISHED
    try:
        told = read_json(path, None)
        if told is None:
            return None
        del told["recipe"]
        sweep = {float(rate): score for rate, score in told.pop("sweep").items()}
        return Result(**told, sweep=sweep)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Expected a finished run's own JSON. Received: {str(path)!r} ({error!r}). "
            "Delete it: the run then ends anew from its last checkpoint"
        ) from error


def forget(folder: Path) -> None:
    """Deletes the files that a run would resume from."""
    written = (BEGUN, HISTORY, FINISHED, "sweep.json")
    for name in (*written, certificate.FILE, manifest.FILE):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "start", "sweep", callbacks.FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)


def read_json(path: Path, default: Any) -> Any:
    """Returns what a JSON file holds, or the default where there is none."""
    return parse_json(path.read_text()) if path.exists() else default
