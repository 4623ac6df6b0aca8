"""What a served graph computes: encoded images in, names and scores out.

Glossary of shapes: B images of a request, H, W, C what the model takes, K classes, k of
them told, D the features' width.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from keras_vit.data import preprocessing
from keras_vit.data.preprocessing import Size
from keras_vit.normalization import Channels

Tensor: TypeAlias = Any

OK = "ok"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # Its size comes first, or it is none.
# Of a GIF, 16 MiB of pieces; each takes a step of a loop.
MOST_PIECES, MOST_EXTENSIONS = 2**16, 64
UNREADABLE = "not a whole JPEG, PNG, BMP or GIF image"


def require_tensorflow() -> None:
    """Raises under another backend, whose models have no graph to export."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Expected the TensorFlow backend, whose graphs are exported. Received: "
            f"{keras.backend.backend()}. Save the model, and load and export it under "
            "KERAS_BACKEND=tensorflow"
        )


@contextlib.contextmanager
def without_temporary_names() -> Iterator[None]:
    """Holds back TensorFlow's INFO, which in a notebook names folders that are gone."""

    def matters(record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO

    logger = tf.get_logger()
    logger.addFilter(matters)  # Its own: another export's may come and go meanwhile.
    try:
        yield
    finally:
        logger.removeFilter(matters)


def too_large(max_pixels: int) -> str:
    """The status of an image that is not decoded for its size."""
    return f"more than {max_pixels} pixels"


def one_frame(encoded: Tensor) -> tuple[Tensor, Tensor]:
    """An image's bytes and its pixels as they tell: string -> string, int64.

    Of a GIF the bytes are those of its first frame: TensorFlow decodes all of them
    before it drops the others, and 1.5 MB can hold 400 of 2,000 x 2,000 pixels. What
    is cut off is an error; of what is none of the four kinds nothing is left to decode
    (TensorFlow reads more kinds, whose sizes are not looked at here).
    """

    def sides(start: int, dtype: Any, little: bool) -> tuple[Tensor, Tensor]:
        raw = tf.strings.substr(encoded, start, 8)
        told = tf.io.decode_raw(raw, dtype, little_endian=little)
        # A BMP's height is negative where its first row is the upper one.
        return encoded, tf.reduce_prod(tf.abs(tf.cast(told, tf.int64)))

    def of_jpeg() -> tuple[Tensor, Tensor]:
        shape = tf.image.extract_jpeg_shape(encoded)
        return encoded, tf.reduce_prod(tf.cast(shape[:2], tf.int64))

    def of_bmp() -> tuple[Tensor, Tensor]:
        raw = tf.strings.substr(encoded, 28, 2)
        bits = tf.io.decode_raw(raw, tf.uint16, little_endian=True)[0]
        frame, pixels = sides(18, tf.int32, little=True)
        # TensorFlow takes the indexes of a palette for grays.
        colored = tf.equal(bits, 24) | tf.equal(bits, 32)
        return tf.where(colored, frame, b""), pixels

    def begins(magic: bytes) -> Tensor:
        return tf.equal(tf.strings.substr(encoded, 0, len(magic)), magic)

    found: tuple[Tensor, Tensor] = tf.case(
        [
            (begins(PNG), lambda: sides(16, tf.int32, little=False)),
            (begins(b"GIF8"), lambda: _first_of_gif(encoded)),
            (begins(b"BM"), of_bmp),
            (begins(b"\xff\xd8"), of_jpeg),
        ],
        default=lambda: (tf.constant(b""), tf.constant(0, tf.int64)),
    )
    return found


def _first_of_gif(encoded: Tensor) -> tuple[Tensor, Tensor]:
    """A GIF of the first frame alone, and the larger of its and the screen's pixels.

    Blocks as "GIF89a" lays them out: a header of 13 bytes, a table of colors,
    extensions (0x21), then a frame of 10 bytes, colors, and data in pieces that say
    their length; the last piece says 0.
    """
    raw = tf.io.decode_raw(encoded, tf.uint8)

    def byte(place: Tensor) -> Tensor:
        return tf.cast(raw[place], tf.int32)

    def colors(flags: Tensor) -> Tensor:
        return tf.where(flags >= 128, 3 * tf.bitwise.left_shift(2, flags % 8), 0)

    def after_pieces(place: Tensor) -> Tensor:
        (last,) = tf.while_loop(
            lambda at: byte(at) > 0,
            lambda at: (at + byte(at) + 1,),
            (place,),
            maximum_iterations=MOST_PIECES,
        )
        return last + 1

    def pixels(place: Tensor) -> Tensor:
        width, height = (byte(at) + 256 * byte(at + 1) for at in (place, place + 2))
        return tf.cast(width, tf.int64) * tf.cast(height, tf.int64)

    (frame,) = tf.while_loop(
        lambda at: tf.equal(byte(at), 0x21),
        lambda at: (after_pieces(at + 2),),
        (13 + colors(byte(10)),),
        maximum_iterations=MOST_EXTENSIONS,
    )
    end = after_pieces(frame + 11 + colors(byte(frame + 9)))
    whole = tf.equal(byte(frame), 0x2C) & tf.equal(byte(end - 1), 0)
    alone = tf.strings.join([tf.strings.substr(encoded, 0, end), b";"])
    alone = tf.where(whole, alone, b"")
    return alone, tf.maximum(pixels(6), pixels(frame + 5))


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
        frame, pixels = one_frame(encoded)
        fits = pixels <= max_pixels

        def prepared() -> Tensor:
            image = preprocessing.decode(frame)
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
    head = head_of(model, tuple(known))
    if known[head.activation] and head.units == 1:
        raise ValueError(
            "Expected two logits or more: the softmax of one is always 1. Received: "
            f"model={model.name!r} with one. Give its head activation='sigmoid'"
        )
    return known[head.activation]


def head_of(model: keras.Model, activations: Sequence[Any] = ()) -> keras.layers.Dense:
    """The layer that the classes are the outputs of: its activation is one of these."""
    last = model.layers[-1]
    is_head = isinstance(last, keras.layers.Dense) and last.output is model.outputs[0]
    fits = is_head and (not activations or last.activation in activations)
    if fits and len(model.output_shape) == 2:
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
