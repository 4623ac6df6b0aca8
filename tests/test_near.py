"""benchmarks/near.py and mutants.py: the tests of a change, and faults for them."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow_only

ROOT = Path(__file__).parents[1]
FILES = {
    "keras_vit/__init__.py": "from keras_vit.one.inner import name\n",
    "keras_vit/one/__init__.py": "",
    "keras_vit/one/inner.py": "def name():\n    return 1\n",
    "keras_vit/one/hidden.py": "",
    "keras_vit/two.py": "def later():\n    from keras_vit.one import hidden\n",
    "keras_vit/child.py": "",
    "keras_vit/three.py": "CHILD = 'child.py'\nLATE = 'one.hidden'\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "import keras_vit.two\n",
    "tests/helper.py": "from keras_vit import name\n",
    "tests/test_attribute.py": "import keras_vit\nkeras_vit.one.inner.name()\n",
    "tests/test_helped.py": "from tests import helper\n",
    "tests/test_two.py": "",
    "tests/one/test_three.py": "from keras_vit import two, three\n",
    "tests/interop/test_other.py": "import keras_vit.two\n",
}


@pytest.fixture
def near(script):
    return script("near")


@pytest.fixture
def mutants(script):
    return script("mutants")


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("keras_vit.one.inner", ["tests/test_attribute.py", "tests/test_helped.py"]),
        ("keras_vit.two", ["tests/test_two.py", "tests/one/test_three.py"]),
        ("keras_vit.three", ["tests/one/test_three.py"]),
        ("keras_vit.child", ["tests/one/test_three.py"]),  # Of three.py's string.
        ("tests.test_two", ["tests/test_two.py"]),
    ],
)
def test_tests_near_a_module(near, tree, module, tests):
    assert near.tests_near([module], near.graph(tree), "tests/") == tests


def test_a_module_without_tests_has_those_of_its_importers(near, tree):
    arrows = near.graph(tree)
    found = near.tests_near(["keras_vit.one.hidden"], arrows, "tests/")
    assert found == ["tests/test_two.py", "tests/one/test_three.py"]
    assert near.tests_near(["keras_vit.two"], arrows, "tests/one/") == [found[1]]
    assert near.tests_near(["keras_vit.two"], arrows, "tests/none/") == []


def test_every_module_has_tests(near):
    arrows = near.graph()
    modules = [name for name in arrows if name.startswith("keras_vit.")]
    without = [at for at in modules if not near.tests_near([at], arrows, "tests/")]
    parts = [at.rpartition(".")[2] for at in without]
    assert parts == ["__main__"]  # Of the command line: run by name, in subprocesses.


def test_files_of_any_kind(near, tree, capsys):
    paths = map(Path, ("keras_vit/two.py", "docs/paper.md", "keras_vit/page.js"))
    chosen = near.tests_of([*paths], near.graph(tree))
    assert chosen == [
        *near.HOUSE,
        "tests/test_two.py",
        "tests/one/test_three.py",
        near.PAGES,
    ]
    assert capsys.readouterr().out == (
        "No test is known for keras_vit/page.js: `make test` for its tests\n"
    )


@pytest.mark.parametrize(("seconds", "expected"), [(60, "1 passed"), (-1, "1 skipped")])
def test_no_test_starts_after_the_deadline(seconds, expected):
    until = {"KERAS_VIT_TESTS_UNTIL": str(time.time() + seconds)}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    test = "tests/test_house.py::test_no_modules_import_each_other"
    done = subprocess.run(
        [*command, test],
        cwd=ROOT,
        env=os.environ | until,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert expected in done.stdout
    assert ("LOUD: the time for tests was over" in done.stdout) == (seconds < 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x[1]", {"x[(2)]", "x[(0)]"}),
        ("not x", {"(x)"}),
        ("a < b", {"(a <= b)"}),
        ("a + b", {"(a - b)"}),
        ("a and b", {"(a or b)"}),
        ("f(a, b)", {"(f(b, a))"}),
        ("tf.maximum(a, b)", set()),
        ("x = True", {"x = (False)"}),
        ("x = 1e-3", {"x = (0.002)"}),
        ("x: Literal[1] = y", set()),
        ("'é' if a is b else c", {"'é' if (a is not b) else c"}),
        ("raise E(1, 2)", set()),
        ("def f() -> Literal[1]:\n    'One.'", set()),
    ],
)
def test_faults(mutants, before, after):
    faults = mutants.faults_of("layers", "a.py", before)
    assert {fault.applied(before.encode()).decode() for fault in faults} == after


def test_faults_are_chosen_by_seed_and_each_is_a_program(mutants):
    rooms = ["layers", "training"]
    first, again, other = (mutants.chosen(8, seed, rooms, ROOT) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert [fault.room for fault in first] == 4 * rooms
    for fault in first:
        ast.parse(fault.applied((ROOT / fault.file).read_bytes()))
    for pattern in mutants.ROOMS.values():
        assert list(ROOT.glob(pattern))


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("assert name() == 1", "caught by tests/test_it.py::test_it"),
        ("assert name() > 0", "survived"),
        ("assert name() == 3", "undecided: tests/test_it.py::test_it fails"),
    ],
)
def test_verdicts(mutants, tree, test, said):
    text = f"from keras_vit.one.inner import name\n\n\ndef test_it():\n    {test}\n"
    (tree / "tests" / "test_it.py").write_text(text)
    (tree / "tests" / "conftest.py").write_text("")
    source = (tree / "keras_vit" / "one" / "inner.py").read_text()
    fault, _ = mutants.faults_of("one", "keras_vit/one/inner.py", source)
    assert str(fault) == "keras_vit/one/inner.py:2: 1 -> 2"
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n")
    found = mutants.verdict(fault, ["tests/test_it.py"], tree, seconds=300)
    assert found.startswith(said)
    assert (tree / fault.file).read_text() == source
