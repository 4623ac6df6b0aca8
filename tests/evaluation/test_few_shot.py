"""Few-shot regression: the official code's weights, accuracies and draws."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.data import Arrays, Source
from keras_vit.evaluation import Features, extract, features, few_shot
from tests.conftest import reference

pytestmark = pytest.mark.tensorflow_only  # NumPy: one backend is enough.

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def official():
    return np.load(reference("fewshot_lsr"))


@pytest.mark.parametrize("case", ["N_lt_D", "N_ge_D"])
@pytest.mark.parametrize("l2", ["1024", "1", "0.015625"])
@pytest.mark.parametrize("chunk", [few_shot.CHUNK_BYTES, 4000])
def test_weights_and_accuracies_are_the_official_ones(
    official, agree, monkeypatch, case, l2, chunk
):
    monkeypatch.setattr(few_shot, "CHUNK_BYTES", chunk)
    part = {
        key: official[f"{case}/{key}"]
        for key in ("x_train", "y_train", "x_test", "y_test", "mean", "std")
    }
    at = f"{case}/l2_{l2}"
    exact = official[f"{at}/w_float64"]
    ridge = few_shot.Ridge(part["x_train"], part["y_train"], exact.shape[1])
    weights = ridge.weights(float(l2))
    agree(f"fewshot_lsr, float64: {at}", weights, exact, 1e-6)
    agree(f"fewshot_lsr, float32: {at}", weights, official[f"{at}/w"], 5e-4)
    agree(f"fewshot_lsr, mean: {at}", ridge.mean, part["mean"][0], 5e-6)
    agree(f"fewshot_lsr, std: {at}", ridge.std, part["std"][0], 5e-6)
    (right,) = ridge.right(part["x_test"], part["y_test"], [float(l2)])
    assert right / len(part["y_test"]) == official[f"{at}/acc_float64"]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shots", [1, 5, 10])
def test_draws_are_the_official_ones(official, seed, shots):
    drawn = few_shot.draw(official["select/labels"], shots, seed)
    assert drawn.tolist() == official[f"select/seed{seed}_shots{shots}"].tolist()


@pytest.fixture(scope="module")
def clouds():
    """Five classes around points of their own; too many images for N <= D."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(5, 12))
    labels = np.arange(150) % 5
    x = centres[labels] + 3 * rng.normal(size=(150, 12)) + 100
    return Features(
        *(x[:100].astype(np.float32), labels[:100]),
        *(x[100:].astype(np.float32), labels[100:]),
        classes=("ant", "bee", "cat", "dog", "emu"),
    )


def test_fewshot_is_scikit_learns_ridge(clouds):
    """The definition, written out with another library's solver."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    shots, penalties, seeds = (1, 4, "all"), (1.0, 1024.0), (0, 3)
    result = few_shot.fewshot(None, clouds, shots=shots, l2=penalties, seeds=seeds)
    for n in shots:
        for l2 in penalties:
            accuracies = []
            for seed in seeds if n != "all" else seeds[:1]:
                rows = np.arange(100)
                if n != "all":
                    rows = few_shot.draw(clouds.train_y, n, seed)
                x, y = clouds.train_x[rows].astype(float), clouds.train_y[rows]
                mean, std = x.mean(0), x.std(0) + 1e-5
                ridge = linear_model.Ridge(alpha=l2, fit_intercept=False)
                ridge.fit(with_bias((x - mean) / std), 2 * np.eye(5)[y] - 1)
                scores = ridge.predict(with_bias((clouds.test_x - mean) / std))
                accuracies.append((scores.argmax(1) == clouds.test_y).mean())
            assert result.at(n, l2).by_seed == pytest.approx(tuple(accuracies))


def with_bias(x):
    return np.hstack([x, np.full((len(x), 1), 100.0)])


def test_both_decompositions_solve_the_same_equations(clouds):
    """N = D and N = D + 1, on either side of the choice; rows as given."""
    for count in (12, 13):
        rows = np.random.default_rng(1).permutation(100)[:count]
        ridge = few_shot.Ridge(clouds.train_x, clouds.train_y, 5, rows)
        assert len(ridge.eigenvalues) == (12 if count == 12 else 13)
        x = clouds.train_x[rows].astype(float)
        z = with_bias((x - x.mean(0)) / (x.std(0) + 1e-5))
        y = 2 * np.eye(5)[clouds.train_y[rows]] - 1
        expected = np.linalg.solve(z.T @ z + 7 * np.eye(13), z.T @ y)
        np.testing.assert_allclose(ridge.weights(7.0), expected, atol=1e-9)


def test_features_far_from_zero_keep_their_digits(clouds):
    """Deviations are of centred features, not a difference of large squares."""
    near = few_shot.Ridge(clouds.train_x.astype(float), clouds.train_y, 5)
    far = few_shot.Ridge(clouds.train_x.astype(float) + 1e6, clouds.train_y, 5)
    np.testing.assert_allclose(far.weights(1.0), near.weights(1.0), atol=1e-8)


def test_a_dead_feature_does_no_harm(clouds):
    def with_dead(x):
        return np.hstack([x, np.full((len(x), 1), 3, np.float32)])

    dead = Features(
        with_dead(clouds.train_x),
        clouds.train_y,
        with_dead(clouds.test_x),
        clouds.test_y,
    )
    ours, theirs = (
        few_shot.fewshot(None, one, shots=(2, "all")) for one in (dead, clouds)
    )
    assert [row.by_seed for row in ours.rows] == [row.by_seed for row in theirs.rows]


def test_only_drawn_images_are_read(monkeypatch):
    """And the result is that of all features."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (60, 4, 4, 3), np.uint8)
    labels = np.arange(60) % 3
    pixels[labels == 1, :2] //= 2
    pixels[labels == 2, 2:] //= 2
    images = keras.Input((4, 4, 3))
    model = keras.Model(images, keras.layers.Flatten()(images))
    train, test = Arrays(pixels[:40], labels[:40]), Arrays(pixels[40:], labels[40:])
    source = Source("stripes", ("a", "b", "c"), train, test)
    ready = Features(*extract(model, train), *extract(model, test), source.classes)
    counts = []
    monkeypatch.setattr(
        features,
        "extract",
        lambda *a, **k: counts.append(len(a[1])) or extract(*a, **k),
    )
    options = {"shots": (1, 3), "seeds": (0, 1), "verbose": False}
    result = few_shot.fewshot(model, source, **options)
    assert counts[0] <= 2 * 3 * 3
    assert counts[1] == 20
    assert result == few_shot.fewshot(None, ready, **options)
    assert result.train_images == 40
    few_shot.fewshot(model, source, shots=(1, "all"), verbose=False)
    assert counts[2] == 40


def test_the_result_prints_as_a_table(clouds):
    result = few_shot.fewshot(None, clouds, shots=(1, "all"), seeds=(0, 1))
    title, header, one, whole = str(result).splitlines()
    assert "5 classes, 50 test images, features of width 12, l2 1024" in title
    assert " ".join(header.split()) == "shots mean % 95 % interval seed 0 seed 1"
    row = result.at(1)
    low, high = row.interval
    assert one.split() == [
        "1",
        f"{100 * row.mean:.2f}",
        *(f"{100 * low:.2f}", "to", f"{100 * high:.2f}"),
        *(f"{100 * share:.2f}" for share in row.by_seed),
    ]
    share = f"{100 * result.at('all').mean:.2f}"
    assert whole.split() == ["all", share, share]
    with_two = few_shot.fewshot(None, clouds, shots=(1,), l2=(1, 2), seeds=(0,))
    assert str(with_two).splitlines()[1].split()[:2] == ["shots", "l2"]


def test_the_result_is_json(clouds):
    result = few_shot.fewshot(None, clouds, shots=(np.int64(1), "all"), seeds=range(2))
    read = json.loads(json.dumps(result.as_dict()))
    assert read["seeds"] == [0, 1]
    assert read["rows"][0]["mean"] == result.at(1).mean
    assert read["rows"][0]["interval"] == list(result.at(1).interval)
    assert read["rows"][1]["interval"] is None


def test_the_interval_is_students(clouds):
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 3, 10, 100):
        by_seed = tuple(0.5 + 0.01 * np.arange(degrees + 1) / degrees)
        row = few_shot.FewShotAccuracy(shots=5, l2=1.0, by_seed=by_seed)
        interval = stats.t.interval(0.95, degrees, row.mean, stats.sem(by_seed))
        assert row.interval == pytest.approx(interval, rel=1e-9)
    row = few_shot.FewShotAccuracy(shots=5, l2=1.0, by_seed=(0.5, 0.52, 0.57))
    half = 4.302653 * np.std(row.by_seed, ddof=1) / 3**0.5  # Student's table, 2 df.
    assert row.interval == pytest.approx((row.mean - half, row.mean + half), rel=1e-6)
    wide = few_shot.FewShotAccuracy(shots=5, l2=1.0, by_seed=(0.9, 1.0))
    assert wide.interval[1] == 1


def test_a_class_with_fewer_images_than_shots_is_named(clouds):
    rows = [*range(40), *(i for i in range(40, 100) if i % 5 != 3)]
    few = dataclasses.replace(
        clouds, train_x=clouds.train_x[rows], train_y=clouds.train_y[rows]
    )
    with pytest.raises(
        ValueError, match=r"Expected 10 .* class 'dog' with 8\. Use at most 8"
    ):
        few_shot.fewshot(None, few, shots=(5, 10))
    rows = [i for i in range(100) if i % 5 != 3]
    none = dataclasses.replace(
        clouds, train_x=clouds.train_x[rows], train_y=clouds.train_y[rows]
    )
    with pytest.raises(ValueError, match=r"class 'dog' with 0\. Remove the class"):
        few_shot.fewshot(None, none, shots=("all",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shots": ()}, "shots"),
        ({"shots": (0, 1)}, "shots from 1"),
        ({"shots": (1, 1)}, "without duplicates"),
        ({"shots": (1.5,)}, "shots from 1"),
        ({"shots": ("some",)}, "shots from 1"),
        ({"l2": 0}, "l2 above 0"),
        ({"l2": (1, float("nan"))}, "l2 above 0"),
        ({"l2": ()}, "l2 above 0"),
        ({"seeds": (0, -1)}, "seeds from 0"),
        ({"seeds": ()}, "seeds from 0"),
    ],
)
def test_bad_settings_are_errors(clouds, options, message):
    with pytest.raises(ValueError, match=message):
        few_shot.fewshot(None, clouds, **options)


def test_a_row_that_is_not_there_is_an_error(clouds):
    result = few_shot.fewshot(None, clouds, shots=(1,), l2=(1, 2))
    with pytest.raises(ValueError, match=r"\(1, 1\), \(1, 2\)\. Received: shots=5"):
        result.at(5)
    with pytest.raises(ValueError, match="shots=1, l2=None"):
        result.at(1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_under_one_and_a_half_matrices():
    """100,000 features of width 768: 1 shot, 25, and all images in one process."""
    program = [sys.executable, "benchmarks/fewshot.py", "--only", "and few-shot"]
    done = subprocess.run(
        program, cwd=PROJECT, capture_output=True, text=True, check=True
    )
    *_, matrix, _, share, _ = done.stdout.split()
    assert float(matrix) == 293
    assert 1 < float(share) < 1.5
