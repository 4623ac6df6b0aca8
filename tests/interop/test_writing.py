"""What we write, read by timm and transformers."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import timm
import torch
import transformers

import keras_vit
from keras_vit import PlainViTConfig, RotaryConfig, weights
from keras_vit.configs import ResNetConfig, ViTConfig, numerics_of
from keras_vit.families import family_of
from tests.interop import making
from tests.interop.classes import outputs_of

ATOL = 1e-4
VIT = ViTConfig(patch_size=8, num_layers=2, hidden_size=16, mlp_dim=40, num_heads=4)
BIT = ResNetConfig(num_layers=(3, 4, 6, 3), width=32)


def vit(**changes):
    return dataclasses.replace(VIT, **changes)


def hybrid(*units, patch_size=1):
    resnet = ResNetConfig(num_layers=units, unit="v1")
    return vit(patch_size=patch_size, resnet=resnet)


def model_of(config, numerics, size=(32, 48), classes=5, channels=3, **changes):
    """A model with random values that computes as the library does, but for changes."""
    config = dataclasses.replace(config, **numerics_of(config, numerics) | changes)
    make = family_of(config).build
    return filled(
        make(config, image_size=size, num_classes=classes, num_channels=channels)
    )


def filled(model):
    """A model with random values."""
    random = np.random.default_rng(0)
    for variable in model.weights:
        noise = random.standard_normal(variable.shape)
        if variable.name == "gamma":  # Small where units add up: rounding grows there.
            value = (1 + 0.2 * noise) / (4 if "gn3" in variable.path else 1)
        elif variable.name in ("beta", "bias"):
            value = 0.1 * noise
        elif variable.name == "kernel":
            fan_in = np.prod(variable.shape[:-1])
            value = noise / fan_in**0.5 + 1 / fan_in
        else:
            value = 0.3 * noise
        variable.assign(value)
    return model


TIMM = {  # case: (config, arguments of model_of)
    "token": (VIT, {}),
    "token, tanh": (VIT, {"gelu": "tanh"}),
    "token, one channel": (VIT, {"channels": 1}),
    "token, no head": (VIT, {"classes": None}),
    "gap": (vit(classifier="gap"), {}),
    "token, an odd MLP": (vit(hidden_size=56, mlp_dim=61), {}),
    "map": (vit(classifier="map"), {}),
    "map, tanh": (vit(classifier="map"), {"gelu": "tanh"}),
    "registers": (vit(num_registers=3), {}),
    "gap, registers": (vit(classifier="gap", num_registers=3), {}),
    "distilled": (vit(classifier="distilled"), {}),
    "R+ViT": (hybrid(patch_size=4), {}),
    "R26+ViT": (hybrid(2, 2, 2, 2), {"size": (96, 128)}),
    "R50+ViT/16": (hybrid(3, 4, 9), {"size": (64, 96)}),
    "R50+ViT/32, tanh": (hybrid(3, 4, 6, 3), {"gelu": "tanh", "size": (96, 128)}),
    "BiT-R50": (BIT, {"size": (40, 56)}),
    "BiT-R50, no head": (BIT, {"size": (40, 56), "classes": None}),
}
HF = {
    "token": (VIT, {}),
    "token, tanh": (VIT, {"gelu": "tanh", "layer_norm_epsilon": 1e-6}),
    "token, one channel": (VIT, {"channels": 1}),
    "token, no head": (VIT, {"classes": None}),
    "pre_logits": (vit(representation_size=12), {"classes": None}),
    "distilled": (vit(classifier="distilled"), {}),
    "BiT-R50": (BIT, {"size": (40, 56)}),
    "BiT of two stages": (ResNetConfig(num_layers=(1, 1), width=32), {}),
}


def plain(**fields):
    sizes = {"patch_size": 8, "num_layers": 2, "hidden_size": 16, "num_heads": 4}
    return PlainViTConfig(**{**sizes, "mlp_dim": 32, **fields})


CLIP = {"pre_norm": True, "patch_bias": False, "layer_norm_epsilon": 1e-5}
MEAN = {"classifier": "gap", "final_norm": False, "head_norm": True}
EVA = MEAN | {"num_registers": 1, "qkv_bias": "qv"}
GATED = {"gated_mlp": True, "activation": "silu"}
DINOV3 = {
    "rotary": RotaryConfig(kind="centered", temperature=100.0, half=True),
    "layer_scale": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "num_registers": 2,
    "position": "none",
    "qkv_bias": "none",
}
PE = RotaryConfig(reference_grid=(3, 3), offset=1.0, order="xy")
MIXED = RotaryConfig(kind="mixed", temperature=10.0, order="xy")
BEIT = {"relative_position": True, "qkv_bias": "qv", "position": "none"}
BEIT |= {"layer_scale": 1e-5}
PLAIN_TIMM = {  # case: (config, classes)
    "CLIP": (plain(**CLIP, activation="quick_gelu"), 5),
    "DINOv2, gated": (plain(layer_scale=1e-5, **GATED), 5),
    "EVA": (plain(**EVA), 5),
    "EVA, normed MLP": (plain(**EVA, mlp_norm=True), 5),
    "EVA-02": (plain(**EVA, **GATED, mlp_norm=True, rotary=RotaryConfig()), 5),
    "EVA-02, attention normed": (
        plain(
            **EVA | GATED,
            mlp_norm=True,
            attention_norm=True,
            rotary=RotaryConfig(reference_grid=(2, 3)),
        ),
        None,
    ),
    "EVA-02, gate packed": (plain(**EVA, **GATED, rotary=RotaryConfig()), 5),
    "EVA-02, post-norm": (plain(qkv_bias="qv", post_norm=True), 5),
    "DINOv3": (plain(**DINOV3), 5),
    "DINOv3, biases": (plain(**DINOV3 | {"qkv_bias": "full"}), None),
    "PE": (
        plain(
            **CLIP,
            classifier="map",
            num_registers=1,
            pool_prefix=True,
            map_heads=2,
            map_mlp_dim=48,
            rotary=PE,
        ),
        5,
    ),
    "ROPE-ViT": (plain(layer_scale=1e-5, position="none", rotary=MIXED), 5),
    "ROPE-ViT, positions": (plain(rotary=MIXED), 5),
    "BEiT": (plain(**BEIT, num_registers=1, **MEAN), 5),
    "BEiT, token": (plain(**BEIT), None),
    "BEiT, gated": (plain(**BEIT, **GATED, mlp_norm=True), 5),
    "BEiT, positions": (plain(**BEIT | {"position": "1d"}), 5),
}
DINOV2 = {"layer_scale": 1e-5}
BOTH = {"classifier": "token_gap"}
PLAIN_HF = {  # case: (config, classes, what is compared, image size)
    "CLIP": (plain(**CLIP, activation="quick_gelu"), None, "pooled", (32, 32)),
    "CLIP, projection": (
        plain(**CLIP | {"head_bias": False, "layer_norm_epsilon": 1e-6}),
        5,
        "embeds",
        (32, 32),
    ),
    "DINOv2": (plain(**DINOV2), None, "pooled", (32, 32)),
    "DINOv2, classes": (plain(**DINOV2, **BOTH), 5, "logits", (32, 32)),
    "DINOv2, gated": (
        plain(**DINOV2, **GATED, **BOTH | {"mlp_dim": 24}),
        5,
        "logits",
        (32, 32),
    ),
    "DINOv2, registers": (
        plain(**DINOV2, num_registers=3, position_tokens=1, qkv_bias="none"),
        None,
        "pooled",
        (32, 32),
    ),
    "DINOv2, registers, classes": (
        plain(**DINOV2, **BOTH, num_registers=3, position_tokens=1),
        5,
        "logits",
        (32, 32),
    ),
    "DINOv3": (plain(**DINOV3), None, "pooled", (32, 48)),
    "DINOv3, gated": (
        plain(**DINOV3 | GATED | {"qkv_bias": "qv", "mlp_bias": False}),
        None,
        "pooled",
        (32, 48),
    ),
    "BEiT": (plain(**BEIT, **MEAN, num_registers=1), 5, "logits", (32, 32)),
    "BEiT, no head": (plain(**BEIT, **MEAN, num_registers=1), None, "pooled", (32, 32)),
    "BEiT, token": (
        plain(**BEIT | {"layer_scale": None}),
        5,
        "logits",
        (32, 32),
    ),
    "BEiT, positions": (
        plain(**BEIT | {"position": "1d", "relative_position": False}),
        5,
        "logits",
        (32, 32),
    ),
    "I-JEPA": (vit(classifier="gap"), 5, "logits", (32, 48)),
    "I-JEPA, no head": (vit(classifier="gap"), None, "mean", (32, 48)),
    "SigLIP": (vit(classifier="map"), None, "pooled", (32, 32)),
}


def compare(label, model, theirs, agree):
    size, channels = model.input_shape[1:3], model.input_shape[-1]
    pixels = making.images(1, *size, channels)
    ours = model.predict(keras_vit.preprocess_input(pixels), verbose=0)
    agree(label, ours, making.run(theirs.eval(), pixels), ATOL)


@pytest.mark.parametrize("case", TIMM)
def test_timm(case, tmp_path, agree):
    config, arguments = TIMM[case]
    model = model_of(config, "timm", **arguments)
    weights.save(model, tmp_path, format="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    compare(f"timm reads {case}", model, theirs, agree)
    data = timm.data.resolve_model_data_config(theirs)
    channels = model.input_shape[-1]
    assert list(data["mean"]) == list(data["std"]) == [0.5] * channels
    assert data["input_size"] == (channels, *model.input_shape[1:3])
    again = keras_vit.from_checkpoint(tmp_path, image_size=model.input_shape[1:3])
    for ours, read in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, read)


@pytest.mark.parametrize("case", HF)
def test_hf(case, tmp_path, agree):
    config, arguments = HF[case]
    model = model_of(config, "hf", **arguments)
    weights.save(model, tmp_path, format="hf")
    auto = transformers.AutoModelForImageClassification
    if arguments.get("classes", 5) is None:
        auto = transformers.AutoModel
    theirs, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert case == "token, no head" or not info["missing_keys"]
    if case == "token, no head":  # ViTModel's pooler is none of ours.
        theirs = TokenOf(theirs)
    compare(f"transformers reads {case}", model, theirs, agree)
    size = model.input_shape[1:3]
    if model.input_shape[-1] == 3:
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
        pixels = making.images(2, *size)
        seen = processor(list(pixels), return_tensors="np")["pixel_values"]
        expected = keras_vit.preprocess_input(pixels).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(seen, expected, atol=1e-6)
    again = keras_vit.from_checkpoint(tmp_path, image_size=size)
    for ours, read in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, read)


def read_back(path, model, size):
    """Ours, with the same config, facts and values."""
    again = keras_vit.from_checkpoint(path, image_size=size)
    assert again.config == model.config
    assert again.preprocessing == model.preprocessing
    for ours, read in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, read)


@pytest.mark.parametrize("case", PLAIN_TIMM)
def test_plain_vits_by_timm(case, tmp_path, agree):
    config, classes = PLAIN_TIMM[case]
    model = filled(
        keras_vit.plain_vit(config, image_size=(32, 48), num_classes=classes)
    )
    weights.save(model, tmp_path, format="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    compare(f"timm reads {case}", model, theirs, agree)
    read_back(tmp_path, model, (32, 48))


@pytest.mark.parametrize("case", PLAIN_HF)
def test_plain_vits_by_transformers(case, tmp_path, agree):
    config, classes, what, size = PLAIN_HF[case]
    if isinstance(config, ViTConfig):
        config = dataclasses.replace(config, gelu="erf", layer_norm_epsilon=1e-6)
    make = family_of(config).build
    model = filled(make(config, image_size=size, num_classes=classes))
    weights.save(model, tmp_path, format="hf")
    (name,) = json.loads((tmp_path / "config.json").read_text())["architectures"]
    theirs, info = getattr(transformers, name).from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    pixels = keras_vit.preprocess_input(making.images(1, *size))
    ours = model.predict(pixels, verbose=0)
    with torch.no_grad():
        tensor = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
        expected = outputs_of(theirs.eval(), tensor, what).numpy()
    agree(f"transformers reads {case}", ours, expected, ATOL)
    read_back(tmp_path, model, size)


def test_images_that_transformers_computes_otherwise_are_refused(tmp_path):
    """It reads DINOv2's table as a square, and BEiT's with its sides exchanged."""
    for config in (plain(**DINOV2), plain(**BEIT), vit(classifier="map")):
        make = family_of(config).build
        model = make(config, image_size=(32, 48), num_classes=None)
        with pytest.raises(ValueError, match="which requires square images"):
            weights.save(model, tmp_path, format="hf")


class TokenOf(torch.nn.Module):
    """The class token that a ViTModel's pooler reads."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixels).last_hidden_state[:, 0]


def test_a_model_in_the_papers_numerics_is_close_and_says_so(tmp_path, agree):
    model = model_of(hybrid(patch_size=4), "paper")
    with pytest.warns(UserWarning, match="timm uses .*1e-5"):
        weights.save(model, tmp_path, format="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    compare("timm reads R+ViT in the paper's numerics", model, theirs, agree)


def test_the_backend_is_torch():
    assert keras.backend.backend() == "torch"
