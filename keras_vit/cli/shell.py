"""What every command prints with, and the commands' list."""

import sys
from pathlib import Path

import typer
from rich.console import Console

app = typer.Typer(
    rich_markup_mode=None,
    help="The Vision Transformer paper (arXiv:2010.11929v2) from a shell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console(markup=False, highlight=False, soft_wrap=True)
errors = Console(stderr=True, style="red", markup=False, soft_wrap=True)


def printable(file: Path) -> str:
    """A file's name; what is no text in it is escaped, as Python does on stderr."""
    return str(file).encode("utf-8", "backslashreplace").decode("utf-8")


def progress() -> int:
    """Keras's `verbose`: bars for a terminal, a line an epoch for a file."""
    return 1 if sys.stdout.isatty() else 2
