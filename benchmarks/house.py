"""Code lines by package, import circles, and functions with many parameters.

    python benchmarks/house.py                  # This checkout.
    python benchmarks/house.py --package PATH   # Another copy of keras_vit.

Code lines have a token other than a comment or a docstring. A circle is a set of
modules that import each other, directly or indirectly. Imports inside functions count.
Imports under `if TYPE_CHECKING` do not count, nor does the import of a package that is
implied by the import of one of its modules.
"""

import argparse
import ast
import collections
import io
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

PARAMETERS = 12  # Functions with more are listed.
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Counts lines of Python without docstrings, comments and blank lines."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node) is not None:
            lines -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(lines)


def lines_by_package(package: Path) -> dict[str, int]:
    """Counts code lines of each folder of `package` and of the modules next to them."""
    counts: dict[str, int] = collections.Counter()
    for path in package.rglob("*.py"):
        counts[path.relative_to(package).parts[0]] += code_lines(path.read_text())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def modules(package: Path) -> dict[str, ast.Module]:
    """Parses every module of `package`, by its dotted name."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def imported(node: ast.AST) -> Iterator[str]:
    """Yields dotted names in the import statements below `node`."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for other in node.orelse:
            yield from imported(other)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def arrows(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Returns for each module the modules among `trees` that it imports."""
    found = {}
    for name, tree in trees.items():
        targets = set()
        for dotted in imported(tree):
            module = dotted if dotted in trees else dotted.rpartition(".")[0]
            targets |= {module} & (trees.keys() - {name})
        found[name] = targets
    return found


def circles(package: Path) -> list[list[str]]:
    """Returns sets of modules of `package` that import each other, largest first."""
    found = arrows(modules(package))
    reached = {name: _reached(name, found) for name in found}
    rings = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in found
    }
    return sorted(
        ([*ring] for ring in rings if ring), key=lambda ring: (-len(ring), ring)
    )


def _reached(start: str, found: Mapping[str, set[str]]) -> set[str]:
    """Returns the modules that `start` imports, with `start` if in a circle."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = found[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Returns the names of a function's parameters, without `self` and `cls`."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    every += [one for one in (given.vararg, given.kwarg) if one is not None]
    return [one.arg for one in every if one.arg not in ("self", "cls")]


def long_signatures(package: Path, most: int = PARAMETERS) -> list[tuple[int, str]]:
    """Returns functions with more than `most` parameters: (number, location)."""
    found = [
        (len(parameters(node)), f"{name}:{node.lineno} {node.name}")
        for name, tree in modules(package).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len(parameters(node)) > most
    ]
    return sorted(found, key=lambda one: (-one[0], one[1]))


def main() -> None:
    """Prints code lines, circles and long signatures."""
    here = Path(__file__).resolve().parents[1] / "keras_vit"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--package", type=Path, default=here, metavar="PATH")
    package = parser.parse_args().package.resolve()

    counts = lines_by_package(package)
    for name, lines in counts.items():
        print(f"{lines:7,}  {name}")
    print(f"{sum(counts.values()):7,}  lines of code")
    assets = [p for s in ("html", "css", "js") for p in package.rglob(f"*.{s}")]
    held = sum(
        bool(line.strip()) for p in assets for line in p.read_text().splitlines()
    )
    print(f"{held:7,}  lines of HTML, CSS and JavaScript")

    rings = circles(package)
    print(f"\n{len(rings)} import circles")
    for ring in rings:
        print(f"  {len(ring)}: {', '.join(ring)}")

    signatures = long_signatures(package)
    print(f"\n{len(signatures)} functions with more than {PARAMETERS} parameters")
    for count, where in signatures:
        print(f"  {count}: {where}")


if __name__ == "__main__":
    main()
