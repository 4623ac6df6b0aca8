"""The paper's evaluation: VTAB-1k (D.10)."""

import importlib
from typing import Any

__all__ = ["vtab"]


def __getattr__(name: str) -> Any:
    """Modules on first use: they import TensorFlow."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
