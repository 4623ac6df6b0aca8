"""Writes packed folders: `keras-vit data pack`. The format is described in `packed`."""

import errno
import hashlib
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from keras_vit.data.packed import FORMAT, INDEX, RECORD
from keras_vit.data.source import Source
from keras_vit.data.splits import Split
from keras_vit.files import parse_json, replacing, write_json

__all__ = ["pack"]

PLAN = "plan.json"  # Source and options, in a folder that is being packed.
SHARD_IMAGES = 10_000  # ImageNet: 128 shards of about 1.1 GB.
HEADER, FOOTER = 12, 4  # Bytes around a TFRecord: length and its CRC, the data's CRC.


def pack(
    source: Source,
    output: str | os.PathLike[str],
    *,
    shards: int | None = None,
    split: Literal["all", "train"] = "all",
) -> Path:
    """Writes a source as a packed folder, atomically.

    The work is done in `output` + ".partial", which is renamed at the end. If packing
    is interrupted, the same call resumes from the last complete shard. `open_source`
    opens the folder.

    Args:
        source: source of encoded images: a folder or a TFDS data set.
        output: folder to create; it must not exist.
        shards: number of shards of the training images; the number for test images is
            proportional [default: one per `SHARD_IMAGES`, 10,000].
        split: "all", or "train" to leave out test images.

    Returns:
        `output`.

    Raises:
        ValueError: if `output` exists, or the source's images are not encoded, cannot
            be read, or change meanwhile; if `shards` is not from 1 to the number of
            training images; if the folder for partial work contains anything else.
        OSError: if the disk is full or not writable.
    """
    output = Path(output)
    partial = output.with_name(output.name + ".partial")
    chosen = {"train": source.train}
    if split == "all" and source.test is not None:
        chosen["test"] = source.test
    counts = {name: _shards(part, shards, source) for name, part in chosen.items()}
    plan = {"format": FORMAT, "source": source.fingerprint(), "shards": counts}
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(
            f"Expected a folder that does not exist. Received: {str(output)!r}. "
            "Choose a different name, or delete it"
        )
    try:
        _begin(partial, plan)
        facts = {
            name: _pack_split(part, partial, name, counts[name])
            for name, part in chosen.items()
        }
        if source.fingerprint() != plan["source"]:
            raise ValueError(
                "Expected a source that does not change while it is packed. Received: "
                f"{source.name!r}, which has changed. Pack it again"
            )
        index = {
            "format": FORMAT,
            "source": {"name": source.name, "fingerprint": plan["source"]},
            "classes": source.classes,
            "splits": facts,
        }
        write_json(partial / INDEX, index)
        partial.replace(output)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror or error}. The complete shards are kept in "
            f"{str(partial)!r}. To resume, run the same command again",
        ) from error
    (output / PLAN).unlink()  # Only now, because resuming requires it until the rename.
    return output


def _shards(split: Split, shards: int | None, source: Source) -> int:
    """Returns the number of shards of a split."""
    if shards is None:
        return -(-len(split) // SHARD_IMAGES)
    if not 0 < shards <= len(source.train):
        raise ValueError(
            f"Expected from 1 to {len(source.train)} shards, the number of training "
            f"images. Received: shards={shards}"
        )
    return -(-shards * len(split) // len(source.train))


def _begin(partial: Path, plan: dict[str, Any]) -> None:
    """Prepares `partial` for a plan: resumes the same plan, or empties the folder."""
    path = partial / PLAN
    if path.is_file() and _read_plan(path) != plan:
        shutil.rmtree(partial)  # Of a different source, or of one that has changed.
    partial.mkdir(parents=True, exist_ok=True)
    for left in partial.glob(".writing-*"):  # Left by a killed process.
        left.unlink()
    if not path.is_file():
        if any(partial.iterdir()):
            raise ValueError(
                "Expected a folder of an interrupted `keras-vit data pack`, or none. "
                f"Received: {str(partial)!r}, which contains other files. Move it"
            )
        write_json(path, plan)


def _read_plan(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            "Expected the plan of an interrupted `keras-vit data pack`. Received: "
            f"{str(path)!r}, which is damaged ({error}). Delete "
            f"{str(path.parent)!r} to pack from the start"
        ) from error


def _pack_split(split: Split, folder: Path, name: str, shards: int) -> dict[str, Any]:
    """Writes the missing shards of a split; returns its part of the index."""
    files = [f"{name}-{i:05}-of-{shards:05}.tfrecord" for i in range(shards)]
    bounds = [len(split) * i // shards for i in range(shards + 1)]
    whole = 0
    while whole < shards and (folder / files[whole]).is_file():
        whole += 1
    images = _images(split, bounds[whole])
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task(
            f"packing {name}", total=len(split), completed=bounds[whole]
        )
        for i in range(whole, shards):
            with replacing(folder / files[i]) as temporary:
                count = bounds[i + 1] - bounds[i]
                _write_shard(temporary, images, count, lambda: progress.advance(task))
        records, facts = [], []
        task = progress.add_task(f"indexing {name}", total=len(split))
        for i, file in enumerate(files):
            found, digest = _scan(folder / file, i)
            records.append(found)
            size = (folder / file).stat().st_size
            facts.append({"file": file, "bytes": size, "sha256": digest})
            progress.advance(task, len(found))
    with replacing(folder / f"{name}.npy") as temporary:
        np.save(temporary, np.concatenate(records))
    content = (folder / f"{name}.npy").read_bytes()
    return {
        "images": len(split),
        "records": f"{name}.npy",
        "sha256": hashlib.sha256(content).hexdigest(),
        "shards": facts,
    }


def _images(split: Split, start: int) -> Iterator[tuple[bytes, int]]:
    """Yields encoded images and labels from position `start` on, in order."""
    places = split.places(keep=lambda place: place >= start)
    items = split.fetch(places).map(lambda _, handle: split.item(handle))
    if items.element_spec["image"].dtype != tf.string:
        raise ValueError(
            "Expected encoded images to pack: a folder or a TFDS data set. Received: a "
            "source of arrays. Arrays in memory need no packing"
        )
    try:
        for item in items.prefetch(64).as_numpy_iterator():
            yield item["image"], int(item["label"])
    except tf.errors.OpError as error:
        raise ValueError(
            "Expected a source that can be read from beginning to end. Received: "
            f"{error.message}"
        ) from error


def _write_shard(
    path: Path, images: Iterator[tuple[bytes, int]], count: int, advance: Any
) -> None:
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(count):
                image, label = next(images)
                writer.write(_example(image, label))
                advance()
    except tf.errors.OpError as error:
        full = isinstance(error, tf.errors.ResourceExhaustedError)
        raise OSError(errno.ENOSPC if full else errno.EIO, error.message) from error


def _example(image: bytes, label: int) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(example.SerializeToString())


def _scan(path: Path, shard: int) -> tuple[np.ndarray, str]:
    """Returns the `RECORD`s and the SHA-256 of a shard."""
    digest = hashlib.sha256()
    records = []
    offset = 0
    with path.open("rb") as file:
        while header := file.read(HEADER):
            data = file.read(int.from_bytes(header[:8], "little"))
            for part in (header, data, file.read(FOOTER)):
                digest.update(part)
            feature = tf.train.Example.FromString(data).features.feature
            image = feature["image"].bytes_list.value[0]
            label = feature["label"].int64_list.value[0]
            begin = offset + HEADER + data.index(image)
            records.append((shard, len(image), begin, zlib.crc32(image), label))
            offset += HEADER + len(data) + FOOTER
    return np.array(records, RECORD), digest.hexdigest()
