"""A cache of arrays on disk, keyed by everything that they depend on (the facts).

    $KERAS_HOME/keras_vit/features/KEY/facts.json   the facts, sizes and hashes
                                       /NAME.npy    an array

KEY is the SHA-256 of the facts. An entry is written atomically. All entries together
use at most `KERAS_VIT_CACHE_BYTES` bytes (10 GiB by default; 0 disables the cache). The
least recently used entries are removed first.
"""

import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.callers import warn
from keras_vit.files import (
    cache_dir,
    file_sha256,
    json_sha256,
    parse_json,
    replacing_folder,
    write_json,
)
from keras_vit.lock_file import one_process

VARIABLE = "KERAS_VIT_CACHE_BYTES"
DEFAULT_BYTES = 10 * 2**30
FACTS = "facts.json"
ABANDONED = 3600.0  # Age in seconds of a temporary folder left by a killed process.


def root() -> Path:
    """Returns the folder of all entries."""
    return cache_dir() / "features"


def max_bytes() -> int:
    """Returns the size limit in bytes; 0 disables the cache.

    Raises:
        ValueError: if `KERAS_VIT_CACHE_BYTES` is not a number of bytes.
    """
    value = os.environ.get(VARIABLE) or str(DEFAULT_BYTES)
    if not value.isdecimal():
        raise ValueError(
            f"Expected {VARIABLE} to be a number of bytes, or 0 to keep nothing. "
            f"Received: {VARIABLE}={value!r}. Correct it or unset it"
        )
    return int(value)


def path_of(facts: Mapping[str, Any]) -> Path:
    """Returns the folder of an entry, whether it exists or not."""
    return root() / json_sha256(facts)


def cached(
    facts: Mapping[str, Any],
    shown: Mapping[str, str],
    compute: Callable[[], dict[str, np.ndarray]],
    still: Callable[[], bool],
) -> dict[str, np.ndarray]:
    """Returns the arrays of these facts from the disk, or computes and stores them.

    One process computes; others that need the same arrays wait for it. If the disk is
    full or not writable, or if an entry is damaged, a warning is issued and the arrays
    are computed.

    Args:
        facts: plain values that determine the arrays.
        shown: "model" and "data", for the list of entries.
        compute: returns the arrays.
        still: returns whether the facts still hold after the computation; if not,
            nothing is stored.

    Returns:
        Arrays by name. Arrays from the disk are memory-mapped, copy-on-write.
    """
    folder = path_of(facts)
    with contextlib.ExitStack() as held:
        try:
            root().mkdir(parents=True, exist_ok=True)
            held.enter_context(one_process(folder, "computes", _say))
        except OSError as error:
            warn(f"Features are not kept on disk: {error}")
            return compute()
        if (found := _read(folder)) is not None:
            return found
        arrays = compute()
        if still():
            try:
                _write(folder, facts, shown, arrays)
            except OSError as error:
                warn(f"Features are not kept on disk: {error}")
        return arrays


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _read(folder: Path) -> dict[str, np.ndarray] | None:
    """Returns the arrays of an entry; None if it is missing or damaged."""
    if not folder.is_dir():
        return None
    try:
        content = parse_json((folder / FACTS).read_text(encoding="utf-8"))
        if json_sha256(content["facts"]) != folder.name:
            raise ValueError(f"{FACTS} was changed after it was written")
        arrays = {
            name: _mapped(folder / f"{name}.npy", written)
            for name, written in content["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if folder.is_dir():  # Another process may have removed it to free space.
            warn(f"Damaged features are computed again: {str(folder)!r} ({error})")
        return None
    with contextlib.suppress(OSError):
        os.utime(folder / FACTS)  # The last use.
    return arrays


def _mapped(path: Path, written: Mapping[str, Any]) -> np.ndarray:
    """Returns an array of an entry after checking its size and SHA-256."""
    if (
        path.stat().st_size != written["bytes"]
        or file_sha256(path) != written["sha256"]
    ):
        raise ValueError(f"{path.name} was changed after it was written")
    return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))


def _write(
    folder: Path,
    facts: Mapping[str, Any],
    shown: Mapping[str, str],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Writes an entry; removes the least recently used ones to make room."""
    need, most = sum(array.nbytes for array in arrays.values()), max_bytes()
    if need > most:
        warn(f"Features of {need:,} bytes are not kept on disk: {VARIABLE} is {most:,}")
        return
    _make_room(most - need)
    with replacing_folder(folder, overwrite=True) as temporary:
        files = {}
        for name, array in arrays.items():
            path = temporary / f"{name}.npy"
            np.save(path, array, allow_pickle=False)
            sha256 = file_sha256(path)
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256}
        rows = len(next(iter(arrays.values())))
        content = {"shown": dict(shown), "rows": rows, "files": files, "facts": facts}
        write_json(temporary / FACTS, content)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A folder of the cache.

    Attributes:
        folder: folder of the entry.
        bytes: size of its files.
        rows: number of images; None, like `model` and `data`, if `facts.json` is
            damaged.
        model: the model's name.
        data: origin of the images.
        used: time of the last use, in seconds since 1970.
    """

    folder: Path
    bytes: int
    rows: int | None
    model: str | None
    data: str | None
    used: float


def entries() -> list[Entry]:
    """Returns all entries, the most recently used first."""
    found = [_entry(folder) for folder in _folders() if folder.name[0] != "."]
    return sorted(found, key=lambda entry: -entry.used)


def clear() -> tuple[int, int]:
    """Removes every entry; returns the number of entries and their bytes."""
    removed = entries()
    for folder in _folders():
        _remove(folder)
    return len(removed), sum(entry.bytes for entry in removed)


def _folders() -> list[Path]:
    """Returns the folders of entries, and temporary ones that are being written."""
    if not root().is_dir():
        return []
    return [folder for folder in root().iterdir() if folder.is_dir()]


def _entry(folder: Path) -> Entry:
    rows = model = data = None
    used = 0.0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        used = (folder / FACTS).stat().st_mtime
        content = parse_json((folder / FACTS).read_text(encoding="utf-8"))
        rows = int(content["rows"])
        model, data = (str(content["shown"][name]) for name in ("model", "data"))
    return Entry(folder, _size(folder), rows, model, data, used)


def _size(folder: Path) -> int:
    """Returns the bytes of a folder's files; ignores files removed meanwhile."""
    size = 0
    for file in folder.glob("*"):
        with contextlib.suppress(OSError):
            size += file.stat().st_size
    return size


def _make_room(most: int) -> None:
    """Removes entries, the least recently used first, until `most` bytes are left."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            age = time.time() - folder.stat().st_mtime
            if folder.name[0] == "." and age > ABANDONED:
                _remove(folder)
    kept = entries()
    total = sum(entry.bytes for entry in kept)
    for entry in reversed(kept):
        if total <= most:
            break
        _remove(entry.folder)
        total -= entry.bytes


def _remove(folder: Path) -> None:
    """Removes a folder; renames it first, so that no process reads half of it."""
    aside = folder.with_name(f".removed-{folder.name.lstrip('.')}-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
        shutil.rmtree(aside)
