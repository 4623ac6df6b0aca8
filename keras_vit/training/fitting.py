"""Fine-tuning with `model.fit` as section 4.1 and B.1.1 prescribe it."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_vit.facts import Preprocessing
from keras_vit.files import replacing, write_json
from keras_vit.layers import AxialBlock, TransformerBlock
from keras_vit.models.vision import VisionModel, preprocessing_of
from keras_vit.recipes import Recipe
from keras_vit.training import losses, optim, watching
from keras_vit.training import resume as resuming
from keras_vit.training.batches import Batches, BatchesFrom, Evaluation, objective
from keras_vit.training.distribution import Workers
from keras_vit.training.stepping import stepping

__all__ = ["Result", "fit"]

FINISHED = "history.json"  # Of a run's folder: written when it ends.


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
    save_steps: int | None = None,
    save_minutes: float | None = 10,
    keep: int = 2,
    evaluations: int = 10,
    verbose: int | str = "auto",
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

    With an `output` folder nothing is lost: killed anywhere, the same call goes on from
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
        seed: of the batches' order and augmentation, of the held-out share, and of a
            test share where the data has none of its own.
        output: folder for `history.jsonl` (a line for each evaluation), `history.json`,
            `best.keras` (the best evaluation), `model.keras` (the final model),
            `tensorboard` (scalars), and what a killed run goes on from: `begun.json`,
            `checkpoints`.
        resume: "auto" goes on with the run in `output`, if one was begun there;
            "never" forgets it.
        save_steps: updates between two checkpoints; None: `save_minutes` alone.
        save_minutes: likewise in minutes. SIGTERM and Ctrl-C save at once.
        keep: checkpoints that stay.
        evaluations: at most so many, equally far apart, the last at the end.
        verbose: as in `model.fit`.

    Returns:
        A `Result`.

    Raises:
        ValueError: if the preprocessing does not fit the model's channels; if the model
            does not end in one logit for each class, and has no loss of its own;
            if the recipe cannot be followed on this data or backend;
            if the run in `output` was begun with another recipe, model, seed or data,
            or none of its checkpoints is whole; if the loss is not finite, naming the
            step.
        ImportError: as of `data.open_source`.
        OSError: if `output` cannot be written to.
        Preempted: when the process was asked to end, and the run is saved.
    """
    if evaluations < 1:
        raise ValueError(
            f"Expected one evaluation or more. Received: evaluations={evaluations}"
        )
    folder = None if output is None else Path(output)
    workers = Workers.of(model)
    verbose = verbose if workers.chief else 0
    if folder is not None and resume == "never":
        if workers.chief:
            forget(folder)
        workers.meet()
    _check_options(model, recipe)
    preprocessing = preprocessing_of(model, preprocessing)
    batches = Batches(
        model, recipe, data, validation_data, preprocessing, seed, verbose, workers
    )
    _note_facts(model, batches)
    recipe = batches.recipe
    workers.check(recipe, batches.batch_size)
    if folder is not None:  # Fails now rather than after hours.
        begun = folder / resuming.BEGUN
        resuming.check_same(begun, _identity(model, recipe, batches), workers.chief)
    with contextlib.ExitStack() as stack:
        stack.enter_context(workers.scope())
        trained = _prepared(model, recipe, batches)
        if recipe.freezes:
            stack.enter_context(_frozen(model))
        if recipe.remat:
            stack.enter_context(_rematerialized(model))
        whole = not batches.on_features()  # A batch of features is small.
        if recipe.sam_rho is not None or (recipe.accumulation_steps > 1 and whole):
            stack.enter_context(stepping(trained, recipe))
        kept = _Kept(None)
        if folder is not None:
            asked = stack.enter_context(resuming.terminations())
            kept = _Kept(folder, asked, save_steps, save_minutes, keep)
        result = _Fit(
            recipe, model, trained, batches, workers, kept, evaluations, verbose
        ).follow()
    if folder is not None and workers.chief:
        save_model(model, folder / "model.keras")
        write_json(
            folder / FINISHED,
            {"recipe": dataclasses.asdict(recipe), **dataclasses.asdict(result)},
        )
    workers.meet()  # A process that ends takes the cluster with it.
    return result


def _note_facts(model: keras.Model, batches: Batches) -> None:
    """The preprocessing and the classes that a model is trained with become its own."""
    if isinstance(model, VisionModel):
        labels = model.labels if batches.ready is not None else batches.source.classes
        model.facts = dataclasses.replace(
            model.facts, preprocessing=batches.preprocessing, labels=labels
        )


def _prepared(model: keras.Model, recipe: Recipe, batches: Batches) -> keras.Model:
    """What trains in the model's place: itself, its head, or a twin that shares all."""
    if recipe.lora_rank is not None:
        _enable_lora(model, recipe.lora_rank)
    part = model
    if batches.on_features():
        batches.read_features(model)
        part = _head_alone(model)
    if recipe.freezes and part is model:  # The head's optimizer is not the model's.
        return keras.Model(model.input, model.output, name=model.name)
    return part


@dataclasses.dataclass(frozen=True)
class _Kept:
    """How the trainings of a run are kept: where, and how often."""

    folder: Path | None
    termination: resuming.Termination | None = None
    save_steps: int | None = None
    save_minutes: float | None = None
    keep: int = 2

    def within(self, name: str) -> "_Kept":
        """The same for a training that is a part of the run."""
        folder = None if self.folder is None else self.folder / name
        return dataclasses.replace(self, folder=folder)


def _identity(model: keras.Model, recipe: Recipe, batches: Batches) -> dict[str, Any]:
    """What has to be the same for a run to go on, as plain values."""
    shapes = [[list(v.shape), v.dtype] for v in model.variables]
    digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()
    return {
        "recipe": recipe.identity(),
        "model": {
            "image_size": list(model.input_shape[1:]),
            "parameters": model.count_params(),
            "dtype_policy": model.dtype_policy.name,
            "variables": digest,
            **_asked_of(model),
        },
        **batches.identity(),
    }


def _asked_of(model: keras.Model) -> dict[str, Any]:
    """What an objective of the model's own is made of: its plain arguments."""
    if not objective(model):
        return {}
    config = model.get_config() | model.preprocessing.identity()
    return {
        "objective": {
            name: value for name, value in config.items() if not isinstance(value, dict)
        }
    }


def finished(folder: Path) -> Result | None:
    """The result of the run in a folder; None while it has not ended.

    Raises:
        ValueError: if the file of it is damaged.
    """
    path = folder / FINISHED
    try:
        told = _read_json(path, None)
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
    """Deletes what a run would go on from."""
    for name in (resuming.BEGUN, resuming.HISTORY, FINISHED, "sweep.json"):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "start", "sweep", watching.FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)


@contextlib.contextmanager
def _frozen(model: keras.Model) -> Iterator[None]:
    """The head and LoRA alone train, inside; variables, not layers, are told so."""
    head = {id(variable) for variable in model.get_layer("head").variables}
    frozen = [
        v
        for v in model.trainable_variables
        if id(v) not in head and not v.name.startswith("lora_kernel_")
    ]
    for variable in frozen:
        variable.trainable = False
    try:
        yield
    finally:
        for variable in frozen:
            variable.trainable = True


def _blocks(model: keras.Model) -> list[TransformerBlock]:
    """The encoder's blocks; of an axial one both, along rows and along columns."""
    blocks: list[TransformerBlock] = []
    for layer in model.layers:
        if isinstance(layer, AxialBlock):
            blocks += layer.sublayers()
        elif isinstance(layer, TransformerBlock):
            blocks.append(layer)
    return blocks


@contextlib.contextmanager
def _rematerialized(model: keras.Model) -> Iterator[None]:
    """Inside, blocks keep their input alone for the gradient."""
    blocks = _blocks(model)
    if not blocks:
        raise ValueError(
            "Expected a model with Transformer blocks for remat=True. Received: "
            f"model={model.name!r} without"
        )
    for block in blocks:
        block.remat = True
    try:
        yield
    finally:
        for block in blocks:
            block.remat = False


def _check_options(model: keras.Model, recipe: Recipe) -> None:
    """Raises if the model was built with other options than the recipe's."""
    labels = recipe.loss != "softmax" or recipe.label_smoothing or recipe.freezes
    if objective(model) and (labels or len(recipe.base_lr) > 1):
        raise ValueError(
            "Expected a recipe of one learning rate, without a loss of labels or a "
            f"frozen backbone, for a model with a loss of its own. Received: "
            f"base_lr={recipe.base_lr}, loss={recipe.loss!r}, label_smoothing="
            f"{recipe.label_smoothing}, freeze={recipe.freeze}, lora_rank="
            f"{recipe.lora_rank}, model={model.name!r}"
        )
    blocks = _blocks(model)
    depths = [block.stochastic_depth_rate for block in blocks]
    built = {
        "dropout_rate": {block.dropout_rate for block in blocks} or {0.0},
        "stochastic_depth_rate": {max(depths, default=0.0)},
        "head_bias_init": _new_bias(model),
    }
    for name, value in recipe.model_options().items():
        if built[name] - {value}:
            received = ", ".join(map(str, sorted(built[name])))
            raise ValueError(
                f"Expected a model built with the recipe's {name}={value}. Received: "
                f"model={model.name!r} with {received}. A config has them by "
                "dataclasses.replace(config, **recipe.model_options())"
            )


def _new_bias(model: keras.Model) -> set[float]:
    """The biases of a head that nothing was learnt in yet: its kernel is zero."""
    for layer in model.layers:
        if layer.name == "head" and isinstance(layer, keras.layers.Dense):
            kernel, *bias = layer.get_weights()
            if bias and not kernel.any():
                return set(np.unique(np.round(bias[0].astype(float), 4)).tolist())
    return set()


def _loss(recipe: Recipe, sparse: bool) -> keras.losses.Loss:
    if recipe.loss == "sigmoid":
        return losses.SigmoidCrossEntropy()
    if recipe.label_smoothing:
        return losses.SoftmaxCrossEntropy(recipe.label_smoothing)
    if sparse:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.losses.CategoricalCrossentropy(from_logits=True)


@dataclasses.dataclass(frozen=True)
class _Fit:
    """The trainings of one call of `fit`, with what is the same for all of them.

    `trained` is `model`, or a part or a twin of it with the same variables.
    """

    recipe: Recipe
    model: keras.Model
    trained: keras.Model
    batches: Batches
    workers: Workers
    kept: _Kept
    evaluations: int
    verbose: int | str

    def follow(self) -> Result:
        """The sweep, where there is one, and the final training."""
        sweep = self._sweep() if len(self.recipe.base_lr) > 1 else {}
        base_lr = self.recipe.base_lr[0]
        if sweep:
            base_lr = max(sweep, key=lambda rate: sweep[rate])
            self.batches.say(f"base_lr={base_lr:g} was best: {sweep[base_lr]:.4f}")
        train, test = self.batches.all()
        history = self._train(base_lr, train, test, self.kept, best=self.model)
        return Result(
            base_lr,
            sweep,
            history,
            history[-1].get("val_accuracy"),
            self.batches.test_images,
            self.batches.left_out,
        )

    def _sweep(self) -> dict[float, float]:
        """Held-out accuracy of every rate, each tried from the same weights."""
        folder, variables = self.kept.folder, resuming.model_variables(self.model)
        done: dict[str, float] = {}
        if folder is not None:
            resuming.keep_start(folder / "start", self.model, self.workers.chief)
            done = _read_json(folder / "sweep.json", {})
        start = resuming.capture(variables)
        rest, held_out = self.batches.hold_out()
        for base_lr in self.recipe.base_lr:
            if str(base_lr) in done:
                continue
            share = self.recipe.held_out
            self.batches.say(f"base_lr={base_lr:g} on the held-out {share:.0%}")
            name = f"sweep/{base_lr}"
            tried = self.kept.within(name)
            history = self._train(base_lr, rest, held_out, tried)
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
        validation: Evaluation,
        kept: _Kept,
        best: keras.Model | None = None,
    ) -> list[dict[str, float]]:
        """`model.fit` for the recipe's steps, with the evaluations on the way.

        `best` is what is saved of the best evaluation, if anything.
        """
        model, steps = self.trained, self.recipe.steps
        metrics = self._compile(base_lr)
        most = range(1, self.evaluations + 1)
        evaluations = max(n for n in most if steps % n == 0)
        period = steps // evaluations
        averaged = None if self.recipe.ema is None else resuming.Averaged(steps)

        def save_best() -> None:
            if best is None or kept.folder is None or not self.workers.chief:
                return
            with averaged.applied() if averaged else contextlib.nullcontext():
                save_model(best, kept.folder / "best.keras")

        keeper = resuming.Keeper(
            steps,
            period,
            metrics,
            self.workers,
            by_loss=objective(self.model) is not None,
            averaged=averaged,
            save_best=save_best,
            **vars(kept),
        )
        schedule = optim.schedule(self.recipe, base_lr)
        watch = watching.Watch(keeper, self.batches.batch_size, schedule)
        callbacks = [keeper, *filter(None, [averaged]), watch]

        def fit(epochs: int, steps_per_epoch: int) -> None:
            model.fit(
                train(start_step=keeper.step),
                initial_epoch=keeper.step // period,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation_data=validation.batches,
                validation_steps=validation.steps,
                shuffle=False,  # The pipeline has shuffled.
                callbacks=[*callbacks, watching.Bar(watch)],
                verbose=self.verbose,
            )

        by_hand = keras.callbacks.CallbackList(callbacks, model=model)
        keeper.resume()
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
            fit(evaluations, period)
        keeper.save()
        return keeper.rows

    def _compile(self, base_lr: float) -> list[keras.metrics.Metric]:
        """Compiles `trained`; returns the metrics, which Keras builds later."""
        optimizer = optim.optimizer(self.recipe, base_lr, self.trained)
        if any(layer.compute_dtype == "float16" for layer in self.trained.layers):
            optimizer = optim.LossScale(optimizer)
        if own := objective(self.model):
            loss, metrics = own()
        else:
            sparse = self.batches.sparse
            kind = "SparseCategoricalAccuracy" if sparse else "CategoricalAccuracy"
            metrics = [getattr(keras.metrics, kind)("accuracy")]
            loss = _loss(self.recipe, sparse)
        # Filling of an evaluation's last batch weighs nothing.
        self.trained.compile(
            optimizer, loss, weighted_metrics=metrics, auto_scale_loss=False
        )
        return metrics


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """`model.save`, whole or not at all.

    A thread is in no strategy's scope: Keras makes a variable or two while it saves,
    which in a scope all workers would have to make at the same moment.
    """
    with replacing(path) as temporary, ThreadPoolExecutor(1) as pool:
        pool.submit(model.save, temporary).result()


def _read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default


def _head_alone(model: keras.Model) -> keras.Model:
    """The head as a model of its own: features to logits, the same layer."""
    head = model.get_layer("head")
    features = keras.Input(head.input.shape[1:], name="features")
    return keras.Model(features, head(features), name="head")


def _enable_lora(model: keras.Model, rank: int) -> None:
    """Puts LoRA on every projection of the encoder, unless it has it."""
    projections = [layer for block in _blocks(model) for layer in block.projections()]
    ranks = {layer.lora_rank for layer in projections}
    if not projections or ranks - {None, rank}:
        raise ValueError(
            "Expected a Transformer, without LoRA or with the recipe's. Received: "
            f"lora_rank={rank}, model={model.name!r} with "
            f"{', '.join(map(str, ranks)) or 'no blocks'}"
        )
    for layer in projections:
        if not layer.lora_enabled:
            layer.enable_lora(rank)
