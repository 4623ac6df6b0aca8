"""Tests large numbers of damaged files, images and requests; prints the totals.

    python benchmarks/soak.py checkpoints                 # 1,000,000 damaged copies.
    python benchmarks/soak.py images                      # 100,000, every decoder.
    python benchmarks/soak.py requests                    # 100,000, a third hostile.
    python benchmarks/soak.py images --count 1000 --seed 7

Takes hours. Kills of training runs are in kill_resume.py. Exits with 1 after a crash, a
hang, an error that is not one of ours, an array that differs although a hash or a CRC
protects it, an image with pixels that depend on the decoder, or a wrong response of the
server. The damage is that of tests/weights/fuzzing.py and tests/serving/hostile.py.
"""

import argparse
import collections
import concurrent.futures
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.progress import track

ROOT = Path(__file__).parents[1]
FUZZING = ROOT / "tests/weights/fuzzing.py"
PART = 500  # Damaged images per call of the graph.
SECONDS = 120.0  # Limit for a part; normally it takes less than a tenth.
Outcomes = collections.Counter[str]
sys.path.insert(0, str(ROOT))


def checkpoints(options: argparse.Namespace) -> tuple[Outcomes, list[str]]:
    """Reads damaged copies of a checkpoint in every format, as in the test."""
    from tests.weights import dialects

    copies = -(-options.count // (2 * len(dialects.DIALECTS)))
    totals: Outcomes = collections.Counter()
    faults = []
    with tempfile.TemporaryDirectory() as temporary:
        folders = []
        for write in dialects.DIALECTS:
            folders.append(Path(temporary, write.__name__))
            folders[-1].mkdir()
            write(folders[-1])

        def run(folder: Path) -> subprocess.CompletedProcess[str]:
            words = map(str, (FUZZING, options.seed * copies, copies, folder))
            return subprocess.run(
                [sys.executable, "-P", *words],
                capture_output=True,
                text=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            running = pool.map(run, folders)
            for folder, ended in track(
                zip(folders, running, strict=True), "Formats", total=len(folders)
            ):
                if not ended.stdout:
                    faults.append(f"{folder.name}: a crash: {ended.stderr[-500:]}")
                    continue
                report = json.loads(ended.stdout)
                print(folder.name, report, flush=True)
                totals.update(report["bytes"])
                totals.update(report["tensors"])
                faults += [f"{folder.name}: {bug}" for bug in report["bugs"]]
                guarded = folder.name.startswith(("npz", "known"))
                if guarded and "changed" in report["bytes"]:
                    faults.append(f"{folder.name}: values changed under a hash")
    return totals, faults


def images(options: argparse.Namespace) -> tuple[Outcomes, list[str]]:
    """Decodes damaged images in a served graph and by `VisionModel.preprocess`."""
    count = -(-options.count // PART)
    parts = range(options.seed * count, (options.seed + 1) * count)
    totals: Outcomes = collections.Counter()
    faults: list[str] = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["keras_vit.serving.graph"])
    for first in track(parts[:: os.cpu_count()], "Images"):
        running = []
        for part in parts[first - parts.start :][: os.cpu_count()]:
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=decode_part, args=(part, send))
            process.start()
            send.close()
            running.append((part, process, receive))
        for part, process, receive in running:
            try:
                if not receive.poll(SECONDS):
                    raise EOFError
                outcomes, differing = receive.recv()
            except EOFError:
                process.kill()
                process.join()
                faults.append(f"part {part}: a hang or a crash ({process.exitcode})")
                continue
            process.join()
            totals.update(outcomes)
            faults += differing
    return totals, faults


def decode_part(part: int, send: Any) -> None:
    """Sends the outcomes for the damaged images of a part, and the differences."""
    import numpy as np
    import tensorflow as tf

    from keras_vit.data import decoding, preprocessing
    from keras_vit.facts import OFFICIAL
    from keras_vit.serving import graph
    from tests.data.test_decoding import GOOD
    from tests.weights.damage import damage

    rng = random.Random(part)
    good = [GOOD[name] for name in rng.choices(sorted(GOOD), k=PART)]
    damaged = [damage(image, rng) for image in good]
    size = (16, 24)
    served = tf.function(
        lambda files: graph.decode_each(files, size, OFFICIAL, 3, decoding.MAX_PIXELS)
    )
    pixels, statuses = served(tf.constant(damaged))
    outcomes: Outcomes = collections.Counter()
    faults = []
    for place, (image, status) in enumerate(
        zip(damaged, statuses.numpy(), strict=True)
    ):
        outcomes["decoded" if status == b"ok" else "refused"] += 1
        where = f"part {part}, image {place} ({status.decode()})"
        try:
            alone = preprocessing.prepare_all([image], size, OFFICIAL, 3)
        except ValueError as error:
            if status == b"ok":
                faults.append(f"{where}: refused by preprocess: {error}")
        else:
            if status != b"ok":
                faults.append(f"{where}: decoded by preprocess")
            elif not np.array_equal(alone[0], pixels[place].numpy()):
                faults.append(f"{where}: other pixels by preprocess")
    send.send((outcomes, faults))


def requests(options: argparse.Namespace) -> tuple[Outcomes, list[str]]:
    """Runs the server's hostile requests; the test compares responses and memory."""
    test = "tests/serving/test_server.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        test,
        "-k",
        "hostile_requests_change",
    ]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ
        | {"KERAS_VIT_REQUESTS": str(options.count), "KERAS_VIT_NO_SKIPS": "1"},
        capture_output=True,
        text=True,
    )
    print(ended.stdout)
    faults = [f"pytest ended with {ended.returncode}"] if ended.returncode else []
    return collections.Counter(requests=options.count), faults


KINDS = {
    "checkpoints": (checkpoints, 1_000_000),
    "images": (images, 100_000),
    "requests": (requests, 100_000),
}


def main() -> None:
    """Prints the totals of one kind, with the seed and the commit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS, help="kind of data to damage")
    parser.add_argument("--count", type=int, help="cases; see above for the defaults")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the damage (default 0)"
    )
    options = parser.parse_args()
    run, count = KINDS[options.kind]
    options.count = options.count or count
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    began = time.monotonic()
    totals, faults = run(options)
    seconds = time.monotonic() - began
    outcomes = ", ".join(f"{number:,} {name}" for name, number in totals.most_common())
    print(
        f"{options.kind}, seed {options.seed}, commit {commit}, {seconds:,.0f} s: "
        f"{outcomes}; {len(faults)} faults"
    )
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
