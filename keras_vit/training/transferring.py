"""Section 4.1 and B.1.1 in one call: sweep, final runs, mean, and the paper's value.

OUTPUT/begun.json     what is transferred, to what, with what seed
OUTPUT/run-0          of `fit`: the sweep and the first final run
OUTPUT/run-1, ...     of `fit`: a final run each
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
from keras_vit.models.vision import preprocessing_of
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
RUNS = 3  # Table 2: the mean of three fine-tunings.
# Classes, training and test images of the whole data sets, by their own pages. Whether
# the paper trained on Flowers' validation images too is not known.
_WHOLE: dict[str, tuple[int, ...]] = {
    "cifar10": (10, 50_000, 10_000),
    "cifar100": (100, 50_000, 10_000),
    "oxford_iiit_pet": (37, 3_680, 3_669),
    "oxford_flowers102": (102,),
    "imagenet2012": (1_000, IMAGES["imagenet2012"], 50_000),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperDifference:
    """A setting that is not the paper's (Table 4, section 4.1).

    Attributes:
        setting: its name.
        ours: its value here.
        paper: the paper's.
    """

    setting: str
    ours: Any
    paper: Any

    def __str__(self) -> str:
        return f"{self.setting}: {self.ours}, the paper's: {self.paper}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """What `transfer` measured (4.1, Table 5).

    Accuracies are top-1 in [0, 1]; the paper's in percent.

    Attributes:
        data: the source's name.
        learning_rate: learning rate of the final runs, chosen by the sweep if there was
            one.
        sweep: held-out accuracy, in [0, 1], of every rate tried; empty without a sweep.
        seed: seed of the first run; the next run has the next seed.
        accuracies: accuracy of each run, on all test images.
        test_images: how many those are.
        mean: mean of the accuracies.
        std: their sample standard deviation; None of one run.
        expected: the paper's number; None where it has none, or nobody said what the
            model was pre-trained on.
        differences: every setting that is not the paper's.
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
        """A table: the sweep, the runs, their mean, the paper's number, differences."""
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
            yield "  paper     has no number of this model, pre-training and data"
        else:
            told = _percent(self.expected.percent, self.expected.std)
            row = f"{self.expected.model}, {self.expected.pretrained_on}"
            yield f"  {'paper':10}{told}  {self.expected.table}: {row}"
        yield "not as in the paper:" if self.differences else "all as in the paper"
        for difference in self.differences:
            yield f"  {difference}"

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes every attribute, whole or not at all.

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
    training set less its held-out share. The best one then trains `runs` models on all
    of it, each from the pretrained weights with a new zero-initialized head, and each
    with a seed of its own for order, augmentation and dropout. Each is judged on the
    whole test set.

    `model` is left as it is: what trains is a copy at the recipe's resolution, a fresh
    one for each run, so memory holds the weights once more than `fit` does.

    With an `output` folder nothing is lost: the same call resumes from the newest
    checkpoint of the run that was cut, to the same final bits, and reads the runs
    before it from their folders. With more `runs` it adds to them.

    Under a strategy it works as `fit` does; the first process writes.

    Args:
        model: a model of this library, pretrained, with any head or none, of any
            resolution.
        data: see `fit`, but no ready batches: a source with training and test images.
        recipe: how to fine-tune; None: the row's.
        row: the row of Table 4, `recipes.FINETUNE`, to train by and to compare with;
            None: the one of the data's name, else oxford_flowers102's.
        pretrained_on: "imagenet21k", "imagenet2012" or "jft300m", for the paper's
            number; a tag of other weights has none.
        runs: 1 or more.
        preprocessing: how images become input; default: the model's own.
        seed: seed of the first run; the next ones have the next seeds. It draws the
            held-out share too, and a test share where the data has none of its own.
        output: folder; see the top of this module. `keras_vit.training.fit` describes
            what is in a run's.
        resume: "auto" resumes the transfer in `output`, if one was begun there;
            "never" forgets it.
        verbose: as in `model.fit`.
        **saving: `save_steps`, `save_minutes`, `keep` and `wait`; see
            `resume.SaveOptions`.

    Returns:
        A `Transfer`.

    Raises:
        ValueError: if there are no runs, rows or test images of this kind, if `fit` or
            `at_resolution` cannot do as the recipe says, or if the transfer in `output`
            was begun with other weights, data, seed or recipe.
        ImportError: see `data.open_source`.
        OSError: if `output` cannot be written to; `RunInUse` if another process trains
            in it, unless `wait`.
        Preempted: when the process was asked to end, and the run is saved.
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
            kept = None if folder is None else folder / f"run-{run}"
            result = None if kept is None else finished(kept)
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
                    output=kept,
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
    """The data; what a frozen model makes of them is computed for one run alone."""
    if isinstance(data, tf.data.Dataset):
        raise ValueError(
            "Expected a source of images, of which the sweep holds some out. Received: "
            "a tf.data.Dataset of ready batches. An .npz of it, or a Source, is one"
        )
    source = data if isinstance(data, Source) else open_source(data, seed=seed)
    if source.test is None:
        raise ValueError(
            "Expected test images to judge the runs by. Received: "
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
    """The values that have to be the same for a transfer to resume."""
    body = weights_sha256(model, without=("pre_logits", "head"))
    return {
        "transfer": {"weights": body, "seed": seed},
        "recipe": recipe.identity(),
        **preprocessing.identity(),
        "data": {"name": source.name, "fingerprint": source.fingerprint()},
    }


def fresh(
    model: keras.Model, recipe: Recipe, classes: int, seed: int, workers: Workers
) -> keras.Model:
    """A copy of a pretrained model to train by a recipe: the weights, and a new head.

    It is built at the recipe's resolution; its dropout draws by the seed.
    """
    with workers.scope():
        network = for_task(at_resolution(model, recipe.image_size), classes)
        states = resuming.generator_states(network)
        drawn = np.random.SeedSequence(seed).generate_state(len(states))
        for state, own in zip(states, drawn, strict=True):
            state.assign(np.array([own, 0], np.uint32))  # A seed, and draws so far.
    return network


def _differing(setting: str, ours: Any, theirs: Any) -> Iterator[PaperDifference]:
    if ours != theirs:
        yield PaperDifference(setting=setting, ours=ours, paper=theirs)


@dataclasses.dataclass(frozen=True)
class _Paper:
    """What the paper does with a source's data set, to compare with.

    `row` is Table 4's; `named` whether it is of this data set, or stands in for one
    that the paper does not have.
    """

    source: Source
    row: str
    named: bool

    @classmethod
    def of(cls, source: Source, row: str | None) -> "_Paper":
        found = row or finetune_row(source.name)
        return cls(source, found, found in (row, source.name.split(":")[0]))

    @property
    def dataset(self) -> str:
        return self.row.partition("-")[0]

    def expected(
        self, model: keras.Model, pretrained_on: str | None
    ) -> paper.Accuracy | None:
        """The number of this model on this data set."""
        variant = variant_of(config_of(model))
        whole = _WHOLE.get(self.dataset, (0,))
        known = self.named and len(self.source.classes) == whole[0]
        if not known or variant is None or pretrained_on is None:
            return None
        found = None
        if self.row == "imagenet2012":  # Table 2's are of larger images.
            found = paper.expected(variant, pretrained_on, self.row, table="Table 5")
        return found or paper.expected(variant, pretrained_on, self.dataset)

    def recipe(self, recipe: Recipe) -> Iterator[PaperDifference]:
        """Fields that are not Table 4's; the momentum's dtype is vit_jax/train.py's."""
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
        """How the model is built and what it computes in."""
        yield from _differing("dtype policy", model.dtype_policy.name, "float32")
        variant = variant_of(config_of(model))
        if pretrained_on not in IMAGES:
            yield PaperDifference(
                setting="pre-training", ours=pretrained_on, paper=", ".join(IMAGES)
            )
        if variant is None:
            yield PaperDifference(
                setting="model", ours=model.name, paper="none of this shape"
            )
            return
        own, theirs = config_of(model), VARIANTS[variant]
        for field in dataclasses.fields(own):
            if field.name not in ("representation_size", "head_bias_init"):  # Head's.
                mine, other = getattr(own, field.name), getattr(theirs, field.name)
                yield from _differing(field.name, mine, other)
