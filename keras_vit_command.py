"""`keras-vit`, begun outside the package, whose import takes TensorFlow's seconds.

Help, completion, usage errors and `keras-vit` alone need `keras_vit.cli` only, so the
package is there without having run until a command does (`cli.shell.Command`).
"""

import importlib.util
import os
import sys


def main() -> None:
    """Runs the command line."""
    # TensorFlow's C++ tells of processors, and calls a GPU that is not there an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    put_off("keras_vit")
    try:
        from keras_vit.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


def put_off(name: str) -> None:
    """Lets the modules of a package be imported without running its `__init__`."""
    spec = importlib.util.find_spec(name)
    assert spec is not None  # noqa: S101
    sys.modules.setdefault(name, importlib.util.module_from_spec(spec))


if __name__ == "__main__":
    main()
