"""Plain ViTs of later papers as timm lays them out, where its `VisionTransformer` does.

transformers has a class for each paper: no layout of it is here.
"""

from typing import Any

import numpy as np

from keras_vit.configs import PlainViTConfig
from keras_vit.weights import names
from keras_vit.weights.torch_layouts import Layout, ratio, refuse, split_tokens

_NORMS = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}
_POOLS = {"token": "token", "gap": "avg", "map": "map"}
# What timm's VisionTransformer has no argument for, and the value it computes.
_FIXED: dict[str, Any] = {
    "rotary": None,
    "relative_position": False,
    "post_norm": False,
    "head_bias": True,
    "map_heads": None,
    "map_mlp_dim": None,
}


def timm(
    config: PlainViTConfig,
    tensors: dict[str, np.ndarray],
    image_size: tuple[int, int],
    num_classes: int,
) -> Layout:
    """A plain ViT of a later paper as timm's `VisionTransformer`.

    Raises:
        ValueError: if timm's `VisionTransformer` cannot be told a part of it.
    """
    del num_classes  # timm states it elsewhere.
    for field, value in _FIXED.items():
        if getattr(config, field) != value:
            raise refuse("timm", f"{field}={getattr(config, field)!r}")
    if config.classifier not in _POOLS or config.qkv_bias == "qv":
        raise refuse(
            "timm", f"classifier={config.classifier!r}, qkv_bias={config.qkv_bias!r}"
        )
    placed, tokens = config.position_tokens, config.num_prefix_tokens
    if placed not in (None, 0, tokens):
        raise refuse("timm", f"position_tokens={placed} of {tokens}")
    if config.patch_bias == config.pre_norm or config.out_bias != config.mlp_bias:
        raise refuse(
            "timm",
            f"patch_bias={config.patch_bias}, pre_norm={config.pre_norm}, "
            f"out_bias={config.out_bias}, mlp_bias={config.mlp_bias}",
        )
    if config.gated_mlp and (config.activation != "silu" or config.mlp_norm):
        raise refuse("timm", "a gated MLP other than SwiGLU, or with a norm")
    written = names.TIMM.write(split_tokens(tensors, config))
    if config.gated_mlp:  # The gate, then what it multiplies.
        written = {
            name.replace(".mlp.fc1_packed.", ".mlp.fc1."): at
            for name, at in written.items()
            if ".mlp.fc1." not in name
        }
    own = {"cls_token", "dist_token"} & written.keys()
    registers = config.num_prefix_tokens - len(own)
    norm = _NORMS[config.norm]
    words: dict[str, Any] = {
        "img_size": list(image_size),
        "patch_size": config.patch_size,
        "embed_dim": config.hidden_size,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "mlp_ratio": ratio(config.mlp_dim * (1 + config.gated_mlp), config.hidden_size),
        "act_layer": config.activation,
        "norm_layer": norm,
        "embed_norm_layer": norm if config.embedding_norm else None,
        "class_token": bool(own),
        "reg_tokens": registers,
        "no_embed_class": placed == 0,
        "pos_embed": "learn" if "pos_embed" in written else "none",
        "global_pool": _POOLS[config.classifier],
        "pool_include_prefix": config.pool_prefix,
        "fc_norm": config.head_norm,
        "final_norm": config.final_norm or config.head_norm,
        "pre_norm": config.pre_norm,
        "qk_norm": config.qk_norm,
        "scale_attn_norm": config.attention_norm,
        "scale_mlp_norm": config.mlp_norm,
        "qkv_bias": config.qkv_bias == "full",
        "proj_bias": config.out_bias,
        "init_values": config.layer_scale,
    }
    if config.layer_norm_epsilon == 1e-5 and config.norm == "layer_norm":
        del words["norm_layer"]  # CLIP's architectures have this epsilon.
        return Layout(
            written, "vit_base_patch16_clip_224", words, "patch_embed.proj", "head"
        )
    kind = "vit_giant_patch14_dinov2" if config.gated_mlp else "vit_base_patch16_224"
    return Layout(written, kind, words, "patch_embed.proj", "head")
