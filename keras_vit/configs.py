"""Table 1 and the variants around it, as values (arXiv:2010.11929v2, section 4.1).

One row of a table is one `ViTConfig`; `dataclasses.replace` is the override.
Standard library only.
"""

import dataclasses
from typing import Literal

Classifier = Literal["token", "gap", "unpooled", "token_unpooled"]
Gelu = Literal["tanh", "erf"]

CLASSIFIERS = ("token", "gap", "unpooled", "token_unpooled")
GELUS = ("tanh", "erf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """One row of Table 1, a patch size, and what section D.3 and B.1 vary.

    Raises:
        ValueError: if a size is not positive, a choice is unknown, or
            `hidden_size` is not a multiple of `num_heads` (Appendix A).
    """

    patch_size: int  # P, in pixels; the embedding's kernel and stride.
    num_layers: int  # "Layers".
    hidden_size: int  # "Hidden size D".
    mlp_dim: int  # "MLP size".
    num_heads: int  # "Heads", k.
    dropout_rate: float = 0.0  # B.1, Table 3.
    attention_dropout_rate: float = 0.0  # Zero in every published config.
    classifier: Classifier = "token"  # D.3; "unpooled": the head on every token.
    representation_size: int | None = None  # Width of the tanh `pre_logits`, or none.
    head_bias_init: float = 0.0
    # The published weights were trained with Flax's default, the tanh approximation;
    # torch's and Keras's default is "erf" (up to 8e-4 apart in the logits).
    gelu: Gelu = "tanh"
    layer_norm_epsilon: float = 1e-6  # Flax's LayerNorm default; Keras's is 1e-3.

    def __post_init__(self) -> None:
        for field in (
            "patch_size",
            "num_layers",
            "hidden_size",
            "mlp_dim",
            "num_heads",
            "representation_size",
        ):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(
                    f"Expected {field} to be a positive integer. "
                    f"Received: {field}={value!r}"
                )
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "Expected hidden_size to be a multiple of num_heads (Appendix A: "
                f"D_h = D / k). Received: hidden_size={self.hidden_size}, "
                f"num_heads={self.num_heads}"
            )
        for field in ("dropout_rate", "attention_dropout_rate"):
            value = getattr(self, field)
            if not 0 <= value < 1:
                raise ValueError(
                    f"Expected {field} in [0, 1). Received: {field}={value!r}"
                )
        for field, choices in (("classifier", CLASSIFIERS), ("gelu", GELUS)):
            value = getattr(self, field)
            if value not in choices:
                raise ValueError(
                    f"Expected {field} to be one of {', '.join(choices)}. "
                    f"Received: {field}={value!r}"
                )

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: 1 with a class token, else 0."""
        return 1 if self.classifier in ("token", "token_unpooled") else 0


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


# vit_jax/configs/models.py: L/16 and H/14 fine-tune with dropout 0.1, the others
# with none.
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

# Every variant under the paper's spelling and under its builder's name.
VARIANTS = VIT_VARIANTS | {
    builder_name(variant): config for variant, config in VIT_VARIANTS.items()
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
