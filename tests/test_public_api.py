"""The public surface: what `keras_vit` shows, and what importing it costs."""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys

import pytest

import keras_vit

LAZY = [
    "keras_vit",
    *(f"keras_vit.{at}" for at in ("evaluation", "inspection", "training", "weights")),
]
PUBLIC = {
    "AddPositionEmbs",
    "Axial_ResNet50",
    "Axial_ViT_B16",
    "Axial_ViT_B32",
    "BiT_R101x1",
    "BiT_R101x3",
    "BiT_R152x1",
    "BiT_R152x2",
    "BiT_R152x4",
    "BiT_R200x3",
    "BiT_R50x1",
    "BiT_R50x2",
    "BiT_R50x3",
    "ClassToken",
    "EfficientNetConfig",
    "Facts",
    "MAPHead",
    "MlpBlock",
    "PatchEmbedding",
    "PlainViTConfig",
    "Preprocessing",
    "Provenance",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_B32",
    "R50_ViT_L16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "ResNetConfig",
    "RotaryConfig",
    "SelfAttention",
    "StdConv2D",
    "TransformerBlock",
    "VARIANTS",
    "ViTConfig",
    "ViT_B16",
    "ViT_B32",
    "ViT_B8",
    "ViT_H14",
    "ViT_L16",
    "ViT_L32",
    "ViT_S16",
    "ViT_S32",
    "ViT_Ti16",
    "VisionModel",
    "__version__",
    "at_resolution",
    "data",
    "decode_predictions",
    "efficientnet",
    "evaluation",
    "export",
    "feature_maps",
    "fit",
    "for_task",
    "from_checkpoint",
    "inspection",
    "layers",
    "list_models",
    "models",
    "plain_vit",
    "preprocess_input",
    "recipes",
    "resnet",
    "self_supervision",
    "serving",
    "training",
    "verify",
    "vit",
    "weights",
}


def test_public_names():
    assert set(keras_vit.__all__) == PUBLIC
    for name in PUBLIC:
        assert hasattr(keras_vit, name)


@pytest.mark.parametrize(
    "name",
    [
        "weights.load",
        "weights.save",
        "weights.fetch",
        "weights.load_efficientnet",
        "layers.resize_position_embeddings",
        "training.fit",
        "training.transfer",
        "recipes.FINETUNE",
        "evaluation.fewshot",
        "evaluation.Card",
        "evaluation.Counts",
        "evaluation.evaluate_imagenet",
        "inspection.attention_scores",
        "inspection.attention_rollout",
    ],
)
def test_names_of_the_design(name):
    value = keras_vit
    for part in name.split("."):
        value = getattr(value, part)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = keras_vit.nonsense


@pytest.mark.parametrize("package", LAZY)
def test_a_lazy_package_lists_the_same_names_three_times(package):
    """In `if TYPE_CHECKING:`, in `__all__` and in the call of `names_of`."""
    module = importlib.import_module(package)
    tree = ast.parse(inspect.getsource(module))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    checked = {alias.name: at.module for at in block.body for alias in at.names}
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "names_of"
    )
    taken = {
        name: f"{package}.{keyword.arg}"
        for keyword in call.keywords
        for name in ast.literal_eval(keyword.value).split()
    }
    submodules = {name for name, home in checked.items() if home == package}
    assert checked.keys() == set(module.__all__) - {"__version__"}
    assert taken.keys() == checked.keys() - submodules
    for name, home in taken.items():
        assert checked[name].startswith(home)
        assert getattr(module, name) is getattr(
            importlib.import_module(checked[name]), name
        )
    assert set(module.__all__) <= set(dir(module))


def test_lazy_names_are_as_eager_ones():
    """For star imports, signatures, and submodules that nothing has imported yet."""
    namespace = {}
    exec("from keras_vit import *", namespace)
    assert namespace.keys() >= PUBLIC
    assert "weights" in inspect.signature(keras_vit.ViT_B16).parameters
    assert keras_vit.paper.EXAFLOPS
    with pytest.raises(ImportError, match="nonsense"):
        exec("from keras_vit.weights import nonsense")


REGISTERED = """
import importlib, json, pkgutil, sys
import keras, keras_vit
def registered():
    names = keras.saving.get_custom_objects()
    return sorted(name for name in names if name.startswith("keras_vit>"))
imported = registered()
for module in pkgutil.walk_packages(keras_vit.__path__, "keras_vit."):
    if module.name.startswith(("keras_vit.cli", "keras_vit.serving.")):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError:  # An extra, or TensorFlow.
        pass
print(json.dumps([imported, registered()]))
"""


def test_import_registers_every_class():
    """`import keras_vit` is all that `keras.saving.load_model` needs."""
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED], capture_output=True, text=True, check=True
    )
    imported, every = json.loads(done.stdout.splitlines()[-1])
    assert imported == every
    assert "keras_vit>TransformerBlock" in imported


def modules_after(statement):
    """What a fresh process has imported after `statement`."""
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_brings_no_heavy_extras():
    ours = modules_after("import keras_vit") - modules_after("import keras")
    roots = {name.split(".")[0] for name in ours}
    assert not roots & {
        "filelock",
        "huggingface_hub",
        "jinja2",
        "tensorflow_datasets",
        "matplotlib",
        "scipy",
        "sklearn",
        "torch",
        "typer",
    }
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        assert "tensorflow" not in roots


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("keras_vit.data.vtab", "Task", "VTABTask"),
        ("keras_vit.evaluation.few_shot", "Accuracy", "FewShotAccuracy"),
        ("keras_vit.inspection.planning", "Fit", "MemoryFit"),
        ("keras_vit.training.resume", "Told", "RunStatus"),
        ("keras_vit.training.transferring", "Difference", "PaperDifference"),
    ],
)
def test_renamed_classes_of_0_1_warn(module, old, new):
    module = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
        assert getattr(module, old) is getattr(module, new)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing


def test_a_renamed_module_of_0_1_warns():
    sys.modules.pop("keras_vit.training.watching", None)
    with pytest.warns(DeprecationWarning, match=r"is now called .*\.callbacks"):
        watching = importlib.import_module("keras_vit.training.watching")
    assert watching.read is keras_vit.training.callbacks.read
