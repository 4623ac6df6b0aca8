"""Updates that Keras's own step does not make: in parts, and SAM's."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_vit.recipes import Recipe
from keras_vit.training.resume import generator_states


@contextlib.contextmanager
def stepping(model: keras.Model, recipe: Recipe) -> Iterator[None]:
    """Inside, `model` cuts each batch in parts, or looks around (SAM)."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Expected accumulation_steps=1 and sam_rho=None on this backend: both are "
            "written for TensorFlow. Received: "
            f"accumulation_steps={recipe.accumulation_steps}, "
            f"sam_rho={recipe.sam_rho}, backend={keras.backend.backend()}"
        )
    own = vars(model).get("train_step")
    step = _Step(model, recipe.accumulation_steps, recipe.sam_rho)
    model.train_step = step.train_step
    try:
        yield
    finally:
        del model.train_step
        if own is not None:
            model.train_step = own
        model.train_function = None  # Traced with the step that is gone.


class _Step:
    """An update of a functional model, on TensorFlow.

    A batch is cut in parts, in order (train.py): their gradients and losses are
    averaged into one update. Keras's own `gradient_accumulation_steps` counts every
    part as a step of the schedule and of the EMA, and fails on several replicas
    (keras#20582).

    With SAM (arXiv:2010.01412, Equation 2 and Algorithm 1) the gradient is the one at
    w + rho * g / ||g||, over the whole batch and with the same dropout.
    """

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
        """A batch in parts, if there is one: [B, ...] -> [parts, b, ...]."""
        if x is None:
            return None
        return tf.reshape(x, (self.parts, -1, *x.shape[1:]))

    def _around(
        self, images: Any, labels: Any, weights: Any, gradients: list[Any]
    ) -> list[Any]:
        """The gradients at the sharpest place within `sam_rho`."""
        variables = [variable.value for variable in self.model.trainable_variables]
        here = [tf.identity(variable) for variable in variables]
        scale = tf.math.divide_no_nan(
            tf.cast(self.sam_rho, tf.float32), tf.linalg.global_norm(gradients)
        )
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_add(tf.cast(scale, gradient.dtype) * gradient)
        _, gradients, _ = self._averages(images, labels, weights)
        for variable, value in zip(variables, here, strict=True):
            variable.assign(value)
        return gradients

    def _averages(
        self, images: Any, labels: Any, weights: Any
    ) -> tuple[Any, list[Any], Any]:
        """Loss and gradients averaged over the parts, and all that the model says."""
        model = self.model
        variables = [variable.value for variable in model.trainable_variables]

        def part(
            i: Any, loss_sum: Any, gradient_sums: list[Any], outputs: Any
        ) -> tuple[Any, Any, list[Any], Any]:
            own, weight = (None if x is None else x[i] for x in (labels, weights))
            with tf.GradientTape() as tape:
                y = model(images[i], training=True)
                loss = model.compute_loss(images[i], own, y, weight)
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
                0.0,
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


def _joined(x: Any) -> Any:
    """Parts put back together: [parts, b, ...] -> [parts * b, ...]."""
    return tf.reshape(x, (-1, *x.shape[2:]))
