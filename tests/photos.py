"""Five real photographs that two packages bring, so that nothing is downloaded.

scikit-image: `chelsea` and `coffee` (CC0), `astronaut` (NASA, public domain).
scikit-learn: `china.jpg` and `flower.jpg` (CC BY 2.0, danielbuechele and vultilion).
"""

import functools
import importlib.resources

import numpy as np
import pytest

FILES = {
    "chelsea": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "astronaut": ("skimage", "data/astronaut.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
}
MISSING = "LOUD: no photographs: pip install scikit-image scikit-learn"


def read(name):
    """The bytes of a photograph's file, a PNG or a JPEG; skips without its package."""
    package, file = FILES[name]
    pytest.importorskip(package, reason=MISSING)
    return importlib.resources.files(package).joinpath(*file.split("/")).read_bytes()


@functools.cache
def pixels(name):
    """A photograph, uint8 [H, W, 3]."""
    import tensorflow as tf

    return tf.io.decode_image(read(name), expand_animations=False).numpy()


def jpeg(name):
    """A photograph as the bytes of a JPEG."""
    import tensorflow as tf

    file = read(name)
    return file if file.startswith(b"\xff\xd8") else tf.io.encode_jpeg(pixels(name))


def tiles(size, reduce=1):
    """All photographs cut into squares, in a fixed random order.

    Args:
        size: of a square in pixels, after the photographs are reduced.
        reduce: a pixel is the mean of `reduce` x `reduce` pixels.

    Returns:
        uint8 [N, size, size, 3]; N is 1118 of 32 pixels, 266 of them reduced by 2.
    """
    found, side = [], size * reduce
    for name in FILES:
        image = pixels(name)
        rows, columns = (length // side for length in image.shape[:2])
        image = image[: rows * side, : columns * side]
        cut = image.reshape(rows, size, reduce, columns, size, reduce, 3)
        cut = cut.mean((2, 5)).swapaxes(1, 2).reshape(-1, size, size, 3)
        found.append(cut.astype(np.uint8))
    return np.random.default_rng(0).permutation(np.concatenate(found))
