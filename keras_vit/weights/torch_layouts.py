"""The tensors and the config of another library's checkpoint, by family."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_vit.configs import PlainViTConfig, ResNetConfig, ViTConfig
from keras_vit.weights import names, variables


class LayoutError(ValueError):
    """Another library's layout cannot represent a model."""


class Layout(NamedTuple):
    """A checkpoint in another library's layout.

    Attributes:
        tensors: tensors under the library's names.
        kind: timm's architecture, or transformers' model class.
        words: timm's `model_args`, or fields of transformers' config.json.
        first: timm's name of the first layer.
        last: timm's name of the head.
        epsilon: epsilon of the architecture's LayerNorms, if it is not timm's default.
    """

    tensors: dict[str, np.ndarray]
    kind: str
    words: dict[str, Any]
    first: str = ""
    last: str = ""
    epsilon: float | None = None


TIMM_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
TIMM_BITS = {
    (3, 4, 6, 3): "resnetv2_50x1_bit",
    (3, 4, 23, 3): "resnetv2_101x1_bit",
    (3, 8, 36, 3): "resnetv2_152x2_bit",
}


def timm_vit(
    config: ViTConfig,
    tensors: dict[str, np.ndarray],
    image_size: tuple[int, int],
    num_classes: int,
) -> Layout:
    """A ViT or a hybrid in timm's layout.

    Raises:
        ValueError: if timm has no name for a part of it.
    """
    del num_classes  # Written elsewhere in timm's config.
    _check_vit(config, "timm", ("token", "gap", "map", "distilled"))
    architecture, words = _timm_vit_words(config, image_size)
    written = names.TIMM.write(split_tokens(tensors, config))
    first = "patch_embed.proj"
    if config.resnet is not None:
        first = "patch_embed.backbone.stem.conv"
    if architecture == TIMM_HYBRIDS[()]:
        first = "patch_embed.backbone.conv"
        written = {
            name.replace("backbone.stem.", "backbone."): tensor
            for name, tensor in written.items()
        }
    return Layout(written, architecture, words, first, "head")


def timm_resnet(
    config: ResNetConfig,
    tensors: dict[str, np.ndarray],
    image_size: tuple[int, int],
    num_classes: int,
) -> Layout:
    """A BiT in timm's layout.

    Raises:
        ValueError: if timm has no name for a part of it.
    """
    del image_size, num_classes  # Written elsewhere in timm's config.
    _check_resnet(config, "timm")
    architecture, words = _timm_resnet_words(config)
    written = names.TIMM_BIT.write(tensors)
    return Layout(written, architecture, words, "stem.conv", "head.fc")


def hf_vit(
    config: ViTConfig,
    tensors: dict[str, np.ndarray],
    image_size: tuple[int, int],
    num_classes: int,
) -> Layout:
    """A ViT, a hybrid or a DeiT in transformers' layout.

    A ViT with a mean over the patches becomes an I-JEPA. One with attention pooling
    becomes SigLIP's image tower, which has no classes.

    Raises:
        ValueError: if transformers has no name for a part of it.
    """
    _check_vit(config, "hf", ("token", "gap", "map", "distilled"))
    if config.num_registers:
        raise refuse("hf", f"num_registers={config.num_registers}")
    if config.representation_size is not None and num_classes:
        raise refuse("hf", "a head after pre_logits")
    words = _hf_vit_words(config, image_size)
    dialect, kind = _HF_VITS[words["model_type"]]
    if config.classifier in ("gap", "map"):
        _check_pooled(config, num_classes)
    if config.classifier == "map":
        words["image_size"] = check_square(image_size, words["model_type"])
        return Layout(dialect.write(split_tokens(tensors, config)), kind, words)
    written = dialect.write(split_tokens(tensors, config))
    kind += "ForImageClassification" if num_classes else "Model"
    if config.classifier == "distilled" and num_classes:
        kind += "WithTeacher"
    return Layout(written, kind, words)


_HF_VITS = {  # Names and class by model_type.
    "vit": (names.HF, "ViT"),
    "vit-hybrid": (names.HF, "ViTHybrid"),
    "deit": (names.HF_DEIT, "DeiT"),
    "ijepa": (names.HF_IJEPA, "IJepa"),
    "siglip_vision_model": (names.HF_CLIP.spelled(()), "SiglipVisionModel"),
}


def _check_pooled(config: ViTConfig, num_classes: int) -> None:
    """Raises for parts that neither I-JEPA nor SigLIP's image tower has."""
    if config.resnet is not None or config.representation_size is not None:
        raise refuse(
            "hf", f"classifier={config.classifier!r} with a stem or with pre_logits"
        )
    if config.classifier == "map" and num_classes:
        raise refuse("hf", "a head after attention pooling (SigLIP has none)")


def check_square(image_size: tuple[int, int], kind: str) -> int:
    """The side of square images; raises for others, which `kind` does not support."""
    if image_size[0] != image_size[1]:
        raise refuse(
            "hf", f"image_size={image_size} for {kind}, which requires square images"
        )
    return image_size[0]


def hf_resnet(
    config: ResNetConfig,
    tensors: dict[str, np.ndarray],
    image_size: tuple[int, int],
    num_classes: int,
) -> Layout:
    """A BiT in transformers' layout.

    Raises:
        ValueError: if transformers has no name for a part of it.
    """
    del image_size  # Written in the config of transformers' processor.
    _check_resnet(config, "hf")
    kind = "BitForImageClassification" if num_classes else "BitModel"
    return Layout(names.HF_BIT.write(tensors), kind, _hf_resnet_words(config))


def refuse(format: str, what: str) -> LayoutError:
    """The error for a model that a format cannot represent."""
    return LayoutError(
        f"Expected a model that format={format!r} can represent. Received: {what}. "
        "Use model.save('model.keras'), or format='npz' for the paper's models"
    )


def _check_vit(config: ViTConfig, format: str, classifiers: tuple[str, ...]) -> None:
    _check_fields(
        config,
        format,
        {
            "classifier": classifiers,
            "position": ("1d",),
            "position_at": ("stem",),
            "attention": ("full",),
        },
    )


def _check_resnet(config: ResNetConfig, format: str) -> None:
    _check_fields(config, format, {"unit": ("v2",), "pool_padding": ("zero",)})


def _check_fields(
    config: Any, format: str, expressible: Mapping[str, tuple[str, ...]]
) -> None:
    for field, values in expressible.items():
        if getattr(config, field) not in values:
            raise refuse(format, f"{field}={getattr(config, field)!r}")


def split_tokens(
    tensors: dict[str, np.ndarray], config: ViTConfig | PlainViTConfig
) -> dict[str, np.ndarray]:
    """Splits `cls` into the tokens of torch libraries, and DeiT's head into two."""
    if "cls" in tensors:
        cls = tensors.pop("cls")
        own = config.num_class_tokens
        split = {
            "cls_token": cls[:, : min(own, 1)],
            "dist_token": cls[:, 1:own],
            "reg_token": cls[:, own:],
        }
        tensors |= {name: token for name, token in split.items() if token.shape[1]}
    if variables.POSITIONS in tensors:
        tensors["pos_embed"] = tensors.pop(variables.POSITIONS)
    if config.classifier == "distilled" and "head/kernel" in tensors:
        kernel, bias = tensors.pop("head/kernel") * 2, tensors.pop("head/bias")
        for name, half in zip(("head", "head_dist"), np.split(kernel, 2), strict=True):
            tensors |= {f"{name}/kernel": half, f"{name}/bias": bias}
    return tensors


def _timm_vit_words(
    config: ViTConfig, image_size: tuple[int, int]
) -> tuple[str, dict[str, Any]]:
    if config.representation_size is not None:
        raise refuse("timm", f"representation_size={config.representation_size}")
    arguments: dict[str, Any] = {
        "img_size": list(image_size),
        "embed_dim": config.hidden_size,
        "depth": config.num_layers,
        "num_heads": config.num_heads,
        "mlp_ratio": ratio(config.mlp_dim, config.hidden_size),
        "act_layer": "gelu_tanh" if config.gelu == "tanh" else "gelu",
    }
    architecture = "vit_base_patch16_224"
    if config.resnet is not None:
        units = config.resnet.num_layers
        if config.classifier == "distilled":
            raise refuse("timm", "a hybrid with a distillation token")
        if units not in TIMM_HYBRIDS or config.resnet.width != 64:
            raise refuse(
                "timm", f"a stem of units {units}, width {config.resnet.width}"
            )
        architecture = TIMM_HYBRIDS[units]
    if config.resnet is None or not config.resnet.num_layers:
        arguments["patch_size"] = config.patch_size
    elif config.patch_size != 1:
        raise refuse("timm", f"patch_size={config.patch_size} on a feature map")
    if config.classifier == "distilled":
        architecture = "deit_base_distilled_patch16_224"
    if config.classifier in ("gap", "map"):
        pool = "avg" if config.classifier == "gap" else "map"
        arguments |= {"class_token": False, "global_pool": pool, "fc_norm": False}
    if config.num_registers:
        if config.classifier == "distilled":
            raise refuse("timm", "registers with a distillation token")
        arguments["reg_tokens"] = config.num_registers
    return architecture, arguments


def ratio(mlp_dim: int, hidden_size: int) -> float:
    """Timm's factor of the hidden size; the product is rounded down."""
    ratio = mlp_dim / hidden_size
    exact = int(hidden_size * ratio) == mlp_dim
    return ratio if exact else (mlp_dim + 0.5) / hidden_size


def _timm_resnet_words(config: ResNetConfig) -> tuple[str, dict[str, Any]]:
    """Timm has 50x1, 50x3, ...; other widths are expressed as channels."""
    if config.num_layers not in TIMM_BITS:
        raise refuse("timm", f"a BiT of units {config.num_layers}")
    architecture = TIMM_BITS[config.num_layers]
    factor = 2 if architecture == "resnetv2_152x2_bit" else 1  # Built in, multiplies.
    if config.width == 64 * factor:
        return architecture, {}
    if config.width % factor:
        raise refuse("timm", f"a BiT of width {config.width}")
    width = config.width // factor
    channels = [4 * width * 2**stage for stage in range(4)]
    return architecture, {"stem_chs": width, "channels": channels}


_HF_TYPES = {"distilled": "deit", "gap": "ijepa", "map": "siglip_vision_model"}


def _hf_vit_words(config: ViTConfig, image_size: tuple[int, int]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model_type": _HF_TYPES.get(config.classifier, "vit"),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        "layer_norm_eps": config.layer_norm_epsilon,
        "image_size": list(image_size),
        "patch_size": config.patch_size,
        "qkv_bias": True,
    }
    if config.representation_size is not None:
        fields["pooler_output_size"] = config.representation_size
    if config.resnet is None:
        return fields
    stages = len(config.resnet.num_layers)
    if not stages or config.classifier == "distilled":
        raise refuse("hf", f"a stem of units {config.resnet.num_layers}")
    stride, channels = config.resnet.stride, 4 * config.resnet.width * 2 ** (stages - 1)
    backbone = _hf_resnet_words(config.resnet) | {
        "layer_type": "bottleneck",
        "global_padding": "SAME",
        "embedding_dynamic_padding": True,
        "out_features": [f"stage{stages}"],
    }
    return fields | {
        "model_type": "vit-hybrid",
        "backbone_config": backbone,
        "backbone_featmap_shape": [1, channels, *(-(-s // stride) for s in image_size)],
    }


def _hf_resnet_words(config: ResNetConfig) -> dict[str, Any]:
    return {
        "model_type": "bit",
        "embedding_size": config.width,
        "hidden_sizes": [
            4 * config.width * 2**stage for stage in range(len(config.num_layers))
        ],
        "depths": list(config.num_layers),
        "layer_type": "preactivation",
        "hidden_act": "relu",
        "num_groups": 32,
        "global_padding": None,
        "embedding_dynamic_padding": False,
        "width_factor": 1,
    }
