"""Kills training runs repeatedly; the final state must equal that without kills.

    python benchmarks/kill_resume.py --kills 25
    python benchmarks/kill_resume.py --kills 10 --workers 2
    KERAS_BACKEND=jax python benchmarks/kill_resume.py --kills 5 --workers 2

The training uses everything that holds state or draws random numbers: dropout, crops,
RandAugment, random erasing, mixup, averaging, accumulation, bfloat16 momentum. The
first run is not interrupted. The others are killed at random moments and restarted with
the same call. One kill in five is a SIGTERM; after one in five, the newest checkpoint
is truncated as well. With several workers, a kill hits one of them or all. The others
then get SIGTERM, as from `keras-vit launch`. On TensorFlow their momentum is float32.
Exits with 1 if a weight, a number of the optimizer's state or a line of the history
differs. A run that ends before the last kill is compared, and the next one starts.

The workers are forks of a process that has imported Keras and its backend but used
neither, so that a start does not include the imports.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np

from keras_vit import launching

KILLS_OF_A_RUN = 10  # Minimum on average.
GRACE = 10.0  # Seconds from the SIGTERM of the other workers to their SIGKILL.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["keras_vit.training", "keras_vit.data.pipelines"])
Workers = list[ForkServerProcess]


def work(folder: Path, options: argparse.Namespace, variables: dict[str, str]) -> None:
    """Trains in `folder`, from the start or from its newest checkpoint."""
    os.environ.update(variables)
    import keras
    import tensorflow as tf

    import keras_vit
    from keras_vit.recipes import Recipe
    from keras_vit.training import distribution, fit

    tf.config.experimental.enable_op_determinism()
    strategy = distribution.strategy()
    workers = distribution.Workers.under(strategy)
    keras.utils.set_random_seed(0)
    config = keras_vit.ViTConfig(
        patch_size=4,
        num_layers=2,
        hidden_size=48,
        mlp_dim=96,
        num_heads=3,
        dropout_rate=0.1,
    )
    alone = workers.count == 1 or keras.backend.backend() == "jax"
    with strategy.scope():
        model = keras_vit.vit(config, image_size=(32, 32), num_classes=10)
    recipe = Recipe(
        total_steps=options.steps,
        base_lr=(0.03,),
        held_out=0.1,
        warmup_steps=options.steps // 10,
        batch_size=64,
        image_size=(32, 32),
        ema=0.99,
        accumulation_steps=2,
        randaugment=(2, 10),
        random_erasing=0.25,
        mixup=0.2,
        momentum_dtype="bfloat16" if alone else "float32",
    )
    with strategy.scope():
        fit(
            model,
            recipe,
            options.data,
            output=folder,
            save_steps=options.save_steps,
            verbose=0,
        )


def start(folder: Path, options: argparse.Namespace) -> Workers:
    """Starts the workers of a training run."""
    if options.workers == 1:
        variables: list[dict[str, str]] = [{}]
    else:
        variables = launching.environments(options.workers)
    workers = [FORKS.Process(target=work, args=(folder, options, v)) for v in variables]
    for worker in workers:
        worker.start()
    return workers


def end(workers: Workers, timeout: float | None = None) -> bool | None:
    """Returns whether all workers succeeded; None after `timeout` seconds.

    If one fails, the others are stopped.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    running = workers
    while running:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not wait([worker.sentinel for worker in running], left):
            return None
        running = [worker for worker in running if worker.is_alive()]
        if any(worker.exitcode for worker in workers):
            stop(running)
            return False
    return True


def stop(workers: Workers) -> None:
    """Sends SIGTERM, and SIGKILL after `GRACE`."""
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + GRACE
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0))
        worker.kill()
        worker.join()


def uncut(folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Trains; returns seconds to the first checkpoint, and from there to the end."""
    began = time.monotonic()
    workers = start(folder, options)
    while end(workers, 0.1) is None and not any(folder.glob("checkpoints/*.json")):
        pass
    first = time.monotonic()
    if not end(workers):
        raise SystemExit("the training failed without a kill")
    return first - began, time.monotonic() - first


def killed(
    folder: Path, options: argparse.Namespace, spans: tuple[float, float], kills: int
) -> int:
    """Trains with at most `kills` kills; returns the number of kills."""
    starting, training = spans
    rng = random.Random(f"{options.seed} {folder.name}")
    done = 0
    while True:
        workers = start(folder, options)
        moment = rng.uniform(starting / 2, starting + training / KILLS_OF_A_RUN)
        finished = end(workers, moment if done < kills else None)
        if finished:
            return done
        if finished is not None:
            raise SystemExit(f"{folder.name} failed after {done} kills")
        done += 1
        how = kill(workers, rng, gently=done % 5 == 0)
        if done % 5 == 1:
            truncate_newest(folder)
        if options.verbose:
            print(f"{folder.name}, kill {done}: {how}", flush=True)


def kill(workers: Workers, rng: random.Random, gently: bool) -> str:
    """Stops all workers, or kills one and stops the others; returns a description."""
    which = rng.randrange(len(workers) + 1)
    if gently:
        stop(workers)
        return "SIGTERM"
    if len(workers) < 2 or which == len(workers):
        for worker in workers:
            worker.kill()
        end(workers)
        return "SIGKILL of all"
    workers[which].kill()
    end(workers)
    return f"SIGKILL of worker {which}"


def truncate_newest(folder: Path) -> None:
    """Damages the newest checkpoint if there is another one."""
    files = sorted((folder / "checkpoints").glob("step-*.npz"))
    if len(files) > 1:
        files[-1].write_bytes(files[-1].read_bytes()[:-100])


def final(folder: Path) -> dict[str, np.ndarray]:
    """Returns weights, optimizer state and history of a finished run."""
    (newest, *_) = sorted((folder / "checkpoints").glob("step-*.npz"), reverse=True)
    with np.load(newest) as file:
        values = dict(file)
    lines = (folder / "history.jsonl").read_bytes()
    return values | {"history.jsonl": np.frombuffer(lines, np.uint8)}


def differences(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> set[str]:
    """Returns names of the arrays that differ or exist on one side only."""
    return {
        name
        for name in ours.keys() | theirs.keys()
        if name not in ours
        or name not in theirs
        or not np.array_equal(ours[name], theirs[name])
    }


def main() -> None:
    """Trains with and without kills, and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25, help="kills (default 25)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--steps", type=int, default=400, help="updates (default 400)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the kills")
    parser.add_argument(
        "--data", default="digits", help="an npz or a folder (default: digits)"
    )
    parser.add_argument(
        "--save-steps", type=int, default=20, help="between checkpoints (default 20)"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for each kill")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        # On JAX only the first run compiles; the second one measures times without it.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(temporary, "compiled"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        folders = Path(temporary, "uncut"), Path(temporary, "again")
        for folder in folders:
            spans = uncut(folder, options)
            print("uncut: {:.0f} s to a checkpoint, {:.0f} s more".format(*spans))
        expected, again = map(final, folders)
        differing = differences(again, expected)
        kills = runs = 0
        began = time.monotonic()
        while kills < options.kills:
            runs += 1
            folder = Path(temporary, f"run {runs}")
            kills += killed(folder, options, spans, options.kills - kills)
            differing |= differences(final(folder), expected)
            shutil.rmtree(folder)
    seconds = time.monotonic() - began
    lost = "different: " + ", ".join(sorted(differing)) if differing else "equal"
    print(
        f"{kills} kills of {runs} runs in {seconds:.0f} s, seed {options.seed}: "
        f"{len(expected)} arrays of the final state: {lost}"
    )
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
