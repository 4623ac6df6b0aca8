"""Weights files: found, downloaded, verified, cached, and copied for air-gapped use.

No official file has a published checksum. So a file is checked against its published
size and its own CRCs when it arrives, and against the sha256 recorded then (in
`<file>.sha256`) ever after. A name in the cache is a whole, verified file or absent.

`KERAS_VIT_WEIGHTS` names one's own mirror: a directory, or a base URL.
"""

import contextlib
import errno
import functools
import glob
import hashlib
import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote

from rich import progress
from rich.console import Console

from keras_vit.files import BROKEN_ZIP, file_sha256, replacing
from keras_vit.weights.registry import Checkpoint, Format, select

FORMATS: tuple[Format, ...] = ("npz", "timm", "hf")  # The official file first.
CHUNK = 2**20  # Bytes a read asks for at most.


class DownloadError(OSError):
    """A weights file could not be had, kept or trusted; not in the paper.

    Args:
        message: what was expected, what was received, and what to do.
        failures: each URL with its reason, where mirrors were tried; an attribute of
            the error, too.
    """

    def __init__(self, message: str, failures: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


class _MirrorError(Exception):
    """Why one mirror did not deliver; the next one is tried."""


def cache_dir() -> Path:
    """`$KERAS_HOME/keras_vit`; KERAS_HOME is ~/.keras unless set."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras_vit"


def locate(checkpoint: Checkpoint, formats: Sequence[Format] = FORMATS) -> Path:
    """The checkpoint's local, verified file; downloaded into the cache if need be.

    In this order: one's own directory (used in place), the cache, one's own base URL,
    the public mirrors.

    Args:
        checkpoint: a row of the registry.
        formats: the dialects wanted, the preferred one first.

    Raises:
        DownloadError: if no mirror delivers, the disk cannot keep the file, or the
            file in the cache is not what was downloaded.
    """
    directory, _ = _own_mirror()
    for name in [_file_name(checkpoint, dialect) for dialect in formats]:
        own = _own_files(directory, name)
        for path in (*own, cache_dir() / name):
            if path.is_file():
                _verify(path, None if path in own else checkpoint.sha256)
                _warn_of_size(path, checkpoint)
                return path
    return _obtain(checkpoint, cache_dir(), formats)


def fetch(
    tag: str,
    to: str | os.PathLike[str],
    variant: str | None = None,
    formats: Sequence[Format] = FORMATS,
) -> list[Path]:
    """Copies a tag's files (vit_jax's, BiT's) into a directory of one's own.

    `KERAS_VIT_WEIGHTS` can name that directory, on a machine without a network too.

    What is whole in the directory already is kept, so an interrupted call can be
    repeated. `sha256sum -c SHA256SUMS` checks the copy on the other machine.

    Args:
        tag: a training, such as "imagenet21k".
        to: the directory; created if absent.
        variant: one variant ("ViT-B/16" or "ViT_B16") instead of all of the tag.
        formats: the dialects wanted, the preferred one first: "npz" is the official
            file, "timm" and "hf" (transformers) are others' copies of it.

    Returns:
        The files' paths, one for each variant.

    Raises:
        ValueError: if the tag or the variant is unknown, or `KERAS_VIT_WEIGHTS` is
            neither a directory nor a base URL.
        DownloadError: if no mirror delivers, the disk cannot keep a file, or one in
            the directory is not what was downloaded.
    """
    root = Path(to)
    paths = [_obtain(row, root, formats) for row in select(variant, tag)]
    files = [record.with_suffix("") for record in sorted(root.rglob("*.sha256"))]
    lines = [
        f"{_recorded(file)}  {file.relative_to(root).as_posix()}" for file in files
    ]
    with _storing(root), replacing(root / "SHA256SUMS") as sums:
        sums.write_text("\n".join(lines) + "\n")
    return paths


def download(
    urls: Sequence[str],
    destination: str | os.PathLike[str],
    *,
    size_bounds: tuple[int, int] | None = None,
    sha256: str | None = None,
    timeout: float = 30.0,
) -> Path:
    """Downloads the first of `urls` that delivers; resumes what an earlier call began.

    A destination that is there already is verified and kept.

    Args:
        urls: the mirrors, in the order in which they are tried.
        destination: the file's final name, given to it only once it is verified.
        size_bounds: the smallest and the largest size to accept, in bytes.
        sha256: the expected hash; else the one recorded at the first download.
        timeout: seconds without a byte after which a mirror has failed.

    Raises:
        DownloadError: if no mirror delivers or the disk cannot keep the file.
    """
    destination = Path(destination)
    failures: list[tuple[str, str]] = []
    with _storing(destination.parent, size_bounds and size_bounds[1]):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _lock(destination):
            if destination.is_file():
                _verify(destination, sha256)
                return destination
            for url in urls:
                part = _part(destination, url)
                try:
                    _receive(url, part, size_bounds, timeout)
                    digest = _inspect(part, destination, size_bounds, sha256)
                except _MirrorError as error:
                    failures.append((url, str(error)))
                    _say(f"{url}: {error}")
                else:
                    _publish(part, destination, digest)
                    return destination
    raise DownloadError(_none_left(destination.name, failures), failures)


def _own_mirror() -> tuple[Path | None, str | None]:
    """KERAS_VIT_WEIGHTS as (directory, base URL); at most one of them is there."""
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
    """The file in one's own directory: under the bucket's path, or beside others."""
    places = [directory / name, directory / Path(name).name] if directory else []
    return [path for path in places if path.is_file()]


def _file_name(checkpoint: Checkpoint, dialect: Format) -> str:
    """The bucket's path; a copy in another dialect does not pass for the npz."""
    if dialect == "npz":
        return checkpoint.path
    return f"{checkpoint.path.removesuffix('.npz')}.{dialect}.safetensors"


def _obtain(checkpoint: Checkpoint, root: Path, formats: Sequence[Format]) -> Path:
    """Downloads into `root`, from one's own base URL first, then from the mirrors."""
    directory, base = _own_mirror()
    failures: list[tuple[str, str]] = []
    for dialect in formats:
        name = _file_name(checkpoint, dialect)
        official: dict[str, Any] = {}  # What the published npz, and no other, is.
        if dialect == "npz":
            official["size_bounds"] = checkpoint.size_bounds()
            official["sha256"] = checkpoint.sha256
        public = [m.url for m in checkpoint.mirrors if m.format == dialect]
        if dialect != "npz" and not public:
            continue  # Nobody keeps a copy in it.
        own = [f"{base}/{quote(name)}"] if base else []
        own += [path.resolve().as_uri() for path in _own_files(directory, name)]
        for urls, checks in ((own, {}), (public, official)):
            if not urls:
                continue
            try:
                path = download(urls, root / name, **checks)
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
        "Set KERAS_VIT_WEIGHTS to a directory or a base URL that has the file, or "
        f"copy a directory made by keras_vit.weights.fetch({tag!r}, to=DIRECTORY) on a "
        "connected machine, or pass the path of a file as weights."
    )


@functools.cache  # Once a message.
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def _warn_of_size(path: Path, checkpoint: Checkpoint) -> None:
    """A file of one's own is used as it is, but not silently."""
    bounds = checkpoint.size_bounds() if path.suffix == ".npz" else None
    if bounds and not bounds[0] <= path.stat().st_size <= bounds[1]:
        _warn(
            f"{path} has {path.stat().st_size:,} bytes; the published "
            f"{checkpoint.path} has {checkpoint.size}. It is used all the same."
        )


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _recorded(path: Path) -> str | None:
    record = _record(path)
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


def _verify(path: Path, sha256: str | None) -> None:
    """Raises unless `path` is what was downloaded, or whole where nothing says."""
    expected = sha256 or _recorded(path)
    if expected is None:
        if problem := _content_problem(path, path.suffix):
            raise DownloadError(
                f"Expected {path} to be a whole weights file. Received: {problem}. "
                f"Delete or replace {path}."
            )
    elif (actual := file_sha256(path)) != expected:
        raise DownloadError(
            f"Expected {path} to have sha256={expected}, as it did when downloaded. "
            f"Received: sha256={actual}. Delete {path} to download it again (and "
            f"{_record(path)} too, if the file was replaced on purpose)."
        )


def _size_problem(size: int, bounds: tuple[int, int] | None) -> str | None:
    if bounds is None or bounds[0] <= size <= bounds[1]:
        return None
    return f"wrong size: {size:,} bytes, published {bounds[0]:,} to {bounds[1]:,}"


def _content_problem(path: Path, suffix: str) -> str | None:
    """What is wrong with a file's contents, judged by the kind its name promises."""
    with path.open("rb") as file:
        head = file.read(512).lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"an HTML or XML page, not a {suffix} (a login or proxy page?)"
    if suffix == ".safetensors":
        return _safetensors_problem(path)
    return _zip_problem(path) if suffix == ".npz" else None


def _safetensors_problem(path: Path) -> str | None:
    """Whether the header is whole and says what the file holds; values have no CRC."""
    from keras_vit.weights.tensors import open_tensors  # NumPy, which npz do without.

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
    except BROKEN_ZIP as error:
        return f"not a whole zip archive, which a .npz is ({error})"
    if member:
        return f"the CRC of its member {member} is wrong"
    return "a .npz without arrays" if empty else None


@contextlib.contextmanager
def _storing(directory: Path, needed: int | None = None) -> Iterator[None]:
    """An error of the disk becomes one that says where, how much, and what to do."""
    try:
        yield
    except DownloadError:
        raise
    except OSError as error:
        room = f"{needed:,} bytes" if needed else "the file"
        raise DownloadError(
            f"Expected {directory} to be writable, with room for {room}. "
            f"Received: {error}. Make room there, or set KERAS_HOME to a directory on "
            "another disk (the cache is $KERAS_HOME/keras_vit)."
        ) from error


@contextlib.contextmanager
def _lock(destination: Path) -> Iterator[None]:
    """One process at a time downloads `destination`; a symbolic link is refused."""
    from filelock import FileLock, Timeout  # 30 ms, which a cached file does without.

    path = destination.with_name(f"{destination.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _say(f"Waiting for another process that downloads {destination}")
        lock.acquire()
    except OSError as error:
        if error.filename:  # The file cannot be opened, which is not about locks.
            raise
        _say(f"No lock on this file system ({error}): download once at a time")
    try:
        yield
    finally:
        # While the lock is held: whoever gets it next sees that the file has no name.
        with contextlib.suppress(PermissionError):  # Windows keeps an open file.
            path.unlink(missing_ok=True)
        lock.release()


def _part(destination: Path, url: str) -> Path:
    """Each mirror has its own partial file: theirs need not be the same bytes."""
    key = hashlib.sha256(url.encode()).hexdigest()[:12]
    return destination.with_name(f"{destination.name}.{key}.part")


def _validator_file(part: Path) -> Path:
    """Keeps the ETag or date of what `part` is the beginning of, for If-Range."""
    return part.with_name(f"{part.name}.validator")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def _inspect(
    part: Path,
    destination: Path,
    size_bounds: tuple[int, int] | None,
    sha256: str | None,
) -> str:
    """The sha256 of a download that is what it should be; removes any other."""
    problem = _content_problem(part, destination.suffix)
    problem = problem or _size_problem(part.stat().st_size, size_bounds)
    digest = "" if problem else file_sha256(part)
    expected = sha256 or _recorded(destination)
    if digest and expected and digest != expected:
        problem = f"sha256 is {digest}, expected {expected}"
        if not sha256:
            problem += f" (of the first download; {_record(destination)} has it)"
    if problem:
        _discard(part)
        raise _MirrorError(problem)
    return digest


def _publish(part: Path, destination: Path, digest: str) -> None:
    """The record first: the final name never lacks it."""
    with replacing(_record(destination)) as record:
        record.write_text(f"{digest}  {destination.name}\n")
    os.replace(part, destination)
    for leftover in destination.parent.glob(f"{glob.escape(destination.name)}.*.part*"):
        leftover.unlink(missing_ok=True)


def _receive(
    url: str, part: Path, size_bounds: tuple[int, int] | None, timeout: float
) -> None:
    """Downloads `url` to `part`, from where an earlier call stopped if it can."""
    response = _request(url, part, timeout)
    if response is None:
        return  # The part was whole already.
    with response:
        start, total = _extent(response)
        if start and start != part.stat().st_size:
            _discard(part)
            raise _MirrorError(f"a range from {start:,} that was not asked for")
        if total and (problem := _size_problem(total, size_bounds)):
            _discard(part)
            html = "text/html" in response.headers.get("Content-Type", "")
            raise _MirrorError(problem + (", an HTML page" if html else ""))
        with _storing(part.parent, total):
            _write(response, part, start, total, timeout)
    if total and (size := part.stat().st_size) < total:
        raise _MirrorError(f"truncated: {size:,} of {total:,} bytes")


def _request(url: str, part: Path, timeout: float) -> http.client.HTTPResponse | None:
    """Asks for what `part` lacks; None where it lacks nothing."""
    headers = {"User-Agent": "keras_vit"}
    start = part.stat().st_size if part.is_file() else 0
    validator = _validator_file(part)
    if start and validator.is_file():
        headers |= {"Range": f"bytes={start}-", "If-Range": validator.read_text()}
    try:
        request = urllib.request.Request(url, headers=headers)
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416 or "Range" not in headers:
            raise _MirrorError(f"HTTP {error.code} {error.reason}") from error
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return None
        _discard(part)
        return _request(url, part, timeout)
    except (OSError, http.client.HTTPException) as error:
        raise _MirrorError(_why(error, timeout)) from error
    return cast(http.client.HTTPResponse, response)


def _why(error: Exception, timeout: float) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "truncated: the connection closed before the end"
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer or no data for {timeout:g} s"
    return f"{type(error).__name__}: {reason}"


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Where the body starts in the file, and the file's size if the server says."""
    if response.status != 206:
        length = response.headers.get("Content-Length")
        return 0, int(length) if length else None
    content_range = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
    if not match:
        raise _MirrorError(f"HTTP 206 with Content-Range {content_range!r}")
    return int(match[1]), None if match[2] == "*" else int(match[2])


def _write(
    response: http.client.HTTPResponse,
    part: Path,
    start: int,
    total: int | None,
    timeout: float,
) -> None:
    """Appends the body to what `part` has, or begins it anew."""
    free = shutil.disk_usage(part.parent).free
    if total and free < total - start:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {free:,} bytes free")
    if not start:
        _discard(part)
        etag = response.headers.get("ETag", "W/")  # A weak one cannot say If-Range.
        date = response.headers.get("Last-Modified")
        if validator := date if etag.startswith("W/") else etag:
            _validator_file(part).write_text(validator)
    with part.open("ab") as file, _progress(response.url, start, total) as bar:
        for chunk in _chunks(response, timeout):
            file.write(chunk)
            bar.advance(bar.task_ids[0], len(chunk))
        file.flush()
        os.fsync(file.fileno())


def _chunks(response: http.client.HTTPResponse, timeout: float) -> Iterator[bytes]:
    """The body, as it arrives; the network's errors are the mirror's."""
    try:
        while chunk := response.read1(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _MirrorError(_why(error, timeout)) from error


def _say(line: str) -> None:
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _progress(url: str, start: int, total: int | None) -> Iterator[progress.Progress]:
    """A bar on a terminal or in a notebook, else one line."""
    console = Console(stderr=True)
    quiet = not (console.is_terminal or console.is_jupyter)
    if quiet:
        _say(f"Downloading {url}" + (f" ({total / 2**20:,.1f} MiB)" if total else ""))
    columns = (*progress.Progress.get_default_columns(), progress.DownloadColumn())
    with progress.Progress(*columns, console=console, disable=quiet) as bar:
        name = unquote(url.partition("?")[0].rpartition("/")[2])
        bar.add_task(name, total=total, completed=start)
        yield bar
