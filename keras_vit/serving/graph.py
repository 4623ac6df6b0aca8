"""What a served graph computes: encoded images in, names and scores out.

Glossary of shapes: B images of a request, H, W, C what the model takes, K classes, k of
them told, D the features' width.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from keras_vit.data import preprocessing
from keras_vit.data.preprocessing import Size
from keras_vit.normalization import Channels

Tensor: TypeAlias = Any

OK = "ok"
UNREADABLE = "not a whole JPEG, PNG, BMP or GIF image"


def too_large(max_pixels: int) -> str:
    """The status of an image that is not decoded for its size."""
    return f"more than {max_pixels} pixels"


def header_pixels(encoded: Tensor) -> Tensor:
    """Height times width as an image's first bytes tell: string -> int64.

    Nothing is decoded; what is no image, or too short, is an error or any number.
    """

    def sides(start: int, length: int, dtype: Any, little: bool) -> Tensor:
        raw = tf.strings.substr(encoded, start, length)
        told = tf.io.decode_raw(raw, dtype, little_endian=little)
        # A BMP's height is negative where its first row is the upper one.
        return tf.reduce_prod(tf.abs(tf.cast(told, tf.int64)))

    def of_jpeg() -> Tensor:
        shape = tf.image.extract_jpeg_shape(encoded, output_type=tf.int32)
        return tf.reduce_prod(tf.cast(shape[:2], tf.int64))

    def begins(magic: bytes) -> Tensor:
        return tf.equal(tf.strings.substr(encoded, 0, len(magic)), magic)

    return tf.case(
        [
            (begins(b"\x89PNG"), lambda: sides(16, 8, tf.int32, False)),
            (begins(b"GIF8"), lambda: sides(6, 4, tf.uint16, True)),
            (begins(b"BM"), lambda: sides(18, 8, tf.int32, True)),
        ],
        default=of_jpeg,
    )


def decode_each(
    encoded: Tensor,
    image_size: Size,
    mean: Channels,
    std: Channels,
    channels: int,
    max_pixels: int,
) -> tuple[Tensor, Tensor]:
    """Encoded images as the model takes them: string [B] -> [B, H, W, C], string [B].

    The preprocessing is evaluation's. The strings are `OK`, or why an image cannot be
    had; it is all zeros then, and the others are as they would be without it.
    """
    zeros = tf.zeros((*image_size, channels))

    def one(place: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fits = header_pixels(encoded) <= max_pixels

        def prepared() -> Tensor:
            image = preprocessing.decode(encoded)
            return preprocessing.prepare(image, image_size, mean, std, channels)

        image = tf.cond(fits, prepared, lambda: zeros)
        image = tf.ensure_shape(image, zeros.shape)
        return place, image, tf.where(fits, OK, too_large(max_pixels))

    count = tf.size(encoded, out_type=tf.int64)
    read = tf.data.Dataset.from_tensor_slices((tf.range(count), encoded))
    read = read.map(one, num_parallel_calls=tf.data.AUTOTUNE).ignore_errors()
    nothing = (tf.zeros([0], tf.int64), zeros[None][:0], tf.zeros([0], tf.string))
    batch = read.batch(tf.maximum(count, 1))
    batch = batch.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1)
    places, images, told = batch.get_single_element()
    shape = tf.concat([[count], tf.shape(zeros, tf.int64)], axis=0)
    status = tf.tensor_scatter_nd_update(
        tf.fill([count], UNREADABLE), places[:, None], told
    )
    return tf.scatter_nd(places[:, None], images, shape), status


def require_all(status: Tensor) -> Tensor:
    """`status`, if every image is `OK`; else InvalidArgument, naming the others."""
    bad = tf.where(status != OK)
    each = [tf.strings.as_string(bad[:, 0]), tf.gather_nd(status, bad)]
    told = tf.strings.reduce_join(tf.strings.join(each, ": "), separator="; ")
    message = tf.strings.join(
        ["Expected images that can be read. Received, by place in the batch: ", told]
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.size(bad) == 0, [message])]):
        return tf.identity(status)


def probabilities(model: keras.Model, outputs: Tensor) -> Tensor:
    """Scores of a model's outputs: the softmax of logits, in float32, [B, K].

    A head that has its activation already is left alone.

    Raises:
        ValueError: if the model ends in neither logits nor probabilities [B, K].
    """
    outputs = keras.ops.cast(outputs, "float32")
    return keras.ops.softmax(outputs) if gives_logits(model) else outputs


def gives_logits(model: keras.Model) -> bool:
    """Whether a softmax is still to come; raises where there are no classes [B, K]."""
    known = {keras.activations.linear: True, keras.activations.softmax: False}
    known[keras.activations.sigmoid] = False
    return known[head_of(model, tuple(known)).activation]


def head_of(model: keras.Model, activations: Sequence[Any] = ()) -> keras.layers.Dense:
    """The layer that the classes are the outputs of: its activation is one of these."""
    last = next(at for at in reversed(model.layers) if at.output is model.outputs[0])
    is_head = isinstance(last, keras.layers.Dense) and len(model.output_shape) == 2
    if is_head and (not activations or last.activation in activations):
        return last
    raise ValueError(
        "Expected a model that ends in a Dense layer of logits or probabilities "
        f"[B, K]. Received: model={model.name!r}, which ends in "
        f"{type(last).__name__} {last.name!r} with output {model.output_shape}. "
        "keras_vit.for_task puts a head on"
    )


def best(scores: Tensor, labels: Sequence[str], top_k: int) -> dict[str, Tensor]:
    """The `top_k` classes and their scores, greatest first: [B, K] -> [B, k] each."""
    values, places = tf.math.top_k(scores, top_k)
    return {"classes": tf.gather(tf.constant(list(labels)), places), "scores": values}


def masked(outputs: dict[str, Tensor], status: Tensor) -> dict[str, Tensor]:
    """Outputs of images that were none are zeros and empty names; the status beside."""
    read = tf.equal(status, OK)

    def only_read(output: Tensor) -> Tensor:
        there = tf.reshape(read, [-1] + [1] * (output.shape.rank - 1))
        nothing = tf.constant("" if output.dtype == tf.string else 0, output.dtype)
        return tf.where(there, output, nothing)

    return {name: only_read(output) for name, output in outputs.items()} | {
        "status": status
    }
