"""The operation that computes a model's outputs: logits or probabilities."""

from typing import Any

import keras

from keras_vit.layers.embeddings import Tensor

PROBABILITIES = ("softmax", "sigmoid")  # Activations whose outputs are probabilities.
# Operations and layers that pass their input on, by class name.
_PASSING = ("cast", "identity", "dropout")


def last_activation(model: keras.Model) -> str:
    """Returns the name of the activation that computes a model's only output.

    An activation is an argument of the last layer, a layer (`Softmax`, `Activation`) or
    an operation (`keras.ops.softmax`). A nested last model is searched, too. Casts
    after the activation are ignored.

    Args:
        model: any model; one without a graph has only its last layer examined.

    Returns:
        A name such as "softmax"; "linear" without an activation.
    """
    outputs = getattr(model, "outputs", None)
    if outputs:
        return _computed_by(outputs[0])
    last = model.layers[-1] if model.layers else None
    return last_activation(last) if isinstance(last, keras.Model) else _name_of(last)


def gives_probabilities(model: keras.Model) -> bool:
    """Returns whether a model ends in a softmax or a sigmoid."""
    return last_activation(model) in PROBABILITIES


def probabilities(model: keras.Model, outputs: Tensor) -> Tensor:
    """Returns the probabilities of a model's outputs, [B, K].

    The softmax is applied to logits; probabilities are returned unchanged.
    """
    return outputs if gives_probabilities(model) else keras.ops.softmax(outputs)


def _computed_by(tensor: keras.KerasTensor) -> str:
    """Returns the name of the activation that computes a tensor of a graph."""
    operation, node, place = tensor._keras_history
    if isinstance(operation, keras.Model):
        inside = getattr(operation, "outputs", None)
        return _computed_by(inside[place]) if inside else last_activation(operation)
    name = _name_of(operation)
    passes = name == "linear" and (
        isinstance(operation, keras.layers.Activation)
        or type(operation).__name__.lower() in _PASSING
    )
    if not passes:
        return name
    return _computed_by(operation._inbound_nodes[node].input_tensors[0])


def _name_of(operation: Any) -> str:
    """Returns the name of a layer's or an operation's activation, else "linear"."""
    activation = getattr(operation, "activation", None)
    if activation is None:
        name = type(operation).__name__.lower()  # `Softmax` is a layer or an operation.
        return name if name in PROBABILITIES else "linear"
    name = getattr(activation, "__name__", type(activation).__name__)
    return name.lower()
