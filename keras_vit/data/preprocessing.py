"""Image functions of the official input pipelines.

Those of vit_jax/input_pipeline.py and, where a docstring says so, of big_vision's
evaluation (pp/ops_image.py).

Pure functions on TensorFlow tensors; whatever is random takes its seed as an argument.

Glossary of shapes: H, W, C are an image's height, width and channels; `image_size` is
(H, W) in pixels.
"""

from typing import Any, TypeAlias

import tensorflow as tf

from keras_vit.normalization import HALF, Channels, per_channel

__all__ = [
    "central_crop",
    "crop_box",
    "decode",
    "inception_crop",
    "normalize",
    "prepare",
    "random_flip",
    "resize",
    "resize_small",
    "resize_uint8",
    "to_channels",
]

Tensor: TypeAlias = Any
Size: TypeAlias = tuple[int, int]


def decode(encoded: Tensor) -> Tensor:
    """vit_jax's decoding: JPEG, PNG, BMP or GIF (first frame) bytes -> uint8 [H, W, 3].

    Args:
        encoded: scalar string.

    Returns:
        uint8 [H, W, 3]; gray images are repeated.
    """
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, (None, None, 3))


def resize(image: Tensor, image_size: Size) -> Tensor:
    """The official evaluation resize (vit_jax): [H, W, C] -> float32 [*image_size, C].

    A plain squash, bilinear without antialiasing: no center crop.

    Args:
        image: [H, W, C], uint8 or floats; a batch [B, H, W, C] too.
        image_size: (H, W) of the result, in pixels.
    """

    def resized(image: Tensor) -> Tensor:
        return tf.image.resize(image, image_size, method="bilinear", antialias=False)

    # The same to the bit. The kernel of floats is twice as fast, but the cast reads
    # every pixel of an image of which a smaller one takes few.
    shrinks = tf.reduce_prod(tf.shape(image)[-3:-1]) > tf.reduce_prod(image_size)
    return tf.cond(
        shrinks, lambda: resized(image), lambda: resized(tf.cast(image, tf.float32))
    )


def resize_uint8(
    image: Tensor,
    image_size: Size,
    *,
    method: str = "bilinear",
    antialias: bool = False,
) -> Tensor:
    """big_vision's resize: uint8 [H, W, C] -> uint8 [*image_size, C].

    `resize`, then clipped and truncated, not rounded.

    Args:
        image: uint8 [H, W, C].
        image_size: (H, W) of the result, in pixels.
        method: of `tf.image.resize`.
        antialias: likewise.

    Raises:
        ValueError: if the image is not uint8.
    """
    if image.dtype != tf.uint8:
        raise ValueError(
            "Expected a uint8 image (big_vision casts back to its dtype). Received: "
            f"{tf.as_dtype(image.dtype).name}. Resize floats by resize"
        )
    image = tf.image.resize(image, image_size, method=method, antialias=antialias)
    return tf.cast(tf.clip_by_value(image, 0.0, 255.0), tf.uint8)


def resize_small(image: Tensor, size: int, *, method: str = "area") -> Tensor:
    """big_vision's resize_small: the smaller side to `size`, at the same aspect ratio.

    Args:
        image: uint8 [H, W, C].
        size: of the smaller side, in pixels; the other is rounded half to even.
        method: of `tf.image.resize`; "bilinear" is LiT's (vit_jax/preprocess.py).

    Returns:
        uint8 [H', W', C] with min(H', W') = size.

    Raises:
        ValueError: if the image is not uint8.
    """
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    sides = tf.round(sides * (tf.cast(size, tf.float32) / tf.reduce_min(sides)))
    return resize_uint8(image, tf.cast(sides, tf.int32), method=method)


def central_crop(image: Tensor, image_size: Size) -> Tensor:
    """big_vision's central_crop: [H, W, C] -> [*image_size, C].

    An odd rest is larger at the bottom and at the right.

    Args:
        image: [H, W, C] of any dtype.
        image_size: (H, W) of the result, in pixels.

    Raises:
        ValueError: if the image is known to be smaller than the crop.
    """
    for side, cropped in zip(image.shape[:2], image_size, strict=True):
        if side is not None and side < cropped:
            raise ValueError(
                f"Expected an image of at least {image_size} pixels. Received: "
                f"{tuple(image.shape[:2])}. Enlarge it by resize_small"
            )
    top, left = tf.unstack((tf.shape(image)[:2] - image_size) // 2)
    return tf.image.crop_to_bounding_box(image, top, left, *image_size)


def to_channels(image: Tensor, channels: int) -> Tensor:
    """[..., C] -> [..., channels]: gray repeated, RGB as its luma for one channel.

    Not in the paper, whose images are RGB.

    Args:
        image: [..., C] of any dtype, C known.
        channels: of the result.

    Raises:
        ValueError: if the image has another number of channels than these.
    """
    own = image.shape[-1]
    if own == channels:
        return image
    if own == 1:
        return tf.repeat(image, channels, axis=-1)
    if (own, channels) == (3, 1):
        return tf.image.rgb_to_grayscale(image)
    raise ValueError(
        f"Expected images of {channels} channels, as the model has them. Received: "
        f"images of {own} channels"
    )


def crop_box(shape: Tensor, seed: Tensor) -> Tensor:
    """The Inception crop's place in an image of `shape`: -> int32 [top, left, h, w].

    5 to 100 % of the area at aspect ratios of 0.75 to 1.33, as vit_jax's training.

    Args:
        shape: int [3], of an image [H, W, C].
        seed: int [2]; the same seed gives the same box.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros([0, 0, 4], tf.float32),
        seed=seed,
        min_object_covered=0.0,
        area_range=(0.05, 1.0),
        aspect_ratio_range=(0.75, 1.33),
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def inception_crop(image: Tensor, image_size: Size, seed: Tensor) -> Tensor:
    """vit_jax's random crop, resized: uint8 image or bytes -> float32 [*image_size, C].

    Args:
        image: uint8 [H, W, C], or a scalar string; of a JPEG only the crop is decoded.
        image_size: (H, W) of the result, in pixels.
        seed: int [2]; the same seed gives the same crop.
    """
    if image.dtype != tf.string:
        top, left, height, width = tf.unstack(crop_box(tf.shape(image), seed))
        crop = image[top : top + height, left : left + width]
        return resize(crop, image_size)

    def crop_of_jpeg() -> Tensor:
        shape = tf.image.extract_jpeg_shape(image)
        return tf.image.decode_and_crop_jpeg(image, crop_box(shape, seed), channels=3)

    def crop_of_other() -> Tensor:
        decoded = decode(image)
        top, left, height, width = tf.unstack(crop_box(tf.shape(decoded), seed))
        return decoded[top : top + height, left : left + width]

    crop = tf.cond(tf.io.is_jpeg(image), crop_of_jpeg, crop_of_other)
    return resize(tf.ensure_shape(crop, (None, None, 3)), image_size)


def random_flip(image: Tensor, seed: Tensor) -> Tensor:
    """Mirrors [H, W, C] left to right with probability 1/2: -> [H, W, C], as vit_jax.

    Args:
        image: [H, W, C] of any dtype.
        seed: int [2]; the same seed decides the same.
    """
    return tf.image.stateless_random_flip_left_right(image, seed)


def normalize(image: Tensor, mean: Channels = HALF, std: Channels = HALF) -> Tensor:
    """(x / 255 - mean) / std, vit_jax's: values in 0..255 -> float32 of the same shape.

    Args:
        image: [..., C], uint8 or floats in 0..255.
        mean: by channel, in units of the 0..1 range; one value serves all channels.
        std: likewise. The defaults give exactly the official (x - 127.5) / 127.5.

    Raises:
        ValueError: if `mean` or `std` is not one value, or one for each channel.

    Examples:
        >>> normalize(tf.constant([[[0, 51, 255]]], tf.uint8)).numpy()
        array([[[-1. , -0.6,  1. ]]], dtype=float32)
    """
    channels = image.shape[-1]
    scale = [255.0 * value for value in per_channel(std, channels)]
    offset = [255.0 * value for value in per_channel(mean, channels)]
    image = tf.cast(image, tf.float32)
    if len({*scale}) == len({*offset}) == 1:
        return (image - offset[0]) / scale[0]
    width = image.shape[-2] if image.shape.rank > 1 else None
    if width is None:
        return (image - offset) / scale
    # TensorFlow takes ten times as long for rows of three numbers as for long ones.
    rows = tf.reshape(image, (-1, width * channels))
    return tf.reshape((rows - offset * width) / (scale * width), tf.shape(image))


def prepare(
    image: Tensor,
    image_size: Size,
    mean: Channels = HALF,
    std: Channels = HALF,
    channels: int = 3,
) -> Tensor:
    """An image as a model sees it in evaluation: [H, W, C] -> [*image_size, channels].

    `resize`, `to_channels` and `normalize`, in this order: vit_jax's.

    Args:
        image: [H, W, C], uint8 or floats in 0..255; a batch [B, H, W, C] too.
        image_size: (H, W) of the result, in pixels.
        mean: as of `normalize`.
        std: likewise.
        channels: of the result.

    Raises:
        ValueError: as of `to_channels` and `normalize`.
    """
    image = to_channels(resize(image, image_size), channels)
    return normalize(image, mean, std)
