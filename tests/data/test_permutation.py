"""An epoch's order: a permutation of any N, with the statistics of a shuffle."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_vit.data import permutation, pipelines, splits
from keras_vit.data.permutation import ROUNDS, epoch_key, permute

pytestmark = pytest.mark.tensorflow_only

LEAST_P = 1e-4  # Seeds are fixed: a test passes always or never.
MASK = 2**64 - 1


def _orders(size, keys):
    """The permutations of `size` numbers, one for each key: [keys, size]."""
    places = tf.tile(tf.range(size, dtype=tf.int64), [len(keys)])
    found = permute(places, size, tf.repeat(keys, size))
    return found.numpy().reshape(len(keys), size)


def _keys(count, seed=0):
    return epoch_key(seed, tf.range(count, dtype=tf.int64))


# By the docstring, on Python's integers.


def _splitmix(state, number):
    z = (state + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _by_hand(place, size, seed, epoch):
    key = _splitmix(_splitmix(seed & MASK, 0), epoch)
    a = next(a for a in itertools.count(2, 2) if a * a >= size)
    b = math.ceil(size / a)
    while True:
        left, right = divmod(place, b)
        for i in range(ROUNDS):
            if i % 2:
                right = (right + _splitmix(key, i + ROUNDS * left)) % b
            else:
                left = (left + _splitmix(key, i + ROUNDS * right)) % a
        place = left * b + right
        if place < size:
            return place


def test_splitmix_is_the_published_one():
    """The first numbers of the seed 1234567, as of Rosetta Code's task."""
    published = 6457827717110365317, 3203168211198807973, 9817491932198370423
    assert tuple(_splitmix(1234567, i) for i in range(3)) == published


@pytest.mark.parametrize("size", [1, 2, 3, 9, 10, 257, 14_197_122, 303_000_000])
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (-5, 7), (2**63 - 1, 10**6)])
def test_equals_the_definition(size, seed, epoch):
    places = np.unique(np.linspace(0, size - 1, 8, dtype=np.int64))
    key = epoch_key(seed, tf.constant(epoch, tf.int64))
    expected = [_by_hand(int(place), size, seed, epoch) for place in places]
    assert permute(places, size, key).numpy().tolist() == expected


def test_a_version_is_one_order():
    """Runs depend on it: a different order needs a different version."""
    assert permutation.VERSION == "feistel 1"
    assert _orders(10, _keys(1)).tolist() == [[7, 6, 9, 4, 8, 5, 0, 3, 2, 1]]


def test_every_size_up_to_64_is_a_bijection():
    for size in range(1, 65):
        orders = np.sort(_orders(size, _keys(8)))
        np.testing.assert_array_equal(orders, np.tile(np.arange(size), (8, 1)))


@pytest.mark.parametrize("size", [144, 299, 4096, 65_535, 65_537, 1_000_003])
def test_larger_sizes_are_bijections(size):
    for key in _keys(2, seed=size):
        order = permute(tf.range(size, dtype=tf.int64), size, key).numpy()
        assert np.bincount(order, minlength=size).tolist() == [1] * size


@pytest.mark.parametrize("size", [2**32 + 1, 10**12])
def test_numbers_above_32_bits(size):
    places = np.linspace(0, size - 1, 100_000, dtype=np.int64)
    found = permute(places, size, epoch_key(0, tf.constant(0, tf.int64))).numpy()
    assert len(np.unique(found)) == len(places)
    assert stats.kstest(found / size, "uniform").pvalue > LEAST_P


# As a shuffle.


def _distance_from_uniform(size, rounds):
    """The total variation from a shuffle if each round's function is drawn uniformly.

    The exact distribution: a convolution over all permutations of a b numbers, then
    each cycle is walked until it is below `size`.
    """
    a = next(a for a in itertools.count(2, 2) if a * a >= size)
    b = math.ceil(size / a)
    left, right = np.divmod(np.arange(a * b), b)
    kinds = [
        [
            (left + np.array(f)[right]) % a * b + right
            for f in itertools.product(*[range(a)] * b)
        ],
        [
            left * b + (right + np.array(f)[left]) % b
            for f in itertools.product(*[range(b)] * a)
        ],
    ]
    orders = np.array(list(itertools.permutations(range(a * b))))
    weights = (a * b) ** np.arange(a * b)[::-1]
    codes = orders @ weights  # Ascending, as `permutations` is.
    share = np.zeros(len(orders))
    share[0] = 1.0
    for i in range(rounds):
        after = np.zeros_like(share)
        for step in kinds[i % 2]:
            after[np.searchsorted(codes, step[orders] @ weights)] += share
        share = after / len(kinds[i % 2])
    walked = orders[:, :size]
    while (walked >= size).any():
        walked = np.where(walked < size, walked, np.take_along_axis(orders, walked, 1))
    found = np.zeros(math.factorial(size))
    places = walked @ (size ** np.arange(size)[::-1])
    np.add.at(found, np.unique(places, return_inverse=True)[1], share)
    return abs(found - 1 / len(found)).sum() / 2


def test_a_few_numbers_have_all_orders_to_0_004():
    """The reason for 24 rounds: `pytest -s -k to_0_004` prints these and 12 rounds."""
    sizes = range(2, 9)
    for rounds in (12, ROUNDS):
        distances = [_distance_from_uniform(size, rounds) for size in sizes]
        print(f"{rounds} rounds: {max(distances):.4f} at most, 2 to 8 numbers")
    assert max(distances) <= 0.004


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_are_equally_frequent(size):
    orders = _orders(size, _keys(12_000, seed=size))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == math.factorial(size)
    assert stats.chisquare(counts).pvalue > LEAST_P


@pytest.mark.parametrize("size", [9, 16, 37])
def test_each_number_is_at_each_place_as_often(size):
    orders = _orders(size, _keys(8000, seed=size))
    for place in range(size):
        counts = np.bincount(orders[:, place], minlength=size)
        assert stats.chisquare(counts).pvalue > LEAST_P


@pytest.mark.parametrize("size", [9, 16, 37])
def test_pairs_of_neighbors_are_equally_frequent(size):
    orders = _orders(size, _keys(8000, seed=size))
    for place in (0, size // 2, size - 2):
        pairs = orders[:, place] * size + orders[:, place + 1]
        counts = np.bincount(pairs, minlength=size * size).reshape(size, size)
        assert not np.diagonal(counts).any()
        others = counts[~np.eye(size, dtype=bool)]
        assert stats.chisquare(others).pvalue > LEAST_P


@pytest.fixture(scope="module", params=[10_007, 250_000])
def epochs(request):
    """Two epochs of one seed."""
    return _orders(request.param, _keys(2, seed=1))


def _z(statistic, mean, deviation):
    return abs(statistic - mean) / deviation


def test_serial_correlation_is_a_shuffles(epochs):
    """At 64 lags: normal, of deviation 1 / sqrt(N)."""
    order, size = epochs[0], epochs.shape[1]
    lags = [*range(1, 33), *(math.isqrt(size) + i for i in range(-16, 16))]
    found = [np.corrcoef(order[:-lag], order[lag:])[0, 1] for lag in lags]
    assert stats.kstest(np.sqrt(size) * np.array(found), "norm").pvalue > LEAST_P


def test_distances_of_neighbors_are_a_shuffles(epochs):
    """|x - y| = d of N numbers is 2 (N - d) of the N (N - 1) pairs."""
    order, size = epochs[0], epochs.shape[1]
    distances = np.abs(np.diff(order))[::2]  # Of pairs that share no place.
    edges = np.linspace(0, size - 1, 51).astype(int)
    below = edges * (2 * size - 1 - edges) / (size * (size - 1))  # Sum up to d.
    counts, _ = np.histogram(distances, edges + 0.5)
    expected = len(distances) * np.diff(below) / below[-1]
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > (
        LEAST_P
    )


def test_neighborhoods_of_batches_are_a_shuffles(epochs):
    """Numbers of a batch in 64 equal parts of the data: the hypergeometric's chi2."""
    order, size = epochs[0], epochs.shape[1]
    batches = order[: size // 100 * 100].reshape(-1, 100)
    parts = batches * 64 // size
    sizes = np.bincount(np.arange(size) * 64 // size, minlength=64)
    expected = 100 * sizes / size
    counts = np.apply_along_axis(np.bincount, 1, parts, minlength=64)
    chi2 = ((counts - expected) ** 2 / expected).sum(1) * (size - 1) / size
    # A chi2 of 63 degrees in the mean; batches share the numbers, so they are wider.
    deviation = math.sqrt(2 * 63 / len(batches))
    assert _z(chi2.mean(), 63, deviation) < 4


def test_two_epochs_are_two_shuffles(epochs):
    """Fixed points are Poisson's of 1, and the orders are uncorrelated."""
    first, second = epochs
    assert (first == second).sum() < 8
    assert (first == np.arange(len(first))).sum() < 8
    for other in (second, np.arange(len(first))):
        correlation = np.corrcoef(first, other)[0, 1]
        assert _z(correlation, 0, 1 / math.sqrt(len(first))) < 4


def test_runs_up_and_down_are_a_shuffles(epochs):
    """Turning points: 2 (N - 2) / 3 of variance (16 N - 29) / 90."""
    order, size = epochs[0], epochs.shape[1]
    rises = np.diff(order) > 0
    turns = (rises[1:] != rises[:-1]).sum()
    assert _z(turns, 2 * (size - 2) / 3, math.sqrt((16 * size - 29) / 90)) < 4


# Where it is used.


class Numbers(splits.Indexed):
    """A split without images: an index of any size."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def item(self, handle):
        return {"image": handle, "label": handle}

    def take(self, indices):
        raise NotImplementedError

    def fingerprint(self):
        raise NotImplementedError


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("size", [5, 303_000_000])
def test_batch_n_is_a_function_of_the_seed_and_n(size, workers):
    """In the middle of epoch 7, from any worker: by hand."""
    batch, seed = 16, 3
    start = (7 * size + size // 2) // batch
    parts = [
        pipelines.endless(
            Numbers(size),
            lambda _, item: (item["image"], item["label"]),
            batch_size=batch,
            seed=seed,
            start_step=start,
            shard=(worker, workers),
        )
        .take(2)
        .as_numpy_iterator()
        for worker in range(workers)
    ]
    for step, shares in enumerate(zip(*parts, strict=True), start):
        found = np.concatenate([images for images, _ in shares])
        whole = range(step * batch, (step + 1) * batch)
        expected = [_by_hand(at % size, size, seed, at // size) for at in whole]
        assert found.tolist() == expected


@pytest.mark.parametrize("size", [1, 1023, 1024, 2500])
def test_a_pass_in_order_is_read_by_chunks(size):
    split = Numbers(size)
    places = list(split.places().as_numpy_iterator())
    assert places == [(i, i) for i in range(size)]
    assert split.places().cardinality() == size
    kept = split.places(lambda place: place % 3 == 0).as_numpy_iterator()
    assert [int(place) for place, _ in kept] == list(range(0, size, 3))
