"""The block of plain ViTs of later papers, with the options of its config.

The paper's block is `encoder.TransformerBlock`. Each option is a field of
`PlainViTConfig`; the class's docstring names its paper.

Glossary of shapes (the paper's letters):
- B: batch.   - T: tokens.   - N: patches.   - D: hidden size.   - k: heads.
- D_h = D / k.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.configs import PlainViTConfig, RotaryConfig
from keras_vit.layers import kernels
from keras_vit.layers.embeddings import (
    Composite,
    Shape,
    Tensor,
    known_length,
    register,
)
from keras_vit.layers.encoder import (
    TransformerBlock,
    dropped,
    rematerialized,
    xavier_uniform,
)
from keras_vit.layers.positions import AddPositionEmbs

QUICK = 1.702  # Factor in CLIP's GELU (openai/CLIP, model.py).


def norm(config: PlainViTConfig, name: str, dtype: Any = None) -> keras.layers.Layer:
    """The norm of a config, before it is built: [..., D] -> [..., D]."""
    kinds = {
        "layer_norm": keras.layers.LayerNormalization,
        "rms_norm": keras.layers.RMSNormalization,
    }
    return kinds[config.norm](epsilon=config.layer_norm_epsilon, dtype=dtype, name=name)


def activated(x: Tensor, activation: str) -> Tensor:
    """Applies the function of `PlainViTConfig.activation`, element by element."""
    if activation == "quick_gelu":
        return x * ops.sigmoid(QUICK * x)
    if activation == "silu":
        return ops.silu(x)
    return keras.activations.gelu(x, approximate=activation == "gelu_tanh")


def _checked(config: Any) -> PlainViTConfig:
    """The config; also accepts the plain values that `get_config` returns."""
    if isinstance(config, Mapping):
        return PlainViTConfig.from_plain(config)
    return arguments.instance("config", config, PlainViTConfig)


def _dense(
    inputs: int, units: int, *, fan: int, bias: bool, name: str, dtype: Any
) -> keras.layers.Dense:
    """A built dense layer with Xavier kernels, with `fan` units in each matrix."""
    dense = keras.layers.Dense(
        units,
        use_bias=bias,
        kernel_initializer=xavier_uniform(inputs, fan),
        bias_initializer="zeros",
        dtype=dtype,
        name=name,
    )
    dense.build((None, inputs))
    return dense


@register
class LayerScale(keras.layers.Layer):
    """Multiplies a branch unit by unit (arXiv:2103.17239): [B, T, D] -> [B, T, D].

    Args:
        initial: initial value of the D learned factors.

    Raises:
        ValueError: if `initial` is not a number.
    """

    def __init__(self, initial: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = arguments.real("initial", initial)

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.add_weight(
            name="gamma",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial),
        )

    def call(self, y: Tensor) -> Tensor:
        return y * self.gamma

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initial": self.initial}


@register
class PlacedPositionEmbs(AddPositionEmbs):
    """`AddPositionEmbs` if some tokens have no position: [B, T, D] -> [B, T, D].

    The tokens are `num_prefix_tokens` with a position, `num_bare_tokens` without one,
    and the patches (DINOv2's registers, timm's no_embed_class).

    Args:
        grid: (rows, columns) of the patches.
        num_prefix_tokens: number of first tokens, which have a position.
        num_bare_tokens: number of next tokens, which have no position.

    Raises:
        ValueError: if an argument is invalid; when built, if T does not match.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        num_prefix_tokens: int = 0,
        num_bare_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("kind", None)  # In saved configs: the base class writes it.
        super().__init__(grid, num_prefix_tokens, **kwargs)
        self.num_bare_tokens = arguments.integer(
            "num_bare_tokens", num_bare_tokens, least=0
        )

    def build(self, input_shape: Any) -> None:
        batch, tokens, depth = input_shape
        super().build((batch, tokens - self.num_bare_tokens, depth))

    def table(self) -> Tensor:
        """Returns the table to add: [1, T, D], zeros for tokens without a position."""
        placed, patches = (
            self.pos_embedding[:, : self.num_prefix_tokens],
            self.pos_embedding[:, self.num_prefix_tokens :],
        )
        depth = self.pos_embedding.shape[-1]
        bare = ops.zeros((1, self.num_bare_tokens, depth), self.pos_embedding.dtype)
        return ops.concatenate([placed, bare, patches], axis=1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_bare_tokens": self.num_bare_tokens}


def _library(grid: tuple[Any, Any]) -> Any:
    """NumPy for a grid of integers, `keras.ops` for a grid from images of any size."""
    return np if all(isinstance(side, int) for side in grid) else ops


def rotary_positions(rotary: RotaryConfig, grid: tuple[Any, Any]) -> Any:
    """Positions of the patches, row by row: (rows, columns) -> [N, 2].

    The result is float64 NumPy, or a float32 tensor for a grid from images of any size.
    The two coordinates are in the config's order.
    """
    library, sides = _library(grid), []
    for axis, count in enumerate(grid):
        at = library.arange(count)
        if library is ops:
            at, count = ops.cast(at, "float32"), ops.cast(count, "float32")
        at = at + rotary.offset
        if rotary.kind == "centered":
            at = 2 * (at + 0.5) / count - 1
        elif rotary.reference_grid is not None:
            at = at / count * rotary.reference_grid[axis]
        sides.append(at)
    places = library.stack(library.meshgrid(*sides, indexing="ij"), axis=-1)
    places = library.reshape(places, (-1, 2))
    return places if rotary.order == "yx" else library.flip(places, axis=-1)


def rotary_angles(rotary: RotaryConfig, grid: tuple[Any, Any], head_size: int) -> Any:
    """Rotation angles of queries and keys: -> [N, D_h / 2].

    The result is float64 NumPy, or a float32 tensor for a grid from images of any size.
    """
    library = _library(grid)
    bands = np.arange(head_size // 4) / (head_size // 4)
    frequencies = rotary.temperature**-bands
    if rotary.kind == "centered":
        frequencies *= 2 * math.pi
    if library is ops:
        frequencies = frequencies.astype("float32")
    angles = rotary_positions(rotary, grid)[:, :, None] * frequencies
    return library.reshape(angles, (-1, head_size // 2))


def relative_index(grid: tuple[int, int]) -> np.ndarray:
    """Rows of BEiT's table by query and key: (rows, columns) -> [1 + N, 1 + N].

    The table has (2 rows - 1)(2 columns - 1) offsets, then class token to patch, patch
    to class token, and class token to itself.
    """
    rows, columns = grid
    y, x = np.mgrid[:rows, :columns].reshape(2, -1)
    down = y[:, None] - y[None] + rows - 1
    across = x[:, None] - x[None] + columns - 1
    offsets = (2 * rows - 1) * (2 * columns - 1)
    index = np.empty((len(y) + 1, len(y) + 1), np.int32)
    index[1:, 1:] = down * (2 * columns - 1) + across
    index[0], index[:, 0], index[0, 0] = offsets, offsets + 1, offsets + 2
    return index


@register
class PlainAttention(Composite):
    """Appendix A with the config's norms, biases and positions: [B, T, D] -> [B, T, D].

    Args:
        config: a `PlainViTConfig`, or its plain values.
        grid: (rows, columns) of the patches, which follow the other tokens.

    Raises:
        ValueError: if an argument is invalid.
    """

    def __init__(
        self, config: PlainViTConfig, grid: tuple[int, int], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config = _checked(config)
        rows, columns = arguments.sides("grid", grid, letters="(rows, columns)")
        self.grid = rows, columns
        self.num_heads = self.config.num_heads

    def build(self, input_shape: Shape) -> None:
        config, width, policy = self.config, self.config.hidden_size, self.dtype_policy
        self.qkv = _dense(
            width,
            3 * width,
            fan=width,
            bias=config.qkv_bias == "full",
            name="qkv",
            dtype=policy,
        )
        self.query_bias = self.value_bias = None
        if config.qkv_bias == "qv":
            self.query_bias, self.value_bias = (
                self.add_weight(name=name, shape=(width,), initializer="zeros")
                for name in ("query_bias", "value_bias")
            )
        self.query_norm = self.key_norm = self.layer_norm = None
        if config.qk_norm:
            self.query_norm = norm(config, "query_norm", policy)
            self.key_norm = norm(config, "key_norm", policy)
            for layer in (self.query_norm, self.key_norm):
                layer.build((None, None, None, width // config.num_heads))
        if config.attention_norm:
            self.layer_norm = norm(config, "LayerNorm_0", policy)
            self.layer_norm.build(input_shape)
        self.out = _dense(
            width, width, fan=width, bias=config.out_bias, name="out", dtype=policy
        )
        self.dropout = keras.layers.Dropout(
            config.attention_dropout_rate, dtype=policy, name="dropout"
        )
        self._build_positions()
        super().build(input_shape)

    def _build_positions(self) -> None:
        config = self.config
        size = config.hidden_size // config.num_heads
        self.frequencies = self.relative_position_bias = None
        if config.rotary is not None:
            self.turns = self._turns(self.grid)
        if config.rotary is not None and config.rotary.kind == "mixed":
            self.frequencies = self.add_weight(
                name="frequencies",
                shape=(2, config.num_heads, size // 2),
                initializer=_mixed(config.rotary.temperature),
            )
        if config.relative_position:
            self.index = relative_index(self.grid).reshape(-1)
            offsets = math.prod(2 * side - 1 for side in self.grid)
            self.relative_position_bias = self.add_weight(
                name="relative_position_bias",
                shape=(offsets + 3, config.num_heads),
                initializer="zeros",
            )

    def sublayers(self) -> list[keras.layers.Layer]:
        layers = [self.qkv, self.query_norm, self.key_norm, self.dropout]
        return [at for at in (*layers, self.layer_norm, self.out) if at is not None]

    def call(
        self,
        z: Tensor,
        places: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Returns the output of the attention.

        Args:
            z: tokens [B, T, D].
            places: the images, [B, H, W, C], in a model for images of any size; only
                their size is used.
            training: whether attention probabilities are dropped.
        """
        tokens, width = known_length(z, 1), z.shape[2]
        q, k, v = self._heads(z, places)
        dropped = training and self.config.attention_dropout_rate
        if self.relative_position_bias is not None or dropped:
            weights = ops.cast(self._scores(q, k), v.dtype)
            weights = self.dropout(weights, training=training)
            y = kernels.merge_heads(ops.matmul(weights, v))
        elif kernels.has_fused_attention():
            by_token = (ops.swapaxes(at, 1, 2) for at in (q, k, v))
            y = kernels.fused_attention(*by_token)
            y = ops.reshape(y, (-1, tokens, width))
        else:
            y = kernels.merge_heads(kernels.attend(q, k, v))
        if self.layer_norm is not None:
            y = self.layer_norm(y)
        y = kernels.dense(self.out, kernels.flatten_tokens(y))
        return ops.reshape(y, (-1, tokens, width))

    def attention_scores(self, z: Tensor) -> Tensor:
        """Returns A, Appendix A, in float32: [B, T, D] -> [B, k, T, T].

        Args:
            z: input of the layer, [B, T, D].
        """
        q, k, _ = self._heads(z)
        return self._scores(q, k)

    def _heads(self, z: Tensor, places: Tensor | None = None) -> list[Tensor]:
        """Q / sqrt(D_h), k and v with their positions, each [B, k, T, D_h]."""
        tokens, width = known_length(z, 1), z.shape[2]
        qkv = kernels.dense(self.qkv, kernels.flatten_tokens(z))
        if self.query_bias is not None:
            query, value = (
                ops.cast(bias, qkv.dtype) for bias in (self.query_bias, self.value_bias)
            )
            none = ops.zeros((width,), qkv.dtype)
            qkv = qkv + ops.concatenate([query, none, value])
        size = width // self.num_heads
        heads = ops.reshape(qkv, (-1, tokens, 3, self.num_heads, size))
        q, k, v = ops.unstack(ops.transpose(heads, (2, 0, 3, 1, 4)), 3)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if self.config.rotary is not None:
            angles = self._angles(places)
            turns = [ops.cast(f(angles), q.dtype) for f in (ops.cos, ops.sin)]
            q, k = self._turned(q, *turns), self._turned(k, *turns)
        return [q * size**-0.5, k, v]

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries or keys rotated by the angles of their positions: [B, k, T, D_h]."""
        tokens, size = known_length(x, 2), x.shape[3]
        if self.config.rotary.half:  # type: ignore[union-attr]
            a, b = x[..., : size // 2], x[..., size // 2 :]
            return ops.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        pairs = ops.reshape(x, (-1, self.num_heads, tokens, size // 2, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        turned = ops.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return ops.reshape(turned, (-1, self.num_heads, tokens, size))

    def _turns(self, grid: tuple[Any, Any]) -> Any:
        """Angles of all tokens; positions for "mixed": [T, D_h / 2] or [T, 2].

        Tokens before the patches have 0.
        """
        config, rotary = self.config, self.config.rotary
        assert rotary is not None  # noqa: S101  Checked by the caller.
        if rotary.kind == "mixed":
            found = rotary_positions(rotary, grid)
        else:
            size = config.hidden_size // config.num_heads
            found = rotary_angles(rotary, grid, size)
        return _library(grid).pad(found, ((config.num_prefix_tokens, 0), (0, 0)))

    def _angles(self, places: Tensor | None) -> Tensor:
        """Angles of all tokens: [T, D_h / 2], for "mixed" [k, T, D_h / 2]."""
        turns = self.turns
        if places is not None:
            _, height, width, _ = ops.shape(places)
            patch_size = self.config.patch_size
            turns = self._turns((height // patch_size, width // patch_size))
        if self.frequencies is None:
            return ops.convert_to_tensor(turns, kernels.wide(self.compute_dtype))
        frequencies = kernels.at_least_float32(self.frequencies)
        turns = ops.convert_to_tensor(turns, frequencies.dtype)
        first, second = (
            turns[:, axis][:, None] * frequencies[axis][:, None] for axis in (0, 1)
        )
        return first + second

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """A from q / sqrt(D_h) and k, float32: two [B, k, T, D_h] -> [B, k, T, T]."""
        logits = ops.matmul(q, kernels.transposed(k))
        if self.relative_position_bias is not None:
            table = ops.cast(self.relative_position_bias, q.dtype)
            tokens = q.shape[2]
            bias = ops.take(table, self.index, axis=0)
            bias = ops.reshape(bias, (tokens, tokens, self.num_heads))
            logits = logits + ops.transpose(bias, (2, 0, 1))
        return kernels.attention_softmax(logits)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "config": dataclasses.asdict(self.config),
            "grid": self.grid,
        }


def _mixed(temperature: float) -> Any:
    """The initializer of "mixed" frequencies: a random direction for each head."""

    def initializer(shape: tuple[int, ...], dtype: Any = None) -> Tensor:
        _, heads, half = shape
        magnitudes = temperature ** -(ops.arange(half // 2, dtype=dtype) * 2 / half)
        direction = keras.random.uniform((heads, 1), 0, 2 * math.pi, dtype=dtype)
        turned = direction + math.pi / 2
        return ops.stack(
            [
                ops.concatenate(
                    [magnitudes * f(direction), magnitudes * f(turned)], axis=-1
                )
                for f in (ops.cos, ops.sin)
            ]
        )

    return initializer


@register
class PlainMlp(Composite):
    """The MLP of Equation 3, gated or not: [B, T, D] -> [B, T, D].

    y = W_1 LN(f(W_0 z)), or, gated, W_1 LN(f(W_g z) * W_0 z); LN if `mlp_norm`.

    Args:
        config: a `PlainViTConfig`, or its plain values.

    Raises:
        ValueError: if `config` is invalid.
    """

    def __init__(self, config: PlainViTConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = _checked(config)

    def build(self, input_shape: Shape) -> None:
        config, policy = self.config, self.dtype_policy
        width, hidden = config.hidden_size, config.mlp_dim
        bias = config.mlp_bias
        self.dense_0 = _dense(
            width, hidden, fan=hidden, bias=bias, name="Dense_0", dtype=policy
        )
        self.gate = None
        if config.gated_mlp:
            self.gate = _dense(
                width, hidden, fan=hidden, bias=bias, name="gate", dtype=policy
            )
        self.layer_norm = None
        if config.mlp_norm:
            self.layer_norm = norm(config, "LayerNorm_0", policy)
            self.layer_norm.build((None, hidden))
        self.dense_1 = _dense(
            hidden, width, fan=width, bias=bias, name="Dense_1", dtype=policy
        )
        self.dropout = keras.layers.Dropout(
            config.dropout_rate, dtype=policy, name="dropout"
        )
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        layers = [self.dense_0, self.gate, self.layer_norm, self.dense_1, self.dropout]
        return [at for at in layers if at is not None]

    def call(self, z: Tensor, training: bool | None = None) -> Tensor:
        tokens = kernels.flatten_tokens(z)
        h, activation = kernels.dense(self.dense_0, tokens), self.config.activation
        if self.gate is None:
            h = activated(h, activation)
        else:
            h = activated(kernels.dense(self.gate, tokens), activation) * h
        h = dropped(self.dropout, h, training)
        if self.layer_norm is not None:
            h = self.layer_norm(h)
        y = ops.reshape(
            kernels.dense(self.dense_1, h), (-1, known_length(z, 1), z.shape[2])
        )
        return dropped(self.dropout, y, training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "config": dataclasses.asdict(self.config)}


@register
class PlainBlock(TransformerBlock):
    """One block of a plain ViT of a later paper: [B, T, D] -> [B, T, D].

    z' = LS(MSA(LN(z))) + z
    z  = LS(MLP(LN(z'))) + z', or, with `post_norm`, LN(f(z)) + z of each

    Args:
        config: a `PlainViTConfig`, or its plain values.
        grid: (rows, columns) of the patches, which follow the other tokens.
        stochastic_depth_rate: see `TransformerBlock`.

    Raises:
        ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        config: PlainViTConfig,
        grid: tuple[int, int],
        stochastic_depth_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        config = _checked(config)
        super().__init__(
            config.num_heads,
            config.mlp_dim,
            config.dropout_rate,
            config.attention_dropout_rate,
            layer_norm_epsilon=config.layer_norm_epsilon,
            relative=config.relative_position,
            stochastic_depth_rate=stochastic_depth_rate,
            **kwargs,
        )
        self.config = config
        rows, columns = arguments.sides("grid", grid, letters="(rows, columns)")
        self.grid = rows, columns

    def build(self, input_shape: Shape) -> None:
        config, policy = self.config, self.dtype_policy
        self.layer_norm_0 = norm(config, "LayerNorm_0", policy)
        self.attention = PlainAttention(
            config, self.grid, dtype=policy, name="MultiHeadDotProductAttention_0"
        )
        self.layer_norm_1 = norm(config, "LayerNorm_1", policy)
        self.mlp = PlainMlp(config, dtype=policy, name="MlpBlock_0")
        self.layer_scale_0 = self.layer_scale_1 = None
        if config.layer_scale is not None:
            self.layer_scale_0, self.layer_scale_1 = (
                LayerScale(config.layer_scale, dtype=policy, name=f"LayerScale_{i}")
                for i in (0, 1)
            )
        self._build_dropout()
        for layer in self.sublayers():
            layer.build(input_shape)
        Composite.build(self, input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        layers = [
            *(self.layer_norm_0, self.attention, self.dropout, self.layer_scale_0),
            *(self.layer_norm_1, self.mlp, self.layer_scale_1, self.stochastic_depth),
        ]
        return [layer for layer in layers if layer is not None]

    def call(  # type: ignore[override]
        self, z: Tensor, places: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """Returns the tokens of the next layer.

        Args:
            z: tokens [B, T, D].
            places: the images, [B, H, W, C], in a model for images of any size; only
                their size is used.
            training: whether units and branches are dropped.
        """
        equations = functools.partial(self._equations_on, places)
        if self.remat and training:
            return rematerialized(equations, z, self)
        return equations(z, training)

    def _equations_on(
        self, places: Tensor | None, z: Tensor, training: bool | None
    ) -> Tensor:
        z = self._attended(places, z, training) + z
        post = self.config.post_norm
        y = self.mlp(z if post else self.layer_norm_1(z), training=training)
        if self.layer_scale_1 is not None:
            y = self.layer_scale_1(y)
        return self._branch(self.layer_norm_1(y) if post else y, training) + z

    def _attended(
        self, places: Tensor | None, z: Tensor, training: bool | None
    ) -> Tensor:
        post = self.config.post_norm
        read = z if post else self.layer_norm_0(z)
        y = self.attention(read, places, training=training)
        y = dropped(self.dropout, y, training)
        if self.layer_scale_0 is not None:
            y = self.layer_scale_0(y)
        return self._branch(self.layer_norm_0(y) if post else y, training)

    def attention_scores(self, z: Tensor) -> Tensor:
        """Returns this layer's A, Appendix A, in float32: [B, T, D] -> [B, k, T, T].

        Args:
            z: the layer's input, [B, T, D].
        """
        read = z if self.config.post_norm else self.layer_norm_0(z)
        return self.attention.attention_scores(read)

    def get_config(self) -> dict[str, Any]:
        return {
            **keras.layers.Layer.get_config(self),
            "config": dataclasses.asdict(self.config),
            "grid": self.grid,
            "stochastic_depth_rate": self.stochastic_depth_rate,
        }
