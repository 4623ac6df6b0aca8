"""Warnings at the line of the user's code that called the library."""

import functools
import sys
import warnings
from types import FrameType

# Frames of these packages lie between the user's code and the library's.
_BETWEEN = frozenset(
    {"keras_vit", "keras", "contextlib", "concurrent", "importlib", "threading"}
)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the nearest caller outside of this library and of Keras.

    The library's own threads have no such caller. Their warnings are at the line that
    calls this function.
    """
    own = sys._getframe(1)
    frame: FrameType | None = own
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    frame = frame or own
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        names.get("__name__", "sys"),
        names.setdefault("__warningregistry__", {}),
    )


@functools.cache
def warn_once(message: str) -> None:
    """Warns, once for each message in a process."""
    warn(message)
