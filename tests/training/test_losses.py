"""The losses against big_vision's numbers (losses.npz, out of optim_loss_mixup)."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.training import losses
from tests.conftest import REFERENCE


@pytest.fixture(scope="module")
def theirs():
    return dict(np.load(REFERENCE / "losses.npz"))


def each(loss, labels, logits):
    loss = type(loss).from_config(loss.get_config() | {"reduction": "none"})
    return ops.convert_to_numpy(loss(ops.array(labels), ops.array(logits)))


def test_sigmoid(theirs, agree):
    labels, logits = theirs["labels"], theirs["logits"]
    loss = losses.SigmoidCrossEntropy()
    expected = theirs["sigmoid_xent"]
    agree("losses sigmoid:", each(loss, labels, logits), expected, 2e-6)
    agree("losses sigmoid: mean", loss(labels, logits), expected.mean(), 2e-6)


def test_softmax(theirs, agree):
    labels, logits = theirs["labels"], theirs["logits"]
    loss = losses.SoftmaxCrossEntropy()
    expected = theirs["softmax_xent"]
    agree("losses softmax:", each(loss, labels, logits), expected, 2e-6)
    agree("losses softmax: mean", loss(labels, logits), expected.mean(), 2e-6)


BOTH = pytest.mark.parametrize(
    "loss",
    [losses.SigmoidCrossEntropy(), losses.SoftmaxCrossEntropy(label_smoothing=0.1)],
    ids=lambda loss: loss.name,
)


@BOTH
def test_integers_are_one_hot(loss, theirs):
    integers = np.array([3, 1, 0, 9, 9, 4])
    one_hot = np.eye(10, dtype=np.float32)[integers]
    expected = each(loss, one_hot, theirs["logits"])
    for labels in (integers, integers[:, None]):
        np.testing.assert_array_equal(each(loss, labels, theirs["logits"]), expected)


@BOTH
def test_half_precision_logits_are_lost_no_further(loss, theirs):
    """Float32 in the loss whatever the model computes in."""
    logits = ops.cast(theirs["logits"], "bfloat16")
    labels = theirs["labels"]
    ours = loss(ops.array(labels), logits)
    assert ours.dtype == keras.losses.MeanSquaredError()(labels, labels).dtype
    np.testing.assert_array_equal(
        ops.convert_to_numpy(ours),
        ops.convert_to_numpy(loss(ops.array(labels), ops.cast(logits, "float32"))),
    )


@pytest.mark.parametrize("logits", [-200.0, 200.0])
def test_extreme_logits_stay_finite(logits):
    logits = np.array([[logits, 0.0]], np.float32)
    for loss in (losses.SigmoidCrossEntropy(), losses.SoftmaxCrossEntropy()):
        for label in (0, 1):
            assert np.isfinite(each(loss, np.array([label]), logits)).all()


def test_smoothing_is_keras(theirs):
    labels = np.eye(10, dtype=np.float32)[[3, 1, 0, 9, 9, 4]]
    keras_own = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1
    )
    np.testing.assert_allclose(
        losses.SoftmaxCrossEntropy(0.1)(labels, theirs["logits"]),
        keras_own(labels, theirs["logits"]),
        rtol=1e-6,
    )


@BOTH
def test_round_trip(loss):
    text = json.dumps(keras.saving.serialize_keras_object(loss))
    copy = keras.saving.deserialize_keras_object(json.loads(text))
    assert json.dumps(keras.saving.serialize_keras_object(copy)) == text
