"""Augmentations of AugReg and big_vision, with CutMix and Random Erasing.

RandAugment (arXiv:1909.13719) and mixup (arXiv:1710.09412) are implemented as in
big_vision (pp/archive/autoaugment.py, utils.py), CutMix and Random Erasing as in their
papers (arXiv:1905.04899, arXiv:1708.04896). big_vision's integers are reproduced
exactly. To get the same bits on every processor, sums are written out in a fixed order
instead of using a matmul or a convolution.

These are pure functions on TensorFlow tensors. Random functions have an argument
`seed`, int [2], so that a map is reproducible with any parallelism.

Glossary of shapes: B is the batch; H, W, C are an image's height, width and channels; K
is the number of classes. An image is uint8 [H, W, 3].
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from keras_vit.data.decoding import as_written

__all__ = [
    "cutmix",
    "cutout",
    "mixup",
    "random_erasing",
    "randaugment",
    "randaugment_operations",
]

Tensor: TypeAlias = Any
Operation: TypeAlias = Callable[[Tensor, Tensor], Tensor]

fold_in = tf.random.experimental.stateless_fold_in

# pp/archive/autoaugment.py: `replace_value`, `cutout_const`, `translate_const`.
GRAY = 128  # Fill value of Rotate, Shear, Translate and Cutout.
CUTOUT = 40  # Half of the square's side at magnitude 10.
TRANSLATE = 100.0  # Pixels at magnitude 10.

# Algorithm 1 of arXiv:1708.04896: s_l and s_h, r_1 and r_2.
ERASED_AREA = (0.02, 0.4)
ERASED_ASPECT = (0.3, 1 / 0.3)
ERASING_ATTEMPTS = 100  # For its "while True"; one box in three fits a square image.


@as_written
def randaugment(
    image: Tensor, seed: Tensor, *, layers: int = 2, magnitude: float = 10.0
) -> Tensor:
    """Applies big_vision's RandAugment(N, M): uint8 [H, W, 3] -> uint8 [H, W, 3].

    Each of the N times, one of the 16 operations is drawn with equal probability and
    always applied. Operations with a direction use either one with probability 1/2.

    Args:
        image: uint8 [H, W, 3].
        seed: int [2]; the same seed gives the same bits.
        layers: N, 0 or more.
        magnitude: M, 0 or more, for all operations; above 10 they extrapolate. 0 is
            not the identity: Color, for example, keeps a tenth of the color.

    Raises:
        ValueError: if the image has a different shape or dtype, `layers` is not an
            integer of 0 or more, or `magnitude` is negative or not finite.
    """
    image = _checked_image(image)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 0:
        raise ValueError(
            f"Expected layers to be an integer, 0 or more. Received: layers={layers!r}"
        )
    operations = list(randaugment_operations(magnitude).values())
    shape = image.shape
    draws = tf.random.stateless_uniform([layers, 4], seed)
    for layer in range(layers):
        choice = tf.cast(draws[layer, 0] * len(operations), tf.int32)
        image = _applied(operations, choice, image, draws[layer, 1:])
        image.set_shape(shape)
    return image


def _applied(
    operations: list[Operation], choice: Tensor, image: Tensor, draws: Tensor
) -> Tensor:
    """Returns the result of one operation; the others are not executed."""
    branches = [
        lambda operation=operation: operation(image, draws) for operation in operations
    ]
    return tf.switch_case(choice, branches)


def randaugment_operations(magnitude: float) -> dict[str, Operation]:
    """Returns the 16 operations at magnitude M by big_vision's names, in its order.

    Args:
        magnitude: M, 0 or more; the ranges of the operations end at 10.

    Returns:
        By name, functions from an image, uint8 [H, W, 3], and three draws from [0, 1),
        float [3], to an image of the same shape. The first draw selects the direction
        (positive from 1/2 on), the others the center of Cutout's square.

    Raises:
        ValueError: if `magnitude` is negative or not finite.

    Examples:
        >>> operations = randaugment_operations(10)
        >>> operations["Invert"](tf.zeros([1, 1, 3], tf.uint8), [0.0] * 3).numpy()
        array([[[255, 255, 255]]], dtype=uint8)
    """
    if not (math.isfinite(magnitude) and magnitude >= 0):
        raise ValueError(
            "Expected magnitude to be finite and 0 or more. Received: "
            f"magnitude={magnitude!r}"
        )
    level = magnitude / 10
    enhance = level * 1.8 + 0.1

    def unsigned(operation: Callable[..., Tensor], *args: float) -> Operation:
        return lambda image, draws: operation(image, *args)

    def signed(operation: Callable[..., Tensor], amount: float) -> Operation:
        return lambda image, draws: operation(
            image, amount * (2 * tf.cast(draws[0] >= 0.5, tf.float64) - 1)
        )

    return {
        "AutoContrast": unsigned(autocontrast),
        "Equalize": unsigned(equalize),
        "Invert": unsigned(invert),
        "Rotate": signed(rotate, level * 30.0),
        "Posterize": unsigned(posterize, int(level * 4)),
        "Solarize": unsigned(solarize, int(level * 256)),
        "Color": unsigned(color, enhance),
        "Contrast": unsigned(contrast, enhance),
        "Brightness": unsigned(brightness, enhance),
        "Sharpness": unsigned(sharpness, enhance),
        "ShearX": signed(shear_x, level * 0.3),
        "ShearY": signed(shear_y, level * 0.3),
        "TranslateX": signed(translate_x, level * TRANSLATE),
        "TranslateY": signed(translate_y, level * TRANSLATE),
        "Cutout": lambda image, draws: cutout(image, int(level * CUTOUT), draws[1:]),
        "SolarizeAdd": unsigned(solarize_add, int(level * 110)),
    }


def autocontrast(image: Tensor) -> Tensor:
    """Stretches every channel to 0..255; a constant channel is unchanged."""
    low = tf.cast(tf.reduce_min(image, axis=[0, 1]), tf.float32)
    high = tf.cast(tf.reduce_max(image, axis=[0, 1]), tf.float32)
    several = high > low
    scale = tf.where(several, 255.0 / (high - low), 1.0)
    offset = tf.where(several, -low * scale, 0.0)
    rows = tf.cast(_rows(image), tf.float32)
    width = tf.shape(image)[1]
    stretched = rows * tf.tile(scale, [width]) + tf.tile(offset, [width])
    return tf.reshape(_to_uint8(stretched), tf.shape(image))


def equalize(image: Tensor) -> Tensor:
    """Flattens every channel's histogram as far as a table of values can."""
    offsets = tf.tile([0, 256, 512], [tf.shape(image)[1]])
    values = tf.cast(_rows(image), tf.int32) + offsets
    histogram = tf.histogram_fixed_width(values, [0, 767], nbins=768)
    below = tf.cumsum(tf.reshape(histogram, [3, 256]), axis=1, exclusive=True)
    pixels = tf.shape(image)[0] * tf.shape(image)[1]
    # All pixels except the brightest, divided into 255 steps.
    darker = tf.reduce_max(tf.where(below < pixels, below, 0), axis=1, keepdims=True)
    step = darker // 255
    table = tf.minimum((below + step // 2) // tf.maximum(step, 1), 255)
    table = tf.where(step > 0, table, tf.range(256))
    table = tf.cast(tf.reshape(table, [-1]), tf.uint8)
    return tf.reshape(tf.gather(table, values), tf.shape(image))


def invert(image: Tensor) -> Tensor:
    """Computes 255 - x."""
    return 255 - image


def rotate(image: Tensor, degrees: Tensor) -> Tensor:
    """Rotates by `degrees` counterclockwise about the center; nearest pixel."""
    radians = tf.cast(degrees, tf.float64) * (math.pi / 180.0)
    cosine, sine = tf.cos(radians), tf.sin(radians)
    bottom = tf.cast(tf.shape(image)[0] - 1, tf.float64)
    right = tf.cast(tf.shape(image)[1] - 1, tf.float64)
    left_moves = (right - (cosine * right - sine * bottom)) / 2.0
    top_moves = (bottom - (sine * right + cosine * bottom)) / 2.0
    return _transform(image, [cosine, -sine, left_moves, sine, cosine, top_moves])


def posterize(image: Tensor, bits: int) -> Tensor:
    """Keeps the highest `bits` of the 8 of every value; one bit if it is 0 or above 8.

    big_vision shifts by 8 - bits, a uint8, which TensorFlow limits to 7.
    """
    dropped = min((8 - bits) % 256, 7)
    return tf.bitwise.bitwise_and(image, (0xFF << dropped) & 0xFF)


def solarize(image: Tensor, threshold: int) -> Tensor:
    """Inverts values of `threshold` and above.

    big_vision compares with a uint8, so that the 256 of magnitude 10 becomes 0 and
    everything is inverted.
    """
    bright = tf.cast(image >= threshold % 256, tf.uint8)
    return tf.bitwise.bitwise_xor(image, bright * 255)


def solarize_add(image: Tensor, addition: int) -> Tensor:
    """Adds to the values below 128, with a maximum of 255."""
    dark = tf.cast(image < 128, tf.uint8)
    return image + dark * tf.minimum(255 - image, min(addition, 255))


def color(image: Tensor, factor: float) -> Tensor:
    """Changes the color; 0 is gray, 1 the image, 2 twice as colorful."""
    gray = tf.image.grayscale_to_rgb(_luma(image)[..., tf.newaxis])
    return _blend(tf.cast(gray, tf.float32), image, factor)


def contrast(image: Tensor, factor: float) -> Tensor:
    """Changes the contrast; 0 is a constant gray, 1 the image.

    The gray is the mean of the histogram, H * W / 256 and at most 255, instead of the
    image's: 196 at 224 pixels. This is big_vision's first version; the image's mean
    came later.
    """
    gray = tf.minimum(tf.size(image) // (3 * 256), 255)
    return _blend(tf.cast(gray, tf.float32), image, factor)


def brightness(image: Tensor, factor: float) -> Tensor:
    """Changes the brightness; 0 is black, 1 the image."""
    return _blend(0.0, image, factor)


def sharpness(image: Tensor, factor: float) -> Tensor:
    """Sharpens; 0 is smoothed by [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13, 1 the image.

    The pixels at the border are unchanged.
    """
    smooth = _to_uint8(_smoothed(tf.cast(image, tf.float32)))
    inside = _blend(tf.cast(smooth, tf.float32), image[1:-1, 1:-1], factor)
    return _paste(image, inside, 1, 1)


def _smoothed(image: Tensor) -> Tensor:
    """Computes PIL's SMOOTH, a 3 x 3 mean: [H, W, C] -> [H - 2, W - 2, C], or empty.

    The products are summed from the top left to the bottom right, as in big_vision's
    convolution if neither oneDNN nor a fused multiply-add reorders it.
    """
    height, width = tf.shape(image)[0], tf.shape(image)[1]
    below, beside = tf.maximum(height - 2, 0), tf.maximum(width - 2, 0)
    outer, middle = image * (1.0 / 13.0), image * (5.0 / 13.0)
    parts = [
        (middle if (top, left) == (1, 1) else outer)[
            top : top + below, left : left + beside
        ]
        for top in range(3)
        for left in range(3)
    ]
    return sum(parts[1:], parts[0])


def shear_x(image: Tensor, slope: Tensor) -> Tensor:
    """Moves row y to the left by y * slope; nearest pixel."""
    return _transform(image, [1.0, slope, 0.0, 0.0, 1.0, 0.0])


def shear_y(image: Tensor, slope: Tensor) -> Tensor:
    """Moves column x upward by x * slope; nearest pixel."""
    return _transform(image, [1.0, 0.0, 0.0, slope, 1.0, 0.0])


def translate_x(image: Tensor, pixels: Tensor) -> Tensor:
    """Moves the image to the left by an integer number of pixels."""
    return _shift(image, pixels, axis=1)


def translate_y(image: Tensor, pixels: Tensor) -> Tensor:
    """Moves the image upward by an integer number of pixels."""
    return _shift(image, pixels, axis=0)


def cutout(image: Tensor, half: int, middle: Tensor) -> Tensor:
    """Grays a square of the image, clipped at the border (arXiv:1708.04552).

    Args:
        image: uint8 [H, W, 3].
        half: half of the square's side, in pixels.
        middle: float [2] in [0, 1), the square's center as a fraction of (H, W).

    Returns:
        uint8 [H, W, 3], 128 in the square.
    """
    size = tf.shape(image)[:2]
    center = tf.cast(middle * tf.cast(size, tf.float32), tf.int32)
    begin = tf.maximum(center - half, 0)
    extent = tf.minimum(center + half, size) - begin
    gray = tf.fill([extent[0], extent[1], 3], tf.constant(GRAY, image.dtype))
    return _paste(image, gray, begin[0], begin[1])


@as_written
def mixup(
    images: Tensor, labels: Tensor, seed: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """Mixes every image with the previous one, as in big_vision (arXiv:1710.09412).

    Images and labels become a * x + (1 - a) * roll(x, 1). There is one a for the whole
    batch, the greater of a' and 1 - a' for a' ~ Beta(p, p).

    Args:
        images: float [B, H, W, C].
        labels: float [B, K], one-hot.
        seed: int [2]; the same seed gives the same a.
        p: parameter of the Beta distribution, 0 or more; 0 mixes nothing.

    Returns:
        Images [B, H, W, C] and labels [B, K], of the same dtypes.

    Raises:
        ValueError: if images or labels have a different shape or dtype, or if `p` is
            negative or not finite.
    """
    images, labels = _checked_batch(images, labels)
    if not images.dtype.is_floating:
        raise ValueError(
            f"Expected float images. Received: {images.dtype.name}. Mix after normalize"
        )
    if not (math.isfinite(p) and p >= 0):
        raise ValueError(f"Expected p to be finite and 0 or more. Received: p={p!r}")
    if p == 0:
        return images, labels
    a = _beta(seed, p)
    a = tf.maximum(a, 1.0 - a)
    return mix(images, a), mix(labels, a)


def mix(batch: Tensor, a: Tensor) -> Tensor:
    """Returns a * x + (1 - a) * roll(x, 1) over the first axis: float [B, ...]."""
    previous = tf.roll(batch, 1, axis=0)
    return tf.cast(a, batch.dtype) * batch + tf.cast(1.0 - a, batch.dtype) * previous


@as_written
def cutmix(
    images: Tensor, labels: Tensor, seed: Tensor, alpha: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Pastes a box of the previous image into each one (arXiv:1905.04899, Alg. 1).

    The box has (1 - a) of the area, a ~ Beta(alpha, alpha), with its center anywhere
    in the image. It is clipped at the border, and labels are mixed by the remaining
    area. There is one box for the whole batch.

    Args:
        images: [B, H, W, C] of any dtype.
        labels: float [B, K], one-hot.
        seed: int [2]; the same seed gives the same box.
        alpha: parameter of the Beta distribution, above 0.

    Returns:
        Images [B, H, W, C] and labels [B, K], of the same dtypes.

    Raises:
        ValueError: if images or labels have a different shape, labels are not floats,
            or `alpha` is not above 0 and finite.
    """
    images, labels = _checked_batch(images, labels)
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(
            f"Expected alpha to be finite and above 0. Received: alpha={alpha!r}"
        )
    size = tf.shape(images)[1:3]
    sides = tf.cast(size, tf.float32)
    half = tf.cast(sides * tf.sqrt(1.0 - _beta(fold_in(seed, 0), alpha)), tf.int32) // 2
    middle = tf.random.stateless_uniform([2], fold_in(seed, 1))
    center = tf.cast(middle * sides, tf.int32)
    begin, end = tf.maximum(center - half, 0), tf.minimum(center + half, size)
    previous = tf.roll(images, 1, axis=0)
    box = previous[:, begin[0] : end[0], begin[1] : end[1]]
    mixed = _paste(images, box, begin[0], begin[1])
    mixed.set_shape(images.shape)
    kept = 1.0 - tf.reduce_prod(tf.cast(end - begin, tf.float32) / sides)
    return mixed, mix(labels, kept)


@as_written
def random_erasing(image: Tensor, seed: Tensor, probability: float = 0.5) -> Tensor:
    """Fills a random box with random values (arXiv:1708.04896, Algorithm 1).

    The box has 2 to 40 % of the area and an aspect ratio of 0.3 to 1 / 0.3.

    Args:
        image: uint8 [H, W, 3].
        seed: int [2]; the same seed gives the same bits.
        probability: probability that a box is erased, in [0, 1].

    Returns:
        uint8 [H, W, 3].

    Raises:
        ValueError: if the image has a different shape or dtype, or `probability` is not
            in [0, 1].
    """
    image = _checked_image(image)
    if not 0 <= probability <= 1:
        raise ValueError(
            "Expected probability to be in [0, 1]. Received: "
            f"probability={probability!r}"
        )

    def erased() -> Tensor:
        top, left, height, width = tf.unstack(erased_box(image, fold_in(seed, 1)))
        noise = tf.random.stateless_uniform(
            [height, width, 3], fold_in(seed, 2), 0, 256, tf.int32
        )
        return _paste(image, tf.cast(noise, tf.uint8), top, left)

    coin = tf.random.stateless_uniform([], fold_in(seed, 0))
    result = tf.cond(coin < probability, erased, lambda: image)
    result.set_shape(image.shape)
    return result


def erased_box(image: Tensor, seed: Tensor) -> Tensor:
    """Returns Random Erasing's box: int32 [top, left, height, width]; may be empty."""
    size = tf.shape(image)[:2]
    sides = tf.cast(size, tf.float32)
    draws = tf.random.stateless_uniform([ERASING_ATTEMPTS, 4], seed)
    area, aspect = (
        low + draws[:, column] * (high - low)
        for column, (low, high) in enumerate((ERASED_AREA, ERASED_ASPECT))
    )
    area *= tf.reduce_prod(sides)
    extent = tf.sqrt(tf.stack([area * aspect, area / aspect], axis=1))
    extent = tf.cast(tf.round(extent), tf.int32)
    begin = tf.cast(draws[:, 2:] * sides, tf.int32)
    fits = tf.cast(tf.reduce_all(begin + extent <= size, axis=1), tf.int32)
    first = tf.argmax(fits)
    return tf.concat([begin[first], extent[first]], axis=0) * fits[first]


def _beta(seed: Tensor, concentration: float) -> Tensor:
    """Draws from Beta(c, c), float32 in [0, 1].

    It is g / (g + g') for two draws of Gamma(c), each computed as Gamma(c + 1) times
    u^(1 / c). Logarithms avoid underflow for small c.
    """
    gamma = tf.random.stateless_gamma([2], fold_in(seed, 0), concentration + 1.0)
    u = 1.0 - tf.random.stateless_uniform([2], fold_in(seed, 1))
    logarithm = tf.math.log(gamma) + tf.math.log(u) / concentration
    return tf.sigmoid(logarithm[0] - logarithm[1])


def _luma(image: Tensor) -> Tensor:
    """Equals `tf.image.rgb_to_grayscale` for 2^24 colors: [H, W, 3] -> uint8 [H, W]."""
    red, green, blue = (
        tf.cast(channel, tf.float32) * (1.0 / 255.0)
        for channel in tf.unstack(image, num=3, axis=-1)
    )
    return tf.cast((red * 0.2989 + green * 0.5870 + blue * 0.1140) * 255.5, tf.uint8)


def _blend(degenerate: Tensor, image: Tensor, factor: float) -> Tensor:
    """Blends as PIL's enhancement: `degenerate` at 0, `image` at 1; extrapolates."""
    return _to_uint8(degenerate + factor * (tf.cast(image, tf.float32) - degenerate))


def _to_uint8(values: Tensor) -> Tensor:
    """Clips and truncates, as big_vision."""
    return tf.cast(tf.clip_by_value(values, 0.0, 255.0), tf.uint8)


def _rows(image: Tensor) -> Tensor:
    """Reshapes [H, W, 3] -> [H, W * 3], where TensorFlow broadcasts 5 times as fast."""
    return tf.reshape(image, [tf.shape(image)[0], tf.shape(image)[1] * 3])


def _transform(image: Tensor, matrix: list[Tensor]) -> Tensor:
    """Takes the pixel nearest to matrix @ (x, y, 1); gray if outside the image."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.cast(tf.stack([[*matrix, 0.0, 0.0]]), tf.float32),
        output_shape=tf.shape(image)[:2],
        fill_value=float(GRAY),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def _shift(image: Tensor, pixels: Tensor, axis: int) -> Tensor:
    """Takes the pixel at x + pixels along an axis; gray if outside the image.

    Equals `_transform` for integer shifts, in a thirtieth of the time.
    """
    side = tf.shape(image)[axis]
    pixels = tf.clip_by_value(tf.cast(tf.round(pixels), tf.int32), -side, side)
    before, after = tf.maximum(-pixels, 0), tf.maximum(pixels, 0)
    kept = [slice(None)] * axis + [slice(after, side - before)]
    paddings = [[0, 0]] * axis + [[before, after]] + [[0, 0]] * (2 - axis)
    return tf.pad(image[tuple(kept)], paddings, constant_values=GRAY)


def _paste(image: Tensor, patch: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Pastes `patch` [..., h, w, C] into `image` [..., H, W, C] at (top, left)."""
    bottom, right = top + tf.shape(patch)[-3], left + tf.shape(patch)[-2]
    band = image[..., top:bottom, :, :]
    band = tf.concat([band[..., :left, :], patch, band[..., right:, :]], axis=-2)
    return tf.concat([image[..., :top, :, :], band, image[..., bottom:, :, :]], axis=-3)


def _checked_image(image: Tensor) -> Tensor:
    image = tf.convert_to_tensor(image)
    if image.dtype != tf.uint8 or image.shape.rank != 3 or image.shape[-1] != 3:
        raise ValueError(
            f"Expected a uint8 image [H, W, 3]. Received: {image.dtype.name} "
            f"{image.shape}. Augment before resizing to floats and normalization"
        )
    return image


def _checked_batch(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    images, labels = tf.convert_to_tensor(images), tf.convert_to_tensor(labels)
    if images.shape.rank != 4:
        raise ValueError(
            f"Expected images [B, H, W, C]. Received: {images.shape}. Mix after batch"
        )
    if not labels.dtype.is_floating or labels.shape.rank != 2:
        raise ValueError(
            f"Expected one-hot float labels [B, K]. Received: {labels.dtype.name} "
            f"{labels.shape}. Create them with tf.one_hot(labels, K)"
        )
    return images, labels
