"""Evaluation: how good a model is, as the paper asks it (section 4)."""

import importlib
from typing import Any

_ON_FIRST_USE = {  # Name: its module.
    "Card": "cards",
    "Counts": "metrics",
    "Evaluation": "classification",
    "PerImage": "metrics",
    "Task": "classification",
    "classify": "classification",
    "evaluate_imagenet": "imagenet",
    "task_of": "classification",
}
__all__ = [*_ON_FIRST_USE]


def __getattr__(name: str) -> Any:
    """Names come on first use: they import TensorFlow's data pipelines."""
    if name in _ON_FIRST_USE:
        module = importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
