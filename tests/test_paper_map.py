"""docs/paper.md: it answers for every part of the paper, by names that exist."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from keras_vit.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper.md").read_text()
# PAPER.md's outline.
SECTIONS = """\
1 Introduction
2 Related work
3 Method
3.1 Vision Transformer
3.2 Fine-tuning and higher resolution
4 Experiments
4.1 Setup
4.2 Comparison to state of the art
4.3 Pre-training data requirements
4.4 Scaling study
4.5 Inspecting Vision Transformer
4.6 Self-supervision
5 Conclusion
A Multihead self-attention
B Experiment details
B.1 Training
B.1.1 Fine-tuning
B.1.2 Self-supervision
C Additional results
D Additional analyses
D.1 SGD vs Adam for ResNets
D.2 Transformer shape
D.3 Head type and class token
D.4 Positional embedding
D.5 Empirical computational costs
D.6 Axial attention
D.7 Attention distance
D.8 Attention maps
D.9 ObjectNet results
D.10 VTAB breakdown""".splitlines()
EQUATIONS, TABLES, FIGURES = range(1, 5), range(1, 10), range(1, 15)
APPENDIX_A = range(5, 9)  # PAPER.md has these equations without their numbers.
IN_SECTION = {  # Where the paper has them.
    "3": ["Figure 1"],
    "3.1": ["Equation 1", "Equation 2", "Equation 3", "Equation 4"],
    "4.1": ["Table 1"],
    "4.2": ["Table 2", "Figure 2"],
    "4.3": ["Figure 3", "Figure 4"],
    "4.4": ["Figure 5"],
    "4.5": ["Figure 6", "Figure 7"],
    "A": ["Equation 5", "Equation 6", "Equation 7", "Equation 8"],
    "B.1": ["Table 3"],
    "B.1.1": ["Table 4"],
    "C": ["Table 5", "Table 6"],
    "D.1": ["Table 7"],
    "D.2": ["Figure 8"],
    "D.3": ["Figure 9"],
    "D.4": ["Table 8", "Figure 10"],
    "D.5": ["Figure 12"],
    "D.6": ["Figure 13"],
    "D.7": ["Figure 11"],
    "D.8": ["Figure 14"],
    "D.10": ["Table 9"],
}


def sections():
    """(Heading, the cells of its rows) of each section of the page, in order."""
    parts = re.split(r"^##+ (.*)\n", PAGE, flags=re.MULTILINE)[1:]
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        lines = [line for line in text.splitlines() if line.startswith("|")]
        yield heading, [[c.strip() for c in line[1:-1].split("|")] for line in lines]


def test_every_section_is_there_in_the_papers_order():
    assert [heading for heading, _ in sections()] == SECTIONS


def test_every_equation_table_and_figure_is_in_its_section():
    for heading, rows in sections():
        assert rows[0] == ["paper", "content", "in keras_vit", "verified against"]
        assert all(len(row) == 4 and all(row[:3]) for row in rows)
        found = [row[0] for row in rows[2:]]
        assert found, heading
        numbered = [name for name in found if re.match("Equation|Table|Figure", name)]
        assert numbered == IN_SECTION.get(heading.split()[0], [])
    named = {name for names in IN_SECTION.values() for name in names}
    assert named == {
        *(f"Equation {number}" for number in (*EQUATIONS, *APPENDIX_A)),
        *(f"Table {number}" for number in TABLES),
        *(f"Figure {number}" for number in FIGURES),
    }


def test_the_outline_is_papers_mds(paper_facts):
    outline = " ".join(paper_facts.partition("\n## Outline")[2].split())
    parts, equations = outline.split(" Equations: ")
    equations, tables = equations.split(" Tables ")
    for section in SECTIONS:
        assert section in parts
    numbers = re.findall(r"(?<![\w.-])((?:\d|[A-D])(?:\.\d+)*) [A-Z]", parts)
    assert numbers == [section.split()[0] for section in SECTIONS]
    assert [int(n) for n in re.findall(r"\((\d)\)", equations)] == [*EQUATIONS]
    tables, figures = re.sub(r"\([^)]*\)", "", tables).split(" and figures ")
    assert tables == f"{TABLES[0]}-{TABLES[-1]}"
    assert [int(number) for number in re.findall(r"\d+", figures)] == [*FIGURES]


def test_scripts_exist():
    """What `test_docs.py` does not see: paths behind `python`."""
    scripts = re.findall(r"`python (\S+)", PAGE)
    assert scripts
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.tensorflow_only
def test_names_are_importable():
    names = set(re.findall(r"`(keras_vit(?:\.\w+)+)`", PAGE))
    assert len(names) > 50
    for name in sorted(names):
        found, *rest = name.split(".")
        value = importlib.import_module(found)
        for part in rest:
            found = f"{found}.{part}"
            if not hasattr(value, part):  # A module that nothing has imported yet.
                importlib.import_module(found)
            value = getattr(value, part)


@pytest.mark.tensorflow_only
def test_commands_are_the_command_lines():
    root = typer.main.get_command(app)
    lines = set(re.findall(r"`keras-vit ([^`]+)`", PAGE))
    assert len(lines) > 15
    for line in sorted(lines):
        name, *words = shlex.split(line)
        if words:  # Parsed as it would be run: options and choices, too.
            root.commands[name].make_context(name, words)
        assert name in root.commands
