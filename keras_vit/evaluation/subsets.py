"""Figure 4 (4.3): pre-train on nested subsets, then few-shot accuracy by subset.

OUTPUT/begun.json                 the model, the recipe, the data and the measure
OUTPUT/430-images-seed-0/         a pre-training, as `training.fit` writes it
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
    """What was measured of the pre-trainings on one subset (Figure 4).

    Attributes:
        images: the number of images in the subset.
        few_shot: accuracy on the test images by seed, in [0, 1], the mean over draws.
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
    """What `data_size` measured (4.3, Figure 4); printed, it is a table.

    Attributes:
        rows: a `SubsetAccuracy` for each subset, the smallest first.
        seeds: the seeds of the pre-trainings.
        shots: labeled images per class.
        steps: updates of each pre-training.
        parameters: the number of parameters in the model.
        validation_images: the number of held-out images that choose the evaluation.
        test_images: the number of test images.
        data: the name of the source of the pre-training.
        few_shot_data: the name of the source of the shots and the test images.
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
        """Mean few-shot accuracy, in [0, 1], by images: a line of `plots.data_size`."""
        return {row.images: row.mean for row in self.rows}

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes every attribute, with means and deviations, whole or not at all.

        Args:
            path: the JSON file.
        """
        rows = [
            {**dataclasses.asdict(row), "mean": row.mean, "std": row.std}
            for row in self.rows
        ]
        write_json(path, dataclasses.asdict(self) | {"rows": rows})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `write_json` wrote.

        Args:
            path: the JSON file.

        Returns:
            A `DataSize`.

        Raises:
            ValueError: if the file is absent or damaged.
        """
        try:
            told = parse_json(Path(path).read_text(encoding="utf-8"))
            told["rows"] = tuple(
                SubsetAccuracy(
                    images=int(row["images"]),
                    few_shot=tuple(row["few_shot"]),
                    validation=tuple(row["validation"]),
                )
                for row in told["rows"]
            )
            return cls(**told | {"seeds": tuple(told["seeds"])})
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
    """Keyword arguments of `data_size`: what is measured, and how (4.3, Figure 4).

    Attributes:
        shots: labeled images of each class; default: 5.
        draws: seeds of the draws of shots; their accuracies are averaged; default:
            (0, 1, 2).
        l2: weight of the penalty, as in `fewshot`; default: 1024.
        batch_size: images per batch of feature extraction; default: 32.
        validation_share: the share of the training images that is held out, in (0, 1);
            default: 0.1.
        evaluations: the largest number of evaluations in a pre-training; default: 10.
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
    """Pre-trains on nested subsets and measures few-shot accuracy (4.3, Figure 4).

    A share of the training images is held out. Of the rest, each subset trains a model
    from random weights for the same number of updates with the same hyperparameters.
    The evaluation with the best accuracy on the held-out share is kept (the paper's
    early stopping), and the few-shot accuracy of its frozen features is measured once,
    on the test images. Test images choose nothing.

    If the process ends, the same call resumes in the middle of a pre-training. A later
    call with more subsets or seeds adds to the folder.

    Args:
        config: the model's config; the recipe sets its dropout and initial bias.
        data: to pre-train on: what `data.open_source` takes, or a `Source`, of images
            that any index reads.
        recipe: e.g. `recipes.PRETRAIN["ViT-B/32-jft300m"]`, of one learning rate. Its
            epochs are those of all training images, whatever the subset.
        output: the folder.
        subsets: shares of the training images (1.0 or less) or numbers of images.
        few_shot_data: with the shots and the test images; None: `data` itself, with
            the shots from all of its training images.
        seeds: one pre-training of each subset for each; a seed draws the held-out
            share, the nested subsets, the initial weights, the order and the crops.
        preprocessing: how images become input; default: the paper's.
        save_minutes: minutes between two checkpoints, as in `fit`.
        wait: whether to wait while another process trains in the folder, in place of
            `RunInUse`.
        verbose: as in `model.fit`.
        **measure: `shots`, `draws`, `l2`, `batch_size`, `validation_share` and
            `evaluations`; see `MeasureOptions`.

    Returns:
        A `DataSize`, also written to `data_size.json`.

    Raises:
        ValueError: if a subset, a seed, the shots or the recipe cannot be as given; if
            the images are a stream's, or there are no test images; if the folder was
            begun with another model, recipe or data; in one of several processes.
        ImportError: if `data.open_source` raises it.
        OSError: if `output` cannot be written to; `RunInUse` if another process trains
            in it, unless `wait`.
        Preempted: when the process was asked to end, and its training is saved.
    """
    arguments.only("data_size", measure, MeasureOptions)
    source = data if isinstance(data, Source) else open_source(data)
    source.subset(1)  # Raises for a stream.
    measured = features.opened(source if few_shot_data is None else few_shot_data)
    if not isinstance(measured, Source):
        raise ValueError(
            "Expected images, of which every pre-trained model computes features. "
            f"Received: few_shot_data of type {type(measured).__name__}. Give a "
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
    """The result in a folder of `data_size` (Figure 4).

    Args:
        output: the folder.

    Returns:
        The `DataSize` of the last call that ended.

    Raises:
        ValueError: if there is none, or it is damaged.
    """
    return DataSize.load(Path(output) / RESULT)


def _in_steps(recipe: Recipe, source: Source, validation_share: float) -> Recipe:
    """The recipe in updates, the same for every subset."""
    if len(recipe.base_lr) > 1:
        raise ValueError(
            "Expected one learning rate for all subsets (4.3: no tuning to a subset). "
            f"Received: base_lr={recipe.base_lr}"
        )
    if not 0 < validation_share < 1:
        raise ValueError(
            "Expected a share of the training images between 0 and 1 to choose the "
            f"best evaluation on. Received: validation_share={validation_share}"
        )
    return recipe.for_images(len(source.train))


def _one_process() -> Workers:
    """The devices that models are built on, if they are of one process."""
    workers = Workers.current()
    if workers.count > 1:
        raise ValueError(
            "Expected one process, which measures what it has trained. Received: "
            f"{workers.count} processes"
        )
    return workers


def _check_seeds(seeds: Sequence[int]) -> None:
    whole = all(isinstance(seed, int) and seed >= 0 for seed in seeds)
    if not seeds or not whole or len({*seeds}) < len(seeds):
        raise ValueError(
            f"Expected seeds from 0, each once. Received: seeds={tuple(seeds)}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Study:
    """What all pre-trainings of a folder have in common."""

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
        """The study with a recipe in updates, if everything is as it can be."""
        few_shot.check(self.measured, (self.shots,), self.l2, self.draws)
        recipe = _in_steps(self.recipe, self.source, self.validation_share)
        return dataclasses.replace(self, recipe=recipe, draws=tuple(self.draws))

    def identity(self) -> dict[str, Any]:
        """What the folder is of, as plain values."""
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
        """The source with the held-out share of its training images as test images."""
        rest, held_out = self.source.train.split(self.validation_share, seed)
        return dataclasses.replace(self.source, train=rest, test=held_out)

    def counts(self, subsets: Sequence[float]) -> list[int]:
        """Images of each subset, the smallest first."""
        most = len(self.divided(0).train)
        sizes = sorted(
            round(size * most) if 0 < size <= 1 else size for size in subsets
        )
        whole = all(size == int(size) and 0 < size <= most for size in sizes)
        if not sizes or not whole or len({*sizes}) < len(sizes):
            raise ValueError(
                f"Expected shares in (0, 1] or numbers up to {most:,} (the training "
                "images less the held-out share), each subset once and not empty. "
                f"Received: subsets={tuple(subsets)}"
            )
        return [int(size) for size in sizes]

    def measure(self, images: int, seed: int, place: str) -> None:
        """Pre-trains on a subset, then measures; what is done is not done again."""
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
        told = {
            "images": images,
            "seed": seed,
            "few_shot": row.mean,
            "few_shot_by_draw": row.by_seed,
            "validation": max(line["val_accuracy"] for line in trained.history),
            "validation_images": trained.test_images,
            "test_images": found.test_images,
            "parameters": best.count_params(),
        }
        write_json(kept, told)
        for name in ("checkpoints", "start"):
            shutil.rmtree(training / name, ignore_errors=True)
        manifest.write(training)
        if self.verbose:
            print(f"{images:,} images, seed {seed}: {row.mean:.2%}", flush=True)
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
        """What the folder has of these subsets and seeds."""
        told = {
            images: [self._read(images, seed) for seed in seeds] for images in counts
        }
        one = told[counts[0]][0]
        return DataSize(
            rows=tuple(
                SubsetAccuracy(
                    images=images,
                    few_shot=tuple(run["few_shot"] for run in runs),
                    validation=tuple(run["validation"] for run in runs),
                )
                for images, runs in told.items()
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
            told: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
            keys = ("few_shot", "validation", "validation_images", "test_images")
            return {key: told[key] for key in (*keys, "parameters")}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Expected a result of `keras-vit data-size`. Received: {str(path)!r}, "
                f"damaged ({error!r}). Delete it and run the same command again"
            ) from error
