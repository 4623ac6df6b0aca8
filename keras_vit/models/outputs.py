"""A model's outputs: logits or probabilities, and the class of each."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.callers import warn
from keras_vit.layers.embeddings import Tensor
from keras_vit.models.vision import facts_of

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


def outputs_by_name(
    model: keras.Model, classes: Sequence[str], name: str
) -> list[int] | None:
    """Returns the index of each class among a model's labels.

    If the names differ, a warning is issued, unless a class is named by its number, as
    in an .npz without "classes".

    Args:
        model: a model with K outputs.
        classes: K distinct names.
        name: name of the data set, for messages.

    Returns:
        K indices; None if they are 0, 1, ..., or if the names differ.

    Raises:
        ValueError: if the names differ, but one of them is a label of a different
            index, so that images would be compared with the wrong outputs.
    """
    labels = facts_of(model).labels
    if labels is None or tuple(labels) == tuple(classes):
        return None
    places = {label: index for index, label in enumerate(labels)}
    if sorted(places) == sorted(classes):
        return [places[label] for label in classes]
    pairs = list(zip(labels, classes, strict=True))
    differ = [i for i, (label, own) in enumerate(pairs) if label != own]
    for index in differ:
        other = places.get(classes[index])
        if other is not None and labels.count(classes[index]) == 1:
            absent = [label for label in labels if label not in classes]
            raise ValueError(
                f"Expected the classes of the model. Received: {name}, whose class "
                f"{index}, {classes[index]!r}, is output {other} of the model; not in "
                f"{name}: {', '.join(map(repr, absent[:5]))}. Rename its classes as in "
                "the model"
            )
    if list(classes) != [str(index) for index in range(len(classes))]:
        (label, own), more = pairs[differ[0]], len(differ) - 1
        warn(
            f"the classes of {name} have different names than the model's outputs, and "
            f"are compared by index: output {differ[0]}, {label!r}, with {own!r}"
            + (f", and {more} more" if more else "")
        )
    return None


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
