"""Attacks HTTP servers that have few file descriptors with unfinished connections.

    pip install hypercorn granian         # Servers that are missing are left out.
    python benchmarks/server_attacks.py
    python benchmarks/server_attacks.py --only ours uvicorn --seconds 30

Each server runs the same small application with 128 file descriptors and, if it has
such options, deadlines of 3 s and at most 64 connections. 150 connections attack at
once: "half-open" sends nothing, "half a header" sends another byte every quarter of a
second, and "kept alive" sends one request and then nothing. Meanwhile a legitimate
client connects every quarter of a second and waits up to a second for a response.
Prints the number of responses that it gets, and the size of the server's log. "ours" is
uvicorn with keras_vit/serving/connections.py. Linux only.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ATTACKS = ("half-open", "half a header", "kept alive")
CONNECTIONS, DESCRIPTORS, MOST, SECONDS = 150, 128, 64, 3
PAUSE = 0.25  # Seconds between two requests of the legitimate client.


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Reads a body and responds "ok"."""
    if scope["type"] != "http":
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def uvicorn(port: int, **options: Any) -> None:
    """Runs uvicorn with its own limits, unless others are given."""
    import uvicorn

    own = {"timeout_keep_alive": SECONDS, "limit_concurrency": MOST}
    quiet = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
    uvicorn.run(application, port=port, **quiet, **(options or own))  # type: ignore[arg-type]


def ours(port: int) -> None:
    """Runs uvicorn with the limits of `keras-vit serve`."""
    from keras_vit.serving import connections

    protocol = connections.bounded(MOST, SECONDS, 10)
    with connections.bounded_log():
        uvicorn(port, http=protocol, backlog=connections.BACKLOG)


def hypercorn(port: int) -> None:
    """Runs hypercorn, which has no limit on connections."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.keep_alive_timeout = config.read_timeout = SECONDS
    config.backlog = MOST
    asyncio.run(serve(application, config))


def granian(port: int) -> None:
    """Runs Granian's embedded server."""
    from granian.constants import Interfaces
    from granian.http import HTTP1Settings
    from granian.server.embed import Server

    server = Server(
        application,
        port=port,
        interface=Interfaces.ASGI,
        backpressure=MOST,
        backlog=DESCRIPTORS,
        http1_settings=HTTP1Settings(header_read_timeout=1000 * SECONDS),
        websockets=False,
    )
    asyncio.run(server.serve())


SERVERS = {at.__name__: at for at in (uvicorn, hypercorn, granian, ours)}


@contextlib.contextmanager
def serving(name: str, log: Path) -> Iterator[int]:
    """Starts a server in a separate process; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, str(port)],
            stdout=file,
            stderr=file,
        )
        try:
            until = time.monotonic() + 30
            while not answers(port):
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit(f"{name} did not start: {log.read_text()[-500:]}")
                time.sleep(0.1)
            yield port
        finally:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    """Returns whether a request gets a response within a second."""
    request = (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n"
    )
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.sendall(request + b"\r\nabc")
            return b" 200 " in client.recv(100)
    except OSError:
        return False


def send(attackers: list[socket.socket], data: bytes) -> None:
    """Sends data to the attackers that are still connected."""
    for one in attackers:
        with contextlib.suppress(OSError):
            one.sendall(data)


def attacked(port: int, attack: str, seconds: float) -> tuple[int, int]:
    """Returns the legitimate client's responses, and its requests."""
    attackers = [socket.socket() for _ in range(CONNECTIONS)]
    for one in attackers:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
    time.sleep(0.5)
    if attack == "half a header":
        send(attackers, b"POST / HTTP/1.1\r\nHost: x")
    if attack == "kept alive":
        send(attackers, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answered = asked = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if attack == "half a header":
            send(attackers, b"x")
        answered += answers(port)
        asked += 1
        time.sleep(PAUSE)
    for one in attackers:
        one.close()
    return answered, asked


def main() -> None:
    """Prints a row for each server."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument(
        "--seconds", type=float, default=12, help="of an attack (default 12)"
    )
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        SERVERS[options.serve[0]](int(options.serve[1]))
        return
    row = "{:10} " + " {:>14}" * len(ATTACKS) + "  {}"
    print(row.format("server", *ATTACKS, "log of each, bytes"))
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.only:
            if name != "ours" and importlib.util.find_spec(name) is None:
                print(f"{name} is left out: pip install {name}")
                continue
            cells, logs = [], []
            for attack in ATTACKS:
                log = Path(temporary, "log")
                with serving(name, log) as port:
                    cells.append(
                        "{} of {}".format(*attacked(port, attack, options.seconds))
                    )
                logs.append(f"{os.path.getsize(log):,}")
            print(row.format(name, *cells, "  ".join(logs)), flush=True)


if __name__ == "__main__":
    main()
