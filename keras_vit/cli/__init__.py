"""The command line: `keras-vit demo | finetune | transfer | pretrain | ...`."""

import os
import sys
import warnings
from typing import Annotated

import typer

from keras_vit.cli import (
    costing,
    doctor,
    embedding,
    evaluating,
    exporting,
    files,
    inspecting,
    serving,
    subsets,
    training,
    transferring,
    welcome,
)
from keras_vit.cli.shell import app, console, plain_warning, print_error

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
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
) -> None:
    if version:
        from keras_vit._version import __version__

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        console.print(welcome.page())


def main() -> None:
    """Runs the command line; an error is one message, not a traceback."""
    warnings.formatwarning = plain_warning
    try:
        try:
            app(prog_name="keras-vit")
        finally:
            sys.stdout.flush()
    except OSError as error:  # From standard output; commands handle their own.
        with open(os.devnull, "wb") as nowhere:  # Python flushes once more at exit.
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # `keras-vit recipes | head`.
            print_error(error, "keras-vit")
        sys.exit(1)
