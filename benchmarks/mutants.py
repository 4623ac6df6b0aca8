"""Mutation testing: inserts random single faults and runs the tests of their room.

    python benchmarks/mutants.py                            # 100 faults, all rooms.
    python benchmarks/mutants.py --count 5 --room layers --seed 1
    python benchmarks/mutants.py --list                     # The faults only.
    python benchmarks/mutants.py --survivors FILE           # After adding tests.

A fault changes one expression of a module in a room: a constant, an index, an operator,
a dropped `not`, or two swapped arguments (not of `max` and the like). The tests of the
room then run in a copy of the tree, without the slow ones, until the first failure;
first those whose files name the module (`benchmarks/near.py`). In the room "tables"
only those run, from any folder. A fault has no verdict if the failing test also fails
without it, or if its tests take longer than `--seconds`. The score is caught / (caught
+ survived). It is a lower bound for the whole suite, which has more tests than a room.
Faults that do not change the behavior count as survivors. Prints a table by room and
the survivors; `--json FILE` keeps every verdict, and resumes an interrupted run of the
same faults. `--survivors FILE` judges those again that were not caught; in a changed
file, the nearest place with the same change.
"""

import argparse
import ast
import copy
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import near

ROOMS = {
    room: f"keras_vit/{room}/**/*.py"
    for room in (
        *("layers", "models", "weights", "training"),
        *("data", "evaluation", "inspection", "serving"),
    )
} | {"tables": "keras_vit/[cpr]*.py"}  # configs, paper, recipes, recipe_fields.
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# Messages, types and f-strings (no positions for their parts before Python 3.12).
UNTOUCHED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)
SYMMETRIC = re.compile(r"(\w+\.)*(max|min|maximum|minimum)")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A changed expression: bytes `start` to `end` of a file."""

    room: str
    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"

    def applied(self, source: bytes) -> bytes:
        """Returns the file with the fault; parentheses make it a single operand."""
        return source[: self.start] + f"({self.after})".encode() + source[self.end :]


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yields executed expressions: no annotation, message, docstring or f-string."""
    if isinstance(node, UNTOUCHED):
        return
    skipped = [getattr(node, name, None) for name in ("annotation", "returns")]
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        skipped += node.body
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        if not any(child is one for one in skipped):
            yield from expressions(child)


def variants(node: ast.expr) -> Iterator[ast.expr]:
    """Yields the faults of an expression."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 if value else 1.0)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Compare(ops=[operator]) | ast.BinOp(op=operator):
            if type(operator) in SWAPS:
                yield _with_operator(node, SWAPS[type(operator)]())
        case ast.BoolOp(op=operator):
            yield _with_operator(node, SWAPS[type(operator)]())
        case ast.Call(func=called, args=[first, second, *_]) if not (
            isinstance(first, ast.Starred)
            or isinstance(second, ast.Starred)
            or SYMMETRIC.fullmatch(ast.unparse(called))
        ):
            swapped = copy.deepcopy(node)
            swapped.args[:2] = swapped.args[1::-1]
            yield swapped


def _with_operator(node: ast.expr, operator: ast.AST) -> ast.expr:
    changed = copy.deepcopy(node)
    setattr(
        changed,
        "ops" if isinstance(node, ast.Compare) else "op",
        [operator] if isinstance(node, ast.Compare) else operator,
    )
    return changed


def faults_of(room: str, file: str, text: str) -> Iterator[Fault]:
    """Yields every fault of a file, in order."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in expressions(ast.parse(text)):
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        before = ast.unparse(node)
        for after in map(ast.unparse, variants(node)):
            if after != before:
                yield Fault(
                    room,
                    file,
                    node.lineno,
                    starts[node.lineno - 1] + node.col_offset,
                    starts[end_line - 1] + end_column,
                    before,
                    after,
                )


def chosen(count: int, seed: int, rooms: list[str], root: Path) -> list[Fault]:
    """Chooses `count` faults, equally many per room, reproducibly for a seed."""
    picked = []
    for room in rooms:
        files = sorted(root.glob(ROOMS[room]))
        every = [
            fault
            for path in files
            for fault in faults_of(
                room, path.relative_to(root).as_posix(), path.read_text()
            )
        ]
        random.Random(f"{seed} {room}").shuffle(every)
        picked.append(every)
    turns = [one for turn in zip(*picked, strict=False) for one in turn]
    return turns[:count]


def survivors(verdicts: dict[str, tuple[str, str]], root: Path) -> list[Fault]:
    """Finds the faults that were not caught; prints those that no longer exist."""
    found = []
    for text, (room, said) in verdicts.items():
        if said.startswith("caught"):
            continue
        file, line, change = text.split(":", 2)
        same = [
            fault
            for fault in faults_of(room, file, (root / file).read_text())
            if str(fault).split(":", 2)[2] == change
        ]
        if same:
            found.append(min(same, key=lambda at: abs(at.line - int(line))))
        else:
            print(f"no longer in the code: {text}")
    return found


def tests_for(fault: Fault, arrows: near.Graph) -> list[str]:
    """Returns the tests of the fault's room, those near its module first."""
    module = [near.module_name(Path(fault.file))]
    if fault.room == "tables":
        return near.tests_near(module, arrows, "tests/")
    first = near.tests_near(module, arrows, f"tests/{fault.room}/")
    every = sorted((near.ROOT / "tests" / fault.room).glob("test_*.py"))
    names = [path.relative_to(near.ROOT).as_posix() for path in every]
    return first + [name for name in names if name not in first]


def copied(root: Path, folder: Path) -> None:
    """Copies the tracked and the new files of the tree."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=root, text=True).split("\0"):
        if name and (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)


def run_tests(tree: Path, tests: list[str], seconds: float) -> tuple[int | None, str]:
    """Runs pytest in a copy; returns its status (None if too slow) and its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", f"--basetemp={tree.parent / 'tmp'}", *tests]
    environment = os.environ | {
        "PYTHONPATH": str(tree),  # Before the installed package, also in subprocesses.
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


def verdict(fault: Fault, tests: list[str], tree: Path, seconds: float) -> str:
    """Judges a fault: "caught by TEST", "survived", or "undecided" and why."""
    if not tests:
        return "survived: no test of the room names the module"
    path = tree / fault.file
    sound = path.read_bytes()
    try:
        path.write_bytes(fault.applied(sound))
        status, output = run_tests(tree, tests, seconds)
    finally:
        path.write_bytes(sound)
    if status is None:
        return f"undecided: more than {seconds:.0f} s"
    if status in (0, 5):
        return "survived" if status == 0 else "survived: no tests"
    # An identifier may contain spaces; pytest writes the error after " - ".
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)
    first = failed[0] if failed else tests[0]
    status, output = run_tests(tree, [first], seconds)
    if status not in (0, 5):
        return f"undecided: {first} fails without the fault"
    return f"caught by {first}"


def report(verdicts: dict[str, tuple[str, str]]) -> str:
    """Formats the table by room and the survivors, from (room, verdict) by fault."""
    lines = ["room         caught  survived  undecided"]
    rooms = [*dict.fromkeys(room for room, _ in verdicts.values())]
    kinds = ("caught", "survived", "undecided")
    totals = dict.fromkeys(kinds, 0)
    for room in rooms:
        counts = {
            kind: sum(
                at == room and said.startswith(kind) for at, said in verdicts.values()
            )
            for kind in kinds
        }
        totals = {kind: totals[kind] + counts[kind] for kind in kinds}
        lines.append(
            f"{room:12} {counts['caught']:6}  {counts['survived']:8}  "
            f"{counts['undecided']:9}"
        )
    judged = totals["caught"] + totals["survived"]
    if judged:
        share = totals["caught"] / judged
        lines.append(f"caught: {totals['caught']} of {judged} ({share:.0%})")
    for kind in ("survived", "undecided"):
        lines += [
            f"  {fault} ({said})"
            for fault, (_, said) in verdicts.items()
            if said.startswith(kind)
        ]
    return "\n".join(lines)


def main() -> None:
    """Judges the faults and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="%(default)s")
    parser.add_argument("--seed", type=int, default=0, help="%(default)s")
    parser.add_argument("--room", choices=[*ROOMS], action="append")
    parser.add_argument("--seconds", type=float, default=900, help="%(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--survivors", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the faults only")
    asked = parser.parse_args()
    if asked.survivors:
        faults = survivors(json.loads(asked.survivors.read_text()), near.ROOT)
    else:
        faults = chosen(asked.count, asked.seed, asked.room or [*ROOMS], near.ROOT)
    if asked.list:
        print(*faults, sep="\n")
        return
    verdicts: dict[str, tuple[str, str]] = {}
    if asked.json and asked.json.exists():
        verdicts = json.loads(asked.json.read_text())
    arrows = near.graph()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copied(near.ROOT, tree)
        for number, fault in enumerate(faults, 1):
            if str(fault) in verdicts:
                continue
            began = time.monotonic()
            said = verdict(fault, tests_for(fault, arrows), tree, asked.seconds)
            verdicts[str(fault)] = fault.room, said
            took = time.monotonic() - began
            print(f"{number:4} {took:5.0f} s  {fault}: {said}", flush=True)
            if asked.json:
                new = asked.json.with_suffix(".new")
                new.write_text(json.dumps(verdicts, indent=1))
                new.replace(asked.json)
    print(report({str(fault): verdicts[str(fault)] for fault in faults}))


if __name__ == "__main__":
    main()
