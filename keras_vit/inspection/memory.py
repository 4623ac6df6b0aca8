"""The memory that a forward pass and an update take, from a config.

Modeled is what a compiler that fuses operations allocates, XLA on TensorFlow, in bytes
of a batch's activations:

- forward (inference): the most that one operation reads and writes at once, with what
  runs past it to the residual sum;
- training: what the backward pass reads of every layer (the inputs of products and
  norms, q, k and v, the softmax, the MLP's hidden layer before and after its GELU and
  the tanh inside), and the gradient of the widest sum of residuals;
- rematerialized: of Transformer blocks their inputs alone, and all of one block but the
  tanh. What is outside of them (a hybrid's ResNet) is kept as before.

Also counted: float32 weights, a gradient of each, the optimizer's numbers, and the
kernels that a ResNet standardizes, once for a batch. With "bfloat16" (Keras's
"mixed_bfloat16") activations have two bytes but for the softmax, which is kept in
float32 and in bfloat16, and kernels are there in bfloat16 too.

Not in it: what XLA leaves free between buffers (of R26+ViT-S/32's forward pass a
sixth of all), masks of dropout, the images themselves, an accumulator of gradients, a
compiler's and an allocator's own memory. Of small batches XLA keeps less (it computes
the tanh once more). TensorFlow on a CPU keeps less of a plain Transformer block
(`layers.kernels.block`) and, without XLA, more of all else; JAX on a CPU keeps more.
`benchmarks/memory.py` measures.
"""

import dataclasses
from collections.abc import Iterable
from numbers import Integral

from keras_vit.inspection.parts import Part

__all__ = ["Memory"]

SLOTS = {"adam": 2, "sgd": 1, "adafactor": 1}  # Numbers a parameter; of `Recipe`.
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that a batch takes, by what they are for (D.5).

    The module says what is in them.

    Attributes:
        batch: images at once.
        dtype: dtype of activations.
        weights: bytes, four of each parameter.
        gradients: bytes, four of each parameter.
        optimizer: bytes of its numbers, four each.
        forward: bytes of activations of inference, at most, and of kernels' copies.
        training: bytes of activations of an update.
        rematerialized: bytes of activations of an update with `remat`.
    """

    batch: int
    dtype: str
    weights: int
    gradients: int
    optimizer: int
    forward: int
    training: int
    rematerialized: int

    @property
    def inference_total(self) -> int:
        """`forward` with the weights, in bytes."""
        return self.weights + self.forward

    @property
    def training_total(self) -> int:
        """`training` with weights, gradients and the optimizer's numbers, in bytes."""
        return self.weights + self.gradients + self.optimizer + self.training

    @property
    def rematerialized_total(self) -> int:
        """`rematerialized` with the same, in bytes."""
        return self.training_total - self.training + self.rematerialized

    def table(self) -> str:
        """Lines of MiB, 2^20 bytes.

        Returns:
            Text.
        """
        rows = (
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations, forward", self.forward),
            ("activations, training", self.training),
            ("  rematerialized", self.rematerialized),
            ("inference in all", self.inference_total),
            ("training in all", self.training_total),
            ("  rematerialized", self.rematerialized_total),
        )
        images = "1 image" if self.batch == 1 else f"{self.batch} images"
        lines = [f"{name:24}{size / 2**20:>18,.1f}" for name, size in rows]
        return "\n".join([f"{'MiB, ' + images:24}{self.dtype:>18}", *lines])


def memory(parts: Iterable[Part], batch: int, dtype: str, optimizer: str) -> Memory:
    """Sums the parts of a model.

    Args:
        parts: see `parts.parts`.
        batch: images at once.
        dtype: dtype of activations, "float32" or "bfloat16".
        optimizer: "adam", "sgd" (with momentum) or "adafactor".

    Raises:
        ValueError: if the batch is not positive or a name unknown.
    """
    _check(batch, dtype, optimizer)
    parts = list(parts)
    parameters = sum(part.parameters for part in parts)
    width = _BYTES[dtype]
    # The softmax is float32, and what A v reads of it is cast.
    softmax = 4 if width == 4 else 4 + width
    copies = 4 * sum(part.kernel for part in parts)
    if dtype == "bfloat16":
        copies += width * parameters
    stream = width * max((part.stream for part in parts), default=0)

    def kept(chosen: Iterable[Part]) -> int:
        return sum(width * part.kept + softmax * part.softmax for part in chosen)

    blocks: dict[str, list[Part]] = {}
    for part in parts:
        blocks.setdefault(part.block, []).append(part)
    outside = kept(blocks.pop("", []))
    inputs = sum(width * block[0].kept for block in blocks.values())
    largest = max(
        (
            kept(block) - width * (block[0].kept + sum(p.recomputed for p in block))
            for block in blocks.values()
        ),
        default=0,
    )
    held = max(width * (p.held + p.stream) + (4 - width) * p.softmax for p in parts)
    return Memory(
        batch=batch,
        dtype=dtype,
        weights=4 * parameters,
        gradients=4 * parameters,
        optimizer=4 * SLOTS[optimizer] * parameters,
        forward=copies + batch * held,
        training=copies + batch * (kept(parts) + stream),
        rematerialized=copies + batch * (outside + inputs + largest + stream),
    )


def _check(batch: int, dtype: str, optimizer: str) -> None:
    if not isinstance(batch, Integral) or batch < 1:
        raise ValueError(
            f"Expected a batch of 1 or more images. Received: batch={batch}"
        )
    if dtype not in _BYTES or optimizer not in SLOTS:
        raise ValueError(
            f"Expected dtype to be one of {', '.join(_BYTES)}, optimizer one of "
            f"{', '.join(SLOTS)}. Received: dtype={dtype!r}, optimizer={optimizer!r}"
        )
