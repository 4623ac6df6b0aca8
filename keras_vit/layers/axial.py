"""Axial attention, D.6: along rows, then along columns.

"Each attention mixes information along a particular axis, while keeping information
along the other axes independent."

Glossary of shapes: B: batch.   - D: hidden size.   - T = rows * columns.
"""

from typing import Any, get_args

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.configs import Gelu
from keras_vit.layers.convolution import PreActivationUnit, strided
from keras_vit.layers.embeddings import Composite, Shape, Tensor, register
from keras_vit.layers.encoder import SelfAttention, TransformerBlock


def along_rows(layer: Any, z: Tensor) -> Tensor:
    """Applies `layer` to each row as a sequence; z: [B, rows, columns, D]."""
    _, rows, columns, depth = z.shape
    y = layer(ops.reshape(z, (-1, columns, depth)))
    return ops.reshape(y, (-1, rows, columns, depth))


def along_columns(layer: Any, z: Tensor) -> Tensor:
    """Applies `layer` to each column as a sequence; z: [B, rows, columns, D]."""
    z = ops.transpose(z, (0, 2, 1, 3))
    return ops.transpose(along_rows(layer, z), (0, 2, 1, 3))


@register
class AxialBlock(Composite):
    """Axial-ViT's encoder layer, D.6: [B, T, D] -> [B, T, D].

    "Instead of a self-attention followed by an MLP, we have a row-self-attention plus
    an MLP followed by a column-self-attention plus an MLP."

    Args:
        grid: (rows, columns) of the T tokens.
        num_heads: k; must divide D.
        mlp_dim: width of each MLP's hidden layer.
        dropout_rate: dropout rate of both blocks, see `TransformerBlock`.
        attention_dropout_rate: fraction of the attention probabilities dropped.
        gelu: "tanh" or "erf", see `MlpBlock`.
        layer_norm_epsilon: epsilon of both blocks' norms, added to the variance.
        relative: whether attention uses relative positions (D.4) along each axis.

    Raises:
        ValueError: if an argument is invalid; when built, if T is not rows * columns,
            or D is not a multiple of `num_heads`.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        num_heads: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        gelu: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        relative: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.grid = arguments.sides("grid", grid, letters="(rows, columns)")
        self.num_heads = arguments.integer("num_heads", num_heads)
        self.mlp_dim = arguments.integer("mlp_dim", mlp_dim)
        self.arguments: dict[str, Any] = {
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "dropout_rate": arguments.rate("dropout_rate", dropout_rate),
            "attention_dropout_rate": arguments.rate(
                "attention_dropout_rate", attention_dropout_rate
            ),
            "gelu": arguments.choice("gelu", gelu, get_args(Gelu)),
            "layer_norm_epsilon": arguments.positive(
                "layer_norm_epsilon", layer_norm_epsilon
            ),
            "relative": arguments.flag("relative", relative),
        }

    def build(self, input_shape: Shape) -> None:
        batch, tokens, depth = input_shape
        rows, columns = self.grid
        if tokens != rows * columns:
            raise ValueError(
                "Expected T = rows * columns tokens, none before the patches (D.6). "
                f"Received: T={tokens}, grid={self.grid}"
            )
        self.row, self.column = (
            TransformerBlock(**self.arguments, dtype=self.dtype_policy, name=name)
            for name in ("row", "column")
        )
        self.row.build((batch, columns, depth))
        self.column.build((batch, rows, depth))
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        return [self.row, self.column]

    def call(self, z: Tensor) -> Tensor:
        y = ops.reshape(z, (-1, *self.grid, z.shape[-1]))
        y = along_columns(self.column, along_rows(self.row, y))
        return ops.reshape(y, (-1, *z.shape[1:]))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid": self.grid, **self.arguments}


@register
class AxialAttention(Composite):
    """Row, then column attention, relative: [B, H, W, C] -> [B, H', W', C].

    It replaces the 3x3 convolution in Axial-ResNet50 (D.6; Wang et al., 2020).

    Args:
        num_heads: k; must divide C.
        strides: strides of the subsequent average pooling, along height and width.

    Raises:
        ValueError: if an argument is invalid; when built, if C is not a multiple of
            `num_heads`.
    """

    def __init__(self, num_heads: int, strides: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = arguments.integer("num_heads", num_heads)
        self.strides = arguments.integer("strides", strides)

    def build(self, input_shape: Shape) -> None:
        batch, height, width, channels = input_shape
        self.row, self.column = (
            SelfAttention(
                self.num_heads, relative=True, dtype=self.dtype_policy, name=name
            )
            for name in ("row", "column")
        )
        self.row.build((batch, width, channels))
        self.column.build((batch, height, channels))
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        return [self.row, self.column]

    def call(self, x: Tensor) -> Tensor:
        y = along_columns(self.column, along_rows(self.row, x))
        if self.strides == 1:
            return y
        sides = (self.strides, self.strides)  # Keras's default strides fail on JAX.
        return ops.average_pool(y, sides, sides, "same", data_format="channels_last")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided(input_shape, self.strides, input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "strides": self.strides,
        }


@register
class AxialUnit(PreActivationUnit):
    """Axial-ResNet50's bottleneck, D.6: [B, H, W, C] -> [B, H', W', 4 filters].

    BiT's bottleneck with `AxialAttention` instead of the 3x3 convolution.

    Args:
        filters: output channels of conv1 and of the attention; a multiple of 32.
        strides: strides of the attention's average pooling.
        kernel_epsilon: see `StdConv2D`.
        epsilon_outside: see `StdConv2D`.
        group_norm_epsilon: epsilon of the 32 groups' variance.
        num_heads: k; must divide `filters`.

    Raises:
        ValueError: if an argument is invalid; when built, if `filters` is not a
            multiple of `num_heads`.
    """

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        kernel_epsilon: float = 1e-10,
        epsilon_outside: bool = False,
        group_norm_epsilon: float = 1e-5,
        num_heads: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters,
            strides,
            kernel_epsilon,
            epsilon_outside,
            group_norm_epsilon,
            **kwargs,
        )
        self.num_heads = arguments.integer("num_heads", num_heads)

    def _mixing(self) -> keras.layers.Layer:
        return AxialAttention(
            self.num_heads, self.strides, dtype=self.dtype_policy, name="attention"
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads}
