"""Sections 4.1 and B.1.1 in one call: sweep, final runs, mean, and the paper's result.

OUTPUT/begun.json     weights, data, recipe and seed of the transfer
OUTPUT/run-0          output of `fit`: the sweep and the first final run
OUTPUT/run-1, ...     output of `fit`: one final run each
OUTPUT/transfer.json  the result
"""

import dataclasses
import functools
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Unpack

import keras
import numpy as np
import tensorflow as tf

from keras_vit import arguments, manifest, paper
from keras_vit._lazy import renamed
from keras_vit.configs import VARIANTS
from keras_vit.data.sources import Source, open_source
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.families import variant_of
from keras_vit.files import write_json
from keras_vit.models import at_resolution, for_task
from keras_vit.models.description import weights_sha256
from keras_vit.models.vision import architecture_of, preprocessing_of
from keras_vit.recipes import FINETUNE, IMAGES, Recipe, finetune_row
from keras_vit.training import fitting, locking
from keras_vit.training import resume as resuming
from keras_vit.training.distribution import Workers
from keras_vit.training.inputs import CachedSource
from keras_vit.training.results import Result, finished, forget
from keras_vit.training.runs import BEGUN
from keras_vit.weights.architecture import config_of

__all__ = ["PaperDifference", "Transfer", "transfer"]

__getattr__ = renamed(__name__, Difference="PaperDifference")

RESULT = "transfer.json"
RUNS = 3  # Table 2: the mean of three fine-tuning runs.
# Classes, training and test images of the complete data sets, from their own pages.
# It is not known whether the paper also trained on the validation images of Flowers.
_WHOLE: dict[str, tuple[int, ...]] = {
    "cifar10": (10, 50_000, 10_000),
    "cifar100": (100, 50_000, 10_000),
    "oxford_iiit_pet": (37, 3_680, 3_669),
    "oxford_flowers102": (102,),
    "imagenet2012": (1_000, IMAGES["imagenet2012"], 50_000),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperDifference:
    """A setting that differs from the paper (Table 4, section 4.1).

    Attributes:
        setting: name of the setting.
        ours: value in this transfer.
        paper: value in the paper.
    """

    setting: str
    ours: Any
    paper: Any

    def __str__(self) -> str:
        return f"{self.setting}: {self.ours}, the paper's: {self.paper}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """The result of `transfer` (4.1, Table 5).

    Accuracies are top-1 in [0, 1]; those of the paper are in percent.

    Attributes:
        data: name of the source.
        learning_rate: learning rate of the final runs, chosen by the sweep if there was
            one.
        sweep: held-out accuracy, in [0, 1], of every rate tried; empty without a sweep.
        seed: seed of the first run; the next run has the next seed.
        accuracies: accuracy of each run, on all test images.
        test_images: number of test images.
        mean: mean of the accuracies.
        std: sample standard deviation of the accuracies; None for one run.
        expected: the paper's result; None if it has none, or if the pre-training data
            is not given.
        differences: every setting that differs from the paper.
    """

    data: str
    learning_rate: float
    sweep: dict[float, float]
    seed: int
    accuracies: tuple[float, ...]
    test_images: int
    mean: float
    std: float | None
    expected: paper.Accuracy | None
    differences: tuple[PaperDifference, ...]

    def __str__(self) -> str:
        """A table: the sweep, the runs, their mean, the paper's result, differences."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.sweep:
            yield f"{self.data}: learning rate  held-out %"
            for rate, accuracy in self.sweep.items():
                chosen = "  chosen" if rate == self.learning_rate else ""
                yield f"  {rate:<10g}{100 * accuracy:8.2f}{chosen}"
        yield f"{self.data}: seed  test % of {self.test_images} images"
        for seed, accuracy in enumerate(self.accuracies, self.seed):
            yield f"  {seed:<10}{100 * accuracy:8.2f}"
        yield f"  {'mean':10}{_percent(100 * self.mean, self.std and 100 * self.std)}"
        if self.expected is None:
            yield "  paper     no result for this model, pre-training and data"
        else:
            result = _percent(self.expected.percent, self.expected.std)
            row = f"{self.expected.model}, {self.expected.pretrained_on}"
            yield f"  {'paper':10}{result}  {self.expected.table}: {row}"
        yield f"{'' if self.differences else 'no '}differences from the paper"
        for difference in self.differences:
            yield f"  {difference}"

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes every attribute, completely or not at all.

        Args:
            path: path of the JSON file.
        """
        write_json(path, dataclasses.asdict(self))


def _percent(mean: float, std: float | None) -> str:
    return f"{mean:8.2f}" + ("" if std is None else f" +- {std:.2f}")


def transfer(
    model: keras.Model,
    data: str | os.PathLike[str] | Source,
    *,
    recipe: Recipe | None = None,
    row: str | None = None,
    pretrained_on: str | None = None,
    runs: int = RUNS,
    preprocessing: Preprocessing | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    resume: Literal["auto", "never"] = "auto",
    verbose: int | str = "auto",
    **saving: Unpack[resuming.SaveOptions],
) -> Transfer:
    """Measures how well a pretrained model transfers, as the paper does (4.1, B.1.1).

    The learning rates of the recipe are tried once, with the first seed, on the
    training set without its held-out share. The best one is then used to train `runs`
    models on the whole training set. Each starts from the pretrained weights with a new
    zero-initialized head, uses a different seed for order, augmentation and dropout,
    and is evaluated on the whole test set.

    `model` is not changed. Each run trains a new copy at the recipe's resolution, so
    the weights are in memory once more than with `fit`.

    With an `output` folder nothing is lost: the same call resumes from the newest
    checkpoint of the interrupted run, ends with the same bits, and reads the finished
    runs from their folders. A larger `runs` adds runs.

    Under a strategy it works as `fit` does; only process 0 writes.

    Args:
        model: a pretrained model of this library, with or without a head, at any
            resolution.
        data: source with training and test images, as in `fit`; ready batches are not
            accepted.
        recipe: recipe for fine-tuning; None: that of the row.
        row: row of Table 4, a key of `recipes.FINETUNE`, to train with and to compare
            with; None: the row of the data set, else that of oxford_flowers102.
        pretrained_on: "imagenet21k", "imagenet2012" or "jft300m", to select the paper's
            result; there is none for tags of other weights.
        runs: number of final runs, at least 1.
        preprocessing: preprocessing of the images; default: that of the model.
        seed: seed of the first run; the next runs use the next seeds. It also selects
            the held-out share, and the test share if the data has no test images.
        output: folder for the result and a folder for each run, with the files of
            `fit`.
        resume: "auto" resumes the transfer in `output`, if there is one; "never"
            discards it.
        verbose: as in `model.fit`.
        **saving: `save_steps`, `save_minutes`, `keep` and `wait`; see
            `resume.SaveOptions`.

    Returns:
        A `Transfer`.

    Raises:
        ValueError: if `runs` is below 1, if there is no such row or no test image, if
            `fit` or `at_resolution` cannot follow the recipe, or if the transfer in
            `output` was started with different weights, data, seed or recipe.
        ImportError: see `data.open_source`.
        OSError: if `output` cannot be written to; `RunInUse` if another process trains
            in it, unless `wait`.
        Preempted: after SIGTERM or Ctrl-C, when the run is saved.
    """
    if runs < 1:
        raise ValueError(f"Expected 1 run or more. Received: runs={runs}")
    if row is not None and row not in FINETUNE:
        raise ValueError(
            f"Expected one of {', '.join(FINETUNE)}. Received: row={row!r}"
        )
    arguments.only("transfer", saving, resuming.SaveOptions)
    preprocessing = preprocessing_of(model, preprocessing)
    source = _source(data, seed)
    compared = _Paper.of(source, row)
    recipe = (recipe or FINETUNE[compared.row]).for_images(len(source.train))
    workers = Workers.of(model)
    folder = None if output is None else Path(output)
    with locking.run_folder(
        folder,
        workers,
        saving.get("wait", False),
        functools.partial(_identity, model, source, recipe, seed, preprocessing),
        forget=_forget if resume == "never" else None,
    ):
        results: list[Result] = []
        for run in range(runs):
            run_folder = None if folder is None else folder / f"run-{run}"
            result = None if run_folder is None else finished(run_folder)
            if result is None:
                if verbose and workers.chief:
                    print(f"run {run + 1} of {runs}, seed {seed + run}")
                chosen = (results[0].learning_rate,) if results else recipe.base_lr
                result = fitting.fit(
                    fresh(model, recipe, len(source.classes), seed + run, workers),
                    dataclasses.replace(recipe, base_lr=chosen),
                    source,
                    preprocessing=preprocessing,
                    seed=seed + run,
                    output=run_folder,
                    verbose=verbose,
                    **saving,
                )
            results.append(result)
        accuracies = [r.test_accuracy for r in results if r.test_accuracy is not None]
        measured = Transfer(
            data=source.name,
            learning_rate=results[0].learning_rate,
            sweep=results[0].sweep,
            seed=seed,
            accuracies=tuple(accuracies),
            test_images=results[0].test_images,
            mean=statistics.mean(accuracies),
            std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            expected=compared.expected(model, pretrained_on),
            differences=(
                *compared.recipe(recipe),
                *compared.data(preprocessing),
                *compared.model(model, pretrained_on),
                *_differing("runs", runs, RUNS),
            ),
        )
        if folder is not None and workers.chief:
            measured.write_json(folder / RESULT)
            manifest.write(folder)
        workers.meet()
    return measured


def _source(data: Any, seed: int) -> CachedSource:
    """Opens the data; the features of a frozen model are computed only once."""
    if isinstance(data, tf.data.Dataset):
        raise ValueError(
            "Expected a source of images, because the sweep holds some out. Received: "
            "a tf.data.Dataset of ready batches. Pass an .npz file or a Source instead"
        )
    source = data if isinstance(data, Source) else open_source(data, seed=seed)
    if source.test is None:
        raise ValueError(
            "Expected test images to evaluate the runs on. Received: "
            f"data={source.name!r}, which has none"
        )
    return CachedSource(
        source.name, source.classes, source.train, source.test, source.left_out
    )


def _forget(folder: Path) -> None:
    """Deletes the files that a transfer would resume from."""
    for run in folder.glob("run-*"):
        forget(run)
    for name in (BEGUN, RESULT, manifest.FILE):
        (folder / name).unlink(missing_ok=True)


def _identity(
    model: keras.Model,
    source: Source,
    recipe: Recipe,
    seed: int,
    preprocessing: Preprocessing,
) -> dict[str, Any]:
    """The values that must be equal for a transfer to resume."""
    backbone = weights_sha256(model, without=("pre_logits", "head"))
    return {
        "transfer": {"weights": backbone, "seed": seed},
        "config": architecture_of(model),
        "recipe": recipe.identity(),
        **preprocessing.identity(),
        "data": {"name": source.name, "fingerprint": source.fingerprint()},
    }


def fresh(
    model: keras.Model, recipe: Recipe, classes: int, seed: int, workers: Workers
) -> keras.Model:
    """Returns a copy of a pretrained model with a new head, to train with a recipe.

    It has the recipe's resolution; its dropout uses the seed.
    """
    with workers.scope():
        network = for_task(at_resolution(model, recipe.image_size), classes)
        states = resuming.generator_states(network)
        seeds = np.random.SeedSequence(seed).generate_state(len(states))
        for state, new in zip(states, seeds, strict=True):
            state.assign(np.array([new, 0], np.uint32))  # Seed and number of draws.
    return network


def _differing(setting: str, ours: Any, theirs: Any) -> Iterator[PaperDifference]:
    if ours != theirs:
        yield PaperDifference(setting=setting, ours=ours, paper=theirs)


@dataclasses.dataclass(frozen=True)
class _Paper:
    """The paper's settings for a source's data set.

    `row` is a row of Table 4. `named` is whether it is the row of this data set, and
    not a substitute for a data set without a row.
    """

    source: Source
    row: str
    named: bool

    @classmethod
    def of(cls, source: Source, row: str | None) -> "_Paper":
        name = row or finetune_row(source.name)
        return cls(source, name, name in (row, source.name.split(":")[0]))

    @property
    def dataset(self) -> str:
        return self.row.partition("-")[0]

    def expected(
        self, model: keras.Model, pretrained_on: str | None
    ) -> paper.Accuracy | None:
        """The paper's result of this model on this data set."""
        variant = variant_of(config_of(model))
        whole = _WHOLE.get(self.dataset, (0,))
        known = self.named and len(self.source.classes) == whole[0]
        if not known or variant is None or pretrained_on is None:
            return None
        result = None
        if self.row == "imagenet2012":  # Those of Table 2 are for larger images.
            result = paper.expected(variant, pretrained_on, self.row, table="Table 5")
        return result or paper.expected(variant, pretrained_on, self.dataset)

    def recipe(self, recipe: Recipe) -> Iterator[PaperDifference]:
        """Fields that differ from Table 4; momentum is bfloat16 in vit_jax/train.py."""
        theirs = dataclasses.replace(FINETUNE[self.row], momentum_dtype="bfloat16")
        for name in recipe.identity():
            yield from _differing(name, getattr(recipe, name), getattr(theirs, name))

    def data(self, preprocessing: Preprocessing) -> Iterator[PaperDifference]:
        """The data set and how its images are preprocessed."""
        if not self.named:
            yield from _differing("data set", self.source.name, self.dataset)
        else:
            test = self.source.test or ()
            counts = len(self.source.classes), len(self.source.train), len(test)
            names = ("classes", "training images", "test images")
            whole = _WHOLE.get(self.dataset, ())
            for name, count, theirs in zip(names, counts, whole, strict=False):
                yield from _differing(name, count, theirs)
        for name, ours in dataclasses.asdict(preprocessing).items():
            yield from _differing(name, ours, getattr(OFFICIAL, name))

    def model(
        self, model: keras.Model, pretrained_on: str | None
    ) -> Iterator[PaperDifference]:
        """Architecture, pre-training and dtype policy of the model."""
        yield from _differing("dtype policy", model.dtype_policy.name, "float32")
        variant = variant_of(config_of(model))
        if pretrained_on not in IMAGES:
            yield PaperDifference(
                setting="pre-training", ours=pretrained_on, paper=", ".join(IMAGES)
            )
        if variant is None:
            yield PaperDifference(
                setting="model", ours=model.name, paper="no model of this shape"
            )
            return
        config, expected = config_of(model), VARIANTS[variant]
        for field in dataclasses.fields(config):
            # Both describe the head.
            if field.name not in ("representation_size", "head_bias_init"):
                ours, theirs = (
                    getattr(config, field.name),
                    getattr(expected, field.name),
                )
                yield from _differing(field.name, ours, theirs)
