"""Bounds on the connections of a server: deadlines, a number, and what is logged.

Uvicorn has a deadline for a kept connection only, none for a header, and no number of
connections that it closes any for (docs/decisions.md compares it with others).
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

try:
    import resource
except ImportError:  # Windows, which has no such limit.
    resource = None  # type: ignore[assignment]

from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 32  # asyncio accepts as many at once, whatever the number of connections.
_SPARE = 4 * BACKLOG  # Descriptors of connections that are being opened and closed.
_FEWEST = 8


def most_connections(wanted: int) -> int:
    """The number of connections of each protocol, of two, that descriptors allow.

    Args:
        wanted: the number if there are enough descriptors.

    Raises:
        OSError: if there are too few to serve at all.
    """
    if resource is None:
        return wanted
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    used = len(os.listdir("/dev/fd"))
    each = min(wanted, (limit - used - _SPARE) // 2)
    if each < _FEWEST:
        raise OSError(
            f"Expected {used + _SPARE + 2 * _FEWEST} file descriptors or more. "
            f"Received: a limit of {limit}. Raise it with `ulimit -n`"
        )
    return each


def bounded(most: int, header_seconds: float, seconds: float) -> type[H11Protocol]:
    """Uvicorn's protocol with a deadline for everything, and a number of connections.

    Beyond that number the connection is closed that has waited longest for the rest of
    its request: those who send a request at once are served however many never do.

    Args:
        most: connections at a time.
        header_seconds: until a header is whole, from the connection's start or from the
            previous answer's end.
        seconds: from a whole header until the answer is sent.
    """
    alive: set[H11Protocol] = set()
    waiting: dict[H11Protocol, None] = {}  # Of these, the longest first.

    def forget(connection: H11Protocol) -> None:
        alive.discard(connection)
        waiting.pop(connection, None)

    class Bounded(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _answering: Any = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            alive.add(self)
            self._wait()
            if len(alive) > most:
                longest = next(iter(waiting))
                longest.transport.abort()
                forget(longest)

        def connection_lost(self, exc: Exception | None) -> None:
            forget(self)
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                return
            if self.cycle.response_complete:
                self._wait()
            self._look()  # The next request may have been sent before this answer.

        def _look(self) -> None:
            cycle = self.cycle
            if cycle is None or cycle.response_complete:
                return
            if cycle is not self._answering:
                self._answering = cycle
                self._arm(seconds)
            if not cycle.more_body:
                waiting.pop(self, None)

        def _wait(self) -> None:
            waiting.pop(self, None)
            waiting[self] = None
            self._arm(header_seconds)

        def _arm(self, after: float) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(after, self.transport.abort)

    return Bounded


class _Few(logging.Filter):
    """Passes a number of messages a minute, and reports how many it did not."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.passed, self.since, self.left_out = most, 0, 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self.since >= 60:
            if self.left_out:
                record.msg = f"({self.left_out} messages were left out) {record.msg}"
            self.passed, self.since, self.left_out = 0, now, 0
        self.passed += 1
        self.left_out += self.passed > self.most
        return self.passed <= self.most


@contextlib.contextmanager
def bounded_log(most: int = 10) -> Iterator[None]:
    """The server's warnings and errors, a number a minute, inside."""
    few = _Few(most)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addFilter(few)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(few)
