"""From a split to batches, every random choice a function of (seed, epoch, index)."""

from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from keras_vit.data import preprocessing
from keras_vit.data.preprocessing import HALF, Channels, Size
from keras_vit.data.splits import Split


def train_pipeline(
    split: Split,
    *,
    image_size: Size,
    batch_size: int,
    seed: int,
    mean: Channels = HALF,
    std: Channels = HALF,
    channels: int = 3,
    augment: Literal["inception", "flip", "none"] = "inception",
) -> tf.data.Dataset:
    """Endless shuffled batches: (images float32 [B, H, W, C], labels int64 [B]).

    An epoch's order is a function of (seed, epoch), an example's crop and flip of
    (seed, epoch, its place): two pipelines of one seed are equal to the bit.

    Args:
        split: what to read.
        image_size: (H, W) in pixels.
        batch_size: B; a batch may reach into the next epoch.
        seed: of order and augmentation.
        mean: of `preprocessing.normalize`.
        std: likewise.
        channels: C; gray images are repeated, see `preprocessing.to_channels`.
        augment: "inception", the official random crop and flip; "flip"; or "none".
    """
    if augment not in ("inception", "flip", "none"):
        raise ValueError(
            "Expected augment 'inception', 'flip' or 'none'. Received: "
            f"augment={augment!r}"
        )

    def example(key: Any, item: dict[str, Any]) -> tuple[Any, Any]:
        image = item["image"]
        if augment == "inception":
            crop = tf.random.experimental.stateless_fold_in(key, 0)
            image = preprocessing.inception_crop(image, image_size, crop)
        else:
            image = preprocessing.resize(_decoded(image), image_size)
        if augment != "none":
            flip = tf.random.experimental.stateless_fold_in(key, 1)
            image = preprocessing.random_flip(image, flip)
        image = preprocessing.to_channels(image, channels)
        return preprocessing.normalize(image, mean, std), item["label"]

    return endless(split, example, batch_size=batch_size, seed=seed)


def endless(
    split: Split,
    example: Callable[[Any, dict[str, Any]], tuple[Any, Any]],
    *,
    batch_size: int,
    seed: int,
) -> tf.data.Dataset:
    """Endless shuffled batches of `example(key, item)`.

    `key` is an int64 [2] that is a function of (seed, epoch, place): whatever `example`
    draws from it repeats.
    """
    if not len(split):
        raise ValueError(
            "Expected images to train on. Received: a split of none. Check the source"
        )

    @tf.autograph.experimental.do_not_convert  # AutoGraph warns of TFDS's decorators.
    def epoch_of(epoch: Any) -> tf.data.Dataset:
        seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
        places = split.dataset(seeds).enumerate()
        return places.map(lambda place, item: (seeds, place, item))

    def keyed(seeds: Any, place: Any, item: dict[str, Any]) -> tuple[Any, Any]:
        return example(tf.random.experimental.stateless_fold_in(seeds, place), item)

    return (
        tf.data.Dataset.counter()
        .flat_map(epoch_of)
        .map(keyed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def eval_pipeline(
    split: Split,
    *,
    image_size: Size,
    batch_size: int,
    mean: Channels = HALF,
    std: Channels = HALF,
    channels: int = 3,
) -> tf.data.Dataset:
    """Every image once, in order: (images float32 [B, H, W, C], labels int64 [B]).

    The last batch holds what is left; the official code drops it.
    """

    def example(item: dict[str, Any]) -> tuple[Any, Any]:
        image = _decoded(item["image"])
        image = preprocessing.prepare(image, image_size, mean, std, channels)
        return image, item["label"]

    return (
        split.dataset()
        .map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def _decoded(image: Any) -> Any:
    return preprocessing.decode(image) if image.dtype == tf.string else image
