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
from keras_vit.training.results import Result, forget, read_json

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

    A model with a loss of its own, as `MaskedPatchPredictor`, is trained by that, and
    `Result.test_accuracy` is what its metric "accuracy" says, if it has one.

    Where the recipe has several learning rates, each is tried on the training set less
    its held-out share, and the best one trains the final model on all of it. A recipe
    that freezes does so while it trains: afterwards every layer is as trainable as
    before. LoRA that a recipe puts into the model stays in it, and in its files.

    Under a strategy (`training.strategy`) it trains on all its devices, of all its
    processes, of which each makes the same call; the first one writes and tells.

    With an `output` folder nothing is lost: after a kill, the same call resumes from
    the newest checkpoint to the same final bits.

    Args:
        model: images to logits, one for each class: see `for_task`; or one with a loss
            of its own. Its own input size and dtype policy are used, whatever
            the recipe's `image_size` says, and `resize` is scaled with the size
            (`Recipe.at_size`).
        recipe: e.g. `recipes.FINETUNE["cifar10"]`; `dataclasses.replace` changes it.
            The model must be built with its `model_options`.
        data: a folder of images, an .npz, "digits" or a TFDS name (`data.open_source`),
            a `Source`, or a `tf.data.Dataset` of ready batches (images, labels), which
            is neither augmented nor shuffled, repeats when it ends, and needs one
            learning rate.
        validation_data: ready batches to judge by, with a `tf.data.Dataset` alone.
        preprocessing: how images become input; default: the model's own, which a model
            that is not a `VisionModel` does not have (then the paper's).
        seed: seed of the batches' order and augmentation, of the held-out share, and of
            a test share where the data has none of its own.
        output: folder for `history.jsonl` (a line for each evaluation), `history.json`,
            `best.keras` (the best evaluation), `model.keras` (the final model),
            `tensorboard` (scalars), and the files to resume from: `begun.json`,
            `checkpoints`.
        resume: "auto" resumes the run in `output`, if one was begun there;
            "never" forgets it.
        evaluations: at most so many, equally far apart, the last at the end.
        verbose: as in `model.fit`.
        **saving: `save_steps`, `save_minutes`, `keep` and `wait`; see
            `resume.SaveOptions`. SIGTERM and Ctrl-C save at once.

    Returns:
        A `Result`.

    Raises:
        ValueError: if the preprocessing does not fit the model's channels; if the model
            does not end in one logit for each class, and has no loss of its own;
            if the recipe cannot be followed on this data or backend;
            if the run in `output` was begun with another recipe, model, seed or data,
            or none of its checkpoints is whole; if the loss is not finite, naming the
            step.
        ImportError: see `data.open_source`.
        OSError: if `output` cannot be written to; `RunInUse` if another process trains
            in it, unless `wait`.
        Preempted: when the process was asked to end, and the run is saved.
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
    """How the trainings of a run are kept: where, and how often."""

    folder: Path | None
    termination: resuming.Termination | None = None
    save_steps: int | None = None
    save_minutes: float | None = 10
    keep: int = 2

    def within(self, name: str) -> "Saving":
        """The same for a training that is a part of the run."""
        folder = None if self.folder is None else self.folder / name
        return dataclasses.replace(self, folder=folder)


@contextlib.contextmanager
def _saving(folder: Path | None, options: resuming.SaveOptions) -> Iterator[Saving]:
    """In a folder, signals are noted inside."""
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
    """The trainings of one call of `fit`, with what is the same for all of them.

    `trained` is `model`, or a part or a twin of it with the same variables.
    """

    recipe: Recipe
    model: keras.Model
    trained: keras.Model
    batches: Batches
    workers: Workers
    evaluations: int
    verbose: int | str

    def follow(self, kept: Saving) -> Result:
        """The sweep, where there is one, and the final training."""
        sweep = self._sweep(kept) if len(self.recipe.base_lr) > 1 else {}
        base_lr = self.recipe.base_lr[0]
        if sweep:
            base_lr = max(sweep, key=lambda rate: sweep[rate])
            self.batches.say(f"base_lr={base_lr:g} was best: {sweep[base_lr]:.4f}")
        made = None
        if kept.folder is not None:
            told = facts(self.batches, self.period)
            made = Certificate(told, self.batches.batch_size)
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
        """The training on all training images; returns its history.

        Args:
            base_lr: the learning rate.
            kept: where and how often it is saved.
            certificate: gets a link for each evaluation.
            saved: a checkpoint to resume from, where `kept` has no folder.
        """
        train, test = self.batches.all()
        return self._train(
            base_lr, train, test, kept, self.model, certificate=certificate, saved=saved
        )

    def _sweep(self, kept: Saving) -> dict[float, float]:
        """Held-out accuracy of every rate, each tried from the same weights."""
        folder, variables = kept.folder, resuming.model_variables(self.model)
        done: dict[str, float] = {}
        if folder is not None:
            done = read_json(folder / "sweep.json", {})
        start = resuming.capture(variables)
        rest, held_out = self.batches.hold_out()
        for base_lr in self.recipe.base_lr:
            if str(base_lr) in done:
                continue
            share = self.recipe.held_out
            self.batches.say(f"base_lr={base_lr:g} on the held-out {share:.0%}")
            name = f"sweep/{base_lr}"
            history = self._train(base_lr, rest, held_out, kept.within(name))
            done[str(base_lr)] = history[-1]["val_accuracy"]
            if folder is not None and self.workers.chief:
                write_json(folder / "sweep.json", done)
                shutil.rmtree(folder / name / "checkpoints")
            resuming.restore(variables, start)
        return {base_lr: done[str(base_lr)] for base_lr in self.recipe.base_lr}

    def _train(
        self,
        base_lr: float,
        train: BatchesFrom,
        validation: ValidationData,
        kept: Saving,
        best: keras.Model | None = None,
        certificate: Certificate | None = None,
        saved: resuming.Saved | None = None,
    ) -> list[dict[str, float]]:
        """`model.fit` for the recipe's steps, with the evaluations on the way.

        `best` is what is saved of the best evaluation, if anything.
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
            # All processes: on JAX an array of all is assigned by all.
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
        watch = callbacks.Watch(keeper, self.batches.batch_size, schedule)
        called = [keeper, *filter(None, [averaged]), watch]

        def fit(epochs: int, steps_per_epoch: int) -> None:
            model.fit(
                train(start_step=keeper.step),
                initial_epoch=keeper.step // period,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation_data=validation.batches,
                validation_steps=validation.steps,
                shuffle=False,  # The pipeline has shuffled.
                callbacks=[*called, callbacks.Bar(watch)],
                verbose=self.verbose,
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
        if keeper.pending is not None:  # Cut between its last update and evaluation.
            row = keeper.pending
            if validation.batches is not None:
                found = model.evaluate(
                    validation.batches,
                    steps=validation.steps,
                    callbacks=by_hand,
                    verbose=self.verbose,
                    return_dict=True,
                )
                row |= {f"val_{key}": value for key, value in found.items()}
            by_hand.on_epoch_end(keeper.step // period - 1, row)
            if keeper.step == steps:
                model.optimizer.finalize_variable_values(model.trainable_variables)
        if left := -keeper.step % period:
            fit(keeper.step // period + 1, left)
        if keeper.step < steps:
            fit(steps // period, period)
        keeper.save()
        return keeper.rows


def facts(batches: Batches, period: int) -> dict[str, Any]:
    """What is the same for all links of a training's certificate."""
    told = batches.identity()
    return {
        "data": told["data"],
        "seed": told["seed"],
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
    """The trainings of `fit`; inside, the model is as the recipe trains it.

    `start` gives it its first weights.
    """
    recipe, workers = batches.recipe, batches.workers
    with workers.scope():
        trained = preparing.prepared(model, recipe, batches, start)
        with preparing.training_by(recipe, model, trained, batches):
            yield Trainings(
                recipe, model, trained, batches, workers, evaluations, verbose
            )


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """`model.save`, whole or not at all.

    A thread is in no strategy's scope: Keras makes a variable or two while it saves,
    which in a scope all workers would have to make at the same moment.
    """
    with replacing(path) as temporary, ThreadPoolExecutor(1) as pool:
        pool.submit(model.save, temporary).result()
