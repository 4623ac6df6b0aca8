"""Packed images: TFRecord shards with an index for random access.

A packed folder contains

- `train-00000-of-00004.tfrecord` and so on: `tf.train.Example`s with "image" (encoded
  bytes) and "label" (int64), which any TFRecord reader can read;
- `train.npy`: for every record, in order, the shard, the offset, length and CRC-32 of
  its image, and its label (`RECORD`);
- `index.json`, written last: classes, the source's fingerprint, and the size and
  SHA-256 of every file above.

With the index, an epoch is shuffled over all images instead of over a buffer, and a run
starts at any step without reading earlier images. Images are read in place by
`os.pread`, `GROUP` at a time in one Python call, and checked by their CRC-32
(benchmarks/data.py measures this). Small sets are read once and kept in memory. The
index stays on disk and is memory-mapped.
"""

import functools
import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import tensorflow as tf

from keras_vit.arguments import counted
from keras_vit.callers import warn
from keras_vit.data import splits
from keras_vit.data.decoding import as_written
from keras_vit.data.progress import in_threads
from keras_vit.data.splits import Indexed
from keras_vit.files import file_sha256, parse_json

INDEX = "index.json"
FORMAT = "keras_vit packed images, version 1"
GROUP = 32  # Records per call; a call then costs less than a tenth of the decoding.
LOOK = 2**16  # Records to sum first; usually enough to exceed `CACHE_BYTES`.
RECORD = np.dtype(
    [
        ("shard", "<i4"),
        ("length", "<u4"),  # Length of the encoded image, in bytes.
        ("offset", "<i8"),  # Offset of its first byte in the shard.
        ("crc32", "<u4"),
        ("label", "<i4"),
    ]
)


class Packed(Indexed):
    """A split of a packed folder.

    Args:
        shards: files of the shards, in order.
        records: `RECORD` [N].
        digest: SHA-256 of the whole split's index and shards.
    """

    def __init__(self, shards: list[Path], records: np.ndarray, digest: str) -> None:
        self.shards = shards
        self.records = records
        self.digest = digest
        self.labels = records["label"]  # int32, without a copy of the mapped index.

    def __str__(self) -> str:
        return str(self.shards[0].parent)

    def fetch(self, handles: tf.data.Dataset) -> tf.data.Dataset:
        if self._is_small():
            return handles

        @as_written
        def read(*parts: Any) -> tuple[Any, ...]:
            *rest, indices = parts
            dtypes = (tf.string, tf.int64)
            found = tf.numpy_function(self.examples, [indices], dtypes)
            return *rest, tuple(tf.ensure_shape(part, (None,)) for part in found)

        return (
            handles.batch(GROUP)
            .map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .unbatch()
        )

    @as_written
    def item(self, handle: Any) -> dict[str, Any]:
        if self._is_small():
            image, label = (tf.gather(part, handle) for part in self._contents)
        else:
            image, label = handle
        return {"image": image, "label": label}

    def images(self, indices: np.ndarray) -> np.ndarray:
        """Reads the encoded images at `indices`, [n] of bytes.

        Raises:
            ValueError: if a shard is missing or damaged, with its name.
        """
        found = []
        for record in self.records[indices]:
            image = _pread(self.shards[record["shard"]], record)
            if image is None:
                raise ValueError(
                    "Expected the images as packed. Received: "
                    f"{str(self.shards[record['shard']])!r}, missing or damaged at "
                    f"byte {record['offset']}. Pack it again, or skip damaged images "
                    "with --on-corrupt skip (on_corrupt='skip')"
                )
            found.append(image)
        return np.array(found, object)

    def examples(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns `images` and the labels, int64 [n], at `indices`."""
        labels: np.ndarray = self.labels[indices].astype(np.int64)
        return self.images(indices), labels

    def readable(self) -> np.ndarray:
        """Checks every record against the index: bool [N]."""

        def check(record: np.void) -> bool:
            return _pread(self.shards[record["shard"]], record) is not None

        checked = in_threads(check, self.records, "checking shards")
        return np.fromiter(checked, bool, len(self))

    def take(self, indices: np.ndarray) -> Self:
        return type(self)(self.shards, self.records[indices], self.digest)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.digest.encode())
        digest.update(np.ascontiguousarray(self.records).view(np.uint8).data)
        return digest.hexdigest()

    def _is_small(self) -> bool:
        lengths = self.records["length"]
        parts = lengths[:LOOK], lengths  # The second sum only if the first is small.
        return all(int(at.sum(dtype=np.int64)) <= splits.CACHE_BYTES for at in parts)

    @functools.cached_property
    def _contents(self) -> tuple[Any, Any]:
        images, labels = self.examples(np.arange(len(self)))
        return splits.constant(images), splits.constant(labels)


def _pread(shard: Path, record: np.void) -> bytes | None:
    """Reads a record's image; None if it is missing or was changed."""
    try:
        file = os.open(shard, os.O_RDONLY)
    except OSError:
        return None
    try:
        image = os.pread(file, int(record["length"]), int(record["offset"]))
    except OSError:
        return None
    finally:
        os.close(file)
    return image if zlib.crc32(image) == record["crc32"] else None


def is_packed(folder: Path) -> bool:
    """Returns whether `keras-vit data pack` wrote this folder."""
    return (folder / INDEX).is_file()


def open_packed(
    folder: Path, on_corrupt: Literal["stop", "skip"]
) -> tuple[tuple[str, ...], dict[str, Packed], int]:
    """Returns classes, splits and the number of skipped images of a packed folder.

    Args:
        folder: folder written by `keras-vit data pack`.
        on_corrupt: "stop" checks the size of every shard now, and images when they are
            read; "skip" checks every image now and skips the damaged ones, with a
            warning that counts them.

    Raises:
        ValueError: if files are missing or damaged, with their names.
    """
    index = _read_index(folder)
    found, left_out = {}, 0
    for name, facts in index["splits"].items():
        split = _open_split(folder, facts)
        bad = [s for s in facts["shards"] if _size(folder / s["file"]) != s["bytes"]]
        if bad and on_corrupt == "stop":
            listed = ", ".join(shard["file"] for shard in bad[:10])
            raise ValueError(
                f"Expected the shards of {str(folder / INDEX)!r}. Received: {len(bad)} "
                f"of {len(facts['shards'])} missing, truncated or changed: {listed}. "
                "Pack it again, or skip damaged images with --on-corrupt skip "
                "(on_corrupt='skip')"
            )
        found[name] = _intact(split) if on_corrupt == "skip" else split
        left_out += len(split) - len(found[name])
    return tuple(index["classes"]), found, left_out


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = parse_json(path.read_text(encoding="utf-8"))
        known = isinstance(index, dict) and index.get("format") == FORMAT
    except ValueError:
        known = False
    if not known:
        raise ValueError(
            f"Expected the index of a packed folder ({FORMAT!r}). Received: "
            f"{str(path)!r}, damaged or of a different version. Pack it again"
        )
    return dict(index)


def _open_split(folder: Path, facts: dict[str, Any]) -> Packed:
    path = folder / facts["records"]
    if not path.is_file() or file_sha256(path) != facts["sha256"]:
        raise ValueError(
            f"Expected the records listed in {str(folder / INDEX)!r}. Received: "
            f"{str(path)!r}, missing or damaged. Pack it again"
        )
    records = np.load(path, mmap_mode="r", allow_pickle=False)
    shards = [folder / shard["file"] for shard in facts["shards"]]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    return Packed(shards, records, digest.hexdigest())


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _intact(split: Packed) -> Packed:
    """Returns the readable records; warns of the others."""
    readable = split.readable()
    if readable.all():
        return split
    numbers, counts = np.unique(split.records["shard"][~readable], return_counts=True)
    listed = ", ".join(
        f"{count} of {split.shards[number]}"
        for number, count in zip(numbers[:10], counts[:10], strict=True)
    )
    warn(
        f"left out {counted(int((~readable).sum()), 'damaged image')}: {listed}",
    )
    if not readable.any():
        raise ValueError(
            "Expected a shard with images as packed. Received: none in "
            f"{str(split.shards[0].parent)!r}. Pack it again"
        )
    return split.take(np.flatnonzero(readable))
