"""Equation 4's class token, and D.3's attention pooling (MAP)."""

from typing import Any, get_args

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.configs import Gelu
from keras_vit.layers.embeddings import (
    Composite,
    Shape,
    Tensor,
    known_length,
    register,
)
from keras_vit.layers.encoder import MlpBlock, check_heads, xavier_uniform
from keras_vit.layers.kernels import attention_softmax


@register
class TakeTokens(keras.layers.Layer):
    """Selects the tokens `start` to `stop`: [B, T, D] -> [B, stop - start, D].

    A slice such as `tokens[:, 0]` becomes a Keras operation that the legacy .h5 format
    can save but not load.

    Args:
        start: index of the first token.
        stop: index after the last token; None selects all that follow.
        squeeze: whether to drop the axis of a single token: [B, T, D] -> [B, D].
    """

    def __init__(
        self,
        start: int,
        stop: int | None = None,
        squeeze: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # A slice does not cast.
        self.start = start
        self.stop = stop
        self.squeeze = squeeze

    def call(self, tokens: Tensor) -> Tensor:
        taken = tokens[:, self.start : self.stop]
        return taken[:, 0] if self.squeeze else taken

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, tokens, depth = input_shape
        if self.squeeze:
            return batch, depth
        taken = self.stop
        if tokens is not None:
            taken = len(range(*slice(self.start, self.stop).indices(tokens)))
        return batch, taken, depth

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "start": self.start,
            "stop": self.stop,
            "squeeze": self.squeeze,
        }


@register
class MAPHead(Composite):
    """Multihead attention pooling, big_vision's "map": [B, T, D] -> [B, D].

    A learned probe is the query: x = MHA(probe, z);  x + MLP(LN(x)). There is no
    residual connection from the probe (big_vision/models/vit.py).

    Args:
        num_heads: k; must divide D.
        mlp_dim: width of the MLP's hidden layer.
        gelu: "tanh" or "erf".
        layer_norm_epsilon: epsilon of the norm before the MLP.

    Raises:
        ValueError: if an argument is invalid; when built, if D is not a multiple of
            `num_heads`.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        gelu: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = arguments.integer("num_heads", num_heads)
        self.mlp_dim = arguments.integer("mlp_dim", mlp_dim)
        self.gelu = arguments.choice("gelu", gelu, get_args(Gelu))
        self.layer_norm_epsilon = arguments.positive(
            "layer_norm_epsilon", layer_norm_epsilon
        )

    def build(self, input_shape: Shape) -> None:
        depth = check_heads(input_shape[-1], self.num_heads)
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, depth), initializer=xavier_uniform(1, depth)
        )
        self.query, self.key_value, self.out = (
            keras.layers.Dense(
                units,
                kernel_initializer=xavier_uniform(depth, depth),  # For each matrix.
                bias_initializer="zeros",
                dtype=self.dtype_policy,
                name=name,
            )
            for name, units in (("query", depth), ("kv", 2 * depth), ("out", depth))
        )
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name="LayerNorm_0"
        )
        self.mlp = MlpBlock(
            self.mlp_dim, gelu=self.gelu, dtype=self.dtype_policy, name="MlpBlock_0"
        )
        for layer in self.sublayers():
            layer.build(input_shape)
        super().build(input_shape)

    def sublayers(self) -> list[keras.layers.Layer]:
        return [self.query, self.key_value, self.out, self.layer_norm, self.mlp]

    def call(self, z: Tensor) -> Tensor:
        keys_values = self._keys_and_values(z)
        k, v = keys_values[0], keys_values[1]
        x = ops.matmul(ops.cast(self._scores(k), v.dtype), v)  # [B, k, 1, D_h]
        x = self.out(ops.reshape(x, (-1, 1, z.shape[-1])))
        return (x + self.mlp(self.layer_norm(x)))[:, 0]

    def attention_scores(self, z: Tensor) -> Tensor:
        """Returns the probe's attention, in float32: [B, T, D] -> [B, k, 1, T].

        Args:
            z: input tokens of the head, [B, T, D].
        """
        return self._scores(self._keys_and_values(z)[0])

    def _keys_and_values(self, z: Tensor) -> Tensor:
        """[B, T, D] -> [2, B, k, T, D_h]."""
        tokens, depth = known_length(z, 1), z.shape[2]
        heads = (-1, tokens, 2, self.num_heads, depth // self.num_heads)
        return ops.transpose(ops.reshape(self.key_value(z), heads), (2, 0, 3, 1, 4))

    def _scores(self, k: Tensor) -> Tensor:
        per_head = k.shape[-1]
        q = ops.reshape(self.query(self.probe), (self.num_heads, 1, per_head))
        return attention_softmax(
            ops.matmul(q * per_head**-0.5, ops.swapaxes(k, -1, -2))
        )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape[0], input_shape[-1]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "gelu": self.gelu,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }
