"""Peak memory of a training with and without rematerialisation, and what it costs.

    python benchmarks/memory.py                          # ViT-B/16, 224 px, batch 16
    python benchmarks/memory.py --no-xla --variant ViT-S/16 --batch 32

Each row is a process of its own, which makes three updates. Memory is the most that the
process held (VmHWM) less what it held before the first update: activations, gradients,
and the compiler's working memory. Seconds are of the fastest update.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path


def held(what: str) -> float:
    """GiB that this process holds now (VmRSS) or held at most (VmHWM); Linux alone."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(what)
    )
    return int(line.split()[1]) / 2**20


def measure(options: argparse.Namespace) -> None:
    """Prints one row."""
    import keras
    import numpy as np

    import keras_vit
    from keras_vit.layers import TransformerBlock
    from keras_vit.training.optim import MomentumSGD

    size = (options.image_size, options.image_size)
    config = keras_vit.VARIANTS[options.variant]
    model = keras_vit.vit(config, image_size=size, num_classes=1000)
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
    before, seconds = held("VmRSS"), []
    for _ in range(3):
        start = time.perf_counter()
        model.train_on_batch(images, labels)
        seconds.append(time.perf_counter() - start)
    peak = held("VmHWM") - before
    print(f"{options.only:6} {peak:14.2f} {min(seconds):14.2f}", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variant", default="ViT-B/16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--no-xla", action="store_true", help="jit_compile=False")
    parser.add_argument("--only", choices=("plain", "remat"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure(options)
        return
    print(
        f"{options.variant} {options.image_size} px, batch {options.batch}, float32, "
        f"backend {os.environ.get('KERAS_BACKEND', 'tensorflow')}, "
        f"XLA {'off' if options.no_xla else 'on'}"
    )
    print(f"{'':6} {'GiB':>14} {'s an update':>14}")
    for row in ("plain", "remat"):
        subprocess.run([sys.executable, *sys.argv, "--only", row], check=True)


if __name__ == "__main__":
    main()
