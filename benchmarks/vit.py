"""Images per second of a ViT, forward and training, relative to the matmul peak.

    python benchmarks/vit.py                       # ViT-B/16, 224 px, batch 8, float32
    python benchmarks/vit.py --no-xla --variant ViT-S/16

The peak is the speed of this process on one float32 matrix product of the MLP's shape,
[batch * T, D] x [D, MLP]. A fraction of it does not depend on the machine's current
speed. Each figure is the best of `--repeats` timed windows, taken in turn (peak,
forward, training, peak, ...).
"""

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_vit
from keras_vit.inspection import costs
from keras_vit.training.optim import MomentumSGD


def seconds(run: Callable[[], object], calls: int) -> float:
    """Returns the mean seconds of `calls` calls of `run`."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def matmul_peak(
    rows: int, inner: int, columns: int
) -> tuple[Callable[[], object], int]:
    """Returns a compiled float32 product and its multiply-adds."""
    import tensorflow as tf

    a, b = tf.random.normal((rows, inner)), tf.random.normal((inner, columns))
    product = tf.function(lambda: tf.matmul(a, b))
    return (lambda: product()[0, 0].numpy()), rows * inner * columns


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", default="ViT-B/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-xla", action="store_true", help="jit_compile=False")
    options = parser.parse_args()

    config = keras_vit.VARIANTS[options.variant]
    size = (options.image_size, options.image_size)
    model = keras_vit.vit(config, image_size=size, num_classes=1000)
    model.compile(
        MomentumSGD(0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False if options.no_xla else "auto",  # "auto" is the default.
    )
    images = np.random.default_rng(0).uniform(-1, 1, (options.batch, *size, 3))
    images = images.astype("float32")
    labels = np.zeros(options.batch, "int32")
    tokens = model.get_layer("encoder_norm").output.shape[1]
    peak, peak_macs = matmul_peak(
        options.batch * tokens, config.hidden_size, config.mlp_dim
    )
    macs = costs(model).multiply_adds * options.batch
    forward = lambda: model.predict_on_batch(images)  # noqa: E731
    train = lambda: model.train_on_batch(images, labels)  # noqa: E731
    for warm in (peak, forward, train, peak, forward, train):
        warm()
    best = {"peak": np.inf, "forward": np.inf, "training": np.inf}
    for _ in range(options.repeats):
        best["peak"] = min(best["peak"], seconds(peak, 20))
        best["forward"] = min(best["forward"], seconds(forward, 2))
        best["training"] = min(best["training"], seconds(train, 1))
    peak_rate = 2 * peak_macs / best["peak"]
    print(
        f"{options.variant} {options.image_size} px, batch {options.batch}, float32, "
        f"backend {keras.backend.backend()}, XLA {'off' if options.no_xla else 'auto'}"
    )
    print(f"{'':10}{'images/s':>10}{'GFLOP/s':>10}{'of peak':>9}")
    print(f"{'matmul':10}{'':>10}{peak_rate / 1e9:>10.0f}{1:>9.2f}")
    for name, passes in (("forward", 1), ("training", 3)):
        rate = 2 * passes * macs / best[name]
        print(
            f"{name:10}{options.batch / best[name]:>10.2f}{rate / 1e9:>10.0f}"
            f"{rate / peak_rate:>9.2f}"
        )


if __name__ == "__main__":
    main()
