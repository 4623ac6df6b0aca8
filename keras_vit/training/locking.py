"""One writer for a run's folder.

    RUN/.lock          the lock itself, which ends with its process
    RUN/.writer.json   the process that has it: host, pid and start time

Both are gone when the run has ended.
"""

import contextlib
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keras_vit import manifest
from keras_vit.files import explain_os_error, parse_json, write_json
from keras_vit.lock_file import LockFile
from keras_vit.training.distribution import Workers
from keras_vit.training.resume import check_same
from keras_vit.training.runs import BEGUN, WRITER

__all__ = ["RunInUse"]

LOCK = ".lock"
SECONDS = 1.0  # Between two attempts.

_entered: ContextVar[frozenset[Path]] = ContextVar("entered", default=frozenset())


class RunInUse(OSError):
    """Another process trains in the folder.

    Attributes:
        exit_code: exit code of a command that ends by it: 75, EX_TEMPFAIL of
            sysexits.h. The same command works later.
    """

    exit_code = 75


@contextlib.contextmanager
def one_writer(folder: Path, workers: Workers, wait: bool = False) -> Iterator[None]:
    """Inside, no other training writes to the folder.

    The processes of one training are one writer, of which the chief has the lock.
    Inside itself, in the same thread, it does nothing.

    Raises:
        RunInUse: if another training does, unless `wait`.
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
    """Inside, the folder is this run's, and no other training writes to it.

    Its manifest is discarded: it is written when the run ends.

    Args:
        folder: folder of the run; None: it has none.
        workers: the processes of the training.
        wait: whether to wait for another training in it.
        identity: returns what has to be equal for a run to be resumed.
        forget: removes the run that is there; None: it is resumed.
        begun: the file with its identity.

    Raises:
        RunInUse: as `one_writer`.
        ValueError: if the folder has a run of another identity.
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
                f"Another process trains in {str(folder)!r}: {_writer(folder)}. Wait "
                "for it (--wait, wait=True), or choose another output"
            )
        if workers.chief and not waiting:
            print(f"Waiting for {str(folder)!r}: {_writer(folder)} trains in it")
        waiting = True
        time.sleep(SECONDS)


def _lock(folder: Path, held: contextlib.ExitStack) -> bool:
    """Whether the lock is ours now, until `held` ends, or cannot be had at all."""
    path, is_new = folder / LOCK, not folder.exists()
    with explain_os_error([folder]):
        folder.mkdir(parents=True, exist_ok=True)
        lock = LockFile(path, _warn, f"start one training at a time in {str(folder)!r}")
        if not lock.acquire():
            if lock.outlives:
                _warn(
                    "This file system has no locks that end with their process. If "
                    f"{_writer(folder)} has ended, delete {str(lock.path)!r}"
                )
            return False
    if not lock.held:
        return True

    def release() -> None:
        (folder / WRITER).unlink(missing_ok=True)
        lock.release()
        if is_new:  # An option was refused: nothing is left of it.
            with contextlib.suppress(OSError):
                folder.rmdir()

    held.callback(release)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"host": platform.node(), "pid": os.getpid(), "started": started}
    write_json(folder / WRITER, owner)
    return True


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _writer(folder: Path) -> str:
    """The process that has the lock, in words."""
    try:
        owner = parse_json((folder / WRITER).read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}, since {owner['started']}"
    except (OSError, ValueError, KeyError, TypeError):  # It has just begun or ended.
        return "a process that has not written its name yet"
