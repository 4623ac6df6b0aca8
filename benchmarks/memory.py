"""Peak memory of training, measured and as predicted by `inspection.costs`.

    python benchmarks/memory.py                          # three families, batch 32
    python benchmarks/memory.py --no-xla --variant ViT-B/16 --batch 16

Each row runs two processes, with the whole batch and with a quarter of it. Memory is
the difference of their peaks (VmHWM) in two updates: the activations of three quarters
of a batch, without gradients, optimizer and compiler. The prediction is the same
difference. Seconds are for the second update with the whole batch.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

VARIANTS = ("ViT-S/16", "R26+ViT-S/32", "BiT-R50x1")


def held() -> float:
    """Returns the peak GiB of this process (VmHWM); Linux only."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 2**20


def predicted(variant: str, remat: bool, batch: int, image_size: int) -> float:
    """Returns the GiB of an update's activations."""
    from keras_vit.inspection import costs

    memory = costs(variant, (image_size, image_size), batch).memory
    return (memory.rematerialized if remat else memory.training) / 2**30


def measure(options: argparse.Namespace) -> None:
    """Prints GiB and seconds."""
    import keras
    import numpy as np

    import keras_vit
    from keras_vit.families import family_of
    from keras_vit.layers import TransformerBlock, kernels
    from keras_vit.training.optim import MomentumSGD

    if not options.no_xla:  # As predicted: the gradient is derived, as on a GPU.
        kernels.on_cpu = lambda *backends: False
    size = (options.image_size, options.image_size)
    (variant,) = options.variant
    config = keras_vit.VARIANTS[variant]
    model = family_of(config).build(config, image_size=size, num_classes=1000)
    for layer in model.layers:
        if isinstance(layer, TransformerBlock):
            layer.remat = options.only == "remat"
    model.compile(
        MomentumSGD(0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=not options.no_xla,
    )
    model.optimizer.build(model.trainable_variables)
    images = np.random.default_rng(0).normal(size=(options.batch, *size, 3))
    images, labels = images.astype(np.float32), np.arange(options.batch)
    for _ in range(2):
        start = time.perf_counter()
        model.train_on_batch(images, labels)
        seconds = time.perf_counter() - start
    print(held(), seconds, flush=True)


def measured(options: argparse.Namespace, *words: str) -> tuple[float, float]:
    """Returns GiB and seconds of a separate process."""
    size = ("--image-size", str(options.image_size))
    xla = ("--no-xla",) * options.no_xla
    done = subprocess.run(
        [sys.executable, sys.argv[0], *words, *size, *xla],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    peak, seconds = done.stdout.split()[-2:]
    return float(peak), float(seconds)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variant", nargs="+", default=VARIANTS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--no-xla", action="store_true", help="jit_compile=False")
    parser.add_argument("--only", choices=("plain", "remat"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure(options)
        return
    print(
        f"{options.image_size} px, float32, "
        f"backend {os.environ.get('KERAS_BACKEND', 'tensorflow')}, "
        f"XLA {'off' if options.no_xla else 'on'}; GiB"
    )
    heads = f"{'measured':>10} {'predicted':>10} {'ratio':>6} {'s an update':>12}"
    print(f"{'':14} {'':6} {'batch':>6} {heads}", flush=True)
    for variant in options.variant:
        for row in ("plain", "remat") if "ViT" in variant else ("plain",):
            own = ("--variant", variant, "--only", row)
            batches = options.batch, options.batch // 4
            (peak, seconds), (quarter, _) = (
                measured(options, *own, "--batch", str(batch)) for batch in batches
            )
            whole, part = (
                predicted(variant, row == "remat", batch, options.image_size)
                for batch in batches
            )
            ours, theirs = whole - part, peak - quarter
            line = f"{variant:14} {row:6} {options.batch:>6} {theirs:>10.2f} "
            line += f"{ours:>10.2f} {ours / theirs:>6.2f} {seconds:>12.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
