"""Limits on a server's connections: deadlines, their number, and log messages.

Uvicorn has a deadline only for keep-alive connections, not for headers, and does not
close connections when there are too many (docs/decisions.md compares other servers).
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
except ImportError:  # Windows does not have this limit.
    resource = None  # type: ignore[assignment]

from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 32  # asyncio accepts this many at once, however many are open.
_SPARE = 4 * BACKLOG  # Descriptors for connections that are being opened or closed.
_FEWEST = 8
SENT_SECONDS = 0.1  # Between looks whether a slow client has received a response.


def most_connections(wanted: int) -> int:
    """Returns how many connections each of the two protocols can have.

    Args:
        wanted: number of connections if there are enough file descriptors.

    Raises:
        OSError: if there are too few file descriptors to serve.
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
            f"Expected at least {used + _SPARE + 2 * _FEWEST} file descriptors. "
            f"Received: a limit of {limit}. Raise it with `ulimit -n`"
        )
    return each


def bounded(most: int, header_seconds: float, seconds: float) -> type[H11Protocol]:
    """Returns Uvicorn's protocol with deadlines and a maximum number of connections.

    If there are more connections, the one that has waited longest for the rest of its
    request is closed. Clients that send a request at once are therefore served, however
    many idle connections there are.

    Args:
        most: maximum number of connections at a time.
        header_seconds: time for a complete header, from the start of the connection or
            the end of the previous response.
        seconds: time from a complete header to the end of the response.
    """
    alive: set[H11Protocol] = set()
    waiting: dict[H11Protocol, None] = {}  # A part of `alive`, the longest first.

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
                self._wait_when_sent()
            self._look()  # The next request may have been sent before this response.

        def _look(self) -> None:
            cycle = self.cycle
            if cycle is None or cycle.response_complete:
                return
            if cycle is not self._answering:
                self._answering = cycle
                self._arm(seconds)
            if not cycle.more_body:
                waiting.pop(self, None)

        def _wait_when_sent(self) -> None:
            """A complete response may still be in the buffer of a slow client."""
            if self.transport.is_closing() or not self.cycle.response_complete:
                return
            if self.transport.get_write_buffer_size():
                self.loop.call_later(SENT_SECONDS, self._wait_when_sent)
            else:
                self._wait()

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
    """Passes a limited number of messages per minute; counts those it omits."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.passed, self.since, self.left_out = most, 0, 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self.since >= 60:
            if self.left_out:
                record.msg = f"({self.left_out} messages were omitted) {record.msg}"
            self.passed, self.since, self.left_out = 0, now, 0
        self.passed += 1
        self.left_out += self.passed > self.most
        return self.passed <= self.most


@contextlib.contextmanager
def bounded_log(most: int = 10) -> Iterator[None]:
    """Limits the server's warnings and errors to `most` per minute."""
    few = _Few(most)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addFilter(few)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(few)
