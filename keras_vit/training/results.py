"""The result of a run, stored in its folder next to the model."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from keras_vit import manifest
from keras_vit.files import parse_json, write_json
from keras_vit.recipes import Recipe
from keras_vit.training import callbacks, certificate
from keras_vit.training.runs import BEGUN, CHECKPOINTS, FINISHED, HISTORY


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of `fit` (Table 4).

    Attributes:
        learning_rate: base learning rate, chosen by the sweep if there was one.
        sweep: held-out accuracy in [0, 1] by learning rate; empty without a sweep.
        history: a dict of metrics for each evaluation, with its "step".
        test_accuracy: accuracy in [0, 1] on the source's test images; None if it has
            none.
        test_images: number of test images.
        left_out: number of unreadable images that were skipped (on_corrupt="skip").
    """

    learning_rate: float
    sweep: dict[float, float]
    history: list[dict[str, float]]
    test_accuracy: float | None
    test_images: int = 0
    left_out: int = 0

    def write(self, folder: Path, recipe: Recipe) -> None:
        """Writes `history.json`, which marks a run as finished."""
        content = {"recipe": dataclasses.asdict(recipe), **dataclasses.asdict(self)}
        write_json(folder / FINISHED, content)


def finished(folder: Path) -> Result | None:
    """Returns the result of the run in a folder, or None if it has not finished.

    Raises:
        ValueError: if the file of the result is damaged.
    """
    path = folder / FINISHED
    try:
        content = read_json(path, None)
        if content is None:
            return None
        del content["recipe"]
        sweep = {float(rate): score for rate, score in content.pop("sweep").items()}
        return Result(**content, sweep=sweep)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Expected the result of a finished run. Received: {str(path)!r} "
            f"({error!r}). Delete it; the run then resumes from its last checkpoint"
        ) from error


def forget(folder: Path) -> None:
    """Deletes the files from which a run resumes."""
    written = (BEGUN, HISTORY, FINISHED, "sweep.json")
    for name in (*written, certificate.FILE, manifest.FILE):
        (folder / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, "start", "sweep", callbacks.FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)


def read_json(path: Path, default: Any) -> Any:
    """Returns the content of a JSON file, or the default if it does not exist."""
    return parse_json(path.read_text()) if path.exists() else default
