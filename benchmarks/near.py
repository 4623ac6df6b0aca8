"""The tests nearest to what changed: those whose files name a changed module.

    python benchmarks/near.py                # Since the branch left main; runs them.
    python benchmarks/near.py --since HEAD   # What is not committed yet.
    python benchmarks/near.py --list         # Prints the files only.

A test file names a module if it, or a helper of the tests that it imports, imports the
module or one of its names, also through a package (`from keras_vit.weights import load`
names `weights/checkpoint.py`). A module that no test file names has the tests of the
modules that name it. `HOUSE` and changed test files run first, then the
others in the order of their distance. After `--seconds` no further test starts: the
rest is skipped, loudly. Slow tests are left out. `make test` runs everything.
"""

import argparse
import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ("tests/test_house.py", "tests/test_imports.py")
TESTS = "tests/"
PAGES = "tests/test_docs.py"  # For a changed page.
Graph = dict[str, set[str]]


def module_name(path: Path) -> str:
    """The dotted name of a file below the root: `tests/runs.py` -> `tests.runs`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python_files(root: Path) -> dict[str, Path]:
    """Every module of the package, the tests and the benchmarks, by its name."""
    paths = [
        path.relative_to(root)
        for folder in ("keras_vit", "tests", "benchmarks", "examples")
        for path in sorted((root / folder).rglob("*.py"))
    ]
    return {module_name(path): path for path in paths}


def dotted_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that a file imports, or reads as attributes of `keras_vit`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield from attribute_chain(node)


def attribute_chain(node: ast.Attribute) -> Iterator[str]:
    """`keras_vit.weights.load` as written; nothing for attributes of other things."""
    parts = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name) and inner.id == "keras_vit":
        yield ".".join([inner.id, *reversed(parts)])


def strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The constant strings of a file: names of modules may be among them."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def exports(
    nodes: Mapping[str, Iterable[ast.AST]], files: Mapping[str, Path]
) -> dict[str, str]:
    """Where the names of each package come from: `keras_vit.weights.load`."""
    return {
        f"{name}.{alias.asname or alias.name}": f"{node.module}.{alias.name}"
        for name, of_file in nodes.items()
        if files[name].name == "__init__.py"
        for node in of_file
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def graph(root: Path = ROOT) -> Graph:
    """The modules that each module names."""
    files = python_files(root)
    nodes = {
        name: [*ast.walk(ast.parse((root / path).read_text()))]
        for name, path in files.items()
    }
    sources = exports(nodes, files)
    by_string = {
        text: name
        for name, path in files.items()
        for text in (name, name.removeprefix("keras_vit."), path.name, path.stem)
        if "." in text or name.startswith("benchmarks.")
    }

    def module_of(dotted: str) -> str | None:
        while "." in dotted and dotted not in files:
            dotted = sources.get(dotted) or dotted.rpartition(".")[0]
        return dotted if dotted in files else None

    found: Graph = {}
    for name, of_file in nodes.items():
        named = {module_of(dotted) for dotted in dotted_names(of_file)}
        named |= {by_string.get(text) for text in strings(of_file)}
        found[name] = {at for at in named if at} - {name}
    return found


def distances(targets: Iterable[str], arrows: Graph) -> dict[str, int]:
    """Steps from each test file to the nearest of `targets`, through helpers only.

    A step is from a file to a module that it names; a file that is named after a module
    is 0 steps away. `tests/conftest.py` is no helper: every test has it.
    """
    found = dict.fromkeys(targets, 0)
    after = {f"test_{name.rpartition('.')[2]}" for name in found}
    found |= {name: 0 for name in arrows if name.rpartition(".")[2] in after}
    waiting = list(found)
    for near in waiting:
        for name, named in arrows.items():
            if near in named and name not in found and name.startswith("tests."):
                found[name] = found[near] + 1
                if name != "tests.conftest":
                    waiting.append(name)
    return {
        name: steps
        for name, steps in found.items()
        if name.rpartition(".")[2].startswith("test_") and ".interop." not in name
    }


def tests_near(targets: Iterable[str], arrows: Graph, folder: str) -> list[str]:
    """The test files of a folder for some modules, the nearest first.

    They name any of the modules or are named after one. If there are none, those of
    the modules that name them, and so on.
    """
    wanted = set(targets)
    while wanted:
        steps = distances(wanted, arrows)
        ordered = sorted(steps, key=lambda name: (steps[name], len(arrows[name]), name))
        files = [f"{name.replace('.', '/')}.py" for name in ordered]
        if found := [file for file in files if file.startswith(folder)]:
            return found
        wider = {
            name
            for name, named in arrows.items()
            if named & wanted and name.startswith("keras_vit.")
        }
        if wider <= wanted:
            break
        wanted |= wider
    return []


def changed(since: str, root: Path = ROOT) -> list[Path]:
    """Files that differ from a commit, with untracked and without removed ones."""
    differ = ["git", "diff", "--name-only", "--diff-filter=d", since]
    untracked = ["git", "ls-files", "--others", "--exclude-standard"]
    lines = [
        line
        for command in (differ, untracked)
        for line in subprocess.check_output(command, cwd=root, text=True).splitlines()
    ]
    return [Path(line) for line in lines]


def tests_of(paths: Iterable[Path], arrows: Graph) -> list[str]:
    """The test files for changed files of any kind; prints those that have none."""
    chosen = []
    modules = {module_name(path): path for path in paths if path.suffix == ".py"}
    for name, path in modules.items():
        if name in arrows and not tests_near([name], arrows, TESTS):
            print(f"No test file names {path}: `make test` for its tests")
    chosen += tests_near(modules.keys() & arrows.keys(), arrows, TESTS)
    others = [path for path in paths if path.suffix != ".py"]
    for path in others:
        if path.suffix == ".md":
            chosen.append(PAGES)
        else:
            print(f"No test is known for {path}: `make test` for its tests")
    return list(dict.fromkeys([*HOUSE, *chosen]))


def branch_point(root: Path = ROOT) -> str:
    """The commit at which this branch left main; HEAD where there is no main."""
    for main_branch in ("main", "origin/main"):
        found = subprocess.run(
            ["git", "merge-base", "HEAD", main_branch],
            cwd=root,
            capture_output=True,
            text=True,
        )
        if found.returncode == 0:
            return found.stdout.strip()
    return "HEAD"


def main() -> None:
    """Chooses the tests and runs them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--since", metavar="COMMIT", help="default: the branch point")
    parser.add_argument("--seconds", type=float, default=75, help="%(default)s")
    parser.add_argument("--list", action="store_true", help="print the files only")
    parser.add_argument("options", nargs="*", help="of pytest, after --")
    asked = parser.parse_args()
    paths = changed(asked.since or branch_point())
    chosen = tests_of(paths, graph())
    print(f"{len(paths)} changed files, {len(chosen)} test files: {' '.join(chosen)}")
    if asked.list:
        return
    options = ["-q", "-m", "not slow", f"--rootdir={ROOT}", *asked.options]
    os.environ["KERAS_VIT_TESTS_UNTIL"] = str(time.time() + asked.seconds)
    sys.exit(pytest.main([*options, *chosen]))


if __name__ == "__main__":
    main()
