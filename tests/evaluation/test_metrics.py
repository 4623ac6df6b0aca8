"""Metrics: scikit-learn's numbers, hand-made ones, and every bad input."""

import itertools
import math

import numpy as np
import pytest

from keras_vit.evaluation import metrics
from keras_vit.evaluation.metrics import Counts

N, K = 500, 7


@pytest.fixture(scope="module")
def data():
    """Logits of a model that is right about half the time, and labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(K, size=N)
    logits = rng.normal(size=(N, K)) * 2
    logits[np.arange(N), labels] += 2
    return logits.astype(np.float32), labels


def gathered(logits, labels, batch=64, **options):
    counts = Counts(logits.shape[1], **options)
    for at in range(0, len(logits), batch):
        counts.update(logits[at : at + batch], labels[at : at + batch])
    return counts.per_image()


def softmax(logits):
    z = np.exp(logits - logits.max(1, keepdims=True).astype(np.float64))
    return z / z.sum(1, keepdims=True)


# Against scikit-learn and scipy.


def test_accuracy_nll_and_confusion_are_scikit_learns(data):
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, labels = data
    found, p = gathered(logits, labels), softmax(logits)
    assert found.mean_nll(replicates=1).value == pytest.approx(
        sklearn.log_loss(labels, p), rel=1e-12
    )
    for k in (1, 2, 5):
        assert found.top(k).value == sklearn.top_k_accuracy_score(labels, p, k=k)
    confusion = sklearn.confusion_matrix(labels, p.argmax(1))
    np.testing.assert_array_equal(found.confusion(K), confusion)
    right, images = found.per_class(K)
    np.testing.assert_array_equal(right, confusion.diagonal())
    np.testing.assert_array_equal(images, confusion.sum(1))


def test_temperature_is_scipys(data):
    optimize = pytest.importorskip("scipy.optimize")
    logits, labels = data

    def nll(t):
        p = softmax(logits.astype(np.float64) / t)
        return -np.log(p[np.arange(N), labels]).mean()

    theirs = optimize.minimize_scalar(nll, bounds=(0.1, 10), options={"xatol": 1e-10})
    assert metrics.temperature(logits, labels) == pytest.approx(theirs.x, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e3, 1e8])
def test_temperature_follows_the_logits_scale(data, scale):
    logits, labels = data[0].astype(np.float64), data[1]
    own = metrics.temperature(logits, labels)
    assert metrics.temperature(logits * scale, labels) == pytest.approx(
        own * scale, rel=1e-6
    )


@pytest.mark.parametrize(("b", "c"), [(0, 0), (3, 9), (9, 3), (40, 41), (1500, 1300)])
def test_mcnemar_is_the_binomial_test(b, c):
    stats = pytest.importorskip("scipy.stats")
    first = np.repeat([True, False, True, False], [b, c, 5, 2])
    second = np.repeat([False, True, True, False], [b, c, 5, 2])
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert metrics.mcnemar(first, second) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("right", [0, 1, 47, 99, 100])
def test_wilson_is_scipys(right):
    stats = pytest.importorskip("scipy.stats")
    theirs = stats.binomtest(right, 100).proportion_ci(method="wilson")
    ours = metrics.wilson(right, 100)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.value == right / 100


# By hand.


def test_ece_by_hand():
    """Four images in two bins: |1/2 - 0.6| and |1 - 0.95|, each of half the images."""
    p = np.array([0.55, 0.65, 0.93, 0.97])
    logits = np.stack([np.log(p), np.log1p(-p)], axis=1)
    found = gathered(logits, np.array([0, 1, 0, 0]))
    bins = found.reliability(2 * 2)
    assert bins.images.tolist() == [0, 0, 2, 2]
    np.testing.assert_allclose(bins.confidence[2:], [0.6, 0.95])
    np.testing.assert_array_equal(bins.accuracy[2:], [0.5, 1.0])
    assert np.isnan(bins.accuracy[:2]).all()
    assert bins.ece == pytest.approx(0.5 * 0.1 + 0.5 * 0.05)
    assert found.ece(4).value == bins.ece


def test_a_bin_holds_its_upper_edge():
    logits = np.array([[0.0, 0.0], [800.0, 0.0]])  # Confidences 0.5 and 1.0.
    found = gathered(logits, np.array([0, 0]))
    assert found.reliability(4).images.tolist() == [0, 1, 0, 1]


def test_batches_of_any_size_are_one(data):
    logits, labels = data
    whole, parts = (gathered(logits, labels, batch) for batch in (N, 33))
    for name, values in vars(whole).items():
        np.testing.assert_array_equal(getattr(parts, name), values, err_msg=name)


def test_sets_of_labels_as_real(data):
    """Right if the first is in the set; -log of the set's probability; empty: left."""
    logits, labels = data
    rng = np.random.default_rng(1)
    sets = rng.random((N, K)) < 0.3
    sets[:10] = False
    found = gathered(logits, sets)
    kept, p = sets.any(1), softmax(logits)
    assert len(found) == kept.sum() < N
    np.testing.assert_array_equal(
        found.right, sets[np.arange(N), p.argmax(1)][kept], strict=True
    )
    np.testing.assert_allclose(found.nll, -np.log((p * sets).sum(1)[kept]), atol=1e-12)
    order = np.argsort(-p, axis=1)
    for k in (2, 5):
        expected = np.take_along_axis(sets, order[:, :k], 1).any(1)[kept].mean()
        assert found.top(k).value == expected
    one_hot = np.arange(K) == labels[:, None]
    single = gathered(logits, labels)
    np.testing.assert_array_equal(gathered(logits, one_hot).rank, single.rank)
    np.testing.assert_array_equal(gathered(logits, one_hot).nll, single.nll)
    with pytest.raises(ValueError, match="one class each"):
        found.confusion(K)


def test_classes_of_several_outputs_as_objectnet():
    """Outputs 0 and 3 are class 0, 1 is class 1, 2 is of no class."""
    logits = np.log([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.4, 0.3], [0.5, 0.3, 0.1, 0.1]])
    counts = Counts(4, class_of_output=[0, 1, -1, 0])
    counts.update(logits, np.array([0, 0, 1]))
    found = counts.per_image()
    assert found.prediction.tolist() == [0, -1, 0]
    assert found.rank.tolist() == [0, 1, 1]
    np.testing.assert_allclose(np.exp(-found.nll), [0.5, 0.4, 0.3])
    assert found.confusion(2).tolist() == [[1, 0, 1], [1, 0, 0]]
    assert [part.tolist() for part in found.per_class(2)] == [[1, 0], [2, 1]]


def test_equal_logits_go_by_their_order():
    """As numpy.argmax has it, so that top-1 is the argmax's and top-K is all."""
    found = gathered(np.zeros((4, 4)), np.arange(4))
    assert found.rank.tolist() == [0, 1, 2, 3]
    assert found.prediction.tolist() == [0, 0, 0, 0]
    assert [found.top(k).value for k in (1, 2, 4)] == [0.25, 0.5, 1.0]


def test_great_logits_stay_finite():
    found = gathered(np.array([[3e38, -3e38], [0, 3e38]], np.float32), np.array([1, 1]))
    assert np.isfinite(found.nll).all()
    assert found.nll.tolist() == [float(np.float32(3e38)) * 2, 0.0]
    assert found.confidence.tolist() == [1.0, 1.0]


# Intervals and differences.


def test_bootstrap_of_a_mean_is_the_normal_interval(data):
    found = gathered(*data)
    ours = found.mean_nll(replicates=4000)
    half = 1.96 * found.nll.std() / math.sqrt(N)
    assert ours.low == pytest.approx(ours.value - half, abs=0.1 * half)
    assert ours.high == pytest.approx(ours.value + half, abs=0.1 * half)
    assert found.mean_nll(replicates=50, seed=3) == found.mean_nll(
        replicates=50, seed=3
    )


def test_a_paired_difference_is_narrower_than_an_unpaired_one(data):
    logits, labels = data
    first = gathered(logits, labels)
    noise = np.random.default_rng(2).normal(size=(N, K)) * 0.3
    second = gathered(logits + noise, labels)
    paired = metrics.paired_difference(first.right, second.right)
    unpaired = metrics.unpaired_difference(first.top(1), second.top(1))
    assert paired.value == pytest.approx(second.top(1).value - first.top(1).value)
    assert unpaired.value == pytest.approx(paired.value)
    assert unpaired.low < paired.low <= paired.value <= paired.high < unpaired.high
    same = metrics.paired_difference(first.right, first.right)
    assert (same.low, same.value, same.high) == (0, 0, 0)
    assert metrics.mcnemar(first.right, first.right) == 1.0


def test_bootstrap_draws_images_with_replacement():
    """NumPy's generator by hand; SciPy must not change which images are drawn."""
    values = np.random.default_rng(3).random(40)
    rng = np.random.default_rng(7)
    means = [values[rng.integers(40, size=40)].mean() for _ in range(200)]
    found = metrics.paired_difference(np.zeros(40), values, replicates=200, seed=7)
    expected = (values.mean(), *np.quantile(means, [0.025, 0.975]))
    assert (found.value, found.low, found.high) == pytest.approx(expected, rel=1e-12)
    alone = metrics.bootstrap(lambda weight: float(weight.sum()), 1)
    assert (alone.low, alone.value, alone.high) == (1, 1, 1)


def test_unpaired_difference_is_newcombes():
    """The worked example of Newcombe (1998), Table II (a): 56/70 - 48/80, method 10."""
    found = metrics.unpaired_difference(metrics.wilson(48, 80), metrics.wilson(56, 70))
    told = (found.value, found.low, found.high)
    assert told == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_scaling_by_halves_calibrates(data):
    logits, labels = data
    cold = logits * 4
    (first, second), scaled = metrics.scaled_by_halves(cold, labels)
    own = metrics.temperature(cold, labels)
    assert min(first, second) < own < max(first, second)
    before = gathered(cold, labels)
    np.testing.assert_array_equal(scaled.rank, before.rank)
    assert scaled.nll.mean() < before.nll.mean()
    assert scaled.reliability().ece < before.reliability().ece / 2
    order = np.random.default_rng(0).permutation(N)
    half = order[: N // 2]
    expected = gathered(cold[half].astype(np.float64) / second, labels[half])
    np.testing.assert_allclose(scaled.nll[half], expected.nll, rtol=1e-12)


# Bad input.


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((2, 3)), np.array([0, 3]), "labels from 0 to 2. Received: .* 0 to 3"),
        (np.zeros((2, 3)), np.array([-1, 2]), "Received: labels from -1 to 2"),
        (np.array([[0, 0, 0], [0, np.nan, 0]]), np.array([0, 1]), "for image 1"),
        (np.full((1, 3), np.inf), np.array([0]), "NaN or infinity for image 0"),
        (np.zeros((2, 4)), np.array([0, 1]), r"\[B, 3\].* float64 \(2, 4\)"),
        (np.zeros(3), np.array([0]), r"float64 \(3,\)"),
        (np.zeros((2, 3), int), np.array([0, 1]), r"logits int64 \(2, 3\)"),
        (np.zeros((2, 3)), np.array([0, 1, 2]), r"labels int64 \(3,\)"),
        (np.zeros((2, 3)), np.array([0.0, 1.0]), "labels float64"),
        (np.zeros((2, 3)), np.ones((2, 3)), r"labels float64 \(2, 3\)"),
        (np.zeros((2, 3)), np.ones((2, 2), bool), r"labels bool \(2, 2\)"),
    ],
)
def test_bad_batches(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        Counts(3).update(logits, labels)


def test_bad_image_is_counted_from_the_first_batch():
    counts = Counts(2)
    counts.update(np.zeros((5, 2)), np.zeros(5, int))
    with pytest.raises(ValueError, match="infinity for image 6"):
        counts.update(np.array([[0, 0], [0, np.nan]]), np.array([0, 0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Counts(1), "at least two classes"),
        (lambda: Counts(3, class_of_output=[0, 0, -1]), "at least two classes"),
        (lambda: Counts(3, class_of_output=[0, 1]), r"each of 3 outputs.*\(2,\)"),
        (lambda: Counts(2).per_image(), "images with labels. Received: 0 images"),
        (lambda: Counts(2).logits(), "keep_logits=True"),
        (lambda: metrics.wilson(3, 2), "right=3, images=2"),
        (lambda: metrics.wilson(0, 0), "images=0"),
        (lambda: metrics.bootstrap(np.sum, 0), "images=0"),
        (
            lambda: metrics.mcnemar(np.ones(3, bool), np.ones(4, bool)),
            r"same images.*\(3,\) and \(4,\)",
        ),
        (lambda: gathered(np.eye(3), np.arange(3)).reliability(0), "bins=0"),
        (lambda: gathered(np.eye(3), np.arange(3)).confusion(2), "2 classes.*label 2"),
        (lambda: metrics.temperature(np.eye(3), np.arange(3)), "3 images, all correct"),
        (
            lambda: metrics.temperature(-np.eye(3), np.arange(3)),
            "without information on the labels",
        ),
        (
            lambda: metrics.temperature(np.full((2, 2), np.nan), np.arange(2)),
            "finite logits",
        ),
    ],
)
def test_bad_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_images_without_labels_alone_are_an_error():
    counts = Counts(3)
    counts.update(np.zeros((4, 3)), np.zeros((4, 3), bool))
    with pytest.raises(ValueError, match="Received: 4 images without labels"):
        counts.per_image()


def test_memory_is_not_that_of_the_logits():
    """Five numbers an image, whatever K is."""
    counts = Counts(1000)
    for _ in itertools.repeat(None, 10):
        counts.update(np.zeros((100, 1000), np.float32), np.zeros(100, int))
    held = sum(array.nbytes for array in vars(counts.per_image()).values())
    assert held == 1000 * (3 * 4 + 2 * 8)
