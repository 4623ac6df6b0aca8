"""Evaluation: how good a model is, as the paper asks it (section 4, D.9, D.10)."""

import importlib
from typing import Any

_ON_FIRST_USE = {  # Name: its module.
    "Card": "cards",
    "Counts": "metrics",
    "Evaluation": "classification",
    "Features": "features",
    "FewShot": "few_shot",
    "PerImage": "metrics",
    "Probe": "probes",
    "Task": "classification",
    "backbone": "features",
    "classify": "classification",
    "evaluate_imagenet": "imagenet",
    "extract": "features",
    "fewshot": "few_shot",
    "gather": "features",
    "knn": "probes",
    "linear_probe": "probes",
    "task_of": "classification",
}
_MODULES = ("vtab",)
__all__ = [*_ON_FIRST_USE, *_MODULES]


def __getattr__(name: str) -> Any:
    """Names come on first use: they import TensorFlow's data pipelines."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _ON_FIRST_USE:
        module = importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
