"""VTAB-1k (4.2, D.10): Table 9 and Figure 2 for a model of one's own.

OUTPUT/vtab.json                what is evaluated: weights, recipe, seed
OUTPUT/table.md                 Table 9 with this model's row, as far as it is
OUTPUT/clevr-count/run-0.json   a result: accuracy on every test image
OUTPUT/clevr-count/run-0/       its training, as `training.fit` writes it
OUTPUT/resisc45/failed.json     why a task's data could not be opened
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
from keras_vit.models.vision import preprocessing_of
from keras_vit.recipes import FINETUNE, Recipe
from keras_vit.training import locking
from keras_vit.training.distribution import Workers
from keras_vit.training.fitting import fit
from keras_vit.training.results import Result
from keras_vit.training.transferring import fresh

__all__ = ["Score", "Scores", "groups", "paper_rows", "read", "recipe_for", "run"]

_NAMES = tuple(task.name for task in TASKS)
_WORDS = tuple(word for words in paper.VTAB.values() for word in words)
_DATA = {"jft300m": "JFT", "imagenet21k": "I21k"}  # As Table 9 heads its rows.
FIGURE_2 = {  # What a bar is the mean of.
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

    The deviation is the sample's, of n - 1: Table 2 does not say which its own is.

    Attributes:
        mean: in [0, 1].
        std: the deviation, in units of 1; None of one run.
    """

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, accuracies: Sequence[float]) -> "Score":
        """That of the runs' accuracies.

        Args:
            accuracies: accuracy of each run, in [0, 1].

        Returns:
            Their `Score`.
        """
        std = statistics.stdev(accuracies) if len(accuracies) > 1 else None
        return cls(statistics.fmean(accuracies), std)


@dataclasses.dataclass(frozen=True)
class Scores:
    """What is known of a model on VTAB-1k, by the names of Table 9.

    Attributes:
        accuracies: in [0, 1], of every task that has a result, by run.
        failures: the reason for each task whose data could not be opened.
    """

    accuracies: Mapping[str, Mapping[int, float]]
    failures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """The tasks without a result."""
        return tuple(name for name in _NAMES if name not in self.accuracies)

    def task(self, name: str) -> Score | None:
        """The score of one task.

        Args:
            name: as Table 9 has it.

        Returns:
            Its `Score`; None without a result.
        """
        runs = self.accuracies.get(name)
        return Score.of([runs[run] for run in sorted(runs)]) if runs else None

    def mean(self, names: Sequence[str] = _NAMES) -> Score | None:
        """The mean over tasks, each weighing the same (Table 9, Figure 2).

        The deviation is that of the means of the runs that all of them have.

        Args:
            names: as Table 9 has them; by default all 19.

        Returns:
            A `Score`; None unless all of them have a result.
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
    """Fine-tunes a copy of `model` on each task (D.10), tests it on all test images.

    A task's result is written as soon as it is there, and a killed run resumes in the
    middle of a task, by the same call. A task whose data cannot be opened is named in
    the table and does not stop the others. Of a finished training the curves stay, the
    model and the checkpoints go: nineteen of a ViT-L/16 would take 100 GB.

    Args:
        model: pre-trained, with its head or without; left as it is.
        tasks: by the names of Table 9, or `data.vtab.VTABTask`s.
        output: the folder.
        recipe: Table 4's row: 2,500 steps at 0.01 and 384 px. Several learning rates
            are judged on the benchmark's 200 validation images.
        runs: how many times each task is trained; Table 2 has the mean of three. Run r
            is of the seed `seed + r`.
        seed: seed of order, crops and dropout.
        preprocessing: how images become input; default: the model's own.
        augment: "task", the crops and flips that leave the task's labels true (after a
            resize by 7/6, 448 px for 384), scenic's; or "recipe", the recipe's for
            every task.
        save_minutes: between two checkpoints, likewise.
        wait: whether to wait while another process trains in the folder, in place of
            `RunInUse`.
        verbose: as in `model.fit`.

    Returns:
        The `Scores` of all tasks in `output`, of earlier calls too.

    Raises:
        ValueError: if there is no such task, no task or run at all, or `augment` is
            another word; if the folder was begun with another model, recipe or seed, or
            a result in it is damaged; in one of several processes.
        RunInUse: if another process trains in the folder, unless `wait`.
        Preempted: when the process was asked to end, and its training is saved.
    """
    chosen = [task if isinstance(task, VTABTask) else data.find(task) for task in tasks]
    if not chosen or runs < 1 or augment not in ("task", "recipe"):
        raise ValueError(
            "Expected a task and a run at least, and augment 'task' or 'recipe'. "
            f"Received: tasks={tasks}, runs={runs}, augment={augment!r}"
        )
    preprocessing = preprocessing_of(model, preprocessing)
    workers = Workers.of(model)
    if workers.count > 1:
        raise ValueError(
            "Expected one process: of several, only the training of a single task can "
            f"be divided. Received: {workers.count} processes"
        )
    folder = Path(output)
    identity = {
        "weights": weights_sha256(model, without=("pre_logits", "head")),
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
    """The recipe with the crops and flips of a task, scenic's.

    Args:
        task: see `data.vtab`.
        recipe: to be changed, of (H, W) pixels.

    Returns:
        A copy; images are resized by 7/6 before they are cropped.
    """
    resize = None
    if task.augment.startswith("crop"):
        height, width = recipe.image_size
        resize = (round(height * 7 / 6), round(width * 7 / 6))
    return dataclasses.replace(recipe, augment=task.augment, resize=resize)


def read(output: str | os.PathLike[str]) -> Scores:
    """The results in a folder of `run`, under way or finished (Table 9).

    Args:
        output: the folder.

    Returns:
        The `Scores` of all tasks in it.

    Raises:
        ValueError: if the folder is none of `run`'s, or a result in it is damaged.
    """
    folder = Path(output)
    if not (folder / BEGUN).is_file():
        raise ValueError(
            f"Expected a folder that `keras-vit vtab` wrote, with {BEGUN}. Received: "
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
            f"({error}). Delete it and give the same command again"
        ) from error


def _result(folder: Path, task: VTABTask, number: int) -> Path:
    return folder / task.word / f"run-{number}.json"


def _failed(folder: Path, task: VTABTask) -> Path:
    return folder / task.word / "failed.json"


def _opened(folder: Path, task: VTABTask) -> Source | None:
    """The task's images; None if they cannot be opened, which is noted."""
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
    """Writes a result, then deletes what it took."""
    accuracy = trained.test_accuracy
    if accuracy is None:
        raise ValueError(f"Expected test images. Received: {task.name} without")
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
    """Table 9, as scores of one run.

    Returns:
        The `Scores` of each of its models, by title, as "ViT-H/14 (JFT)".
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
    """The bars of Figure 2, of groups whose tasks all have a result.

    Args:
        scores: scores of a model.

    Returns:
        The `Score` of each group, by title, as "Natural (7 tasks)".
    """
    means = {title: scores.mean(names) for title, names in FIGURE_2.items()}
    return {title: score for title, score in means.items() if score is not None}


def cells(scores: Scores) -> dict[str, str]:
    """What a table says of a model, in percent: of tasks, then of groups."""
    said = {name: scores.task(name) for name in _NAMES} | dict.fromkeys(FIGURE_2)
    return {name: _percent(score) for name, score in (said | groups(scores)).items()}


def _percent(score: Score | None) -> str:
    if score is None:
        return "-"
    deviation = "" if score.std is None else f" ± {100 * score.std:.1f}"
    return f"{100 * score.mean:.1f}{deviation}"


def remarks(scores: Scores) -> list[str]:
    """What has to be said below the table: what is missing, and why."""
    failed = [f"{name}: {error}" for name, error in scores.failures.items()]
    if not scores.missing:
        return failed
    done = len(TASKS) - len(scores.missing)
    return [
        f"{done} of {len(TASKS)} tasks; a mean is of whole groups alone. Without a "
        f"result: {', '.join(scores.missing)}",
        *failed,
    ]


def _write_table(folder: Path) -> None:
    """Table 9 as Markdown, with this model's row."""
    scores, overall = read(folder), next(iter(FIGURE_2))
    lines = ["| | " + " | ".join((*_NAMES, "mean")) + " |", "|---" * 21 + "|"]
    for row, known in {"this model": scores, **paper_rows()}.items():
        said = cells(known)
        lines.append(f"| {row} | {' | '.join(said[n] for n in (*_NAMES, overall))} |")
    text = "\n".join([*lines, "", *(f"- {remark}" for remark in remarks(scores))])
    with replacing(folder / TABLE) as temporary:
        temporary.write_text(text.rstrip() + "\n", encoding="utf-8")
