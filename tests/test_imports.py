"""Who may import whom (DESIGN.md): arrows may be skipped, never turned."""

import ast
import sys
from pathlib import Path

import pytest

import keras_vit

pytestmark = pytest.mark.tensorflow_only

PACKAGE = Path(keras_vit.__file__).parent
ALLOWED = {  # room: the rooms of keras_vit it may import, besides EVERYWHERE.
    "_lazy": set(),
    "callers": set(),
    "_registered": {"layers", "models", "self_supervision", "training"},
    "arguments": set(),
    "configs": set(),
    "export_formats": set(),
    "failures": set(),
    "families": {"configs"},
    "facts": {"configs", "normalization"},
    "paper": set(),
    "recipe_fields": set(),
    "recipes": {"recipe_fields"},
    "_version": set(),
    "layers": {"configs"},
    # `VisionModel.preprocess` reads files: `data` imports no model.
    "models": {"configs", "data", "facts", "layers", "normalization"},
    "environment": set(),
    "feature_cache": {"lock_file", "files"},
    "features": {"data", "environment", "facts", "feature_cache", "files", "models"},
    "files": set(),
    "launching": set(),
    "lock_file": set(),
    "manifest": {"files"},
    "normalization": set(),
    "web_page": set(),
    "data": {"facts", "files", "normalization"},
    "weights": {
        *("configs", "facts", "families", "files", "layers", "lock_file", "models"),
        "normalization",
    },
    "applications": {
        *("builder", "configs", "facts", "families", "layers", "models", "weights"),
    },
    "builder": {"configs", "models", "weights"},
    "training": {
        "configs",
        "data",
        "environment",
        "facts",
        "families",
        "features",
        "files",
        "layers",
        "lock_file",
        "manifest",
        "models",
        "normalization",
        "paper",
        "recipes",
        "weights",
    },
    "inspection": {
        *("configs", "files", "layers", "models", "normalization", "paper"),
        *("facts", "failures", "families", "recipes", "web_page", "weights"),
    },
    "self_supervision": {"facts", "layers", "models", "normalization", "weights"},
    "serving": {
        *("applications", "configs", "data", "export_formats", "facts", "files"),
        *("inspection", "layers", "manifest", "models", "normalization"),
        *("web_page",),
    },
    "evaluation": {
        *("_version", "configs", "paper", "recipes", "files", "layers", "models"),
        *("data", "facts", "weights", "training", "inspection", "normalization"),
        *("families", "features", "manifest", "web_page"),
    },
}
EVERYWHERE = {"_lazy", "_version", "arguments", "callers"}
STANDARD_LIBRARY_ONLY = (
    "_lazy.py",
    "_version.py",
    "arguments.py",
    "callers.py",
    "configs.py",
    "export_formats.py",
    "facts.py",
    "failures.py",
    "evaluation/imagenet_classes.py",
    "families.py",
    "files.py",
    "launching.py",
    "manifest.py",
    "normalization.py",
    "paper.py",
    "recipe_fields.py",
    "recipes.py",
    "weights/registry.py",
)
FACES = ("__init__", "cli")  # May import everything; nothing imports cli.
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def imported(module):
    """Every module an import statement of the file names."""
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", MODULES)
def test_arrows(module):
    room = module.split("/")[0].removesuffix(".py")
    rooms = {
        name.split(".")[1] for name in imported(module) if name.startswith("keras_vit.")
    }
    assert "cli" not in rooms - {room}
    if room not in FACES:
        assert rooms - {room} - EVERYWHERE <= ALLOWED[room]


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_plain_data_is_standard_library_only(module):
    plain = {
        f"keras_vit.{other.removesuffix('.py').replace('/', '.')}"
        for other in STANDARD_LIBRARY_ONLY
    }
    others = {
        name for name in imported(module) if not {name, name.rpartition(".")[0]} & plain
    }
    roots = {name.split(".")[0] for name in others}
    assert roots <= sys.stdlib_module_names


def test_no_private_keras():
    for module in MODULES:
        assert not any(name.startswith("keras.src") for name in imported(module))


def test_matplotlib_is_imported_by_plots_alone():
    users = {m for m in MODULES if any("matplotlib" in name for name in imported(m))}
    assert users == {"inspection/plots/canvas.py"}
