"""Download one file from one mirror, with limits on the response.

Mirrors are not trusted. Any invalid response, and any exception that the network stack
raises for it, becomes a `MirrorError`, and the next mirror is tried.
"""

import contextlib
import dataclasses
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from rich import progress
from rich.console import Console

from keras_vit.files import parse_json, printable

CHUNK = 2**20  # Maximum bytes per read.
MAX_SIZE = 32 * 2**30  # Bytes, if the size is unknown; DINOv3's 7B has 25 GiB.
MAX_HEADERS = 2**20  # Bytes of status lines and headers.
# A mirror with a lower rate over RATE_SECONDS of waiting is abandoned.
MIN_RATE = 1024  # Bytes per second.
RATE_SECONDS = 30.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


class DownloadError(OSError):
    """A weights file could not be downloaded, stored or verified.

    Args:
        message: expected and received values, and the remedy.
        failures: the URLs that were tried, each with the reason for its failure; also
            an attribute of the error.
    """

    def __init__(self, message: str, failures: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)


class MirrorError(Exception):
    """The reason why one mirror failed; the next one is tried."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """The version of a file that a mirror sends.

    Attributes:
        validator: strong ETag, or the date of the last modification.
        size: size in bytes; None: not stated.
    """

    validator: str
    size: int | None

    def may_be(self, other: "Version | None") -> bool:
        """Whether the other can be the same version, by the values that both have."""
        if other is None or self.validator != other.validator:
            return False
        return None in (self.size, other.size) or self.size == other.size


@dataclasses.dataclass(frozen=True)
class Part:
    """The partial download of a file from one mirror, and its version."""

    path: Path

    @classmethod
    def of(cls, destination: Path, url: str) -> "Part":
        """The part for one mirror; the bytes of different mirrors may differ."""
        key = hashlib.sha256(url.encode()).hexdigest()[:12]
        return cls(destination.with_name(f"{destination.name}.{key}.part"))

    @property
    def size(self) -> int:
        """Size in bytes; 0 if there is no part."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def _version_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.validator")

    def version(self) -> Version | None:
        """The version to resume; None without a part or with a damaged record."""
        if not self.size or not self._version_file.is_file():
            return None
        try:
            found = parse_json(self._version_file.read_bytes())
            version = Version(**found)
        except (ValueError, TypeError):
            return None
        validator, size = version.validator, version.size
        if not isinstance(validator, str) or not isinstance(size, int | None):
            return None
        printed = validator.isascii() and validator.isprintable()
        return version if printed else None

    def begin(self, version: Version | None) -> None:
        """Removes the existing part and records the version of the new one."""
        self.discard()
        if version is not None:
            self._version_file.write_text(json.dumps(vars(version)))

    def discard(self) -> None:
        """Removes the part and its record."""
        remove(self.path)
        remove(self._version_file)


def remove(path: Path) -> None:
    """Removes a file or a folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def receive(
    url: str, part: Part, size_bounds: tuple[int, int] | None, timeout: float
) -> str | None:
    """Downloads `url` to `part`, and resumes an earlier call if possible.

    Args:
        url: URL of the mirror.
        part: the part to which the body is written.
        size_bounds: the smallest and the largest size to accept, in bytes; None: up to
            `MAX_SIZE`.
        timeout: seconds without data after which the mirror has failed.

    Returns:
        The file's commit on the Hugging Face Hub; None for other servers.

    Raises:
        MirrorError: if the mirror does not deliver the file.
        DownloadError: if it cannot be stored.
    """
    version = part.version()
    response, commit = _ask(url, timeout, part, version)
    if version is not None and not _continues(response, part, version):
        response.close()
        part.discard()
        version = None
        response, commit = _ask(url, timeout)
    with contextlib.closing(response):  # An HTTPError may be closed already.
        if response.status == 416 and version is not None:
            return commit  # The part is complete.
        start, total = _extent(response, asked=version is not None)
        total = total if total is not None or not start else cast(Version, version).size
        lower, limit = size_bounds or (0, MAX_SIZE)
        if total is not None:
            if problem := size_problem(total, (lower, limit)):
                html = "text/html" in response.headers.get("Content-Type", "")
                raise MirrorError(problem + (", an HTML page" if html else ""))
            limit = total
        with storing(part.path.parent, total):
            _write(response, part, start, total, limit, timeout)
    if part.size > limit:
        part.discard()
        raise MirrorError(f"more than {limit:,} bytes")
    if total is not None and part.size < total:
        raise MirrorError(f"truncated: {part.size:,} of {total:,} bytes")
    return commit


def commit_of(text: str) -> str | None:
    """A commit of the Hub, 40 hexadecimal digits; None for other text."""
    return text if _COMMIT.fullmatch(text) else None


def size_problem(size: int, bounds: tuple[int, int] | None) -> str | None:
    """The problem with a file's size in bytes; None if there is none."""
    if bounds is None or bounds[0] <= size <= bounds[1]:
        return None
    return f"wrong size: {size:,} bytes, expected {bounds[0]:,} to {bounds[1]:,}"


@contextlib.contextmanager
def storing(directory: Path, needed: int | None = None) -> Iterator[None]:
    """Turns a disk error into one with the folder, the size and the remedy."""
    try:
        yield
    except DownloadError:
        raise
    except OSError as error:
        room = f"{needed:,} bytes" if needed else "the file"
        raise DownloadError(
            f"Expected {directory} to be writable, with free space for {room}. "
            f"Received: {error}. Free some space, or set KERAS_HOME to a directory on "
            "a different disk (the cache is $KERAS_HOME/keras_vit)."
        ) from error


def say(line: str) -> None:
    """Prints a line to standard error."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _blamed(timeout: float) -> Iterator[None]:
    """Turns any exception from the network stack into a MirrorError.

    Depending on the response, urllib and http.client raise ValueError, UnicodeError,
    OverflowError and HTTPException in addition to OSError. The only code of ours inside
    raises MirrorError.
    """
    try:
        yield
    except MirrorError:
        raise
    except Exception as error:
        raise MirrorError(_why(error, timeout)) from error


def _why(error: Exception, timeout: float) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "truncated: the connection closed before the end"
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no response or no data for {timeout:g} s"
    return f"{type(error).__name__}: {_short(str(reason))}"


def _short(text: str) -> str:
    """Text from a mirror, shortened to one printable line."""
    return printable(" ".join(text.split()))[:200]


class _Stream(io.RawIOBase):
    """A socket's data, with a minimum rate and a maximum number of bytes."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self.allowed = MAX_HEADERS
        self._raw = raw
        self._began = False
        self._seconds, self._bytes = 0.0, 0

    def readable(self) -> bool:
        """Returns True, as `io.BufferedReader` requires."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Reads; the rate counts only waiting time after the first byte."""
        began = time.monotonic()
        count = self._raw.readinto(buffer)
        if count and self._began:
            self._seconds += time.monotonic() - began
            self._bytes += count
        self._began = True
        self.allowed -= count or 0
        if self.allowed < 0:
            raise MirrorError(f"more than {MAX_HEADERS:,} bytes of headers or trailers")
        if self._seconds >= RATE_SECONDS:
            if self._bytes < MIN_RATE * self._seconds:
                raise MirrorError(
                    f"fewer than {MIN_RATE:,} bytes per second for {RATE_SECONDS:g} s"
                )
            self._seconds, self._bytes = 0.0, 0
        return count

    def close(self) -> None:
        """Closes the socket, too."""
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response that is read through `_Stream`, including its headers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stream = _Stream(self.fp.detach())
        self.fp = io.BufferedReader(self.stream)


class _Limits(urllib.request.AbstractHTTPHandler):
    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        def connect(host: str, **settings: Any) -> http.client.HTTPConnection:
            connection = http_class(host, **settings)
            connection.response_class = _Response
            return cast(http.client.HTTPConnection, connection)

        return super().do_open(connect, req, **options)


class _HTTPHandler(_Limits, urllib.request.HTTPHandler):
    pass


class _HTTPSHandler(_Limits, urllib.request.HTTPSHandler):
    pass


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP(S) only, never from HTTPS to HTTP."""

    commit: str | None = None  # The Hub sends it with the redirect to its storage.

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Closes the response first: its body, which would be read, may be endless."""
        fp.close()
        scheme, before = urlsplit(newurl).scheme, urlsplit(req.full_url).scheme
        if scheme not in ("https", before):
            raise MirrorError(f"a redirect from {before} to {scheme} is not followed")
        self.commit = self.commit or headers.get("X-Repo-Commit")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _ask(
    url: str, timeout: float, part: Part | None = None, version: Version | None = None
) -> tuple[http.client.HTTPResponse, str | None]:
    """Requests the rest of `part`; returns any response, and the Hub's commit."""
    headers = {"User-Agent": "keras_vit"}
    if part is not None and version is not None:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": version.validator}
    redirects = _Redirects()
    handlers = redirects, _HTTPHandler(), _HTTPSHandler()
    with _blamed(timeout):
        opener = urllib.request.build_opener(*handlers)
        request = urllib.request.Request(url, headers=headers)
        try:
            response = opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            response = error
        commit = redirects.commit or response.headers.get("X-Repo-Commit") or ""
    return cast(http.client.HTTPResponse, response), commit_of(commit)


def _continues(
    response: http.client.HTTPResponse, part: Part, version: Version
) -> bool:
    """Whether a response to a range request is the rest of `part`, or not partial."""
    if response.status == 416:
        return response.headers.get("Content-Range") == f"bytes */{part.size}"
    if response.status != 206:
        return True
    start, total = _extent(response, asked=True)
    return start == part.size and version.may_be(_version(response, total))


def _version(response: http.client.HTTPResponse, total: int | None) -> Version | None:
    etag = response.headers.get("ETag", "W/")  # A weak one is invalid in If-Range.
    date = response.headers.get("Last-Modified")
    validator = date if etag.startswith("W/") else etag
    return Version(validator=validator, size=total) if validator else None


def _extent(response: http.client.HTTPResponse, asked: bool) -> tuple[int, int | None]:
    """The body's offset in the file, and the file's size if the server states it.

    Raises:
        MirrorError: if the body is not the file's, or its extent is not reliable.
    """
    headers = response.headers
    if response.status not in (None, 200, 206):  # None: a local file.
        raise MirrorError(f"HTTP {response.status} {_short(response.reason)}")
    encoding = headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise MirrorError(
            f"Content-Encoding {_short(encoding)!r}, which was not requested"
        )
    if response.status == 206:
        if not asked:
            raise MirrorError("HTTP 206, a part of the file that was not requested")
        extent = headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", extent)
        if not match:
            raise MirrorError(f"HTTP 206 with Content-Range {_short(extent)!r}")
        return int(match[1]), None if match[2] == "*" else int(match[2])
    lengths = ", ".join(headers.get_all("Content-Length", []))
    if not lengths or "Transfer-Encoding" in headers:  # This overrides the length.
        return 0, None
    if not re.fullmatch(r"\d{1,18}", lengths):
        raise MirrorError(f"Content-Length {_short(lengths)!r}, expected one number")
    return 0, int(lengths)


def _write(
    response: http.client.HTTPResponse,
    part: Part,
    start: int,
    total: int | None,
    limit: int,
    timeout: float,
) -> None:
    """Appends the body to `part` or restarts it; stops beyond `limit`."""
    if not start:
        part.begin(_version(response, total))
    free = shutil.disk_usage(part.path.parent).free
    room = f"{free:,} bytes free in {part.path.parent} (KERAS_HOME moves the cache)"
    if total is not None and free < total - start:
        raise MirrorError(f"{total - start:,} bytes to download, but {room}")
    if isinstance(response, _Response):  # Twice the size, to allow for chunk headers.
        response.stream.allowed = MAX_HEADERS + 2 * (min(limit, free + start) - start)
    size = start
    with part.path.open("ab") as file, _progress(response.url, start, total) as bar:
        for chunk in _chunks(response, timeout):
            file.write(chunk)
            bar.advance(bar.task_ids[0], len(chunk))
            size += len(chunk)
            if size > min(limit, free + start):
                break
        file.flush()
        os.fsync(file.fileno())
    if start + free < size <= limit:
        part.discard()
        raise MirrorError(f"a body of unknown size, but {room}")


def _chunks(response: http.client.HTTPResponse, timeout: float) -> Iterator[bytes]:
    """The body, as it arrives."""
    while True:
        with _blamed(timeout):
            chunk = response.read1(CHUNK)
        if not chunk:
            return
        yield chunk


@contextlib.contextmanager
def _progress(url: str, start: int, total: int | None) -> Iterator[progress.Progress]:
    """Shows a progress bar on a terminal or in a notebook, else one line."""
    console = Console(stderr=True)
    quiet = not (console.is_terminal or console.is_jupyter)
    if quiet:
        say(f"Downloading {url}" + (f" ({total / 2**20:,.1f} MiB)" if total else ""))
    columns = (*progress.Progress.get_default_columns(), progress.DownloadColumn())
    with progress.Progress(*columns, console=console, disable=quiet) as bar:
        name = unquote(url.partition("?")[0].rpartition("/")[2])
        bar.add_task(name, total=total, completed=start)
        yield bar
