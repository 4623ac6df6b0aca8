"""Compare training runs on TensorFlow, JAX and torch, update by update.

    python benchmarks/backends.py
    python benchmarks/backends.py --models ViT --steps 200 --backends jax torch

Each backend trains in its own process, without dropout, from the same initial weights
on the same batches with the same recipe (Table 4's, with the batch in two parts). The
loss and the gradient norm of every update are compared, and the weights tensor by
tensor. If a tensor differs by more than 1e-6, both runs are repeated to find the first
such update.

Two controls separate rounding from real differences. The first backend also trains
from weights that are one rounding step larger: rounding explains differences of that
size. In float64, rounding is 10^9 times smaller, but a real difference stays as large.

Differences of losses and norms are |a - b| / |a|; of a tensor, max |a - b| / max |a|.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 1e-6
MODELS = ("ViT", "hybrid")
DTYPES = ("float32", "float64")
BACKENDS = ("tensorflow", "jax", "torch")
CLASSES, BATCH, IMAGES = 10, 16, 2048
EARLY, OFTEN = 20, 50  # Weights are kept for all of the first, then at intervals.


@dataclasses.dataclass(frozen=True)
class Training:
    """The settings of a training process.

    Attributes:
        backend: Keras backend.
        model: one of `MODELS`.
        dtype: "float32" or "float64", for variables, data and computation.
        total_steps: number of updates in the recipe.
        until: number of updates to run.
        kept: updates after which the weights are recorded.
        base_lr: learning rate of the recipe.
        rounded: whether to start from weights that are one rounding step larger.
        changes: recipe fields to replace.
    """

    backend: str
    model: str
    dtype: str
    total_steps: int
    until: int
    kept: tuple[int, ...]
    base_lr: float
    rounded: bool = False
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.backend}, rounded" if self.rounded else self.backend

    def run(self, start: Path) -> "Record":
        """Trains in a new process."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.npz"
            settings = json.dumps(dataclasses.asdict(self))
            done = subprocess.run(
                [sys.executable, __file__, "--train", settings, str(start), str(path)],
                env={
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "OMP_NUM_THREADS": "1",  # In torch, more slow small products.
                    **os.environ,
                    "KERAS_BACKEND": self.backend,
                    "JAX_ENABLE_X64": str(self.dtype == "float64"),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                raise SystemExit(f"{self.name}: {done.stdout[-4000:]}")
            with np.load(path) as file:
                return Record(self, dict(file))


@dataclasses.dataclass(frozen=True)
class Record:
    """The arrays of a training run: "loss" and "norm" [until], and "STEP/TENSOR"."""

    training: Training
    arrays: dict[str, np.ndarray]

    def tensors(self, step: int) -> dict[str, np.ndarray]:
        """Returns the trained weights after an update."""
        begin = f"{step}/"
        return {
            key.removeprefix(begin): value
            for key, value in self.arrays.items()
            if key.startswith(begin)
        }


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Returns max |a - b| / max |a|."""
    most = float(np.abs(a).max())
    return float(np.abs(a - b).max()) / most if most else float(np.abs(b).max())


def farthest(a: Record, b: Record, step: int) -> tuple[float, str]:
    """Returns the largest difference after an update, and its tensor."""
    ours, theirs = a.tensors(step), b.tensors(step)
    if ours.keys() != theirs.keys():
        names = sorted(ours.keys() ^ theirs.keys())
        raise SystemExit(f"Tensors of only one training: {names[:4]}")
    return max((relative(ours[name], theirs[name]), name) for name in ours)


def first_difference(
    a: Record, b: Record, start: Path
) -> tuple[int, float, str] | None:
    """Returns the first update after which a tensor differs by more than `LIMIT`.

    Between two recorded updates, both runs are repeated with every update recorded.
    """
    last = 0
    for step in a.training.kept:
        if farthest(a, b, step)[0] <= LIMIT:
            last = step
            continue
        if step > last + 1:
            between = tuple(range(last + 1, step + 1))
            a, b = (
                dataclasses.replace(record.training, until=step, kept=between).run(
                    start
                )
                for record in (a, b)
            )
        for at in range(last + 1, step + 1):
            difference, name = farthest(a, b, at)
            if difference > LIMIT:
                return at, difference, name
    return None


def compared(a: Record, b: Record, start: Path) -> dict[str, Any]:
    """Returns all differences between two training runs."""
    losses, norms = (
        np.abs(a.arrays[key] - b.arrays[key]) / np.abs(a.arrays[key])
        for key in ("loss", "norm")
    )
    difference, name = farthest(a, b, a.training.until)
    return {
        "model": a.training.model,
        "dtype": a.training.dtype,
        "trainings": [a.training.name, b.training.name],
        "loss": losses.tolist(),
        "norm": norms.tolist(),
        "weights": {"difference": difference, "tensor": name},
        "first": first_difference(a, b, start),
    }


def batches() -> tuple[np.ndarray, np.ndarray]:
    """Makes images [N, 32, 32, 3] in [-1, 1], a noisy pattern per class, and labels."""
    rng = np.random.default_rng(0)
    colors = rng.uniform(-0.5, 0.5, (CLASSES, 4, 4, 3)).repeat(8, 1).repeat(8, 2)
    labels = rng.integers(0, CLASSES, IMAGES)
    noise = rng.uniform(-0.5, 0.5, (IMAGES, 32, 32, 3))
    return (colors[labels] + noise).astype(np.float32), labels


def build(name: str) -> Any:
    """Builds a small model that has every layer of its kind."""
    import keras_vit

    hybrid = keras_vit.VARIANTS["R26+ViT-S/32"]
    stem = dataclasses.replace(hybrid.resnet, num_layers=(1, 1), width=32)
    config = dataclasses.replace(
        hybrid, num_layers=2, hidden_size=64, mlp_dim=128, num_heads=4, resnet=stem
    )
    if name == "ViT":
        config = dataclasses.replace(config, num_layers=4, patch_size=8, resnet=None)
    return keras_vit.vit(config, image_size=(32, 32), num_classes=CLASSES)


def write_start(name: str, path: Path) -> None:
    """Writes the initial weights of all backends."""
    import keras

    import keras_vit

    keras.utils.set_random_seed(0)
    model = build(name)
    kernel, bias = model.get_layer("head").get_weights()
    drawn = np.random.default_rng(1).normal(scale=0.1, size=kernel.shape)
    model.get_layer("head").set_weights([drawn, bias])
    keras_vit.weights.save(model, path)


def compute_in_float64() -> None:
    """Makes Keras compute in float64.

    On JAX and torch, `keras.backend.result_type` maps float64 to float32, so that
    products and norms would be rounded to float32. No public setting changes this.
    """
    import keras

    module = sys.modules[keras.backend.result_type.__module__]
    vars(module)["BIT64_TO_BIT32_DTYPE"]["float64"] = "float64"
    product = keras.ops.matmul(*[keras.ops.ones((1, 1), "float64")] * 2)
    if keras.backend.standardize_dtype(product.dtype) != "float64":
        raise ValueError(f"Keras {keras.version()} does not compute in float64")


def train(training: Training, start: Path, path: Path) -> None:
    """Trains in this process and writes the record."""
    import keras
    import tensorflow as tf

    import keras_vit
    from keras_vit.recipes import Recipe
    from keras_vit.training import fit, resume

    keras.config.set_floatx(training.dtype)
    if training.dtype == "float64":
        compute_in_float64()
    model = keras_vit.from_checkpoint(str(start), image_size=(32, 32), num_heads=4)
    if training.rounded:
        for variable in model.trainable_variables:
            value = keras.ops.convert_to_numpy(variable)
            variable.assign(np.nextafter(value, 2 * value))
    if (dtypes := {v.dtype for v in model.trainable_variables}) != {training.dtype}:
        raise ValueError(f"Expected {training.dtype} variables. Received: {dtypes}")
    found: dict[str, Any] = {"loss": [], "norm": []}

    class Keep(keras.callbacks.Callback):
        """Records each update, which is one epoch here."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            step = epoch + 1
            resume.synchronize(self.model)
            found["loss"].append(logs["loss"])
            found["norm"].append(float(self.model.optimizer.gradient_norm))
            if step in training.kept:
                for place, variable in enumerate(self.model.trainable_variables):
                    value = keras.ops.convert_to_numpy(variable)
                    found[f"{step}/{place} {variable.path}"] = value.copy()
            self.model.stop_training = step == training.until

    real = keras.Model.fit

    def recorded(self: Any, *args: Any, callbacks: Any = (), **kwargs: Any) -> Any:
        return real(self, *args, callbacks=[*callbacks, Keep()], **kwargs)

    keras.Model.fit = recorded
    recipe = Recipe(
        total_steps=training.total_steps,
        base_lr=(training.base_lr,),
        held_out=0.1,
        warmup_steps=training.total_steps // 10,
        batch_size=BATCH,
        image_size=(32, 32),
        **{"accumulation_steps": 2} | training.changes,
    )
    images, labels = batches()
    images = images.astype(training.dtype)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH)
    fit(model, recipe, data, evaluations=training.total_steps, verbose=0)
    np.savez(path, **found)


def table(results: list[dict[str, Any]]) -> str:
    """Formats one line per comparison."""
    steps = [n for n in (1, 10, 100, 1000) if n <= len(results[0]["loss"])]
    head = "".join(f"{f'loss, {n}':>12}" for n in steps)
    lines = [f"{'':50}{head}{'norm, end':>12}{'weights':>10}  first beyond 1e-6"]
    for result in results:
        numbers = "".join(f"{result['loss'][n - 1]:12.1e}" for n in steps)
        first = result["first"]
        where = "none" if first is None else f"update {first[0]}: {first[2]}"
        name = (
            f"{result['model']}, {result['dtype']}: {' and '.join(result['trainings'])}"
        )
        end = f"{result['norm'][-1]:12.1e}{result['weights']['difference']:10.1e}"
        lines.append(f"{name:50}{numbers}{end}  {where}")
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Plots the differences of the losses by update."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(result["model"] for result in results))
    colors = dict(zip(BACKENDS, ("tab:orange", "tab:blue", "tab:red"), strict=True))
    figure, axes = plt.subplots(
        1, len(models), figsize=(5 * len(models), 3.6), sharey=True, squeeze=False
    )
    for model, ax in zip(models, axes[0], strict=True):
        for result in results:
            if result["model"] == model:
                ax.loglog(
                    np.arange(1, len(result["loss"]) + 1),
                    np.maximum.accumulate(result["loss"]),
                    color=colors.get(result["trainings"][1], "black"),
                    linestyle="-" if result["dtype"] == "float32" else "--",
                    label=f"{result['dtype']}: {' and '.join(result['trainings'])}",
                )
        ax.set(title=model, xlabel="update")
        ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("largest relative difference of the loss so far")
    axes[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=80, bbox_inches="tight")


def main() -> None:
    """Trains on all backends, compares and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="number formats"
    )
    parser.add_argument("--steps", type=int, default=1000, help="number of updates")
    parser.add_argument(
        "--lr", type=float, default=0.003, help="learning rate, one of Table 4's"
    )
    parser.add_argument("--json", type=Path, help="file for all differences")
    parser.add_argument("--plot", type=Path, help="file for the plot")
    parser.add_argument(
        "--other",
        type=json.loads,
        default={},
        help="recipe fields to change on the last backend, to test that the difference "
        "is found: '{\"clip_norm\": null}'",
    )
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        settings, start, path = options.train
        train(Training(**json.loads(settings)), Path(start), Path(path))
        return
    kept = sorted(
        {*range(1, min(EARLY, options.steps) + 1)}
        | {*range(OFTEN, options.steps + 1, OFTEN)}
        | {options.steps}
    )
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            start = Path(folder) / f"{name}.npz"
            write_start(name, start)
            for dtype in options.dtypes:
                first, *others = (
                    Training(
                        backend=backend,
                        model=name,
                        dtype=dtype,
                        total_steps=options.steps,
                        until=options.steps,
                        kept=tuple(kept),
                        base_lr=options.lr,
                    )
                    for backend in options.backends
                )
                others[-1] = dataclasses.replace(others[-1], changes=options.other)
                rounded = dataclasses.replace(first, rounded=True)
                record = first.run(start)
                for other in (*others, rounded):
                    results.append(compared(record, other.run(start), start))
                    print(table(results[-1:]), flush=True)
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results))
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
