"""benchmarks/house.py, and the import circles that it finds: none."""

import ast
from pathlib import Path

import pytest

import keras_vit

pytestmark = pytest.mark.tensorflow_only

PACKAGE = Path(keras_vit.__file__).parent
MODULE = '''"""A docstring
of two lines."""

import os  # A comment.

# Another.
TEXT = """of
two lines"""


def function(self, a, /, b, *rest, c=1, **options):
    """A docstring."""
    from package.one import name

    return (
        name
    )
'''


@pytest.fixture
def house(script):
    return script("house")


def written(folder, **modules):
    package = folder / "package"
    (package / "inner").mkdir(parents=True)
    for name, text in {"__init__": "", "inner/__init__": "", **modules}.items():
        (package / f"{name}.py").write_text(text)
    return package


def test_no_modules_import_each_other(house):
    assert house.circles(PACKAGE) == []


def test_no_function_has_many_parameters(house):
    assert house.long_signatures(PACKAGE) == []


def test_circles_are_found_inside_functions_and_through_others(house, tmp_path):
    package = written(
        tmp_path,
        one="from package import two",
        two="def later():\n    import package.inner.three",
        **{"inner/three": "from package.one import name"},
        four="from package.five import name",
        five="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from package.four import name\nelse:\n    from package import one",
    )
    assert house.circles(package) == [
        ["package.inner.three", "package.one", "package.two"]
    ]
    (package / "five.py").write_text("import package.four")
    assert ["package.five", "package.four"] in house.circles(package)


def test_code_lines_are_without_docstrings_comments_and_blanks(house, tmp_path):
    assert house.code_lines(MODULE) == 8
    package = written(tmp_path, one=MODULE, **{"inner/two": MODULE + MODULE})
    # The second docstring of a module is a string like others.
    assert house.lines_by_package(package) == {
        "inner": 18,
        "one.py": 8,
        "__init__.py": 0,
    }


def test_parameters_are_counted_without_self(house, tmp_path):
    package = written(tmp_path, one=MODULE)
    assert house.long_signatures(package) == []
    assert house.long_signatures(package, most=4) == [(5, "package.one:11 function")]


def test_it_prints_the_three(house, tmp_path, monkeypatch, capsys):
    package = written(
        tmp_path, one="from package.two import a\n", two="import package.one"
    )
    (package / "page.html").write_text("<p>\n\n</p>\n")
    monkeypatch.setattr("sys.argv", ["house.py", "--package", str(package)])
    house.main()
    assert capsys.readouterr().out.splitlines() == [
        "      1  one.py",
        "      1  two.py",
        "      0  __init__.py",
        "      0  inner",
        "      2  lines of code",
        "      2  lines of HTML, CSS and JavaScript",
        "",
        "1 import circles",
        "  2: package.one, package.two",
        "",
        "0 functions with more than 12 parameters",
    ]


def test_savez_has_arrays_only():
    """NumPy before 2.2 (Colab has 2.1) writes `allow_pickle=False` as an array."""
    calls = [
        node
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "").startswith("savez")
    ]
    for call in calls:
        assert "allow_pickle" not in {word.arg for word in call.keywords}
