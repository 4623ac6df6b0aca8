"""Compares several training processes with one that has all the cores.

    python benchmarks/workers.py [--workers 2] [--model ViT-Ti/16] [--batch-size 16]

Both train on the same batches with the same total number of cores: one process with all
of them, then `--workers` processes, started by `keras-vit launch`, with equal shares.
They take turns, `--rounds` times. Ratios are within a round; a time is the median of
all updates except the first three, without start, compilation and evaluation.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LAUNCHER = Path(__file__).parents[1] / "keras_vit/launching.py"
FIRST = 3  # Updates that compile and are not counted.


def work(folder: Path, options: argparse.Namespace) -> None:
    """Trains on random images and writes the seconds per update to `folder`."""
    import keras

    import keras_vit
    from keras_vit.recipes import Recipe
    from keras_vit.training import distribution, fit, resume

    ends: list[float] = []
    real = resume.CheckpointCallback.on_train_batch_end

    def timed(self: resume.CheckpointCallback, batch: int, logs: object = None) -> None:
        real(self, batch, logs)
        ends.append(time.perf_counter())

    resume.CheckpointCallback.on_train_batch_end = timed  # type: ignore[method-assign]
    strategy = distribution.strategy()
    keras.utils.set_random_seed(0)
    size = (options.image_size, options.image_size)
    recipe = Recipe(
        total_steps=FIRST + options.steps,
        base_lr=(0.01,),
        held_out=0.1,
        warmup_steps=0,
        batch_size=options.batch_size,
        image_size=size,
        augment="flip",
    )
    with strategy.scope():
        config = keras_vit.VARIANTS[options.model]
        model = keras_vit.vit(config, image_size=size, num_classes=10)
        fit(model, recipe, str(folder / "data.npz"), verbose=0)
    if distribution.Workers.under(strategy).chief:
        each = np.diff(ends[FIRST:])
        (folder / "seconds.json").write_text(json.dumps(float(np.median(each))))


def main() -> None:
    """Runs one process and several, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--model", default="ViT-Ti/16", help="default ViT-Ti/16")
    parser.add_argument("--batch-size", type=int, default=16, help="default 16")
    parser.add_argument("--image-size", type=int, default=224, help="default 224")
    parser.add_argument("--steps", type=int, default=15, help="updates to measure")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        work(options.folder, options)
        return
    alone = [sys.executable, __file__, *sys.argv[1:], "--folder"]
    several = [sys.executable, str(LAUNCHER), str(options.workers), *alone]
    ratios = []
    with tempfile.TemporaryDirectory() as temporary:
        rng = np.random.default_rng(0)
        side = options.image_size
        images = rng.integers(0, 256, (64, side, side, 3)).astype(np.uint8)
        np.savez(
            Path(temporary, "data.npz"), x_train=images, y_train=np.arange(64) % 10
        )
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        for number in range(options.rounds):
            seconds = []
            for command in (alone, several):
                subprocess.run([*command, temporary], env=environment, check=True)
                seconds.append(json.loads(Path(temporary, "seconds.json").read_text()))
            ratios.append(seconds[1] / seconds[0])
            print(
                f"round {number + 1}: {seconds[0]:.3f} s an update in one process, "
                f"{seconds[1]:.3f} s in {options.workers}: {ratios[-1]:.2f}",
                flush=True,
            )
    print(
        f"{options.model}, batch {options.batch_size}, {options.image_size} px, "
        f"{os.cpu_count()} cores: {options.workers} processes take "
        f"{statistics.median(ratios):.2f} of the time of one"
    )


if __name__ == "__main__":
    main()
