"""Image functions of the official input pipelines.

They are those of vit_jax/input_pipeline.py and, if the docstring says so, of
big_vision's evaluation (pp/ops_image.py). All are pure functions on TensorFlow tensors;
random functions have an argument `seed`.

Glossary of shapes: H, W, C are an image's height, width and channels; `image_size` is
(H, W) in pixels.
"""

import os
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_vit.data.decoding import as_written, decode, decode_crop, reason
from keras_vit.facts import OFFICIAL, Preprocessing
from keras_vit.files import printable, read_bytes
from keras_vit.normalization import HALF, Channels, checked, per_channel

__all__ = [
    "central_crop",
    "crop_box",
    "decode",
    "inception_crop",
    "normalize",
    "prepare",
    "prepare_all",
    "random_flip",
    "resize",
    "resize_small",
    "resize_uint8",
    "to_channels",
]

Tensor: TypeAlias = Any
Size: TypeAlias = tuple[int, int]


@as_written
def resize(image: Tensor, image_size: Size) -> Tensor:
    """Resizes as vit_jax's evaluation: [H, W, C] -> float32 [*image_size, C].

    The aspect ratio is not kept. Bilinear without antialiasing, no center crop.

    Args:
        image: [H, W, C] or a batch [B, H, W, C], uint8 or floats.
        image_size: (H, W) of the result, in pixels.
    """

    def resized(image: Tensor) -> Tensor:
        return tf.image.resize(image, image_size, method="bilinear", antialias=False)

    # Both are equal to the bit. The kernel for floats is twice as fast, but its cast
    # reads every pixel, of which a smaller result needs only a few.
    shrinks = tf.reduce_prod(tf.shape(image)[-3:-1]) > tf.reduce_prod(image_size)
    return tf.cond(
        shrinks, lambda: resized(image), lambda: resized(tf.cast(image, tf.float32))
    )


@as_written
def resize_uint8(
    image: Tensor,
    image_size: Size,
    *,
    method: str = "bilinear",
    antialias: bool = False,
) -> Tensor:
    """Resizes as big_vision: uint8 [H, W, C] -> uint8 [*image_size, C].

    Equals `resize` with values clipped and truncated, not rounded.

    Args:
        image: uint8 [H, W, C].
        image_size: (H, W) of the result, in pixels.
        method: see `tf.image.resize`.
        antialias: see `tf.image.resize`.

    Raises:
        ValueError: if the image is not uint8.
    """
    if image.dtype != tf.uint8:
        raise ValueError(
            "Expected a uint8 image (big_vision casts back to its dtype). Received: "
            f"{tf.as_dtype(image.dtype).name}. Use resize for floats"
        )
    image = tf.image.resize(image, image_size, method=method, antialias=antialias)
    return tf.cast(tf.clip_by_value(image, 0.0, 255.0), tf.uint8)


@as_written
def resize_small(image: Tensor, size: int, *, method: str = "area") -> Tensor:
    """Resizes the smaller side to `size`, keeping the aspect ratio, as big_vision.

    Args:
        image: uint8 [H, W, C].
        size: length of the smaller side, in pixels; the other is rounded half to even.
        method: method of `tf.image.resize`; LiT uses "bilinear"
            (vit_jax/preprocess.py).

    Returns:
        uint8 [H', W', C] with min(H', W') = size.

    Raises:
        ValueError: if the image is not uint8.
    """
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    sides = tf.round(sides * (tf.cast(size, tf.float32) / tf.reduce_min(sides)))
    return resize_uint8(image, tf.cast(sides, tf.int32), method=method)


@as_written
def central_crop(image: Tensor, image_size: Size) -> Tensor:
    """Crops the center as big_vision: [H, W, C] -> [*image_size, C].

    If the margin is odd, one more pixel is cut at the bottom and on the right.

    Args:
        image: [H, W, C] of any dtype.
        image_size: (H, W) of the result, in pixels.

    Raises:
        ValueError: if the static shape is smaller than the crop.
    """
    for side, cropped in zip(image.shape[:2], image_size, strict=True):
        if side is not None and side < cropped:
            raise ValueError(
                f"Expected an image of at least {image_size} pixels. Received: "
                f"{tuple(image.shape[:2])}. Enlarge it with resize_small"
            )
    top, left = tf.unstack((tf.shape(image)[:2] - image_size) // 2)
    return tf.image.crop_to_bounding_box(image, top, left, *image_size)


@as_written
def to_channels(image: Tensor, channels: int) -> Tensor:
    """Repeats gray or reduces RGB to its luma: [..., C] -> [..., channels].

    The paper's images are RGB; the luma is TensorFlow's.

    Args:
        image: [..., C] of any dtype, C known.
        channels: number of channels of the result.

    Raises:
        ValueError: if the image has any other number of channels.
    """
    own = image.shape[-1]
    if own == channels:
        return image
    if own == 1:
        return tf.repeat(image, channels, axis=-1)
    if (own, channels) == (3, 1):
        return tf.image.rgb_to_grayscale(image)
    raise ValueError(
        f"Expected images of {channels} channels, as in the model. Received: "
        f"images of {own} channels"
    )


@as_written
def crop_box(shape: Tensor, seed: Tensor) -> Tensor:
    """Draws the Inception crop's box for an image's shape: -> int32 [top, left, h, w].

    It has 5 to 100 % of the area at aspect ratios of 0.75 to 1.33, as in vit_jax.

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


@as_written
def inception_crop(image: Tensor, image_size: Size, seed: Tensor) -> Tensor:
    """Crops at random and resizes, as vit_jax: image -> float32 [*image_size, C].

    Args:
        image: uint8 [H, W, C], or a scalar string, encoded; for a JPEG only the crop is
            decoded.
        image_size: (H, W) of the result, in pixels.
        seed: int [2]; the same seed gives the same crop.
    """
    if image.dtype != tf.string:
        top, left, height, width = tf.unstack(crop_box(tf.shape(image), seed))
        crop = image[top : top + height, left : left + width]
        return resize(crop, image_size)

    return resize(decode_crop(image, lambda shape: crop_box(shape, seed)), image_size)


@as_written
def random_flip(image: Tensor, seed: Tensor) -> Tensor:
    """Mirrors an image with probability 1/2: [H, W, C] -> [H, W, C], as vit_jax.

    Args:
        image: [H, W, C] of any dtype.
        seed: int [2]; the same seed gives the same result.
    """
    return tf.image.stateless_random_flip_left_right(image, seed)


@as_written
def normalize(image: Tensor, mean: Channels = HALF, std: Channels = HALF) -> Tensor:
    """Computes (x / 255 - mean) / std, as vit_jax: 0..255 -> float32, same shape.

    Args:
        image: [..., C], uint8 or floats in 0..255.
        mean: mean by channel, in units of the 0..1 range; a single value is used for
            all channels.
        std: deviation by channel, in the same units. The defaults give exactly the
            official (x - 127.5) / 127.5.

    Raises:
        ValueError: if `mean` or `std` has neither one value nor one per channel, if a
            value is not finite, or if `std` is not positive.

    Examples:
        >>> normalize(tf.constant([[[0, 51, 255]]], tf.uint8)).numpy()
        array([[[-1. , -0.6,  1. ]]], dtype=float32)
    """
    channels = image.shape[-1]
    mean, std = checked(mean, std, channels)
    scale = [255.0 * value for value in per_channel(std, channels)]
    offset = [255.0 * value for value in per_channel(mean, channels)]
    image = tf.cast(image, tf.float32)
    if len({*scale}) == len({*offset}) == 1:
        return (image - offset[0]) / scale[0]
    width = image.shape[-2] if image.shape.rank > 1 else None
    if width is None:
        return (image - offset) / scale
    # TensorFlow is ten times as slow for rows of three numbers as for long ones.
    rows = tf.reshape(image, (-1, width * channels))
    return tf.reshape((rows - offset * width) / (scale * width), tf.shape(image))


@as_written
def prepare(
    image: Tensor,
    image_size: Size,
    preprocessing: Preprocessing = OFFICIAL,
    channels: int = 3,
) -> Tensor:
    """Preprocesses an image as in evaluation: [H, W, C] -> [*image_size, C'].

    Applies `resize`, `to_channels` and `normalize`, as vit_jax, unless `preprocessing`
    has a different filter or a crop.

    Args:
        image: [H, W, C] or a batch [B, H, W, C], uint8 or floats in 0..255.
        image_size: (H, W) of the result, in pixels.
        preprocessing: resizing and scaling.
        channels: C' of the result.

    Raises:
        ValueError: if the image cannot be converted to `channels`, or the normalization
            has a different number of channels.
    """
    resized = _resize_as(preprocessing, image, image_size)
    image = to_channels(resized, channels)
    return normalize(image, preprocessing.mean, preprocessing.std)


def _resize_as(preprocessing: Preprocessing, image: Tensor, image_size: Size) -> Tensor:
    """Resizes by the stated filter: [..., H, W, C] -> float32 [..., *image_size, C]."""
    how = {
        "method": _METHODS[preprocessing.interpolation],
        "antialias": preprocessing.antialias,
    }
    if preprocessing.crop is None:
        if how == {"method": "bilinear", "antialias": False}:
            return resize(image, image_size)
        return _in_range(tf.image.resize(image, image_size, **how))
    # As torchvision: the other side is rounded down, half a pixel of margin to even.
    sides = tf.shape(image)[-3:-1]
    before = preprocessing.size_before_crop(image_size)
    larger = tf.constant(before)
    if not preprocessing.squash:
        larger = tf.reduce_max(
            [side * sides // sides[axis] for axis, side in enumerate(before)], axis=0
        )
    image = _in_range(tf.image.resize(image, larger, **how))
    margin = tf.cast(larger - image_size, tf.float32) / 2
    top, left = tf.unstack(tf.cast(tf.round(margin), tf.int32))
    return tf.image.crop_to_bounding_box(image, top, left, *image_size)


_METHODS = {
    "nearest": "nearest",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "lanczos": "lanczos3",
}


def _in_range(image: Tensor) -> Tensor:
    """Clips to 0..255 as Pillow; bicubic and Lanczos overshoot at sharp edges."""
    return tf.clip_by_value(tf.cast(image, tf.float32), 0.0, 255.0)


def prepare_all(
    images: Any, image_size: Size, preprocessing: Preprocessing, channels: int
) -> np.ndarray:
    """Preprocesses arrays or files, as vit_jax: -> float32 [B, *image_size, C'].

    Args:
        images: [B, H, W, C] or [H, W, C], uint8 or floats in 0..255; a path or encoded
            bytes; or a list of any of these.
        image_size: (H, W) of the result, in pixels.
        preprocessing: resizing and scaling.
        channels: C' of the result.

    Returns:
        NumPy array, float32 [B, *image_size, C'].

    Raises:
        ValueError: if an element is not an image, or the list is empty.
        OSError: if a file cannot be read.
    """
    if isinstance(images, str | bytes | os.PathLike):
        images = [images]
    if isinstance(images, list | tuple):
        batches = [
            prepare_all(_decoded(image), image_size, preprocessing, channels)
            for image in images
        ]
        if not batches:
            raise ValueError("Expected at least one image. Received: an empty list")
        return np.concatenate(batches)
    pixels = _array(images)
    if pixels.ndim == 3:
        pixels = pixels[None]
    if pixels.ndim != 4 or 0 in pixels.shape or pixels.dtype.kind not in "uif":
        raise ValueError(
            "Expected images [B, H, W, C] or [H, W, C] of numbers in 0..255, paths or "
            f"encoded bytes. Received: {pixels.dtype} {pixels.shape}"
        )
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    with tf.device("CPU"):
        prepared: np.ndarray = prepare(
            tf.constant(pixels), image_size, preprocessing, channels
        ).numpy()
    return prepared


def _array(images: Any) -> np.ndarray:
    """Returns images as an array; bfloat16, which NumPy does not have, as float32."""
    if hasattr(images, "detach"):  # A torch tensor, on any device.
        images = images.detach().cpu()
        images = images.float() if images.is_floating_point() else images
    array = np.asarray(images)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _decoded(image: Any) -> Any:
    """Decodes a path or encoded bytes; returns an array unchanged."""
    if not isinstance(image, str | bytes | os.PathLike):
        return image
    path = None if isinstance(image, bytes) else image
    encoded = image if isinstance(image, bytes) else read_bytes(image)
    try:
        return decode(tf.constant(encoded)).numpy()
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        where = "" if path is None else f" {printable(path)!r}"
        raise ValueError(
            f"Expected an image. Received:{where} {reason(encoded)}"
        ) from error
