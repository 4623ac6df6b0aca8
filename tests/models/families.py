"""One small model of every family, on images that are not square."""

import dataclasses

import pytest

import keras_vit
from tests.layers import by_hand

V1 = keras_vit.ResNetConfig(
    num_layers=(1, 1),
    width=32,
    unit="v1",
    kernel_epsilon=1e-5,
    epsilon_outside=True,
    group_norm_epsilon=1e-6,
)
V2 = keras_vit.ResNetConfig(num_layers=(2, 1), width=32)
VIT = keras_vit.ViTConfig(
    patch_size=8, num_layers=2, hidden_size=24, mlp_dim=32, num_heads=3
)


def vit(**fields):
    return dataclasses.replace(VIT, **fields)


VITS = {
    "2d": vit(position="2d"),
    "sincos2d": vit(position="sincos2d", classifier="gap"),
    "relative": vit(position="relative"),
    "every layer": vit(position_at="every_layer", num_registers=2),
    "every layer, 2d": vit(position="2d", position_at="every_layer"),
    "shared": vit(position_at="every_layer_shared", num_layers=4),
    "no positions": vit(position="none"),
    "map": vit(classifier="map", num_registers=1),
    "distilled": vit(classifier="distilled", representation_size=12),
    "axial": vit(attention="axial", classifier="gap", position="2d"),
    "axial, relative": vit(attention="axial", classifier="gap", position="relative"),
    "hybrid": vit(resnet=V1, patch_size=1),
    "hybrid, 2x2": vit(resnet=V1, patch_size=2, classifier="gap", gelu="erf"),
    "root alone": vit(resnet=dataclasses.replace(V1, num_layers=()), patch_size=2),
}
RESNETS = {
    "bit": V2,
    "bit, inf": dataclasses.replace(V2, pool_padding="inf"),
    "v1": V1,
    "axial resnet": dataclasses.replace(V2, unit="axial", num_heads=4),
}
FAMILIES = {**VITS, **RESNETS}
SIZE = (32, 48)


def build(name, image_size=SIZE, num_classes=5, scale=0.1):
    """A model with weights that let no mistake hide."""
    config = FAMILIES[name]
    make = keras_vit.vit if name in VITS else keras_vit.resnet
    model = make(config, image_size=image_size, num_classes=num_classes)
    return by_hand.randomize(model, scale)


def names(families, everywhere):
    """Parameters; backends that compile every shape run those of `everywhere` alone."""
    return [
        name
        if name in everywhere
        else pytest.param(name, marks=pytest.mark.tensorflow_only)
        for name in families
    ]
