"""Operations of a served graph: from encoded images to class names and scores.

Glossary of shapes: B images of a request, H, W, C the model's input, K classes, k of
them returned, D the width of features.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from keras_vit.data import decoding, preprocessing
from keras_vit.data.decoding import OK, UNREADABLE, as_written
from keras_vit.data.preprocessing import Size
from keras_vit.facts import Preprocessing
from keras_vit.models.outputs import PROBABILITIES, gives_probabilities

Tensor: TypeAlias = Any


@contextlib.contextmanager
def without_temporary_names() -> Iterator[None]:
    """Hides TensorFlow's INFO messages, which name deleted temporary folders."""

    def matters(record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO

    logger = tf.get_logger()
    logger.addFilter(matters)  # A new function, so that parallel exports do not clash.
    try:
        yield
    finally:
        logger.removeFilter(matters)


def decode_each(
    encoded: Tensor,
    image_size: Size,
    how: Preprocessing,
    channels: int,
    max_pixels: int,
) -> tuple[Tensor, Tensor]:
    """Decodes and prepares images: string [B] -> [B, H, W, C], string [B].

    The preprocessing is that of evaluation. The strings are `OK` or the reason why an
    image is refused. A refused image is all zeros and does not affect the others.

    Raises:
        RuntimeError: outside a `tf.function`, where TensorFlow 2.21 fails for some of
            the images ("inputs from different frames"), which would count as refused.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "Expected a call inside a tf.function, as in an export. Received: a call "
            "in eager mode, in which TensorFlow fails on some valid images"
        )
    zeros = tf.zeros((*image_size, channels))

    @as_written
    def one(place: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        header = decoding.inspect(encoded, max_pixels)

        def prepared() -> Tensor:
            image = decoding.decode_accepted(header)
            return preprocessing.prepare(image, image_size, how, channels)

        image = tf.cond(tf.equal(header.status, OK), prepared, lambda: zeros)
        return place, tf.ensure_shape(image, zeros.shape), header.status

    count = tf.size(encoded, out_type=tf.int64)
    read = tf.data.Dataset.from_tensor_slices((tf.range(count), encoded))
    read = read.map(one, num_parallel_calls=tf.data.AUTOTUNE).ignore_errors()
    nothing = (tf.zeros([0], tf.int64), zeros[None][:0], tf.zeros([0], tf.string))
    batch = read.batch(tf.maximum(count, 1))
    batch = batch.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1)
    places, images, reasons = batch.get_single_element()
    shape = tf.concat([[count], tf.shape(zeros, tf.int64)], axis=0)
    status = tf.tensor_scatter_nd_update(
        tf.fill([count], UNREADABLE), places[:, None], reasons
    )
    return tf.scatter_nd(places[:, None], images, shape), status


def require_all(status: Tensor) -> Tensor:
    """Returns `status` if every image is `OK`; else raises InvalidArgument."""
    bad = tf.where(status != OK)
    each = [tf.strings.as_string(bad[:, 0]), tf.gather_nd(status, bad)]
    reasons = tf.strings.reduce_join(tf.strings.join(each, ": "), separator="; ")
    message = tf.strings.join(
        ["Expected readable images. Received, by index in the batch: ", reasons]
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.size(bad) == 0, [message])]):
        return tf.identity(status)


def probabilities(model: keras.Model, outputs: Tensor) -> Tensor:
    """Returns the probabilities of a model's outputs, in float32, [B, K].

    The softmax is applied to logits; probabilities are returned unchanged.

    Raises:
        ValueError: if the model returns neither logits nor probabilities [B, K].
    """
    outputs = keras.ops.cast(outputs, "float32")
    return keras.ops.softmax(outputs) if gives_logits(model) else outputs


def gives_logits(model: keras.Model) -> bool:
    """Whether the outputs are logits; raises ValueError without classes [B, K]."""
    functions = ("linear", *PROBABILITIES)
    head = head_of(model, [keras.activations.get(name) for name in functions])
    logits = not gives_probabilities(model)
    if logits and head.units == 1:
        raise ValueError(
            "Expected two logits or more: the softmax of one is always 1. Received: "
            f"model={model.name!r} with one. Build its head with activation='sigmoid'"
        )
    return logits


def head_of(model: keras.Model, activations: Sequence[Any] = ()) -> keras.layers.Dense:
    """Returns the Dense layer of the classes, which has one of these activations."""
    last = model.layers[-1]
    is_head = isinstance(last, keras.layers.Dense) and last.output is model.outputs[0]
    fits = is_head and (not activations or last.activation in activations)
    if fits and len(model.output_shape) == 2:
        return last
    raise ValueError(
        "Expected a model that ends in a Dense layer with logits or probabilities "
        f"[B, K]. Received: model={model.name!r}, which ends in "
        f"{type(last).__name__} {last.name!r} with output {model.output_shape}. "
        "Add a head with keras_vit.for_task"
    )


def best(scores: Tensor, labels: Sequence[str], top_k: int) -> dict[str, Tensor]:
    """Returns the `top_k` classes and scores, greatest first: [B, K] -> [B, k] each."""
    values, places = tf.math.top_k(scores, top_k)
    return {"classes": tf.gather(tf.constant(list(labels)), places), "scores": values}


def masked(outputs: dict[str, Tensor], status: Tensor) -> dict[str, Tensor]:
    """Sets outputs of unreadable images to zeros and empty names; adds the status."""
    read = tf.equal(status, OK)

    def only_read(output: Tensor) -> Tensor:
        there = tf.reshape(read, [-1] + [1] * (output.shape.rank - 1))
        nothing = tf.constant("" if output.dtype == tf.string else 0, output.dtype)
        return tf.where(there, output, nothing)

    return {name: only_read(output) for name, output in outputs.items()} | {
        "status": status
    }
