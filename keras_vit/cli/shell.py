"""What every command prints with, the commands' list, and how a command ends."""

import contextlib
import errno
import importlib
import itertools
import math
import os
import re
import signal
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from typer.core import TyperCommand

from keras_vit.failures import is_out_of_memory
from keras_vit.files import cache_dir, parse_json

# C0 without tab and newline, DEL and C1: a terminal would execute them.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONGEST = 4096  # Characters of a value, as Linux's PATH_MAX.
_LARGEST = 2**63 - 1


def visible(text: str) -> str:
    """Text whose control characters are written as escapes (JSON's)."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_format_warning = warnings.formatwarning


def visible_warning(*args: Any, **kwargs: Any) -> str:
    """As `warnings.formatwarning`; warnings name files too."""
    return visible(_format_warning(*args, **kwargs))


class SafeConsole(Console):
    """A console that escapes the control characters of what it prints.

    File names, class names and a server's messages come from others: printed raw, they
    could move the cursor, rename the window or hide a line.
    """

    def render(
        self, renderable: Any, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich's; styles are applied after it."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


console = SafeConsole(markup=False, highlight=False, soft_wrap=True)
errors = SafeConsole(stderr=True, style="red", markup=False, soft_wrap=True)


class Command(TyperCommand):
    """A command that imports Keras first; an expected error of it is one message."""

    needs_keras = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Also refuses values that no argument or option of any command can mean."""
        if not ctx.resilient_parsing:
            _refuse_words(ctx, args)
        with _explained(ctx):
            rest = super().parse_args(ctx, self._with_model_first(args))
        for parameter in () if ctx.resilient_parsing else self.params:
            for value in _flat(ctx.params.get(parameter.name or "")):
                if fault := _fault(value):
                    option = max(parameter.opts, key=len)
                    raise typer.BadParameter(fault, ctx=ctx, param_hint=repr(option))
        return rest

    def make_parser(self, ctx: Any) -> Any:
        """As Click's; `keras-vit finetune photos` is `finetune --data photos`."""
        parser: Any = super().make_parser(ctx)
        if (data := self._data_option()) is not None:
            read = parser.parse_args

            def parse_args(args: list[str]) -> Any:
                values, rest, order = read(args)
                if rest and data.name not in values:
                    values[data.name] = rest.pop(0)
                    order.append(data)
                return values, rest, order

            parser.parse_args = parse_args
        return parser

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As Click's, with the data."""
        data = [] if self._data_option() is None else ["[DATA]"]
        return [*super().collect_usage_pieces(ctx), *data]

    def _data_option(self) -> Any:
        """The option --data where it is required and the command has no arguments."""
        if any(at.param_type_name == "argument" for at in self.params):
            return None
        return next(
            (at for at in self.params if at.name == "data" and at.required), None
        )

    def _with_model_first(self, args: list[str]) -> list[str]:
        """`--model MODEL` is the argument MODEL, where a command has one."""
        named = [at.name for at in self.params if at.param_type_name == "argument"]
        options = [word.partition("=")[0] for word in args]
        if named[:1] != ["model"] or "--model" not in options:
            return args
        place = options.index("--model")
        if "=" in args[place]:
            return [args[place].partition("=")[2], *args[:place], *args[place + 1 :]]
        return [*args[place + 1 : place + 2], *args[:place], *args[place + 2 :]]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """As Click's, with help that fits one line: fish reads a line as an offer."""
        offers = super().shell_complete(ctx, incomplete)
        for offer in offers:
            if offer.help:
                offer.help = textwrap.shorten(offer.help, 76, placeholder=" ...")
        return offers

    def invoke(self, ctx: Any) -> Any:
        """Runs it."""
        with _explained(ctx):
            if self.needs_keras:
                import_keras()
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # Of `main`.
                signal.signal(signal.SIGINT, signal.default_int_handler)
            return super().invoke(ctx)


class PlainCommand(Command):
    """A command that starts without Keras, whose import takes seconds."""

    needs_keras = False


class Commands(typer.Typer):
    """A `Typer` of `Command`s."""

    def command(
        self, name: str | None = None, *, needs_keras: bool = True, **options: Any
    ) -> Callable[[Any], Any]:
        """Adds a command, as `Typer.command`."""
        kind = Command if needs_keras else PlainCommand
        return super().command(name, cls=kind, **options)


@contextlib.contextmanager
def _explained(ctx: Any) -> Iterator[None]:
    """Prints an expected error of a command as one message.

    Exits with 1, or with the error's own `exit_code`.
    """
    try:
        yield
    except Exception as error:
        if _message(error) is None:
            raise
        _, *words = ctx.command_path.split()
        tell(error, " ".join(["keras-vit", *words]))
        raise typer.Exit(getattr(error, "exit_code", 1)) from error


app = Commands(
    rich_markup_mode=None,
    help="The Vision Transformer paper (arXiv:2010.11929v2) from a shell.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def import_keras() -> None:
    """Imports Keras and registers the classes that saved models need.

    Keras and TensorFlow import the hidden packages where they find them, for functions
    that no command calls. They take 0.4 of the time (`benchmarks/startup.py`).
    """
    unused = {"jax", "matplotlib", "sklearn"} - {_backend()}
    with _without_chatter(), _hidden(unused):
        importlib.import_module("keras_vit._registered")


def import_tensorflow() -> None:
    """Imports TensorFlow without Keras and JAX, which it imports if it finds them."""
    with _without_chatter(), _hidden({"jax", "keras"}):
        importlib.import_module("tensorflow")


def _backend() -> str:
    """The backend that Keras will import, by its rules."""
    if stated := os.environ.get("KERAS_BACKEND"):
        return stated
    stated_by = cache_dir().with_name("keras.json")
    try:
        return str(parse_json(stated_by.read_text())["backend"])
    except (OSError, ValueError, LookupError, TypeError):
        return "tensorflow"


@contextlib.contextmanager
def _hidden(packages: Iterable[str]) -> Iterator[None]:
    """Imports inside do not find these packages, unless they are imported already."""
    absent = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


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


def _refuse_words(ctx: Any, words: list[str]) -> None:
    """Raises for an empty word, as a path the working folder, and for an overlong one.

    Before they are read: a message may repeat what cannot be read.
    """
    for before, word in itertools.pairwise(["", *words]):
        option, equals, value = word.partition("=")
        if option.startswith("--") and equals:
            before, word = option, value
        place = f" after {visible(before)}" if before.startswith("-") else ""
        if not word.strip():
            ctx.fail(f"Expected a value that is not empty. Received: {word!r}{place}")
        if len(word) > _LONGEST:
            ctx.fail(
                f"Expected a value of at most {_LONGEST} characters. Received: "
                f"{len(word)}{place}"
            )


def _flat(value: Any) -> Iterator[Any]:
    """A parameter's value, or the values of one that takes several."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _fault(value: Any) -> str | None:
    """What is wrong with a value, wherever it is given; None if nothing is."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"expected a finite number. Received: {value}."
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"expected a number of at most {_LARGEST}. Received: {value}."
    return None


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
    if helps is None and not re.search(
        r"keras-vit [a-z]|pip install|hf (auth|download)", said
    ):
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
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return (
            "Expected a path with names that the file system can hold (255 bytes "
            f"each). Received: {str(error.filename)[:60]!r}..."
        )
    if isinstance(error, ValueError | OSError | ImportError):
        return said
    if said.startswith("Expected "):  # Of ours.
        return said
    # TensorFlow's of a full disk, and every backend's of memory that is short.
    if "No space left on device" in said:
        return f"Expected room on the disk. Received: {said.splitlines()[0]}"
    name = type(error).__name__
    if is_out_of_memory(f"{name}: {said}"):
        return (
            "Expected the images of a step to fit into memory. Received: "
            f"{(said or name).splitlines()[0][:200]}. Take fewer at once or smaller "
            "ones; `keras-vit costs MODEL --batch N` tells what they need"
        )
    return None


def readable(file: str | Path) -> str:
    """A file's name as text; bytes that are not UTF-8 are escaped."""
    return str(file).encode("utf-8", "backslashreplace").decode("utf-8")


def progress() -> int:
    """Keras's `verbose`: bars for a terminal, a line an epoch for a file."""
    return 1 if sys.stdout.isatty() else 2
