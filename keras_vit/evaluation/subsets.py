"""Figure 4 (4.3): few-shot accuracy after pre-training on nested subsets.

OUTPUT/begun.json                 the model, the recipe, the data and the measure
OUTPUT/430-images-seed-0/         a pre-training run, as written by `training.fit`
OUTPUT/430-images-seed-0.json     its accuracies
OUTPUT/data_size.json             the result of the last call

Glossary: a share is a part of the training images in (0, 1]; a shot is a labeled image
of each class.
"""

import dataclasses
import gc
import os
import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias, TypedDict, Unpack

import keras

from keras_vit import arguments, manifest
from keras_vit.arguments import percent
from keras_vit.configs import (
    CheckpointConfig,
)
from keras_vit.data.source import Source
from keras_vit.data.sources import open_source
from keras_vit.evaluation import features, few_shot
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.families import family_of, with_options
from keras_vit.files import parse_json, write_json
from keras_vit.recipes import Recipe
from keras_vit.training import locking
from keras_vit.training.distribution import Workers
from keras_vit.training.fitting import fit
from keras_vit.training.results import Result, finished

__all__ = ["DataSize", "MeasureOptions", "SubsetAccuracy", "data_size", "read"]

BEGUN, RESULT = "begun.json", "data_size.json"
FIGURE_4 = (0.03, 0.1, 0.3, 1.0)  # 9M, 30M, 90M and 300M of JFT's 300M images.

Config: TypeAlias = CheckpointConfig
Data: TypeAlias = str | os.PathLike[str] | Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetAccuracy:
    """Accuracies of the pre-training runs on one subset (Figure 4).

    Attributes:
        images: number of images in the subset.
        few_shot: test accuracy by seed, in [0, 1], averaged over draws.
        validation: accuracy of the chosen evaluation on the held-out share, by seed.
    """

    images: int
    few_shot: tuple[float, ...]
    validation: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean few-shot accuracy over seeds, in [0, 1]."""
        return statistics.fmean(self.few_shot)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed."""
        return statistics.stdev(self.few_shot) if len(self.few_shot) > 1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSize:
    """Result of `data_size` (4.3, Figure 4); `print` shows a table.

    Attributes:
        rows: a `SubsetAccuracy` for each subset, the smallest first.
        seeds: seeds of the pre-training runs.
        shots: labeled images per class.
        steps: updates of each pre-training run.
        parameters: number of parameters of the model.
        validation_images: number of held-out images that choose the evaluation.
        test_images: number of test images.
        data: name of the source for pre-training.
        few_shot_data: name of the source of the shots and the test images.
    """

    rows: tuple[SubsetAccuracy, ...]
    seeds: tuple[int, ...]
    shots: int
    steps: int
    parameters: int
    validation_images: int
    test_images: int
    data: str
    few_shot_data: str

    @property
    def points(self) -> dict[int, float]:
        """Mean few-shot accuracy, in [0, 1], by images, for `plots.data_size`."""
        return {row.images: row.mean for row in self.rows}

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes every attribute, with means and deviations, atomically.

        Args:
            path: path of the JSON file.
        """
        rows = [
            {**dataclasses.asdict(row), "mean": row.mean, "std": row.std}
            for row in self.rows
        ]
        write_json(path, dataclasses.asdict(self) | {"rows": rows})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file written by `write_json`.

        Args:
            path: path of the JSON file.

        Returns:
            A `DataSize`.

        Raises:
            ValueError: if the file is missing or damaged.
        """
        try:
            content = parse_json(Path(path).read_text(encoding="utf-8"))
            content["rows"] = tuple(
                SubsetAccuracy(
                    images=int(row["images"]),
                    few_shot=tuple(row["few_shot"]),
                    validation=tuple(row["validation"]),
                )
                for row in content["rows"]
            )
            return cls(**content | {"seeds": tuple(content["seeds"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Expected a result of `keras-vit data-size`. Received: {str(path)!r} "
                f"({error!r}). Run the same command again to write it"
            ) from error

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.shots}-shot linear accuracy on {self.few_shot_data} "
            f"({self.test_images:,} test images) after {self.steps:,} updates on "
            f"subsets of {self.data}"
        )
        columns = [f"seed {seed}" for seed in self.seeds]
        heads = ("images", "mean %", *(["std"] if len(columns) > 1 else []), *columns)
        yield "".join(f"{head:>10}" for head in heads)
        for row in self.rows:
            spread = [] if row.std is None else [f"{100 * row.std:.2f}"]
            seeds = [f"{100 * accuracy:.2f}" for accuracy in row.few_shot]
            cells = (f"{row.images:,}", f"{100 * row.mean:.2f}", *spread, *seeds)
            yield "".join(f"{cell:>10}" for cell in cells)


class MeasureOptions(TypedDict, total=False):
    """Keyword arguments of `data_size` for the measurement (4.3, Figure 4).

    Attributes:
        shots: labeled images per class [default: 5].
        draws: seeds of the draws of shots, whose accuracies are averaged [default:
            (0, 1, 2)].
        l2: weight of the penalty, as in `fewshot` [default: 1024].
        batch_size: images per batch of feature extraction [default: 32].
        validation_share: held-out share of the training images, in (0, 1) [default:
            0.1].
        evaluations: maximum number of evaluations in a pre-training run [default: 10].
    """

    shots: int
    draws: Sequence[int]
    l2: float
    batch_size: int
    validation_share: float
    evaluations: int


def data_size(
    config: Config,
    data: Data,
    *,
    recipe: Recipe,
    output: str | os.PathLike[str],
    subsets: Sequence[float] = FIGURE_4,
    few_shot_data: Data | None = None,
    seeds: Sequence[int] = (0,),
    preprocessing: Preprocessing = OFFICIAL,
    save_minutes: float | None = 10,
    wait: bool = False,
    verbose: int | str = "auto",
    **measure: Unpack[MeasureOptions],
) -> DataSize:
    """Measures few-shot accuracy after pre-training on subsets (4.3, Figure 4).

    A share of the training images is held out; the subsets of the rest are nested. On
    each subset, a model is trained from random weights for the same number of updates
    with the same hyperparameters. The evaluation with the best accuracy on the held-out
    share is chosen (the paper's early stopping). The few-shot accuracy of its frozen
    features is then measured once, on the test images, which are used for no choice.

    To resume an interrupted run, call this again with the same arguments. A call with
    more subsets or seeds adds them to the folder.

    Args:
        config: the model's config; the recipe sets its dropout and initial bias.
        data: data for pre-training: an argument of `data.open_source`, or a `Source`,
            with images that can be read by index.
        recipe: recipe with one learning rate, such as
            `recipes.PRETRAIN["ViT-B/32-jft300m"]`. Its epochs are over all training
            images, for every subset.
        output: folder for the results.
        subsets: shares of the training images (1.0 or less) or numbers of images.
        few_shot_data: data with the shots and the test images; None: `data`, with shots
            from all of its training images.
        seeds: seeds; each trains once on every subset and determines the held-out
            share, the nested subsets, the initial weights, the order and the crops.
        preprocessing: scaling of the images [default: the paper's].
        save_minutes: minutes between two checkpoints, as in `fit`.
        wait: whether to wait while another process trains in the folder, instead of
            raising `RunInUse`.
        verbose: as in `model.fit`.
        **measure: `shots`, `draws`, `l2`, `batch_size`, `validation_share` and
            `evaluations`; see `MeasureOptions`.

    Returns:
        A `DataSize`, also written to `data_size.json`.

    Raises:
        ValueError: if a subset, a seed, the shots or the recipe is invalid; if the
            images are a stream, or there are no test images; if the folder was started
            with a different model, recipe or data; in one of several processes.
        ImportError: see `data.open_source`.
        OSError: if `output` cannot be written to; `RunInUse` if another process trains
            in it, unless `wait`.
        Preempted: when the process was asked to stop, after the run has been saved.
    """
    arguments.only("data_size", measure, MeasureOptions)
    source = data if isinstance(data, Source) else open_source(data)
    source.subset(1)  # Raises for a stream.
    measured = features.opened(source if few_shot_data is None else few_shot_data)
    if not isinstance(measured, Source):
        raise ValueError(
            "Expected images, because features depend on the pre-trained model. "
            f"Received: few_shot_data of type {type(measured).__name__}. Use a "
            "folder, an .npz, a TFDS name or a Source"
        )
    study = _Study(
        config=with_options(config, recipe.model_options()),
        source=source,
        measured=measured,
        recipe=recipe,
        folder=Path(output),
        preprocessing=preprocessing,
        save_minutes=save_minutes,
        verbose=verbose,
        **measure,
    ).checked()
    counts = study.counts(subsets)
    _check_seeds(seeds)
    runs = [(images, seed) for images in counts for seed in seeds]
    with locking.run_folder(study.folder, _one_process(), wait, study.identity):
        for number, (images, seed) in enumerate(runs, 1):
            study.measure(images, seed, f"{number} of {len(runs)}")
        result = study.result(counts, tuple(seeds))
        result.write_json(study.folder / RESULT)
        manifest.write(study.folder)
    return result


def read(output: str | os.PathLike[str]) -> DataSize:
    """Reads the result in a folder of `data_size` (Figure 4).

    Args:
        output: folder with the results.

    Returns:
        The `DataSize` of the last completed call.

    Raises:
        ValueError: if there is none, or it is damaged.
    """
    return DataSize.load(Path(output) / RESULT)


def _in_steps(recipe: Recipe, source: Source, validation_share: float) -> Recipe:
    """Returns the recipe in updates, the same for every subset."""
    if len(recipe.base_lr) > 1:
        raise ValueError(
            "Expected one learning rate for all subsets (4.3: no tuning to a subset). "
            f"Received: base_lr={recipe.base_lr}"
        )
    if not 0 < validation_share < 1:
        raise ValueError(
            "Expected a share of the training images between 0 and 1, to choose the "
            f"best evaluation. Received: validation_share={validation_share}"
        )
    return recipe.for_images(len(source.train))


def _one_process() -> Workers:
    """Returns the devices for the models; raises in one of several processes."""
    workers = Workers.current()
    if workers.count > 1:
        raise ValueError(
            "Expected a single process, which measures what it has trained. Received: "
            f"{workers.count} processes"
        )
    return workers


def _check_seeds(seeds: Sequence[int]) -> None:
    whole = all(isinstance(seed, int) and seed >= 0 for seed in seeds)
    if not seeds or not whole or len({*seeds}) < len(seeds):
        raise ValueError(
            f"Expected distinct seeds from 0. Received: seeds={tuple(seeds)}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Study:
    """The settings that all pre-training runs of a folder share."""

    config: Config
    source: Source
    measured: Source
    recipe: Recipe
    folder: Path
    preprocessing: Preprocessing
    save_minutes: float | None
    verbose: int | str
    shots: int = 5
    draws: Sequence[int] = (0, 1, 2)
    l2: float = 2.0**10
    batch_size: int = 32
    validation_share: float = 0.1
    evaluations: int = 10

    def checked(self) -> "_Study":
        """Returns the study with a recipe in updates, after checking everything."""
        few_shot.check(self.measured, (self.shots,), self.l2, self.draws)
        recipe = _in_steps(self.recipe, self.source, self.validation_share)
        return dataclasses.replace(self, recipe=recipe, draws=tuple(self.draws))

    def identity(self) -> dict[str, Any]:
        """Returns the settings of the folder as plain values."""
        return {
            "model": dataclasses.asdict(self.config),
            "recipe": self.recipe.identity(),
            "data": self.source.fingerprint(),
            "few_shot": {
                "data": self.measured.fingerprint(),
                "shots": self.shots,
                "draws": self.draws,
                "l2": self.l2,
            },
            "validation_share": self.validation_share,
            "evaluations": self.evaluations,
            **self.preprocessing.identity(),
        }

    def divided(self, seed: int) -> Source:
        """Returns the source with the held-out training images as test images."""
        rest, held_out = self.source.train.split(self.validation_share, seed)
        return dataclasses.replace(self.source, train=rest, test=held_out)

    def counts(self, subsets: Sequence[float]) -> list[int]:
        """Returns the number of images of each subset, the smallest first."""
        most = len(self.divided(0).train)
        sizes = sorted(
            round(size * most) if 0 < size <= 1 else size for size in subsets
        )
        whole = all(size == int(size) and 0 < size <= most for size in sizes)
        if not sizes or not whole or len({*sizes}) < len(sizes):
            raise ValueError(
                f"Expected shares in (0, 1] or numbers up to {most:,} (the training "
                "images minus the held-out share), distinct and not empty. "
                f"Received: subsets={tuple(subsets)}"
            )
        return [int(size) for size in sizes]

    def measure(self, images: int, seed: int, place: str) -> None:
        """Pre-trains on a subset and measures; skips the steps that are done."""
        kept = self._kept(images, seed)
        if kept.exists():
            return
        if self.verbose:
            print(f"subset {place}: {images:,} images, seed {seed}", flush=True)
        training = kept.with_suffix("")
        trained = finished(training) or self._pretrain(images, seed, training)
        best = keras.models.load_model(training / "best.keras", compile=False)
        found = few_shot.fewshot(
            best,
            self.measured,
            shots=(self.shots,),
            l2=self.l2,
            seeds=self.draws,
            batch_size=self.batch_size,
            verbose=bool(self.verbose),
            preprocessing=self.preprocessing,
        )
        row = found.at(self.shots)
        content = {
            "images": images,
            "seed": seed,
            "few_shot": row.mean,
            "few_shot_by_draw": row.by_seed,
            "validation": max(line["val_accuracy"] for line in trained.history),
            "validation_images": trained.test_images,
            "test_images": found.test_images,
            "parameters": best.count_params(),
        }
        write_json(kept, content)
        for name in ("checkpoints", "start"):
            shutil.rmtree(training / name, ignore_errors=True)
        manifest.write(training)
        if self.verbose:
            print(f"{images:,} images, seed {seed}: {percent(row.mean)}", flush=True)
        del best
        gc.collect()  # A model and its compiled functions refer to each other.

    def _pretrain(self, images: int, seed: int, training: Path) -> Result:
        keras.utils.set_random_seed(seed)
        model: keras.Model = family_of(self.config).build(
            self.config,
            image_size=self.recipe.image_size,
            num_classes=len(self.source.classes),
        )
        return fit(
            model,
            self.recipe,
            self.divided(seed).subset(images, seed),
            seed=seed,
            output=training,
            evaluations=self.evaluations,
            save_minutes=self.save_minutes,
            verbose=self.verbose,
            preprocessing=self.preprocessing,
        )

    def result(self, counts: Sequence[int], seeds: tuple[int, ...]) -> DataSize:
        """Collects the results in the folder for these subsets and seeds."""
        results = {
            images: [self._read(images, seed) for seed in seeds] for images in counts
        }
        one = results[counts[0]][0]
        return DataSize(
            rows=tuple(
                SubsetAccuracy(
                    images=images,
                    few_shot=tuple(run["few_shot"] for run in runs),
                    validation=tuple(run["validation"] for run in runs),
                )
                for images, runs in results.items()
            ),
            seeds=seeds,
            shots=self.shots,
            steps=self.recipe.steps,
            parameters=one["parameters"],
            validation_images=one["validation_images"],
            test_images=one["test_images"],
            data=self.source.name,
            few_shot_data=self.measured.name,
        )

    def _kept(self, images: int, seed: int) -> Path:
        return self.folder / f"{images}-images-seed-{seed}.json"

    def _read(self, images: int, seed: int) -> dict[str, Any]:
        path = self._kept(images, seed)
        try:
            content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
            keys = ("few_shot", "validation", "validation_images", "test_images")
            return {key: content[key] for key in (*keys, "parameters")}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Expected a result of `keras-vit data-size`. Received: {str(path)!r}, "
                f"damaged ({error!r}). Delete it and run the same command again"
            ) from error
