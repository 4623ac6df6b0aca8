"""Classes of transformers, tiny, read by us and compared.

`python -m tests.interop.classes [PATTERN]` prints the table: outputs in float32,
outputs and gradients in float64.
"""

import dataclasses
import functools
import os
import re
import sys
import tempfile
import warnings

os.environ.setdefault("KERAS_BACKEND", "torch")

from tests.interop import making  # isort: skip  First: it lets torchvision be imported.

import torch
import transformers

import keras_vit
from tests.interop.architectures import (
    Result,
    channels_first,
    gradient_difference,
    our_gradients,
    relative,
    scaled,
    their_gradients,
)

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 8,
}
VIT = SIZES | {"intermediate_size": 32}
LABELS = {"num_labels": 5}
DINO = SIZES | {"mlp_ratio": 2}
BEIT = VIT | {"layer_scale_init_value": 0.1}
RELATIVE = BEIT | {"use_relative_position_bias": True}
DINOV3 = VIT | {"num_register_tokens": 2}
GATED = {"use_gated_mlp": True, "hidden_act": "silu"}
MAE = VIT | {"mask_ratio": 0.0}
DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 16,
}
SIGLIP2 = {k: v for k, v in VIT.items() if k != "image_size"} | {"num_patches": 9}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 99,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "projection_dim": 6,
}
BOTH = {"vision_config": VIT | {"projection_dim": 6}, "text_config": TEXT}
CLASSES = {  # A case: class, config class, its arguments, what is compared.
    "ViTModel": ("ViTModel", "ViT", VIT, "pooled"),
    "ViTForImageClassification": (None, "ViT", VIT | LABELS, "logits"),
    "ViTForMaskedImageModeling": (None, "ViT", VIT | {"encoder_stride": 8}, "inner"),
    "DeiTModel": (None, "DeiT", VIT, "pooled"),
    "DeiTForImageClassification": (None, "DeiT", VIT | LABELS, "logits"),
    "DeiTForImageClassificationWithTeacher": (None, "DeiT", VIT | LABELS, "logits"),
    "ViTMSNModel": (None, "ViTMSN", VIT, "token"),
    "ViTMSNForImageClassification": (None, "ViTMSN", VIT | LABELS, "logits"),
    "ViTMAEModel": (None, "ViTMAE", MAE, "token"),
    "ViTMAEForPreTraining": (None, "ViTMAE", MAE | DECODER, "inner"),
    "IJepaModel": (None, "IJepa", VIT, "mean"),
    "IJepaForImageClassification": (None, "IJepa", VIT | LABELS, "logits"),
    "Dinov2Model": (None, "Dinov2", DINO, "token"),
    "Dinov2Model, SwiGLU": (
        "Dinov2Model",
        "Dinov2",
        DINO | {"use_swiglu_ffn": True},
        "token",
    ),
    "Dinov2ForImageClassification": (None, "Dinov2", DINO | LABELS, "logits"),
    "Dinov2WithRegistersModel": (None, "Dinov2WithRegisters", DINO, "token"),
    "Dinov2WithRegistersForImageClassification": (
        None,
        "Dinov2WithRegisters",
        DINO | LABELS,
        "logits",
    ),
    "DINOv3ViTModel": (None, "DINOv3ViT", DINOV3, "token"),
    "DINOv3ViTModel, gated": ("DINOv3ViTModel", "DINOv3ViT", DINOV3 | GATED, "token"),
    "BeitModel": (None, "Beit", RELATIVE, "pooled"),
    "BeitForImageClassification": (None, "Beit", RELATIVE | LABELS, "logits"),
    "BeitForImageClassification, positions": (
        "BeitForImageClassification",
        "Beit",
        BEIT | LABELS | {"use_absolute_position_embeddings": True},
        "logits",
    ),
    "Data2VecVisionModel": (None, "Data2VecVision", RELATIVE, "token"),
    "Data2VecVisionForImageClassification": (
        None,
        "Data2VecVision",
        RELATIVE | LABELS,
        "logits",
    ),
    "CLIPVisionModel": (None, "CLIPVision", VIT, "pooled"),
    "CLIPVisionModel, GELU": (
        "CLIPVisionModel",
        "CLIPVision",
        VIT | {"hidden_act": "gelu"},
        "pooled",
    ),
    "CLIPVisionModelWithProjection": (
        None,
        "CLIPVision",
        VIT | {"projection_dim": 6},
        "embeds",
    ),
    "CLIPModel": (None, "CLIP", BOTH, "image_features"),
    "CLIPForImageClassification": (None, "CLIP", BOTH | LABELS, "logits"),
    "MetaClip2VisionModel": (None, "MetaClip2Vision", VIT, "pooled"),
    "MetaClip2VisionModelWithProjection": (
        None,
        "MetaClip2Vision",
        VIT | {"projection_dim": 6},
        "embeds",
    ),
    "ChineseCLIPVisionModel": (None, "ChineseCLIPVision", VIT, "pooled"),
    "AltCLIPVisionModel": (None, "AltCLIPVision", VIT, "pooled"),
    "SiglipVisionModel": (None, "SiglipVision", VIT, "pooled"),
    "SiglipModel": (None, "Siglip", BOTH, "image_features"),
    "SiglipForImageClassification": (None, "Siglip", BOTH | LABELS, "logits"),
    "Siglip2VisionModel": (None, "Siglip2Vision", SIGLIP2, "pooled, NaFlex"),
}


def outputs_of(model, images, kind):
    """What ours returns of the same file."""
    if kind == "pooled, NaFlex":
        batch, channels, height, width = images.shape
        cut = images.reshape(batch, channels, height // 8, 8, width // 8, 8)
        patches = cut.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, 8 * 8 * channels)
        mask = torch.ones(patches.shape[:2], dtype=torch.int32)
        shapes = torch.tensor([[height // 8, width // 8]] * batch)
        return model(patches, mask, shapes).pooler_output
    if kind == "image_features":
        found = model.get_image_features(pixel_values=images)
        return getattr(found, "pooler_output", found)
    if kind == "inner":
        inner = model.vit
        if hasattr(inner.config, "mask_ratio"):
            inner.config.mask_ratio = 0.0
        return inner(images).last_hidden_state[:, 0]
    out = model(images)
    if kind == "logits":
        return out.logits
    if kind == "embeds":
        return out.image_embeds
    if kind == "pooled":
        return out.pooler_output
    return (
        out.last_hidden_state.mean(1) if kind == "mean" else out.last_hidden_state[:, 0]
    )


def compare(case, folder, seed=5):
    """Writes the class's file and reads it by us."""
    name, kind, arguments, what = CLASSES[case]
    name = name or case
    config = getattr(transformers, f"{kind}Config")(**arguments)
    model = making.randomise(getattr(transformers, name)(config), seed)
    model.save_pretrained(folder)
    result = Result(case, 1)
    pixels = making.images(seed, 24, 24)
    try:
        ours = keras_vit.from_checkpoint(folder, image_size=(24, 24))
    except ValueError as error:
        return dataclasses.replace(result, refused=str(error))
    images = scaled(pixels)
    with torch.no_grad():
        theirs = outputs_of(model, channels_first(images), what).numpy()
    outputs = ours.predict(images, verbose=0)
    double, upstream, written = their_gradients(
        model, functools.partial(outputs_of, kind=what), images
    )
    config, own_double, own = our_gradients(folder, images, upstream)
    return dataclasses.replace(
        result,
        outputs=relative(outputs, theirs),
        exact=relative(own_double, double),
        gradients=hf_gradients(own, written, config, model, folder),
        rotary=getattr(config, "rotary", None) is not None,
        family=type(config).__name__,
    )


def hf_gradients(own, gradients, config, model, folder):
    """Theirs, renamed as `save_pretrained` renames, against ours."""
    with torch.no_grad():
        for at, value in model.named_parameters():
            value.copy_(torch.from_numpy(gradients[at]))
    model.save_pretrained(folder)
    from safetensors.numpy import load_file

    from keras_vit.weights import names

    ignored = "|".join(at.ignored for at in (names.HF, names.HF_CLIP, names.HF_DINOV3))
    found = {
        at: value
        for at, value in load_file(f"{folder}/model.safetensors").items()
        if not re.search(ignored, at)
    }
    return gradient_difference(own, found, folder, 9, config)


def main(pattern="."):
    results = []
    for case in CLASSES:
        if not re.search(pattern, case):
            continue
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                at = compare(case, folder)
            except Exception as error:
                text = f"FAILED {type(error).__name__}: {error}"
                at = Result(case, 1, refused=text)
        results.append(at)
        if at.refused:
            print(f"{case:44} {at.refused[:400]}", flush=True)
        else:
            numbers = f"{at.outputs:.1e}  {at.exact:.1e}  {at.gradients:.1e}"
            print(f"{case:44} {numbers}  {at.family}", flush=True)
    read = sum(not at.refused for at in results)
    print(f"{read} of {len(results)} cases are read")


if __name__ == "__main__":
    main(*sys.argv[1:])
