"""Write files completely or not at all."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_vit.callers import warn

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"})
# Exceptions of zipfile for damaged bytes, depending on their position.
BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


def printable(text: str | os.PathLike[str]) -> str:
    r"""Escapes control characters in a file name or other external text.

    Args:
        text: name or text to print in a terminal. Bytes that are not UTF-8 are
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
    """Returns `$KERAS_HOME/keras_vit`; KERAS_HOME is ~/.keras unless set."""
    return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras_vit"


def files_below(
    folder: Path,
    *,
    hidden: bool = False,
    onerror: Callable[[OSError], None] | None = None,
) -> list[Path]:
    """Returns every file below a folder, sorted; follows links to folders.

    Each folder is read once, also if links lead to it again, and under its own path
    rather than that of a link. A link to a folder that contains `folder` is a loop and
    is not followed.

    Args:
        folder: folder to read.
        hidden: whether to include files and folders with names that begin with a dot.
        onerror: function that is called with the error of a folder that cannot be
            listed. None: such folders are skipped.
    """
    files: list[Path] = []
    top = Path(os.path.realpath(folder))
    read = set(top.parents)
    links = [folder]
    for link in links:  # Grows: links are followed after the folders themselves.
        for parent, folders, names in os.walk(link, onerror=onerror):
            here = Path(parent)
            if (real := Path(os.path.realpath(here))) in read:
                folders.clear()
                continue
            read.add(real)
            folders[:] = sorted(n for n in folders if hidden or n[0] != ".")
            links += [here / name for name in folders if (here / name).is_symlink()]
            files += [here / name for name in names if hidden or name[0] != "."]
    return sorted(files)


def may_wait(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a named pipe, a socket or a device: reading may never end."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


OF_SHELLS = (
    "/dev/fd/",
    "/dev/stdin",
    "/proc/self/fd/",
)  # For `<(command)` and `command |`.


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Reads a regular file, or a pipe that a shell created for this process.

    Raises:
        OSError: if the file does not exist, or reading it could wait forever.
    """
    if may_wait(path) and not os.fspath(path).startswith(OF_SHELLS):
        what = "a named pipe, a socket or a device"
        raise OSError(errno.EINVAL, what, os.fspath(path))
    return Path(path).read_bytes()


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary name next to `path`; renames it to `path` on success.

    After any failure, even a killed process, `path` is the complete old file or the
    complete new one. The temporary name has the suffix of `path`.

    Raises:
        OSError: with `path` in the message, if the disk is full or the folder is not
            writable.
    """
    with replacing_all([Path(path)]) as (temporary,):
        yield temporary


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises OSError if a file cannot be written, before the work on its contents.

    Creates the folder of the file.
    """
    path = Path(path)
    with explain_os_error([path]):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as JSON with an indent of two spaces, completely or not at all."""
    with replacing(path) as temporary:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def parse_json(text: str | bytes) -> Any:
    """Parses a JSON text.

    Raises:
        ValueError: if it is not JSON, or is nested too deeply for Python.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


@contextlib.contextmanager
def replacing_all(paths: list[Path]) -> Iterator[list[Path]]:
    """Does what `replacing` does for several files of one folder together.

    All files are written before the first is renamed. If a rename fails, the previous
    ones are undone. If the process is killed between two renames, some files are new
    and some old.
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
    """Renames all files or, if an operation fails, none."""
    old = [
        path.with_name(temporary.name.replace("writing", "replaced", 1))
        for path, temporary in zip(paths, temporaries, strict=True)
    ]
    renamed: list[int] = []
    try:
        for place, path in enumerate(paths):
            if place < len(paths) - 1 and path.exists():  # The last is never undone.
                _link(path, old[place])
            temporaries[place].replace(path)
            renamed.append(place)
    except OSError:
        outcome.text = "some of these files may be new and some old. Write them again"
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
    """Creates a hard link to a file, or a copy if the file system has no hard links."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


@contextlib.contextmanager
def replacing_folder(
    path: str | os.PathLike[str], overwrite: bool = False
) -> Iterator[Path]:
    """Yields an empty folder next to `path`, and renames it to `path` on success.

    With `overwrite`, an existing folder is renamed before the new one gets its name,
    and removed afterwards. If the process is killed in between, the old folder is left
    as `.replaced-NAME-*`. Without `overwrite`, an existing folder is an OSError, even
    if it was created in the meantime.
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
            temporary.chmod(0o777 & ~_umask())  # mkdtemp permits only this user.
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
    """Removes a temporary folder; warns if that fails."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        warn(
            f"Cannot delete the temporary folder {str(folder)!r} ({error}). Delete it",
        )


def _umask() -> int:
    """Returns the permissions that new files do not get."""
    os.umask(mask := os.umask(0))
    return mask


def _flush(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk.

    After a power failure, a name then has either the old content or the new.
    """
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not support fsync for folders.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


NOTHING = "nothing was written"
WRITTEN = "the new files exist, but a power failure may lose them"


@dataclasses.dataclass
class Outcome:
    """The state of the disk if the next operation fails."""

    text: str = NOTHING


class _Explained(OSError):
    """An error from `explain_os_error`; `reason` is the operating system's message."""

    reason = ""


@contextlib.contextmanager
def explain_os_error(paths: list[Path]) -> Iterator[Outcome]:
    """Adds the paths, the state of the disk and a remedy to an OSError inside."""
    outcome = Outcome()
    try:
        yield outcome
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = error.strerror or str(error)
        if isinstance(error, _Explained):  # Its text is about a temporary file.
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
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    """Returns the SHA-256 of a value as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
