"""Neighbours and the linear probe: scikit-learn's."""

import dataclasses
import sys

import numpy as np
import pytest

from keras_vit.evaluation import Features, fewshot, knn, linear_probe, probes

pytestmark = pytest.mark.tensorflow_only  # NumPy: one backend is enough.


@pytest.fixture(scope="module")
def clouds():
    """Four overlapping classes, of scales that differ from feature to feature."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 10))
    labels = rng.integers(0, 4, 400)
    x = (centres[labels] + 1.5 * rng.normal(size=(400, 10))) * np.geomspace(1, 30, 10)
    x = x.astype(np.float32)
    return Features(x[:300], labels[:300], x[300:], labels[300:])


@pytest.mark.parametrize(
    ("k", "temperature"), [(1, 0.07), (5, 1.0), (20, 0.07), (300, 0.5)]
)
@pytest.mark.parametrize("chunks", [(256, 8192), (7, 11)])
def test_knn_is_scikit_learns(clouds, monkeypatch, k, temperature, chunks):
    neighbors = pytest.importorskip("sklearn.neighbors")
    monkeypatch.setattr(probes, "TEST_CHUNK", chunks[0])
    monkeypatch.setattr(probes, "TRAIN_CHUNK", chunks[1])
    theirs = neighbors.KNeighborsClassifier(
        k, metric="cosine", weights=lambda far: np.exp((1 - far) / temperature)
    )
    expected = theirs.fit(clouds.train_x, clouds.train_y)
    accuracy = expected.score(clouds.test_x, clouds.test_y)
    ours = knn(None, clouds, k=k, temperature=temperature)
    assert ours.accuracy == pytest.approx(accuracy)
    assert 0.4 < ours.accuracy < 0.95


def test_knn_of_a_low_temperature_is_the_nearest_image(clouds):
    """exp(1 / temperature) alone would overflow."""
    one = knn(None, clouds, k=1).accuracy
    assert knn(None, clouds, k=50, temperature=1e-6).accuracy == one


def test_knn_takes_features_of_zeros(clouds):
    test_x = clouds.test_x.copy()
    test_x[0] = 0
    zeros = dataclasses.replace(clouds, test_x=test_x)
    change = knn(None, zeros).accuracy - knn(None, clouds).accuracy
    assert abs(change) < 0.011  # One of 100 images.


@pytest.mark.parametrize("scale", [1e-4, 1, 200])
def test_float16_features_are_those_of_float32(clouds, scale):
    """Squares of small and of large features are outside float16's range."""
    half = {
        name: (getattr(clouds, name) * scale).astype(np.float16)
        for name in ("train_x", "test_x")
    }
    assert np.isfinite(half["train_x"]).all()
    single = {name: x.astype(np.float32) for name, x in half.items()}
    of_half, of_single = (dataclasses.replace(clouds, **x) for x in (half, single))
    for k in (1, 20):
        assert knn(None, of_half, k=k) == knn(None, of_single, k=k)
    assert linear_probe(None, of_half).accuracy == pytest.approx(
        linear_probe(None, of_single).accuracy, abs=0.011
    )
    few = [
        fewshot(None, x, shots=(5, "all"), verbose=False) for x in (of_half, of_single)
    ]
    assert few[0] == few[1]


@pytest.mark.parametrize("l2", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_linear_probe_minimizes_what_it_says(clouds, l2, classes):
    """By another solver, Newton's, of the function written out."""
    optimize = pytest.importorskip("scipy.optimize")
    chosen = clouds.train_y < classes
    chosen[::2] &= clouds.train_y[::2] > 0  # Fewer of class 0: the bias counts.
    tests = np.random.default_rng(0).normal(size=(20_000, 10))
    clouds = dataclasses.replace(
        clouds,
        train_x=clouds.train_x[chosen],
        train_y=clouds.train_y[chosen],
        test_x=tests * clouds.train_x.std(0) + clouds.train_x.mean(0),
        test_y=np.zeros(len(tests), int),  # The accuracy is the share of class 0.
        classes=clouds.classes[:classes],
    )
    x = clouds.train_x.astype(float)
    mean, std = x.mean(0), x.std(0)
    x, y = (x - mean) / std, clouds.train_y

    def loss(flat):
        weights, bias = np.split(flat, [10 * classes])
        weights = weights.reshape(10, classes)
        scores = x @ weights + bias
        top = scores.max(1, keepdims=True)
        logs = np.log(np.exp(scores - top).sum(1)) + top[:, 0]
        error = np.exp(scores - logs[:, None]) - np.eye(classes)[y]
        gradient = [(x.T @ error + l2 * weights).ravel(), error.sum(0)]
        own = scores[np.arange(len(y)), y]
        value = (logs - own).sum() + l2 / 2 * (weights**2).sum()
        return value, np.concatenate(gradient)

    best = optimize.minimize(loss, np.zeros(11 * classes), jac=True, method="BFGS")
    weights, bias = np.split(best.x, [10 * classes])
    scores = ((clouds.test_x - mean) / std) @ weights.reshape(10, classes) + bias
    expected = (scores.argmax(1) == 0).mean()
    assert 0.02 < expected < 0.98
    found = linear_probe(None, clouds, l2=l2).accuracy
    assert found == pytest.approx(expected, abs=1e-3)  # 20 of the points.


def test_results_print(clouds):
    result = knn(None, clouds, k=5)
    text = (
        f"kNN (k 5, temperature 0.07): {100 * result.accuracy:.2f} % of 100 test images"
    )
    assert str(result) == text
    assert str(linear_probe(None, clouds)).startswith("linear probe (l2 1): ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k from 1"),
        ({"k": 1.5}, "k from 1"),
        ({"temperature": 0}, "temperature above 0"),
        ({"k": 301}, "at least k training images. Received: k=301, 300 of them"),
    ],
)
def test_bad_settings_of_knn_are_errors(clouds, options, message):
    with pytest.raises(ValueError, match=message):
        knn(None, clouds, **options)


def test_bad_input_of_the_probe_is_an_error(clouds, monkeypatch):
    with pytest.raises(ValueError, match="l2 above 0"):
        linear_probe(None, clouds, l2=0)
    alike = dataclasses.replace(clouds, train_y=np.full(300, 2), classes=tuple("abcd"))
    with pytest.raises(ValueError, match="Received: only those of 'c'"):
        linear_probe(None, alike)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ImportError, match=r"\.\[demo\]"):
        linear_probe(None, clouds)
