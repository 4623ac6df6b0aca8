"""Prepare the batches for training and evaluation in `fit`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_vit.arguments import counted
from keras_vit.callers import warn
from keras_vit.data import augmentation, pipelines, sources, splits
from keras_vit.data.decoding import as_written
from keras_vit.facts import Preprocessing
from keras_vit.features import FrozenFeatures
from keras_vit.models.outputs import last_activation
from keras_vit.models.transfer import read_by
from keras_vit.normalization import value_range
from keras_vit.recipes import Recipe
from keras_vit.training.distribution import Workers, divisible
from keras_vit.training.resume import generator_states

BatchesFrom: TypeAlias = Callable[..., tf.data.Dataset]  # Its argument is `start_step`.


def objective(model: keras.Model) -> Callable[[], tuple[Any, list[Any]]] | None:
    """Returns the objective of a model with its own loss, which needs no labels.

    Its method `objective` returns a new `keras.losses.Loss` and a new list of metrics
    at every call. `compute_loss` and `compute_metrics` pass them the values to compare.
    Its `preprocessing` is that of its images.
    """
    method: Callable[[], tuple[Any, list[Any]]] | None
    method = getattr(model, "objective", None)
    return method


class ValidationData(NamedTuple):
    """Evaluation images, as `validation_data` and `validation_steps` of `model.fit`."""

    batches: Any
    steps: int | None = None  # None: all batches.
    kind: str = "validation"
    images: int | None = None  # None: not known.

    def __str__(self) -> str:
        if self.images is None:
            return f"{self.kind} images"
        return counted(self.images, f"{self.kind} image")


@dataclasses.dataclass(frozen=True)
class CachedSource(sources.Source):
    """A source for several fits of one frozen model, with cached features.

    `features` contains the input of the head, by "training" and "test".
    """

    features: dict[str, splits.Arrays] = dataclasses.field(default_factory=dict)


class Batches:
    """The batches of `fit`, from a source and a recipe, or ready batches."""

    def __init__(
        self,
        model: keras.Model,
        recipe: Recipe,
        data: Any,
        validation_data: tf.data.Dataset | None,
        preprocessing: Preprocessing,
        seed: int,
        verbose: int | str,
        workers: Workers,
    ) -> None:
        self.recipe, self.seed, self.verbose = recipe, seed, verbose
        self.workers = workers
        self.preprocessing = preprocessing
        self.ready = None
        self.validation_data = validation_data
        self.draws = bool(generator_states(model))
        self.batch_size = recipe.batch_size
        self.test_images = self.left_out = 0
        self.sparse = True
        if objective(model):
            _check_normalization(model, preprocessing)
        if recipe.freezes and "head" not in {layer.name for layer in model.layers}:
            raise ValueError(
                "Expected a layer named 'head', which is trained while the others are "
                f"frozen. Received: model={model.name!r}, which has none. Add a head "
                "with keras_vit.for_task"
            )
        if isinstance(data, tf.data.Dataset):
            self._check_ready(model, data)
            parts = workers.replicas * recipe.accumulation_steps
            self.ready = divisible(data, parts).repeat()
            return
        self.source = (
            data
            if isinstance(data, sources.Source)
            else sources.open_source(data, seed=seed)
        )
        self.recipe = recipe = recipe.for_images(len(self.source.train))
        self.classes = len(self.source.classes)
        self.sparse = not (recipe.mixup or recipe.cutmix)  # Mixed labels are one-hot.
        if not objective(model):
            _check_head(model, self.classes, self.source.name)
        self.test_images = 0 if self.source.test is None else len(self.source.test)
        self.left_out = self.source.left_out
        self.resize = recipe.at_size(model.input_shape[1:3]).resize
        self.options = {
            "image_size": model.input_shape[1:3],
            "preprocessing": preprocessing,
            "channels": model.input_shape[-1],
        }

    def identity(self) -> dict[str, Any]:
        """Returns the plain values that determine the batches."""
        return self._identity

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "seed": self.seed,
            **self.preprocessing.identity(),
        }
        if self.ready is not None:
            return {**values, "data": str(self.ready.element_spec)}
        data = {"name": self.source.name, "fingerprint": self.source.fingerprint()}
        if self.resize != self.recipe.resize:
            values["resize"] = self.resize  # keras_vit 0.1 did not scale it.
        read = splits.Arrays if self.on_features() else self.source.train
        if read.order is not None:
            values["order"] = read.order
        return {**values, "data": data, "classes": self.source.classes}

    def say(self, text: str) -> None:
        """Prints a text, unless `verbose` is 0."""
        if self.verbose:
            print(text)

    def on_features(self) -> bool:
        """Returns whether the head trains on features that are computed once.

        This requires features that do not change during training, and one device.
        Several devices compute the features of every batch.
        """
        recipe = self.recipe
        if self.ready is not None or not recipe.freeze or self.workers.replicas > 1:
            return False
        still = recipe.augment == "none" and self.sparse and not _image_ops(recipe)
        return still and not self.draws

    def _check_ready(self, model: keras.Model, data: tf.data.Dataset) -> None:
        """Checks the first batch for errors, including silent ones."""
        spec = data.element_spec
        given = spec if isinstance(spec, tuple) else (spec,)
        ranks = [part.shape.rank for part in given if isinstance(part, tf.TensorSpec)]
        labelled = len(ranks) in (2, 3) and ranks[0] == 4 and ranks[1]
        if not labelled and not (objective(model) and ranks == [4]):
            raise ValueError(
                "Expected batches (images [B, H, W, C], labels [B] or [B, K]). "
                f"Received: a tf.data.Dataset of {spec}. Batch it with Dataset.batch"
            )
        first = next(iter(data), None)
        if first is None:
            raise ValueError("Expected batches. Received: an empty tf.data.Dataset")
        images, *labels = (x.numpy() for x in keras.tree.flatten(first)[:2])
        self.batch_size = len(images)
        if not objective(model):
            self._check_labels(model, labels[0])
        parts = self.recipe.accumulation_steps
        if len(images) % parts:
            raise ValueError(
                "Expected the batch size to be a multiple of accumulation_steps. "
                f"Received: accumulation_steps={parts}, a first batch of {len(images)}"
            )
        _warn_out_of_range(images, self.preprocessing)

    def _check_labels(self, model: keras.Model, labels: np.ndarray) -> None:
        self.sparse = labels.ndim == 1 or labels.shape[-1] == 1
        classes = (
            max(int(labels.max()) + 1, model.output_shape[-1])
            if self.sparse
            else labels.shape[-1]
        )
        _check_head(model, classes, "the first batch")
        if labels.min() < 0:
            raise ValueError(
                "Expected labels that start at 0. Received: "
                f"{labels.min()} in the first batch"
            )

    def read_features(self, model: keras.Model) -> None:
        """Replaces the images by the head's input, which is computed once."""
        head_input = keras.Model(model.input, read_by(model, "head"), name=model.name)
        kept = self.source.features if isinstance(self.source, CachedSource) else {}

        def features(split: splits.Split | None, what: str) -> Any:
            if split is None or what in kept:
                return kept.get(what)
            frozen = FrozenFeatures(
                network=head_input, split=split, preprocessing=self.preprocessing
            )
            place = ", from the disk" if frozen.on_disk() else ""
            self.say(f"features of {len(split)} {what} images{place}")
            kept[what] = splits.Arrays(*frozen.read(bool(self.verbose)))
            return kept[what]

        self.source = dataclasses.replace(
            self.source,
            train=features(self.source.train, "training"),
            test=features(self.source.test, "test"),
        )

    def hold_out(self) -> tuple[BatchesFrom, ValidationData]:
        """Returns batches of the training set without the held-out share, and of it."""
        if self.ready is not None:
            raise ValueError(
                "Expected one learning rate with ready batches, because no share of "
                f"them can be held out. Received: base_lr={self.recipe.base_lr}"
            )
        rest, held_out = self.source.train.split(self.recipe.held_out, self.seed)
        return self._train(rest), self._evaluate(held_out, "held-out")

    def all(self) -> tuple[BatchesFrom, ValidationData]:
        """Returns batches of the whole training set, and of the test set."""
        if self.ready is not None:
            ready = self.ready
            given = self._one_pass(self.workers.share(self.validation_data))
            return lambda start_step: self.workers.share(ready.skip(start_step)), given
        test = self.source.test
        judged = ValidationData(None) if test is None else self._evaluate(test, "test")
        return self._train(self.source.train), judged

    def _train(self, split: Any) -> BatchesFrom:
        recipe = self.recipe
        if len(split) < recipe.batch_size:
            warn(
                f"{len(split)} training images are fewer than batch_size="
                f"{recipe.batch_size}: a batch contains some of them more than once",
            )
        if self.on_features():
            return functools.partial(
                pipelines.endless,
                split,
                as_written(lambda _, item: (item["image"], item["label"])),
                batch_size=recipe.batch_size,
                seed=self.seed,
            )
        pipeline = functools.partial(
            pipelines.train_pipeline,
            split,
            batch_size=recipe.batch_size,
            seed=self.seed,
            augment=recipe.augment,
            before_crop=self.resize,
            image_ops=_image_ops(recipe),
            batch_op=None if self.sparse else self._mixed,
            **self.options,
        )
        return lambda start_step: self.workers.batches(
            lambda shard: pipeline(start_step=start_step, shard=shard)
        )

    @as_written
    def _mixed(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Applies mixup or CutMix to a batch; if both are set, one of them, as DeiT."""
        recipe, fold_in = self.recipe, tf.random.experimental.stateless_fold_in
        one_hot = tf.one_hot(labels, self.classes)

        def mixup() -> tuple[Any, Any]:
            return augmentation.mixup(images, one_hot, fold_in(seed, 0), recipe.mixup)

        def cutmix() -> tuple[Any, Any]:
            return augmentation.cutmix(images, one_hot, fold_in(seed, 1), recipe.cutmix)

        if not recipe.cutmix:
            return mixup()
        if not recipe.mixup:
            return cutmix()
        coin = tf.random.stateless_uniform([], fold_in(seed, 2))
        mixed: tuple[Any, Any] = tf.cond(coin < 0.5, mixup, cutmix)
        return mixed

    def _evaluate(self, split: Any, kind: str) -> ValidationData:
        part = self.recipe.batch_size // self.recipe.accumulation_steps
        if self.on_features():
            features = (split.images, split.labels)
            batched = tf.data.Dataset.from_tensor_slices(features).batch(part)
            return self._one_pass(batched, kind, len(split))
        replicas = self.workers.replicas
        size = -(-min(part, 64) // replicas) * replicas
        steps = -(-len(split) // size)
        # Keras divides the sum of a batch by its length, including padding.
        weight = steps * size / len(split)

        @as_written
        def complete(images: Any, labels: Any, *mask: Any) -> tuple[Any, ...]:
            labels = labels if self.sparse else tf.one_hot(labels, self.classes)
            return images, labels, *(weight * one for one in mask)

        def batches(shard: pipelines.Shard) -> tf.data.Dataset:
            return pipelines.eval_pipeline(
                split, batch_size=size, pad=replicas > 1, shard=shard, **self.options
            ).map(complete)

        if replicas == 1:
            return self._one_pass(batches((0, 1)), kind, len(split))
        # At the end, tf.distribute would give Keras an additional batch of zeros.
        endless = self.workers.batches(lambda shard: batches(shard).repeat())
        return ValidationData(endless, steps, kind, len(split))

    def _one_pass(
        self, batches: Any, kind: str = "validation", images: int | None = None
    ) -> ValidationData:
        """Returns batches whose number is in `steps`, and not known to Keras.

        Of a data set with a known length, Keras creates an iterator before and after
        every evaluation, and never uses the second one.
        """
        known = isinstance(batches, tf.data.Dataset) and self.workers.replicas == 1
        steps = int(batches.cardinality()) if known else 0
        if steps <= 0:
            return ValidationData(batches, None, kind, images)
        unknown = batches.filter(as_written(lambda *_: True))
        return ValidationData(unknown, steps, kind, images)


def _image_ops(recipe: Recipe) -> list[Callable[[Any, Any], Any]]:
    """Returns the recipe's augmentations of single images after crop and flip."""
    ops: list[Callable[[Any, Any], Any]] = []
    if recipe.randaugment is not None:
        layers, magnitude = recipe.randaugment
        ops.append(
            functools.partial(
                augmentation.randaugment, layers=layers, magnitude=magnitude
            )
        )
    if recipe.random_erasing:
        ops.append(
            functools.partial(
                augmentation.random_erasing, probability=recipe.random_erasing
            )
        )
    return ops


def _check_head(model: keras.Model, classes: int, where: str) -> None:
    """Raises ValueError unless `model` returns one logit for each class."""
    shape = model.output_shape
    activation = last_activation(model)
    if len(shape) != 2 or shape[-1] != classes:
        received = f"model.output_shape={shape}, {classes} classes in {where}"
    elif activation != "linear":
        received = (
            f"model={model.name!r}, whose last layer applies {activation} "
            "(classifier_activation=None removes it)"
        )
    else:
        return
    raise ValueError(
        f"Expected a model with one logit for each class. Received: {received}. "
        f"Add a new head with keras_vit.for_task(model, {classes})"
    )


def _check_normalization(model: keras.Model, given: Preprocessing) -> None:
    """Raises ValueError unless images are scaled as the model's objective expects."""
    if given != model.preprocessing:
        raise ValueError(
            "Expected the preprocessing that the model was created with, because its "
            f"targets are computed from the images. Received: preprocessing={given}, "
            f"model={model.name!r} with {model.preprocessing}"
        )


def _warn_out_of_range(images: np.ndarray, preprocessing: Preprocessing) -> None:
    """Warns if a batch is not scaled as the weights expect."""
    mean, std = preprocessing.mean, preprocessing.std
    low, high = value_range(mean, std)
    if images.min() < low - 0.01 or images.max() > high + 0.01:
        warn(
            f"Expected images in [{low:g}, {high:g}] (mean={mean}, std={std}). "
            f"Received: values from {images.min():g} to {images.max():g}. "
            "keras_vit.preprocess_input scales 0 to 255 to [-1, 1]",
        )
