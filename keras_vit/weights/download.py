"""Find, download, verify and cache weights files, and copy them for offline use.

No official file has a published checksum. A downloaded file is therefore checked
against its published size and its own CRCs. Its sha256 is recorded in `<file>.sha256`,
and later reads are checked against that. The cache contains only complete, verified
files under their final names.

`KERAS_VIT_WEIGHTS` is the user's own mirror: a directory or a base URL.
"""

import dataclasses
import errno
import glob
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from keras_vit.callers import warn_once
from keras_vit.files import cache_dir, file_sha256, replacing
from keras_vit.lock_file import one_process
from keras_vit.weights.hashes import (
    Entry,
    lock_path,
    locked,
    pinned,
    problem_of,
    record_of,
    recorded,
    warn_if_unlocked,
    write_lock,
    write_record,
)
from keras_vit.weights.mirrors import (
    DownloadError,
    MirrorError,
    Part,
    receive,
    remove,
    say,
    size_problem,
    storing,
)
from keras_vit.weights.registry import Checkpoint, Format, select

FORMATS: tuple[Format, ...] = ("npz", "timm", "hf")  # The official file first.


def locate(checkpoint: Checkpoint, formats: Sequence[Format] = FORMATS) -> Path:
    """The checkpoint's local, verified file; downloaded into the cache if necessary.

    The order is: the user's directory (used in place), the cache, the user's base URL,
    the public mirrors.

    Args:
        checkpoint: a row of the registry.
        formats: the accepted dialects in order of preference.

    Raises:
        DownloadError: if no mirror delivers the file, it cannot be stored, or the file
            in the cache has changed since it was downloaded.
    """
    directory, _ = _own_mirror()
    formats = _locked_formats(checkpoint, formats)
    for dialect in formats:
        name = _file_name(checkpoint, dialect)
        own = _own_files(directory, name)
        for path in (*own, cache_dir() / name):
            if path.is_file():
                sha256 = None if path in own else checkpoint.sha256
                _verify(path, sha256, _urls(checkpoint, dialect))
                _warn_of_size(path, checkpoint)
                return path
    return _obtain(checkpoint, cache_dir(), formats)


def fetch(
    tag: str,
    to: str | os.PathLike[str],
    variant: str | None = None,
    formats: Sequence[Format] = FORMATS,
) -> list[Path]:
    """Copies a tag's files (vit_jax's, BiT's) into a directory.

    Set `KERAS_VIT_WEIGHTS` to that directory to use it, also without a network.

    Complete files in the directory are kept, so you can repeat an interrupted call.
    `sha256sum -c SHA256SUMS` checks the copy on the other machine.

    Args:
        tag: a tag of published weights, such as "imagenet21k".
        to: the directory; created if absent.
        variant: one variant ("ViT-B/16" or "ViT_B16") instead of all with this tag.
        formats: the accepted dialects in order of preference: "npz" is the official
            file; "timm" and "hf" (transformers) are converted copies of it.

    Returns:
        The files' paths, one for each variant.

    Raises:
        ValueError: if the tag or the variant is unknown, or `KERAS_VIT_WEIGHTS` is
            neither a directory nor a base URL.
        DownloadError: if no mirror delivers a file, it cannot be stored, or a file in
            the directory has changed since it was downloaded.
    """
    root = Path(to)
    paths = [
        _obtain(row, root, _locked_formats(row, formats))
        for row in select(variant, tag)
    ]
    files = [record.with_suffix("") for record in sorted(root.rglob("*.sha256"))]
    lines = [f"{recorded(file)}  {file.relative_to(root).as_posix()}" for file in files]
    with storing(root), replacing(root / "SHA256SUMS") as sums:
        sums.write_text("\n".join(lines) + "\n")
    return paths


def lock(path: Path | None = None) -> tuple[Path, int, int, list[Path]]:
    """Writes a lock file for the files in the cache and in the user's directory.

    Args:
        path: path of the lock file; None: KERAS_VIT_LOCK, else keras-vit.lock.

    Returns:
        Its path, followed by the values of `hashes.write_lock`.
    """
    directory, _ = _own_mirror()
    path = lock_path() if path is None else path
    roots = [at for at in (cache_dir(), directory) if at is not None]
    return path, *write_lock(path, roots)


def download(
    urls: Sequence[str],
    destination: str | os.PathLike[str],
    *,
    size_bounds: tuple[int, int] | None = None,
    sha256: str | None = None,
    published: Sequence[str] = (),
    timeout: float = 30.0,
) -> Path:
    """Downloads from the first of `urls` that delivers; resumes an interrupted call.

    An existing destination is verified and kept. If there is a lock file, the download
    must match its entry, and mirrors on the Hugging Face Hub are queried at the locked
    commit.

    Args:
        urls: the mirrors in the order in which they are tried.
        destination: the file's final path; created only after verification.
        size_bounds: the smallest and the largest size to accept, in bytes.
        sha256: the expected hash; None: the hash recorded at the first download.
        published: the original URLs, if `urls` are copies of them.
        timeout: seconds without data after which a mirror has failed.

    Raises:
        ValueError: if the lock file is damaged.
        DownloadError: if no mirror delivers the file or it cannot be stored.
    """
    destination = Path(destination)
    published = published or urls
    entries = locked(published)
    failures: list[tuple[str, str]] = []
    with storing(destination.parent, size_bounds and size_bounds[1]):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with one_process(destination, "downloads", say):
            if destination.is_file():
                _verify(destination, sha256, published)
                return destination
            for url in urls:
                part = Part.of(destination, url)
                asked = pinned(url, entries.get(url))
                try:
                    commit = receive(asked, part, size_bounds, timeout)
                    entry = _inspect(part, destination, size_bounds, sha256, entries)
                except MirrorError as error:
                    failures.append((asked, str(error)))
                    say(f"{asked}: {error}")
                else:
                    source = url if url in published else published[0]
                    entry = dataclasses.replace(entry, commit=commit)
                    _publish(part, destination, source, entry)
                    warn_if_unlocked(entries, source)
                    return destination
    raise DownloadError(_none_left(destination.name, failures), failures)


def _own_mirror() -> tuple[Path | None, str | None]:
    """KERAS_VIT_WEIGHTS as (directory, base URL); at least one of them is None."""
    value = os.environ.get("KERAS_VIT_WEIGHTS", "")
    if value.startswith(("http://", "https://")):
        return None, value.rstrip("/")
    if value and not Path(value).expanduser().is_dir():
        raise ValueError(
            "Expected KERAS_VIT_WEIGHTS to be a directory or an http(s) base URL. "
            f"Received: KERAS_VIT_WEIGHTS={value!r}. Correct it or unset it."
        )
    return (Path(value).expanduser() if value else None), None


def _own_files(directory: Path | None, name: str) -> list[Path]:
    """The file in the user's directory: under the bucket's path, or at the top."""
    places = [directory / name, directory / Path(name).name] if directory else []
    return [path for path in places if path.is_file()]


def _file_name(checkpoint: Checkpoint, dialect: Format) -> str:
    """The bucket's path; a copy in a different dialect has a different name."""
    if dialect == "npz":
        return checkpoint.path
    return f"{checkpoint.path.removesuffix('.npz')}.{dialect}.safetensors"


def _urls(checkpoint: Checkpoint, dialect: Format) -> list[str]:
    return [at.url for at in checkpoint.mirrors if at.format == dialect]


def _locked_formats(
    checkpoint: Checkpoint, formats: Sequence[Format]
) -> Sequence[Format]:
    """The dialects in the lock file, if any: other files have different bytes."""
    return [at for at in formats if locked(_urls(checkpoint, at))] or formats


def _obtain(checkpoint: Checkpoint, root: Path, formats: Sequence[Format]) -> Path:
    """Downloads into `root`, first from the user's base URL, then from the mirrors."""
    directory, base = _own_mirror()
    failures: list[tuple[str, str]] = []
    for dialect in formats:
        name = _file_name(checkpoint, dialect)
        official: dict[str, Any] = {}  # Checks for the published npz only.
        if dialect == "npz":
            official["size_bounds"] = checkpoint.size_bounds()
            official["sha256"] = checkpoint.sha256
        public = _urls(checkpoint, dialect)
        if dialect != "npz" and not public:
            continue  # No public copy in this dialect.
        own = [f"{base}/{quote(name)}"] if base else []
        own += [path.resolve().as_uri() for path in _own_files(directory, name)]
        for urls, checks in ((own, {}), (public, official)):
            if not urls:
                continue
            try:
                path = download(urls, root / name, published=public, **checks)
            except DownloadError as error:
                if not error.failures:
                    raise  # The disk, not a mirror.
                failures += error.failures
            else:
                _warn_of_size(path, checkpoint)
                return path
    raise DownloadError(_none_left(checkpoint.path, failures, checkpoint.tag), failures)


def _none_left(name: str, failures: Sequence[tuple[str, str]], tag: str = "TAG") -> str:
    reasons = [f"\n  {url}: {reason}" for url, reason in failures]
    return (
        f"Expected one of the mirrors to deliver {name}. Received:"
        f"{''.join(reasons) or ' no mirror in a format that can be read'}\n"
        "Set KERAS_VIT_WEIGHTS to a directory or a base URL that has the file. Or run "
        f"keras_vit.weights.fetch({tag!r}, to=DIRECTORY) on a connected machine and "
        "copy the directory. Or pass the path of a file as weights."
    )


def _warn_of_size(path: Path, checkpoint: Checkpoint) -> None:
    """Warns if a user's file does not have the published size; it is still used."""
    bounds = checkpoint.size_bounds() if path.suffix == ".npz" else None
    if bounds and not bounds[0] <= path.stat().st_size <= bounds[1]:
        warn_once(
            f"{path} has {path.stat().st_size:,} bytes; the published "
            f"{checkpoint.path} has {checkpoint.size}. The file is used anyway."
        )


def _verify(path: Path, sha256: str | None, urls: Sequence[str]) -> None:
    """Raises unless `path` has its recorded hash; without a record, unless whole."""
    entries = locked(urls)
    expected = sha256 or recorded(path)
    if expected is None and (problem := _content_problem(path, path.suffix)):
        raise DownloadError(
            f"Expected {path} to be a whole weights file. Received: {problem}. "
            f"Delete or replace {path}."
        )
    warn_if_unlocked(entries, next(iter(urls), path.name))
    if expected is None and not entries:
        return
    actual = file_sha256(path)
    if expected is not None and actual != expected:
        raise DownloadError(
            f"Expected {path} to have sha256={expected}, as it did when downloaded. "
            f"Received: sha256={actual}. Delete {path} to download it again (and "
            f"{record_of(path)} too, if the file was replaced on purpose)."
        )
    found = Entry(sha256=actual, size=path.stat().st_size)
    if problem := problem_of(found, entries):
        raise DownloadError(
            f"Expected {path} to match its entry in {lock_path()}. Received: "
            f"{problem}. Delete {path} and {record_of(path)} to download it again, or "
            "delete the entry to accept this file."
        )


def _content_problem(path: Path, suffix: str) -> str | None:
    """The problem with a file's contents, given its suffix; None if there is none."""
    with path.open("rb") as file:
        head = file.read(512).lstrip().lower()
    if not head:
        return "an empty file"
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"an HTML or XML page, not a {suffix} (a login or proxy page?)"
    if suffix == ".safetensors":
        return _safetensors_problem(path)
    return _zip_problem(path) if suffix == ".npz" else None


def _safetensors_problem(path: Path) -> str | None:
    """The problem with the header, None if it is whole; values have no CRC."""
    from keras_vit.weights.tensors import open_tensors  # NumPy; .npz does not need it.

    try:
        open_tensors(path).close()
    except ValueError as error:
        return str(error)
    return None


def _zip_problem(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
            empty = not archive.namelist()
    except Exception as error:  # From zipfile or any decompressor, lzma included.
        # bz2's OSError has no errno; a seek to an invalid offset has EINVAL.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        return f"not a whole zip archive, which a .npz is ({error})"
    if member:
        return f"the CRC of its member {member} is wrong"
    return "a .npz without arrays" if empty else None


def _inspect(
    part: Part,
    destination: Path,
    size_bounds: tuple[int, int] | None,
    sha256: str | None,
    entries: Mapping[str, Entry],
) -> Entry:
    """The entry of a valid download; discards an invalid one and raises."""
    problem = _content_problem(part.path, destination.suffix)
    problem = problem or size_problem(part.size, size_bounds)
    digest = "" if problem else file_sha256(part.path)
    expected = sha256 or recorded(destination)
    if digest and expected and digest != expected:
        problem = f"sha256 is {digest}, expected {expected}"
        if not sha256:
            problem += f" (from the first download, in {record_of(destination)})"
    if not problem:
        found = Entry(sha256=digest, size=part.size)
        if not (problem := problem_of(found, entries)):
            return found
    part.discard()
    raise MirrorError(problem)


def _publish(part: Part, destination: Path, url: str, entry: Entry) -> None:
    """Writes the record first: a file with the final name always has one."""
    write_record(record_of(destination), destination.name, url, entry)
    os.replace(part.path, destination)
    for leftover in destination.parent.glob(f"{glob.escape(destination.name)}.*.part*"):
        remove(leftover)
