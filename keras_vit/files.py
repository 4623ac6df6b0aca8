"""Files that are whole or not there."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"})
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


def cache_dir() -> Path:
    """`$KERAS_HOME/keras_vit`; KERAS_HOME is ~/.keras unless set."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras_vit"


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
    """Yields a temporary name next to `path`; renames it to `path` on success.

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

    All are written before the first is renamed. If a rename fails, those before it are
    taken back. A process that is killed between two renames leaves files of both.
    """
    temporaries = [
        path.with_name(f".writing-{os.getpid()}-{path.name}") for path in paths
    ]
    with explain_os_error(paths) as outcome:
        try:
            paths[0].parent.mkdir(parents=True, exist_ok=True)
            yield temporaries
            for temporary in temporaries:
                _flush(temporary)
            _rename_all(temporaries, paths, outcome)
            outcome.text = WRITTEN
            _flush(paths[0].parent)
        finally:
            for temporary in temporaries:
                temporary.unlink(missing_ok=True)


def _rename_all(temporaries: list[Path], paths: list[Path], outcome: "Outcome") -> None:
    """Gives all files their names or, if an operation fails, none."""
    old = [
        path.with_name(temporary.name.replace("writing", "replaced", 1))
        for path, temporary in zip(paths, temporaries, strict=True)
    ]
    renamed: list[int] = []
    try:
        for place, path in enumerate(paths):
            if place < len(paths) - 1 and path.exists():  # The last is not taken back.
                _link(path, old[place])
            temporaries[place].replace(path)
            renamed.append(place)
    except OSError:
        outcome.text = "some of these files may be new and some old: write them again"
        for place in renamed:
            if old[place].exists():
                old[place].replace(paths[place])
            else:
                paths[place].unlink()
        outcome.text = NOTHING
        raise
    finally:
        for path in old:
            path.unlink(missing_ok=True)


def _link(path: Path, other: Path) -> None:
    """A second name for a file, or a copy where the file system has no such names."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


@contextlib.contextmanager
def replacing_folder(
    path: str | os.PathLike[str], overwrite: bool = False
) -> Iterator[Path]:
    """`replacing` for a folder: yields an empty one next to `path`.

    With `overwrite` a folder at `path` is put aside before and removed after the new
    one has its name: killed between, the old one is found as `.replaced-NAME-*`.
    Without, it is an OSError that it is there, whenever it came.
    """
    path = Path(path)
    with explain_os_error([path]) as outcome:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(
            tempfile.mkdtemp(prefix=f".writing-{path.name}-", dir=path.parent)
        )
        aside = temporary.with_name(temporary.name.replace("writing", "replaced", 1))
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file() or file.is_dir():
                    _flush(file)
            temporary.chmod(0o777 & ~_umask())  # mkdtemp's own is for us alone.
            _flush(temporary)
            if overwrite and path.exists():
                path.rename(aside)
            temporary.rename(path)
            outcome.text = WRITTEN
            _flush(path.parent)
        finally:
            if aside.exists() and not path.exists():
                aside.rename(path)
            _remove(aside)
            _remove(temporary)


def _remove(folder: Path) -> None:
    """Removes a temporary folder; warns of one that stays."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        warnings.warn(
            f"A temporary folder is left: {str(folder)!r} ({error}). Delete it",
            stacklevel=2,
        )


def _umask() -> int:
    """The rights that new files are not given."""
    os.umask(mask := os.umask(0))
    return mask


def _flush(path: Path) -> None:
    """Writes a file, or the names in a folder, to the disk.

    After a power cut a name is that of the old content or of the new.
    """
    if path.is_dir() and os.name == "nt":  # Windows opens no folder.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no fsync of folders.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


NOTHING = "nothing was written"
WRITTEN = "the new files are there, but a power cut may lose them"


@dataclasses.dataclass
class Outcome:
    """The state of the disk, if the next operation fails."""

    text: str = NOTHING


class _Explained(OSError):
    """An error of `explain_os_error`; `reason` is the operating system's."""

    reason = ""


@contextlib.contextmanager
def explain_os_error(paths: list[Path]) -> Iterator[Outcome]:
    """An OSError inside names the paths, the state of the disk and a remedy."""
    outcome = Outcome()
    try:
        yield outcome
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = error.strerror or str(error)
        if isinstance(error, _Explained):  # Its own outcome is of a temporary file.
            reason = error.reason
        explained = _Explained(
            error.errno,
            f"Cannot write {', '.join(map(str, paths))}: {reason}. "
            + ("Free some space" if full else "Choose another folder")
            + f"; {outcome.text}",
        )
        explained.reason = reason
        raise explained from error


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    """SHA-256 of a value as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
