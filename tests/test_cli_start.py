"""Which packages a command imports: a start without the unused ones takes less time."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow_only

IMPORTED = """
import json
import sys
import keras_vit_command  # Else keras_vit imports Keras.
from keras_vit.cli import shell
shell.import_keras()
import keras
there = [name for name in ("jax", "matplotlib", "sklearn") if name in sys.modules]
import sklearn.linear_model, matplotlib.figure  # Later imports find them.
print(json.dumps([keras.backend.backend(), there]))
"""


@pytest.mark.parametrize("stated", ["default", "variable", "keras.json", "damaged"])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_unused_packages_are_imported_only_as_the_backend(tmp_path, backend, stated):
    variables = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    variables["KERAS_HOME"] = str(tmp_path)
    if stated == "variable":
        variables["KERAS_BACKEND"] = backend
    elif stated == "keras.json":
        (tmp_path / "keras.json").write_text(json.dumps({"backend": backend}))
    elif backend != "tensorflow":
        pytest.skip("TensorFlow is Keras's default")
    elif stated == "damaged":
        (tmp_path / "keras.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    found, there = json.loads(done.stdout)
    assert found == backend
    assert there == ["jax"] * (backend == "jax")
