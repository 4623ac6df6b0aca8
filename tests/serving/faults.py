"""A TCP proxy on the loopback whose connections fail by a schedule."""

import collections
import contextlib
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

LINGER = struct.pack("ii", 1, 0)  # `close` is a reset, then.


class Proxy:
    """Passes connections to a server, each with the next fault of `faults`, or none.

    Faults: "refuse" closes without a byte, "reset" the same by a reset, "swallow" reads
    and never answers; ("late", seconds) answers later, ("drip", seconds) a byte each so
    many seconds; ("half", count) ends after so many bytes of answers.
    """

    def __init__(self, url):
        split = urlsplit(url)
        self.target = (split.hostname, split.port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.url = f"{split.scheme}://{self.address}"
        self.faults, self.accepted = collections.deque(), 0
        self.ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.accepted += 1
                fault = self.faults.popleft() if self.faults else None
                threading.Thread(
                    target=self._connect, args=(client, fault), daemon=True
                ).start()

    def _connect(self, client, fault):
        kind, value = fault if isinstance(fault, tuple) else (fault, None)
        with client, contextlib.suppress(OSError):
            if kind == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            if kind in ("refuse", "reset"):
                return
            with socket.create_connection(self.target) as server:
                if kind == "swallow":
                    pass_on(client, server, lambda data: len(data) and [])
                    self.ended.wait(20)
                    return
                forth = (client, server, lambda data: [data])
                threading.Thread(target=pass_on, args=forth, daemon=True).start()
                pass_on(server, client, self._answers(kind, value))

    def _answers(self, kind, value):
        """What is passed on of each part of an answer; None ends the connection."""
        passed = 0

        def parts(data):
            nonlocal passed
            if kind == "late":
                self.ended.wait(value)
            if kind == "drip":
                for at in range(len(data)):
                    time.sleep(value)
                    yield data[at : at + 1]
                return
            if kind == "half" and passed + len(data) >= value:
                yield data[: value - passed]
                yield None
            passed += len(data)
            yield data

        return parts

    def close(self):
        self.ended.set()
        self.listener.close()


def pass_on(source, sink, parts):
    """Bytes from one to the other, until one ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            for part in parts(data):
                if part is None:
                    sink.shutdown(socket.SHUT_RDWR)  # Also wakes the other direction.
                    return
                sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxied(url):
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
