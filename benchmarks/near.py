"""Runs the tests nearest to a change: those whose files name a changed module.

    python benchmarks/near.py                # Since the branch left main; runs them.
    python benchmarks/near.py --since HEAD   # Only uncommitted changes.
    python benchmarks/near.py --list         # Prints the files only.

A test file names a module if it, or a test helper that it imports, imports the module
or one of its names, also through a package (`from keras_vit.weights import load` names
`weights/checkpoint.py`). If no test file names a module, the tests of the modules that
name it are used. `HOUSE` and changed test files run first, then the others in order of
distance. After `--seconds` no further test is started; the rest is reported as skipped.
Slow tests are left out. `make test` runs everything.
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
PAGES = "tests/test_docs.py"  # Tests for a changed page.
Graph = dict[str, set[str]]


def module_name(path: Path) -> str:
    """Returns the dotted name of a file: `tests/runs.py` -> `tests.runs`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python_files(root: Path) -> dict[str, Path]:
    """Finds every module of the package, the tests and the benchmarks, by its name."""
    paths = [
        path.relative_to(root)
        for folder in ("keras_vit", "tests", "benchmarks", "examples")
        for path in sorted((root / folder).rglob("*.py"))
    ]
    return {module_name(path): path for path in paths}


def dotted_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields names that a file imports, or reads as attributes of `keras_vit`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield from attribute_chain(node)


def attribute_chain(node: ast.Attribute) -> Iterator[str]:
    """Yields `keras_vit.weights.load` as written; nothing for other attributes."""
    parts = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name) and inner.id == "keras_vit":
        yield ".".join([inner.id, *reversed(parts)])


def strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the constant strings of a file, which may contain names of modules."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def exports(
    nodes: Mapping[str, Iterable[ast.AST]], files: Mapping[str, Path]
) -> dict[str, str]:
    """Returns the origins of names in packages, such as `keras_vit.weights.load`."""
    return {
        f"{name}.{alias.asname or alias.name}": f"{node.module}.{alias.name}"
        for name, of_file in nodes.items()
        if files[name].name == "__init__.py"
        for node in of_file
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def graph(root: Path = ROOT) -> Graph:
    """Returns the modules that each module names."""
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
    """Counts steps from test files to the nearest of `targets`, through helpers only.

    A step leads from a file to a module that it names. A file named after a module is 0
    steps away. `tests/conftest.py` is not a helper, because every test uses it.
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
    """Returns the test files of a folder for some modules, nearest first.

    They name one of the modules or are named after one. If there are none, the tests
    for the modules that name them are returned, and so on.
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
    """Returns files that differ from a commit, with untracked, without removed ones."""
    differ = ["git", "diff", "--name-only", "--diff-filter=d", since]
    untracked = ["git", "ls-files", "--others", "--exclude-standard"]
    lines = [
        line
        for command in (differ, untracked)
        for line in subprocess.check_output(command, cwd=root, text=True).splitlines()
    ]
    return [Path(line) for line in lines]


def tests_of(paths: Iterable[Path], arrows: Graph) -> list[str]:
    """Returns test files for changed files of any kind; prints files without any."""
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
    """Returns the commit where this branch left main; HEAD if there is no main."""
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
