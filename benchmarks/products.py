"""Speed of each matrix product of a ViT-B/16 update on TensorFlow, JAX and torch.

    python benchmarks/products.py [--batch 8]

TensorFlow computes without XLA (oneDNN) and with it. The sum of the products' times is
a lower bound for a forward pass and an update. It is higher than the time computed from
the peak of one large product.
"""

import argparse
import functools
import os
import time
from collections.abc import Callable
from typing import Any, TypeAlias

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import tensorflow as tf
import torch

TOKENS, WIDTH, MLP, HEADS, LAYERS = 197, 768, 3072, 12, 12
SIZE = WIDTH // HEADS


Product: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], str]


def products(batch: int) -> dict[str, Product]:
    """Returns by name the shapes of both sides, and which one is transposed."""
    rows, heads = batch * TOKENS, batch * HEADS
    found: dict[str, Product] = {}
    for name, inputs, outputs in (
        ("query, key, value", WIDTH, 3 * WIDTH),
        ("attention output", WIDTH, WIDTH),
        ("MLP, first", WIDTH, MLP),
        ("MLP, second", MLP, WIDTH),
    ):
        x, w, y = (rows, inputs), (inputs, outputs), (rows, outputs)
        found |= {
            name: (x, w, ""),
            f"{name}: dx": (y, w, "b"),
            f"{name}: dw": (x, y, "a"),
        }
    q, p = (heads, TOKENS, SIZE), (heads, TOKENS, TOKENS)
    return found | {
        "q k^T": (q, q, "b"),
        "P v": (p, q, ""),
        "q k^T: dq": (p, q, ""),
        "q k^T: dk": (p, q, "a"),
        "P v: dP": (q, q, "b"),
        "P v: dv": (p, q, "a"),
    }


def by_tensorflow(
    left: Any, right: Any, turned: str, *, xla: bool
) -> Callable[[], Any]:
    """Returns the product without XLA, by oneDNN, or with it."""
    a, b = tf.constant(left), tf.constant(right)
    multiply = tf.function(
        lambda: tf.matmul(a, b, transpose_a=turned == "a", transpose_b=turned == "b"),
        jit_compile=xla,
    )
    return lambda: multiply()[..., 0, 0].numpy()


def by_jax(left: Any, right: Any, turned: str) -> Callable[[], Any]:
    """Returns the product by JAX."""

    @jax.jit
    def multiply(a: Any, b: Any) -> Any:
        return (a.mT if turned == "a" else a) @ (b.mT if turned == "b" else b)

    a, b = jax.numpy.asarray(left), jax.numpy.asarray(right)
    return lambda: multiply(a, b).block_until_ready()


def by_torch(left: Any, right: Any, turned: str) -> Callable[[], Any]:
    """Returns the product by torch."""
    a, b = torch.from_numpy(left), torch.from_numpy(right)
    a, b = a.mT if turned == "a" else a, b.mT if turned == "b" else b
    return lambda: torch.matmul(a, b)


KINDS: dict[str, Callable[[Any, Any, str], Callable[[], Any]]] = {
    "oneDNN": functools.partial(by_tensorflow, xla=False),
    "XLA": functools.partial(by_tensorflow, xla=True),
    "JAX": by_jax,
    "torch": by_torch,
}


def seconds(run: Callable[[], Any]) -> float:
    """Returns the minimum of five means of ten calls."""
    run()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(10):
            run()
        times.append((time.perf_counter() - start) / 10)
    return min(times)


def main() -> None:
    """Prints the table and the lower bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    batch = parser.parse_args().batch
    floors = np.zeros((len(KINDS), 2))  # Seconds; forward, an update.
    work = np.zeros(2)
    fastest = 0.0
    draws = np.random.default_rng(0)
    print(f"{'GFLOP/s':24}" + "".join(f"{kind:>8}" for kind in KINDS))
    for name, (left, right, turned) in products(batch).items():
        a, b = (draws.normal(size=shape).astype("f4") for shape in (left, right))
        times = [seconds(kind(a, b, turned)) for kind in KINDS.values()]
        inner = left[-2] if turned == "a" else left[-1]
        rows = left[-1] if turned == "a" else left[-2]
        columns = right[-2] if turned == "b" else right[-1]
        flops = 2.0 * inner * rows * columns * (left[0] if len(left) == 3 else 1)
        fastest = max(fastest, flops / min(times))
        forward = ":" not in name
        floors += LAYERS * np.outer(times, [forward, 1])
        work += LAYERS * flops * np.array([forward, 1])
        print(f"{name:24}" + "".join(f"{flops / t / 1e9:>8.0f}" for t in times))
    for kind, floor in zip(KINDS, floors, strict=True):
        told = ", ".join(
            f"{what} {t:.2f} s, {flops / t / fastest:.2f} of the fastest product"
            for what, t, flops in zip(
                ("forward", "an update"), floor, work, strict=True
            )
        )
        print(f"the products alone by {kind}: {told}")


if __name__ == "__main__":
    main()
