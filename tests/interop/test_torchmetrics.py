"""torchmetrics' numbers on the same logits."""

import numpy as np
import pytest
import torch
from torchmetrics.functional import classification

from keras_vit.evaluation.metrics import Counts

N, K = 2000, 9
RNG = np.random.default_rng(0)
LABELS = RNG.integers(K, size=N)
LOGITS = RNG.normal(size=(N, K)) * 2 + 3 * (LABELS[:, None] == np.arange(K))


@pytest.fixture(scope="module")
def images():
    counts = Counts(K)
    counts.update(LOGITS, LABELS)
    return counts.per_image()


@pytest.fixture(scope="module")
def theirs():
    return torch.tensor(LOGITS).softmax(1), torch.tensor(LABELS)


@pytest.mark.parametrize("bins", [1, 10, 15, 100])
def test_expected_calibration_error(bins, images, theirs):
    expected = classification.multiclass_calibration_error(
        *theirs, num_classes=K, n_bins=bins, norm="l1"
    )
    assert images.ece(bins, replicates=1).value == pytest.approx(
        float(expected), abs=1e-6
    )


@pytest.mark.parametrize("k", [1, 2, 5])
def test_accuracy(k, images, theirs):
    expected = classification.multiclass_accuracy(
        *theirs, num_classes=K, top_k=k, average="micro"
    )
    assert images.top(k).value == pytest.approx(float(expected), abs=1e-7)


def test_accuracy_of_each_class(images, theirs):
    expected = classification.multiclass_accuracy(*theirs, num_classes=K, average=None)
    right, count = images.per_class(K)
    np.testing.assert_allclose(right / count, expected, atol=1e-7)


def test_confusion(images, theirs):
    expected = classification.multiclass_confusion_matrix(*theirs, num_classes=K)
    np.testing.assert_array_equal(images.confusion(K), expected)


def test_nll(images):
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(LOGITS), torch.tensor(LABELS)
    )
    assert images.nll.mean() == pytest.approx(float(expected), rel=1e-12)
