"""What timm and transformers write, read by us."""

import re

import pytest
import timm
import torch

import keras_vit
from keras_vit import weights
from keras_vit.weights import names, timm_names
from tests.interop import making

ATOL = 1e-4


@pytest.mark.parametrize("family", making.FAMILIES)
def test_outputs_are_the_librarys(family, tmp_path, agree):
    pixels, theirs = making.make(family, tmp_path, seed=100)
    images = keras_vit.preprocess_input(pixels)
    dropped = family in ("hf_dinov2", "hf_dinov2_reg")  # Their heads are left out.
    model = keras_vit.from_checkpoint(
        tmp_path, image_size=images.shape[1:3], classes=0 if dropped else None
    )
    agree(f"read {family}", model.predict(images, verbose=0), theirs, ATOL)


ARCHITECTURES = [
    name
    for module in ("vision_transformer", "vision_transformer_hybrid", "deit")
    for name in timm.list_models(module=module)
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
        refused = timm_names.REFUSED.values()
        if any(re.fullmatch(pattern, name) for pattern in refused):
            continue
        told = weights.config_beside(tmp_path)
        heads = told.get("num_heads")
        tanh = "Tanh" in type(block.mlp.act).__name__
        theirs = block.attn.num_heads, "tanh" if tanh else "erf", block.norm1.eps
        assert (heads, told.get("gelu", "erf"), 1e-6) == theirs, name
        compared += 1
    assert compared > 100


def few(name):
    """An architecture of timm's with its own heads, of one narrow block."""
    with torch.device("meta"):
        whole = timm.create_model(name)
    heads = whole.blocks[0].attn.num_heads
    patch = whole.patch_embed.patch_size[0]
    side = 64 if hasattr(whole.patch_embed, "backbone") else 4 * patch
    return {"embed_dim": 8 * heads, "depth": 1, "num_classes": 5, "img_size": side}


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) & timm_names.HEADS.keys()))
def test_outputs_of_every_known_architecture(name, tmp_path, agree):
    """Its config.json states no heads: the name does."""
    arguments = few(name)
    model = making.randomise(timm.create_model(name, **arguments), seed=3)
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    pixels = making.images(3, arguments["img_size"], arguments["img_size"])
    theirs = making.run(model, pixels)
    ours = keras_vit.from_checkpoint(tmp_path).predict(
        keras_vit.preprocess_input(pixels), verbose=0
    )
    agree("read timm's architectures", ours, theirs, ATOL * max(1, abs(theirs).max()))


def test_every_known_architecture_is_timms():
    deprecated = timm.models._registry._deprecated_models
    assert timm_names.HEADS.keys() <= {*ARCHITECTURES, *deprecated}


@pytest.mark.parametrize("family", making.REFUSED)
def test_what_we_do_not_compute_is_refused(family, tmp_path):
    making.make(family, tmp_path)
    with pytest.raises(ValueError, match=making.REFUSED[family]):
        keras_vit.from_checkpoint(tmp_path, image_size=(32, 32))
