"""Files that are whole or not there."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What zipfile raises on damaged bytes, by where the damage is.
BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


def printable(text: str | os.PathLike[str]) -> str:
    r"""Escapes control characters of a file name or of other foreign text.

    Args:
        text: the name or the text, for a terminal. Bytes that are not UTF-8 are
            surrogates, as in Python's file names.

    Examples:
        >>> print(printable("a\x1b[2Jb.png"))
        a\u001b[2Jb.png
    """
    return "".join(
        character if character.isprintable() else f"\\u{ord(character):04x}"
        for character in os.fspath(text)
    )


def may_wait(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a named pipe, a socket or a device: reading may never end."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


OF_SHELLS = (
    "/dev/fd/",
    "/dev/stdin",
    "/proc/self/fd/",
)  # `<(command)` and `command |`.


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file, or of a pipe that a shell made for this process.

    Raises:
        OSError: if there is no such file, or reading it could wait forever.
    """
    if may_wait(path) and not os.fspath(path).startswith(OF_SHELLS):
        what = "a named pipe, a socket or a device"
        raise OSError(errno.EINVAL, what, os.fspath(path))
    return Path(path).read_bytes()


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary name beside `path`; renames it to `path` on success.

    Whatever goes wrong, a killed process included, `path` holds the old file or the
    new one, never a part. The temporary name keeps `path`'s suffix.

    Raises:
        OSError: naming `path`, where the disk is full or the folder not writable.
    """
    with replacing_all([Path(path)]) as (temporary,):
        yield temporary


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as JSON of two spaces' indent, whole or not at all."""
    with replacing(path) as temporary:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is not JSON, or nested so deeply that Python cannot read it.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


@contextlib.contextmanager
def replacing_all(paths: list[Path]) -> Iterator[list[Path]]:
    """`replacing` for files of one folder that belong together.

    All are written before the first is renamed.
    """
    temporaries = [
        path.with_name(f".writing-{os.getpid()}-{path.name}") for path in paths
    ]
    with _explain_os_error(paths):
        try:
            paths[0].parent.mkdir(parents=True, exist_ok=True)
            yield temporaries
            for temporary in temporaries:
                _flush(temporary)
            for temporary, path in zip(temporaries, paths, strict=True):
                temporary.replace(path)
        finally:
            for temporary in temporaries:
                if temporary.exists():
                    temporary.unlink()


@contextlib.contextmanager
def replacing_folder(
    path: str | os.PathLike[str], overwrite: bool = False
) -> Iterator[Path]:
    """`replacing` for a folder: yields an empty one beside `path`.

    With `overwrite` a folder at `path` is put aside before and removed after the new
    one has its name: killed between, the old one is found as `.replaced-NAME-*`.
    Without, it is an OSError that it is there, whenever it came.
    """
    path = Path(path)
    with _explain_os_error([path]):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(
            tempfile.mkdtemp(prefix=f".writing-{path.name}-", dir=path.parent)
        )
        aside = temporary.with_name(temporary.name.replace("writing", "replaced", 1))
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _flush(file)
            temporary.chmod(0o777 & ~_umask())  # mkdtemp's own is for us alone.
            if overwrite and path.exists():
                path.rename(aside)
            temporary.rename(path)
        finally:
            if aside.exists() and not path.exists():
                aside.rename(path)
            shutil.rmtree(aside, ignore_errors=True)
            shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    """The rights that new files are not given."""
    os.umask(mask := os.umask(0))
    return mask


def _flush(file: Path) -> None:
    """To the disk: what a rename puts in place is there after a power cut."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextlib.contextmanager
def _explain_os_error(paths: list[Path]) -> Iterator[None]:
    """An OSError inside says what could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OSError(
            error.errno,
            f"Expected room and the right to write {', '.join(map(str, paths))}. "
            f"Received: {error.strerror or error}. "
            + ("Free some space" if full else "Choose another folder")
            + "; nothing was written",
        ) from error


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
