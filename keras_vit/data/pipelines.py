"""From a split to batches, every random choice a function of (seed, epoch, index)."""

from typing import Any, Literal

import tensorflow as tf

from keras_vit.data import preprocessing
from keras_vit.data.preprocessing import HALF, Channels, Size
from keras_vit.data.sources import Split

CACHE_BYTES = 512 * 2**20  # Splits up to this size are read once and kept.


def train_pipeline(
    split: Split,
    *,
    image_size: Size,
    batch_size: int,
    seed: int,
    mean: Channels = HALF,
    std: Channels = HALF,
    augment: Literal["inception", "flip", "none"] = "inception",
) -> tf.data.Dataset:
    """Endless shuffled batches: (images float32 [B, H, W, C], labels int64 [B]).

    An epoch's order is a function of (seed, epoch), an example's crop and flip of
    (seed, epoch, its place in it): two pipelines of one seed are equal to the bit.

    Args:
        split: what to read.
        image_size: (H, W) in pixels.
        batch_size: B; a batch may reach into the next epoch.
        seed: of order and augmentation.
        mean: of `preprocessing.normalize`.
        std: likewise.
        augment: "inception", the official random crop and flip; "flip"; or "none".
    """

    def example(epoch: Any, place: Any, item: dict[str, Any]) -> tuple[Any, Any]:
        # One stream of seeds for crops, one for flips.
        crop = tf.stack([tf.cast(seed, tf.int64) + (epoch << 32), 2 * place])
        image = item["image"]
        if augment == "inception":
            image = preprocessing.inception_crop(image, image_size, crop)
        else:
            image = preprocessing.resize(_decoded(image), image_size)
        if augment != "none":
            image = preprocessing.random_flip(image, crop + [0, 1])
        return preprocessing.normalize(image, mean, std), item["label"]

    examples = tf.data.Dataset.counter().flat_map(
        lambda epoch: _epoch(split, seed, epoch)
    )
    return (
        examples.map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
