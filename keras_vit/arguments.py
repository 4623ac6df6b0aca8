"""Validation of arguments by kind; the errors contain the name of the argument.

Every constructor, config and builder uses them. Each returns the value as a plain
Python one, so that configurations contain no lists and no NumPy numbers. Standard
library only.
"""

import difflib
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

LARGEST_INTEGER = 2**31 - 1  # Sides of arrays are 32-bit integers on some backends.
LARGEST_SEED = 2**32 - 1  # JAX's seeds are unsigned.
LARGEST_REAL = 3.4028234663852886e38  # In float32; larger values become infinity.
LEAST_POSITIVE = 1.1754943508222875e-38  # In float32; smaller ones may become zero.

Choice = TypeVar("Choice")
Kind = TypeVar("Kind")


def integer(name: str, value: Any, least: int = 1, most: int = LARGEST_INTEGER) -> int:
    """An integer in `least`..`most`; True and False are not accepted.

    Raises:
        ValueError: if it is not.
    """
    if is_integer(value) and least <= value <= most:
        return int(value)
    words = {0: "an integer, zero or more", 1: "a positive integer"}.get(
        least, f"an integer of {least} or more"
    )
    limit = f", at most {most}" if is_integer(value) and value > most else ""
    raise _refused(name, f"to be {words}{limit}", value)


def counted(count: int, noun: str, plural: str = "s", singular: str = "") -> str:
    """A number and its noun with an ending: "1 file", "2,000 files"."""
    return f"{count:,} {noun}{singular if count == 1 else plural}"


def similar(text: str, known: Iterable[str]) -> list[str]:
    """At most two known names that are similar to a text, in any case."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(text.lower(), by_lower, n=2)
    return [by_lower[name] for name in close]


def did_you_mean(names: Iterable[str]) -> str:
    """A question with a space before it, such as " Did you mean A or B?"; or ""."""
    listed = " or ".join(names)
    return f" Did you mean {listed}?" if listed else ""


def percent(share: float, places: int = 2) -> str:
    """A share in [0, 1] as text: "96.66 %"."""
    return f"{100 * share:.{places}f} %"


def only(function: str, given: Mapping[str, Any], options: type) -> None:
    """Checks the names of arguments that a function unpacks as a `TypedDict`.

    Raises:
        TypeError: for a name that `options` does not have, as in Python.
    """
    for name in given:
        if name not in options.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def is_integer(value: Any) -> bool:
    """Whether a value is a Python or NumPy integer, and not a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def within(value: Any, least: float, most: float) -> bool:
    """Whether a value is a number in a range; False for NaN."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and bool(least <= value <= most)


def real(name: str, value: Any) -> float:
    """A finite number in the range of float32.

    Raises:
        ValueError: if it is not.
    """
    if within(value, -LARGEST_REAL, LARGEST_REAL):
        return float(value)
    raise _refused(name, "to be a finite number", value)


def not_negative(name: str, value: Any) -> float:
    """A number of 0 or more in the range of float32, such as a learning rate.

    Raises:
        ValueError: if it is not.
    """
    if not within(value, 0, LARGEST_REAL):
        raise _refused(name, "to be a finite number, zero or more", value)
    return float(value)


def positive(name: str, value: Any, most: float = LARGEST_REAL) -> float:
    """A number above 0 in the range of float32, such as an epsilon.

    Raises:
        ValueError: if it is not.
    """
    if within(value, LEAST_POSITIVE, most):
        return float(value)
    limit = f"at most {most:g}" if most < LARGEST_REAL else "finite in float32"
    raise _refused(name, f"to be positive and {limit}", value)


def rate(name: str, value: Any) -> float:
    """A drop rate, in [0, 1).

    Raises:
        ValueError: if it is not.
    """
    if within(value, 0, 1) and value < 1:
        return float(value)
    raise _refused(name, "in [0, 1)", value)


def share(name: str, value: Any) -> float:
    """A share of a whole, in [0, 1].

    Raises:
        ValueError: if it is not.
    """
    if within(value, 0, 1):
        return float(value)
    raise _refused(name, "to be a share in [0, 1]", value)


def flag(name: str, value: Any) -> bool:
    """A boolean of Python or NumPy.

    Raises:
        ValueError: if it is neither.
    """
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _refused(name, "to be True or False", value)


def choice(name: str, value: Choice, choices: Iterable[Choice]) -> Choice:
    """One of the given choices.

    Raises:
        ValueError: if it is none of them.
    """
    choices = tuple(choices)
    for known in choices:  # `in` would compare arrays by element.
        if type(value) is type(known) and value == known:
            return known
    words = ", ".join(str(known) for known in choices)
    raise _refused(name, f"to be one of {words}", value)


def sides(
    name: str, value: Any, least: int = 1, letters: str = "(H, W)", opened: bool = False
) -> tuple[Any, ...]:
    """A size or a shape: an integer of `least` or more for each of `letters`.

    Args:
        name: the argument's name.
        value: a tuple or a list.
        least: the smallest valid integer.
        letters: names of the integers, for the error.
        opened: whether the first two may be None (no fixed size).

    Raises:
        ValueError: if it is not.
    """
    count = letters.count(",") + 1
    if not isinstance(value, tuple | list) or len(value) != count:
        raise _refused(name, f"{letters}, {count} integers", value)
    for place, side in enumerate(value):
        if opened and place < 2 and side is None:
            continue
        if not is_integer(side) or not least <= side <= LARGEST_INTEGER:
            words = "positive integers" if least else "integers, zero or more"
            raise _refused(name, f"{letters} to be {words}", value)
    return tuple(side if side is None else int(side) for side in value)


def optional(check: Callable[..., Any], name: str, value: Any, **how: Any) -> Any:
    """None, or the result of `check` for any other value."""
    return None if value is None else check(name, value, **how)


def instance(name: str, value: Any, kind: type[Kind]) -> Kind:
    """An instance of a class.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(value, kind):
        return value
    raise _refused(name, f"to be a {kind.__name__}", value)


def model_name(value: Any) -> Any:
    """A model's name, or None for Keras's next free one.

    Raises:
        ValueError: if it is not a string, or contains "/", which separates layers.
    """
    if value is None or (isinstance(value, str) and "/" not in value):
        return value
    raise _refused("name", 'to be a string without "/"', value)


def shown(value: Any) -> str:
    """A value for an error message: its repr, truncated if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers with more than 4,300 digits.
        text = "an integer with more than 4,300 digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _refused(name: str, what: str, value: Any) -> ValueError:
    return ValueError(f"Expected {name} {what}. Received: {name}={shown(value)}")
