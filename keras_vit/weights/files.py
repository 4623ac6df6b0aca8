"""Files that are whole or not there."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary name beside `path`; renames it to `path` on success.

    Whatever goes wrong, a killed process included, `path` holds the old file or the
    new one, never a part. The temporary name keeps `path`'s suffix.

    Raises:
        OSError: naming `path`, where the disk is full or the folder not writable.
    """
    path = Path(path)
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OSError(
            error.errno,
            f"Expected room and the right to write {path}. Received: "
            f"{error.strerror or error}. "
            + ("Free some space" if full else "Choose another folder")
            + "; nothing was written",
        ) from error
    finally:
        if temporary.exists():
            temporary.unlink()
