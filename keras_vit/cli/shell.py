"""Console, list of commands and error handling of the command line."""

import contextlib
import errno
import importlib
import itertools
import json
import math
import os
import re
import signal
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from typer.core import TyperCommand, TyperGroup

from keras_vit.failures import is_out_of_memory
from keras_vit.files import cache_dir, parse_json

# C0 without tab and newline, DEL and C1, which a terminal interprets.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONGEST = 4096  # Characters of a value, as Linux's PATH_MAX.
_LARGEST = 2**63 - 1
# Handled outside of commands. Newer versions of typer contain a copy of click, whose
# ClickException is the base of UsageError, that of BadParameter.
_PASSED: Any = (
    typer.BadParameter.__mro__[2],
    typer.Exit,
    typer.Abort,
    BrokenPipeError,
)
UNEXPECTED = 70  # Exit code: EX_SOFTWARE of sysexits.h.
ISSUES = "https://github.com/keras-vit/keras-vit/issues"
SECTIONS = {  # In the order of `keras-vit --help`.
    "Start": "demo doctor",
    "Train": "finetune pretrain recipes launch runs",
    "Predict": "predict embed search",
    "Evaluate": "evaluate compare fewshot transfer vtab data-size",
    "Inspect and plan": "inspect costs paper",
    "Export and serve": "export serve",
    "Data and weights": "data weights convert",
}


def visible(text: str) -> str:
    """Replaces control characters by JSON's escapes."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def plain_warning(message: Warning | str, *_: Any, **__: Any) -> str:
    """A warning on one line, without the source line that raised it."""
    return f"keras-vit: warning: {visible(str(message))}\n"


class SafeConsole(Console):
    """A console that escapes control characters.

    File names, class names and messages of a server are not trusted: their control
    characters could move the cursor, rename the window or hide a line.
    """

    def render(
        self, renderable: Any, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Renders as rich does; styles are applied afterwards."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


console = SafeConsole(markup=False, highlight=False, soft_wrap=True)
errors = SafeConsole(stderr=True, style="red", markup=False, soft_wrap=True)


class Command(TyperCommand):
    """A command that imports Keras first and prints its errors as one message."""

    needs_keras = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Also refuses values that are invalid for every argument and option."""
        if not ctx.resilient_parsing:
            _refuse_words(ctx, args)
        if "--debug" in args[: [*args, "--"].index("--")]:
            args.remove("--debug")
            ctx.find_root().params["debug"] = True
        with _explained(ctx):
            try:
                rest = super().parse_args(ctx, self._with_model_first(args))
            except typer.BadParameter as error:  # typer has pydantic's words.
                error.message = error.message.removeprefix("Value error, ")
                raise
        for parameter in () if ctx.resilient_parsing else self.params:
            for value in _flat(ctx.params.get(parameter.name or "")):
                if fault := _fault(value):
                    option = max(parameter.opts, key=len)
                    raise typer.BadParameter(fault, ctx=ctx, param_hint=repr(option))
        return rest

    def make_parser(self, ctx: Any) -> Any:
        """Also accepts the data as an argument: `keras-vit finetune photos`."""
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
        """Also lists the data as an argument."""
        data = [] if self._data_option() is None else ["[DATA]"]
        return [*super().collect_usage_pieces(ctx), *data]

    def _data_option(self) -> Any:
        """The required option --data of a command without arguments."""
        if any(at.param_type_name == "argument" for at in self.params):
            return None
        return next(
            (at for at in self.params if at.name == "data" and at.required), None
        )

    def _with_model_first(self, args: list[str]) -> list[str]:
        """Moves `--model MODEL` first for a command with the argument MODEL."""
        named = [at.name for at in self.params if at.param_type_name == "argument"]
        options = [word.partition("=")[0] for word in args]
        if named[:1] != ["model"] or "--model" not in options:
            return args
        place = options.index("--model")
        if "=" in args[place]:
            return [args[place].partition("=")[2], *args[:place], *args[place + 1 :]]
        return [*args[place + 1 : place + 2], *args[:place], *args[place + 2 :]]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Shortens the help to one line: fish reads each line as an offer."""
        offers = super().shell_complete(ctx, incomplete)
        for offer in offers:
            if offer.help:
                offer.help = textwrap.shorten(offer.help, 76, placeholder=" ...")
        return offers

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        with _explained(ctx):
            if self.needs_keras:
                import_keras()
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # Set by `main`.
                signal.signal(signal.SIGINT, signal.default_int_handler)
            console.stderr = bool(ctx.params.get("as_json"))
            try:
                return super().invoke(ctx)
            finally:
                console.stderr = False


class PlainCommand(Command):
    """A command that starts without importing Keras, which takes seconds."""

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
    """Prints an error of a command as one message; with --debug raises it.

    Exits with 1 or with the error's own `exit_code`, and with 70 after an unexpected
    error.
    """
    try:
        yield
    except _PASSED:
        raise
    except Exception as error:
        if ctx.find_root().params.get("debug"):
            raise
        words = ["keras-vit", *ctx.command_path.split()[1:]]
        if _message(error) is None:
            errors.print(_unexpected(error, words))
            raise typer.Exit(UNEXPECTED) from error
        print_error(error, " ".join(words))
        raise typer.Exit(getattr(error, "exit_code", 1)) from error


def _unexpected(error: Exception, words: list[str]) -> str:
    """The message for an error that is probably a defect of this library."""
    *_, last = traceback.extract_tb(error.__traceback__)
    place = f"{Path(last.filename).name}, line {last.lineno}"
    return (
        f"keras-vit: unexpected {type(error).__name__} in {place}: {error}. Please "
        f"report it at {ISSUES} with the output of: {words[0]} --debug "
        f"{' '.join([*words[1:], '...'])}"
    )


class Sections(TyperGroup):
    """The commands of `keras-vit --help` in sections."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Prints each section of `SECTIONS`."""
        longest = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            rows = [
                (f"{name:{longest}}", self.commands[name].get_short_help_str(60))
                for name in names.split()
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


app = Commands(
    cls=Sections,
    rich_markup_mode=None,
    help="The Vision Transformer paper (arXiv:2010.11929v2) from a shell.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def import_keras() -> None:
    """Imports Keras and registers the classes that saved models need.

    Keras and TensorFlow also import the hidden packages if they are installed, for
    functions that no command calls: 0.4 of the time (`benchmarks/startup.py`).
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
    """Removes the log lines that TF_CPP_MIN_LOG_LEVEL disables.

    TensorFlow prints them until its logging is set up, late in its import
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
    """Raises for an empty word, which as a path is the working folder, or a long one.

    This comes before parsing, whose messages repeat the word.
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
    """The reason why a value is invalid for every option; None if it is valid."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"expected a finite number. Received: {value}."
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"expected a number of at most {_LARGEST}. Received: {value}."
    return None


@contextlib.contextmanager
def helped_by(command: str) -> Iterator[None]:
    """Adds the command that helps to an error inside."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        error.add_note(command)
        raise


def print_error(error: Exception, command: str) -> None:
    """Prints an error and, if its message names no command, the one that helps."""
    message = str(_message(error))
    notes = getattr(error, "__notes__", ())
    helps = next((note for note in notes if note.startswith("keras-vit ")), None)
    if isinstance(error, ImportError):
        helps = "keras-vit doctor"
    if helps is None and type(error).__name__ == "DownloadError":
        helps = "keras-vit weights fetch --help"
    if helps is None and not re.search(
        r"keras-vit [a-z]|pip install|hf (auth|download)", message
    ):
        helps = f"{command} --help"
    if helps is not None:
        end = "\n" if "\n" in message else " " if message.endswith("?") else ". "
        message = f"{message.rstrip('.')}{end}Help: {helps}"
    errors.print(f"keras-vit: {message}")


def _message(error: Exception) -> str | None:
    """The message of an error that users can act on; None for other errors."""
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return (
            "Expected a path with names that the file system can hold (255 bytes "
            f"each). Received: {str(error.filename)[:60]!r}..."
        )
    if isinstance(error, ValueError | OSError | ImportError):
        return text
    if text.startswith("Expected "):  # Raised by this library.
        return text
    if "No space left on device" in text:  # TensorFlow's error is no OSError.
        return f"The disk is full: {text.splitlines()[0]}. Free some space"
    name = type(error).__name__
    if is_out_of_memory(f"{name}: {text}"):
        return (
            "The images of a step do not fit into memory: "
            f"{(text or name).splitlines()[0][:200]}. Use a smaller batch or smaller "
            "images; `keras-vit costs MODEL --batch N` prints the memory that they need"
        )
    return None


def print_json(value: Any, indent: int | None = 2) -> None:
    """Prints JSON on standard output; control characters are escapes."""
    print(visible(json.dumps(value, indent=indent, ensure_ascii=False)))


def readable(file: str | Path) -> str:
    """The name of a file as text; bytes that are not UTF-8 are escaped."""
    return str(file).encode("utf-8", "backslashreplace").decode("utf-8")


def progress() -> int:
    """`verbose` of `fit`: a line in place on a terminal, else one per evaluation."""
    return 1 if sys.stdout.isatty() else 2
