"""Scaling of images: (x / 255 - mean) / std, by channel. Standard library only.

`checked` validates the mean and the deviation from all sources: options, run.json,
config.json and the arguments of every public function.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from keras_vit import arguments

Channels: TypeAlias = tuple[float, ...]

HALF: Channels = (0.5, 0.5, 0.5)  # Scales 0..255 to [-1, 1], for the published weights.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # Mean and std of its pixels.


def checked(
    mean: Iterable[float], std: Iterable[float], channels: int | None = None
) -> tuple[Channels, Channels]:
    """A mean and a standard deviation as tuples of Python's floats.

    Args:
        mean: mean by channel, in units of the 0..1 range.
        std: standard deviation by channel, in the same units.
        channels: number of channels of the images; None: not known yet.

    Returns:
        The mean and the deviation, with the given lengths.

    Raises:
        ValueError: unless all are finite numbers, `std` is positive, and there is one
            value for each of `channels` or one for all.
    """
    pair = _floats("mean", mean), _floats("std", std)
    if any(value < arguments.LEAST_POSITIVE for value in pair[1]):  # 0 as a float32.
        raise ValueError(
            "Expected std, which divides each channel, to be positive. Received: "
            f"std={pair[1]}"
        )
    if channels is not None:
        for name, values in zip(("mean", "std"), pair, strict=True):
            per_channel(values, channels, name)
    return pair


def _floats(name: str, values: Any) -> Channels:
    """The values of a mean or a deviation, each a finite number."""
    listed = tuple(values) if _is_sequence(values) else ()
    if not listed or not all(map(_is_finite, listed)):
        raise ValueError(
            f"Expected {name}, in units of the 0..1 range, to be finite numbers, one "
            f"for each channel or one for all, such as (0.5,). Received: "
            f"{name}={arguments.shown(values)}"
        )
    return tuple(map(float, listed))


def _is_sequence(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | dict)


def _is_finite(value: Any) -> bool:
    return arguments.within(value, -1e30, 1e30)


def per_channel(values: Channels, channels: int, name: str = "values") -> Channels:
    """`values` for each channel; one value or three equal ones apply to any number.

    Raises:
        ValueError: if the values are not finite, or of a different number.
    """
    if all(map(_is_finite, values)):
        if len(values) == channels:
            return tuple(values)
        if len(values) in (1, len(HALF)) and len(set(values)) == 1:
            return (values[0],) * channels
    raise ValueError(
        f"Expected one value for each channel in {name}, or one for all, each a finite "
        f"number. Received: {name}={arguments.shown(tuple(values))} for {channels} "
        f"channels"
    )


def value_range(mean: Channels = HALF, std: Channels = HALF) -> tuple[float, float]:
    """The smallest and the largest value that `normalize` can return."""
    channels = max(len(mean), len(std))
    pairs = list(
        zip(per_channel(mean, channels), per_channel(std, channels), strict=True)
    )
    return min(-m / s for m, s in pairs), max((1 - m) / s for m, s in pairs)
