"""Table 1 and the variants around it, as values (arXiv:2010.11929v2, section 4.1).

Each row of a table is one config; use `dataclasses.replace` to change fields. Plain
ViTs of later papers have a separate config, `PlainViTConfig`. Standard library only.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, TypeAlias, TypedDict, get_args

from keras_vit import arguments

__all__ = [
    "AXIAL_RESNETS",
    "AXIAL_VARIANTS",
    "BIT_VARIANTS",
    "EFFICIENTNET_VARIANTS",
    "EfficientNetConfig",
    "HYBRID_VARIANTS",
    "NUMERICS",
    "PlainViTConfig",
    "ResNetConfig",
    "RotaryConfig",
    "TABLE_1",
    "VARIANTS",
    "VIT_VARIANTS",
    "ViTConfig",
    "builder_name",
    "find_variant",
    "numerics_of",
]

Classifier = Literal["token", "gap", "map", "unpooled", "token_unpooled", "distilled"]
Gelu = Literal["tanh", "erf"]
Numerics = Literal["paper", "timm", "hf"]
Position = Literal["none", "1d", "2d", "sincos2d", "relative"]
PositionAt = Literal["stem", "every_layer", "every_layer_shared"]
Attention = Literal["full", "axial"]
Unit = Literal["v1", "v2", "axial"]
PoolPadding = Literal["zero", "inf"]
PlainClassifier = Literal[
    "token", "gap", "map", "unpooled", "token_unpooled", "distilled", "token_gap"
]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
Norm = Literal["layer_norm", "rms_norm"]
QKVBias = Literal["full", "qv", "none"]
RotaryKind = Literal["grid", "centered", "mixed"]

_CHOICES = {  # Fields of `ViTConfig` with a fixed set of strings.
    "classifier": Classifier,
    "gelu": Gelu,
    "position": Position,
    "position_at": PositionAt,
    "attention": Attention,
}
CLASS_TOKENS = {  # Classifier: number of tokens before the patches for the head.
    "token": 1,
    "gap": 0,
    "map": 0,
    "unpooled": 0,
    "token_unpooled": 1,
    "distilled": 2,
}
PLAIN_CLASS_TOKENS = CLASS_TOKENS | {"token_gap": 1}  # For a `PlainViTConfig`.
GELUS: dict[str, Activation] = {"erf": "gelu", "tanh": "gelu_tanh"}
"""`ViTConfig.gelu` as `PlainViTConfig.activation`."""


def _validate(config: Any, check: Callable[..., Any], *fields: str, **how: Any) -> None:
    """Validates each field and sets it to the plain value that `check` returns."""
    for field in fields:
        value = check(field, getattr(config, field), **how)
        object.__setattr__(config, field, value)


def _units(name: str, value: Any) -> tuple[int, ...]:
    """The units of each stage, positive integers; empty for the root only."""
    valid = isinstance(value, tuple | list) and all(
        arguments.is_integer(units) and 0 < units <= arguments.LARGEST_INTEGER
        for units in value
    )
    if not valid:
        raise ValueError(
            f"Expected {name}, the units of each stage, to be positive integers. "
            f"Received: {name}={arguments.shown(value)}"
        )
    return tuple(int(units) for units in value)


class ModelConfig:
    """The common interface of all configs."""

    @property
    def family(self) -> str:
        """The key of its row of `keras_vit.families.FAMILIES`."""
        raise NotImplementedError

    @property
    def num_class_tokens(self) -> int:
        """Tokens before the patches that the head reads (D.3)."""
        return 0

    def with_linear_head(self) -> Self:
        """Returns the config for a head that is one linear layer (B.1.1)."""
        return self


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig(ModelConfig):
    """A ResNet of bottleneck units with group norms and standardized kernels (4.1).

    The stem of a hybrid has the unit "v1" (vit_jax/models_resnet.py). A BiT has "v2"
    (pre-activation, big_transfer). "axial" is "v2" with row and column attention
    instead of the 3x3 convolution (D.6). The families have different epsilons; the
    defaults are BiT's.

    Attributes:
        num_layers: units of each stage; (): only the root.
        width: channels of the root; stage i, from 0, has 4 * width * 2^i. A multiple
            of 32 (the groups of a norm) and of an axial unit's heads.
        unit: "v1", "v2" or "axial".
        kernel_epsilon: epsilon of the standardization of a kernel, see `StdConv2D`;
            above 0.
        epsilon_outside: whether kernels are w / (std + epsilon), as in the hybrids, or
            w / sqrt(variance + epsilon), as in BiT.
        group_norm_epsilon: epsilon added to the variance of the 32 groups; above 0.
        pool_padding: padding of the root's max-pool: "zero", as in BiT, which is
            "subtly not the same" as "inf", minus infinity, as in big_vision. "v1"
            always has minus infinity.
        num_heads: k of every "axial" unit; not used by the others.
        head_bias_init: initial value of the head's bias, as in big_vision.

    Raises:
        ValueError: if a size is not positive, a choice is unknown, or `width` is not a
            multiple of 32 or of an axial unit's heads.
    """

    num_layers: tuple[int, ...]
    width: int = 64
    unit: Unit = "v2"
    kernel_epsilon: float = 1e-10
    epsilon_outside: bool = False
    group_norm_epsilon: float = 1e-5
    pool_padding: PoolPadding = "zero"
    num_heads: int = 8
    head_bias_init: float = 0.0

    def __post_init__(self) -> None:
        _validate(self, _units, "num_layers")
        _validate(self, arguments.integer, "width", "num_heads")
        _validate(self, arguments.choice, "unit", choices=get_args(Unit))
        _validate(self, arguments.choice, "pool_padding", choices=get_args(PoolPadding))
        _validate(self, arguments.positive, "kernel_epsilon", "group_norm_epsilon")
        _validate(self, arguments.flag, "epsilon_outside")
        _validate(self, arguments.real, "head_bias_init")
        heads = self.num_heads if self.unit == "axial" else 1
        if self.width % 32 or self.width % heads:
            raise ValueError(
                "Expected width to be a multiple of 32 (the groups of a norm) and of "
                f"an axial unit's heads. Received: width={self.width}, "
                f"num_heads={self.num_heads}"
            )

    @property
    def family(self) -> str:
        """The key of its row of `keras_vit.families.FAMILIES`."""
        return "axial ResNet" if self.unit == "axial" else "BiT"

    @property
    def stride(self) -> int:
        """Pixels per cell of the feature map: 4 after the root, doubled per stage."""
        return 4 << max(len(self.num_layers) - 1, 0)

    def numerics_by(self, library: str) -> dict[str, Any]:
        """Its fields in a library's numerics (section 3.1's GELU and norms).

        Args:
            library: "paper", "timm" or "hf": see `numerics_of`.

        Returns:
            Values by field, for `dataclasses.replace`.
        """
        return dict(NUMERICS[library]["v1" if self.unit == "v1" else "v2"])


class TransformerConfig(ModelConfig):
    """The common part of ViT configs: Table 1's sizes, tokens before the patches."""

    hidden_size: int
    num_heads: int
    num_registers: int

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches: class tokens, then registers."""
        return self.num_class_tokens + self.num_registers

    def _check_sizes(self) -> None:
        _validate(
            self,
            arguments.integer,
            *("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads"),
        )
        _validate(self, arguments.integer, "num_registers", least=0)
        _validate(
            self,
            arguments.rate,
            *("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"),
        )
        _validate(self, arguments.positive, "layer_norm_epsilon")

    def _check_heads(self, name: str, heads: int) -> None:
        if self.hidden_size % heads:
            raise ValueError(
                f"Expected hidden_size to be a multiple of {name} (Appendix A: "
                f"D_h = D / k). Received: hidden_size={self.hidden_size}, "
                f"{name}={heads}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(TransformerConfig):
    """One row of Table 1, a patch size, and the options of B.1 and D.2 to D.6.

    Attributes:
        patch_size: patch size P (3.1) in pixels; in a hybrid, in cells of the feature
            map.
        num_layers: number of layers L (Table 1).
        hidden_size: hidden size D (Table 1); a multiple of `num_heads`; for position
            "2d" also of 2; for "sincos2d" also of 4, and at least 8.
        mlp_dim: MLP size (Table 1).
        num_heads: number of heads k (Table 1).
        dropout_rate: Table 3's "Dropout" (B.1), in [0, 1).
        attention_dropout_rate: dropout rate of the attention probabilities, in [0, 1);
            0 in every published config.
        stochastic_depth_rate: drop rate of the last block, in [0, 1); block i of L,
            from 0, has i / (L - 1) of it (AugReg; as in big_vision's
            models/mlp_mixer.py and timm).
        classifier: input of the head (D.3). "token": z_L^0 of Equation 4; "gap": the
            mean of the patches; "map": big_vision's attention pooling; "unpooled" and
            "token_unpooled": every token, without and with a class token; "distilled":
            the class and the distillation token, concatenated (DeiT's two heads in
            one).
        representation_size: units of the tanh layer `pre_logits` before the head (3.1,
            "one hidden layer"), or None.
        head_bias_init: initial value of the head's bias, as in big_vision.
        gelu: "tanh", the approximation that the published weights were trained with
            (Flax's default), or "erf", the default of torch and Keras (logits differ by
            up to 8e-4).
        layer_norm_epsilon: epsilon added to the variance; Flax's default. Keras's is
            1e-3.
        resnet: the ResNet of a hybrid (3.1), with the unit "v1"; patches are cut from
            its feature map.
        position: position embedding (D.4); "sincos2d" is big_vision's and not learned.
        position_at: layers in which positions are added (D.4); no effect for
            "relative", which is in every layer.
        attention: "full", or "axial": rows, then columns (D.6), without a class token
            or registers.
        num_registers: number of learned tokens after the class token that are not
            classified (DINOv2).

    Raises:
        ValueError: if a size is not positive, a rate is not in [0, 1), a choice is
            unknown, `hidden_size` is not a multiple of `num_heads` (Appendix A), or
            two fields contradict each other.
    """

    patch_size: int
    num_layers: int
    hidden_size: int
    mlp_dim: int
    num_heads: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    classifier: Classifier = "token"
    representation_size: int | None = None
    head_bias_init: float = 0.0
    gelu: Gelu = "tanh"
    layer_norm_epsilon: float = 1e-6
    resnet: ResNetConfig | None = None
    position: Position = "1d"
    position_at: PositionAt = "stem"
    attention: Attention = "full"
    num_registers: int = 0

    def __post_init__(self) -> None:
        self._check_sizes()
        if self.representation_size is not None:
            _validate(self, arguments.integer, "representation_size")
        _validate(self, arguments.real, "head_bias_init")
        for field, choices in _CHOICES.items():
            _validate(self, arguments.choice, field, choices=get_args(choices))
        self._check_heads("num_heads", self.num_heads)
        self._check_together()

    def _check_together(self) -> None:
        divisor, least = {"2d": (2, 2), "sincos2d": (4, 8)}.get(self.position, (1, 1))
        if self.hidden_size % divisor or self.hidden_size < least:
            raise ValueError(
                f"Expected hidden_size to be a multiple of {divisor}, at least "
                f"{least}, for "
                f"position={self.position!r} (D.4: one half each for X and Y). "
                f"Received: hidden_size={self.hidden_size}"
            )
        if self.resnet is not None:
            arguments.instance("resnet", self.resnet, ResNetConfig)
        if self.resnet is not None and self.resnet.unit != "v1":
            raise ValueError(
                "Expected unit='v1' in a hybrid's resnet (3.1; the official code's "
                f"post-activation unit). Received: unit={self.resnet.unit!r}"
            )
        if self.attention == "axial" and self.stochastic_depth_rate:
            raise ValueError(
                "Expected stochastic_depth_rate=0 for attention='axial': its blocks "
                "process rows and columns, not images (D.6). Received: "
                f"stochastic_depth_rate={self.stochastic_depth_rate}"
            )
        if self.attention == "axial" and self.num_prefix_tokens:
            raise ValueError(
                "Expected a classifier without a class token, and no registers, for "
                "attention='axial': they belong to no row or column (D.6). "
                f"Received: classifier={self.classifier!r}, "
                f"num_registers={self.num_registers}"
            )

    @property
    def family(self) -> str:
        """The key of its row of `keras_vit.families.FAMILIES`."""
        if self.attention == "axial":
            return "axial ViT"
        return "ViT" if self.resnet is None else "hybrid"

    @property
    def stride(self) -> int:
        """Pixels per patch: P, in a hybrid times the stride of its feature map."""
        return self.patch_size * (1 if self.resnet is None else self.resnet.stride)

    @property
    def num_class_tokens(self) -> int:
        """Tokens before the patches that the head reads (D.3)."""
        return CLASS_TOKENS[self.classifier]

    def numerics_by(self, library: str) -> dict[str, Any]:
        """Its fields in a library's numerics (section 3.1's GELU and norms).

        Args:
            library: "paper", "timm" or "hf": see `numerics_of`.

        Returns:
            Values by field, for `dataclasses.replace`.
        """
        fields = dict(NUMERICS[library]["vit"])
        if self.resnet is not None:
            stem = self.resnet.numerics_by(library)
            fields["resnet"] = dataclasses.replace(self.resnet, **stem)
        return fields

    def with_linear_head(self) -> Self:
        """Returns the config for a head that is one linear layer (B.1.1)."""
        return dataclasses.replace(self, representation_size=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """Rotary positions (arXiv:2104.09864) of patches in a grid; other tokens have none.

    Queries and keys are rotated by the angle position * frequency. Half of the
    frequencies are for the row and half for the column.

    Attributes:
        kind: "grid": positions count patches and frequencies are
            temperature^(-i / (D_h / 4)) (EVA-02, PE, arXiv:2303.11331); "centered":
            positions are in [-1, 1] and frequencies are 2 pi times those (DINOv3,
            arXiv:2508.10104); "mixed": frequencies are learned for each head, jointly
            for row and column (arXiv:2403.13298).
        temperature: base of the frequencies, above 0; of the initial ones for "mixed".
        reference_grid: (rows, columns) of the grid in pre-training, to which positions
            are scaled ("grid" only); None: not scaled.
        offset: value added to a position, in patches ("grid" and "centered").
        order: whether the row ("yx") or the column ("xy") has the first frequencies.
        half: whether unit i of a head is rotated together with unit i + D_h / 2, or
            with its neighbor. "mixed" uses neighbors.

    Raises:
        ValueError: if a choice is unknown, the temperature is not positive, or the grid
            is not a pair of positive integers.
    """

    kind: RotaryKind = "grid"
    temperature: float = 10_000.0
    reference_grid: tuple[int, int] | None = None
    offset: float = 0.0
    order: Literal["yx", "xy"] = "yx"
    half: bool = False

    def __post_init__(self) -> None:
        _validate(self, arguments.choice, "kind", choices=get_args(RotaryKind))
        _validate(self, arguments.choice, "order", choices=("yx", "xy"))
        _validate(self, arguments.positive, "temperature")
        _validate(self, arguments.real, "offset")
        _validate(self, arguments.flag, "half")
        if self.reference_grid is not None:
            grid = arguments.sides(
                "reference_grid", self.reference_grid, letters="(rows, columns)"
            )
            object.__setattr__(self, "reference_grid", grid)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainViTConfig(TransformerConfig):
    """A plain ViT of a later paper: Table 1's sizes, and the changes to its block.

    The defaults are the paper's block with the exact GELU. Use `ViTConfig` for the
    paper's models, and this class for checkpoints that it cannot express.

    Attributes:
        patch_size: patch size P in pixels.
        num_layers: number of blocks L.
        hidden_size: hidden size D; a multiple of `num_heads`.
        mlp_dim: width of the MLP's hidden layer, after the gate.
        num_heads: number of heads k.
        dropout_rate: dropout rate after each dense layer except query, key and value,
            in [0, 1).
        attention_dropout_rate: dropout rate of the attention probabilities, in [0, 1).
        stochastic_depth_rate: drop rate of the last block, in [0, 1); see `ViTConfig`.
        classifier: input of the head: as in `ViTConfig`, or "token_gap", the class
            token and the mean of the patches, concatenated (DINOv2).
        num_registers: number of learned tokens after the class token, which are pooled
            only with `pool_prefix`; includes a class token that "gap" or "map" does not
            use.
        pool_prefix: whether "gap" and "map" include the tokens before the patches.
        map_heads: heads of "map"; None: `num_heads`.
        map_mlp_dim: width of the hidden layer of "map"; None: `mlp_dim`.
        norm: "layer_norm", or "rms_norm", which subtracts no mean and adds no bias.
        layer_norm_epsilon: epsilon added to the variance in every norm.
        post_norm: whether a block's norms follow attention and MLP, z + LN(f(z)).
        embedding_norm: whether a norm follows the patch embedding (AIMv2).
        pre_norm: whether a norm precedes the blocks (CLIP, PE).
        final_norm: whether a norm follows the blocks, before the pooling.
        head_norm: whether a norm follows the pooling (timm's fc_norm).
        activation: activation of the MLP: "gelu", "gelu_tanh", "quick_gelu" (CLIP's
            x sigmoid(1.702 x)), or "silu" (x sigmoid(x)).
        gated_mlp: whether the MLP's hidden layer is multiplied by an activated gate
            (SwiGLU with "silu", arXiv:2002.05202).
        mlp_norm: whether a norm follows the MLP's activation (EVA-02).
        attention_norm: whether a norm follows attention, before its output layer.
        qk_norm: whether queries and keys are normalized, separately in each head.
        qkv_bias: biases of query, key and value: "full", "qv" (not of the key) or
            "none".
        out_bias: whether attention's output layer has a bias.
        mlp_bias: whether the MLP's layers have biases.
        patch_bias: whether the patch embedding has a bias.
        head_bias: whether the head has a bias.
        layer_scale: initial value of LayerScale (arXiv:2103.17239); None: no
            LayerScale.
        position: position embedding: "1d" (learned) or "none".
        position_tokens: number of tokens before the patches that have a position;
            None: all.
        rotary: rotary positions, or None.
        relative_position: whether each block adds a learned bias for the offset of two
            patches to its attention (BEiT, arXiv:2106.08254). The class token has three
            separate biases.

    Raises:
        ValueError: if a size is not positive, a rate is not in [0, 1), a choice is
            unknown, or two fields contradict each other.
    """

    patch_size: int
    num_layers: int
    hidden_size: int
    mlp_dim: int
    num_heads: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    classifier: PlainClassifier = "token"
    num_registers: int = 0
    pool_prefix: bool = False
    map_heads: int | None = None
    map_mlp_dim: int | None = None
    norm: Norm = "layer_norm"
    layer_norm_epsilon: float = 1e-6
    post_norm: bool = False
    embedding_norm: bool = False
    pre_norm: bool = False
    final_norm: bool = True
    head_norm: bool = False
    activation: Activation = "gelu"
    gated_mlp: bool = False
    mlp_norm: bool = False
    attention_norm: bool = False
    qk_norm: bool = False
    qkv_bias: QKVBias = "full"
    out_bias: bool = True
    mlp_bias: bool = True
    patch_bias: bool = True
    head_bias: bool = True
    layer_scale: float | None = None
    position: Literal["1d", "none"] = "1d"
    position_tokens: int | None = None
    rotary: RotaryConfig | None = None
    relative_position: bool = False

    def __post_init__(self) -> None:
        self._check_sizes()
        for field in ("map_heads", "map_mlp_dim"):
            if getattr(self, field) is not None:
                _validate(self, arguments.integer, field)
        if self.position_tokens is not None:
            _validate(self, arguments.integer, "position_tokens", least=0)
        if self.layer_scale is not None:
            _validate(self, arguments.real, "layer_scale")
        for field, choices in _PLAIN_CHOICES.items():
            _validate(self, arguments.choice, field, choices=choices)
        flags = [at.name for at in dataclasses.fields(self) if at.type is bool]
        _validate(self, arguments.flag, *flags)
        self._check_together()

    def _check_together(self) -> None:
        self._check_heads("num_heads", self.num_heads)
        self._check_heads("map_heads", self.heads_of_map)
        if self.rotary is not None:
            arguments.instance("rotary", self.rotary, RotaryConfig)
            if self.hidden_size // self.num_heads % 4:
                raise ValueError(
                    "Expected a multiple of 4 units in each head for rotary positions "
                    "(pairs for rows and columns). Received: "
                    f"hidden_size={self.hidden_size}, num_heads={self.num_heads}"
                )
        if self.pool_prefix and self.classifier not in ("gap", "map"):
            raise ValueError(
                "Expected classifier 'gap' or 'map' for pool_prefix=True. "
                f"Received: classifier={self.classifier!r}"
            )
        if self.relative_position and self.num_prefix_tokens != 1:
            raise ValueError(
                "Expected one token before the patches for relative_position=True "
                f"(BEiT). Received: classifier={self.classifier!r}, "
                f"num_registers={self.num_registers}"
            )
        if self.post_norm and self.layer_scale is not None:
            raise ValueError(
                "Expected layer_scale=None with post_norm=True: its norms scale. "
                f"Received: layer_scale={self.layer_scale}"
            )
        if (self.position_tokens or 0) > self.num_prefix_tokens:
            raise ValueError(
                "Expected position_tokens to be at most "
                f"{self.num_prefix_tokens}, the number of tokens before the patches. "
                f"Received: position_tokens={self.position_tokens}"
            )

    @property
    def family(self) -> str:
        """The key of its row of `keras_vit.families.FAMILIES`."""
        return "plain ViT"

    @property
    def stride(self) -> int:
        """Pixels per patch."""
        return self.patch_size

    @property
    def num_class_tokens(self) -> int:
        """Tokens before the patches that the head reads."""
        return PLAIN_CLASS_TOKENS[self.classifier]

    @property
    def resnet(self) -> None:
        """None: plain ViTs have no stem (3.1)."""

    @property
    def attention(self) -> Attention:
        """Always "full": every token attends to all tokens."""
        return "full"

    @property
    def position_at(self) -> PositionAt:
        """Always "stem": positions are added once (D.4)."""
        return "stem"

    @property
    def heads_of_map(self) -> int:
        """Heads of the attention pooling."""
        return self.map_heads or self.num_heads

    def numerics_by(self, library: str) -> dict[str, Any]:
        """Its fields in a library's numerics, for files that do not state them.

        Args:
            library: "paper", "timm" or "hf": see `numerics_of`.

        Returns:
            Values by field, for `dataclasses.replace`.
        """
        row = NUMERICS[library]["vit"]
        fields = {"layer_norm_epsilon": row["layer_norm_epsilon"]}
        activation = "silu" if self.gated_mlp else GELUS[row["gelu"]]
        return {"activation": activation, **fields}

    def with_linear_head(self) -> Self:
        """Returns the config for a head that is one linear layer with a bias."""
        return dataclasses.replace(self, head_bias=True)

    @classmethod
    def from_plain(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config from plain values, such as those of `dataclasses.asdict`.

        Args:
            fields: values by field name.

        Raises:
            TypeError: if a name is unknown.
            ValueError: if a value is invalid.
        """
        fields = dict(fields)
        if fields.get("rotary") is not None:
            fields["rotary"] = RotaryConfig(**fields["rotary"])
        return cls(**fields)


_PLAIN_CHOICES: dict[str, tuple[str, ...]] = {  # Its fields with a set of strings.
    "classifier": get_args(PlainClassifier),
    "norm": get_args(Norm),
    "activation": get_args(Activation),
    "qkv_bias": get_args(QKVBias),
    "position": ("1d", "none"),
}


def _row(num_layers: int, hidden_size: int, mlp_dim: int, num_heads: int) -> ViTConfig:
    return ViTConfig(
        patch_size=16,
        num_layers=num_layers,
        hidden_size=hidden_size,
        mlp_dim=mlp_dim,
        num_heads=num_heads,
    )


TABLE_1 = {
    "Ti": _row(12, 192, 768, 3),
    "S": _row(12, 384, 1536, 6),
    "B": _row(12, 768, 3072, 12),
    "L": _row(24, 1024, 4096, 16),
    "H": _row(32, 1280, 5120, 16),
}
"""Table 1 by size, at P = 16. B, L and H are the paper's; Ti and S are from DeiT."""


def builder_name(variant: str) -> str:
    """The paper's spelling (4.1) as a Python name: "ViT-B/16" -> "ViT_B16".

    Args:
        variant: a key of `VARIANTS`.

    Examples:
        >>> builder_name("R50+ViT-B/16")
        'R50_ViT_B16'
    """
    return variant.replace("/", "").replace("-", "_").replace("+", "_")


def find_variant(name: str) -> str | None:
    """Returns the paper's spelling (4.1) of a variant; None for other names.

    Args:
        name: a name in any spelling; only letters and digits count, in either case.

    Examples:
        >>> find_variant("keras_vit.vit_b16")
        'ViT-B/16'
    """
    return _VARIANTS_BY_LETTERS.get(_letters(name.lower().removeprefix("keras_vit.")))


def _letters(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return re.sub("[^a-z0-9]", "", name.lower())


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
"""The ViTs of 4.1 and of AugReg: `ViTConfig`s by the paper's spelling, "ViT-B/16".

L/16 and H/14 have dropout 0.1, the others none (vit_jax/configs/models.py).
"""


def _hybrid(
    size: str, units: tuple[int, ...], patch_size: int = 1, dropout_rate: float = 0.0
) -> ViTConfig:
    """Patches of a feature map (3.1): one cell each, except R+ViT-Ti/16's 8x8."""
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


HYBRID_VARIANTS = {
    "R+ViT-Ti/16": _hybrid("Ti", (), patch_size=8),
    "R26+ViT-S/32": _hybrid("S", (2, 2, 2, 2)),
    "R26+ViT-B/32": _hybrid("B", (2, 2, 2, 2)),
    "R50+ViT-B/16": _hybrid("B", (3, 4, 9), dropout_rate=0.1),
    "R50+ViT-B/32": _hybrid("B", (3, 4, 6, 3), dropout_rate=0.1),
    "R50+ViT-L/16": _hybrid("L", (3, 4, 9), dropout_rate=0.1),
    "R50+ViT-L/32": _hybrid("L", (3, 4, 6, 3), dropout_rate=0.1),
}
"""The hybrids of 3.1 and 4.1: `ViTConfig`s with a `resnet`, by the paper's spelling.

The /16 hybrids move stage 4's units into stage 3 (4.1), which makes their sequence four
times as long. Sizes and dropout (0.1 with an R50) are from vit_jax/configs/models.py.
R50+ViT-B/32 and R50+ViT-L/16 are in Table 6 but not in the official code, so they
follow the other hybrids. R+ViT-Ti/16 cuts 8x8 patches from the root's feature map,
which are 32 pixels despite its name.
"""

BIT_DEPTHS = {  # 200 is from big_vision (bit.py); the others are from big_transfer.
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
"""BiT's ResNets (4.1, Table 6; R152x4 is Table 2's BiT-L): `ResNetConfig`s by name.

"BiT-R50x3" has 50 layers of three times the width. R50x3 and R101x3 are from
big_transfer, not from the paper.
"""

AXIAL_VARIANTS = {
    f"Axial-ViT-B/{patch_size}": dataclasses.replace(
        TABLE_1["B"], patch_size=patch_size, classifier="gap", attention="axial"
    )
    for patch_size in (16, 32)
}
"""Axial-ViT-B/16 and B/32 (D.6, Figure 13): `ViTConfig`s by name.

There is no class token, which would belong to no row or column: tokens are averaged.
"""

AXIAL_RESNETS = {
    "Axial-ResNet50": ResNetConfig(num_layers=BIT_DEPTHS[50], unit="axial")
}
"""Axial-ResNet50 (D.6, Figure 13): BiT's R50x1 with axial units, a `ResNetConfig`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EfficientNetConfig(ModelConfig):
    """One scaling of EfficientNet-B0 (arXiv:1905.11946), the other system of Table 2.

    Attributes:
        width_coefficient: factor of B0's filters.
        depth_coefficient: factor of B0's repeats of a block.
        image_size: "Resolution": pixels per side.
        dropout_rate: dropout rate before the head, in [0, 1).
        drop_connect_rate: drop rate in training, in [0, 1); block i of n, from 0, is
            skipped for an image with i / n of this probability.

    Raises:
        ValueError: if a coefficient or the size is not positive, or a rate is not in
            [0, 1).
    """

    width_coefficient: float
    depth_coefficient: float
    image_size: int
    dropout_rate: float
    drop_connect_rate: float = 0.2

    def __post_init__(self) -> None:
        coefficients = "width_coefficient", "depth_coefficient"
        _validate(self, arguments.positive, *coefficients, most=100)  # L2's: 4.3, 5.3.
        _validate(self, arguments.integer, "image_size")
        _validate(self, arguments.rate, "dropout_rate", "drop_connect_rate")

    @property
    def family(self) -> str:
        """The key of its row of `keras_vit.families.FAMILIES`."""
        return "EfficientNet"


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
        ("L2", 4.3, 5.3, 800, 0.5),  # 480 million parameters.
    )
}
"""EfficientNet-B0 to B7 (arXiv:1905.11946) and Table 2's L2 (arXiv:1911.04252).

These are `EfficientNetConfig`s by name, from `efficientnet_params` in
google-research/noisystudent, efficientnet_builder.py.
"""

VARIANTS: dict[str, Any] = {  # Types as in the tables above.
    **VIT_VARIANTS,
    **HYBRID_VARIANTS,
    **BIT_VARIANTS,
    **AXIAL_VARIANTS,
    **AXIAL_RESNETS,
    **EFFICIENTNET_VARIANTS,
}
"""Every model's config, under the paper's spelling (4.1) and its builder's name.

"ViT-B/16" and "ViT_B16" are the same `ViTConfig`. BiTs have `ResNetConfig`s. The
EfficientNets (Table 2), which have no builder, have `EfficientNetConfig`s.
"""
_VARIANTS_BY_LETTERS = {_letters(variant): variant for variant in VARIANTS}
VARIANTS |= {builder_name(variant): config for variant, config in VARIANTS.items()}


CheckpointConfig: TypeAlias = ViTConfig | ResNetConfig | PlainViTConfig
"""The config of a checkpoint that can be read or written, of the paper or a later one.
"""


class Overrides(TypedDict, total=False):
    """Every field of the checkpoint configs (Table 1), for type checkers."""

    patch_size: int
    num_layers: int | tuple[int, ...]
    hidden_size: int
    mlp_dim: int
    num_heads: int
    dropout_rate: float
    attention_dropout_rate: float
    stochastic_depth_rate: float
    classifier: PlainClassifier
    representation_size: int | None
    head_bias_init: float
    gelu: Gelu
    layer_norm_epsilon: float
    resnet: ResNetConfig | None
    position: Position
    position_at: PositionAt
    attention: Attention
    num_registers: int
    width: int
    unit: Unit
    kernel_epsilon: float
    epsilon_outside: bool
    group_norm_epsilon: float
    pool_padding: PoolPadding
    pool_prefix: bool
    map_heads: int | None
    map_mlp_dim: int | None
    norm: Norm
    post_norm: bool
    embedding_norm: bool
    pre_norm: bool
    final_norm: bool
    head_norm: bool
    activation: Activation
    gated_mlp: bool
    mlp_norm: bool
    attention_norm: bool
    qk_norm: bool
    qkv_bias: QKVBias
    out_bias: bool
    mlp_bias: bool
    patch_bias: bool
    head_bias: bool
    layer_scale: float | None
    position_tokens: int | None
    rotary: RotaryConfig | None
    relative_position: bool


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
"""The numerics of libraries, which tensors do not show, as fields of configs.

The keys are the library ("paper" is vit_jax, big_vision and big_transfer; "hf" is
transformers), then "vit", "v1" (a hybrid's kernels) or "v2" (a BiT's kernels).
"""


def numerics_of(config: CheckpointConfig, numerics: str) -> dict[str, Any]:
    """The fields of `config` in a library's numerics: a row of `NUMERICS`.

    Args:
        config: config of a ViT, a hybrid or a ResNet.
        numerics: "paper" (vit_jax, big_vision, big_transfer), "timm" or "hf"
            (transformers).

    Returns:
        Values by field, for `dataclasses.replace`; for a hybrid also "resnet", its
        whole `ResNetConfig`.

    Raises:
        ValueError: if `numerics` is unknown.
    """
    arguments.choice("numerics", numerics, NUMERICS)
    return config.numerics_by(numerics)


def numerics_from(told: Any, config: Any) -> dict[str, Any]:
    """The fields that set the numerics of `config`, with another config's values.

    Args:
        told: the config with the values.
        config: config of a ViT, a hybrid or a ResNet.

    Returns:
        Values by field, for `dataclasses.replace`; empty if the classes differ.
    """
    if type(told) is not type(config):
        return {}
    fields = {name: getattr(told, name) for name in config.numerics_by("paper")}
    if (stem := fields.pop("resnet", None)) is not None:
        changes = numerics_from(stem, config.resnet)
        fields["resnet"] = dataclasses.replace(config.resnet, **changes)
    return fields


def patch_grid(
    image_size: tuple[int, int], patch_size: int, crop: bool = False
) -> tuple[int, int]:
    """The patches along each side, (H / P, W / P), rounded down if `crop`.

    Raises:
        ValueError: if a side is not a positive multiple of `patch_size`; with `crop`,
            if a side is smaller.
    """
    height, width = image_size
    whole = crop or not (height % patch_size or width % patch_size)
    if min(height, width) < patch_size or not whole:
        raise ValueError(
            "Expected image_size (H, W) to be positive multiples of patch_size "
            f"(section 3.1: N = HW / P^2). Received: image_size={(height, width)}, "
            f"patch_size={patch_size}"
        )
    return height // patch_size, width // patch_size
