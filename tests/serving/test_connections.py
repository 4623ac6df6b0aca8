"""Bounds on connections, in front of an application that only counts bytes."""

import asyncio
import contextlib
import logging
import socket
import threading
import time
import types

import pytest

pytestmark = pytest.mark.tensorflow_only

uvicorn = pytest.importorskip("uvicorn", reason="LOUD: no uvicorn, so no server ran")

from keras_vit.serving import connections  # noqa: E402

MOST, HEADER_SECONDS, SECONDS = 8, 0.4, 0.8
GOOD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
LONG = 2**26  # Bytes of an answer: more than sockets keep.


async def application(scope, receive, send):
    """Answers a body with as many bytes; `/long` with `LONG` of them."""
    count, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        count, more = count + len(message["body"]), message["more_body"]
    body = bytes(LONG if scope["path"] == "/long" else count)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(seconds):
    config = uvicorn.Config(
        application,
        http=connections.bounded(MOST, HEADER_SECONDS, seconds),
        backlog=connections.BACKLOG,
        log_config=None,
        lifespan="off",
        ws="none",
    )
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    server.port = listening.getsockname()[1]
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve([listening])), daemon=True
    )
    thread.start()
    yield server
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def server():
    with serving(SECONDS) as server:
        yield server


def connected(server, sent=b""):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(sent)
    return connection


def is_answered(server):
    with contextlib.suppress(OSError), connected(server, GOOD) as connection:
        return b"200 OK" in connection.recv(1000)
    return False


def read_answers(connection, count=1):
    """Reads as many answers, of three zeros each."""
    said = b""
    while said.count(b"\r\n\r\n\0\0\0") < count:
        part = connection.recv(1000)
        assert part
        said += part


def seconds_until_closed(connection):
    """Reads until the end, or the reset."""
    begun = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while connection.recv(2**16):
            pass
    return time.monotonic() - begun


def opened(server):
    """How many connections the server has, once it is done with those that are gone."""
    until = time.monotonic() + 5
    while len(server.server_state.connections) and time.monotonic() < until:
        time.sleep(0.02)
    return len(server.server_state.connections)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
        GOOD,
    ],
    ids=["nothing", "half a header", "half a body", "kept alive"],
)
def test_connections_that_wait_shut_nobody_out(server, sent):
    with contextlib.ExitStack() as stack:
        for _ in range(3 * MOST):
            stack.enter_context(connected(server, sent))
        assert all(is_answered(server) for _ in range(3))
        assert len(server.server_state.connections) <= MOST + 1
    assert opened(server) == 0


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (b"", HEADER_SECONDS),
        (GOOD, HEADER_SECONDS),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc", SECONDS),
    ],
    ids=["nothing", "kept alive", "half a body"],
)
def test_a_connection_that_waits_is_closed(server, sent, seconds):
    with connected(server, sent) as connection:
        assert seconds <= seconds_until_closed(connection) + 0.1 < seconds + 3


def test_a_header_that_drips_is_not_waited_for(server):
    with connected(server, b"POST / HTTP/1.1\r\nHost: x\r\nA: ") as connection:
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - begun < 10:
                connection.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() - begun < HEADER_SECONDS + 3


def test_a_kept_connection_has_a_deadline_for_each_header(server):
    with connected(server) as connection:
        for _ in range(3):
            time.sleep(HEADER_SECONDS / 2)
            connection.sendall(GOOD)
            read_answers(connection)


def test_an_answer_that_nobody_reads_is_not_kept(server):
    with connected(server, GOOD.replace(b"/", b"/long", 1)) as connection:
        until = time.monotonic() + SECONDS + 5
        while server.server_state.connections and time.monotonic() < until:
            time.sleep(0.05)
        assert not server.server_state.connections
        assert seconds_until_closed(connection) < 5


def test_a_slow_client_has_the_time_for_its_answer():
    """Not only that for its next header, although uvicorn has buffered the answer."""
    sent = GOOD.replace(b"/", b"/long", 1)
    with serving(seconds=60) as server, connected(server, sent) as connection:
        time.sleep(2 * HEADER_SECONDS)
        count = 0
        while count < LONG:
            part = connection.recv(2**20)
            assert part, f"cut after {count} bytes"
            count += len(part)
        # Then it is closed, because no other request comes.
        assert seconds_until_closed(connection) < 10 * HEADER_SECONDS


def test_requests_that_are_sent_before_an_answer_are_all_answered(server):
    with connected(server, GOOD * 5) as connection:
        read_answers(connection, 5)


def test_the_number_of_connections_is_that_of_descriptors(monkeypatch):
    resource = pytest.importorskip("resource")
    used = 20
    monkeypatch.setattr(connections.os, "listdir", lambda _: range(used))
    for limit, expected in [
        (resource.RLIM_INFINITY, 1024),
        (2**20, 1024),
        (used + connections._SPARE + 100, 50),
    ]:
        monkeypatch.setattr(
            connections.resource, "getrlimit", lambda _, at=limit: (at, at)
        )
        assert connections.most_connections(1024) == expected
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(OSError, match=r"Received: a limit of 64\. .*ulimit -n"):
        connections.most_connections(1024)


def test_messages_are_a_number_a_minute(monkeypatch, caplog):
    logger, now = logging.getLogger("uvicorn.error"), [100.0]
    # Not `time.monotonic` itself: it is also the clock of the other tests' server.
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(connections, "time", clock)
    with connections.bounded_log(most=2):
        for _ in range(4):
            logger.warning("Invalid HTTP request received.")
        now[0] += 59.5
        logger.warning("Invalid HTTP request received.")
        now[0] += 0.5
        logger.warning("late %s", "100%")
    logger.warning("after")
    assert [record.getMessage() for record in caplog.records] == [
        *["Invalid HTTP request received."] * 2,
        "(3 messages were omitted) late 100%",
        "after",
    ]
