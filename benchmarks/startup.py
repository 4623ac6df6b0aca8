"""Measures the time to the first prediction, and to the end of the shortest training.

    python benchmarks/startup.py

Imports are timed in fresh processes, in turn, and the medians are compared. ViT-B/16 is
built and loaded from an npz of its full size, which is first written to a temporary
folder. `keras-vit predict` is timed from start to end of the process, for that file and
for the model exported to each runtime. The last row is `keras_vit.fit` with one update
and one evaluation: mostly tracing, because the images have 32 pixels.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROUNDS = 5


def import_seconds(statement: str) -> float:
    """Returns the seconds that an import statement takes in a fresh process."""
    code = (
        f"import time; start = time.perf_counter(); {statement}; "
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def prediction_seconds(photo: Path, *words: str) -> float:
    """Returns the seconds of `keras-vit predict` for one photo, from start to end."""
    command = [sys.executable, "-m", "keras_vit_command", "predict", str(photo), *words]
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start


def training_seconds() -> float:
    """Returns the seconds of a training run of ViT-B/16 with one update."""
    import keras_vit
    from keras_vit.recipes import Recipe

    model = keras_vit.vit(
        keras_vit.VARIANTS["ViT-B/16"], image_size=(32, 32), num_classes=10
    )
    recipe = Recipe(total_steps=1, base_lr=(0.01,), batch_size=8, image_size=(32, 32))
    start = time.perf_counter()
    keras_vit.fit(model, recipe, "digits", verbose=0)
    return time.perf_counter() - start


def main() -> None:
    """Prints the four groups of figures."""
    rounds = [
        [import_seconds(f"import {module}") for module in ("keras", "keras_vit")]
        for _ in range(ROUNDS)
    ]
    keras_alone, with_ours = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    print(f"import keras      {keras_alone:.2f} s")
    print(f"import keras_vit  {with_ours:.2f} s: {with_ours - keras_alone:+.2f} s")

    import numpy as np
    import PIL.Image

    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ViT-B_16.npz")
        keras_vit.weights.save(keras_vit.ViT_B16(weights=None), path)
        for attempt in ("first", "second"):
            start = time.perf_counter()
            model = keras_vit.ViT_B16(weights=path)
            seconds = time.perf_counter() - start
            print(f"build and load ViT-B/16 ({attempt} time)  {seconds:.2f} s")
        photo = Path(folder, "photo.jpg")
        pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)
        PIL.Image.fromarray(pixels).save(photo)
        commands = {"Keras": ["--model", "ViT-B/16", "--weights", str(path)]}
        for name, suffix in {
            "LiteRT": "tflite",
            "ONNX": "onnx",
            "OpenVINO": "xml",
        }.items():
            file = Path(folder, f"b16.{suffix}")
            keras_vit.serving.export_file(model, file, verbose=False)
            commands[name] = ["--model", str(file)]
        measured: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, words in commands.items():
                measured[name].append(prediction_seconds(photo, *words))
    keras_seconds = statistics.median(measured["Keras"])
    for name, times in measured.items():
        seconds = statistics.median(times)
        print(
            f"predict, {name:9} {seconds:.2f} s, {seconds / keras_seconds:.2f} of Keras"
        )
    seconds = statistics.median(training_seconds() for _ in range(ROUNDS))
    print(f"fit, one update and an evaluation  {seconds:.2f} s")


if __name__ == "__main__":
    main()
