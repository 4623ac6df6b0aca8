"""Memory of a forward pass and of an update, from a config.

The model is a compiler that fuses operations, XLA on TensorFlow. It counts the bytes of
a batch's activations:

- forward (inference): the maximum, over operations, of the bytes read and written at
  once, plus the residual stream that bypasses the operation;
- training: the values of every layer that the backward pass reads (the inputs of
  products and norms, q, k and v, the softmax, the MLP's hidden layer before and after
  its GELU and the tanh inside), and the gradient of the widest sum of residuals;
- rematerialized: for Transformer blocks only their inputs, and the values of one block
  without the tanh. Layers outside of the blocks (a hybrid's ResNet) are kept as before.

Float32 weights, a gradient for each weight, the optimizer's state, and a ResNet's
standardized kernels (once for a batch) are added. With "bfloat16" (Keras's
"mixed_bfloat16") activations have two bytes, except that the softmax is kept in both
float32 and bfloat16, and the kernels also exist in bfloat16.

Not counted: gaps that XLA leaves between buffers (a sixth of the total in
R26+ViT-S/32's forward pass), masks of dropout, the images, an accumulator of gradients,
and the memory of the compiler and the allocator. For small batches XLA keeps less,
because it computes the tanh again. On a CPU, TensorFlow keeps less of a plain
Transformer block (`layers.kernels.block`) and, without XLA, more of the rest; JAX
has the same gradient of a block, but keeps more until its gradients are complete.
`benchmarks/memory.py` and `benchmarks/sizes.py` measure this.
"""

import dataclasses
from collections.abc import Iterable
from numbers import Integral

from keras_vit.inspection.parts import Part

__all__ = ["Memory"]

SLOTS = {"adam": 2, "sgd": 1, "adafactor": 1}  # State per parameter, by optimizer.
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a batch, by use (D.5).

    The module's docstring lists what is included.

    Attributes:
        batch: images at once.
        dtype: dtype of activations.
        weights: bytes of weights, four per parameter.
        gradients: bytes of gradients, four per parameter.
        optimizer: bytes of the optimizer's state, four per number.
        forward: peak bytes of activations in inference, with copies of kernels.
        training: bytes of activations in an update.
        rematerialized: bytes of activations in an update with `remat`.
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
        """`forward` and weights, in bytes."""
        return self.weights + self.forward

    @property
    def training_total(self) -> int:
        """`training`, weights, gradients and the optimizer's state, in bytes."""
        return self.weights + self.gradients + self.optimizer + self.training

    @property
    def rematerialized_total(self) -> int:
        """`rematerialized`, weights, gradients and optimizer state, in bytes."""
        return self.training_total - self.training + self.rematerialized

    def table(self) -> str:
        """Formats the memory as lines in MiB, 2^20 bytes.

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
    """Adds up the memory of a model's parts.

    Args:
        parts: parts as returned by `parts.parts`.
        batch: images at once.
        dtype: dtype of activations, "float32" or "bfloat16".
        optimizer: "adam", "sgd" (with momentum) or "adafactor".

    Raises:
        ValueError: if the batch is not positive or a name is unknown.
    """
    _check(batch, dtype, optimizer)
    parts = list(parts)
    parameters = sum(part.parameters for part in parts)
    width = _BYTES[dtype]
    # The softmax is float32; A v reads a cast copy of it.
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
