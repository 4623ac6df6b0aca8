"""README and docstrings: what they print is run, what they name exists."""

import ast
import doctest
import importlib
import io
import itertools
import pkgutil
import re
import tokenize
from pathlib import Path

import keras
import pytest

import keras_vit
from keras_vit.configs import (
    AXIAL_RESNETS,
    AXIAL_VARIANTS,
    BIT_VARIANTS,
    HYBRID_VARIANTS,
    VIT_VARIANTS,
    builder_name,
)
from keras_vit.weights import registry
from tests.models.test_vit import PARAMETERS

ROOT = Path(__file__).parents[1]
PACKAGE = Path(keras_vit.__file__).parent
MODELS = (ROOT / "docs" / "models.md").read_text()
# vit_jax/models_test.py; timm's published counts of BiT, to two places of a million.
OTHER_PARAMETERS = {
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
}
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))


def blocks(language, page="README.md"):
    text = (ROOT / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def promises(block):
    """The comments behind each `print`, on its last line or alone on those below it."""
    tokens = tokenize.generate_tokens(io.StringIO(block).readline)
    found = [token for token in tokens if token.type == tokenize.COMMENT]
    text = {token.start[0]: token.string[2:] for token in found}
    alone = {token.start[0] for token in found if token.line.lstrip().startswith("#")}
    calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    ends = [c.end_lineno for c in calls if getattr(c.func, "id", "") == "print"]
    for end in sorted(ends):
        below = itertools.takewhile(alone.__contains__, itertools.count(end + 1))
        yield from (text[line] for line in (end, *below) if line in text)


def run_python(block, page, namespace, capsys):
    """Runs a block of a page; its lines begin as it promises, in that order."""
    capsys.readouterr()
    exec(compile(block, page, "exec"), namespace)
    printed = iter(capsys.readouterr().out.splitlines())
    for promised in promises(block):
        said = any(line.startswith(promised) for line in printed)
        assert said, f"{page} promises {promised!r}, which is not what came next"


@pytest.mark.tensorflow_only
@pytest.mark.slow
def test_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    """In order, in one namespace, with weights and photos that are made here."""
    for tag, size, options in (
        ("imagenet21k", 224, {"classes": 21_843, "representation_size": 768}),
        ("imagenet21k+imagenet2012", 384, {"classes": 1000}),
    ):
        source = keras_vit.ViT_B16(
            weights=None, input_shape=(size, size, 3), name="source", **options
        )
        if tag != "imagenet21k":  # The published head of which is zeros.
            kernel = source.get_layer("head").kernel
            kernel.assign(keras.random.normal(kernel.shape, seed=0))
        file = tmp_path / registry.find("ViT-B/16", tag).path
        file.parent.mkdir()
        keras_vit.weights.save(source, file)  # As large as the published ones.
        del source
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    data = pytest.importorskip("skimage.data")
    keras.utils.save_img("cat.jpg", data.chelsea())
    for number, name in enumerate(("cats", "dogs")):
        Path("photos", name).mkdir(parents=True)
        image = data.chelsea()[:, :: 1 - 2 * number]
        keras.utils.save_img(Path("photos", name, "0.jpg"), image)
    namespace = {}
    for block in blocks("python"):
        run_python(block, "README.md", namespace, capsys)


def test_promises_are_the_prints_comments():
    block = "print(1)  # 1\nx = 2  # Two.\nprint(\n    x\n)\n# 2\n# 3\n# Not\nx = 3\n"
    assert list(promises(block)) == ["1", "2", "3", "Not"]


def test_paths_named_in_pages_exist():
    for page in PAGES:
        text = (ROOT / page).read_text()
        for path in re.findall(
            r"`((?:keras_vit|tests|examples|benchmarks)/[\w./]+)`", text
        ):
            # The package may be installed, away from the pages.
            home = PACKAGE.parent if path.startswith("keras_vit/") else ROOT
            assert (home / path).exists(), f"{page} names {path}"
        for path in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert ((ROOT / page).parent / path).exists(), f"{page} links {path}"


def test_table_of_models_is_the_registrys():
    rows = re.findall(r"^\| (\S+) \| `(\w+)` \| ([\d,]+) \|(.*)\|(.*)\|$", MODELS, re.M)
    known = VIT_VARIANTS | HYBRID_VARIANTS | BIT_VARIANTS
    assert [row[0] for row in rows] == [*known, *AXIAL_VARIANTS, *AXIAL_RESNETS]
    for variant, name, parameters, plain, tuned in rows:
        assert name == builder_name(variant)
        assert hasattr(keras_vit, name)
        published = PARAMETERS | OTHER_PARAMETERS  # tests/inspection: all by counting.
        counted = int(parameters.replace(",", ""))
        assert published.get(variant, counted) == counted
        published = {tag: registry.find(variant, tag) for tag in registry.tags(variant)}
        assert re.findall(r"`([^`]+)`", plain) == [
            tag for tag, of in published.items() if of.labels == "imagenet21k"
        ]
        assert tuned.strip() == "; ".join(
            f"`{tag}`: {of.image_size[0]}{told(of)}"
            for tag, of in published.items()
            if tag.endswith("21k+imagenet2012")
        )


def told(published):
    """The accuracy of a row, and whose it is where it is not the paper's."""
    if not published.accuracy:
        return ""
    whose = "" if published.accuracy_source == "Table 5" else " (timm)"
    return f", {published.accuracy} %{whose}"


def modules():
    for module in pkgutil.walk_packages(keras_vit.__path__, "keras_vit."):
        yield module.name


@pytest.mark.parametrize("name", modules())
@pytest.mark.filterwarnings("ignore")
def test_docstrings_run(name):
    if keras.backend.backend() != "tensorflow" and name.startswith(
        ("keras_vit.data", "keras_vit.training", "keras_vit.cli")
    ):
        pytest.skip("of TensorFlow's half")
    module = importlib.import_module(name)
    assert module.__doc__
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=flags).failed == 0


def test_versions_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", changelog, re.M)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(
        rf"\[{re.escape(keras_vit.__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1]
    )
