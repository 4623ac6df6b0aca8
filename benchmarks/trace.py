"""Prints the time of a TensorFlow step by operation, from its profiler's trace.

    python benchmarks/trace.py                 # An update of ViT-B/16, batch 8
    python benchmarks/trace.py --forward --xla

Times are those of the threads that ran an operation. Concurrent operations wait for
each other's cores, so that the sum exceeds the time of the step.
"""

import argparse
import collections
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import keras_vit
from keras_vit.families import family_of
from keras_vit.training.optim import MomentumSGD


def seconds_by_operation(run: Any) -> tuple[float, dict[str, tuple[float, int]]]:
    """Returns the seconds of one call, and seconds and count by kind of operation."""
    total: dict[str, float] = collections.defaultdict(float)
    number: dict[str, int] = collections.defaultdict(int)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        start = time.perf_counter()
        run()
        wall = time.perf_counter() - start
        tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if re.fullmatch(r"[\w/.]+:\w+", name):  # "layer/operation:Kernel".
                    short = re.sub(r"_?\d+", "", name)
                    total[short] += event.duration_ps / 1e12
                    number[short] += 1
    return wall, {name: (total[name], number[name]) for name in total}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variant", default="ViT-B/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--forward", action="store_true", help="only a forward pass")
    parser.add_argument("--xla", action="store_true", help="jit_compile=True")
    parser.add_argument("--rows", type=int, default=25)
    options = parser.parse_args()
    size = (options.image_size, options.image_size)
    config = keras_vit.VARIANTS[options.variant]
    model = family_of(config).build(config, image_size=size, num_classes=1000)
    model.compile(
        MomentumSGD(0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=options.xla or "auto",
    )
    images = np.zeros((options.batch, *size, 3), "float32")
    labels = np.zeros(options.batch, "int32")

    def run() -> None:
        if options.forward:
            model.predict_on_batch(images)
        else:
            model.train_on_batch(images, labels)

    run()
    run()
    wall, operations = seconds_by_operation(run)
    what = "forward" if options.forward else "an update"
    print(f"{options.variant}, batch {options.batch}, {what}: {wall:.2f} s")
    print(f"{'seconds':>8} {'times':>6}  operation:kernel")
    ranked = sorted(operations.items(), key=lambda item: -item[1][0])
    for name, (seconds, times) in ranked[: options.rows]:
        print(f"{seconds:>8.3f} {times:>6}  {name}")


if __name__ == "__main__":
    main()
