"""What arguments may be: a function for each kind, whose errors name the argument.

Every constructor, config and builder validates by these. Each returns the value as a
plain Python one, so that NumPy's numbers and lists do not reach configurations.
Standard library only.
"""

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

LARGEST_INTEGER = 2**31 - 1  # Sides of arrays are 32-bit integers on some backends.
LARGEST_SEED = 2**32 - 1  # JAX's are unsigned.
LARGEST_REAL = 3.4028234663852886e38  # Of float32; beyond it is infinity.
LEAST_POSITIVE = 1.1754943508222875e-38  # Of float32; below it may be rounded to zero.

Choice = TypeVar("Choice")
Kind = TypeVar("Kind")


def integer(name: str, value: Any, least: int = 1, most: int = LARGEST_INTEGER) -> int:
    """An integer in `least`..`most`; True and False are none.

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


def only(function: str, given: Mapping[str, Any], options: type) -> None:
    """Checks the names of arguments that a function unpacks as a `TypedDict`.

    Raises:
        TypeError: as Python does, for a name that `options` does not have.
    """
    for name in given:
        if name not in options.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, Python's or NumPy's, and not a truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def within(value: Any, least: float, most: float) -> bool:
    """Whether a value is a number in a range, which NaN never is."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and bool(least <= value <= most)


def real(name: str, value: Any) -> float:
    """A finite number that float32 can hold.

    Raises:
        ValueError: if it is not.
    """
    if within(value, -LARGEST_REAL, LARGEST_REAL):
        return float(value)
    raise _refused(name, "to be a finite number", value)


def not_negative(name: str, value: Any) -> float:
    """A number of 0 or more that float32 can hold, such as a learning rate.

    Raises:
        ValueError: if it is not.
    """
    if not within(value, 0, LARGEST_REAL):
        raise _refused(name, "to be a finite number, zero or more", value)
    return float(value)


def positive(name: str, value: Any, most: float = LARGEST_REAL) -> float:
    """A number above 0 that float32 can hold, such as what is added to a variance.

    Raises:
        ValueError: if it is not.
    """
    if within(value, LEAST_POSITIVE, most):
        return float(value)
    limit = f"at most {most:g}" if most < LARGEST_REAL else "finite in float32"
    raise _refused(name, f"to be positive and {limit}", value)


def rate(name: str, value: Any) -> float:
    """The share of what is dropped, in [0, 1).

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
    """True or False, Python's or NumPy's.

    Raises:
        ValueError: if it is neither.
    """
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _refused(name, "to be True or False", value)


def choice(name: str, value: Choice, choices: Iterable[Choice]) -> Choice:
    """One of some words, or None where that is among them.

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
        least: the smallest integer that is allowed.
        letters: what the integers are, in words.
        opened: whether the first two may be None, of no fixed size.

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
    """None, or what `check` makes of another value."""
    return None if value is None else check(name, value, **how)


def instance(name: str, value: Any, kind: type[Kind]) -> Kind:
    """An object of a class.

    Raises:
        ValueError: if it is of another one.
    """
    if isinstance(value, kind):
        return value
    raise _refused(name, f"to be a {kind.__name__}", value)


def shown(value: Any) -> str:
    """A value in an error message: its repr, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits.
        text = "an integer of more than 4,300 digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _refused(name: str, what: str, value: Any) -> ValueError:
    return ValueError(f"Expected {name} {what}. Received: {name}={shown(value)}")
