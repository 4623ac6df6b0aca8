"""Exports small models to every format; reads SavedModels of a newer TensorFlow.

    python benchmarks/colab/exports.py all FOLDER      # Every format and precision.
    python benchmarks/colab/exports.py write FOLDER    # SavedModels and their outputs.
    python benchmarks/colab/exports.py read FOLDER     # In a different environment.

`make colab` writes with the newest TensorFlow and reads with Colab's, because
TensorFlow Serving's newest release can be older than the TensorFlow that exports.
"""

import argparse
import dataclasses
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit import export_formats, serving
from keras_vit.serving.export_check import drawn_samples
from keras_vit.serving.parity import run_fresh

SIZE = (32, 32)
TOLERANCE = 1e-5  # Of the proof that `serving.export` makes.


def models() -> dict[str, keras.Model]:
    """A small model of each family, with random weights and an uneven head."""
    stem = keras_vit.ResNetConfig(num_layers=(1,), width=32, unit="v1")
    vit = keras_vit.ViTConfig(
        patch_size=8, num_layers=2, hidden_size=48, mlp_dim=96, num_heads=3
    )
    hybrid = dataclasses.replace(vit, patch_size=1, resnet=stem)
    bit = keras_vit.ResNetConfig(num_layers=(1, 1), width=32)
    keras.utils.set_random_seed(0)
    found = {
        "vit": keras_vit.vit(vit, image_size=SIZE, num_classes=5),
        "hybrid": keras_vit.vit(hybrid, image_size=SIZE, num_classes=5),
        "bit": keras_vit.resnet(bit, image_size=SIZE, num_classes=5),
    }
    for model in found.values():
        head = model.get_layer("head")
        kernel, bias = head.get_weights()
        kernel = np.random.default_rng(0).normal(0, 0.3, kernel.shape)
        head.set_weights([kernel, bias])
    return found


def arrays(model: keras.Model) -> dict[str, np.ndarray]:
    """Inputs of every signature, by the names of `serving.isolated_run`."""
    rng = np.random.default_rng(1)
    samples = drawn_samples(model)
    encoded = {
        f"image_bytes/{i}": np.frombuffer(sample, np.uint8)
        for i, sample in enumerate(samples)
    }
    pixels = rng.integers(0, 256, (3, *SIZE, 3), np.uint8)
    scaled = rng.normal(0, 1, (3, *SIZE, 3)).astype(np.float32)
    return {**encoded, "uint8": pixels, "float32": scaled}


def write_all(folder: Path) -> None:
    """Writes every format; each export verifies the file without Keras."""
    for name, model in models().items():
        model.save(folder / f"{name}.keras")
        keras_vit.weights.save(model, folder / f"{name}.npz")
        given = arrays(model)["float32"]
        read = keras.models.load_model(folder / f"{name}.keras")
        np.testing.assert_array_equal(read(given), model(given))
        path = folder / f"{name}.npz"
        read = keras_vit.from_checkpoint(path, image_size=SIZE)
        # An npz does not state a hybrid's epsilons: the paper's are taken.
        np.testing.assert_allclose(read(given), model(given), atol=1e-3)
        serving.export(model, folder / name)
        for kind, suffix in export_formats.SUFFIXES.items():
            for precision in export_formats.WRITTEN[kind]:
                path = folder / f"{name}-{precision}{suffix}"
                serving.export_file(model, path, precision=precision)


def write(folder: Path) -> None:
    """Writes SavedModels, inputs, and the outputs in this environment."""
    print(f"written by TensorFlow {tf.__version__}, Keras {keras.version()}")
    for name, model in models().items():
        exported = serving.export(model, folder / name, verbose=False)
        given = arrays(model)
        np.savez(folder / f"{name}.in.npz", **given)  # type: ignore[arg-type]
        outputs = run_fresh("savedmodel", exported.path, given)
        np.savez(folder / f"{name}.out.npz", **outputs)  # type: ignore[arg-type]


def read(folder: Path) -> None:
    """Loads the SavedModels here, and compares their outputs with those written.

    Raises:
        ValueError: if an output differs.
    """
    print(f"read by TensorFlow {tf.__version__}")
    for inputs in sorted(folder.glob("*.in.npz")):
        name = inputs.name.removesuffix(".in.npz")
        with np.load(inputs) as given, np.load(folder / f"{name}.out.npz") as outputs:
            found = run_fresh("savedmodel", folder / name / "1", dict(given))
            expected = dict(outputs)
        if found.keys() != expected.keys():
            raise ValueError(f"Expected {sorted(expected)}. Received: {sorted(found)}")
        largest = 0.0
        for key, there in expected.items():
            if there.dtype.kind == "f":
                largest = max(largest, float(np.abs(found[key] - there).max(initial=0)))
            elif not np.array_equal(found[key], there):
                raise ValueError(f"{name}, {key}: expected {there}, got {found[key]}")
        print(f"{name}: {len(expected)} outputs, largest difference {largest:.1e}")
        if not largest <= TOLERANCE:
            raise ValueError(f"{name}: expected {TOLERANCE:.0e}. Received: {largest}")


def main() -> None:
    """Runs a command of the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("all", "write", "read"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    {"all": write_all, "write": write, "read": read}[given.command](given.folder)


if __name__ == "__main__":
    main()
