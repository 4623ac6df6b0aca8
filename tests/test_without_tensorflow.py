"""What works where TensorFlow is not installed: models, layers, weights, attention.

docs/start/install.md, "Without TensorFlow". A process in which TensorFlow cannot be
imported stands for an environment without it; `make colab-tpu` runs this in one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REFERENCE, skip_without

ROOT = Path(__file__).parents[1]
BACKENDS = [
    pytest.param(name, marks=pytest.mark.tensorflow_only) for name in ("jax", "torch")
]
BLOCK = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tensorflow_datasets"):
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""
WORKS = """
import keras
import numpy as np

import keras_vit

checkpoint, folder = sys.argv[1:]
images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
x = images.astype("float32") / 127.5 - 1

model = keras_vit.ViT_Ti16(weights=None, classes=10, input_shape=(64, 64, 3))
assert model.predict(x, verbose=0).shape == (2, 10)

read = keras_vit.from_checkpoint(checkpoint)
size = read.input_shape[1:3]
given = keras.ops.convert_to_numpy(keras.ops.image.resize(x, size))
scores = read.predict(given, verbose=0)
assert np.isfinite(scores).all()
assert keras_vit.inspection.attention_rollout(read, given).shape == (2, *size)

features = keras.Model(read.input, read.get_layer("head").input)
assert features.predict(given, verbose=0).shape[0] == 2

keras_vit.weights.save(read, f"{folder}/m.npz")
again = keras_vit.from_checkpoint(f"{folder}/m.npz")
assert np.array_equal(again.predict(given, verbose=0), scores)
read.save(f"{folder}/m.keras")
again = keras.models.load_model(f"{folder}/m.keras")
assert np.array_equal(again.predict(given, verbose=0), scores)

tuned = keras_vit.for_task(read, ["cat", "dog"])
tuned.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = tuned.fit(given, np.array([0, 1]), verbose=0).history
assert np.isfinite(history["loss"][0])
assert keras_vit.inspection.costs("ViT-B/16").multiply_adds == 17_563_828_224
print(keras.backend.backend(), "tensorflow" in sys.modules)
"""
REFUSED = """
import keras_vit

for name in ("training.fit", "evaluation.knn", "data.open_source", "serving.export"):
    module, attribute = name.split(".")
    try:
        getattr(getattr(keras_vit, module), attribute)
    except ImportError as error:
        print(error)
"""


def without_tensorflow(code, backend, *arguments):
    code = BLOCK + code
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_models_layers_weights_and_attention_work(backend, tmp_path):
    pytest.importorskip(backend)
    checkpoint = REFERENCE / "vit_mini.npz"
    done = without_tensorflow(WORKS, backend, checkpoint, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [backend, "False"]


@pytest.mark.tensorflow_only
def test_what_requires_it_says_so():
    skip_without("jax")
    done = without_tensorflow(REFUSED, "jax")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all("requires TensorFlow" in line for line in lines)
    assert all("pip install tensorflow-cpu" in line for line in lines)


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("['costs', 'ViT-B/16']", "17,563,828,224"),
        ("['weights', 'list']", "ViT-B/16"),
        ("['doctor']", "training requires TensorFlow"),
    ],
)
def test_commands_that_work(command, printed):
    skip_without("jax")
    code = f"sys.argv[1:] = {command}\nfrom keras_vit_command import main\nmain()"
    done = without_tensorflow(code, "jax")
    assert done.returncode == 0, done.stderr[-3000:]
    assert printed in " ".join(done.stdout.split())


@pytest.mark.tensorflow_only
def test_a_command_that_trains_names_the_remedy(tmp_path):
    skip_without("jax")
    line = ["finetune", "--data", "digits", "--output", str(tmp_path)]
    code = f"sys.argv[1:] = {line}\nfrom keras_vit_command import main\nmain()"
    done = without_tensorflow(code, "jax")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "pip install tensorflow-cpu" in " ".join(done.stderr.split())
