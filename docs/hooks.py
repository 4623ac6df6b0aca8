"""Hooks of mkdocs: pages from outside docs/, links, reference entries and `--help`.

On GitHub a page links files of the repository. In the site a link to a page's file
leads to that page and any other one to the repository. Public names link to the
reference. Each notebook of examples/ is a page with its outputs.
"""

import dataclasses
import functools
import importlib
import inspect
import os
import posixpath
import re
import types
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert.exporters import MarkdownExporter

import keras_vit
from keras_vit.builder import Builder
from keras_vit.cli import app
from keras_vit.weights import registry

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
NOTEBOOKS = {
    f"examples/{path.name}": f"examples/{path.stem}.md"
    for path in sorted((ROOT / "examples").glob("*.ipynb"))
}
PLACES = OUTSIDE | NOTEBOOKS
MODULES = ("", ".layers", ".models", ".weights", ".configs", ".recipes", ".data")
MODULES += (".data.pipelines", ".data.preprocessing", ".data.augmentation")
MODULES += (".data.vtab", ".data.packing", ".training", ".training.optim")
MODULES += (".training.resume", ".self_supervision", ".evaluation")
MODULES += (".evaluation.vtab", ".evaluation.comparison", ".inspection")
MODULES += (".inspection.plots", ".inspection.planning", ".inspection.speed")
MODULES += (".serving", ".paper", ".manifest", ".training.locking")
MODULES += (".training.certificate", ".training.replaying")
SHOWN = re.compile(r"^::: ([\w.]+)$", re.M)
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
NAMED = re.compile(r"(?<![\[`])`(keras_vit(?:\.\w+)+)`(?![\]`])")
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?\))")
BADGE = re.compile(r"\[!\[(.*?)\]\(\S+?\)\]\((\S+?)\)")
# Printed text without highlighting; nbconvert indents it.
TEMPLATE = """
{%- extends "markdown/index.md.j2" -%}
{%- macro block_of(text) -%}
{{ "\n```text\n" ~ text.rstrip() ~ "\n```\n" }}
{%- endmacro -%}
{%- block stream -%}{{ block_of(output.text) }}{%- endblock -%}
{%- block data_text -%}{{ block_of(output.data["text/plain"]) }}{%- endblock -%}
{%- block data_png -%}
{{ "\n![Output of this cell](" ~ output.metadata.filenames["image/png"] ~ ")\n" }}
{%- endblock -%}
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie elsewhere, so that they are written once."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for source, page in NOTEBOOKS.items():
        text, pictures = _notebook(source, config.extra["repository"])
        files.append(File.generated(config, page, content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"examples/{name}", content=content))
    return files


def _notebook(source: str, repository: str) -> tuple[str, dict[str, bytes]]:
    """A notebook with its outputs as Markdown, and its pictures by relative path."""
    path = ROOT / source
    exporter = MarkdownExporter(raw_template=TEMPLATE)
    resources = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    text, resources = exporter.from_filename(str(path), resources=resources)
    here = f"{repository}/blob/main/"
    badge = rf"[\1](\2) · [Notebook on GitHub]({here}{source})"
    # Absolute in the notebook, because Colab knows no other files.
    links = text.replace(f"]({here}", "](../")
    return BADGE.sub(badge, links, count=1), resources["outputs"]


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Links as they are right in the site; what the reference's pages leave out."""
    place = page.file.src_uri
    source = {page: source for source, page in PLACES.items()}.get(
        place, f"docs/{place}"
    )

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if not (ROOT / target).exists():
            return link[0]  # Strict mode says that it is nowhere.
        here = PLACES.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(here) is None:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return (
                f"{link[1]}{config.extra['repository']}/{kind}/main/{target}{link[3]}"
            )
        here = posixpath.relpath(here, posixpath.dirname(place) or ".")
        return f"{link[1]}{here}{link[3]}"

    if place == "reference/command-line.md":
        markdown += "\n".join(_help(typer.main.get_command(app), "keras-vit"))
    if place == "reference/models.md":
        table = "\n".join(_variants(frozenset(SHOWN.findall(markdown))))
        markdown = markdown.replace("<!-- table of builders -->", table)
    markdown = SHOWN.sub(_with_other_names, markdown)

    def referred(name: re.Match[str]) -> str:
        return f"[{name[0]}][{name[1]}]" if name[1] in public() else name[0]

    return "".join(
        part if part.startswith("```") else NAMED.sub(referred, LINK.sub(moved, part))
        for part in FENCE.split(markdown)
    )


@functools.cache
def public() -> frozenset[str]:
    """Every name that is in the reference, in full."""
    modules = [importlib.import_module(f"keras_vit{name}") for name in MODULES]
    return frozenset(
        f"{module.__name__}.{name}"
        for module in modules
        for name in module.__all__
        if not isinstance(getattr(module, name), types.ModuleType | str)
    )


def _with_other_names(shown: re.Match[str]) -> str:
    """Anchors of a thing's other public names: `keras_vit.vit` is `models.vit.vit`."""
    value = _named(shown[1])
    others = [name for name in public() if name != shown[1] and _named(name) is value]
    return "".join(f"[](){{#{name}}}\n" for name in sorted(others)) + f"\n{shown[0]}"


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _help(command: Any, name: str) -> list[str]:
    """`name --help` of a command and of those in it, as Markdown."""
    context = command.make_context(name, [], resilient_parsing=True)
    context.max_content_width = 88
    level = "#" * (1 + len(name.split()))
    lines = [f"{level} {name}\n", f"```text\n{command.get_help(context)}\n```\n"]
    for word, inner in getattr(command, "commands", {}).items():
        lines += _help(inner, f"{name} {word}")
    return lines


class Builders(griffe.Extension):
    """Documents each builder as the function it is called like.

    The types are those of its class's `__call__` and `options`, which griffe reads; the
    parameters, defaults and docstring are those of the builder itself.
    """

    def on_package(
        self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any
    ) -> None:
        if pkg.name != "keras_vit":
            return
        module = pkg["applications"]
        for name, builder in builders().items():
            call = module[f"{type(builder).__name__}.__call__"]
            stated = {at.name: at.annotation for at in call.parameters}
            options = module[builder.options.__name__].attributes
            stated |= {name: at.annotation for name, at in options.items()}
            parameters = [
                griffe.Parameter(
                    at.name,
                    annotation=stated[at.name],
                    kind=getattr(griffe.ParameterKind, at.kind.name.lower()),
                    default=_default(builder, at.name),
                )
                for at in inspect.signature(builder).parameters.values()
            ]
            function = griffe.Function(
                name,
                parameters=griffe.Parameters(*parameters),
                returns=call.returns,
                lineno=module[name].lineno,
                docstring=griffe.Docstring(builder.__doc__),
            )
            module.set_member(name, function)
            function.docstring.parent = function


def _default(builder: Builder[Any], name: str) -> str | None:
    default = inspect.signature(builder).parameters[name].default
    return None if default is inspect.Parameter.empty else repr(default)


@functools.cache
def builders() -> dict[str, Builder[Any]]:
    """Every public builder by its name, in the order of the tables of `configs`."""
    found = {name: getattr(keras_vit, name, None) for name in keras_vit.VARIANTS}
    return {name: at for name, at in found.items() if isinstance(at, Builder)}


def _variants(shown: frozenset[str]) -> list[str]:
    """The table of builders in Markdown, with an anchor for each that is not shown."""
    lines = [
        "| builder | model | config | default weights | other tags | other defaults |",
        "|---|---|---|---|---|---|",
    ]
    for name, builder in builders().items():
        defaults = {
            at.name: at.default for at in inspect.signature(builder).parameters.values()
        }
        weights = defaults["weights"]
        tags = [tag for tag in registry.tags(builder.variant) if tag != weights]
        usual = {at.name: at.default for at in dataclasses.fields(builder.config)}
        changed = [
            f"`{field}={value!r}`"
            for field, value in defaults.items()
            if field in usual and value != usual[field] and field != "gelu"
        ]
        anchor = "" if f"keras_vit.{name}" in shown else f"[](){{#keras_vit.{name}}}"
        cells = [
            f"{anchor}`{name}`",
            builder.variant,
            _config(builder.config),
            f"`{weights}`" if weights else "none",
            ", ".join(f"`{tag}`" for tag in tags),
            ", ".join(changed),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _config(config: Any) -> str:
    """The words of Table 1, and the units of a ResNet."""
    if config.family in ("BiT", "axial ResNet"):
        return f"units {config.num_layers}, width {config.width}"
    text = (
        f"L {config.num_layers}, D {config.hidden_size}, MLP {config.mlp_dim}, "
        f"k {config.num_heads}, P {config.patch_size}"
    )
    return f"{text}; {_config(config.resnet)}" if config.resnet else text
