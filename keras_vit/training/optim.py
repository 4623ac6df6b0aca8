"""The schedules and the optimizer of the official fine-tuning code (B.1.1)."""

import math
from typing import Any, Literal

import keras
from keras import ops

from keras_vit.recipes import Recipe

LINEAR_END = 1e-5  # vit_jax/utils.py: where the linear decay stops.

register = keras.saving.register_keras_serializable(package="keras_vit")


@register
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then cosine or linear decay, as vit_jax/utils.py.

    progress = clip((step - warmup) / (total - warmup), 0, 1), and the decayed rate is
    multiplied by min(1, step / warmup). Steps count from 0: with a warm-up the first
    update changes nothing.

    Args:
        base_lr: the rate after the warm-up.
        total_steps: where the decay ends, at 0 (cosine) or 1e-5 (linear).
        warmup_steps: length of the warm-up; 0 for none.
        decay: "cosine" or "linear".
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
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "Expected 0 <= warmup_steps < total_steps. Received: "
                f"warmup_steps={warmup_steps}, total_steps={total_steps}"
            )
        self.base_lr = base_lr
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.decay = decay

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
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
class MomentumSGD(keras.optimizers.Optimizer):
    """SGD with momentum as optax and torch compute it.

    m <- g + momentum * m;  w <- w - lr * m

    `keras.optimizers.SGD` keeps lr inside the momentum (m <- momentum * m - lr * g),
    which is another path whenever lr changes, as it does at every step of a schedule.

    Args:
        learning_rate: a number or a schedule.
        momentum: in [0, 1).
        **kwargs: of `keras.optimizers.Optimizer`: `global_clipnorm`, `use_ema`, ...
    """

    def __init__(
        self,
        learning_rate: Any = 0.03,
        momentum: float = 0.9,
        name: str = "momentum_sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momentums = [
            self.add_variable_from_reference(variable, name="momentum")
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        m = self.momentums[self._get_variable_index(variable)]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign(m, gradient + self.momentum * m)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * m)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum}


def optimizer(recipe: Recipe, base_lr: float) -> MomentumSGD:
    """The recipe's optimizer at one of its learning rates."""
    return MomentumSGD(
        WarmupDecay(base_lr, recipe.total_steps, recipe.warmup_steps, recipe.decay),
        recipe.momentum,
        global_clipnorm=recipe.clip_norm,
        use_ema=recipe.ema is not None,
        ema_momentum=recipe.ema or 0.99,
    )
