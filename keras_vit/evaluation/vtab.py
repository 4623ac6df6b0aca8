"""VTAB-1k (4.2, D.10): Table 9 and Figure 2 for your own model.

OUTPUT/vtab.json                settings: weights, recipe, seed
OUTPUT/table.md                 Table 9 with a row for this model's results so far
OUTPUT/clevr-count/run-0.json   a result: accuracy on all test images
OUTPUT/clevr-count/run-0/       its training run, as written by `training.fit`
OUTPUT/resisc45/failed.json     the reason why a task's data could not be opened
"""

import dataclasses
import gc
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import keras

from keras_vit import manifest, paper
from keras_vit.data import vtab as data
from keras_vit.data.source import Source
from keras_vit.data.vtab import GROUPS, TASKS, VTABTask
from keras_vit.facts import Preprocessing
from keras_vit.files import parse_json, replacing, write_json
from keras_vit.models.description import weights_sha256
from keras_vit.models.vision import architecture_of, preprocessing_of
from keras_vit.recipes import FINETUNE, Recipe
from keras_vit.training import locking
from keras_vit.training.distribution import Workers
from keras_vit.training.fitting import fit
from keras_vit.training.results import Result
from keras_vit.training.transferring import fresh

__all__ = ["Score", "Scores", "groups", "paper_rows", "read", "recipe_for", "run"]

_NAMES = tuple(task.name for task in TASKS)
_WORDS = tuple(word for words in paper.VTAB.values() for word in words)
_DATA = {"jft300m": "JFT", "imagenet21k": "I21k"}  # As in the rows of Table 9.
FIGURE_2 = {  # The tasks that each bar averages.
    f"VTAB ({len(TASKS)} tasks)": _NAMES,
    **{
        f"{group} ({len(names)} tasks)": names
        for group in GROUPS
        if (names := tuple(task.name for task in TASKS if task.group == group))
    },
}

BEGUN = "vtab.json"
TABLE = "table.md"


class Score(NamedTuple):
    """An accuracy over runs (Tables 2 and 9).

    The deviation is the sample's, with n - 1. Table 2 does not state which one it has.

    Attributes:
        mean: mean accuracy, in [0, 1].
        std: standard deviation of the accuracies; None for one run.
    """

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, accuracies: Sequence[float]) -> "Score":
        """Computes the score from the runs' accuracies.

        Args:
            accuracies: accuracy of each run, in [0, 1].

        Returns:
            Their `Score`.
        """
        std = statistics.stdev(accuracies) if len(accuracies) > 1 else None
        return cls(statistics.fmean(accuracies), std)


@dataclasses.dataclass(frozen=True)
class Scores:
    """Results of a model on VTAB-1k, by the names of Table 9.

    Attributes:
        accuracies: accuracies in [0, 1] by run, for every task that has a result.
        failures: reasons for tasks whose data could not be opened.
    """

    accuracies: Mapping[str, Mapping[int, float]]
    failures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """The tasks without a result."""
        return tuple(name for name in _NAMES if name not in self.accuracies)

    def task(self, name: str) -> Score | None:
        """Returns the score of a task.

        Args:
            name: name in Table 9.

        Returns:
            Its `Score`; None without a result.
        """
        runs = self.accuracies.get(name)
        return Score.of([runs[run] for run in sorted(runs)]) if runs else None

    def mean(self, names: Sequence[str] = _NAMES) -> Score | None:
        """Averages over tasks with equal weights (Table 9, Figure 2).

        The deviation is over the means of the runs that all of the tasks have.

        Args:
            names: names in Table 9 [default: all 19].

        Returns:
            A `Score`; None unless all of the tasks have a result.
        """
        if set(names) & set(self.missing):
            return None
        rows = [self.accuracies[name] for name in names]
        runs = sorted(set.intersection(*(set(row) for row in rows)))
        means = [statistics.fmean(row[run] for row in rows) for run in runs]
        std = statistics.stdev(means) if len(means) > 1 else None
        return Score(statistics.fmean(statistics.fmean(r.values()) for r in rows), std)


def run(
    model: keras.Model,
    tasks: Sequence[str | VTABTask] = TASKS,
    *,
    output: str | os.PathLike[str],
    recipe: Recipe = FINETUNE["vtab"],
    runs: int = 1,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    augment: Literal["task", "recipe"] = "task",
    save_minutes: float | None = 10,
    wait: bool = False,
    verbose: int | str = "auto",
) -> Scores:
    """Fine-tunes a copy of `model` on each task and tests it on all test images (D.10).

    The result of a task is written as soon as it is complete. To resume an interrupted
    run, make the same call again. A task whose data cannot be opened is listed in the
    table and does not stop the others. When a training run is complete, its curves are
    kept, but its model and checkpoints are deleted: nineteen of a ViT-L/16 would take
    100 GB.

    Args:
        model: pre-trained model, with or without its head; it is not changed.
        tasks: names in Table 9, or `data.vtab.VTABTask`s.
        output: folder for the results.
        recipe: Table 4's row: 2,500 steps at 0.01 and 384 px. If there are several
            learning rates, the best one on the benchmark's 200 validation images is
            used.
        runs: number of training runs per task; Table 2 has the mean of three. Run r has
            the seed `seed + r`.
        seed: seed of order, crops and dropout.
        preprocessing: scaling of the images [default: the model's].
        augment: "task", scenic's crops and flips that keep the task's labels valid
            (after a resize by 7/6, 448 px for 384); or "recipe", the recipe's for every
            task.
        save_minutes: minutes between two checkpoints, as in `fit`.
        wait: whether to wait while another process trains in the folder, instead of
            raising `RunInUse`.
        verbose: as in `model.fit`.

    Returns:
        The `Scores` of all tasks in `output`, including those of earlier calls.

    Raises:
        ValueError: if a task is unknown, there is no task or run, or `augment` is
            unknown; if the folder was started with a different model, recipe or seed,
            or a result in it is damaged; in one of several processes.
        RunInUse: if another process trains in the folder, unless `wait`.
        Preempted: when the process was asked to stop, after the run has been saved.
    """
    chosen = [task if isinstance(task, VTABTask) else data.find(task) for task in tasks]
    if not chosen or runs < 1 or augment not in ("task", "recipe"):
        raise ValueError(
            "Expected at least one task and one run, and augment 'task' or 'recipe'. "
            f"Received: tasks={tasks}, runs={runs}, augment={augment!r}"
        )
    preprocessing = preprocessing_of(model, preprocessing)
    workers = Workers.of(model)
    if workers.count > 1:
        raise ValueError(
            "Expected a single process: several can only share the training run of "
            f"a single task. Received: {workers.count} processes"
        )
    folder = Path(output)
    identity = {
        "weights": weights_sha256(model, without=("pre_logits", "head")),
        "config": architecture_of(model),
        "recipe": recipe.identity(),
        "augment": augment,
        "seed": seed,
        **preprocessing.identity(),
    }
    with locking.run_folder(folder, workers, wait, lambda: identity, begun=BEGUN):
        for task in chosen:
            left = [r for r in range(runs) if not _result(folder, task, r).exists()]
            source = _opened(folder, task) if left else None
            for number in left if source is not None else ():
                if verbose:
                    print(f"{task.name}: run {number + 1} of {runs}")
                trained = fit(
                    fresh(model, recipe, task.classes, seed + number, workers),
                    recipe_for(task, recipe) if augment == "task" else recipe,
                    source,
                    preprocessing=preprocessing,
                    seed=seed + number,
                    output=_result(folder, task, number).with_suffix(""),
                    save_minutes=save_minutes,
                    evaluations=1,
                    verbose=verbose,
                )
                _write(folder, task, number, trained)
                gc.collect()  # A model and its compiled functions refer to each other.
        manifest.write(folder)
    return read(folder)


def recipe_for(task: VTABTask, recipe: Recipe) -> Recipe:
    """Returns the recipe with scenic's crops and flips for a task.

    Args:
        task: see `data.vtab`.
        recipe: recipe to change, with (H, W) pixels.

    Returns:
        A copy; images are resized by 7/6 before they are cropped.
    """
    resize = None
    if task.augment.startswith("crop"):
        height, width = recipe.image_size
        resize = (round(height * 7 / 6), round(width * 7 / 6))
    return dataclasses.replace(recipe, augment=task.augment, resize=resize)


def read(output: str | os.PathLike[str]) -> Scores:
    """Reads the results in a folder of `run`, complete or not (Table 9).

    Args:
        output: folder with the results.

    Returns:
        The `Scores` of all tasks in it.

    Raises:
        ValueError: if the folder was not written by `run`, or a result is damaged.
    """
    folder = Path(output)
    if not (folder / BEGUN).is_file():
        raise ValueError(
            f"Expected a folder written by `keras-vit vtab`, with {BEGUN}. Received: "
            f"{str(folder)!r}"
        )
    accuracies, failures = {}, {}
    for task in TASKS:
        results = sorted((folder / task.word).glob("run-*.json"))
        runs = [_read(path, "run", "accuracy") for path in results]
        if runs:
            accuracies[task.name] = {int(r["run"]): float(r["accuracy"]) for r in runs}
        if (failed := _failed(folder, task)).exists():
            failures[task.name] = str(_read(failed, "error")["error"])
    return Scores(accuracies, failures)


def _read(path: Path, *keys: str) -> dict[str, Any]:
    try:
        read = parse_json(path.read_text(encoding="utf-8"))
        if "accuracy" in keys and not 0 <= read["accuracy"] <= 1:
            raise ValueError(f"accuracy={read['accuracy']}")
        return {key: read[key] for key in keys}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected a result of `keras-vit vtab`. Received: {str(path)!r}, damaged "
            f"({error}). Delete it and run the same command again"
        ) from error


def _result(folder: Path, task: VTABTask, number: int) -> Path:
    return folder / task.word / f"run-{number}.json"


def _failed(folder: Path, task: VTABTask) -> Path:
    return folder / task.word / "failed.json"


def _opened(folder: Path, task: VTABTask) -> Source | None:
    """Opens the task's images; writes the reason and returns None if it cannot."""
    failed = _failed(folder, task)
    try:
        source = data.open_task(task)
    except (ValueError, OSError, ImportError) as error:
        write_json(failed, {"task": task.name, "error": str(error)})
        _write_table(folder)
        return None
    failed.unlink(missing_ok=True)
    return source


def _write(folder: Path, task: VTABTask, number: int, trained: Result) -> None:
    """Writes a result, then deletes the run's model and checkpoints."""
    accuracy = trained.test_accuracy
    if accuracy is None:
        raise ValueError(f"Expected test images. Received: {task.name} without any")
    result = {
        "task": task.name,
        "run": number,
        "accuracy": accuracy,
        "right": round(accuracy * trained.test_images),
        "images": trained.test_images,
        "learning_rate": trained.learning_rate,
    }
    write_json(_result(folder, task, number), result)
    training = _result(folder, task, number).with_suffix("")
    for name in ("checkpoints", "start", "sweep"):
        shutil.rmtree(training / name, ignore_errors=True)
    for name in ("best.keras", "model.keras"):
        (training / name).unlink(missing_ok=True)
    manifest.write(training)
    _write_table(folder)


def paper_rows() -> dict[str, Scores]:
    """Returns Table 9, as scores of one run.

    Returns:
        The `Scores` of each of its models, by title, such as "ViT-H/14 (JFT)".
    """
    rows: dict[str, dict[str, dict[int, float]]] = {}
    names = {
        f"vtab/{word}": task.name for word, task in zip(_WORDS, TASKS, strict=True)
    }
    for cell in paper.TABLES["Table 9"]:
        if cell.dataset in names:
            row = rows.setdefault(f"{cell.model} ({_DATA[cell.pretrained_on]})", {})
            row[names[cell.dataset]] = {0: cell.percent / 100}
    return {title: Scores(row) for title, row in rows.items()}


def groups(scores: Scores) -> dict[str, Score]:
    """Computes the bars of Figure 2, for groups whose tasks all have a result.

    Args:
        scores: scores of a model.

    Returns:
        The `Score` of each group, by title, such as "Natural (7 tasks)".
    """
    means = {title: scores.mean(names) for title, names in FIGURE_2.items()}
    return {title: score for title, score in means.items() if score is not None}


def cells(scores: Scores) -> dict[str, str]:
    """Returns a model's table cells in percent: tasks, then groups."""
    known = {name: scores.task(name) for name in _NAMES} | dict.fromkeys(FIGURE_2)
    return {name: _percent(score) for name, score in (known | groups(scores)).items()}


def _percent(score: Score | None) -> str:
    if score is None:
        return "-"
    deviation = "" if score.std is None else f" ± {100 * score.std:.1f}"
    return f"{100 * score.mean:.1f}{deviation}"


def remarks(scores: Scores) -> list[str]:
    """Returns the notes below the table: missing results, with reasons."""
    failed = [f"{name}: {error}" for name, error in scores.failures.items()]
    if not scores.missing:
        return failed
    done = len(TASKS) - len(scores.missing)
    return [
        f"{done} of {len(TASKS)} tasks. A mean requires all tasks of its group. "
        f"Without a result: {', '.join(scores.missing)}",
        *failed,
    ]


def _write_table(folder: Path) -> None:
    """Writes Table 9 as Markdown, with this model's row."""
    scores, overall = read(folder), next(iter(FIGURE_2))
    lines = ["| | " + " | ".join((*_NAMES, "mean")) + " |", "|---" * 21 + "|"]
    for row, known in {"this model": scores, **paper_rows()}.items():
        shown = cells(known)
        lines.append(f"| {row} | {' | '.join(shown[n] for n in (*_NAMES, overall))} |")
    text = "\n".join([*lines, "", *(f"- {remark}" for remark in remarks(scores))])
    with replacing(folder / TABLE) as temporary:
        temporary.write_text(text.rstrip() + "\n", encoding="utf-8")
