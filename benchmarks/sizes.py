"""Time and memory by image size, batch and depth, with attention in parts or whole.

    python benchmarks/sizes.py                             # 224 to 1024 px, forward
    python benchmarks/sizes.py --training --sizes 224 512
    python benchmarks/sizes.py --sizes 224 --batch 1 2 4 8 16 --layers 6 12 24

Each row runs in a separate process. Memory is its peak (VmHWM) minus its memory before
the first step: activations, and in training gradients and the compiler's memory.
"whole" computes P, [B, k, T, T], at once. "derived", for an update, keeps P and
everything else that TensorFlow keeps by default, without hand-written gradients.
Seconds are the minimum of `--repeats`.
"""

import argparse
import dataclasses
import itertools
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

KINDS = ("parts", "whole", "derived")


def measure(options: argparse.Namespace) -> None:
    """Prints seconds, and GiB minus those before the first step."""
    import keras
    import numpy as np
    from memory import held

    import keras_vit
    from keras_vit.layers import kernels
    from keras_vit.training.optim import MomentumSGD

    if options.only != "parts":
        kernels.LONG = sys.maxsize
    if options.only == "derived":
        kernels.on_cpu = lambda *backends: False
    (pixels,), (batch,), (layers,) = options.sizes, options.batch, options.layers
    config = keras_vit.VARIANTS[options.variant]
    config = dataclasses.replace(config, num_layers=layers)
    size = (pixels, pixels)
    model = keras_vit.vit(config, image_size=size, num_classes=1000)
    if options.training:
        model.compile(
            MomentumSGD(0.01, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.optimizer.build(model.trainable_variables)
    images = np.random.default_rng(0).normal(size=(batch, *size, 3)).astype("float32")
    labels = np.zeros(batch, "int32")
    before, times = held(), []
    for _ in range(1 + options.repeats):
        start = time.perf_counter()
        if options.training:
            model.train_on_batch(images, labels)
        else:
            model.predict_on_batch(images)
        times.append(time.perf_counter() - start)
    print(min(times[1:]), held() - before, held(), flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variant", default="ViT-B/16")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 384, 512, 1024])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--layers", type=int, nargs="+", default=[12])
    parser.add_argument("--training", action="store_true", help="measure an update")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure(options)
        return
    what = "an update" if options.training else "forward"
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    print(f"{options.variant}, {what}, float32, backend {backend}")
    print(
        f"{'px':>5} {'tokens':>6} {'batch':>5} {'layers':>6} {'attention':>9}", end=""
    )
    print(f" {'seconds':>8} {'GiB more':>9} {'in all':>7}", flush=True)
    patch = int(options.variant.split("/")[1])
    for pixels, batch, layers in itertools.product(
        options.sizes, options.batch, options.layers
    ):
        tokens = 1 + (pixels // patch) ** 2
        for kind in KINDS[tokens < 1024 : 2 + options.training]:
            command = [sys.executable, sys.argv[0], "--variant", options.variant]
            command += ["--sizes", str(pixels), "--batch", str(batch)]
            command += ["--layers", str(layers), "--repeats", str(options.repeats)]
            command += ["--only", kind, *["--training"] * options.training]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True
            )
            seconds, more, peak = map(float, done.stdout.split()[-3:])
            print(f"{pixels:>5} {tokens:>6} {batch:>5} {layers:>6} {kind:>9}", end="")
            print(f" {seconds:>8.2f} {more:>9.2f} {peak:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
