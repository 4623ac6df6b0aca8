"""Labeled images that can be read in order, shuffled by an epoch's key, and divided.

`Source.train` and `Source.test` are splits.

A split yields single examples, {"image": ..., "label": ...}. The image is encoded bytes
or uint8 [H, W, C]. A place is an example's position in a pass. A handle identifies the
example for reading: an index in an indexable split, the undecoded example in a stream.
"""

import abc
import dataclasses
import functools
import hashlib
import json
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import tensorflow as tf

from keras_vit.data import permutation, preprocessing
from keras_vit.data.decoding import as_written

__all__ = ["TFDS", "Arrays", "Indexed", "Labelling", "Split"]

CACHE_BYTES = 512 * 2**20  # Smaller splits of files are read once and kept, encoded.

CHUNK = 1024  # Places that one call of a dataset's map computes.

# Name, size, and SHA-256 or modification time of a file.
Content: TypeAlias = tuple[str, int, str | int]
Keep: TypeAlias = Callable[[Any], Any]  # Places int64 [...] -> bool of that shape.


class Split(abc.ABC):
    """Labeled images that can be read in order, shuffled, and divided.

    Table 4 uses held-out shares.

    Attributes:
        order: version of the order of `endless`, part of a run's identity. None for
            streams, whose order has not changed since keras_vit 0.1.
    """

    order: str | None = None

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    @abc.abstractmethod
    def places(self, keep: Keep | None = None) -> tf.data.Dataset:
        """Returns one pass in the stored order: (place int64, handle).

        Args:
            keep: function that selects places, int64 [...] -> bool [...]; None selects
                all. An indexable split does not read the others; a stream does not
                decode them.

        Returns:
            A `tf.data.Dataset` of single examples.
        """

    @abc.abstractmethod
    def endless(
        self, seed: int, batch_size: int, start_step: int, own: tuple[int, int]
    ) -> tf.data.Dataset:
        """Returns endless shuffled passes: (int64 [2], place int64, handle).

        The first component holds the seed and the epoch.

        Args:
            seed: random seed; with the epoch it determines the order.
            batch_size: global batch size B.
            start_step: step of the first batch, from 0.
            own: (first, last). Only the examples from `first` up to `last` of each
                batch are yielded; the others are skipped as in `places`.

        Returns:
            A `tf.data.Dataset` of single examples.
        """

    def fetch(self, handles: tf.data.Dataset) -> tf.data.Dataset:
        """Reads handles, if possible in groups: (..., handle) -> (..., `item`'s input).

        Args:
            handles: dataset with the handle as its last element, as in `places`.
        """
        return handles

    @abc.abstractmethod
    def item(self, handle: Any) -> dict[str, Any]:
        """Returns the example of a handle, in a dataset's map.

        Args:
            handle: an element of `places` after `fetch`.

        Returns:
            "image", a scalar string or uint8 [H, W, C], and "label", a scalar int64.
        """

    @abc.abstractmethod
    def split(self, share: float, seed: int) -> tuple["Split", "Split"]:
        """Divides the images into a training part and a held-out part (Table 4).

        Args:
            share: share of the images that is held out, in (0, 1).
            seed: seed of the draw.

        Returns:
            The rest, and the held-out share.

        Raises:
            ValueError: if a part would be empty, or the split cannot be divided.
        """

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a hash of the images and their order.

        For folders larger than `CACHE_BYTES`, 512 MiB, it covers names, sizes and
        modification times; for smaller ones names and contents. The location of the
        folder does not matter.

        Returns:
            SHA-256, 64 hexadecimal digits.
        """

    def fingerprint_as_read(self) -> str:
        """Returns a hash of the images that a pass yields, for stored features.

        Returns:
            SHA-256, 64 hexadecimal digits. It differs from `fingerprint` if files have
            changed since they were read into memory, if the split crops its images, and
            for TFDS data sets.
        """
        return self.fingerprint()

    def dataset(self) -> tf.data.Dataset:
        """Builds one pass over the examples.

        Returns:
            A `tf.data.Dataset` of the results of `item`.
        """
        handles = self.fetch(self.places())
        return handles.map(
            lambda _, handle: self.item(handle), num_parallel_calls=tf.data.AUTOTUNE
        )


class Indexed(Split):
    """A split whose examples can be read by index.

    Its handles are the indices.

    Args:
        labels: labels, int [N].
    """

    order = permutation.VERSION

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = np.asarray(labels, np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def places(self, keep: Keep | None = None) -> tf.data.Dataset:
        size = len(self)

        @as_written
        def chunk(begin: Any) -> tuple[Any, Any]:
            places = tf.range(begin, tf.minimum(begin + CHUNK, size))
            if keep is not None:
                places = tf.boolean_mask(places, keep(places))
            return places, places

        places = tf.data.Dataset.range(0, size, CHUNK).map(chunk).unbatch()
        if keep is None:  # `unbatch` loses the length; Keras would warn at the end.
            places = places.apply(tf.data.experimental.assert_cardinality(size))
        return places

    def endless(
        self, seed: int, batch_size: int, start_step: int, own: tuple[int, int]
    ) -> tf.data.Dataset:
        size, (first, last) = len(self), own
        steps = -(-CHUNK // (last - first))

        @as_written
        def chunk(begin: Any) -> tuple[Any, Any, Any]:
            batches = tf.range(begin, begin + steps)[:, tf.newaxis] * batch_size
            whole = tf.reshape(batches + tf.range(first, last, dtype=tf.int64), [-1])
            epochs, places = whole // size, whole % size
            keys = permutation.epoch_key(seed, epochs)
            seeds = tf.stack([tf.fill(tf.shape(epochs), of_seed), epochs], axis=1)
            return seeds, places, permutation.permute(places, size, keys)

        of_seed = tf.constant(seed, tf.int64)
        return tf.data.Dataset.counter(start_step, steps).map(chunk).unbatch()

    @abc.abstractmethod
    def take(self, indices: np.ndarray) -> Self:
        """Selects the examples at `indices`.

        Args:
            indices: indices of the examples, int [M].

        Returns:
            A split of the same kind, with M images in that order.
        """

    def split(self, share: float, seed: int) -> tuple[Self, Self]:
        rest, held_out = stratified(self.labels, share, seed)
        return self.take(rest), self.take(held_out)


class Arrays(Indexed):
    """A split of arrays in memory or of image files.

    Args:
        images: uint8 [N, H, W, C], N file names, or N images as encoded bytes.
        labels: int [N].

    Raises:
        ValueError: if the numbers of images and labels differ, or the images have no
            pixels.
    """

    def __init__(
        self,
        images: np.ndarray | Sequence[str] | Sequence[bytes],
        labels: np.ndarray,
    ) -> None:
        super().__init__(labels)
        encoded = any(isinstance(image, bytes) for image in images[:1])
        # A NumPy string dtype would drop trailing zero bytes.
        self.images = np.asarray(images, object if encoded else None)
        if self.labels.shape != (len(self.images),):
            raise ValueError(
                "Expected one label for each image, [N]. Received: "
                f"{len(self.images)} images and labels {list(self.labels.shape)}"
            )
        if len(self.images) and not self.images.size:
            raise ValueError(
                "Expected images with pixels, [N, H, W, C]. Received: images "
                f"{list(self.images.shape)}"
            )

    @as_written
    def item(self, handle: Any) -> dict[str, Any]:
        images, labels, is_file = self._tensors
        image = tf.gather(images, handle)
        return {
            "image": tf.io.read_file(image) if is_file else image,
            "label": tf.gather(labels, handle),
        }

    @functools.cached_property
    def _tensors(self) -> tuple[Any, Any, bool]:
        """Returns images (or files' bytes or names), labels, and if these are names."""
        images, is_file = self.images, self.images.dtype.kind == "U"
        if is_file and self._is_small():
            with futures.ThreadPoolExecutor() as pool:
                contents = list(pool.map(lambda name: Path(name).read_bytes(), images))
            images, is_file = np.array(contents, object), False
        return constant(images), constant(self.labels), is_file

    def _is_small(self) -> bool:
        return sum(map(os.path.getsize, self.images)) <= CACHE_BYTES

    def take(self, indices: np.ndarray) -> Self:
        return type(self)(self.images[indices], self.labels[indices])

    def __str__(self) -> str:
        if self.images.dtype.kind == "U" and len(self):
            return self._root()
        return f"{len(self)} images in memory"

    def _root(self) -> str:
        """Returns the folder that contains all files."""
        return os.path.commonpath(
            [Path(name).absolute().parent for name in self.images]
        )

    def fingerprint(self) -> str:
        return self._fingerprint(self._on_disk)

    def fingerprint_as_read(self) -> str:
        return self._fingerprint(self._as_read)

    def _fingerprint(self, contents: Callable[[], Iterator[Content]]) -> str:
        digest = hashlib.sha256(self.labels.tobytes())
        if self.images.dtype.kind == "O":
            for image in self.images:
                digest.update(hashlib.sha256(image).digest())
            return digest.hexdigest()
        if self.images.dtype.kind != "U":
            digest.update(f"{self.images.dtype} {self.images.shape}".encode())
            digest.update(np.ascontiguousarray(self.images).data)
            return digest.hexdigest()
        root = self._root()
        for name, size, what in contents():
            relative = Path(name).absolute().relative_to(root).as_posix()
            digest.update(f"{relative}\0{size}\0{what}\n".encode())
        return digest.hexdigest()

    def _as_read(self) -> Iterator[Content]:
        """Yields the files in memory, or those on disk if none were read."""
        images, _, is_file = self.__dict__.get("_tensors", (None, None, True))
        if is_file:
            yield from self._on_disk()
            return
        for name, content in zip(self.images, images.numpy(), strict=True):
            yield name, len(content), hashlib.sha256(content).hexdigest()

    def _on_disk(self) -> Iterator[Content]:
        small = self._is_small()
        for name in self.images:
            if small:
                content = Path(name).read_bytes()
                yield name, len(content), hashlib.sha256(content).hexdigest()
            else:
                stat = os.stat(name)
                yield name, stat.st_size, stat.st_mtime_ns


def _kept(stream: tf.data.Dataset, keep: Keep | None) -> tf.data.Dataset:
    """Numbers a stream's examples and drops those that `keep` rejects."""
    numbered = stream.enumerate()
    if keep is None:
        return numbered
    return numbered.filter(as_written(lambda place, _: keep(place)))


def constant(value: np.ndarray) -> Any:
    """Returns a tensor in host memory for use in functions of any dataset.

    Constants in a graph may not exceed 2 GB.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.constant(value)


def stratified(
    labels: np.ndarray, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns indices of the rest and of a share of every class, both ascending.

    Every class of at least two images is in both parts.

    Raises:
        ValueError: if one part would be empty.
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
            "Expected a class of at least two images to hold out a share. Received: "
            f"{len(labels)} images of {len(np.unique(labels))} classes"
        )
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelling:
    """Conversion of a record of a TFDS data set to a labeled image.

    Attributes:
        name: name of the task, because a data set can have several.
        classes: K.
        features: features that `label` reads, in addition to "image".
        label: function from a decoded record to its label, from 0 to K - 1.
        scale: factor from stored pixels to 0..255.
    """

    name: str
    classes: int
    features: tuple[str, ...]
    label: Callable[[dict[str, Any]], Any]
    scale: int = 1


class TFDS(Split):
    """A streamed split of a TensorFlow Datasets builder; images stay encoded.

    To start in the middle, it reads the earlier records without decoding them. To read
    by index instead, convert the data set with `keras-vit data pack`.

    Args:
        builder: result of `tfds.builder`, with its files prepared.
        spec: split in TFDS's syntax, e.g. "train[:98%]".
        labelling: conversion of records; None for the feature "label", a ClassLabel.
    """

    def __init__(
        self, builder: Any, spec: str, labelling: Labelling | None = None
    ) -> None:
        self.builder = builder
        self.spec = spec
        self.labelling = labelling

    def __str__(self) -> str:
        return f"{self.builder.info.full_name}:{self.spec}"

    def __len__(self) -> int:
        return int(self.builder.info.splits[self.spec].num_examples)

    def places(self, keep: Keep | None = None) -> tf.data.Dataset:
        return _kept(self._stream(), keep)

    def endless(
        self, seed: int, batch_size: int, start_step: int, own: tuple[int, int]
    ) -> tf.data.Dataset:
        size, (first, last) = len(self), own

        @as_written
        def epoch_of(epoch: Any) -> tf.data.Dataset:
            seeds = tf.stack([tf.constant(seed, tf.int64), epoch])

            def keep(place: Any) -> Any:
                whole = epoch * size + place
                in_batch = whole % batch_size
                started = whole >= start_step * batch_size
                return started & (in_batch >= first) & (in_batch < last)

            places = _kept(self._shuffled(seeds), keep)
            return places.map(as_written(lambda place, handle: (seeds, place, handle)))

        epochs = tf.data.Dataset.counter(start_step * batch_size // size)
        return epochs.flat_map(epoch_of)

    def _shuffled(self, seeds: Any) -> tf.data.Dataset:
        """Returns one pass in the order of (seed, epoch), int64 [2]."""
        size = min(len(self), 50_000)  # vit_jax/configs/common.py: shuffle_buffer.
        if not tf.executing_eagerly():
            # Sets the graph's seed instead of the global one; tf.data fails on 0.
            tf.random.set_seed(1)
        seed = tf.random.experimental.stateless_fold_in(seeds, 0)[0]
        seed = tf.cast(seed, tf.int64)
        return self._stream().shuffle(size, seed=seed, reshuffle_each_iteration=False)

    def _stream(self) -> tf.data.Dataset:
        import tensorflow_datasets as tfds

        encoded = {  # Also for other images, such as Pets' masks, which are not used.
            name: tfds.decode.SkipDecoding()
            for name, feature in self.builder.info.features.items()
            if isinstance(feature, tfds.features.Image)
        }
        stream = self.builder.as_dataset(
            split=self.spec,
            decoders=encoded or None,
            shuffle_files=False,
            read_config=tfds.ReadConfig(try_autocache=False),
        )
        names = ("image", *self._labelling.features)
        return stream.map(as_written(lambda item: {name: item[name] for name in names}))

    @property
    def _labelling(self) -> Labelling:
        if self.labelling is not None:
            return self.labelling
        return Labelling(
            name="label",
            classes=self.builder.info.features["label"].num_classes,
            features=("label",),
            label=operator.itemgetter("label"),
        )

    @as_written
    def item(self, handle: Any) -> dict[str, Any]:
        labelling, image = self._labelling, handle["image"]
        if labelling.scale != 1:
            image = preprocessing.decode(image) * labelling.scale
        label = tf.cast(labelling.label(handle), tf.int64)
        inside = tf.debugging.Assert(
            (label >= 0) & (label < labelling.classes),
            [
                f"Expected labels from 0 to {labelling.classes - 1}. Received: a label "
                f"of {self.builder.name}:{self.spec} that is",
                label,
            ],
        )
        with tf.control_dependencies([] if inside is None else [inside]):
            return {"image": image, "label": tf.identity(label)}

    def split(self, share: float, seed: int) -> tuple["TFDS", "TFDS"]:
        """Holds out the last share, as in the official "train[:98%]".

        Args:
            share: share of the images that is held out, in (0, 1); at least one image.
            seed: unused, because nothing is drawn.

        Returns:
            The rest, and the held-out share.

        Raises:
            ValueError: if the split is itself a slice or a sum of splits.
        """
        base, _, rest = self.spec.partition("[")
        if rest or "+" in base:
            raise ValueError(
                "Expected a whole TFDS split to hold out a share. Received: "
                f"split={self.spec!r}. Set one learning rate to train without a sweep"
            )
        kept = len(self) - max(1, round(share * len(self)))
        return (
            TFDS(self.builder, f"{base}[:{kept}]", self.labelling),
            TFDS(self.builder, f"{base}[{kept}:]", self.labelling),
        )

    def fingerprint(self) -> str:
        info = self.builder.info
        facts = [info.full_name, self.spec, len(self)]
        if self.labelling is not None:
            facts.append(self.labelling.name)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def fingerprint_as_read(self) -> str:
        """Covers the files' names, sizes and modification times, too.

        A data set that was built again may have the same name, version and counts.

        Raises:
            OSError: if a file is missing.
        """
        facts: list[Any] = [self.fingerprint()]
        for part in self.builder.info.splits[self.spec].file_instructions:
            try:
                stat = tf.io.gfile.stat(part.filename)  # Also of remote files.
            except tf.errors.OpError as error:
                raise OSError(f"{part.filename}: {error.message}") from error
            name = os.path.basename(part.filename)
            rows = [part.skip, part.take, part.examples_in_shard]
            facts.append([name, stat.length, stat.mtime_nsec, *rows])
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
