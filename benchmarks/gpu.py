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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = {"ours-jax": "jax", "ours-torch": "torch", "timm": ""}  # Keras's backend.
WARM, CALLS = 3, 8


def seconds(call: Callable[[], object]) -> list[float]:
    """Returns the seconds of each call, after warm ones."""
    times = []
    for _ in range(WARM + CALLS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times[WARM:]


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
    parser.add_argument("--image-size", type=int, default=224, help="default 224")
    parser.add_argument("--batch", type=int, default=256, help="default 256")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    options = parser.parse_args(arguments)
    backend = ROWS[options.row]
    os.environ["KERAS_BACKEND"] = backend or "torch"
    import peer_adapters
    import peers

    peers_options = peers.parse(["--variant", options.variant])
    vars(peers_options).update(vars(options))
    row = next(row for row in peers.ROWS if row.name == options.row)
    peer = peer_adapters.PEERS[row.library](peers.Bench(peers_options, Path()).job(row))
    peer.build()
    images, labels = (
        peer.put(peer.job.images(peer.job.batch)),
        peer.put(peer.job.labels()),
    )

    def complete(call: Callable[..., object], *given: Any) -> None:
        call(*given)
        if backend != "jax":
            peer_adapters.torch_wait(peer.job)

    for what, given in (
        ("forward", (peer.forward, images)),
        ("training", (peer.train, images, labels)),
    ):
        times = seconds(lambda given=given: complete(*given))  # type: ignore[misc]
        middle = statistics.median(times)
        line = (
            f"{options.row:11}{what:9}{1e3 * middle:7.1f} ms "
            f"(from {1e3 * min(times):.1f}), {peer.job.batch / middle:,.0f} images/s, "
            f"{peer.memory() / 2**30:.2f} GiB"
        )
        if options.device == "gpu" and backend != "jax":
            line += (
                f", {1e3 * computing(lambda g=given: complete(*g)):.1f} ms on the GPU"  # type: ignore[misc]
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
