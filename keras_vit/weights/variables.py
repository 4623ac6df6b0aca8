"""The variables of our models under canonical names.

Canonical names are those of the current official code (flax.linen numbering, one
counter for each class). Names for parts that the official code does not have follow
big_vision (`MAPHead_0`) or are ours (`gn_final`, `relative_embedding`, `row`).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.layers import (
    AddPositionEmbs,
    AxialAttention,
    AxialBlock,
    ClassToken,
    MAPHead,
    PatchEmbedding,
    PreActivationUnit,
    ResidualUnit,
    SelfAttention,
    StdConv2D,
    TransformerBlock,
)
from keras_vit.layers.plain import PlainAttention, PlainBlock, PlainMlp

POSITIONS = "Transformer/posembed_input/pos_embedding"
RESNET_NORMS = ("gn_root", "gn_final")
NORMS = {  # Norms outside of the blocks, and their canonical names.
    "encoder_norm": "Transformer/encoder_norm",
    "pre_norm": "Transformer/pre_norm",
    "embedding_norm": "embedding_norm",
    "head_norm": "head_norm",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable of a model and the checkpoint tensors that it contains.

    Several tensors (query, key, value) are concatenated on the variable's last axis.
    """

    variable: Any  # keras.Variable, or a tensor with LoRA merged into it.
    names: tuple[str, ...]
    shape: tuple[int, ...]  # Shape of each tensor in the file.

    def merge(self, tensors: list[np.ndarray]) -> np.ndarray:
        """The variable's value from its tensors."""
        shape = self.variable.shape
        part = (*shape[:-1], shape[-1] // len(tensors))
        if len(tensors) == 1:
            return tensors[0].reshape(part)  # No copy; this is most of a file.
        return np.concatenate([tensor.reshape(part) for tensor in tensors], axis=-1)

    def split(self) -> dict[str, np.ndarray]:
        """The tensors from the variable's value."""
        value = keras.ops.convert_to_numpy(self.variable)
        parts = np.split(value, len(self.names), axis=-1)
        return {
            name: np.ascontiguousarray(part).reshape(self.shape)
            for name, part in zip(self.names, parts, strict=True)
        }


def entries(model: keras.Model) -> Iterator[Entry]:
    """Every variable of a model under its canonical names, in the model's order."""
    for layer in model.layers:
        yield from of_layer(layer)


def of_layer(layer: keras.layers.Layer) -> Iterator[Entry]:
    """The entries of one layer; none if checkpoints have no name for it."""
    if isinstance(layer, PatchEmbedding):
        yield from _dense("embedding", layer.projection)
    elif isinstance(layer, ClassToken):
        yield _plain("cls", layer.cls)
    elif isinstance(layer, AddPositionEmbs):
        for table in layer.weights:
            yield _plain(f"Transformer/{layer.name}/{table.name}", table)
    elif isinstance(layer, PlainBlock):
        yield from _plain_block(f"Transformer/{layer.name}", layer)
    elif isinstance(layer, TransformerBlock):
        yield from _block(f"Transformer/{layer.name}", layer)
    elif isinstance(layer, AxialBlock):
        for block in layer.sublayers():
            yield from _block(f"Transformer/{layer.name}/{block.name}", block)
    elif layer.name in NORMS:
        yield from _norm(NORMS[layer.name], layer)
    elif isinstance(layer, MAPHead):
        yield from _map_head(layer.name, layer)
    elif layer.name in ("pre_logits", "head"):
        yield from _dense(layer.name, layer)
    elif isinstance(layer, StdConv2D) or layer.name in RESNET_NORMS:
        yield from _in_unit(layer.name, layer)
    elif isinstance(layer, ResidualUnit | PreActivationUnit):
        for inner in layer.sublayers():
            yield from _in_unit(f"{layer.name.replace('_', '/')}/{inner.name}", inner)


def _plain(name: str, variable: Any) -> Entry:
    return Entry(variable, (name,), tuple(variable.shape))


def _dense(name: str, layer: Any) -> Iterator[Entry]:
    yield _plain(f"{name}/kernel", layer.kernel)
    if layer.bias is not None:
        yield _plain(f"{name}/bias", layer.bias)


def _norm(name: str, layer: Any) -> Iterator[Entry]:
    if isinstance(layer, keras.layers.RMSNormalization):
        yield _plain(f"{name}/scale", layer.scale)
        return
    yield _plain(f"{name}/scale", layer.gamma)
    yield _plain(f"{name}/bias", layer.beta)


def _in_unit(name: str, layer: Any) -> Iterator[Entry]:
    if isinstance(layer, StdConv2D):
        yield _plain(f"{name}/kernel", layer.kernel)
    elif isinstance(layer, AxialAttention):
        for attention in layer.sublayers():
            yield from _attention(f"{name}/{attention.name}", attention)
    else:
        yield from _norm(name, layer)


def _block(name: str, block: TransformerBlock) -> Iterator[Entry]:
    yield from _norm(f"{name}/LayerNorm_0", block.layer_norm_0)
    yield from _attention(f"{name}/MultiHeadDotProductAttention_0", block.attention)
    yield from _norm(f"{name}/LayerNorm_1", block.layer_norm_1)
    yield from _mlp(f"{name}/MlpBlock_0", block.mlp)


def _mlp(name: str, mlp: Any) -> Iterator[Entry]:
    yield from _dense(f"{name}/Dense_0", mlp.dense_0)
    yield from _dense(f"{name}/Dense_1", mlp.dense_1)


def _attention(name: str, attention: SelfAttention) -> Iterator[Entry]:
    yield from _heads(
        name, ("query", "key", "value"), attention.qkv, attention.num_heads
    )
    yield from _out(name, attention.out, attention.num_heads)
    if attention.relative_embedding is not None:
        yield _plain(f"{name}/relative_embedding", attention.relative_embedding)


def _plain_block(name: str, block: PlainBlock) -> Iterator[Entry]:
    yield from _norm(f"{name}/LayerNorm_0", block.layer_norm_0)
    attention = f"{name}/MultiHeadDotProductAttention_0"
    yield from _plain_attention(attention, block.attention)
    yield from _norm(f"{name}/LayerNorm_1", block.layer_norm_1)
    yield from _plain_mlp(f"{name}/MlpBlock_0", block.mlp)
    for i, scale in enumerate((block.layer_scale_0, block.layer_scale_1)):
        if scale is not None:
            yield _plain(f"{name}/LayerScale_{i}/gamma", scale.gamma)


def _plain_attention(name: str, attention: PlainAttention) -> Iterator[Entry]:
    heads = attention.num_heads
    yield from _heads(name, ("query", "key", "value"), attention.qkv, heads)
    for matrix in ("query", "value"):
        bias = getattr(attention, f"{matrix}_bias")
        if bias is not None:
            yield Entry(
                bias, (f"{name}/{matrix}/bias",), (heads, bias.shape[0] // heads)
            )
    for part in ("query_norm", "key_norm", "layer_norm"):
        if (norm := getattr(attention, part)) is not None:
            yield from _norm(f"{name}/{norm.name}", norm)
    yield from _out(name, attention.out, heads)
    for table in ("frequencies", "relative_position_bias"):
        if (variable := getattr(attention, table)) is not None:
            yield _plain(f"{name}/{table}", variable)


def _plain_mlp(name: str, mlp: PlainMlp) -> Iterator[Entry]:
    yield from _mlp(name, mlp)
    if mlp.gate is not None:
        yield from _dense(f"{name}/Gate", mlp.gate)
    if mlp.layer_norm is not None:
        yield from _norm(f"{name}/LayerNorm_0", mlp.layer_norm)


def _map_head(name: str, head: MAPHead) -> Iterator[Entry]:
    yield _plain(f"{name}/probe", head.probe)
    attention = f"{name}/MultiHeadDotProductAttention_0"
    yield from _heads(attention, ("query",), head.query, head.num_heads)
    yield from _heads(attention, ("key", "value"), head.key_value, head.num_heads)
    yield from _out(attention, head.out, head.num_heads)
    yield from _norm(f"{name}/LayerNorm_0", head.layer_norm)
    yield from _mlp(f"{name}/MlpBlock_0", head.mlp)


def _heads(
    name: str, matrices: tuple[str, ...], dense: Any, heads: int
) -> Iterator[Entry]:
    """The concatenated matrices of a dense layer, each D -> k x D_h."""
    inputs, outputs = dense.kernel.shape
    per_head = (heads, outputs // len(matrices) // heads)
    for part, shape in (("kernel", (inputs, *per_head)), ("bias", per_head)):
        if getattr(dense, part) is None:
            continue
        names = tuple(f"{name}/{matrix}/{part}" for matrix in matrices)
        yield Entry(getattr(dense, part), names, shape)


def _out(name: str, dense: Any, heads: int) -> Iterator[Entry]:
    inputs, outputs = dense.kernel.shape
    shape = (heads, inputs // heads, outputs)
    yield Entry(dense.kernel, (f"{name}/out/kernel",), shape)
    if dense.bias is not None:
        yield Entry(dense.bias, (f"{name}/out/bias",), (outputs,))
