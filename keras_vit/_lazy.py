"""Imports a package's names on first use (PEP 562): plain data requires no Keras.

A package lists its names three times: in an `if TYPE_CHECKING:` block for type checkers
and editors, in `__all__`, and in the call of `names_of`. `tests/test_public_api.py`
compares the three lists.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from keras_vit.callers import warn


def names_of(
    package: str, **modules: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package.

    Submodules, such as `keras_vit.configs`, are also imported on first use.

    Args:
        package: `__name__` of the package.
        **modules: names of each submodule, separated by spaces.
    """
    modules_by_name = {
        name: module for module, names in modules.items() for name in names.split()
    }

    def __getattr__(name: str) -> Any:
        if name in modules_by_name:
            return getattr(_imported(f"{package}.{modules_by_name[name]}"), name)
        if not name.startswith("_"):
            path = f"{package}.{name}"
            try:
                return _imported(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        namespace = vars(sys.modules[package])
        return sorted({*namespace, *namespace["__all__"]})

    return __getattr__, __dir__


def _imported(path: str) -> ModuleType:
    """Imports one of our modules; adds a remedy to a missing TensorFlow's error."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tensorflow":
            raise
        raise ImportError(
            f"{path} requires TensorFlow, which reads images and builds batches on "
            "every backend. Received: no tensorflow. Run pip install tensorflow-cpu. "
            "Models, layers, weights and attention work without it",
            name=error.name,
        ) from error


def renamed(module: str, **names: str) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` that also accepts the names of 0.1.

    Args:
        module: `__name__` of the module.
        **names: new names by old names.
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name} is now called {names[name]}", DeprecationWarning)
        return getattr(sys.modules[module], names[name])

    return __getattr__
