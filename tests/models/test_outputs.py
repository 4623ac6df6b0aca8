"""The operation that computes a model's outputs, wherever it is in the graph."""

import keras
import numpy as np
import pytest

from keras_vit.models.outputs import gives_probabilities, last_activation, probabilities

SIZE = (4,)


def nested(outputs):
    """A model of `outputs`, as the last layer of another model."""

    def build(images):
        inner = keras.Input(SIZE)
        return keras.Model(inner, outputs(inner))(images)

    return build


def dense(activation=None):
    return lambda images: keras.layers.Dense(3, activation=activation)(images)


def then(*operations):
    """Logits, and then these operations."""

    def build(images):
        outputs = dense()(images)
        for operation in operations:
            outputs = operation(outputs)
        return outputs

    return build


def half(outputs):
    return keras.ops.cast(outputs, "float16")


ENDS = {
    "dense": (dense("softmax"), "softmax"),
    "dense with a layer": (dense(keras.layers.Softmax()), "softmax"),
    "sigmoid": (dense("sigmoid"), "sigmoid"),
    "activation": (then(keras.layers.Activation("softmax")), "softmax"),
    "layer": (then(keras.layers.Softmax()), "softmax"),
    "function": (then(keras.activations.softmax), "softmax"),
    "operation": (then(keras.ops.softmax), "softmax"),
    "sigmoid operation": (then(keras.ops.sigmoid), "sigmoid"),
    "cast": (then(keras.ops.softmax, half), "softmax"),
    "linear": (then(keras.layers.Softmax(), keras.layers.Activation(None)), "softmax"),
    "identity": (then(keras.layers.Softmax(), keras.layers.Identity()), "softmax"),
    "nested": (nested(then(keras.ops.softmax)), "softmax"),
    "nested twice": (nested(nested(dense("softmax"))), "softmax"),
    "logits": (dense(), "linear"),
    "nested logits": (nested(dense()), "linear"),
    "cast logits": (then(half), "linear"),
    "softmax before": (then(keras.layers.Softmax(), dense()), "linear"),
    "tanh": (dense("tanh"), "tanh"),
    "log_softmax": (then(keras.ops.log_softmax), "linear"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_last_activation_is_found(name):
    outputs, expected = ENDS[name]
    images = keras.Input(SIZE)
    model = keras.Model(images, outputs(images))
    assert last_activation(model) == expected
    assert gives_probabilities(model) == (expected in ("softmax", "sigmoid"))
    whole = keras.Sequential([images, model, keras.layers.Softmax()])
    assert last_activation(whole) == "softmax"
    assert last_activation(keras.Sequential([images, model])) == expected


def test_one_layer_in_two_places_is_the_one_at_the_end():
    """The same linear activation follows logits first and a softmax later."""
    images, same = keras.Input(SIZE), keras.layers.Activation("linear")
    logits = same(dense()(images))
    shares = same(keras.ops.softmax(logits))
    assert last_activation(keras.Model(images, logits)) == "linear"
    assert last_activation(keras.Model(images, shares)) == "softmax"


def test_a_model_without_a_graph_has_its_last_layer():
    class Wrapped(keras.Model):
        def __init__(self, last):
            super().__init__()
            self.last = last

        def call(self, images):
            return self.last(images)

    ends = keras.Sequential([keras.Input(SIZE), keras.layers.Softmax()])
    for last in (keras.layers.Softmax(), keras.layers.Dense(3, "softmax"), ends):
        assert gives_probabilities(Wrapped(last))
    assert not gives_probabilities(Wrapped(keras.layers.Dense(3)))


def test_the_softmax_is_applied_once():
    images = keras.Input(SIZE)
    logits = dense()(images)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    models = [keras.Model(images, at) for at in (logits, keras.ops.softmax(logits))]
    first, second = (
        keras.ops.convert_to_numpy(probabilities(model, model(x))) for model in models
    )
    np.testing.assert_allclose(first.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(first, second, atol=1e-6)
