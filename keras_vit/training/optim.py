"""Schedules and optimizers of the official code (B.1, B.1.1, Tables 3 and 4).

vit_jax fine-tunes with `WarmupDecay` and `MomentumSGD`. big_vision pre-trains with
`BigVisionSchedule` and `DecoupledAdam` or `Adafactor`. BiT fine-tunes with
`StaircaseDecay`. All of them are based on those repositories and tested against their
results (tests/training/test_optim.py).

Glossary: w: a variable. - g: its clipped gradient. - u: the optimizer's direction. -
m, v: its first and second moment. - t: number of the update, from 1.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.layers.kernels import at_least_float32, wide
from keras_vit.recipes import Recipe
from keras_vit.weights import variables as canonical

__all__ = [
    "Adafactor",
    "BigVisionSchedule",
    "DecoupledAdam",
    "MomentumSGD",
    "StaircaseDecay",
    "WarmupDecay",
    "checkpoint_views",
    "layer_rates",
    "optimizer",
    "schedule",
]

LINEAR_END = 1e-5  # vit_jax/utils.py: final rate of the linear decay.

register = keras.saving.register_keras_serializable(package="keras_vit")


@register
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then cosine or linear decay (Tables 3, 4), as vit_jax/utils.py.

    progress = clip((step - warmup) / (total - warmup), 0, 1), and the decayed rate is
    multiplied by min(1, step / warmup). Steps count from 0, so with a warm-up the first
    update changes nothing.

    Args:
        base_lr: learning rate after the warm-up.
        total_steps: step at which the decay ends, at 0 (cosine) or 1e-5 (linear).
        warmup_steps: length of the warm-up; 0 for none.
        decay: "cosine" or "linear".

    Raises:
        ValueError: if `decay` is unknown, or not 0 <= warmup_steps < total_steps.

    Examples:
        >>> rate = WarmupDecay(0.03, total_steps=500)  # Table 4's Pets.
        >>> [round(float(rate(step)), 3) for step in (0, 250, 500)]
        [0.03, 0.015, 0.0]
    """

    def __init__(
        self,
        base_lr: float,
        total_steps: int,
        warmup_steps: int = 0,
        decay: Literal["cosine", "linear"] = "cosine",
    ) -> None:
        super().__init__()
        if decay not in ("cosine", "linear"):
            raise ValueError(
                f"Expected decay to be 'cosine' or 'linear'. Received: decay={decay!r}"
            )
        _check_warmup(warmup_steps, total_steps)
        self.base_lr = arguments.not_negative("base_lr", base_lr)
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.decay = decay

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, wide())
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        progress = ops.clip(progress, 0.0, 1.0)
        if self.decay == "cosine":
            rate = self.base_lr * 0.5 * (1 + ops.cos(math.pi * progress))
        else:
            rate = LINEAR_END + (self.base_lr - LINEAR_END) * (1 - progress)
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / self.warmup_steps)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {
            "base_lr": self.base_lr,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
        }


@register
class BigVisionSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """big_vision's schedules (utils.py, `create_learning_rate_schedule`).

    progress = clip((step - warmup) / (total - warmup), 0, 1); the decayed rate is
    multiplied by min(1, step / warmup) and min(1, (total - step) / cooldown).

    Args:
        base_lr: learning rate after the warm-up.
        total_steps: step at which the decay ends.
        decay: "cosine", to 0; "linear", to `end`; "polynomial", to `end`, with
            (1 - progress) ^ `power`; "rsqrt", with `timescale`; "stair", `mults` times
            the rate from each of `steps`.
        warmup_steps: length of the warm-up; 0 for none.
        cooldown_steps: length of a final linear decay to 0, in addition to `decay`; 0
            for none.
        power: exponent of "polynomial".
        end: final value of "linear" and "polynomial".
        timescale: timescale of "rsqrt": base_lr / sqrt(1 + (step - warmup + shift) /
            timescale).
        shift: shift of "rsqrt", in steps.
        steps: steps of "stair".
        mults: factors of "stair", one for each of `steps`.

    Raises:
        ValueError: if `decay` is unknown, not 0 <= warmup_steps < total_steps, or
            `steps` and `mults` have different lengths or do not belong to "stair".
    """

    def __init__(
        self,
        base_lr: float,
        total_steps: int,
        decay: Literal["cosine", "linear", "polynomial", "rsqrt", "stair"],
        warmup_steps: int = 0,
        cooldown_steps: int = 0,
        power: float = 1.0,
        end: float = 0.0,
        timescale: float = 10_000.0,
        shift: float = 0.0,
        steps: Sequence[int] = (),
        mults: Sequence[float] = (),
    ) -> None:
        super().__init__()
        kinds = ("cosine", "linear", "polynomial", "rsqrt", "stair")
        if decay not in kinds:
            raise ValueError(
                f"Expected decay to be one of {', '.join(kinds)}. "
                f"Received: decay={decay!r}"
            )
        _check_warmup(warmup_steps, total_steps)
        if len(steps) != len(mults) or (decay == "stair") != bool(steps):
            raise ValueError(
                "Expected steps with one multiplier each for decay='stair', and none "
                f"for other decays. Received: decay={decay!r}, steps={tuple(steps)}, "
                f"mults={tuple(mults)}"
            )
        self.base_lr = arguments.not_negative("base_lr", base_lr)
        self.total_steps = total_steps
        self.decay = decay
        self.warmup_steps = warmup_steps
        self.cooldown_steps = cooldown_steps
        self.power = power
        self.end = end
        self.timescale = timescale
        self.shift = shift
        self.steps = tuple(steps)
        self.mults = tuple(mults)

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, wide())
        rate = self._decayed(step)
        if self.warmup_steps:
            rate = rate * ops.minimum(1.0, step / self.warmup_steps)
        if self.cooldown_steps:
            left = (self.total_steps - step) / self.cooldown_steps
            rate = rate * ops.minimum(1.0, left)
        return rate

    def _decayed(self, step: Any) -> Any:
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        progress = ops.clip(progress, 0.0, 1.0)
        if self.decay == "cosine":
            return self.base_lr * 0.5 * (1.0 + ops.cos(math.pi * progress))
        if self.decay in ("linear", "polynomial"):
            power = self.power if self.decay == "polynomial" else 1.0
            return self.end + (self.base_lr - self.end) * (1.0 - progress) ** power
        if self.decay == "rsqrt":
            since = ops.maximum(step - self.warmup_steps, 0.0) + self.shift
            return self.base_lr / ops.sqrt(1.0 + since / self.timescale)
        rate = self.base_lr * ops.ones_like(step)
        for start, mult in zip(self.steps, self.mults, strict=True):
            rate = ops.where(step >= start, self.base_lr * mult, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {
            "base_lr": self.base_lr,
            "total_steps": self.total_steps,
            "decay": self.decay,
            "warmup_steps": self.warmup_steps,
            "cooldown_steps": self.cooldown_steps,
            "power": self.power,
            "end": self.end,
            "timescale": self.timescale,
            "shift": self.shift,
            "steps": list(self.steps),
            "mults": list(self.mults),
        }


@register
class StaircaseDecay(keras.optimizers.schedules.LearningRateSchedule):
    """BiT-HyperRule's schedule (big_transfer, bit_hyperrule.py).

    Linear warm-up until the first boundary. The rate is divided by 10 after every
    further boundary.

    Args:
        base_lr: learning rate after the warm-up.
        boundaries: end of the warm-up, then the steps after which the rate falls.

    Raises:
        ValueError: if the boundaries are not positive and strictly increasing.
    """

    def __init__(self, base_lr: float, boundaries: Sequence[int]) -> None:
        super().__init__()
        if not boundaries or list(boundaries) != sorted({0, *boundaries})[1:]:
            raise ValueError(
                "Expected boundaries that are positive and strictly increasing. "
                f"Received: boundaries={tuple(boundaries)}"
            )
        self.base_lr = arguments.not_negative("base_lr", base_lr)
        self.boundaries = tuple(boundaries)

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, wide())
        rate = self.base_lr * ops.minimum(1.0, step / self.boundaries[0])
        for fall, boundary in enumerate(self.boundaries[1:], 1):
            rate = ops.where(step > boundary, self.base_lr / 10**fall, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        return {"base_lr": self.base_lr, "boundaries": list(self.boundaries)}


def _check_warmup(warmup_steps: int, total_steps: int) -> None:
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            "Expected 0 <= warmup_steps < total_steps. Received: "
            f"warmup_steps={warmup_steps}, total_steps={total_steps}"
        )


def _check_layer_decay(layer_decay: float | None) -> None:
    if layer_decay is not None and arguments.positive("layer_decay", layer_decay) > 1:
        raise ValueError(
            "Expected layer_decay, the learning rate's factor from layer to layer, in "
            f"(0, 1]. Received: layer_decay={layer_decay}"
        )


def layer_rates(paths: Sequence[str], layer_decay: float) -> list[float]:
    """Returns the learning rate's multiplier for each variable, by depth of its layer.

    The multiplier is layer_decay ^ (L + 1 - depth), with BEiT's convention
    (arXiv:2106.08254, `get_num_layer_for_vit`). Patch and position embeddings, the
    class token, and here also a hybrid's ResNet, have depth 0. Block i has depth i + 1.
    The last norm and the head, after L blocks, have depth L + 1 and the full rate.

    Args:
        paths: paths of the variables, `keras.Variable.path`.
        layer_decay: factor from one layer to the one before, in (0, 1].

    Returns:
        A multiplier for each of `paths`.

    Raises:
        ValueError: if no path belongs to a Transformer block.

    Examples:
        >>> layer_rates(["embedding/bias", "encoderblock_0/qkv/bias", "head/bias"], 0.5)
        [0.25, 0.5, 1.0]
    """
    blocks = [re.match(r"(?:encoderblock|posembed)_(\d+)/", path) for path in paths]
    last = 1 + max((1 + int(match[1]) for match in blocks if match), default=-1)
    if not last:
        raise ValueError(
            "Expected variables of a Transformer (encoderblock_0/...) for layer_decay. "
            f"Received: layer_decay={layer_decay}, {', '.join(paths[:3])}, ..."
        )
    after = ("encoder_norm/", "MAPHead_0/", "pre_logits/", "head/")
    depths = [
        1 + int(match[1]) if match else last if path.startswith(after) else 0
        for path, match in zip(paths, blocks, strict=True)
    ]
    return [layer_decay ** (last - depth) for depth in depths]


def sum_over_replicas(gradients: Sequence[Any]) -> list[Any]:
    """Sums gradients over replicas, inside a `tf.distribute` step; None stays None."""
    if keras.backend.backend() != "tensorflow":
        return list(gradients)
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(gradients)
    present = [gradient for gradient in gradients if gradient is not None]
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if gradient is None else next(sums) for gradient in gradients]


class _Decoupled(keras.optimizers.Optimizer):
    """Base class of the optimizers: w <- w - lr * c * (u + kernel_decay * w).

    Weight decay is decoupled from the gradient and applies only to kernels, not to
    norms, biases, positions and the class token (big_vision, optax.py: `.*/kernel$`).
    It is relative to the learning rate, as in Table 3; big_vision's `wd` is
    lr * kernel_decay. c is the layer's multiplier, see `layer_rates`.

    `gradient_norm` is the global norm of the last gradients before clipping.

    Numbers are multiplied by tensors, not by variables, and no tensors are made of
    them: on torch, Keras copies such a number to the GPU, which waits for all work.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        name: str,
        kernel_decay: float = 0.0,
        layer_decay: float | None = None,
        momentum_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        if isinstance(learning_rate, float):  # Not a schedule.
            arguments.not_negative("learning_rate", learning_rate)
        arguments.not_negative("kernel_decay", kernel_decay)
        _check_layer_decay(layer_decay)
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        if momentum_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                "Expected momentum_dtype 'float32' or 'bfloat16'. "
                f"Received: momentum_dtype={momentum_dtype!r}"
            )
        self.kernel_decay = kernel_decay
        self.layer_decay = layer_decay
        self.momentum_dtype = momentum_dtype
        self.gradient_norm = self.add_variable(
            (), dtype=wide(), aggregation="only_first_replica", name="gradient_norm"
        )

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        super().apply(sum_over_replicas(grads), trainable_variables)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Clips gradients; Keras's method would compute the global norm again."""
        squares = [ops.sum(ops.square(at_least_float32(grad))) for grad in grads]
        norm = ops.sqrt(sum(squares))
        self.gradient_norm.assign(norm)
        if not self.global_clipnorm:
            clipped: list[Any] = super()._clip_gradients(grads)
            return clipped
        factor = self.global_clipnorm / norm
        factor = ops.minimum(ops.ones_like(factor), factor)
        return [grad * ops.cast(factor, grad.dtype) for grad in grads]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        """Disables Keras's sum of clipped gradients: `apply` has summed them before."""
        return grads_and_vars

    def build(self, variables: list[keras.Variable]) -> None:
        """Sets decays and rates; a subclass's `build` calls this first."""
        super().build(variables)
        self.decays = [
            self.kernel_decay if variable.name == "kernel" else 0.0
            for variable in variables
        ]
        self.rates = (
            [1.0] * len(variables)
            if self.layer_decay is None
            else layer_rates(
                [variable.path for variable in variables], self.layer_decay
            )
        )

    def _momentums(self, variables: list[keras.Variable]) -> list[keras.Variable]:
        """Creates a first moment in `momentum_dtype` for each variable."""
        devices = keras.distribution.distribution()
        return [
            self.add_variable(
                variable.shape,
                dtype=wide(variable.dtype)
                if self.momentum_dtype == "float32"
                else self.momentum_dtype,
                layout=devices and devices.get_variable_layout(variable),
                name=f"{variable.path.replace('/', '_')}_momentum",
            )
            for variable in variables
        ]

    def _decayed(self, momentum: Any, factor: float) -> Any:
        """Returns factor * m, computed in m's dtype and cast to float32, as in optax.

        In bfloat16, 0.9 is 0.8984375. As in optax, the product is rounded if operations
        run one by one, but not if XLA compiles them.
        """
        if keras.backend.standardize_dtype(momentum.dtype) == "bfloat16":
            factor = float(ml_dtypes.bfloat16(factor))
        return at_least_float32(factor * ops.convert_to_tensor(momentum))

    def _number(self) -> Any:
        """Returns t, in float32 or more."""
        return ops.cast(self.iterations, wide()) + 1

    def _store(self, variable: Any, value: Any) -> None:
        self.assign(variable, ops.cast(value, variable.dtype))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        gradient = ops.cast(gradient, wide(variable.dtype))
        update = self.direction(gradient, index)
        if self.decays[index]:
            update = update + self.decays[index] * at_least_float32(variable)
        rate = ops.cast(self._rate(learning_rate, index), update.dtype)
        self.assign_sub(variable, ops.cast(rate * update, variable.dtype))

    def _rate(self, learning_rate: Any, index: int) -> Any:
        """Returns the learning rate of the variable at `index`, lr * c."""
        rate = ops.cast(learning_rate, wide())
        return rate if self.rates[index] == 1.0 else rate * self.rates[index]

    def direction(self, gradient: Any, index: int) -> Any:
        """Returns u for the variable at `index`, and updates its moments.

        Args:
            gradient: g, float32 with the variable's shape, [...].
            index: index of the variable in the optimizer.

        Returns:
            float32 [...] of the same shape.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel_decay": self.kernel_decay,
            "layer_decay": self.layer_decay,
            "momentum_dtype": self.momentum_dtype,
        }


@register
class LossScale(keras.optimizers.LossScaleOptimizer):
    """The loss scaling of mixed_float16, with one decision to step for all replicas.

    Keras only checks the gradients of the first replica, so an overflow on a different
    replica would reach the weights of all. Keras's `build` also adds its two variables
    at every call, so that a model saved after two calls could not be loaded.
    """

    def build(self, variables: list[keras.Variable]) -> None:
        if not self.built:
            super().build(variables)

    def check_finite(self, grads: list[Any]) -> Any:
        overflow = ops.cast(ops.logical_not(super().check_finite(grads)), "float32")
        (anywhere,) = sum_over_replicas([overflow])
        return ops.equal(anywhere, 0.0)


@register
class MomentumSGD(_Decoupled):
    """SGD with momentum as in optax and torch (Table 4).

    m <- g + momentum * m;  u = m

    `keras.optimizers.SGD` includes lr in the momentum (m <- momentum * m - lr * g). The
    result differs whenever lr changes, which a schedule does at every step.

    Args:
        learning_rate: a number or a schedule.
        momentum: factor of the previous m, in [0, 1).
        name: name of the optimizer.
        **kwargs: `kernel_decay`, weight decay of kernels relative to the rate
            [default: 0, as in Table 4]; `layer_decay`, see `layer_rates` [default:
            None, the same rate for all]; `momentum_dtype`, "float32" or "bfloat16",
            which stores m as vit_jax/train.py does and also rounds `momentum`, but not
            u; and arguments of `keras.optimizers.Optimizer`: `global_clipnorm`,
            `use_ema`, ...

    Raises:
        ValueError: if `momentum_dtype` is not supported; in `build`, if `layer_decay`
            is set and no variable belongs to a Transformer block.
    """

    def __init__(
        self,
        learning_rate: Any = 0.03,
        momentum: float = 0.9,
        name: str = "momentum_sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name=name, **kwargs)
        self.momentum = arguments.rate("momentum", momentum)

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momentums = self._momentums(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        if not self._has_kernel(variable, index):
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        tf.raw_ops.ResourceApplyMomentum(  # A single pass without temporary memory.
            var=variable.handle,
            accum=self.momentums[index].value.handle,
            lr=self._rate(learning_rate, index),
            grad=gradient,
            momentum=self.momentum,
        )

    def _has_kernel(self, variable: Any, index: int) -> bool:
        """Whether a TensorFlow kernel can compute this variable's update."""
        dtypes = {keras.backend.standardize_dtype(variable.dtype), self.momentum_dtype}
        if keras.backend.backend() != "tensorflow" or dtypes != {"float32"}:
            return False
        import tensorflow as tf

        if self.decays[index] or tf.distribute.has_strategy():
            return False
        return isinstance(variable, tf.Variable)

    def direction(self, gradient: Any, index: int) -> Any:
        m = self.momentums[index]
        update = gradient + self._decayed(m, self.momentum)
        self._store(m, update)
        return update

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum}


@register
class DecoupledAdam(_Decoupled):
    """Adam with decoupled weight decay of kernels, as in big_vision (Table 3).

    m <- beta1 * m + (1 - beta1) * g;  v <- beta2 * v + (1 - beta2) * g^2
    u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)

    `keras.optimizers.AdamW` decays all variables and adds epsilon before the correction
    of v.

    Args:
        learning_rate: a number or a schedule.
        beta1: decay of m, in [0, 1).
        beta2: decay of v, in [0, 1).
        epsilon: small constant in the formula.
        name: name of the optimizer.
        **kwargs: see `MomentumSGD`; with `momentum_dtype="bfloat16"`, m is stored in
            bfloat16 and `beta1` is rounded, as in optax.

    Raises:
        ValueError: see `MomentumSGD`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        name: str = "decoupled_adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name=name, **kwargs)
        self.beta1 = arguments.rate("beta1", beta1)
        self.beta2 = arguments.rate("beta2", beta2)
        self.epsilon = arguments.positive("epsilon", epsilon)

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momentums = self._momentums(variables)
        self.velocities = [
            self.add_variable_from_reference(variable, name="velocity")
            for variable in variables
        ]

    def direction(self, gradient: Any, index: int) -> Any:
        m, v = self.momentums[index], self.velocities[index]
        momentum = (1 - self.beta1) * gradient + self._decayed(m, self.beta1)
        velocity = self.beta2 * ops.convert_to_tensor(v)
        velocity = (1 - self.beta2) * ops.square(gradient) + velocity
        self._store(m, momentum)
        self._store(v, velocity)
        t = self._number()
        momentum = momentum / (1 - self.beta1**t)
        velocity = velocity / (1 - self.beta2**t)
        return momentum / (ops.sqrt(velocity) + self.epsilon)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
        }


@register
class Adafactor(_Decoupled):
    """big_vision's Adafactor (optax.py, arXiv:2106.04560 section 3.4).

    beta = min(beta2_cap, 1 - t^-0.8);  v <- beta * v + (1 - beta) * (g^2 + 1e-30)
    u = m <- momentum * m + (1 - momentum) * g / sqrt(v)

    v is stored as the means of its rows and columns along the two largest dimensions if
    both are 32 or larger. Updates are not clipped, and m is not bias-corrected.

    The dimensions are those of the official checkpoints, which `views` contains. If a
    variable here concatenates query, key and value, each of them is treated as a
    separate matrix; the two largest dimensions of [D, k, D_h] are D and D_h.

    Args:
        learning_rate: a number or a schedule.
        momentum: factor of the previous m; 0 disables m.
        beta2_cap: upper limit of beta in the formula.
        views: path of a variable -> (number of tensors along its last axis, shape of
            each), see `checkpoint_views`. A variable whose path is absent is treated as
            one tensor.
        name: name of the optimizer.
        momentum_dtype: dtype of m; "bfloat16" is big_vision's.
        **kwargs: see `MomentumSGD`.

    Raises:
        ValueError: see `MomentumSGD`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.9,
        beta2_cap: float = 0.999,
        views: Mapping[str, tuple[int, Sequence[int]]] | None = None,
        name: str = "adafactor",
        momentum_dtype: str = "bfloat16",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate, name=name, momentum_dtype=momentum_dtype, **kwargs
        )
        self.momentum = arguments.rate("momentum", momentum)
        self.beta2_cap = arguments.rate("beta2_cap", beta2_cap)
        self.views: dict[str, tuple[int, tuple[int, ...]]] = {
            path: (count, tuple(shape))
            for path, (count, shape) in (views or {}).items()
        }

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momentums = self._momentums(variables) if self.momentum else []
        self.factored = []  # Axes that the row means and the column means reduce.
        self.velocities = []
        for variable in variables:
            count, shape = self.views.get(variable.path, (1, variable.shape))
            axes = factored_axes(tuple(shape))
            full = (count, *shape)
            self.factored.append(axes)
            kept = [full] if axes is None else [_without(full, axis) for axis in axes]
            self.velocities.append(
                [
                    self.add_variable(
                        part, name=f"{variable.path.replace('/', '_')}_v{i}"
                    )
                    for i, part in enumerate(kept)
                ]
            )

    def direction(self, gradient: Any, index: int) -> Any:
        variable = self._trainable_variables[index]
        count, shape = self.views.get(variable.path, (1, variable.shape))
        beta = 1.0 - self._number() ** -0.8
        beta = ops.minimum(beta, self.beta2_cap)
        # Moves tensors from the last axis to the first: [count, *shape].
        lead = tuple(variable.shape[:-1])
        apart = (*lead, count, variable.shape[-1] // count) if lead else None
        g = gradient
        if apart is not None:
            g = ops.moveaxis(ops.reshape(g, apart), -2, 0)
        g = ops.reshape(g, (count, *shape))
        g = g * self._inverse_root(ops.square(g) + 1e-30, beta, index)
        if apart is not None:
            g = ops.moveaxis(ops.reshape(g, (count, *lead, apart[-1])), 0, -2)
        update = ops.reshape(g, variable.shape)
        if not self.momentum:
            return update
        m = self.momentums[index]
        update = (1 - self.momentum) * update + self._decayed(m, self.momentum)
        self._store(m, update)
        return update

    def _inverse_root(self, squares: Any, beta: Any, index: int) -> Any:
        """Returns 1 / sqrt(v), or its approximation from row and column means."""
        axes = self.factored[index]

        def averaged(velocity: Any, value: Any) -> Any:
            value = beta * velocity + (1.0 - beta) * value
            self.assign(velocity, value)
            return value

        if axes is None:
            (v,) = self.velocities[index]
            return ops.rsqrt(averaged(v, squares))
        of_rows, of_columns = self.velocities[index]
        largest, second = axes
        rows = averaged(of_rows, ops.mean(squares, axis=largest))
        columns = averaged(of_columns, ops.mean(squares, axis=second))
        left = second - 1 if second > largest else second
        rows = ops.rsqrt(rows / ops.mean(rows, axis=left, keepdims=True))
        return ops.expand_dims(rows, largest) * ops.expand_dims(
            ops.rsqrt(columns), second
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "beta2_cap": self.beta2_cap,
            "views": {
                path: [count, list(shape)]
                for path, (count, shape) in self.views.items()
            },
        }


def factored_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns the largest and second largest axis of [count, *shape], or None if small.

    If sides are equal, the later one counts as larger, as in optax's sort.
    """
    if len(shape) < 2:
        return None
    second, largest = np.argsort(shape, kind="stable")[-2:]
    if shape[second] < 32:
        return None
    return int(largest) + 1, int(second) + 1


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def checkpoint_views(model: keras.Model) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Returns the layout of the official checkpoints, for big_vision's `Adafactor`.

    Args:
        model: a model of this library.

    Returns:
        For each variable with a different layout in the checkpoints, by path: the
        number of tensors along its last axis, and the shape of each.
    """
    return {
        entry.variable.path: (len(entry.names), entry.shape)
        for entry in canonical.entries(model)
        if isinstance(entry.variable, keras.Variable)  # Not a sum of kernel and LoRA.
        and entry.shape != tuple(entry.variable.shape)
    }


def schedule(
    recipe: Recipe, base_lr: float
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns the recipe's schedule for one of its base rates (Tables 3 and 4).

    Args:
        recipe: a recipe with steps, see `Recipe.for_images`.
        base_lr: one of `recipe.base_lr`.

    Returns:
        A `WarmupDecay`, or a `StaircaseDecay` for BiT's recipe.

    Raises:
        ValueError: if the recipe has epochs instead of steps.
    """
    if recipe.decay == "staircase":
        return StaircaseDecay(base_lr, recipe.staircase)
    return WarmupDecay(base_lr, recipe.steps, recipe.warmup_steps, recipe.decay)


def optimizer(
    recipe: Recipe, base_lr: float, model: keras.Model | None = None
) -> keras.optimizers.Optimizer:
    """Returns the recipe's optimizer for one of its base rates (Tables 3 and 4).

    Args:
        recipe: a recipe with steps, see `Recipe.for_images`.
        base_lr: one of `recipe.base_lr`.
        model: model to train; Adafactor uses the shapes in its official checkpoint.

    Returns:
        A `MomentumSGD`, `DecoupledAdam` or `Adafactor` with the recipe's clipping and
        averaging of weights.

    Raises:
        ValueError: if the recipe has epochs instead of steps.
    """
    rate = schedule(recipe, base_lr)
    shared: dict[str, Any] = {
        "kernel_decay": recipe.weight_decay,
        "layer_decay": recipe.layer_decay,
        "momentum_dtype": recipe.momentum_dtype,
        "global_clipnorm": recipe.clip_norm,
        "use_ema": recipe.ema is not None,
        "ema_momentum": recipe.ema or 0.99,
    }
    if recipe.optimizer == "adam":
        return DecoupledAdam(rate, recipe.beta1, recipe.beta2, **shared)
    if recipe.optimizer == "adafactor":
        views = None if model is None else checkpoint_views(model)
        return Adafactor(rate, recipe.momentum, recipe.beta2, views, **shared)
    return MomentumSGD(rate, recipe.momentum, **shared)
