"""Counts phrases to replace, in the project's prose (CONTRIBUTING.md, Language).

    python benchmarks/prose.py            # A table.
    python benchmarks/prose.py --lines    # Also each place: FILE:LINE: PHRASE.

`make check` fails if a count is above its limit. When you have reduced one, reduce the
limit too. Code, output and identifiers in backquotes are not counted.
"""

import argparse
import ast
import collections
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = {
    "says, tells, told": r"\b(?:says|said|tells|told)\b",
    "what (no question)": r"\bwhat\b(?![^.]*\?)",
    "beside": r"\bbeside\b",
    "alone": r"\balone\b",
    "go on, goes on": r"\bgo(?:es)? on\b",
    "of one's own": r"\bof (?:one's|its|their|your) own\b",
    "argument: of, as of, likewise": r"^ +\**\w+: (?:of|as of|likewise)\b",
    "not in the paper": r"\bnot in the paper\b",
    "whoever, whichever": r"\b(?:whoever|whichever)\b",
    "British spelling": r"\b(?:\w+(?:ali|tili|ndardi|eri|ogni|tomi)s"
    r"(?:ed?|es|ing|ation)|colours?|licences?|centres?|grey|whilst)\b",
}
LIMITS = {  # 225, 871, 90, 110, 62, 82, 282, 51, 8 and 46 before this count.
    "says, tells, told": 2,
    "what (no question)": 32,
    "beside": 0,
    "alone": 1,
    "go on, goes on": 0,
    "of one's own": 1,
    "argument: of, as of, likewise": 0,
    "not in the paper": 3,
    "whoever, whichever": 1,
    "British spelling": 9,
}
Text = tuple[Path, int, str]  # File, line, one line of prose.


def of_markdown(path: Path, text: str, first: int = 1) -> Iterator[Text]:
    """Lines outside of code blocks, without inline code and addresses."""
    is_code = False
    for number, line in enumerate(text.splitlines(), first):
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        elif not is_code:
            yield path, number, re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", line)


def of_notebook(path: Path) -> Iterator[Text]:
    """Markdown cells."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "markdown":
            yield from of_markdown(path, "".join(cell["source"]))


def of_python(path: Path) -> Iterator[Text]:
    """Comments and strings: docstrings, help and messages."""
    source = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield path, token.start[0], re.sub(r"`[^`]*`", " ", token.string)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " not in node.value.strip():
                continue
            for number, line in enumerate(node.value.splitlines(), node.lineno):
                if not line.lstrip().startswith((">>>", "...")):
                    yield path, number, re.sub(r"`[^`]*`", " ", line)


def texts() -> Iterator[Text]:
    """All prose of the project."""
    for folder in ("", "docs/**/", "examples/"):
        for path in ROOT.glob(f"{folder}*.md"):
            yield from of_markdown(path, path.read_text())
    for path in ROOT.glob("examples/*.ipynb"):
        yield from of_notebook(path)
    for path in (*ROOT.glob("keras_vit/**/*.py"), *ROOT.glob("examples/*.py")):
        yield from of_python(path)


def main() -> None:
    """Prints the counts; exits with 1 if one is above its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", action="store_true", help="print each place")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    words = 0
    for path, number, line in texts():
        words += len(line.split())
        for name, pattern in PATTERNS.items():
            for match in re.finditer(pattern, line, re.IGNORECASE):
                counts[name] += 1
                if options.lines:
                    print(f"{path.relative_to(ROOT)}:{number}: {match[0].strip()}")
    above = [name for name in PATTERNS if counts[name] > LIMITS[name]]
    for name in PATTERNS:
        mark = "  <- above the limit" if name in above else ""
        print(f"{name:32}{counts[name]:7}{LIMITS[name]:7}{mark}")
    print(f"{'words':32}{words:7,}")
    if above:
        sys.exit("Use the words of CONTRIBUTING.md, or print the places with --lines")


if __name__ == "__main__":
    main()
