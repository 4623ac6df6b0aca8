"""Fine-tuning with `model.fit` as section 4.1 and B.1.1 prescribe it."""

import contextlib
import csv
import dataclasses
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data import pipelines, preprocessing, sources, splits
from keras_vit.data.preprocessing import HALF
from keras_vit.layers import AxialBlock, TransformerBlock
from keras_vit.recipes import Recipe
from keras_vit.training import losses, optim
from keras_vit.weights.files import replacing


@dataclasses.dataclass(frozen=True)
class Result:
    """What `fit` did.

    Attributes:
        learning_rate: the base rate trained with, chosen by the sweep if there was one.
        sweep: held-out accuracy of every rate tried; empty without a sweep.
        history: one dict of metrics for each evaluation.
        test_accuracy: on the source's test images; None where it has none.
        test_images: how many those are.
    """

    learning_rate: float
    sweep: dict[float, float]
    history: list[dict[str, float]]
    test_accuracy: float | None
    test_images: int = 0


def fit(
    model: keras.Model,
    recipe: Recipe,
    data: Any,
    *,
    validation_data: tf.data.Dataset | None = None,
    mean: tuple[float, ...] = HALF,
    std: tuple[float, ...] = HALF,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    verbose: int | str = "auto",
) -> Result:
    """Fine-tunes `model` by the recipe (Table 4), in place, with `model.fit`.

    Where the recipe has several learning rates, each is tried on the training set less
    its held-out share, and the best one trains the final model on all of it. A recipe
    that freezes does so while it trains: afterwards every layer is as trainable as
    before. LoRA that a recipe puts into the model stays in it, and in its files.

    Args:
        model: images to logits, one for each class: see `for_task`. Its own input size
            and dtype policy are used.
        recipe: e.g. `recipes.FINETUNE["cifar10"]`; `dataclasses.replace` changes it.
            The model must be built with its `model_options`.
        data: a folder of images, an .npz, "digits" or a TFDS name (`data.open_source`),
            a `Source`, or a `tf.data.Dataset` of ready batches (images, labels), which
            is neither augmented nor shuffled, repeats when it ends, and needs one
            learning rate.
        validation_data: ready batches to judge by, with a `tf.data.Dataset` alone.
        mean: of the input normalization, by channel, in units of the 0..1 range.
        std: likewise; the defaults scale to [-1, 1].
        seed: of the batches' order and augmentation.
        output: folder for `history.json`, `history.csv`, `best.keras` (the best
            evaluation) and `model.keras` (the final model).
        verbose: as in `model.fit`.

    Returns:
        A `Result`.

    Raises:
        ValueError: if the model does not end in one logit for each class, or the
            recipe cannot be followed on this data or backend.
        OSError: if `output` cannot be written to.
    """
    folder = None if output is None else Path(output)
    if folder is not None:
        _write_csv(folder / "history.csv", [])  # Fails now rather than after hours.
    _check_options(model, recipe)
    batches = _Batches(model, recipe, data, validation_data, mean, std, seed, verbose)
    recipe = batches.recipe
    if recipe.lora_rank is not None:
        _enable_lora(model, recipe.lora_rank)
    frozen = recipe.freeze or recipe.lora_rank is not None
    # A whole batch of features is small: the head needs no parts.
    part = _head_alone(model) if batches.on_features() else model
    if recipe.sam_rho is not None or (recipe.accumulation_steps > 1 and part is model):
        trained = _stepping(part, recipe)
    elif frozen and part is model:  # A twin: the head's optimizer is not the model's.
        trained = keras.Model(model.input, model.output, name=model.name)
    else:
        trained = part
    with _frozen(model) if frozen else contextlib.nullcontext():
        result = _follow(recipe, model, trained, batches, folder, verbose)
    if folder is not None:
        save_model(model, folder / "model.keras")
        _write_json(
            folder / "history.json",
            {"recipe": dataclasses.asdict(recipe), **dataclasses.asdict(result)},
        )
    return result


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


def _follow(
    recipe: Recipe,
    model: keras.Model,
    trained: keras.Model,
    batches: "_Batches",
    folder: Path | None,
    verbose: int | str,
) -> Result:
    """The sweep, where there is one, and the final training of `trained`.

    `trained` is `model`, or a part or a twin of it with the same variables.
    """
    sweep: dict[float, float] = {}
    if len(recipe.base_lr) > 1:
        # Dropout's generators count too, which `get_weights` leaves out.
        start = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
        rest, held_out = batches.hold_out()
        for base_lr in recipe.base_lr:
            _compile(trained, recipe, base_lr, batches.sparse)
            batches.say(f"base_lr={base_lr:g} on the held-out {recipe.held_out:.0%}")
            history = _train(trained, recipe, rest, held_out, [], verbose)
            sweep[base_lr] = history[-1]["val_accuracy"]
            for variable, value in zip(model.variables, start, strict=True):
                variable.assign(value)
    base_lr = max(sweep, key=lambda rate: sweep[rate]) if sweep else recipe.base_lr[0]
    if sweep:
        batches.say(f"base_lr={base_lr:g} was best: {sweep[base_lr]:.4f}")
    _compile(trained, recipe, base_lr, batches.sparse)
    train, test = batches.all()
    callbacks = [] if folder is None else _recording(model, folder)
    history = _train(trained, recipe, train, test, callbacks, verbose)
    return Result(
        base_lr,
        sweep,
        history,
        history[-1].get("val_accuracy"),
        batches.test_images,
    )


class _Batches:
    """The batches of a fit: from a source with its recipe, or ready made."""

    def __init__(
        self,
        model: keras.Model,
        recipe: Recipe,
        data: Any,
        validation_data: tf.data.Dataset | None,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        seed: int,
        verbose: int | str,
    ) -> None:
        self.recipe, self.seed, self.verbose = recipe, seed, verbose
        self.ready = None
        self.validation_data = validation_data
        self.draws = _draws(model)
        self.test_images = 0
        self.sparse = True
        frozen = recipe.freeze or recipe.lora_rank is not None
        if frozen and "head" not in {layer.name for layer in model.layers}:
            raise ValueError(
                "Expected a layer named 'head' to train alone. Received: "
                f"model={model.name!r} without. keras_vit.for_task puts one on"
            )
        if isinstance(data, tf.data.Dataset):
            self._check_ready(model, data, mean, std)
            self.ready = data.repeat()
            return
        self.source = (
            data
            if isinstance(data, sources.Source)
            else sources.open_source(data, seed=seed)
        )
        self.recipe = recipe = recipe.for_images(len(self.source.train))
        _check_head(model, len(self.source.classes), self.source.name)
        self.test_images = 0 if self.source.test is None else len(self.source.test)
        self.options = {
            "image_size": model.input_shape[1:3],
            "mean": mean,
            "std": std,
            "channels": model.input_shape[-1],
        }
        if self.on_features():
            self._read_features(model)

    def say(self, text: str) -> None:
        """Prints, unless the user wants silence."""
        if self.verbose:
            print(text)

    def on_features(self) -> bool:
        """Whether every image's features stay the same all through the training."""
        recipe = self.recipe
        still = recipe.freeze and recipe.augment == "none" and not self.draws
        return self.ready is None and still

    def _check_ready(
        self,
        model: keras.Model,
        data: tf.data.Dataset,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        """Looks at the first batch for what would go wrong, or silently badly."""
        spec = data.element_spec
        shapes = [part.shape for part in spec] if isinstance(spec, tuple) else [spec]
        if len(shapes) not in (2, 3) or shapes[0].rank != 4 or not shapes[1].rank:
            raise ValueError(
                "Expected batches (images [B, H, W, C], labels [B] or [B, K]). "
                f"Received: a tf.data.Dataset of {spec}. Dataset.batch makes batches"
            )
        first = next(iter(data), None)
        if first is None:
            raise ValueError("Expected batches. Received: an empty tf.data.Dataset")
        images, labels = (x.numpy() for x in first[:2])
        self.sparse = labels.ndim == 1 or labels.shape[-1] == 1
        classes = (
            max(int(labels.max()) + 1, model.output_shape[-1])
            if self.sparse
            else labels.shape[-1]
        )
        _check_head(model, classes, "the first batch")
        if labels.min() < 0:
            raise ValueError(
                f"Expected labels from 0. Received: {labels.min()} in the first batch"
            )
        parts = self.recipe.accumulation_steps
        if len(images) % parts:
            raise ValueError(
                "Expected batches of a multiple of accumulation_steps images. "
                f"Received: accumulation_steps={parts}, a first batch of {len(images)}"
            )
        _warn_out_of_range(images, mean, std)

    def _read_features(self, model: keras.Model) -> None:
        """Replaces the images by what the head reads of them, computed once."""
        head_input = keras.Model(model.input, model.get_layer("head").input)

        def features(split: splits.Split | None, what: str) -> Any:
            if split is None:
                return None
            self.say(f"features of {len(split)} {what} images")
            batches = pipelines.eval_pipeline(split, batch_size=32, **self.options)
            labels = split.dataset().map(lambda item: item["label"])
            return splits.Arrays(
                head_input.predict(
                    batches.map(lambda image, _: image), verbose=self.verbose
                ),
                np.array(list(labels.as_numpy_iterator())),
            )

        self.source = dataclasses.replace(
            self.source,
            train=features(self.source.train, "training"),
            test=features(self.source.test, "test"),
        )

    def hold_out(self) -> tuple[tf.data.Dataset, tf.data.Dataset]:
        """Batches of the training set less the held-out share, and of that share."""
        if self.ready is not None:
            raise ValueError(
                "Expected one learning rate with ready batches: there is no training "
                f"set to hold a share of. Received: base_lr={self.recipe.base_lr}"
            )
        rest, held_out = self.source.train.split(self.recipe.held_out, self.seed)
        return self._train(rest), self._evaluate(held_out)

    def all(self) -> tuple[tf.data.Dataset, tf.data.Dataset | None]:
        """Batches of the whole training set, and of the test set."""
        if self.ready is not None:
            return self.ready, self.validation_data
        test = self.source.test
        return self._train(self.source.train), test and self._evaluate(test)

    def _train(self, split: Any) -> tf.data.Dataset:
        recipe = self.recipe
        mixes = recipe.randaugment or recipe.mixup or recipe.cutmix
        if recipe.augment == "crop" or mixes or recipe.random_erasing:
            raise ValueError(
                "Expected a recipe without randaugment, mixup, cutmix, random_erasing "
                "or augment='crop' on a data set: `fit` does not make them yet. "
                f"Received: {recipe}. Batches of a tf.data.Dataset may hold them"
            )
        if len(split) < recipe.batch_size:
            warnings.warn(
                f"{len(split)} training images are fewer than batch_size="
                f"{recipe.batch_size}: a batch holds some of them more than once",
                stacklevel=4,  # At the caller of `fit`.
            )
        if self.on_features():
            return pipelines.endless(
                split,
                lambda _, item: (item["image"], item["label"]),
                batch_size=recipe.batch_size,
                seed=self.seed,
            )
        return pipelines.train_pipeline(
            split,
            batch_size=recipe.batch_size,
            seed=self.seed,
            augment=recipe.augment,
            **self.options,
        )

    def _evaluate(self, split: Any) -> tf.data.Dataset:
        part = self.recipe.batch_size // self.recipe.accumulation_steps
        if self.on_features():
            return tf.data.Dataset.from_tensor_slices(
                (split.images, split.labels)
            ).batch(part)
        return pipelines.eval_pipeline(split, batch_size=min(part, 64), **self.options)


def _check_options(model: keras.Model, recipe: Recipe) -> None:
    """Raises if the model was built with other options than the recipe's."""
    blocks = [
        layer.row if isinstance(layer, AxialBlock) else layer
        for layer in model.layers
        if isinstance(layer, TransformerBlock | AxialBlock)
    ]
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


def _draws(model: keras.Model) -> bool:
    """Whether the model has dropout: its generators' states are no weights."""
    return len(model.variables) > len(model.weights)


def _check_head(model: keras.Model, classes: int, where: str) -> None:
    """Raises unless `model` ends in one logit for each class."""
    shape = model.output_shape
    activation = getattr(model.layers[-1], "activation", None)
    if len(shape) != 2 or shape[-1] != classes:
        received = f"model.output_shape={shape}, {classes} classes in {where}"
    elif activation not in (None, keras.activations.linear):
        received = (
            f"model={model.name!r}, whose last layer ends in {activation.__name__} "
            "(classifier_activation=None leaves that out)"
        )
    else:
        return
    raise ValueError(
        f"Expected a model with one logit for each class. Received: {received}. "
        f"keras_vit.for_task(model, {classes}) puts a new head on"
    )


def _warn_out_of_range(
    images: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """Warns if a batch is not scaled as the weights expect."""
    low, high = preprocessing.value_range(mean, std)
    if images.min() < low - 0.01 or images.max() > high + 0.01:
        warnings.warn(
            f"Expected images in [{low:g}, {high:g}] (mean={mean}, std={std}). "
            f"Received: values from {images.min():g} to {images.max():g}. "
            "keras_vit.preprocess_input scales 0..255 to [-1, 1]",
            stacklevel=5,  # At the caller of `fit`.
        )


def _compile(model: keras.Model, recipe: Recipe, base_lr: float, sparse: bool) -> None:
    optimizer = optim.optimizer(recipe, base_lr, model)
    model.compile(optimizer, _loss(recipe, sparse), metrics=["accuracy"])


def _loss(recipe: Recipe, sparse: bool) -> keras.losses.Loss:
    if recipe.loss == "sigmoid":
        return losses.SigmoidCrossEntropy()
    if recipe.label_smoothing:
        return losses.SoftmaxCrossEntropy(recipe.label_smoothing)
    if sparse:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.losses.CategoricalCrossentropy(from_logits=True)


def _train(
    model: keras.Model,
    recipe: Recipe,
    train: tf.data.Dataset,
    validation: tf.data.Dataset | None,
    callbacks: list[keras.callbacks.Callback],
    verbose: int | str,
) -> list[dict[str, float]]:
    """`model.fit` for the recipe's steps, evaluating up to ten times on the way."""
    evaluations = max(n for n in range(1, 11) if recipe.steps % n == 0)
    if recipe.ema is not None:
        # First: at an epoch's end the others then see, and save, the averaged weights.
        callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), *callbacks]
    history = model.fit(
        train,
        epochs=evaluations,
        steps_per_epoch=recipe.steps // evaluations,
        validation_data=validation,
        shuffle=False,  # The pipeline has shuffled.
        callbacks=callbacks,
        verbose=verbose,
    ).history
    return [
        {key: float(values[i]) for key, values in history.items()}
        for i in range(evaluations)
    ]


def _recording(model: keras.Model, folder: Path) -> list[keras.callbacks.Callback]:
    return [_History(folder / "history.csv"), _Best(model, folder / "best.keras")]


class _History(keras.callbacks.Callback):
    """Writes the metrics of the evaluations so far, the whole file each time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.rows: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.rows.append({"epoch": epoch, **(logs or {})})
        _write_csv(self.path, self.rows)


class _Best(keras.callbacks.Callback):
    """Keeps the model of the best evaluation so far, written whole."""

    def __init__(self, trained: keras.Model, path: Path) -> None:
        super().__init__()
        self.trained = trained
        self.path = path
        self.best = -np.inf

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        logs = logs or {}
        score = logs.get("val_accuracy", logs.get("accuracy", -np.inf))
        if score > self.best:
            self.best = score
            save_model(self.trained, self.path)


def save_model(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """`model.save`, whole or not at all."""
    with replacing(path) as temporary:
        model.save(temporary)


def _write_csv(path: Path, rows: list[dict[str, float]]) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _write_json(path: Path, value: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def _head_alone(model: keras.Model) -> keras.Model:
    """The head as a model of its own: features to logits, the same layer."""
    head = model.get_layer("head")
    features = keras.Input(head.input.shape[1:], name="features")
    return keras.Model(features, head(features), name="head")


def _enable_lora(model: keras.Model, rank: int) -> None:
    """Puts LoRA on every projection of the encoder, unless it has it."""
    blocks = [
        layer
        for layer in model.layers
        if isinstance(layer, TransformerBlock | AxialBlock)
    ]
    projections = [layer for block in blocks for layer in block.projections()]
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


def _stepping(model: keras.Model, recipe: Recipe) -> keras.Model:
    """A twin of `model` that cuts each batch in parts, or looks around (SAM)."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Expected accumulation_steps=1 and sam_rho=None on this backend: both are "
            "written for TensorFlow. Received: "
            f"accumulation_steps={recipe.accumulation_steps}, "
            f"sam_rho={recipe.sam_rho}, backend={keras.backend.backend()}"
        )
    twin = _Stepping(model.input, model.output, name=model.name)
    twin.parts = recipe.accumulation_steps
    twin.sam_rho = recipe.sam_rho
    return twin


class _Stepping(keras.Model):
    """A functional model with an update of its own, on TensorFlow.

    A batch is cut in parts, in order (train.py): their gradients and losses are
    averaged into one update. Keras's own `gradient_accumulation_steps` counts every
    part as a step of the schedule and of the EMA, and fails on several replicas
    (keras#20582).

    With SAM (arXiv:2010.01412, Equation 2 and Algorithm 1) the gradient is the one at
    w + rho * g / ||g||, over the whole batch and with the same dropout.
    """

    parts = 1
    sam_rho: float | None = None

    def train_step(self, data: Any) -> dict[str, Any]:
        images, labels = (
            tf.reshape(x, (self.parts, -1, *x.shape[1:])) for x in data[:2]
        )
        weights = {id(variable) for variable in self.weights}
        draws = [v.value for v in self.variables if id(v) not in weights]
        before = [tf.identity(state) for state in draws]
        loss, gradients, logits = self._averages(images, labels)
        if self.sam_rho is not None:
            for state, value in zip(draws, before, strict=True):
                state.assign(value)
            gradients = self._around(images, labels, gradients)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(*_flat(labels, logits))
        results: dict[str, Any] = self.get_metrics_result()
        return results

    def _around(self, images: Any, labels: Any, gradients: list[Any]) -> list[Any]:
        """The gradients at the sharpest place within `sam_rho`."""
        variables = [variable.value for variable in self.trainable_variables]
        here = [tf.identity(variable) for variable in variables]
        scale = tf.math.divide_no_nan(
            tf.cast(self.sam_rho, tf.float32), tf.linalg.global_norm(gradients)
        )
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_add(tf.cast(scale, gradient.dtype) * gradient)
        _, gradients, _ = self._averages(images, labels)
        for variable, value in zip(variables, here, strict=True):
            variable.assign(value)
        return gradients

    def _averages(self, images: Any, labels: Any) -> tuple[Any, list[Any], Any]:
        """Loss and gradients averaged over the parts, and every part's logits."""
        variables = [variable.value for variable in self.trainable_variables]

        def part(
            i: Any, loss_sum: Any, gradient_sums: list[Any], logits: Any
        ) -> tuple[Any, Any, list[Any], Any]:
            with tf.GradientTape() as tape:
                y = self(images[i], training=True)
                loss = self.compute_loss(images[i], labels[i], y)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, variables)
            return (
                i + 1,
                loss_sum + loss,
                [a + b for a, b in zip(gradient_sums, gradients, strict=True)],
                logits.write(i, y),
            )

        _, loss_sum, gradient_sums, logits = tf.while_loop(
            lambda i, *_: i < self.parts,
            part,
            (
                0,
                0.0,
                [tf.zeros_like(variable) for variable in variables],
                tf.TensorArray(tf.float32, size=self.parts),
            ),
        )
        gradients = [gradient / self.parts for gradient in gradient_sums]
        return loss_sum / self.parts, gradients, logits.stack()


def _flat(labels: Any, logits: Any) -> tuple[Any, Any]:
    """Parts put back together: two [parts, b, ...] -> two [parts * b, ...]."""
    return tuple(tf.reshape(x, (-1, *x.shape[2:])) for x in (labels, logits))
