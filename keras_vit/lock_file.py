"""A lock file: the lock ends with its process, and the file ends with the lock."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock


class LockFile:
    """A lock that only one process can hold at a time.

    Args:
        path: path of the file, in an existing folder.
        warn: function that is called with a message if the file system has no locks.
        without: remedy for that message.
    """

    def __init__(self, path: Path, warn: Callable[[str], None], without: str) -> None:
        from filelock import FileLock  # Takes 30 ms, which a cached file does not need.

        self.path = path
        self.warn = warn
        self.without = without
        self._lock: BaseFileLock = FileLock(path, fallback_to_soft=False)

    @property
    def outlives(self) -> bool:
        """Whether the lock remains after a killed process; valid after `acquire`."""
        from filelock import SoftFileLock

        return isinstance(self._lock, SoftFileLock)

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock.is_locked

    def acquire(self, wait: bool = False) -> bool:
        """Acquires the lock; returns False if a different process holds it.

        If the file system has no locks, it warns and returns True without a lock.

        Args:
            wait: whether to wait for the other process.

        Raises:
            OSError: if the file cannot be opened, or is a symbolic link.
        """
        from filelock import Timeout

        try:
            self._lock.acquire(blocking=wait)
        except Timeout:
            return False
        except OSError as error:
            if error.filename:  # The file cannot be opened, so locks are not the cause.
                raise
            if error.errno == errno.ENOSYS and not self.outlives:
                return self._acquire_by_name(wait)
            self.warn(f"This file system has no locks ({error}): {self.without}")
        return True

    def _acquire_by_name(self, wait: bool) -> bool:
        """Acquires a lock without flock: a file is the lock while it exists."""
        from filelock import SoftFileLock

        self.path.unlink(missing_ok=True)  # Left from the attempt with flock.
        self.path = self.path.with_name(f"{self.path.name}.held")
        self._lock = SoftFileLock(self.path)
        return self.acquire(wait)

    def release(self) -> None:
        """Deletes the file and releases the lock."""
        if not self.outlives:
            # Deleted while locked, so that the next process notices the deletion.
            with contextlib.suppress(PermissionError):  # Windows keeps open files.
                self.path.unlink(missing_ok=True)
        self._lock.release()


@contextlib.contextmanager
def one_process(path: Path, does: str, say: Callable[[str], None]) -> Iterator[None]:
    """Ensures that only one process at a time writes `path`; waits if necessary.

    Args:
        path: path of the file that is written.
        does: verb for messages, such as "downloads".
        say: function that is called with a message for the user.

    Raises:
        OSError: if `PATH.lock` cannot be opened, or is a symbolic link.
    """
    without = f"start one process at a time that {does} {path}"
    lock = LockFile(path.with_name(f"{path.name}.lock"), say, without)
    if not lock.acquire():
        say(f"Waiting for another process that {does} {path}")
        lock.acquire(wait=True)
    try:
        yield
    finally:
        lock.release()
