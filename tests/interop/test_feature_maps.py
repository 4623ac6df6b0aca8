"""`feature_maps` against timm's `forward_intermediates` and transformers' backbones."""

import numpy as np
import pytest
import torch
import transformers

import keras_vit
from tests.interop import making

ATOL = 1e-5
RESNETS = ("timm_bit",)
VITS = [
    family
    for family in making.FAMILIES
    if family.startswith("timm") and family not in RESNETS
]


def scaled(pixels):
    """[-1, 1], as the paper's; channels first for torch."""
    images = keras_vit.preprocess_input(pixels)
    return images, torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def channels_last(maps):
    return maps.numpy().transpose(0, 2, 3, 1)


def compare(agree, label, found, theirs):
    found = np.asarray(found)
    agree(label, found, theirs, ATOL * max(1, abs(theirs).max()))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("family", VITS)
@torch.no_grad()
def test_maps_are_timms(family, norm, tmp_path, agree):
    theirs, pixels = making._make_timm(family, tmp_path, 7)
    images, tensor = scaled(pixels)
    model = keras_vit.from_checkpoint(tmp_path, image_size=images.shape[1:3])
    maps = keras_vit.feature_maps(model, norm=norm).predict(images, verbose=0)
    expected = theirs.forward_intermediates(
        tensor, norm=norm, return_prefix_tokens=True, intermediates_only=True
    )
    assert len(expected) == model.config.num_layers
    for number, found in enumerate(expected, start=1):
        grid, prefix = found if isinstance(found, tuple) else (found, None)
        own = [maps[f"block_{number}"]]
        label = f"feature_maps of {family}"
        compare(agree, label, own[0], channels_last(grid))
        if prefix is None:
            continue
        ours = [
            value.reshape(len(value), -1, value.shape[-1])
            for key, value in maps.items()
            if key.endswith(f"_{number}") and not key.startswith(("block", "stage"))
        ]
        compare(agree, label, np.concatenate(ours, 1), prefix.numpy())


@pytest.mark.parametrize("norm", [True, False])
@torch.no_grad()
def test_maps_of_a_bit_are_timms(norm, tmp_path, agree):
    theirs, pixels = making._make_timm("timm_bit", tmp_path, 7)
    images, tensor = scaled(pixels)
    model = keras_vit.from_checkpoint(tmp_path, image_size=images.shape[1:3])
    maps = keras_vit.feature_maps(model, norm=norm).predict(images, verbose=0)
    expected = theirs.forward_intermediates(tensor, norm=norm, intermediates_only=True)
    for ours, found in zip(maps.values(), expected[1:], strict=True):  # Not its stem.
        compare(agree, "feature_maps of timm_bit", ours, channels_last(found))


@pytest.mark.parametrize("registers", ["", "_reg"])
@torch.no_grad()
def test_maps_are_dinov2s(registers, tmp_path, agree):
    """transformers' backbone: `get_intermediate_layers` of DINOv2's own code."""
    _, pixels = making._make_hf(f"hf_dinov2{registers}", tmp_path, 7)
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    theirs = getattr(transformers, f"{kind}Backbone").from_pretrained(
        tmp_path, out_features=["stage1", "stage2"]
    )
    images, tensor = scaled(pixels)
    ours = keras_vit.from_checkpoint(tmp_path, image_size=images.shape[1:3], classes=0)
    maps = keras_vit.feature_maps(ours, layers=(1, 2)).predict(images, verbose=0)
    found = theirs.eval()(tensor).feature_maps
    for number, expected in enumerate(found, start=1):
        label = f"feature_maps of hf_dinov2{registers}"
        compare(agree, label, maps[f"block_{number}"], channels_last(expected))
