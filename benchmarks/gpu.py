"""ViT-B/16 on a GPU in a minute: one library, forward passes and updates.

    python benchmarks/gpu.py ours-jax
    python benchmarks/gpu.py ours-torch
    PYTHONPATH=. .venv-peers/torch/bin/python benchmarks/gpu.py timm

Prints the median time of a call with its minimum, images/s, and the maximum memory so
far; with torch also the seconds that the GPU computed in one call. The difference is
the time in which the GPU waited for Python. `peers.py --device gpu` compares the
libraries at all batches, which takes hours. The model is that of `peers.py`, in
bfloat16 with float32 weights.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peer_adapters
import peers

ROWS = ("ours-jax", "ours-torch", "timm")
WARM, CALLS = 3, 8
NAMED = {row.name: row for row in peers.ROWS}


def computing(call: Callable[[], object]) -> float:
    """Returns the seconds that torch's kernels need on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
    total = sum(event.self_device_time_total for event in found.key_averages())
    return float(total) / 1e6


def main(arguments: list[str] | None = None) -> None:
    """Measures, and prints two lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--variant", default="ViT-B/16", help="default ViT-B/16")
    parser.add_argument("--image-size", default="224", help="default 224")
    parser.add_argument("--batch", default="256", help="default 256")
    parser.add_argument("--device", choices=peers.DEVICES, default="gpu")
    given = vars(parser.parse_args(arguments))
    row = NAMED[given.pop("row")]
    options = peers.parse(
        [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    )
    os.environ["KERAS_BACKEND"] = row.backend  # Before the import of Keras.
    job = peers.Bench(options, Path()).job(row)
    peer = peer_adapters.PEERS[row.library](job)
    peer.build()
    images, labels = peer.put(job.images(job.batch)), peer.put(job.labels())
    is_torch = row.name != "ours-jax"

    def measure(what: str, call: Callable[..., object], *tensors: Any) -> None:
        def complete() -> None:
            call(*tensors)
            if is_torch:
                peer_adapters.torch_wait(job)

        times = [peer_adapters.seconds(complete, 1) for _ in range(WARM + CALLS)][WARM:]
        middle = statistics.median(times)
        line = (
            f"{row.name:11}{what:9}{1e3 * middle:7.1f} ms "
            f"(from {1e3 * min(times):.1f}), {job.batch / middle:,.0f} images/s, "
            f"{peer.memory() / 2**30:.2f} GiB"
        )
        if job.device == "gpu" and is_torch:
            line += f", {1e3 * computing(complete):.1f} ms on the GPU"
        print(line, flush=True)

    measure("forward", peer.forward, images)
    measure("training", peer.train, images, labels)


if __name__ == "__main__":
    main()
