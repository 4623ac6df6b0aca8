"""A lock file: its lock ends with its process, and the file with the lock."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock


class LockFile:
    """A lock that one process has at a time.

    Args:
        path: path of the file, in a folder that is there.
        warn: called with a sentence if the file system has no locks.
        without: what to do then, in words.
    """

    def __init__(self, path: Path, warn: Callable[[str], None], without: str) -> None:
        from filelock import FileLock  # 30 ms, which a cached file does without.

        self.path = path
        self.warn = warn
        self.without = without
        self._lock: BaseFileLock = FileLock(path, fallback_to_soft=False)

    @property
    def outlives(self) -> bool:
        """Whether the lock stays after a killed process: known once it was tried."""
        from filelock import SoftFileLock

        return isinstance(self._lock, SoftFileLock)

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._lock.is_locked

    def acquire(self, wait: bool = False) -> bool:
        """Takes the lock; returns False if another process has it.

        Where the file system has no locks it warns, and returns True without one.

        Args:
            wait: whether to wait for the other process.

        Raises:
            OSError: if the file cannot be opened; a symbolic link is refused.
        """
        from filelock import Timeout

        try:
            self._lock.acquire(blocking=wait)
        except Timeout:
            return False
        except OSError as error:
            if error.filename:  # The file cannot be opened, which is not about locks.
                raise
            if error.errno == errno.ENOSYS and not self.outlives:
                return self._acquire_by_name(wait)
            self.warn(f"No locks on this file system ({error}): {self.without}")
        return True

    def _acquire_by_name(self, wait: bool) -> bool:
        """Likewise where there is no flock: a file is the lock while it is there."""
        from filelock import SoftFileLock

        self.path.unlink(missing_ok=True)  # Of the attempt.
        self.path = self.path.with_name(f"{self.path.name}.held")
        self._lock = SoftFileLock(self.path)
        return self.acquire(wait)

    def release(self) -> None:
        """Deletes the file and gives the lock back."""
        if not self.outlives:
            # While the lock is held: the next process sees that the file has no name.
            with contextlib.suppress(PermissionError):  # Windows keeps an open file.
                self.path.unlink(missing_ok=True)
        self._lock.release()


@contextlib.contextmanager
def one_process(path: Path, does: str, say: Callable[[str], None]) -> Iterator[None]:
    """Inside, no other process does the same for `path`; waits until then.

    Args:
        path: what is made.
        does: what a process does with it, such as "downloads".
        say: called with a sentence for the user.

    Raises:
        OSError: if `PATH.lock` cannot be opened; a symbolic link is refused.
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
