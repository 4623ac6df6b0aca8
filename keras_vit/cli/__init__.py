"""The command line: `keras-vit demo | finetune | transfer | pretrain | ...`."""

import os
import sys
import warnings
from typing import Annotated

import typer

from keras_vit.cli.shell import app, console, tell, visible_warning

# In the order of `keras-vit --help`.
# isort: off
from keras_vit.cli import training, evaluating, transferring, subsets, inspecting
from keras_vit.cli import embedding, costing, exporting, serving, doctor, files, welcome
# isort: on

__all__ = [
    "costing",
    "doctor",
    "embedding",
    "evaluating",
    "exporting",
    "files",
    "inspecting",
    "main",
    "serving",
    "subsets",
    "training",
    "transferring",
    "welcome",
]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.")
    ] = False,
) -> None:
    if version:
        from keras_vit._version import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        console.print(welcome.page())


def main() -> None:
    """Runs the command line; an expected error is one message, not a traceback."""
    warnings.formatwarning = visible_warning
    try:
        try:
            app(prog_name="keras-vit")
        finally:
            sys.stdout.flush()
    except OSError as error:  # Of standard output; a command tells its own.
        with open(os.devnull, "wb") as nowhere:  # What is left would fail once more.
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # As of `keras-vit recipes | head`.
            tell(error, "keras-vit")
        sys.exit(1)
