"""What every command prints with, the commands' list, and how a command ends."""

import contextlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperCommand

console = Console(markup=False, highlight=False, soft_wrap=True)
errors = Console(stderr=True, style="red", markup=False, soft_wrap=True)
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "ResourceExhaustedError")
LIGHT = ("launch", "recipes")  # Run without the package, whose import takes seconds.


class Command(TyperCommand):
    """A command that runs the package first; an expected error of it is one message."""

    def invoke(self, ctx: Any) -> Any:
        """Runs it."""
        try:
            if self.name not in LIGHT:
                run_package()
            return super().invoke(ctx)
        except Exception as error:
            if _message(error) is None:
                raise
            _, *words = ctx.command_path.split()
            tell(error, " ".join(["keras-vit", *words]))
            raise typer.Exit(1) from error


class Commands(typer.Typer):
    """Whose commands are each a `Command`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """As typer's."""
        return super().command(name, cls=Command, **options)


app = Commands(
    rich_markup_mode=None,
    help="The Vision Transformer paper (arXiv:2010.11929v2) from a shell.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run_package() -> None:
    """Runs keras_vit/__init__.py, if `keras_vit_command` has put it off."""
    package = sys.modules["keras_vit"]
    if not hasattr(package, "__version__"):
        with _without_chatter():
            importlib.reload(package)


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Holds back TF_CPP_MIN_LOG_LEVEL's lines, inside.

    TensorFlow itself does not before its logging is set up, in the midst of its import
    (tensorflow#100442).
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0")
    letters = "IWE"[: int(level)] if level.isdecimal() else ""
    if not letters:
        yield
        return
    chatter = re.compile(
        rf"[{letters}]\d{{4}} \d\d:|\d{{4}}-\d\d-\d\d [\d:.]+: [{letters}] |"
        "WARNING: All log messages before absl::InitializeLog".encode()
    )
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not chatter.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def helped_by(command: str) -> Iterator[None]:
    """Names the command that helps with an error inside."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        error.add_note(command)
        raise


def tell(error: Exception, command: str) -> None:
    """Prints an error of a command and, if it names none, the command that helps."""
    said = str(_message(error))
    notes = getattr(error, "__notes__", ())
    helps = next((note for note in notes if note.startswith("keras-vit ")), None)
    if isinstance(error, ImportError):
        helps = "keras-vit doctor"
    if helps is None and type(error).__name__ == "DownloadError":
        helps = "keras-vit weights fetch --help"
    if helps is None and not re.search(r"keras-vit [a-z]|pip install", said):
        helps = f"{command} --help"
    if helps is not None:
        end = "\n" if "\n" in said else ". "
        said = f"{said.rstrip('.')}{end}Help: {helps}"
    errors.print(f"keras-vit: {said}")


def _message(error: Exception) -> str | None:
    """What to say of an error that users can do something about; None of others."""
    said = str(error)
    if isinstance(error, BrokenPipeError):  # Nobody reads any more.
        return None
    if isinstance(error, ValueError | OSError | ImportError):
        return said
    if said.startswith("Expected "):  # Of ours.
        return said
    # TensorFlow's of a full disk, and every backend's of memory that is short.
    if "No space left on device" in said:
        return f"Expected room on the disk. Received: {said.splitlines()[0]}"
    name = type(error).__name__
    if name in _OUT_OF_MEMORY or "RESOURCE_EXHAUSTED" in said:
        return (
            "Expected the images of a step to fit into memory. Received: "
            f"{(said or name).splitlines()[0][:200]}. Take fewer at once or smaller "
            "ones; `keras-vit costs MODEL --batch N` tells what they need"
        )
    return None


def printable(file: Path) -> str:
    """A file's name; what is no text in it is escaped, as Python does on stderr."""
    return str(file).encode("utf-8", "backslashreplace").decode("utf-8")


def progress() -> int:
    """Keras's `verbose`: bars for a terminal, a line an epoch for a file."""
    return 1 if sys.stdout.isatty() else 2
