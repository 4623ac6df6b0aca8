"""Names of builders, tags and readable architectures."""

import json
import subprocess
import sys

import pytest

import keras_vit
from keras_vit import list_models
from keras_vit.builder import Builder
from keras_vit.weights import catalog, registry, timm_names

pytestmark = pytest.mark.tensorflow_only


def test_all_of_them():
    names = list_models()
    builders = {
        name
        for name in keras_vit.__all__
        if isinstance(getattr(keras_vit, name), Builder)
    }
    assert {name for name in names if " " not in name and ":" not in name} == builders
    assert sum(" " in name for name in names) == len(registry.CHECKPOINTS)
    assert sum(name.startswith("timm:") for name in names) == len(timm_names.HEADS)
    assert "transformers:dinov2" in names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("ViT_L32 imagenet21k", ["ViT_L32 imagenet21k", "R50_ViT_L32 imagenet21k"]),
        ("vit_l32", ["ViT_L32"]),
        ("timm:*b*16_DINOV2", []),
        ("timm:vit_b*_dinov2", ["timm:vit_base_patch14_dinov2"]),
    ],
)
def test_filters(filter, expected):
    if expected:
        assert set(expected) <= set(list_models(filter))
    else:
        with pytest.raises(ValueError, match=f"Received: '{filter[:4]}"):
            list_models(filter)


def test_a_pattern_is_of_the_whole_name():
    assert list_models("vit_b32") != list_models("vit_b32*")
    assert list_models("vit_b32*")[0] == "ViT_B32"


def test_calls_are_of_builders_and_tags():
    for row in catalog.search("*[!:]*")[:40]:
        if row.name.partition(":")[0] in ("timm", "transformers"):
            continue
        builder, _, tag = row.name.partition(" ")
        assert row.call.startswith(f"keras_vit.{builder}(")
        assert not tag or tag in registry.tags(builder)


def test_no_tensorflow_is_imported():
    code = (
        "import sys, json; sys.modules['keras_vit_command'] = sys\n"
        "from keras_vit import list_models; list_models()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    roots = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert not roots & {"tensorflow", "keras", "jax", "torch", "huggingface_hub"}


def test_on_the_command_line(shell):
    code, text, _ = shell("weights", "list", "--search", "r50*l32*2012")
    assert code == 0
    assert text.split() == [
        *("R50_ViT_L32", "augreg-imagenet21k+imagenet2012"),
        "keras_vit.R50_ViT_L32(weights='augreg-imagenet21k+imagenet2012')",
    ]
    code, _, errors = shell("weights", "list", "--search", "resnext")
    assert code == 1
    assert "no builder, tag or architecture" in errors
    code, _, errors = shell("weights", "list", "--search", "b16", "--tag", "sam")
    assert code == 1
    assert "Expected --search without" in errors
