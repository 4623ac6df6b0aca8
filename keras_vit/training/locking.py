"""A lock that permits one writer in a run's folder.

    RUN/.lock          the lock, which ends with its process
    RUN/.writer.json   the process that has it: host, pid and start time

Both files are deleted when the run ends.
"""

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keras_vit import manifest
from keras_vit.callers import warn
from keras_vit.files import explain_os_error, write_json
from keras_vit.lock_file import LockFile
from keras_vit.training.distribution import Workers
from keras_vit.training.resume import check_same
from keras_vit.training.runs import BEGUN, WRITER, read_writer

__all__ = ["RunInUse"]

LOCK = ".lock"
SECONDS = 1.0  # Time between two attempts.

_entered: ContextVar[frozenset[Path]] = ContextVar("entered", default=frozenset())


class RunInUse(OSError):
    """A different process trains in the folder.

    Attributes:
        exit_code: exit code of a command with this error: 75, EX_TEMPFAIL of
            sysexits.h. The same command can succeed later.
    """

    exit_code = 75


@contextlib.contextmanager
def one_writer(folder: Path, workers: Workers, wait: bool = False) -> Iterator[None]:
    """Prevents other runs from writing to the folder.

    The processes of a run are one writer, and the chief holds the lock. A nested call
    in the same thread has no effect.

    Raises:
        RunInUse: if a different run writes to the folder, unless `wait`.
    """
    folder = folder.resolve()
    if folder in _entered.get():
        yield
        return
    with contextlib.ExitStack() as held:
        _acquire(folder, workers, wait, held)
        token = _entered.set(_entered.get() | {folder})
        try:
            yield
        finally:
            _entered.reset(token)


@contextlib.contextmanager
def run_folder(
    folder: Path | None,
    workers: Workers,
    wait: bool,
    identity: Callable[[], Any],
    *,
    forget: Callable[[Path], None] | None = None,
    begun: str = BEGUN,
) -> Iterator[None]:
    """Prepares a run's folder, and prevents other runs from writing to it.

    Its manifest is deleted, because a new one is written when the run ends.

    Args:
        folder: folder of the run; None: it has none.
        workers: processes of the run.
        wait: whether to wait for a different run in the folder.
        identity: function that returns the values that must be equal to resume a run.
        forget: function that deletes an existing run; None: the run is resumed.
        begun: file with the identity of the run.

    Raises:
        RunInUse: see `one_writer`.
        ValueError: if the folder contains a run with a different identity.
    """
    if folder is None:
        yield
        return
    with one_writer(folder, workers, wait):
        if forget is not None:
            if workers.chief:
                forget(folder)
            workers.meet()
        check_same(folder / begun, identity(), workers.chief)
        if workers.chief:
            manifest.discard(folder)
        yield


def _acquire(
    folder: Path, workers: Workers, wait: bool, held: contextlib.ExitStack
) -> None:
    waiting = False
    while True:
        missed = workers.chief and not _lock(folder, held)
        (in_use,) = workers.any(missed)
        if not in_use:
            return
        if not wait:
            raise RunInUse(
                f"A different process trains in {str(folder)!r}: {_writer(folder)}. "
                "Wait for it (--wait, wait=True), or use a different output"
            )
        if workers.chief and not waiting:
            print(f"Waiting for {str(folder)!r}: {_writer(folder)} trains in it")
        waiting = True
        time.sleep(SECONDS)


def _lock(folder: Path, held: contextlib.ExitStack) -> bool:
    """Acquires the lock until `held` closes; returns False if another process has it.

    It returns True without a lock if the file system has none.
    """
    path, is_new = folder / LOCK, not folder.exists()
    with explain_os_error([folder]):
        folder.mkdir(parents=True, exist_ok=True)
        lock = LockFile(path, warn, f"start one run at a time in {str(folder)!r}")
        if not lock.acquire():
            if lock.outlives:
                warn(
                    "Locks on this file system do not end with their process. If "
                    f"{_writer(folder)} has ended, delete {str(lock.path)!r}"
                )
            return False
    if not lock.held:
        return True

    def release() -> None:
        (folder / WRITER).unlink(missing_ok=True)
        lock.release()
        if is_new:  # After an invalid option the folder is empty and is deleted.
            with contextlib.suppress(OSError):
                folder.rmdir()

    held.callback(release)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"host": platform.node(), "pid": os.getpid(), "started": started}
    write_json(folder / WRITER, owner)
    return True


def _writer(folder: Path) -> str:
    """Describes the process that holds the lock."""
    owner = read_writer(folder)
    if owner is None:
        return "a process that has not written its name yet"
    return f"process {owner['pid']} on {owner['host']}, since {owner['started']}"
