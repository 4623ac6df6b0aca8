"""How images are scaled: (x / 255 - mean) / std, by channel. Standard library only."""

from typing import TypeAlias

Channels: TypeAlias = tuple[float, ...]

HALF: Channels = (0.5, 0.5, 0.5)  # Scales 0..255 to [-1, 1], as the published weights.


def per_channel(values: Channels, channels: int) -> Channels:
    """`values` for each of `channels`; equal values stretch to any number of them.

    Raises:
        ValueError: if there are neither `channels` values nor one value.
    """
    if len(values) == channels:
        return tuple(values)
    if len(set(values)) == 1:
        return (values[0],) * channels
    raise ValueError(
        "Expected one value for each channel, or one for all. Received: "
        f"{tuple(values)} for {channels} channels"
    )


def value_range(mean: Channels = HALF, std: Channels = HALF) -> tuple[float, float]:
    """The least and the greatest value `normalize` can give."""
    channels = max(len(mean), len(std))
    pairs = list(
        zip(per_channel(mean, channels), per_channel(std, channels), strict=True)
    )
    return min(-m / s for m, s in pairs), max((1 - m) / s for m, s in pairs)
