"""The public surface: what `keras_vit` shows, and what importing it costs."""

import json
import os
import subprocess
import sys

import pytest

import keras_vit

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
    "MAPHead",
    "MlpBlock",
    "PatchEmbedding",
    "R26_ViT_B32",
    "R26_ViT_S32",
    "R50_ViT_B16",
    "R50_ViT_B32",
    "R50_ViT_L16",
    "R50_ViT_L32",
    "R_ViT_Ti16",
    "ResNetConfig",
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
    "__version__",
    "at_resolution",
    "data",
    "decode_predictions",
    "efficientnet",
    "evaluation",
    "for_task",
    "from_checkpoint",
    "inspection",
    "layers",
    "models",
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
        "tensorflow_datasets",
        "matplotlib",
        "sklearn",
        "torch",
        "typer",
    }
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        assert "tensorflow" not in roots
