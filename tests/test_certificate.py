"""benchmarks/backends.py: one training on TensorFlow, JAX and torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import skip_without

skip_without("tensorflow", "jax", "torch")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

ROOT = Path(__file__).parents[1]


def certify(path, *options):
    """The results of comparisons by their two trainings."""
    done = subprocess.run(
        [sys.executable, "benchmarks/backends.py", "--json", str(path), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return {tuple(at["trainings"]): at for at in json.loads(path.read_text())}


@pytest.mark.parametrize("model", ["ViT", "hybrid"])
def test_backends_train_alike_in_float64(model, tmp_path):
    """1e-8: `tf.nn.gelu` rounds its constants to float32 in float64, too."""
    options = ("--models", model, "--dtypes", "float64", "--steps", "6")
    results = certify(tmp_path / "found.json", *options)
    others = {name for _, name in results}
    assert others == {"jax", "torch", "tensorflow, rounded"}
    for result in results.values():
        assert len(result["loss"]) == 6
        assert max(result["loss"] + result["norm"]) < 1e-8
        assert result["weights"]["difference"] < 1e-8
        assert result["first"] is None


def test_a_different_momentum_is_found_at_the_second_update(tmp_path):
    options = [
        "--models",
        "ViT",
        "--dtypes",
        "float64",
        "--steps",
        "20",
        "--backends",
        "jax",
        "torch",
    ]
    options += ["--other", '{"momentum": 0.89}']
    results = certify(tmp_path / "found.json", *options)
    result = results["jax", "torch"]
    step, difference, _ = result["first"]
    assert step == 2  # Before it, there is no momentum, and the warm-up starts at 0.
    assert difference > 1e-6
    assert result["loss"][0] < 1e-12
    assert result["weights"]["difference"] > 1e-3
    assert results["jax", "jax, rounded"]["first"] is None
