"""Fine-tuning with `model.fit` as section 4.1 and B.1.1 prescribe it."""

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Unpack

import keras
import tensorflow as tf

from keras_vit import arguments, manifest
from keras_vit.arguments import percent
from keras_vit.environment import environment
from keras_vit.facts import Preprocessing
from keras_vit.files import replacing, write_json
from keras_vit.models.vision import preprocessing_of
from keras_vit.recipes import Recipe
from keras_vit.training import callbacks, locking, optim, preparing
from keras_vit.training import resume as resuming
from keras_vit.training.certificate import Certificate
from keras_vit.training.distribution import Workers
from keras_vit.training.inputs import Batches, BatchesFrom, ValidationData, objective
from keras_vit.training.progress import ProgressLine
from keras_vit.training.results import Result, forget, read_json
from keras_vit.training.runs import CHECKPOINTS

__all__ = ["Result", "fit"]


def fit(
    model: keras.Model,
    recipe: Recipe,
    data: Any,
    *,
    validation_data: tf.data.Dataset | None = None,
    preprocessing: Preprocessing | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    resume: Literal["auto", "never"] = "auto",
    evaluations: int = 10,
    verbose: int | str = "auto",
    **saving: Unpack[resuming.SaveOptions],
) -> Result:
    """Fine-tunes `model` by the recipe (Table 4), in place, with `model.fit`.

    A model that defines its own loss, such as `MaskedPatchPredictor`, is trained with
    it. `Result.test_accuracy` is then the model's metric "accuracy", if it has one.

    If the recipe has several learning rates, each is tried on the training set without
    its held-out share. The one with the best accuracy trains the final model on the
    whole training set; between equal accuracies, the smaller held-out loss decides.
    A recipe that freezes layers restores `trainable` afterwards. LoRA that a recipe
    adds to the model stays in it and in its files.

    Under a strategy (`training.strategy`) it trains on all devices of all processes.
    Each process makes the same call; only process 0 writes and prints.

    With an `output` folder nothing is lost: after a kill, the same call resumes from
    the newest checkpoint and ends with the same bits.

    Args:
        model: images to logits, one for each class (see `for_task`); or a model that
            defines its own loss. Its input size and dtype policy are used, not the
            recipe's `image_size`, and `resize` is scaled with the size
            (`Recipe.at_size`).
        recipe: e.g. `recipes.FINETUNE["cifar10"]`; `dataclasses.replace` changes it.
            The model must be built with its `model_options`.
        data: a folder of images, an .npz, "digits" or a TFDS name (`data.open_source`),
            a `Source`, or a `tf.data.Dataset` of ready batches (images, labels), which
            is neither augmented nor shuffled, repeats when it ends, and requires a
            recipe with one learning rate.
        validation_data: ready batches to evaluate on; only with a `tf.data.Dataset`.
        preprocessing: preprocessing of the images; default: that of the model, or the
            paper's for a model that is not a `VisionModel`.
        seed: random seed for the order and augmentation of the batches, the held-out
            share, and the test share if the data has no test images.
        output: folder for `history.jsonl` (a line for each evaluation), `history.json`,
            `best.keras` (the best evaluation), `model.keras` (the final model),
            `tensorboard` (scalars), and the files to resume from: `begun.json`,
            `checkpoints`.
        resume: "auto" resumes the run in `output`, if there is an unfinished one;
            "never" discards it.
        evaluations: largest number of evaluations, evenly spaced; one is at the end.
        verbose: 0 prints nothing, 1 a progress line that is updated in place, 2 a line
            for each evaluation; "auto" is 1 on a terminal or in a notebook, else 2.
        **saving: `save_steps`, `save_minutes`, `keep` and `wait`; see
            `resume.SaveOptions`. SIGTERM and Ctrl-C save at once.

    Returns:
        A `Result`.

    Raises:
        ValueError: if the preprocessing does not fit the model's channels; if the model
            does not end in one logit for each class and does not define a loss;
            if the recipe cannot be followed on this data or backend;
            if the run in `output` was started with a different recipe, model, seed or
            data, or none of its checkpoints is complete; if the loss is not finite,
            with the step.
        ImportError: see `data.open_source`.
        OSError: if `output` cannot be written to; `RunInUse` if another process trains
            in it, unless `wait`.
        Preempted: after SIGTERM or Ctrl-C, when the run is saved.
    """
    if evaluations < 1:
        raise ValueError(
            f"Expected one evaluation or more. Received: evaluations={evaluations}"
        )
    arguments.only("fit", saving, resuming.SaveOptions)
    folder = None if output is None else Path(output)
    workers = Workers.of(model)
    verbose = verbose if workers.chief else 0
    preparing.check_options(model, recipe)
    preprocessing = preprocessing_of(model, preprocessing)
    batches = Batches(
        model, recipe, data, validation_data, preprocessing, seed, verbose, workers
    )
    preparing.note_facts(model, batches)
    recipe = batches.recipe
    workers.check(recipe, batches.batch_size)
    with locking.run_folder(
        folder,
        workers,
        saving.get("wait", False),
        functools.partial(preparing.identity, model, recipe, batches),
        forget=forget if resume == "never" else None,
    ):

        def start() -> None:
            if folder is not None:
                resuming.keep_start(folder, model, workers)

        with (
            trainings(model, batches, evaluations, verbose, start) as training,
            _saving(folder, saving) as kept,
        ):
            result = training.follow(kept)
        if folder is not None and workers.chief:
            save_model(model, folder / "model.keras")
            result.write(folder, recipe)
            manifest.write(folder)
        workers.meet()  # A process that ends takes the cluster with it.
    return result


@dataclasses.dataclass(frozen=True)
class Saving:
    """Where and how often checkpoints of a run are written."""

    folder: Path | None
    termination: resuming.Termination | None = None
    save_steps: int | None = None
    save_minutes: float | None = 10
    keep: int = 2

    def within(self, name: str) -> "Saving":
        """The same for one training of the run, such as a rate of the sweep."""
        folder = None if self.folder is None else self.folder / name
        return dataclasses.replace(self, folder=folder)


@contextlib.contextmanager
def _saving(folder: Path | None, options: resuming.SaveOptions) -> Iterator[Saving]:
    """Options of saving; with a folder, signals are handled inside."""
    if folder is None:
        yield Saving(None)
        return
    with resuming.terminations() as asked:
        yield Saving(
            folder,
            asked,
            options.get("save_steps"),
            options.get("save_minutes", Saving.save_minutes),
            options.get("keep", Saving.keep),
        )


@dataclasses.dataclass(frozen=True)
class Trainings:
    """The training runs of one call of `fit`: a sweep and the final one.

    `trained` is `model`, or a part of it, or a model with the same variables.
    """

    recipe: Recipe
    model: keras.Model
    trained: keras.Model
    batches: Batches
    workers: Workers
    evaluations: int
    verbose: int | str

    def follow(self, kept: Saving) -> Result:
        """Runs the sweep, if the recipe has one, and the final training."""
        sweep: dict[float, float] = {}
        base_lr = self.recipe.base_lr[0]
        if len(self.recipe.base_lr) > 1:
            base_lr, sweep = self._sweep(kept)
        made = None
        if kept.folder is not None:
            made = Certificate(
                facts(self.batches, self.period), self.batches.batch_size
            )
        history = self.final(base_lr, kept, made)
        return Result(
            base_lr,
            sweep,
            history,
            history[-1].get("val_accuracy"),
            self.batches.test_images,
            self.batches.left_out,
        )

    @property
    def period(self) -> int:
        """Updates between two evaluations."""
        steps, most = self.recipe.steps, range(1, self.evaluations + 1)
        return steps // max(n for n in most if steps % n == 0)

    def final(
        self,
        base_lr: float,
        kept: Saving,
        certificate: Certificate | None,
        saved: resuming.Saved | None = None,
    ) -> list[dict[str, float]]:
        """Trains on all training images and returns the history.

        Args:
            base_lr: the learning rate.
            kept: where and how often checkpoints are written.
            certificate: receives a link for each evaluation.
            saved: a checkpoint to resume from, if `kept` has no folder.
        """
        train, test = self.batches.all()
        return self._train(
            base_lr, train, test, kept, self.model, certificate=certificate, saved=saved
        )

    def _sweep(self, kept: Saving) -> tuple[float, dict[float, float]]:
        """Trains with every rate from the same initial weights.

        Returns:
            The best rate, and the held-out accuracy of every rate. The smaller held-out
            loss decides between rates with equal accuracies.
        """
        folder, variables = kept.folder, resuming.model_variables(self.model)
        done: dict[str, dict[str, float]] = {}
        if folder is not None:
            done = read_json(folder / "sweep.json", {})
        start = resuming.capture(variables)
        rest, held_out = self.batches.hold_out()
        rates = self.recipe.base_lr
        self.batches.say(
            f"trying {len(rates)} learning rates on {held_out}; the time left is for "
            "all of them and the final training run"
        )
        for number, base_lr in enumerate(rates, 1):
            if isinstance(done.get(str(base_lr)), dict):  # A number in version 0.1.
                continue
            self.batches.say(f"learning rate {number} of {len(rates)}: {base_lr:g}")
            name = f"sweep/{base_lr}"
            later = len(rates) - number + 1  # The final run is one of them.
            history = self._train(
                base_lr,
                rest,
                held_out,
                kept.within(name),
                prefix=f"rate {number}/{len(rates)}",
                later_steps=later * self.recipe.steps,
            )
            row = {key: history[-1][f"val_{key}"] for key in ("accuracy", "loss")}
            done[str(base_lr)] = row
            if folder is not None and self.workers.chief:
                write_json(folder / "sweep.json", done)
                shutil.rmtree(folder / name / CHECKPOINTS)
            resuming.restore(variables, start)
        accuracies = {rate: done[str(rate)]["accuracy"] for rate in rates}
        losses = {rate: done[str(rate)]["loss"] for rate in rates}
        best = max(rates, key=lambda rate: (accuracies[rate], -losses[rate]))
        tied = [rate for rate in rates if accuracies[rate] == accuracies[best]]
        reason = "; of the best rates it has the smallest loss" if tied[1:] else ""
        self.batches.say(
            f"best learning rate: {best:g}, with an accuracy of "
            f"{percent(accuracies[best])} on the held-out images{reason}"
        )
        return best, accuracies

    def _train(
        self,
        base_lr: float,
        train: BatchesFrom,
        validation: ValidationData,
        kept: Saving,
        best: keras.Model | None = None,
        certificate: Certificate | None = None,
        saved: resuming.Saved | None = None,
        prefix: str = "",
        later_steps: int = 0,
    ) -> list[dict[str, float]]:
        """`model.fit` for the recipe's steps, with an evaluation after each period.

        `best` is the model to save after the best evaluation, if there is one.
        """
        model, steps = self.trained, self.recipe.steps
        metrics = preparing.compiled(
            model, self.model, self.recipe, base_lr, self.batches.sparse
        )
        period = self.period
        averaged = None if self.recipe.ema is None else resuming.EMACallback(steps)

        def save_best() -> None:
            if best is None or kept.folder is None:
                return
            # In all processes: on JAX all of them assign a shared array.
            with averaged.applied() if averaged else contextlib.nullcontext():
                if self.workers.chief:
                    save_model(best, kept.folder / "best.keras")

        keeper = resuming.CheckpointCallback(
            steps,
            period,
            metrics,
            self.workers,
            by_loss=objective(self.model) is not None,
            averaged=averaged,
            save_best=save_best,
            **vars(kept),
        )
        keeper.certificate, keeper.certified = certificate, self.model
        schedule = optim.schedule(self.recipe, base_lr)
        watch = callbacks.Watch(
            keeper, self.batches.batch_size, schedule, later_steps=later_steps
        )
        line = ProgressLine(
            watch, str(validation), validation.kind, self.verbose, prefix
        )
        called = [keeper, *filter(None, [averaged]), watch, line]

        def fit(epochs: int, steps_per_epoch: int) -> None:
            model.fit(
                train(start_step=keeper.step),
                initial_epoch=keeper.step // period,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation_data=validation.batches,
                validation_steps=validation.steps,
                shuffle=False,  # The pipeline has shuffled.
                callbacks=called,
                verbose=0,
            )

        by_hand = keras.callbacks.CallbackList(called, model=model)
        keeper.resume(saved)
        if keeper.step and kept.folder is not None:
            self.batches.say(
                f"Resuming {str(kept.folder)!r} from step {keeper.step} of {steps}"
            )
        if keeper.step == steps and keeper.pending is None:
            return keeper.rows
        self.workers.draw_apart(resuming.generator_states(model))
        watch.begin()
        with contextlib.closing(line), preparing.graphs_freed():
            if keeper.pending is not None:  # Killed between update and evaluation.
                _evaluate(model, keeper.pending, validation, keeper, by_hand)
            if left := -keeper.step % period:
                fit(keeper.step // period + 1, left)
            if keeper.step < steps:
                fit(steps // period, period)
        keeper.save()
        return keeper.rows


def _evaluate(
    model: keras.Model,
    row: dict[str, float],
    validation: ValidationData,
    keeper: resuming.CheckpointCallback,
    callbacks: keras.callbacks.CallbackList,
) -> None:
    """Evaluates a resumed run that was killed after its last update; extends `row`."""
    if validation.batches is not None:
        metrics = model.evaluate(
            validation.batches,
            steps=validation.steps,
            callbacks=callbacks,
            verbose=0,
            return_dict=True,
        )
        row |= {f"val_{key}": value for key, value in metrics.items()}
    callbacks.on_epoch_end(keeper.step // keeper.period - 1, row)
    if keeper.step == keeper.total_steps:
        model.optimizer.finalize_variable_values(model.trainable_variables)


def facts(batches: Batches, period: int) -> dict[str, Any]:
    """Facts that all links of a run's certificate share."""
    identity = batches.identity()
    return {
        "data": identity["data"],
        "seed": identity["seed"],
        "period": period,
        "environment": environment() | {"replicas": batches.workers.replicas},
    }


@contextlib.contextmanager
def trainings(
    model: keras.Model,
    batches: Batches,
    evaluations: int,
    verbose: int | str,
    start: Callable[[], None],
) -> Iterator[Trainings]:
    """The training runs of `fit`; inside, the model is prepared as the recipe requires.

    `start` assigns the first weights.
    """
    recipe, workers = batches.recipe, batches.workers
    with workers.scope():
        trained = preparing.prepared(model, recipe, batches, start)
        with preparing.training_by(recipe, model, trained, batches):
            yield Trainings(
                recipe, model, trained, batches, workers, evaluations, verbose
            )


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Saves a model; the file is written completely or not at all.

    The thread is outside of the strategy's scope: Keras creates variables while it
    saves, which in the scope all workers would have to create together.
    """
    with replacing(path) as temporary, ThreadPoolExecutor(1) as pool:
        pool.submit(model.save, temporary).result()
