"""What mkdocs.yml asks for beside plugins: pages from outside docs/, links, `--help`.

On GitHub a page links files of the repository. Here a link to what is a page becomes
one to that page, and any other one to the repository; a public name, one to its place
in the reference.
"""

import functools
import importlib
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

import keras_vit
from keras_vit.cli import app

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changes.md",
}
MODULES = ("", ".layers", ".models", ".weights", ".configs", ".recipes", ".data")
MODULES += (".data.pipelines", ".data.preprocessing", ".data.augmentation")
MODULES += (".data.vtab", ".data.packing", ".training", ".training.optim")
MODULES += (".training.resume", ".self_supervision", ".evaluation")
MODULES += (".evaluation.vtab", ".evaluation.comparison", ".inspection")
MODULES += (".inspection.plots", ".inspection.planning", ".inspection.speed")
MODULES += (".serving", ".paper")
SHOWN = re.compile(r"^::: ([\w.]+)$", re.M)
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
NAMED = re.compile(r"(?<![\[`])`(keras_vit(?:\.\w+)+)`(?![\]`])")
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that lie elsewhere, so that they are written once."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Links as they are right in the site; what the reference's pages leave out."""
    place = page.file.src_uri
    source = {page: source for source, page in OUTSIDE.items()}.get(
        place, f"docs/{place}"
    )

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if not (ROOT / target).exists():
            return link[0]  # Strict mode says that it is nowhere.
        here = OUTSIDE.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(here) is None:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return (
                f"{link[1]}{config.extra['repository']}/{kind}/main/{target}{link[3]}"
            )
        here = posixpath.relpath(here, posixpath.dirname(place) or ".")
        return f"{link[1]}{here}{link[3]}"

    if place == "reference/command-line.md":
        markdown += "\n".join(_help(typer.main.get_command(app), "keras-vit"))
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
    """Names that reading finds nowhere: builders, what comes on first use."""

    def on_package(
        self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any
    ) -> None:
        if pkg.name != "keras_vit":
            return
        inspected = griffe.inspect("applications", parent=pkg)
        for name in keras_vit.__all__:
            if keras_vit.VARIANTS.get(name) and name in inspected.members:
                pkg["applications"].set_member(name, inspected[name])
        for module in ("keras_vit.training", "keras_vit.evaluation"):
            public = importlib.import_module(module)
            here = loader.modules_collection[module]
            for name in public.__all__:
                value = getattr(public, name)
                if name not in here.members:
                    path = f"{value.__module__}.{value.__qualname__}"
                    here.set_member(name, griffe.Alias(name, path, parent=here))
