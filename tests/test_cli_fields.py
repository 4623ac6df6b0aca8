"""Options that are derived from the dataclasses they belong to."""

import dataclasses
from typing import Annotated

import pytest
import typer

from keras_vit import cli
from keras_vit.cli import fields, options
from keras_vit.configs import ViTConfig
from keras_vit.recipes import Recipe

pytestmark = pytest.mark.tensorflow_only

GROUPS = {
    name: value.__metadata__[0]
    for name, value in vars(options).items()
    if isinstance(getattr(value, "__metadata__", (None,))[0], fields.FieldsOf)
}


def command(name):
    return typer.main.get_command(cli.app).commands[name]


def read(name, *words):
    """The values that a command would be called with."""
    return command(name).make_context(name, [*words]).params


def test_the_groups():
    assert {group.kind for group in GROUPS.values()} == {Recipe, ViTConfig}


@pytest.mark.parametrize("kind", [Recipe, ViTConfig])
def test_every_field_is_described_by_its_class(kind):
    described = fields.meanings(kind)
    assert described.keys() == {field.name for field in dataclasses.fields(kind)}
    assert all(text and not text.startswith("Likewise") for text in described.values())


@pytest.mark.parametrize("name", GROUPS)
def test_an_option_has_the_fields_description(name):
    group = GROUPS[name]
    found = {at.name: at.annotation.__metadata__[0] for at in group.parameters()}
    assert found.keys() == group.names.keys()
    for field, option in found.items():
        assert option.help.startswith(fields.meanings(group.kind)[field])
        names = [option.default, *option.param_decls]  # The first is an argument.
        assert names == group.names[field].split()


def test_help_is_the_docstrings():
    told = " ".join(
        command("finetune").get_help(typer.Context(command("finetune"))).split()
    )
    assert (
        "--warmup <int range> Updates in which the learning rate rises from 0 " in told
    )
    assert "[default: the recipe's, or that of a weights file]" in told
    assert "--freeze Train only the head." in told


@dataclasses.dataclass
class Example:
    """An example.

    Attributes:
        count: number of things: many; more. And so on.
        share: whether to `share` (arXiv:1234.5678)
            on two lines; None: no.
        rates: of each.
        size: in pixels.
    """

    count: int | None = None
    share: bool = False
    rates: tuple[float, ...] = ()
    size: tuple[int, int] = (1, 1)


def test_a_first_clause():
    assert fields.meanings(Example) == {
        "count": "Number of things",
        "share": "Share (arXiv:1234.5678) on two lines",
        "rates": "Of each",
        "size": "In pixels",
    }


def test_types_and_what_was_given():
    group = fields.FieldsOf(
        kind=Example,
        names={"count": "--number", "share": "--share", "rates": "--rate"},
        default="its own",
    )

    @fields.grouped
    def run(*, group: Annotated[fields.Changes, group]) -> None:
        found.append(group)

    found = []
    app = typer.Typer()
    app.command()(run)
    for words in ([], ["--number", "0", "--share", "--rate", "1", "--rate", "2"]):
        app(words, standalone_mode=False)
    assert found == [{}, {"count": 0, "share": True, "rates": [1.0, 2.0]}]


@pytest.mark.parametrize("name", ["finetune", "transfer", "pretrain", "fewshot"])
def test_the_data_by_position_or_by_name(name):
    by_name = read(name, "--data", "photos", "--image-size", "32")
    assert by_name["data"] == "photos"
    assert read(name, "photos", "--image-size", "32") == by_name
    assert read(name, "--image-size", "32", "photos") == by_name
    for words in (["photos", "more"], ["--data", "photos", "more"], []):
        with pytest.raises(Exception, match=r"unexpected extra argument|Missing"):
            read(name, *words)


def test_only_required_data_has_a_position():
    with pytest.raises(Exception, match="unexpected extra argument"):
        read("evaluate", "photos")
