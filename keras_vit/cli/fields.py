"""Options from the fields of dataclasses.

A command's parameter can be a group of options: a dataclass of the command line with
annotated fields, or `FieldsOf` a dataclass of the library, which documents its fields.
"""

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol

import typer

MOST_PIXELS = 65_535  # Of each side, as in JPEG.
_NO: dict[str, Any] = {}


class Changes(dict[str, Any]):
    """Fields of a dataclass, by name, with the values of options."""


class _Group(Protocol):
    """A parameter of a command that consists of several options."""

    def parameters(self) -> list[inspect.Parameter]:
        """A parameter for each option."""

    def taken(self, values: dict[str, Any]) -> Any:
        """The command's argument."""


@dataclasses.dataclass(frozen=True)
class _Dataclass:
    """A dataclass of the command line with a field for each option."""

    kind: Any

    def parameters(self) -> list[inspect.Parameter]:
        hints = typing.get_type_hints(self.kind, include_extras=True)
        missing, empty = dataclasses.MISSING, inspect.Parameter.empty
        return [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=empty if field.default is missing else field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(self.kind)
        ]

    def taken(self, values: dict[str, Any]) -> Any:
        return self.kind(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldsOf:
    """Options with the types and the descriptions of a dataclass's fields.

    Attributes:
        kind: the dataclass. The help is the first clause of a field's description.
        names: the option of each field; aliases follow, separated by spaces.
        default: description of the default values.
        defaults: descriptions for single fields.
        limits: by field, `min` and `max` of `typer.Option`.
        types: by field, a type that is narrower than the field's.
    """

    kind: type
    names: Mapping[str, str]
    default: str
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    types: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parameters(self) -> list[inspect.Parameter]:
        """A parameter for each field; None, False or [] if it is not given."""
        hints = _hints(self.kind)
        return [
            self._parameter(name, self.types.get(name, hints[name]))
            for name in self.names
        ]

    def _parameter(self, name: str, hint: Any) -> inspect.Parameter:
        help_text = meanings(self.kind).get(name, "")
        hint, is_flag = _plain(hint), hint is bool
        if hint is str:
            help_text += ", 384 or 384x512"
        if not is_flag:
            help_text += f" [default: {self.defaults.get(name, self.default)}]"
            hint |= None
        option = typer.Option(
            *self.names[name].split(),
            help=f"{help_text}.",
            **self.limits.get(name, _NO),
        )
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if is_flag else None,
            annotation=Annotated[hint, option],
        )

    def taken(self, values: dict[str, Any]) -> Changes:
        """The fields whose options were given."""
        given = {
            name: value
            for name, value in values.items()
            if value is not None and value is not False and value != []
        }
        if (text := given.get("image_size")) is not None:
            given["image_size"] = pixels(text)
        return Changes(given)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return typing.get_type_hints(kind)


def _plain(hint: Any) -> Any:
    """The type of an option: (H, W) as text, other tuples as a list."""
    if isinstance(hint, types.UnionType):
        (hint,) = (at for at in typing.get_args(hint) if at is not type(None))
    if typing.get_origin(hint) is tuple:
        return list[float] if typing.get_args(hint)[1] is Ellipsis else str
    return hint


@functools.cache
def meanings(kind: type) -> dict[str, str]:
    """The first clause of each field's description in the docstring."""
    listed = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    listed = listed.partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): ((?:.+\n?)(?:     .+\n?)*)", listed, re.M)
    clauses = {}
    for name, text in entries:
        first = re.split(r"[.:;](?:\s|$)", " ".join(text.split()))[0]
        first = first.replace("`", "").removeprefix("whether to ")
        clauses[name] = first[:1].upper() + first[1:]
    return clauses


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's groups by the parameters of their options, for typer."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, _Group] = {}
    for name, hint in hints.items():
        if dataclasses.is_dataclass(hint):
            groups[name] = _Dataclass(hint)
        elif extra := [at for at in typing.get_args(hint) if isinstance(at, FieldsOf)]:
            groups[name] = extra[0]
    parameters: list[inspect.Parameter] = []
    members: dict[str, list[str]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            more = groups[name].parameters()
            members[name] = [at.name for at in more]
            parameters += more
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, fields in members.items():
            given = {field: values.pop(field) for field in fields}
            values[name] = groups[name].taken(given)
        command(**values)

    named: Any = run
    named.__signature__ = inspect.Signature(parameters)
    named.__annotations__ = {at.name: at.annotation for at in parameters}
    del named.__wrapped__  # Otherwise typer reads the parameters of `command`.
    return run


def given(group: Any = None, /, **options: Any) -> dict[str, Any]:
    """The options of a group, or named ones, that are not None."""
    every = options if group is None else vars(group) | options
    return {name: value for name, value in every.items() if value is not None}


def pixels(text: str | None, option: str = "--image-size") -> tuple[int, int] | None:
    """'384' or '384x512' as (H, W)."""
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(map(_is_side, sides)):
        raise ValueError(
            "Expected pixels as 384 or 384x512 (height x width), each from 1 to "
            f"{MOST_PIXELS}. Received: {option} {text}"
        )
    return int(sides[0]), int(sides[-1])


def _is_side(text: str) -> bool:
    return text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST_PIXELS
