"""The command line: `keras-vit demo | finetune | transfer | pretrain | ...`."""

import sys
from typing import Annotated

import typer

from keras_vit.cli.shell import app, errors

# In the order of `keras-vit --help`.
# isort: off
from keras_vit.cli import training, evaluating, transferring, inspecting, costing
from keras_vit.cli import exporting, serving, machine, files
# isort: on

__all__ = [
    "costing",
    "evaluating",
    "exporting",
    "files",
    "inspecting",
    "machine",
    "main",
    "serving",
    "training",
    "transferring",
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.")
    ] = False,
) -> None:
    if version:
        from keras_vit._version import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Runs the command line; an expected error is one message, not a traceback."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        errors.print(f"keras-vit: {error}")
        sys.exit(1)
