"""The Transformer encoder: Equations 2 and 3, and Appendix A.

Glossary of shapes (the paper's letters):
- B: batch.   - T: tokens.   - D: hidden size.   - k: heads.   - D_h = D / k.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.configs import Gelu
from keras_vit.layers import kernels
from keras_vit.layers.embeddings import (
    Composite,
    Shape,
    Tensor,
    known_length,
    register,
)

_DRAWN = contextvars.ContextVar("drawn", default=True)


@contextlib.contextmanager
def uninitialized() -> Iterator[None]:
    """A context in which kernels start at zero, before a checkpoint is loaded."""
    token = _DRAWN.set(False)
    try:
        yield
    finally:
        _DRAWN.reset(token)


def xavier_uniform(inputs: int, outputs: int) -> keras.initializers.Initializer:
    """Glorot's uniform initializer for explicit fans, `inputs` and `outputs`.

    A fused kernel contains several matrices. Keras's "glorot_uniform" computes the fans
    from its shape, by a rule that changed in 3.15.
    """
    if not _DRAWN.get():
        return keras.initializers.Zeros()
    limit = math.sqrt(6 / (inputs + outputs))
    return keras.initializers.RandomUniform(-limit, limit)


def check_heads(hidden_size: int | None, num_heads: int) -> int:
    """D; raises unless it is known and a multiple of k."""
    if hidden_size is None or hidden_size % num_heads:
        raise ValueError(
            "Expected hidden_size to be a multiple of num_heads (Appendix A: "
            f"D_h = D / k). Received: hidden_size={hidden_size}, "
            f"num_heads={num_heads}"
        )
    return hidden_size


@register
class SelfAttention(Composite):
    """Multihead self-attention, Appendix A: [B, T, D] -> [B, T, D].

    [q, k, v] = z U_qkv;  A = softmax(q k^T / sqrt(D_h));  SA(z) = A v
    MSA(z) = [SA_1(z); ...; SA_k(z)] U_msa

    U_qkv is one Dense layer for all heads, as in the equation. The softmax is computed
    in float32 under any dtype policy.

    Args:
        num_heads: k; must divide D.
        dropout_rate: fraction of the attention probabilities dropped in training.
        relative: whether a learned embedding r of the offset between query and key adds
            q r^T / sqrt(D_h) to the logits (D.4).

    Raises:
        ValueError: if an argument is invalid; when built, if D is not a multiple of
            `num_heads`, or T is not known and positions are relative.
    """

    def __init__(
        self,
        num_heads: int,
        dropout_rate: float = 0.0,
        relative: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = arguments.integer("num_heads", num_heads)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.relative = arguments.flag("relative", relative)

    def build(self, input_shape: Shape) -> None:
        tokens, hidden_size = input_shape[1:]
        hidden_size = check_heads(hidden_size, self.num_heads)
        initializer = xavier_uniform(hidden_size, hidden_size)  # For each matrix.
        self.qkv = keras.layers.Dense(
            3 * hidden_size,
            kernel_initializer=initializer,
            bias_initializer="zeros",
            dtype=self.dtype_policy,
            name="qkv",
        )
        self.out = keras.layers.Dense(
            hidden_size,
            kernel_initializer=initializer.clone(),
            bias_initializer="zeros",
            dtype=self.dtype_policy,
            name="out",
        )
        self.dropout = keras.layers.Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name="dropout"
        )
        self.qkv.build(input_shape)
        self.out.build(input_shape)
        self.relative_embedding = None
        if self.relative:  # Row i is the offset i - (T - 1) from query to key.
            if tokens is None:
                raise ValueError(
                    "Expected sequences with a known length for relative positions. "
                    f"Received: input_shape={tuple(input_shape)}"
                )
            self.relative_embedding = self.add_weight(
                name="relative_embedding",
                shape=(
                    2 * tokens - 1,
                    self.num_heads,
                    hidden_size // self.num_heads,
                ),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        return [self.qkv, self.dropout, self.out]

    def call(self, z: Tensor, training: bool | None = None) -> Tensor:
        tokens, hidden_size = known_length(z, 1), z.shape[2]
        qkv = self._projected(z)
        if self.relative or (training and self.dropout_rate):
            q, k, v = kernels.split_heads(qkv, self.num_heads)
            weights = ops.cast(self._scores(q, k), v.dtype)
            weights = self.dropout(weights, training=training)
            y = kernels.merge_heads(ops.matmul(weights, v))
        elif kernels.has_fused_attention():
            shape = (-1, tokens, 3, self.num_heads, hidden_size // self.num_heads)
            q, k, v = ops.unstack(ops.reshape(qkv, shape), 3, axis=2)
            # Scaled first, to round like the official code.
            y = kernels.fused_attention(q * shape[-1] ** -0.5, k, v)
            y = ops.reshape(y, (-1, tokens, hidden_size))
        else:
            heads = kernels.split_heads(qkv, self.num_heads)
            y = kernels.merge_heads(kernels.attend(*heads))
        y = kernels.dense(self.out, kernels.flatten_tokens(y))
        return ops.reshape(y, (-1, tokens, hidden_size))

    def _projected(self, z: Tensor) -> Tensor:
        """Returns z U_qkv: [B, T, D] -> [B, T, 3 D]."""
        tokens, hidden_size = known_length(z, 1), z.shape[2]
        return ops.reshape(
            kernels.dense(self.qkv, kernels.flatten_tokens(z)),
            (-1, tokens, 3 * hidden_size),
        )

    def attention_scores(self, z: Tensor) -> Tensor:
        """Returns A, Appendix A, in float32: [B, T, D] -> [B, k, T, T].

        This is not an output of `call`, so that ordinary calls do not compute it.

        Args:
            z: input of the layer, [B, T, D].
        """
        q, k, _ = kernels.split_heads(self._projected(z), self.num_heads)
        return self._scores(q, k)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """A from q / sqrt(D_h) and k, float32: two [B, k, T, D_h] -> [B, k, T, T]."""
        logits = ops.matmul(q, kernels.transposed(k))
        if self.relative_embedding is not None:
            keys = ops.transpose(ops.cast(self.relative_embedding, q.dtype), (1, 2, 0))
            logits = logits + _by_offset(ops.matmul(q, keys))
        return kernels.attention_softmax(logits)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout_rate,
            "relative": self.relative,
        }


def _by_offset(logits: Tensor) -> Tensor:
    """Converts logits of offsets to logits of keys: [B, k, T, 2T - 1] -> [B, k, T, T].

    Entry (i, j) is entry (i, j - i + T - 1) of `logits`. With one number appended to
    every row, flattening and reshaping shifts each row by one more entry.
    """
    heads, tokens, offsets = logits.shape[1:]
    run = ops.pad(logits, ((0, 0), (0, 0), (0, 0), (0, 1)))
    run = ops.reshape(run, (-1, heads, tokens * (offsets + 1)))
    run = run[..., tokens - 1 : tokens - 1 + tokens * offsets]
    return ops.reshape(run, (-1, heads, tokens, offsets))[..., :tokens]


def dropped(dropout: keras.layers.Dropout, x: Tensor, training: bool | None) -> Tensor:
    """dropout(x). Where nothing is dropped, it saves the time of a layer's call."""
    return dropout(x, training=True) if training and dropout.rate else x


@register
class MlpBlock(Composite):
    """The MLP of Equation 3, "two layers with a GELU": [B, T, D] -> [B, T, D].

    Args:
        mlp_dim: width of the hidden layer.
        dropout_rate: fraction of units dropped after each dense layer (B.1).
        gelu: "tanh", the approximation that the published weights were trained with
            (Flax's default), or "erf", the exact function.

    Raises:
        ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        gelu: str = "tanh",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mlp_dim = arguments.integer("mlp_dim", mlp_dim)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.gelu = arguments.choice("gelu", gelu, get_args(Gelu))

    def build(self, input_shape: Shape) -> None:
        hidden_size = input_shape[-1]
        self.dense_0 = self._dense("Dense_0", hidden_size, self.mlp_dim)
        self.dense_1 = self._dense("Dense_1", self.mlp_dim, hidden_size)
        self.dropout = keras.layers.Dropout(
            self.dropout_rate, dtype=self.dtype_policy, name="dropout"
        )
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        return [self.dense_0, self.dense_1, self.dropout]

    def _dense(self, name: str, inputs: Any, outputs: Any) -> keras.layers.Dense:
        dense = keras.layers.Dense(
            outputs,
            kernel_initializer=xavier_uniform(inputs, outputs),
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, None, inputs))
        return dense

    def call(self, z: Tensor, training: bool | None = None) -> Tensor:
        h = kernels.dense(self.dense_0, kernels.flatten_tokens(z))
        y = keras.activations.gelu(h, approximate=self.gelu == "tanh")
        y = kernels.dense(self.dense_1, dropped(self.dropout, y, training))
        y = ops.reshape(y, (-1, known_length(z, 1), z.shape[2]))
        return dropped(self.dropout, y, training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "dropout_rate": self.dropout_rate,
            "gelu": self.gelu,
        }


def rematerialized(
    function: Callable[[Tensor, bool], Tensor], z: Tensor, layer: keras.layers.Layer
) -> Tensor:
    """function(z, training=True), rematerialized for the gradient.

    `keras.RematScope` would drop different units the second time, or none: dropout's
    generators have advanced, and the training flag is not passed on.

    Args:
        function: function that uses only the variables of `layer`.
        z: argument of the function, and the only tensor that is kept.
        layer: layer with the dropout.
    """
    weights = {id(weight) for weight in layer.weights}
    learned = layer.trainable_variables
    fixed = layer.non_trainable_variables
    draws = [v for v in fixed if id(v) not in weights]
    before = [(variable, ops.copy(variable)) for variable in fixed]

    def pure(z: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        told = [*zip(learned, values, strict=True), *before]
        with keras.StatelessScope(told) as scope:
            y = function(z, True)
        return y, *(scope.get_current_value(v) for v in draws)

    y, *after = keras.remat(pure)(z, *map(ops.copy, learned))
    for variable, value in zip(draws, after, strict=True):
        variable.assign(value)
    return y


@register
class TransformerBlock(Composite):
    """One encoder layer, Equations 2 and 3: [B, T, D] -> [B, T, D].

    z' = MSA(LN(z)) + z
    z  = MLP(LN(z')) + z'

    Args:
        num_heads: k; must divide D.
        mlp_dim: width of the MLP's hidden layer.
        dropout_rate: fraction of units dropped after each dense layer except the
            query, key and value projections (B.1).
        attention_dropout_rate: fraction of the attention probabilities dropped.
        gelu: "tanh" or "erf", see `MlpBlock`.
        layer_norm_epsilon: epsilon of the norms; 1e-6 in Flax and the published
            weights. Keras's default is 1e-3.
        relative: whether attention uses relative positions (D.4), see `SelfAttention`.
        stochastic_depth_rate: probability of dropping a branch (MSA or MLP) for an
            image in training (AugReg); a kept branch is divided by the probability of
            keeping it, as in timm.

    Set `remat` to True to keep only the block's input in training and rematerialize the
    rest for the gradient. This saves memory for about a third more time.

    Raises:
        ValueError: if an argument is invalid; when built, if D is not a multiple of
            `num_heads`.
    """

    remat = False

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        gelu: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        relative: bool = False,
        stochastic_depth_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = arguments.integer("num_heads", num_heads)
        self.mlp_dim = arguments.integer("mlp_dim", mlp_dim)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.attention_dropout_rate = arguments.rate(
            "attention_dropout_rate", attention_dropout_rate
        )
        self.gelu = arguments.choice("gelu", gelu, get_args(Gelu))
        self.layer_norm_epsilon = arguments.positive(
            "layer_norm_epsilon", layer_norm_epsilon
        )
        self.relative = arguments.flag("relative", relative)
        self.stochastic_depth_rate = arguments.rate(
            "stochastic_depth_rate", stochastic_depth_rate
        )

    def build(self, input_shape: Shape) -> None:
        policy = self.dtype_policy  # Sublayers would otherwise use the global policy.
        self.layer_norm_0 = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=policy, name="LayerNorm_0"
        )
        self.attention = SelfAttention(
            self.num_heads,
            self.attention_dropout_rate,
            self.relative,
            dtype=policy,
            name="MultiHeadDotProductAttention_0",
        )
        self.layer_norm_1 = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=policy, name="LayerNorm_1"
        )
        self.mlp = MlpBlock(
            self.mlp_dim, self.dropout_rate, self.gelu, dtype=policy, name="MlpBlock_0"
        )
        self._build_dropout()
        for layer in self.sublayers():
            layer.build(input_shape)
        super().build(input_shape)

    def _build_dropout(self) -> None:
        """Creates dropout of units, and of whole branches for an image."""
        policy = self.dtype_policy
        self.dropout = keras.layers.Dropout(
            self.dropout_rate, dtype=policy, name="dropout"
        )
        self.stochastic_depth = None
        if self.stochastic_depth_rate:  # One draw per image and branch.
            self.stochastic_depth = keras.layers.Dropout(
                self.stochastic_depth_rate,
                noise_shape=(None, 1, 1),
                dtype=policy,
                name="stochastic_depth",
            )

    def sublayers(self) -> list[keras.layers.Layer]:
        layers = [
            self.layer_norm_0,
            self.attention,
            self.dropout,
            self.layer_norm_1,
            self.mlp,
        ]
        return layers + [self.stochastic_depth] * (self.stochastic_depth is not None)

    def call(self, z: Tensor, training: bool | None = None) -> Tensor:
        if self.remat and training:
            return rematerialized(self._equations, z, self)
        return self._equations(z, training)

    def _equations(self, z: Tensor, training: bool | None) -> Tensor:
        if training and self._is_plain() and kernels.on_cpu("tensorflow", "jax"):
            return kernels.block(
                z,
                self._weights(),
                num_heads=self.num_heads,
                gelu=self.gelu,
                epsilon=self.layer_norm_epsilon,
            )
        y = self.attention(self.layer_norm_0(z), training=training)
        z = self._branch(dropped(self.dropout, y, training), training) + z
        y = self.mlp(self.layer_norm_1(z), training=training)
        return self._branch(y, training) + z

    def _is_plain(self) -> bool:
        """Whether training is Equations 2 and 3 in float32 without any options."""
        rates = self.dropout_rate, self.attention_dropout_rate
        return (
            self.compute_dtype == "float32"
            and not any((*rates, self.stochastic_depth_rate, self.relative))
            and not any(layer.quantization_mode for layer in self.projections())
        )

    def _weights(self) -> list[Tensor]:
        """The weights for `kernels.block`; LoRA is added to its kernel."""
        norms = self.layer_norm_0, self.layer_norm_1
        dense = [self.attention.qkv, self.attention.out]
        dense += [self.mlp.dense_0, self.mlp.dense_1]
        values = []
        for norm, pair in zip(norms, (dense[:2], dense[2:]), strict=True):
            values += [norm.gamma, norm.beta]
            for layer in pair:
                values += [layer.kernel, layer.bias]
        return [ops.copy(value) for value in values]

    def _branch(self, y: Tensor, training: bool | None) -> Tensor:
        if self.stochastic_depth is None:
            return y
        return self.stochastic_depth(y, training=training)

    def attention_scores(self, z: Tensor) -> Tensor:
        """Returns this layer's A, Appendix A, in float32: [B, T, D] -> [B, k, T, T].

        Args:
            z: the layer's input, before its LayerNorm, [B, T, D].
        """
        return self.attention.attention_scores(self.layer_norm_0(z))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "gelu": self.gelu,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "relative": self.relative,
            "stochastic_depth_rate": self.stochastic_depth_rate,
        }
