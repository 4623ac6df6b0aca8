"""Updates in parts and SAM's, the same on TensorFlow, JAX and torch."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow")

from keras_vit.training import distribution, fit
from tests.training.test_fitting import (  # noqa: F401
    assert_close,
    ready,
    recipe,
    source,
    tiny,
    with_a_head,
)

CHANGES = {
    "plain": {},
    "EMA": {"ema": 0.9},
    "clipped": {"clip_norm": 0.1},
    "Adam": {
        "optimizer": "adam",
        "weight_decay": 0.1,
        "ema": 0.9,
        "base_lr": (0.01,),
    },
    "SAM": {"sam_rho": 0.1},
    "frozen": {"freeze": True},
    "on features": {"freeze": True, "augment": "none"},
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_four_parts_equal_one(source, changes):  # noqa: F811
    whole, parts = tiny(), tiny()
    one = fit(whole, recipe(**changes), source, verbose=0)
    four = fit(parts, recipe(accumulation_steps=4, **changes), source, verbose=0)
    if "optimizer" in changes:
        for model in (whole, parts):  # A key's bias has gradient 0: Adam scales noise.
            bias = model.get_layer("encoderblock_0").attention.qkv.bias
            bias.assign(bias * np.repeat([1.0, 0.0, 1.0], 16).astype(np.float32))
    atol = 1e-5 if "optimizer" in changes else 1e-6
    assert_close(whole.get_weights(), parts.get_weights(), atol)
    for a, b in zip(one.history, four.history, strict=True):
        assert a == pytest.approx(b, abs=1e-6)


def linear():
    """Softmax regression on images, from weights that are not zero."""
    images = keras.Input((32, 32, 3))
    model = keras.Model(
        images, keras.layers.Dense(3, name="head")(keras.layers.Flatten()(images))
    )
    rng = np.random.default_rng(5)
    model.set_weights(
        [0.02 * rng.standard_normal(w.shape) for w in model.get_weights()]
    )
    return model


def gradients(weights, images, labels):
    """Of the mean cross-entropy of softmax regression, in float64."""
    x = images.reshape(len(images), -1).astype(np.float64)
    logits = x @ weights[0] + weights[1]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(x)), labels] -= 1
    return [x.T @ p / len(x), p.mean(axis=0)]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("sam_rho", [None, 0.05, 0.5])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_an_update_is_the_formulas(clip_norm, sam_rho, parts):
    """w - lr * gradient at w + rho * g / ||g|| (SAM, Equation 2), in NumPy.

    A gradient of a larger norm than `clip_norm` is shortened to it, of the whole batch.
    """
    data = ready(count=1)
    images, labels = next(data.as_numpy_iterator())
    model = linear()
    start = [weights.astype(np.float64) for weights in model.get_weights()]
    there = start
    if sam_rho is not None:
        found = gradients(start, images, labels)
        norm = np.sqrt(sum((g**2).sum() for g in found))
        there = [w + sam_rho * g / norm for w, g in zip(start, found, strict=True)]
    gradient = gradients(there, images, labels)
    length = np.sqrt(sum((g**2).sum() for g in gradient))
    assert length > 0.1
    share = 1 if clip_norm is None else clip_norm / length
    expected = [w - 0.1 * share * g for w, g in zip(start, gradient, strict=True)]
    settings = recipe(
        total_steps=1,
        warmup_steps=0,
        clip_norm=clip_norm,
        sam_rho=sam_rho,
        accumulation_steps=parts,
    )
    result = fit(model, settings, data, verbose=0)
    assert_close(model.get_weights(), expected, 2e-6)
    logits = images.reshape(8, -1) @ start[0] + start[1]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(8), labels]
    assert result.history[-1]["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    right = (logits.argmax(axis=1) == labels).mean()
    assert result.history[-1]["accuracy"] == pytest.approx(right)


def test_sam_drops_the_same_units_twice():
    """A radius of nothing is no SAM, dropout and stochastic depth included."""
    runs = []
    for changes in ({}, {"sam_rho": 1e-30}):
        model = with_a_head(dropout_rate=0.5)
        keras.utils.set_random_seed(11)
        settings = recipe(total_steps=1, warmup_steps=0, **changes)
        fit(model, settings, ready(count=1), verbose=0)
        runs.append(model.get_weights())
    assert_close(*runs, 1e-6)


SEVERAL = {
    "plain": {},
    "SAM": {"sam_rho": 0.1},
    "EMA": {"ema": 0.9},
    "clipped": {"clip_norm": 0.1},
    "Adam": {"optimizer": "adam", "weight_decay": 0.1, "ema": 0.9, "base_lr": [0.01]},
    "float16": {},
    "float16, EMA, clipped": {"ema": 0.9, "clip_norm": 0.1},
}
ON_DEVICES = """
import sys
from pathlib import Path
import keras
import numpy as np
from keras_vit.training import fit, strategy
from keras_vit.training.distribution import Workers
from tests.training.test_fitting import ready, recipe
from tests.training.test_train_step import SEVERAL, linear

word, folder = sys.argv[1:]
devices = strategy(word)
for case, changes in SEVERAL.items():
    mixed = case.startswith("float16")
    keras.config.set_dtype_policy("mixed_float16" if mixed else "float32")
    for parts in (1,) if word == "none" else (1, 2):
        settings = recipe(batch_size=32, accumulation_steps=parts, **changes)
        with devices.scope():
            model = linear()
            result = fit(model, settings, ready(size=32), verbose=0)
            replicas = Workers.of(model).replicas
        np.savez(
            Path(folder, f"{case} in {parts}.npz"),
            *model.get_weights(),
            *(variable.numpy() for variable in model.optimizer.variables),
            loss=result.history[-1]["loss"],
            replicas=replicas,
        )
"""


@pytest.fixture(scope="module")
def on_devices(tmp_path_factory):
    """Folders of what one device and eight of JAX made of each case."""
    if keras.backend.backend() != "jax":
        pytest.skip("devices of JAX")
    folders = {}
    for word in ("none", "mirrored"):
        folders[word] = tmp_path_factory.mktemp(word)
        done = subprocess.run(
            [sys.executable, "-c", ON_DEVICES, word, str(folders[word])],
            env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == 0, done.stderr[-2000:]
    return folders


@pytest.mark.parametrize("case", SEVERAL)
def test_eight_devices_of_jax_equal_one(case, on_devices):
    """Weights and the optimizer's numbers, also in parts, which each device cuts.

    In float16 a sum over devices rounds elsewhere; the scale, halved where any device
    overflows, is the same.
    """
    atol = 1e-3 if case.startswith("float16") else 1e-6
    one = dict(np.load(on_devices["none"] / f"{case} in 1.npz"))
    assert one.pop("replicas") == 1
    for parts in (1, 2):
        several = dict(np.load(on_devices["mirrored"] / f"{case} in {parts}.npz"))
        assert several.pop("replicas") == 8
        assert several.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_allclose(several[name], value, rtol=0, atol=atol)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="devices of JAX")
def test_a_model_outside_its_scope_is_refused(monkeypatch):
    monkeypatch.setattr(distribution, "_devices_of", lambda model: 8)
    with pytest.raises(ValueError, match="a model on 8 devices, outside"):
        fit(linear(), recipe(total_steps=1), ready(count=1), verbose=0)
