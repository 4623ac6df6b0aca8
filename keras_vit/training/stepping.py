"""Updates that Keras's own step does not make: in parts, and SAM's."""

from typing import Any

import keras
import tensorflow as tf

from keras_vit.recipes import Recipe
from keras_vit.training.resume import generator_states


def stepping(model: keras.Model, recipe: Recipe) -> keras.Model:
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
        draws = [state.value for state in generator_states(self)]
        before = [tf.identity(state) for state in draws]
        loss, gradients, logits = self._averages(images, labels)
        if self.sam_rho is not None:
            for state, value in zip(draws, before, strict=True):
                state.assign(value)
            gradients = self._around(images, labels, gradients)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        # Keras divides the loss by the number of replicas, whose gradients are summed.
        loss *= self.distribute_strategy.num_replicas_in_sync
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(data[0])[0])
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
