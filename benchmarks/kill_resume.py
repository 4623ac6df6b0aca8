"""Kills a training again and again; it has to end with the bits it would have had.

    python benchmarks/kill_resume.py --kills 25
    python benchmarks/kill_resume.py --kills 10 --workers 2
    KERAS_BACKEND=jax python benchmarks/kill_resume.py --kills 5 --workers 2

Trains twice with everything that holds state or draws numbers: dropout, crops,
RandAugment, random erasing, mixup, averaging, accumulation, bfloat16 momentum. The
first run is left alone. The second is killed at random moments (one in five times by
SIGTERM, one in five its newest checkpoint is truncated as well) and started again with
the same call. With several workers, processes that `keras-vit launch` starts, a kill
takes the chief, another one, or all; on TensorFlow their momentum is float32. Exits
with 1 if a weight, a number of the optimizer's state or a line of the history is
another, or the training was over before the last kill.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def work(folder: str, data: str, steps: int) -> None:
    """One training in `folder`: from its beginning, or from where it was cut."""
    import keras
    import tensorflow as tf

    import keras_vit
    from keras_vit.recipes import Recipe
    from keras_vit.training import distribution, fit

    tf.config.experimental.enable_op_determinism()
    strategy = distribution.strategy()
    workers = distribution.Workers.under(strategy)
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"worker-{workers.index}.pid").write_text(str(os.getpid()))
    keras.utils.set_random_seed(0)
    config = keras_vit.ViTConfig(
        patch_size=4,
        num_layers=2,
        hidden_size=48,
        mlp_dim=96,
        num_heads=3,
        dropout_rate=0.1,
    )
    anywhere = workers.count == 1 or keras.backend.backend() == "jax"
    with strategy.scope():
        model = keras_vit.vit(config, image_size=(32, 32), num_classes=10)
    recipe = Recipe(
        total_steps=steps,
        base_lr=(0.03,),
        held_out=0.1,
        warmup_steps=steps // 10,
        batch_size=64,
        image_size=(32, 32),
        ema=0.99,
        accumulation_steps=2,
        randaugment=(2, 10),
        random_erasing=0.25,
        mixup=0.2,
        momentum_dtype="bfloat16" if anywhere else "float32",
    )
    with strategy.scope():
        fit(model, recipe, data, output=folder, save_steps=20, verbose=0)


def call(folder: Path, options: argparse.Namespace) -> list[str]:
    """The command of one training."""
    arguments = ["--folder", str(folder), "--data", options.data]
    alone = [sys.executable, __file__, *arguments, "--steps", str(options.steps)]
    if options.workers == 1:
        return alone
    launcher = str(Path(__file__).parents[1] / "keras_vit/launching.py")
    return [sys.executable, launcher, str(options.workers), *alone]


def uncut(folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Trains; seconds until the first checkpoint, and from there to the end."""
    began = time.monotonic()
    process = subprocess.Popen(call(folder, options))
    while process.poll() is None and not any(folder.glob("checkpoints/*.json")):
        time.sleep(0.1)
    first = time.monotonic()
    if process.wait():
        raise SystemExit("the training failed without a kill")
    return first - began, time.monotonic() - first


def killed(
    folder: Path, options: argparse.Namespace, starting: float, training: float
) -> int:
    """Trains with `options.kills` kills on the way; returns how many there were."""
    rng = random.Random(options.seed)
    kills = 0
    while True:
        for told in folder.glob("worker-*.pid"):
            told.unlink()
        process = subprocess.Popen(call(folder, options))
        latest = starting + training / max(options.kills, 1)
        moment = rng.uniform(starting / 2, latest)
        patience = moment if kills < options.kills else None
        try:
            if process.wait(patience):
                raise SystemExit(f"the training failed after {kills} kills")
        except subprocess.TimeoutExpired:
            kills += 1
            if kills % 5 == 0:
                process.terminate()
                how = "SIGTERM"
            else:
                how = f"SIGKILL of {kill(process, folder, rng)}"
            process.wait()
            if kills % 5 == 1:
                truncate_newest(folder)
            print(f"kill {kills}: {how}", flush=True)
            continue
        if not process.returncode and (folder / "history.json").exists():
            return kills


def kill(process: subprocess.Popen[bytes], folder: Path, rng: random.Random) -> str:
    """Kills one worker or all; the launcher ends the others. Says which."""
    victims = sorted(folder.glob("worker-*.pid"))
    which = rng.randrange(len(victims) + 1)
    if len(victims) < 2 or which == len(victims):
        process.kill()
        return "all"
    os.kill(int(victims[which].read_text()), signal.SIGKILL)
    return victims[which].stem


def truncate_newest(folder: Path) -> None:
    """Damages the newest checkpoint, where another one is left."""
    files = sorted((folder / "checkpoints").glob("step-*.npz"))
    if len(files) > 1:
        files[-1].write_bytes(files[-1].read_bytes()[:-100])


def final(folder: Path) -> dict[str, np.ndarray]:
    """Weights, optimizer state and history of a finished run."""
    (newest, *_) = sorted((folder / "checkpoints").glob("step-*.npz"), reverse=True)
    with np.load(newest) as file:
        values = dict(file)
    lines = (folder / "history.jsonl").read_bytes()
    return values | {"history.jsonl": np.frombuffer(lines, np.uint8)}


def main() -> None:
    """Trains twice and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25, help="kills (default 25)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--steps", type=int, default=400, help="updates (default 400)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills' moments")
    parser.add_argument(
        "--data", default="digits", help="an npz or a folder (default: digits)"
    )
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        work(options.folder, options.data, options.steps)
        return
    with tempfile.TemporaryDirectory() as temporary:
        alone, cut = Path(temporary, "uncut"), Path(temporary, "cut")
        starting, training = uncut(alone, options)
        print(f"uncut: {starting:.0f} s to the first checkpoint, {training:.0f} s more")
        kills = killed(cut, options, starting, training)
        ours, theirs = final(cut), final(alone)
        differing = [
            name
            for name in ours.keys() | theirs.keys()
            if name not in ours
            or name not in theirs
            or not np.array_equal(ours[name], theirs[name])
        ]
    lost = "different: " + ", ".join(sorted(differing)) if differing else "equal"
    print(f"{kills} kills, {len(theirs)} arrays of the final state: {lost}")
    if kills < options.kills:
        raise SystemExit(
            f"Expected {options.kills} kills. The training was over after {kills}: "
            "the machine has become faster. Run it again, or with more --steps"
        )
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
