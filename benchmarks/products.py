"""Speed of each matrix product of a ViT-B/16 update on TensorFlow, oneDNN and XLA.

    python benchmarks/products.py [--batch 8]

The sum of the products' times is a lower bound for a forward pass and an update. It is
higher than the time computed from the peak of one large product.
"""

import argparse
import os
import time
from typing import Any, TypeAlias

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

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


def seconds(run: Any, *arguments: Any) -> float:
    """Returns the minimum of five means of ten calls."""
    run(*arguments)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(10):
            y = run(*arguments)
        y[..., 0].numpy()
        times.append((time.perf_counter() - start) / 10)
    return min(times)


def main() -> None:
    """Prints the table and the lower bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    batch = parser.parse_args().batch
    floors = np.zeros((2, 2))  # Seconds by oneDNN, by XLA; forward, an update.
    work = np.zeros(2)
    fastest = 0.0
    print(f"{'GFLOP/s':24}{'oneDNN':>8}{'XLA':>8}")
    for name, (left, right, turned) in products(batch).items():
        a, b = tf.random.normal(left), tf.random.normal(right)
        times = [
            seconds(
                tf.function(
                    lambda a, b, turned=turned: tf.matmul(
                        a, b, transpose_a=turned == "a", transpose_b=turned == "b"
                    ),
                    jit_compile=xla,
                ),
                a,
                b,
            )
            for xla in (False, True)
        ]
        inner = left[-2] if turned == "a" else left[-1]
        result = tf.matmul(a, b, transpose_a=turned == "a", transpose_b=turned == "b")
        flops = 2.0 * inner * np.prod(result.shape)
        fastest = max(fastest, flops / min(times))
        forward = ":" not in name
        floors += LAYERS * np.outer(times, [forward, 1])
        work += LAYERS * flops * np.array([forward, 1])
        print(f"{name:24}" + "".join(f"{flops / t / 1e9:>8.0f}" for t in times))
    for kind, floor in zip(("oneDNN", "XLA"), floors, strict=True):
        told = ", ".join(
            f"{what} {t:.2f} s, {flops / t / fastest:.2f} of the fastest product"
            for what, t, flops in zip(
                ("forward", "an update"), floor, work, strict=True
            )
        )
        print(f"the products alone by {kind}: {told}")


if __name__ == "__main__":
    main()
