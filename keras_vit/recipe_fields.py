"""The meaning and the valid values of every field of a `Recipe`.

Only `check` validates single fields: `Recipe`, `dataclasses.replace` and the command
line all call it. Standard library only.
"""

import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_vit import arguments


class Field(NamedTuple):
    """A field of a recipe: its meaning, its valid values in words, and a test."""

    meaning: str
    valid: str
    holds: Callable[[Any], bool]
    least: int | None = None  # The minimum, for an integer.


def plain(value: Any) -> Any:
    """A plain value: lists become tuples, NumPy's numbers Python's."""
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return value if not _is_number(value) else float(value)


def check(values: Mapping[str, Any]) -> None:
    """Raises for the first value that its field does not allow.

    Args:
        values: every field of a recipe by name.

    Raises:
        ValueError: with the field, its meaning, its valid values and the value.
    """
    for name, field in FIELDS.items():
        if not field.holds(values[name]):
            raise ValueError(
                f"Expected {name}, {field.meaning}, to be {field.valid}. "
                f"Received: {name}={arguments.shown(values[name])}"
            )


def _is_number(value: Any) -> bool:
    return arguments.within(value, -arguments.LARGEST_REAL, arguments.LARGEST_REAL)


def _is_int(value: Any, least: int) -> bool:
    is_whole = arguments.is_integer(value)
    return is_whole and least <= value <= arguments.LARGEST_INTEGER


def _pair_of_ints(value: Any, least: int) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and all(_is_int(item, least) for item in value)


def _choice(meaning: str, *choices: str) -> Field:
    return Field(
        meaning,
        f"one of {', '.join(choices)}",
        lambda value: isinstance(value, str) and value in choices,
    )


def _whole(meaning: str, least: int) -> Field:
    return Field(
        meaning,
        f"a whole number from {least} to 2**31 - 1",
        lambda value: _is_int(value, least),
        least,
    )


def _flag(meaning: str) -> Field:
    return Field(meaning, "True or False", lambda value: isinstance(value, bool))


def _positive(meaning: str) -> Field:
    return Field(
        meaning,
        "a positive finite number",
        lambda value: _is_number(value) and value > 0,
    )


def _not_negative(meaning: str) -> Field:
    return Field(
        meaning,
        "a finite number of 0 or more",
        lambda value: _is_number(value) and value >= 0,
    )


def _share(meaning: str) -> Field:
    return Field(
        meaning,
        "a number in [0, 1)",
        lambda value: _is_number(value) and 0 <= value < 1,
    )


def _or_none(field: Field) -> Field:
    return field._replace(
        valid=f"{field.valid}, or None",
        holds=lambda value: value is None or field.holds(value),
    )


def _are_rates(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and 0 < len(value) == len(set(map(str, value)))
        and all(_is_number(rate) and rate > 0 for rate in value)
    )


def _are_boundaries(value: Any) -> bool:
    """Whether they are increasing updates, or increasing shares of all updates."""
    if not isinstance(value, tuple):
        return False
    are_updates = all(_is_int(step, 1) for step in value)
    are_shares = all(_is_number(share) and 0 < share < 1 for share in value)
    return (are_updates or are_shares) and sorted(set(value)) == list(value)


FIELDS = {
    "base_lr": Field(
        "the learning rate after the warm-up, or several for a sweep",
        "a tuple of at least one learning rate, each positive, finite and different "
        "from the others, such as (0.01,)",
        _are_rates,
    ),
    "total_steps": _or_none(_whole("the number of updates", 1)),
    "epochs": _or_none(_positive("the passes over the training set")),
    "held_out": _share("the share of the training set that is held out for the sweep"),
    "warmup_steps": _whole("the updates in which the learning rate rises from 0", 0),
    "batch_size": _whole("the images of one update", 1),
    "image_size": Field(
        "the height and width of the images in pixels",
        "two whole numbers of 1 or more, such as (224, 224)",
        lambda value: _pair_of_ints(value, 1),
    ),
    "decay": _choice(
        "the schedule of the learning rate", "cosine", "linear", "staircase"
    ),
    "boundaries": Field(
        "the updates at which a staircase changes the learning rate",
        "a tuple of increasing whole numbers of 1 or more, or of increasing shares of "
        "all updates in (0, 1)",
        _are_boundaries,
    ),
    "optimizer": _choice("the optimizer", "sgd", "adam", "adafactor"),
    "momentum": _share("the momentum of 'sgd' and 'adafactor'"),
    "beta1": _share("the decay of the first moment of 'adam'"),
    "beta2": _share("the decay of the second moment of 'adam' and 'adafactor'"),
    "weight_decay": _not_negative(
        "the weight decay of the kernels, relative to the learning rate"
    ),
    "momentum_dtype": _choice("the dtype of the momentum", "float32", "bfloat16"),
    "layer_decay": _or_none(
        Field(
            "the factor between the learning rates of successive layers",
            "a number above 0 and at most 1",
            lambda value: _is_number(value) and 0 < value <= 1,
        )
    ),
    "clip_norm": _or_none(_positive("the largest global norm of the gradients")),
    "ema": _or_none(
        Field(
            "the factor of Polyak averaging",
            "a number between 0 and 1, both excluded",
            lambda value: _is_number(value) and 0 < value < 1,
        )
    ),
    "sam_rho": _or_none(_positive("the radius of SAM")),
    "accumulation_steps": _whole("the parts into which a batch is split", 1),
    "remat": _flag("whether activations are rematerialized for the gradient"),
    "freeze": _flag("whether only the head is trained"),
    "lora_rank": _or_none(_whole("the rank of LoRA", 1)),
    "loss": _choice("the loss", "softmax", "sigmoid"),
    "label_smoothing": _share("the share of a label that is spread over all classes"),
    "head_bias_init": _or_none(
        Field("the initial bias of the head", "a finite number", _is_number)
    ),
    "dropout_rate": _or_none(_share("the dropout rate of the model")),
    "stochastic_depth": _or_none(
        _share("the probability that the last block is dropped")
    ),
    "augment": _choice(
        "the augmentation of training images",
        *("inception", "crop", "crop_only", "flip", "none"),
    ),
    "resize": _or_none(
        Field(
            "the height and width in pixels before a crop",
            "two whole numbers of 1 or more, such as (160, 160)",
            lambda value: _pair_of_ints(value, 1),
        )
    ),
    "randaugment": _or_none(
        Field(
            "RandAugment's number of layers and their magnitude",
            "a whole number and a finite number, both 0 or more, such as (2, 15)",
            lambda value: (
                isinstance(value, tuple)
                and len(value) == 2
                and _is_int(value[0], 0)
                and _is_number(value[1])
                and value[1] >= 0
            ),
        )
    ),
    "mixup": _not_negative("both parameters of mixup's beta distribution"),
    "cutmix": _not_negative("both parameters of CutMix's beta distribution"),
    "random_erasing": Field(
        "the probability of Random Erasing",
        "a number in [0, 1]",
        lambda value: _is_number(value) and 0 <= value <= 1,
    ),
}
