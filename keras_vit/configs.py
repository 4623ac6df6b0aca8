"""Table 1 and the variants around it, as values (arXiv:2010.11929v2, section 4.1).

One row of a table is one config; `dataclasses.replace` is the override.
Standard library only.
"""

import dataclasses
from typing import Any, Literal

Classifier = Literal["token", "gap", "map", "unpooled", "token_unpooled", "distilled"]
Gelu = Literal["tanh", "erf"]
Position = Literal["none", "1d", "2d", "sincos2d", "relative"]
PositionAt = Literal["stem", "every_layer", "every_layer_shared"]
Attention = Literal["full", "axial"]
Unit = Literal["v1", "v2", "axial"]
PoolPadding = Literal["zero", "inf"]

CLASS_TOKENS = {  # Classifier: tokens before the patches that are the head's.
    "token": 1,
    "gap": 0,
    "map": 0,
    "unpooled": 0,
    "token_unpooled": 1,
    "distilled": 2,
}


def _check_choice(config: Any, field: str, choices: Any) -> None:
    value = getattr(config, field)
    if value not in tuple(choices):  # A dict would hash the value.
        raise ValueError(
            f"Expected {field} to be one of {', '.join(choices)}. "
            f"Received: {field}={value!r}"
        )


def _check_positive(config: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(config, field)
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                f"Expected {field} to be a positive integer. "
                f"Received: {field}={value!r}"
            )


def _check_epsilon(config: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(config, field)
        if not value > 0:
            raise ValueError(
                f"Expected {field} to be positive. Received: {field}={value!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """A ResNet of bottleneck units, group-normalised, with standardised kernels (4.1).

    The stem of a hybrid is of units "v1" (vit_jax/models_resnet.py), a BiT model of
    "v2" (pre-activation, big_transfer); "axial" is "v2" with row and column attention
    in the place of the 3x3 convolution (D.6). The families differ in every epsilon.

    Raises:
        ValueError: if a size is not positive or a choice is unknown.
    """

    num_layers: tuple[int, ...]  # Units of each stage; (): the root alone.
    width: int = 64  # Channels of the root; stage i has 4 * width * 2^i.
    unit: Unit = "v2"
    kernel_epsilon: float = 1e-10
    # w / (std + epsilon) where outside, w / sqrt(variance + epsilon) where not.
    epsilon_outside: bool = False
    group_norm_epsilon: float = 1e-5
    # BiT pads its max-pool with zeros, "subtly not the same" as minus infinity, which
    # big_vision's copy pads with; "v1" always has minus infinity.
    pool_padding: PoolPadding = "zero"
    num_heads: int = 8  # Of "axial".
    head_bias_init: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.num_layers, tuple | list) or any(
            not isinstance(units, int) or units < 1 for units in self.num_layers
        ):
            raise ValueError(
                "Expected num_layers to be positive integers, the units of each stage. "
                f"Received: num_layers={self.num_layers!r}"
            )
        object.__setattr__(self, "num_layers", tuple(self.num_layers))
        _check_positive(self, "width", "num_heads")
        _check_choice(self, "unit", ("v1", "v2", "axial"))
        _check_choice(self, "pool_padding", ("zero", "inf"))
        _check_epsilon(self, "kernel_epsilon", "group_norm_epsilon")
        heads = self.num_heads if self.unit == "axial" else 1
        if self.width % 32 or self.width % heads:
            raise ValueError(
                "Expected width to be a multiple of 32, the groups of a norm, and of "
                f"an axial unit's heads. Received: width={self.width}, "
                f"num_heads={self.num_heads}"
            )

    @property
    def stride(self) -> int:
        """Pixels to a place of the feature map: 4 after the root, then 2 a stage."""
        return 4 << max(len(self.num_layers) - 1, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """One row of Table 1, a patch size, and what B.1 and D.2 to D.6 vary.

    Raises:
        ValueError: if a size is not positive, a choice is unknown, or
            `hidden_size` is not a multiple of `num_heads` (Appendix A).
    """

    patch_size: int  # P, in pixels (of the feature map, in a hybrid).
    num_layers: int  # "Layers".
    hidden_size: int  # "Hidden size D".
    mlp_dim: int  # "MLP size".
    num_heads: int  # "Heads", k.
    dropout_rate: float = 0.0  # B.1, Table 3.
    attention_dropout_rate: float = 0.0  # Zero in every published config.
    # Of the last block; block i of L has i / (L - 1) of it (AugReg; big_vision's
    # models/mlp_mixer.py and timm alike).
    stochastic_depth_rate: float = 0.0
    # D.3; "map" is big_vision's; "unpooled": the head on every token; "distilled": on
    # the class and the distillation token side by side (DeiT's two heads in one).
    classifier: Classifier = "token"
    representation_size: int | None = None  # Width of the tanh `pre_logits`, or none.
    head_bias_init: float = 0.0
    # The published weights were trained with Flax's default, the tanh approximation;
    # torch's and Keras's default is "erf" (up to 8e-4 apart in the logits).
    gelu: Gelu = "tanh"
    layer_norm_epsilon: float = 1e-6  # Flax's LayerNorm default; Keras's is 1e-3.
    resnet: ResNetConfig | None = None  # 3.1, hybrid: patches of its feature map.
    position: Position = "1d"  # D.4; "sincos2d" is big_vision's, and not learned.
    position_at: PositionAt = "stem"  # D.4; "relative" is always in every layer.
    attention: Attention = "full"  # D.6.
    num_registers: int = 0  # Learned tokens of no class (DINOv2), after the class's.

    def __post_init__(self) -> None:
        _check_positive(
            self, "patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads"
        )
        if self.representation_size is not None:
            _check_positive(self, "representation_size")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "Expected hidden_size to be a multiple of num_heads (Appendix A: "
                f"D_h = D / k). Received: hidden_size={self.hidden_size}, "
                f"num_heads={self.num_heads}"
            )
        for field in (
            "dropout_rate",
            "attention_dropout_rate",
            "stochastic_depth_rate",
        ):
            value = getattr(self, field)
            if not 0 <= value < 1:
                raise ValueError(
                    f"Expected {field} in [0, 1). Received: {field}={value!r}"
                )
        if not isinstance(self.num_registers, int) or self.num_registers < 0:
            raise ValueError(
                "Expected num_registers to be an integer, zero or more. "
                f"Received: num_registers={self.num_registers!r}"
            )
        _check_epsilon(self, "layer_norm_epsilon")
        _check_choice(self, "classifier", tuple(CLASS_TOKENS))
        _check_choice(self, "gelu", ("tanh", "erf"))
        _check_choice(self, "position", ("none", "1d", "2d", "sincos2d", "relative"))
        _check_choice(
            self, "position_at", ("stem", "every_layer", "every_layer_shared")
        )
        _check_choice(self, "attention", ("full", "axial"))
        self._check_together()

    def _check_together(self) -> None:
        divisor, least = {"2d": (2, 2), "sincos2d": (4, 8)}.get(self.position, (1, 1))
        if self.hidden_size % divisor or self.hidden_size < least:
            raise ValueError(
                f"Expected hidden_size to be a multiple of {divisor}, at least "
                f"{least}, for "
                f"position={self.position!r} (D.4: halves for X and Y). "
                f"Received: hidden_size={self.hidden_size}"
            )
        if not isinstance(self.resnet, ResNetConfig | None):
            raise ValueError(
                "Expected resnet to be a ResNetConfig or None (3.1). "
                f"Received: resnet={self.resnet!r}"
            )
        if self.resnet is not None and self.resnet.unit != "v1":
            raise ValueError(
                "Expected a hybrid's resnet to have unit='v1' (3.1; the official "
                f"code's post-activation unit). Received: unit={self.resnet.unit!r}"
            )
        if self.attention == "axial" and self.stochastic_depth_rate:
            raise ValueError(
                "Expected stochastic_depth_rate=0 for attention='axial': its blocks "
                "see rows and columns, not images (D.6). Received: "
                f"stochastic_depth_rate={self.stochastic_depth_rate}"
            )
        if self.attention == "axial" and self.num_prefix_tokens:
            raise ValueError(
                "Expected a classifier without a class token, and no registers, for "
                "attention='axial': rows and columns have no place for them (D.6). "
                f"Received: classifier={self.classifier!r}, "
                f"num_registers={self.num_registers}"
            )

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: the class token, if any, then registers."""
        return CLASS_TOKENS[self.classifier] + self.num_registers


def _row(num_layers: int, hidden_size: int, mlp_dim: int, num_heads: int) -> ViTConfig:
    return ViTConfig(
        patch_size=16,
        num_layers=num_layers,
        hidden_size=hidden_size,
        mlp_dim=mlp_dim,
        num_heads=num_heads,
    )


TABLE_1 = {  # B, L and H are the paper's; Ti and S are DeiT's, as in AugReg.
    "Ti": _row(12, 192, 768, 3),
    "S": _row(12, 384, 1536, 6),
    "B": _row(12, 768, 3072, 12),
    "L": _row(24, 1024, 4096, 16),
    "H": _row(32, 1280, 5120, 16),
}


def builder_name(variant: str) -> str:
    """The paper's spelling as a Python name: "ViT-B/16" -> "ViT_B16"."""
    return variant.replace("/", "").replace("-", "_").replace("+", "_")


# vit_jax/configs/models.py: L/16, H/14 and the R50 hybrids fine-tune with dropout 0.1,
# the others with none.
VIT_VARIANTS = {
    f"ViT-{size}/{patch_size}": dataclasses.replace(
        TABLE_1[size],
        patch_size=patch_size,
        dropout_rate=0.1 if (size, patch_size) in {("L", 16), ("H", 14)} else 0.0,
    )
    for size, patch_size in (
        ("Ti", 16),
        ("S", 16),
        ("S", 32),
        ("B", 8),
        ("B", 16),
        ("B", 32),
        ("L", 16),
        ("L", 32),
        ("H", 14),
    )
}


def _hybrid(
    size: str, units: tuple[int, ...], patch_size: int = 1, dropout_rate: float = 0.0
) -> ViTConfig:
    """Patches of a feature map (3.1): of one place, but for R+ViT-Ti/16's 8x8."""
    resnet = ResNetConfig(
        num_layers=units,
        unit="v1",
        kernel_epsilon=1e-5,
        epsilon_outside=True,
        group_norm_epsilon=1e-6,
    )
    return dataclasses.replace(
        TABLE_1[size], patch_size=patch_size, dropout_rate=dropout_rate, resnet=resnet
    )


# vit_jax/configs/models.py; the /16 ones move stage 4's units into stage 3 (section
# 4.1), which makes their sequence four times as long. R50+B/32 and R50+L/16 are Table
# 6's; the official code lists neither, so they follow their siblings.
# R+ViT-Ti/16 cuts 8x8 patches of the root's map: 32 pixels, despite its name.
HYBRID_VARIANTS = {
    "R+ViT-Ti/16": _hybrid("Ti", (), patch_size=8),
    "R26+ViT-S/32": _hybrid("S", (2, 2, 2, 2)),
    "R26+ViT-B/32": _hybrid("B", (2, 2, 2, 2)),
    "R50+ViT-B/16": _hybrid("B", (3, 4, 9), dropout_rate=0.1),
    "R50+ViT-B/32": _hybrid("B", (3, 4, 6, 3), dropout_rate=0.1),
    "R50+ViT-L/16": _hybrid("L", (3, 4, 9), dropout_rate=0.1),
    "R50+ViT-L/32": _hybrid("L", (3, 4, 6, 3), dropout_rate=0.1),
}

BIT_DEPTHS = {  # 200 is big_vision's (bit.py); the others are big_transfer's.
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
BIT_VARIANTS = {
    f"BiT-R{depth}x{factor}": ResNetConfig(
        num_layers=BIT_DEPTHS[depth], width=64 * factor
    )
    for depth, factor in (
        (50, 1),
        (50, 2),
        (50, 3),
        (101, 1),
        (101, 3),
        (152, 1),
        (152, 2),
        (152, 4),
        (200, 3),
    )
}

# D.6. Rows and columns leave no place for a class token, so the tokens are averaged.
AXIAL_VARIANTS = {
    f"Axial-ViT-B/{patch_size}": dataclasses.replace(
        TABLE_1["B"], patch_size=patch_size, classifier="gap", attention="axial"
    )
    for patch_size in (16, 32)
}
AXIAL_RESNETS = {
    "Axial-ResNet50": ResNetConfig(num_layers=BIT_DEPTHS[50], unit="axial")
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EfficientNetConfig:
    """One scaling of EfficientNet-B0 (arXiv:1905.11946), the other system of Table 2.

    Raises:
        ValueError: if a coefficient or the size is not positive, or a rate is not in
            [0, 1).
    """

    width_coefficient: float  # Multiplies B0's filters.
    depth_coefficient: float  # Multiplies B0's repeats of a block.
    image_size: int  # "Resolution": pixels a side.
    dropout_rate: float  # Before the head.
    drop_connect_rate: float = 0.2  # Of the last block; the first has none.

    def __post_init__(self) -> None:
        for field in ("width_coefficient", "depth_coefficient", "image_size"):
            value = getattr(self, field)
            if not value > 0:
                raise ValueError(
                    f"Expected {field} to be positive. Received: {field}={value!r}"
                )
        for field in ("dropout_rate", "drop_connect_rate"):
            value = getattr(self, field)
            if not 0 <= value < 1:
                raise ValueError(
                    f"Expected {field} in [0, 1). Received: {field}={value!r}"
                )


# `efficientnet_params` of google-research/noisystudent, efficientnet_builder.py.
EFFICIENTNET_VARIANTS = {
    f"EfficientNet-{size}": EfficientNetConfig(
        width_coefficient=width,
        depth_coefficient=depth,
        image_size=image_size,
        dropout_rate=dropout_rate,
    )
    for size, width, depth, image_size, dropout_rate in (
        ("B0", 1.0, 1.0, 224, 0.2),
        ("B1", 1.0, 1.1, 240, 0.2),
        ("B2", 1.1, 1.2, 260, 0.3),
        ("B3", 1.2, 1.4, 300, 0.3),
        ("B4", 1.4, 1.8, 380, 0.4),
        ("B5", 1.6, 2.2, 456, 0.4),
        ("B6", 1.8, 2.6, 528, 0.5),
        ("B7", 2.0, 3.1, 600, 0.5),
        ("L2", 4.3, 5.3, 800, 0.5),  # Of arXiv:1911.04252; 480 million parameters.
    )
}

# Every variant under the paper's spelling and under its builder's name.
VARIANTS: dict[str, Any] = {  # Their kinds are those of the tables above.
    **VIT_VARIANTS,
    **HYBRID_VARIANTS,
    **BIT_VARIANTS,
    **AXIAL_VARIANTS,
    **AXIAL_RESNETS,
    **EFFICIENTNET_VARIANTS,
}
VARIANTS |= {builder_name(variant): config for variant, config in VARIANTS.items()}

# What libraries compute with, where tensors do not say: "paper" is vit_jax, big_vision
# and big_transfer. A hybrid's kernels are standardised as "v1", a BiT's as "v2".
_TORCH = {"kernel_epsilon": 1e-8, "epsilon_outside": False, "group_norm_epsilon": 1e-5}
NUMERICS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "vit": {"gelu": "tanh", "layer_norm_epsilon": 1e-6},
        "v1": {
            "kernel_epsilon": 1e-5,
            "epsilon_outside": True,
            "group_norm_epsilon": 1e-6,
        },
        "v2": {
            "kernel_epsilon": 1e-10,
            "epsilon_outside": False,
            "group_norm_epsilon": 1e-5,
        },
    },
    "timm": {
        "vit": {"gelu": "erf", "layer_norm_epsilon": 1e-6},
        "v1": _TORCH,
        "v2": _TORCH,
    },
    "hf": {
        "vit": {"gelu": "erf", "layer_norm_epsilon": 1e-12},
        "v1": _TORCH,
        "v2": _TORCH,
    },
}


def numerics_of(config: ViTConfig | ResNetConfig, numerics: str) -> dict[str, Any]:
    """The fields of `config` that `numerics` sets.

    Raises:
        ValueError: if `numerics` is unknown.
    """
    if numerics not in NUMERICS:
        raise ValueError(
            f"Expected numerics to be one of {', '.join(NUMERICS)}. "
            f"Received: numerics={numerics!r}"
        )
    table = NUMERICS[numerics]
    if isinstance(config, ResNetConfig):
        return dict(table["v1" if config.unit == "v1" else "v2"])
    fields = dict(table["vit"])
    if config.resnet is not None:
        fields["resnet"] = dataclasses.replace(config.resnet, **table["v1"])
    return fields
