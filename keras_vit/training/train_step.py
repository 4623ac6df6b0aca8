"""Train steps that Keras does not provide: gradient accumulation and SAM.

There is one class for each backend, with the same operations. Keras's trainers differ:
on JAX a step is a function of the variables' values.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.layers.kernels import wide
from keras_vit.recipes import Recipe
from keras_vit.training.distribution import Workers
from keras_vit.training.optim import sum_over_replicas
from keras_vit.training.resume import generator_states


@contextlib.contextmanager
def stepping(model: keras.Model, recipe: Recipe) -> Iterator[None]:
    """Gives `model` a train step with accumulation or SAM.

    A batch is divided into parts, in order (train.py). Their gradients and losses are
    averaged for one update. Keras's `gradient_accumulation_steps` counts every part as
    a step of the schedule and of the EMA, and fails on several replicas (keras#20582).

    With SAM (arXiv:2010.01412, Equation 2 and Algorithm 1), the gradient is computed at
    w + rho * g / ||g||, over the whole batch and with the same dropout.
    """
    previous = vars(model).get("train_step")
    kind = _STEPS[keras.backend.backend()]
    step = kind(model, recipe.accumulation_steps, recipe.sam_rho)
    model.train_step = step.train_step
    try:
        yield
    finally:
        del model.train_step
        if previous is not None:
            model.train_step = previous
        model.train_function = None  # It was traced with the step that was removed.


class _TensorFlowStep:
    """An update of a functional model on TensorFlow, on one replica."""

    def __init__(self, model: keras.Model, parts: int, sam_rho: float | None) -> None:
        self.model, self.parts, self.sam_rho = model, parts, sam_rho

    def train_step(self, data: Any) -> dict[str, Any]:
        model = self.model
        images, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        parts = self._cut(images), self._cut(labels), self._cut(weights)
        draws = [state.value for state in generator_states(model)]
        before = [tf.identity(state) for state in draws]
        loss, gradients, outputs = self._averages(*parts)
        if self.sam_rho is not None:
            for state, value in zip(draws, before, strict=True):
                state.assign(value)
            gradients = self._around(*parts, gradients)
        model.optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        # Keras divides the loss by the number of replicas, whose gradients are summed.
        loss *= model.distribute_strategy.num_replicas_in_sync
        for metric in model.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(images)[0])
        results: dict[str, Any] = model.compute_metrics(
            images, labels, outputs, weights
        )
        return results

    def _cut(self, x: Any) -> Any:
        """Divides a batch into parts, or returns None: [B, ...] -> [parts, b, ...]."""
        if x is None:
            return None
        return tf.reshape(x, (self.parts, -1, *x.shape[1:]))

    def _around(
        self, images: Any, labels: Any, weights: Any, gradients: list[Any]
    ) -> list[Any]:
        """Returns the gradients at the sharpest point within `sam_rho`."""
        variables = [variable.value for variable in self.model.trainable_variables]
        here = [tf.identity(variable) for variable in variables]
        whole = sum_over_replicas(gradients)
        scale = tf.math.divide_no_nan(
            tf.constant(self.sam_rho, whole[0].dtype), tf.linalg.global_norm(whole)
        )
        _assign(
            variables,
            [
                value + tf.cast(scale, gradient.dtype) * gradient
                for value, gradient in zip(here, whole, strict=True)
            ],
        )
        _, gradients, _ = self._averages(images, labels, weights)
        _assign(variables, here)
        return gradients

    def _averages(
        self, images: Any, labels: Any, weights: Any
    ) -> tuple[Any, list[Any], Any]:
        """Returns loss and gradients averaged over the parts, and all outputs."""
        model = self.model
        variables = [variable.value for variable in model.trainable_variables]

        def part(
            i: Any, loss_sum: Any, gradient_sums: list[Any], outputs: Any
        ) -> tuple[Any, Any, list[Any], Any]:
            targets, weight = (None if x is None else x[i] for x in (labels, weights))
            with tf.GradientTape() as tape:
                y = model(images[i], training=True)
                loss = model.compute_loss(images[i], targets, y, weight)
                scaled = model.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, variables)
            written = [
                array.write(i, value)
                for array, value in zip(outputs, keras.tree.flatten(y), strict=True)
            ]
            return (
                i + 1,
                loss_sum + loss,
                [a + b for a, b in zip(gradient_sums, gradients, strict=True)],
                written,
            )

        _, loss_sum, gradient_sums, outputs = tf.while_loop(
            lambda i, *_: i < self.parts,
            part,
            (
                0,
                tf.zeros((), wide()),
                [tf.zeros_like(variable) for variable in variables],
                [
                    tf.TensorArray(output.dtype, size=self.parts)
                    for output in model.outputs
                ],
            ),
        )
        gradients = [gradient / self.parts for gradient in gradient_sums]
        whole = [_joined(array.stack()) for array in outputs]
        packed = keras.tree.pack_sequence_as(model.output, whole)
        return loss_sum / self.parts, gradients, packed


def _assign(variables: list[Any], values: list[Any]) -> None:
    """Assigns values to a replica's variables; they are equal on all replicas."""

    def each(strategy: tf.distribute.Strategy, values: list[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, lambda v, x: v.assign(x), (value,))

    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        context.merge_call(each, (values,))
    else:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _joined(x: Any) -> Any:
    """Joins parts: [parts, b, ...] -> [parts * b, ...]."""
    return tf.reshape(x, (-1, *x.shape[2:]))


class _JaxStep:
    """An update of a functional model on JAX, a function of variables' values."""

    def __init__(self, model: keras.Model, parts: int, sam_rho: float | None) -> None:
        self.model, self.parts, self.sam_rho = model, parts, sam_rho
        self.devices = Workers.of(model).replicas

    def train_step(self, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
        trainable, others, moments, metrics = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        parts = tuple(map(self._cut, batch))

        def averages(weights: list[Any]) -> tuple[Any, list[Any], Any, list[Any]]:
            return self._averages(weights, others, moments, metrics, parts)

        loss, gradients, outputs, after = averages(trainable)
        if self.sam_rho is not None:
            _, gradients, _, _ = averages(self._around(trainable, gradients))
        trainable, moments = self.model.optimizer.stateless_apply(
            moments, gradients, trainable
        )
        logs, metrics = self._measured(metrics, loss, outputs, *batch)
        return logs, (trainable, after, moments, metrics)

    def _cut(self, x: Any) -> Any:
        """Divides a batch into parts, or returns None: [B, ...] -> [parts, b, ...].

        Each device divides its own images, so no image moves between devices.
        """
        if x is None:
            return None
        each = keras.ops.reshape(x, (self.devices, self.parts, -1, *x.shape[1:]))
        return keras.ops.reshape(
            keras.ops.swapaxes(each, 0, 1), (self.parts, -1, *x.shape[1:])
        )

    def _joined(self, x: Any) -> Any:
        """Reverses `_cut`."""
        each = keras.ops.reshape(x, (self.parts, self.devices, -1, *x.shape[2:]))
        return keras.ops.reshape(keras.ops.swapaxes(each, 0, 1), (-1, *x.shape[2:]))

    def _around(self, weights: list[Any], gradients: list[Any]) -> list[Any]:
        """Returns the sharpest weights within `sam_rho`."""
        squares = (keras.ops.sum(keras.ops.square(g)) for g in gradients)
        norm = keras.ops.sqrt(sum(squares))
        scale = keras.ops.where(norm > 0, self.sam_rho / norm, 0.0)
        return [w + scale * g for w, g in zip(weights, gradients, strict=True)]

    def _averages(
        self,
        weights: list[Any],
        others: list[Any],
        moments: list[Any],
        metrics: list[Any],
        parts: tuple[Any, ...],
    ) -> tuple[Any, list[Any], Any, list[Any]]:
        """Returns loss, gradients, outputs and the non-trainable variables."""
        import jax

        gradient = jax.value_and_grad(self.model.compute_loss_and_updates, has_aux=True)

        def part(carried: Any, batch: Any) -> tuple[Any, Any]:
            others, loss_sum, sums = carried
            (_, (loss, outputs, others, _)), gradients = gradient(
                weights,
                others,
                metrics,
                *batch,
                training=True,
                optimizer_variables=moments,
            )
            sums = [a + b for a, b in zip(sums, gradients, strict=True)]
            return (others, loss_sum + loss, sums), outputs

        start = (
            others,
            keras.ops.zeros((), wide()),
            [keras.ops.zeros_like(w) for w in weights],
        )
        (others, loss_sum, sums), outputs = jax.lax.scan(part, start, parts)
        whole = keras.tree.map_structure(self._joined, outputs)
        return loss_sum / self.parts, [g / self.parts for g in sums], whole, others

    def _measured(
        self, metrics: list[Any], loss: Any, outputs: Any, x: Any, y: Any, weights: Any
    ) -> tuple[dict[str, Any], list[Any]]:
        """Returns the results of the metrics, and their variables."""
        model = self.model
        variables = model.metrics_variables
        mapping = list(zip(variables, metrics, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            for metric in model.metrics:
                if metric.name == "loss":
                    metric.update_state(loss, sample_weight=len(x))
            logs = model.compute_metrics(x, y, outputs, weights)
        values = [scope.get_current_value(variable) for variable in variables]
        return logs, [
            old if new is None else new
            for new, old in zip(values, metrics, strict=True)
        ]


class _TorchStep:
    """An update of a functional model on torch."""

    def __init__(self, model: keras.Model, parts: int, sam_rho: float | None) -> None:
        self.model, self.parts, self.sam_rho = model, parts, sam_rho

    def train_step(self, data: Any) -> dict[str, Any]:
        import torch

        model = self.model
        batch = keras.utils.unpack_x_y_sample_weight(data)
        variables = list(model.trainable_variables)
        if self.sam_rho is None:
            loss, outputs = self._averages(*batch)
        else:
            draws = generator_states(model)
            before = [keras.ops.copy(state.value) for state in draws]
            with torch.random.fork_rng():  # Keras's dropout uses torch's generator.
                loss, outputs = self._averages(*batch)
            here = [variable.value.detach().clone() for variable in variables]
            with torch.no_grad():
                self._around([variable.value for variable in variables])
                for state, value in zip(draws, before, strict=True):
                    state.assign(value)
            self._averages(*batch)
            with torch.no_grad():
                for variable, value in zip(variables, here, strict=True):
                    variable.value.copy_(value)
        with torch.no_grad():
            model.optimizer.apply([v.value.grad for v in variables], variables)
        images, labels, weights = batch
        for metric in model.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=len(images))
        results: dict[str, Any] = model.compute_metrics(
            images, labels, outputs, weights
        )
        return results

    def _around(self, values: list[Any]) -> None:
        """Moves the weights to the sharpest point within `sam_rho`."""
        import torch

        norm = torch.sqrt(sum((at.grad**2).sum() for at in values))
        scale = torch.where(norm > 0, float(self.sam_rho or 0) / norm, 0.0)
        for at in values:
            at += scale * at.grad

    def _averages(self, images: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
        """Returns the mean loss and the outputs; leaves mean gradients in variables."""
        import torch

        model, collected, loss_sum = self.model, [], 0.0
        model.zero_grad()
        for indexes in np.array_split(np.arange(len(images)), self.parts):
            x, y, w = (
                None if whole is None else whole[indexes[0] : indexes[-1] + 1]
                for whole in (images, labels, weights)
            )
            outputs = model(x, training=True)
            loss = model.compute_loss(x, y, outputs, w)
            (model.optimizer.scale_loss(loss) / self.parts).backward()
            loss_sum += loss.detach() / self.parts
            collected.append(keras.tree.map_structure(torch.detach, outputs))
        whole = keras.tree.map_structure(lambda *parts: torch.cat(parts), *collected)
        return loss_sum, whole


_STEPS: dict[str, Callable[..., Any]] = {
    "tensorflow": _TensorFlowStep,
    "jax": _JaxStep,
    "torch": _TorchStep,
}
