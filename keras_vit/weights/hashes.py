"""Hashes of downloaded files: `FILE.sha256` next to each, and a project's lock file.

`FILE.sha256` is readable by `sha256sum -c` and has a comment with the URL. The lock
file, `keras-vit.lock`, has an entry for each URL:

    [files."https://huggingface.co/timm/NAME/resolve/main/model.safetensors"]
    commit = "3b1..."
    sha256 = "0a4..."
    size = 346284714

Files of the Hugging Face Hub have URLs of this form, however they were downloaded.
"""

import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from keras_vit.callers import warn_once
from keras_vit.files import parse_json, replacing
from keras_vit.weights.mirrors import DownloadError, commit_of

LOCK = "keras-vit.lock"
_HEADER = (
    "# sha256, size and commit of downloaded weights, written by `keras-vit weights "
    "lock`.\n# Commit this file: later downloads must match it.\n"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB = re.compile(r"(https?://[^/]+/[^/]+/[^/]+/resolve/)[^/]+(/.+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One downloaded file.

    Attributes:
        sha256: hash in hexadecimal.
        size: size in bytes.
        commit: commit of the Hugging Face Hub's repository; None for other servers.
    """

    sha256: str
    size: int
    commit: str | None = None

    def __post_init__(self) -> None:
        commit = self.commit is None or commit_of(str(self.commit))
        size = type(self.size) is int and self.size >= 0
        if not (_SHA256.fullmatch(str(self.sha256)) and size and commit):
            raise ValueError("an invalid sha256, size or commit")


def record_of(path: Path) -> Path:
    """The path of a file's record."""
    return path.with_name(f"{path.name}.sha256")


def recorded(path: Path) -> str | None:
    """The sha256 in a file's record; None if there is no record."""
    record = record_of(path)
    if not record.is_file():
        return None
    text = record.read_bytes()[:1000].decode(errors="replace")
    match = re.match(r"[0-9a-f]{64}(?!\S)", text)
    if match is None:
        raise DownloadError(
            f"Expected {record} to begin with a sha256. Received: {text[:80]!r}. "
            f"Delete it and {path} to download both again."
        )
    return match[0]


def write_record(record: Path, name: str, url: str, entry: Entry) -> None:
    """Writes the record of a file with this name, downloaded from `url`."""
    if _read_record(record) == (url, entry):
        return
    source = {"url": url, **_fields(entry)}
    with replacing(record) as temporary:
        temporary.write_text(f"{entry.sha256}  {name}\n# {json.dumps(source)}\n")


def _read_record(record: Path) -> tuple[str, Entry] | None:
    """The URL and the entry; None for an earlier version's record, without a URL."""
    if not record.is_file():
        return None
    try:
        line = record.read_text().splitlines()[1].removeprefix("# ")
        source: dict[str, Any] = parse_json(line)
        return source.pop("url"), Entry(**source)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _fields(entry: Entry) -> dict[str, Any]:
    return {name: at for name, at in sorted(vars(entry).items()) if at is not None}


def lock_path() -> Path:
    """KERAS_VIT_LOCK, else keras-vit.lock in the working directory."""
    return Path(os.environ.get("KERAS_VIT_LOCK") or LOCK).expanduser()


def _current() -> dict[str, Entry]:
    """The lock file's entries; empty without a lock file."""
    path = lock_path()
    if not path.exists() and not os.environ.get("KERAS_VIT_LOCK"):
        return {}
    return read_lock(path)


def locked(urls: Iterable[str]) -> dict[str, Entry]:
    """The lock file's entries for copies of one file, by URL.

    Raises:
        ValueError: if the lock file is damaged, or KERAS_VIT_LOCK is not a lock file.
    """
    lock = _current()
    return {url: lock[url] for url in urls if url in lock}


def locked_repository(name: str, urls: str) -> tuple[str | None, dict[str, Entry]]:
    """The commit and the entries of the URLs that begin with `urls`.

    Raises:
        ValueError: as for `locked`, or if the entries have several commits.
    """
    entries = {url: at for url, at in _current().items() if url.startswith(urls)}
    commits = sorted({entry.commit for entry in entries.values() if entry.commit})
    if len(commits) > 1:
        raise ValueError(
            f"Expected one commit of {name} in {lock_path()}. Received: "
            f"{', '.join(commits)}. Delete its entries and run `keras-vit weights lock`"
        )
    return (commits[0] if commits else None), entries


def problem_of(found: Entry, entries: Mapping[str, Entry]) -> str | None:
    """How a file differs from its entries in the lock file; None if it does not."""
    allowed = sorted({(entry.sha256, entry.size) for entry in entries.values()})
    if not allowed or (found.sha256, found.size) in allowed:
        return None
    expected = " or ".join(f"{sha256} ({size:,} bytes)" for sha256, size in allowed)
    return f"sha256 is {found.sha256} ({found.size:,} bytes), locked {expected}"


def warn_if_unlocked(entries: Mapping[str, Entry], url: str) -> None:
    """Warns about a file that is not in the project's lock file."""
    if not entries and (path := lock_path()).exists():
        warn_once(
            f"{path} has no entry for {url}, so any content is accepted. Run "
            "`keras-vit weights lock` to add it"
        )


def pinned(url: str, entry: Entry | None) -> str:
    """The URL at the locked commit if it is on the Hugging Face Hub, else the URL."""
    if entry is None or entry.commit is None or not (match := _HUB.fullmatch(url)):
        return url
    return f"{match[1]}{entry.commit}{match[2]}"


def read_lock(path: Path) -> dict[str, Entry]:
    """The entries of a lock file by URL.

    Raises:
        ValueError: if it cannot be read or is not a lock file.
    """
    try:
        lock = tomllib.loads(path.read_text("utf-8"))
        if set(lock) - {"files"} != {"version"} or lock["version"] != 1:
            raise ValueError(f"version {lock.get('version')}, expected 1")
        return {url: Entry(**entry) for url, entry in lock.get("files", {}).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"Expected a lock file of `keras-vit weights lock`. Received: {path} "
            f"({error}). Restore it, or delete it and run `keras-vit weights lock`"
        ) from error


def write_lock(path: Path, roots: Iterable[Path]) -> tuple[int, int, list[Path]]:
    """Adds downloaded files to a lock file, which is created if absent.

    Args:
        path: path of the lock file.
        roots: the folders that contain the records.

    Returns:
        The number of entries, the number of new entries, and the records that have no
        URL.

    Raises:
        ValueError: if a file differs from its entry, or there is no record.
    """
    entries = read_lock(path) if path.exists() else {}
    before, unknown = len(entries), []
    records = [at for root in roots for at in sorted(root.rglob("*.sha256"))]
    for record in records:
        if (found := _read_record(record)) is None:
            unknown.append(record)
            continue
        url, entry = found
        if (old := entries.setdefault(url, entry)).sha256 != entry.sha256:
            raise ValueError(
                f"Expected {url} to have sha256={old.sha256}, as in {path}. Received: "
                f"sha256={entry.sha256}, downloaded without that lock file ({record}). "
                f"Delete {record} and its file to download it again, or its entry in "
                f"{path} to accept the new one"
            )
    if not entries:
        raise ValueError(
            f"Expected downloaded weights in {' or '.join(map(str, roots))}. Received: "
            "none with a recorded URL. Load a model, then run `keras-vit weights lock` "
            "again to record its files"
        )
    text = [_HEADER, "version = 1\n"]
    for url, entry in sorted(entries.items()):
        text.append(f"\n[files.{_quoted(url)}]\n")
        text += [f"{name} = {_quoted(at)}\n" for name, at in _fields(entry).items()]
    with replacing(path) as temporary:
        temporary.write_text("".join(text), "utf-8")
    return len(entries), len(entries) - before, unknown


def _quoted(value: str | int) -> str:
    """A value in TOML; JSON's strings of ASCII characters are valid TOML."""
    return json.dumps(value)
