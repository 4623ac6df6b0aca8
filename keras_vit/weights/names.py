"""The names of published checkpoints <-> the variables of our models.

Canonical names are those of today's official code (flax.linen numbering, one counter
for each class). The released files were written by pre-linen Flax, which counted all
sub-modules of a block together; `LINEN` turns one into the other.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    PatchEmbedding,
    TransformerBlock,
)

LINEN = {  # pre-linen: linen, inside an encoder block (official checkpoint.py).
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
PRE_LINEN = {linen: pre_linen for pre_linen, linen in LINEN.items()}
PREFIXES = ("opt/target/", "params/")  # Checkpoints saved with optimizer state.
POSITIONS = "Transformer/posembed_input/pos_embedding"

_BLOCK = re.compile(r"^(Transformer/encoderblock_\d+/)([^/]+)(/.*)$")


def canonical(names: Iterable[str]) -> dict[str, str]:
    """Maps canonical names to the names in the file.

    A prefix of `PREFIXES` is taken off, and what does not carry it (optimizer state)
    left out; both numberings are accepted.
    """
    names = list(names)
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in names):
            stripped = {
                n.removeprefix(prefix): n for n in names if n.startswith(prefix)
            }
            break
    else:
        stripped = {name: name for name in names}
    pre_linen = any(
        (match := _BLOCK.match(name)) and match[2] in LINEN for name in stripped
    )
    return {
        renumber(name, LINEN) if pre_linen else name: original
        for name, original in stripped.items()
    }


def renumber(name: str, table: dict[str, str]) -> str:
    """A tensor's name with its block's sub-module renamed by `LINEN` or `PRE_LINEN`."""
    match = _BLOCK.match(name)
    if match is None:
        return name
    block, module, rest = match.groups()
    return f"{block}{table.get(module, module)}{rest}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable of a model and the checkpoint tensors that make it up.

    Several tensors (query, key, value) lie side by side on the variable's last axis.
    """

    variable: Any  # keras.Variable, or a tensor where LoRA is merged in on the fly.
    names: tuple[str, ...]
    shape: tuple[int, ...]  # Of each tensor, in the file.

    def merge(self, tensors: list[np.ndarray]) -> np.ndarray:
        """The variable's value out of its tensors."""
        shape = self.variable.shape
        part = (*shape[:-1], shape[-1] // len(tensors))
        return np.concatenate([tensor.reshape(part) for tensor in tensors], axis=-1)

    def split(self) -> dict[str, np.ndarray]:
        """The tensors out of the variable's value."""
        value = keras.ops.convert_to_numpy(self.variable)
        parts = np.split(value, len(self.names), axis=-1)
        return {
            name: np.ascontiguousarray(part).reshape(self.shape)
            for name, part in zip(self.names, parts, strict=True)
        }


def entries(model: keras.Model) -> Iterator[Entry]:
    """Every variable of a ViT under its canonical names, in the model's order."""
    for layer in model.layers:
        yield from of_layer(layer)


def of_layer(layer: keras.layers.Layer) -> Iterator[Entry]:
    """The entries of one layer; none where a checkpoint has no name for it."""
    if isinstance(layer, PatchEmbedding):
        yield from _dense("embedding", layer.projection)
    elif isinstance(layer, ClassToken):
        yield _plain("cls", layer.cls)
    elif isinstance(layer, AddPositionEmbs):
        yield _plain(POSITIONS, layer.pos_embedding)
    elif isinstance(layer, TransformerBlock):
        yield from _block(f"Transformer/{layer.name}", layer)
    elif layer.name == "encoder_norm":
        yield from _norm("Transformer/encoder_norm", layer)
    elif layer.name in ("pre_logits", "head"):
        yield from _dense(layer.name, layer)


def _plain(name: str, variable: Any) -> Entry:
    return Entry(variable, (name,), tuple(variable.shape))


def _dense(name: str, layer: Any) -> Iterator[Entry]:
    yield _plain(f"{name}/kernel", layer.kernel)
    yield _plain(f"{name}/bias", layer.bias)


def _norm(name: str, layer: Any) -> Iterator[Entry]:
    yield _plain(f"{name}/scale", layer.gamma)
    yield _plain(f"{name}/bias", layer.beta)


def _block(name: str, block: TransformerBlock) -> Iterator[Entry]:
    yield from _norm(f"{name}/LayerNorm_0", block.layer_norm_0)
    attention, heads = block.attention, block.num_heads
    hidden_size = attention.out.units
    per_head = (heads, hidden_size // heads)
    name_of = f"{name}/MultiHeadDotProductAttention_0/{{}}/{{}}".format
    for part, shape in (("kernel", (hidden_size, *per_head)), ("bias", per_head)):
        names = tuple(name_of(matrix, part) for matrix in ("query", "key", "value"))
        yield Entry(getattr(attention.qkv, part), names, shape)
    out = attention.out
    yield Entry(out.kernel, (name_of("out", "kernel"),), (*per_head, hidden_size))
    yield Entry(out.bias, (name_of("out", "bias"),), (hidden_size,))
    yield from _norm(f"{name}/LayerNorm_1", block.layer_norm_1)
    yield from _dense(f"{name}/MlpBlock_0/Dense_0", block.mlp.dense_0)
    yield from _dense(f"{name}/MlpBlock_0/Dense_1", block.mlp.dense_1)
