"""Photographs for measurements: crops of scikit-learn's two, without a download."""

from pathlib import Path

import numpy as np

CLASSES = 12
TRAIN, TEST = 60, 20  # Per class.


def crops(folder: Path, size: int = 224) -> Path:
    """Writes random crops of `china.jpg` and `flower.jpg` as JPEG files.

    The files are `train/CLASS/NUMBER.jpg` and `test/CLASS/NUMBER.jpg`, 60 and 20 for
    each of 12 classes. The classes have no meaning; every call writes the same bytes.

    Args:
        folder: folder to create.
        size: height and width of a crop, in pixels.

    Returns:
        `folder`.

    Raises:
        ImportError: without scikit-learn or pillow, both in the extra `demo`.
    """
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    rng = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("test", TEST)):
        for label in range(CLASSES):
            home = folder / split / f"class-{label:02}"
            home.mkdir(parents=True)
            for number in range(count):
                photo = photos[number % len(photos)]
                side = int(rng.integers(size // 2, min(photo.size)))
                x, y = (int(rng.integers(at - side + 1)) for at in photo.size)
                crop = photo.resize((size, size), box=(x, y, x + side, y + side))
                crop.save(home / f"{number:02}.jpg", quality=75)
    return folder
