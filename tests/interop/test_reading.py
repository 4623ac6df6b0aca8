"""What timm and transformers write, read by us."""

import re

import pytest
import timm
import torch

import keras_vit
from keras_vit import weights
from keras_vit.weights import names
from tests.interop import making

ATOL = 1e-4


@pytest.mark.parametrize("family", making.FAMILIES)
def test_outputs_are_the_librarys(family, tmp_path, agree):
    pixels, theirs = making.make(family, tmp_path, seed=100)
    images = keras_vit.preprocess_input(pixels)
    model = keras_vit.from_checkpoint(tmp_path, image_size=images.shape[1:3])
    agree(f"read {family}", model.predict(images, verbose=0), theirs, ATOL)


ARCHITECTURES = [
    name
    for module in ("vision_transformer", "vision_transformer_hybrid", "deit")
    for name in timm.list_models(module=module)
    if not name.startswith("test_")
]


def is_ours(tensors):
    """Whether every tensor has a place here; the others we refuse by name."""
    known = all(
        names.TIMM._rule(name)[0] is not None or re.search(r"\.ls[12]\.gamma$", name)
        for name in tensors
    )
    refused = any(re.search(part, name) for part in names.REFUSED for name in tensors)
    return known and not refused and "patch_embed.proj.weight" in tensors


def test_heads_gelu_and_epsilon_of_every_architecture(tmp_path):
    """timm's published config.json names the architecture, and may say no more."""
    compared = 0
    for name in ARCHITECTURES:
        with torch.device("meta"):
            model = timm.create_model(name)
        tensors = model.state_dict()
        if not is_ours(tensors):
            continue
        block = model.blocks[0]
        if block.mlp.fc1.out_features != block.mlp.fc2.in_features:
            continue  # A packed SwiGLU, which we refuse by its shapes.
        (tmp_path / "config.json").write_text(f'{{"architecture": "{name}"}}')
        told = weights.config_beside(tmp_path)
        heads = told.get("num_heads", names._usual_heads(names.TIMM, tensors))
        tanh = "Tanh" in type(block.mlp.act).__name__
        theirs = block.attn.num_heads, "tanh" if tanh else "erf", block.norm1.eps
        assert (heads, told.get("gelu", "erf"), 1e-6) == theirs, name
        compared += 1
    assert compared > 100


@pytest.mark.parametrize("family", making.REFUSED)
def test_what_we_do_not_compute_is_refused(family, tmp_path):
    making.make(family, tmp_path)
    with pytest.raises(ValueError, match=making.REFUSED[family]):
        keras_vit.from_checkpoint(tmp_path, image_size=(32, 32))
