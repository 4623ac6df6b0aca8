"""Prepare a model for training with a recipe, and check that they are compatible."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.layers import AxialBlock, TransformerBlock
from keras_vit.models.vision import VisionModel, architecture_of
from keras_vit.recipes import Recipe
from keras_vit.training import losses, optim
from keras_vit.training.inputs import Batches, objective
from keras_vit.training.train_step import stepping


def note_facts(model: keras.Model, batches: Batches) -> None:
    """Stores the preprocessing and the classes of the training data in the model."""
    if isinstance(model, VisionModel):
        labels = model.labels if batches.ready is not None else batches.source.classes
        model.facts = dataclasses.replace(
            model.facts, preprocessing=batches.preprocessing, labels=labels
        )


def prepared(
    model: keras.Model, recipe: Recipe, batches: Batches, start: Callable[[], None]
) -> keras.Model:
    """Returns the model to train: itself, its head, or a copy with the same layers.

    `start` sets the model's first weights. It runs after LoRA is enabled and before
    features are computed.
    """
    if recipe.lora_rank is not None:
        _enable_lora(model, recipe.lora_rank)
    start()
    part = model
    if batches.on_features():
        batches.read_features(model)
        part = _head_alone(model)
    if recipe.freezes and part is model:  # The head has a different optimizer.
        return keras.Model(model.input, model.output, name=model.name)
    return part


@contextlib.contextmanager
def training_by(
    recipe: Recipe, model: keras.Model, trained: keras.Model, batches: Batches
) -> Iterator[None]:
    """Applies freezing, rematerialization and the train step of the recipe."""
    with contextlib.ExitStack() as stack:
        if recipe.freezes:
            stack.enter_context(_frozen(model))
        if recipe.remat:
            stack.enter_context(_rematerialized(model))
        whole = not batches.on_features()  # A batch of features is small.
        if recipe.sam_rho is not None or (recipe.accumulation_steps > 1 and whole):
            stack.enter_context(stepping(trained, recipe))
        yield


def compiled(
    trained: keras.Model,
    model: keras.Model,
    recipe: Recipe,
    base_lr: float,
    sparse: bool,
) -> list[keras.metrics.Metric]:
    """Compiles the model to train, and builds the optimizer; returns the metrics.

    Args:
        trained: model to train: `model`, its head, or a copy.
        model: model that may define its own objective.
        recipe: recipe of the training run.
        base_lr: one of the recipe's learning rates.
        sparse: whether labels are class indexes.
    """
    optimizer = optim.optimizer(recipe, base_lr, trained)
    if any(layer.compute_dtype == "float16" for layer in trained.layers):
        optimizer = optim.LossScale(optimizer)
    if make_objective := objective(model):
        loss, metrics = make_objective()
    else:
        kind = "SparseCategoricalAccuracy" if sparse else "CategoricalAccuracy"
        metrics = [getattr(keras.metrics, kind)("accuracy")]
        loss = _loss(recipe, sparse)
    # Padding in the last batch of an evaluation has weight 0.
    trained.compile(optimizer, loss, weighted_metrics=metrics, auto_scale_loss=False)
    # On TensorFlow, a step that creates variables is traced twice.
    trained.optimizer.build(trained.trainable_variables)
    return metrics


def _loss(recipe: Recipe, sparse: bool) -> keras.losses.Loss:
    if recipe.loss == "sigmoid":
        return losses.SigmoidCrossEntropy()
    if recipe.label_smoothing:
        return losses.SoftmaxCrossEntropy(recipe.label_smoothing)
    if sparse:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.losses.CategoricalCrossentropy(from_logits=True)


def identity(model: keras.Model, recipe: Recipe, batches: Batches) -> dict[str, Any]:
    """Returns the values that must be equal to resume a run."""
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
        "config": architecture_of(model.backbone if objective(model) else model),
        **batches.identity(),
    }


def _asked_of(model: keras.Model) -> dict[str, Any]:
    """Returns the plain arguments of a model that defines its own objective."""
    if not objective(model):
        return {}
    config = model.get_config() | model.preprocessing.identity()
    return {
        "objective": {
            name: value for name, value in config.items() if not isinstance(value, dict)
        }
    }


@contextlib.contextmanager
def _frozen(model: keras.Model) -> Iterator[None]:
    """Freezes all variables except the head's and LoRA's; layers stay trainable."""
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
    """Returns the encoder's blocks; an axial block has one for rows and for columns."""
    blocks: list[TransformerBlock] = []
    for layer in model.layers:
        if isinstance(layer, AxialBlock):
            blocks += layer.sublayers()
        elif isinstance(layer, TransformerBlock):
            blocks.append(layer)
    return blocks


@contextlib.contextmanager
def _rematerialized(model: keras.Model) -> Iterator[None]:
    """Makes blocks keep only their input for the gradient, and recompute the rest."""
    blocks = _blocks(model)
    if not blocks:
        raise ValueError(
            "Expected a model with Transformer blocks for remat=True. Received: "
            f"model={model.name!r}, which has none"
        )
    for block in blocks:
        block.remat = True
    try:
        yield
    finally:
        for block in blocks:
            block.remat = False


@contextlib.contextmanager
def graphs_freed() -> Iterator[None]:
    """Lets TensorFlow free the graphs of the training inside the context.

    `tf.custom_gradient` registers each gradient of a graph, and through it the graph,
    for the life of the process (also in Keras's optimizers and for `remat`). A sweep of
    many learning rates would need more and more memory.
    """
    if keras.backend.backend() != "tensorflow":
        yield
        return
    from tensorflow.python.framework import ops

    registry = getattr(ops, "gradient_registry", None)  # Not public.
    gradients: dict[str, Any] = getattr(registry, "_registry", {})
    before = set(gradients)
    try:
        yield
    finally:
        for name in set(gradients) - before:
            if name.startswith("CustomGradient-"):
                del gradients[name]


def check_options(model: keras.Model, recipe: Recipe) -> None:
    """Raises ValueError if the model was built with different options."""
    labels = recipe.loss != "softmax" or recipe.label_smoothing or recipe.freezes
    if objective(model) and (labels or len(recipe.base_lr) > 1):
        raise ValueError(
            "Expected a recipe with one learning rate, without a label loss and a "
            "frozen backbone, for a model with its own loss. Received: "
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
                f"model={model.name!r} with {received}. Set the options in the config: "
                "dataclasses.replace(config, **recipe.model_options())"
            )


def _new_bias(model: keras.Model) -> set[float]:
    """Returns the biases of an untrained head, whose kernel is zero."""
    for layer in model.layers:
        if layer.name == "head" and isinstance(layer, keras.layers.Dense):
            kernel, *bias = layer.get_weights()
            if bias and not kernel.any():
                return set(np.unique(np.round(bias[0].astype(float), 4)).tolist())
    return set()


def _head_alone(model: keras.Model) -> keras.Model:
    """Returns a model from features to logits with the head's layer."""
    head = model.get_layer("head")
    features = keras.Input(head.input.shape[1:], name="features")
    return keras.Model(features, head(features), name="head")


def _enable_lora(model: keras.Model, rank: int) -> None:
    """Enables LoRA in every projection of the encoder, unless it is enabled."""
    projections = [layer for block in _blocks(model) for layer in block.projections()]
    ranks = {layer.lora_rank for layer in projections}
    if not projections or ranks - {None, rank}:
        raise ValueError(
            "Expected a Transformer without LoRA, or with the recipe's rank. Received: "
            f"lora_rank={rank}, model={model.name!r} with "
            f"{', '.join(map(str, ranks)) or 'no blocks'}"
        )
    for layer in projections:
        if not layer.lora_enabled:
            layer.enable_lora(rank)
