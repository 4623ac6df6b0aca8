"""Labelled images that can be read in order, shuffled by an epoch's key, and divided.

A split yields single examples, {"image": ..., "label": ...}, the image as encoded bytes
or as uint8 [H, W, C].
"""

import abc
import functools
import os
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

CACHE_BYTES = 512 * 2**20  # Splits of smaller files are read once and kept, encoded.


class Split(abc.ABC):
    """Labelled images that can be read in order, shuffled, and divided."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many images."""

    @abc.abstractmethod
    def dataset(self, shuffle: Any = None) -> tf.data.Dataset:
        """One pass: {"image": scalar string or uint8 [H, W, C], "label": int64}.

        Args:
            shuffle: int64 [2], a seed and an epoch, of which the order is a function;
                None keeps the given order.
        """

    @abc.abstractmethod
    def split(self, share: float, seed: int) -> tuple["Split", "Split"]:
        """The rest, and a held-out share drawn by `seed`."""


class Arrays(Split):
    """A split in memory, or of image files: anything an index reads.

    Args:
        images: uint8 [N, H, W, C], or N file names.
        labels: int [N].
    """

    def __init__(self, images: np.ndarray | Sequence[str], labels: np.ndarray) -> None:
        self.images = np.asarray(images)
        self.labels = np.asarray(labels, np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def dataset(self, shuffle: Any = None) -> tf.data.Dataset:
        order = tf.range(len(self))
        if shuffle is not None:
            order = tf.random.experimental.stateless_shuffle(order, seed=shuffle)
        images, labels, is_file = self._tensors

        def read(index: Any) -> dict[str, Any]:
            image = tf.gather(images, index)
            return {
                "image": tf.io.read_file(image) if is_file else image,
                "label": tf.gather(labels, index),
            }

        return tf.data.Dataset.from_tensor_slices(order).map(
            read, num_parallel_calls=tf.data.AUTOTUNE
        )

    @functools.cached_property
    def _tensors(self) -> tuple[Any, Any, bool]:
        """Images (or files' bytes, or names), labels, and whether they are names."""
        images, is_file = self.images, self.images.dtype.kind == "U"
        if is_file and sum(map(os.path.getsize, images)) <= CACHE_BYTES:
            with futures.ThreadPoolExecutor() as pool:
                contents = list(pool.map(lambda name: Path(name).read_bytes(), images))
            images, is_file = np.array(contents, object), False
        # Made eagerly and in host memory: a dataset's functions then refer to them,
        # where constants of a graph may not exceed 2 GB.
        with tf.init_scope(), tf.device("CPU:0"):
            return tf.constant(images), tf.constant(self.labels), is_file

    def take(self, indices: np.ndarray) -> "Arrays":
        """The examples at `indices`."""
        return Arrays(self.images[indices], self.labels[indices])

    def split(self, share: float, seed: int) -> tuple["Arrays", "Arrays"]:
        rest, held_out = stratified(self.labels, share, seed)
        return self.take(rest), self.take(held_out)


def stratified(
    labels: np.ndarray, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rest and of a share of every class, each in ascending order.

    Every class of two images or more leaves one on each side.

    Raises:
        ValueError: if one side would be empty.
    """
    rng = np.random.default_rng(seed)
    held: list[int] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held += rng.permutation(members)[:count].tolist()
    chosen = np.zeros(len(labels), bool)
    chosen[held] = True
    if not 0 < chosen.sum() < len(labels):
        raise ValueError(
            "Expected a class of at least two images to hold a share of. Received: "
            f"{len(labels)} images of {len(np.unique(labels))} classes"
        )
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


class TFDS(Split):
    """A split of a TensorFlow Datasets builder, streamed; images stay encoded."""

    def __init__(self, builder: Any, spec: str) -> None:
        self.builder = builder
        self.spec = spec  # TFDS's own split arithmetic, e.g. "train[:98%]".

    def __len__(self) -> int:
        return int(self.builder.info.splits[self.spec].num_examples)

    def dataset(self, shuffle: Any = None) -> tf.data.Dataset:
        import tensorflow_datasets as tfds

        feature = self.builder.info.features["image"]
        decoders = (
            {"image": tfds.decode.SkipDecoding()}
            if isinstance(feature, tfds.features.Image)
            else None
        )
        dataset = self.builder.as_dataset(
            split=self.spec,
            decoders=decoders,
            shuffle_files=False,
            read_config=tfds.ReadConfig(try_autocache=False),
        )
        dataset = dataset.map(
            lambda example: {
                "image": example["image"],
                "label": tf.cast(example["label"], tf.int64),
            }
        )
        if shuffle is None:
            return dataset
        size = min(len(self), 50_000)  # vit_jax/configs/common.py: shuffle_buffer.
        if not tf.executing_eagerly():
            # The graph's own, else the global seed has a say; tf.data fails on 0.
            tf.random.set_seed(1)
        seed = tf.random.experimental.stateless_fold_in(shuffle, 0)[0]
        seed = tf.cast(seed, tf.int64)
        return dataset.shuffle(size, seed=seed, reshuffle_each_iteration=False)

    def split(self, share: float, seed: int) -> tuple["TFDS", "TFDS"]:
        """As the official "train[:98%]": the last share is held out; no seed."""
        base, _, rest = self.spec.partition("[")
        if rest or "+" in base:
            raise ValueError(
                "Expected a whole TFDS split to hold a share of. Received: "
                f"split={self.spec!r}; give one learning rate to train on it as it is"
            )
        kept = len(self) - max(1, round(share * len(self)))
        return (
            TFDS(self.builder, f"{base}[:{kept}]"),
            TFDS(self.builder, f"{base}[{kept}:]"),
        )
