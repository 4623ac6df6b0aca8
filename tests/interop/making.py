"""Tiny random checkpoints of every family that timm and transformers know.

The libraries write the files themselves. `python -m tests.interop.making FOLDER
[PATTERN]` makes those of tests/fixtures/dialects with PATTERN (see its README).
"""

import importlib.util
import json
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch


def _let_torchvision_import():
    """PyPI's is built for CUDA: beside a torch for CPUs its operators do not load.

    Importing it, as timm and transformers do, then fails on two it looks up by name.
    """
    torchvision = importlib.util.find_spec("torchvision")
    if torchvision is None:
        return
    try:
        for library in Path(torchvision.origin).parent.glob("_C*.so"):
            torch.ops.load_library(library)
    except OSError:
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor"
            )


_let_torchvision_import()
import transformers  # noqa: E402

WIDE = {"embed_dim": 16, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "num_classes": 5}
P8 = WIDE | {"patch_size": 8, "img_size": 32}
TIMM = {  # family: (architecture, model_args)
    "timm_vit": ("vit_tiny_patch16_224", P8),
    "timm_vit_tanh": (
        "vit_tiny_patch16_224",
        P8 | {"act_layer": "gelu_tanh", "img_size": [32, 48], "in_chans": 1},
    ),
    "timm_vit_no_qkv_bias": ("vit_tiny_patch16_224", P8 | {"qkv_bias": False}),
    "timm_vit_headless": ("vit_tiny_patch16_224", P8 | {"num_classes": 0}),
    "timm_vit_registers": (
        "vit_tiny_patch16_224",
        P8 | {"reg_tokens": 3, "img_size": [32, 48]},
    ),
    "timm_vit_gap": ("vit_base_patch16_gap_224", P8),
    "timm_vit_gap_cls": (
        "vit_tiny_patch16_224",
        P8 | {"global_pool": "avg", "fc_norm": False},
    ),
    "timm_vit_map": ("vit_base_patch16_siglip_224", P8),
    "timm_vit_map_cls": ("vit_base_patch16_224", P8 | {"global_pool": "map"}),
    "timm_vit_map_reg4": ("vit_so150m_patch16_reg4_map_256", P8),
    "timm_dinov2": ("vit_small_patch14_dinov2", P8),
    "timm_dinov2_reg4": ("vit_small_patch14_reg4_dinov2", P8),
    "timm_deit": ("deit_tiny_patch16_224", P8),
    "timm_deit_distilled": ("deit_tiny_distilled_patch16_224", P8),
    "timm_deit3": ("deit3_small_patch16_224", P8),
    "timm_hybrid_r": (
        "vit_tiny_r_s16_p8_224",
        WIDE | {"patch_size": 4, "img_size": [48, 64]},
    ),
    "timm_fc_norm": ("vit_tiny_patch16_224", P8 | {"global_pool": "avg"}),
    "timm_swiglu": ("vit_giant_patch14_dinov2", P8),
    "timm_clip": ("vit_base_patch16_clip_quickgelu_224", P8),
    "timm_eva02": ("eva02_tiny_patch14_224", P8 | {"img_size": [32, 48]}),
    "timm_dinov3": ("vit_small_patch16_dinov3", P8 | {"img_size": [32, 48]}),
    "timm_beit": ("beit_base_patch16_224", P8),
    "timm_pe_core": ("vit_pe_core_tiny_patch16_384", P8),
    "timm_rope_mixed": ("vit_small_patch16_rope_mixed_224", P8),
    "timm_aimv2": ("aimv2_large_patch14_224", P8),
}
STAGES = {"layers": (1, 1), "channels": (256, 512), "width_factor": 0.5}  # 128, 256.

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
VIT = SIZES | {"intermediate_size": 32}
DINO = SIZES | {"mlp_ratio": 2}
BIT = {
    "embedding_size": 32,
    "hidden_sizes": [128],
    "depths": [2],
    "num_labels": 5,
}
HF = {  # family: (kind, class, arguments of its config, of save_pretrained)
    "hf_vit": ("ViT", "ForImageClassification", VIT, {}),
    "hf_vit_tanh": (
        "ViT",
        "ForImageClassification",
        VIT
        | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
        | {"image_size": [32, 48], "num_channels": 1},
        {},
    ),
    "hf_vit_model": ("ViT", "Model", VIT, {}),
    "hf_vit_sharded": (
        "ViT",
        "ForImageClassification",
        VIT,
        {"max_shard_size": "20KB"},
    ),
    "hf_vit_new_names": (
        "ViT",
        "ForImageClassification",
        VIT | {"qkv_bias": False},
        {"save_original_format": False},
    ),
    "hf_deit": ("DeiT", "ForImageClassification", VIT, {}),
    "hf_deit_distilled": ("DeiT", "ForImageClassificationWithTeacher", VIT, {}),
    "hf_dinov2": ("Dinov2", "ForImageClassification", DINO, {}),
    "hf_dinov2_reg": ("Dinov2WithRegisters", "ForImageClassification", DINO, {}),
    "hf_dinov2_reg_model": ("Dinov2WithRegisters", "Model", DINO, {}),
    "hf_bit": ("Bit", "ForImageClassification", BIT, {}),
    "hf_bit_deep": (
        "Bit",
        "ForImageClassification",
        BIT | {"hidden_sizes": [128, 256, 512], "depths": [2, 1, 1]},
        {},
    ),
    "hf_clip": ("CLIPVision", "Model", VIT, {}),
    "hf_siglip": ("SiglipVision", "Model", VIT, {}),
    "hf_dinov3": ("DINOv3ViT", "Model", VIT | {"num_register_tokens": 2}, {}),
    "hf_quick_gelu": ("ViT", "Model", VIT | {"hidden_act": "quick_gelu"}, {}),
    "hf_swiglu": ("Dinov2", "Model", DINO | {"use_swiglu_ffn": True}, {}),
    "hf_bit_same": ("Bit", "Model", BIT | {"global_padding": "same"}, {}),
}
REFUSED = {  # Families that we do not compute: what the error says.
    "hf_bit_same": 'global_padding="SAME"',
    "hf_quick_gelu": "Expected no hidden layer",
}
FAMILIES = [
    *(family for family in TIMM | HF if family not in REFUSED),
    *("timm_hybrid", "timm_bit", "torchvision_vit", "open_clip"),
]
PROCESSORS = {"ViT": "ViT", "DeiT": "DeiT"}
FIXTURES = (
    "timm_vit",
    "timm_vit_gap",
    "timm_vit_map_cls",
    "timm_dinov2_reg4",
    "timm_deit_distilled",
    "timm_hybrid_r",
    "timm_bit",
    "hf_vit_sharded",
    "hf_vit_new_names",
    "hf_deit_distilled",
    "hf_dinov2_reg_model",
    "hf_bit",
    "timm_clip",
    "timm_eva02",
    "timm_dinov3",
    "timm_beit",
    "timm_pe_core",
    "timm_rope_mixed",
    "timm_aimv2",
    "hf_clip",
    "hf_siglip",
    "hf_dinov3",
    "torchvision_vit",
    "open_clip",
)


@torch.no_grad()
def randomise(model, seed):
    """Every parameter non-trivial (norms, tokens, biases too), outputs of order 1."""
    generator = torch.Generator().manual_seed(seed)
    norms = (torch.nn.LayerNorm, torch.nn.GroupNorm)
    scales = {
        f"{name}.weight" for name, m in model.named_modules() if isinstance(m, norms)
    }
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if not parameter.ndim:  # A temperature of CLIP's.
            continue
        if name in scales or name.endswith(("gamma", "lambda1")):
            parameter.copy_(1 + 0.2 * noise)
        elif parameter.ndim == 1:
            parameter.copy_(0.1 * noise)
        elif name.endswith(("token", "tokens", "embed", "embeddings", "latent")):
            parameter.copy_(0.3 * noise)
        else:  # A mean off zero, for the standardized convolutions.
            fan_in = parameter[0].numel()
            parameter.copy_(noise / fan_in**0.5 + 1 / fan_in)
    return model.eval()


def images(seed, height, width, channels=3):
    """uint8 [2, height, width, channels]."""
    shape = (2, height, width, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@torch.no_grad()
def run(model, pixels):
    """What our model returns for the same file: logits, else pooled features."""
    scaled = (pixels.transpose(0, 3, 1, 2).astype("float32") - 127.5) / 127.5
    out = model(torch.from_numpy(np.ascontiguousarray(scaled)))
    if isinstance(out, torch.Tensor):
        return out.numpy()
    if "logits" in out:
        return out.logits.numpy()
    return out.pooler_output.numpy()


def _pair(size):
    return [size, size] if isinstance(size, int) else list(size)


def _timm_resnet(family):
    import timm
    from timm.layers import StdConv2d, StdConv2dSame
    from timm.models import resnetv2
    from timm.models.vision_transformer_hybrid import _create_vision_transformer_hybrid

    if family == "timm_bit":  # As _create_resnetv2_bit makes it, with few units.
        conv = partial(StdConv2d, eps=1e-8)
        model = resnetv2.ResNetV2(
            **STAGES, num_classes=5, stem_type="fixed", conv_layer=conv
        )
        model.pretrained_cfg = timm.create_model("resnetv2_50x1_bit").pretrained_cfg
        return model, {}, [40, 56]
    backbone = resnetv2.ResNetV2(  # R50+ViT's, with few units.
        **STAGES,
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=partial(StdConv2dSame, eps=1e-8),
    )
    name = "vit_base_r50_s16_224"
    model = _create_vision_transformer_hybrid(
        name, backbone=backbone, img_size=[32, 48], **WIDE
    )
    return model, {"embed_layer": None, "num_heads": 4}, [32, 48]


def _make_timm(family, folder, seed):
    import timm

    if family in TIMM:
        architecture, arguments = TIMM[family]
        model = timm.create_model(architecture, **arguments)
        size, channels = _pair(arguments["img_size"]), arguments.get("in_chans", 3)
        saved = {}
    else:
        (model, arguments, size), channels = _timm_resnet(family), 3
        saved = {"model_args": arguments}
    randomise(model, seed)
    timm.models.save_for_hf(model, folder, safe_serialization=True, **saved)
    return model, images(seed, *size, channels)


def _make_hf(family, folder, seed):
    kind, head, arguments, saving = HF[family]
    config = getattr(transformers, f"{kind}Config")(**arguments)
    model = randomise(getattr(transformers, kind + head)(config), seed)
    model.save_pretrained(folder, **saving)
    size = _pair(getattr(config, "image_size", [40, 56]))
    processor = getattr(transformers, f"{PROCESSORS.get(kind, 'Bit')}ImageProcessor")
    processor().save_pretrained(folder)
    pixels = images(seed, *size, getattr(config, "num_channels", 3))
    return model, pixels


def _saved(tensors, folder, **config):
    """A file of tensors only, with what they do not show in a config.json of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: at.detach().contiguous() for name, at in tensors.items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def _make_torchvision(family, folder, seed):
    from torchvision.models import VisionTransformer

    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 16, "mlp_dim": 32}
    model = VisionTransformer(image_size=32, patch_size=8, num_classes=5, **sizes)
    randomise(model, seed)
    _saved(model.state_dict(), folder, num_heads=4)
    return model, images(seed, 32, 32, 3)


def _make_open_clip(family, folder, seed):
    """OpenAI's names, which timm reads, and timm's outputs."""
    import timm
    from timm.models.vision_transformer import checkpoint_filter_fn

    model = timm.create_model("vit_base_patch16_clip_quickgelu_224", **P8)
    width, generator = 16, torch.Generator().manual_seed(seed)

    def block(i):
        attention, mlp = f"transformer.resblocks.{i}.attn", 2 * width
        return {
            f"transformer.resblocks.{i}.ln_1.weight": (width,),
            f"transformer.resblocks.{i}.ln_1.bias": (width,),
            f"{attention}.in_proj_weight": (3 * width, width),
            f"{attention}.in_proj_bias": (3 * width,),
            f"{attention}.out_proj.weight": (width, width),
            f"{attention}.out_proj.bias": (width,),
            f"transformer.resblocks.{i}.ln_2.weight": (width,),
            f"transformer.resblocks.{i}.ln_2.bias": (width,),
            f"transformer.resblocks.{i}.mlp.c_fc.weight": (mlp, width),
            f"transformer.resblocks.{i}.mlp.c_fc.bias": (mlp,),
            f"transformer.resblocks.{i}.mlp.c_proj.weight": (width, mlp),
            f"transformer.resblocks.{i}.mlp.c_proj.bias": (width,),
        }

    shapes = {
        "class_embedding": (width,),
        "positional_embedding": (17, width),
        "conv1.weight": (width, 3, 8, 8),
        **{f"ln_{at}.{part}": (width,) for at in ("pre", "post") for part in PARTS},
        **block(0),
        **block(1),
        "proj": (width, 5),
    }
    tensors = {
        f"visual.{name}": 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    model.load_state_dict(checkpoint_filter_fn(dict(tensors), model))
    tensors["token_embedding.weight"] = torch.randn(7, width, generator=generator)
    _saved(tensors, folder, num_heads=4, activation="quick_gelu")
    return model.eval(), images(seed, 32, 32, 3)


PARTS = ("weight", "bias")
MAKERS = {
    "timm": _make_timm,
    "hf": _make_hf,
    "torchvision": _make_torchvision,
    "open": _make_open_clip,
}


def make(family, folder, seed=0):
    """Writes a family's files into `folder`; images and the library's outputs."""
    maker = MAKERS[family.partition("_")[0]]
    model, pixels = maker(family, folder, seed)
    return pixels, run(model, pixels)


if __name__ == "__main__":
    for seed, family in enumerate(FIXTURES):
        if not re.search(sys.argv[2] if len(sys.argv) > 2 else ".", family):
            continue
        folder = Path(sys.argv[1]) / family
        pixels, outputs = make(family, folder, seed)
        np.savez(folder / "io.npz", images=pixels, outputs=outputs)
