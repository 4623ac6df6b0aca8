"""Which processes train together, and a meeting of all before the first collective.

TensorFlow waits an hour for a missing worker and names none; JAX ends the process. Two
workers with one index, or with different versions of Keras, are reported by neither.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_vit.files import parse_json

LIMIT = 2**20  # Bytes of greetings.
GRACE = 2.0  # Seconds in which the others still learn what is wrong.
ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
PROCESS_ID = "KERAS_DISTRIBUTION_PROCESS_ID"


def is_described() -> bool:
    """Whether the environment describes a cluster."""
    return bool(os.environ.get("TF_CONFIG") or os.environ.get(ADDRESSES))


def cluster() -> tuple[list[str], int]:
    """Returns every worker's address and this process's index; 0 is the chief.

    They come from TF_CONFIG, or from Keras's own variables where that is not set.

    Raises:
        ValueError: naming the field of TF_CONFIG, or the variable, that is wrong.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text and os.environ.get(ADDRESSES):
        return _keras_variables()

    def wrong(field: str, value: Any) -> ValueError:
        return ValueError(
            'Expected TF_CONFIG to be {"cluster": {"worker": ["HOST:PORT", ...]}, '
            '"task": {"type": "worker", "index": I}}, the same cluster in every '
            f"process and another index in each. Received: {field}={value!r}. "
            "`keras-vit launch --workers N -- ...` sets it on one machine"
        )

    try:
        config = parse_json(text)
    except ValueError as error:
        raise wrong("TF_CONFIG", text) from error
    jobs = config.get("cluster") if isinstance(config, dict) else None
    if not isinstance(jobs, dict) or not jobs.get("worker"):
        raise wrong("cluster", jobs)
    if unknown := jobs.keys() - {"chief", "worker"}:
        raise wrong("cluster", {name: jobs[name] for name in sorted(unknown)})
    for name, addresses in jobs.items():
        if not isinstance(addresses, list) or not all(map(_is_address, addresses)):
            raise wrong(f"cluster.{name}", addresses)
    task = config.get("task")
    if not isinstance(task, dict):
        raise wrong("task", task)
    kind, index = task.get("type"), task.get("index")
    if kind not in jobs:
        raise wrong("task.type", kind)
    if not isinstance(index, int) or not 0 <= index < len(jobs[kind]):
        raise wrong("task.index", index)
    chiefs = jobs.get("chief", [])
    addresses = [*chiefs, *jobs["worker"]]
    if len(set(addresses)) < len(addresses):
        raise wrong("cluster", jobs)
    return addresses, index + (kind == "worker") * len(chiefs)


def _keras_variables() -> tuple[list[str], int]:
    addresses = os.environ[ADDRESSES].split(",")
    number = os.environ.get(PROCESS_ID, "")
    alike = len(set(addresses)) == len(addresses) and all(map(_is_address, addresses))
    if not alike or not number.isdigit() or int(number) >= len(addresses):
        raise ValueError(
            f"Expected {ADDRESSES}=HOST:PORT,HOST:PORT,..., the addresses of all "
            f"processes, and {PROCESS_ID}, this one's place among them, from 0. "
            f"Received: {ADDRESSES}={os.environ[ADDRESSES]}, {PROCESS_ID}={number}"
        )
    return addresses, int(number)


def _is_address(text: Any) -> bool:
    if not isinstance(text, str):
        return False
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit() and 0 < int(port) < 2**16


@dataclasses.dataclass(frozen=True)
class _Greeting:
    """A worker that has come.

    `process` is a name for people, `token` is different in every process.
    """

    index: int
    workers: int
    process: str
    token: str
    versions: dict[str, str]


def _read(line: bytes) -> list[_Greeting]:
    """Returns none for anything else, such as a port scanner's request."""
    try:
        found = [_Greeting(**fields) for fields in parse_json(line)]
    except (ValueError, TypeError):
        return []
    kinds = [
        kind
        for one in found
        for kind in (
            isinstance(one.index, int) and isinstance(one.workers, int),
            isinstance(one.token, str) and isinstance(one.versions, dict),
        )
    ]
    return found if all(kinds) else []


class _Meeting:
    """Who has come so far. Threads of the listening port add to it.

    Workers exchange all greetings they know, their own first: two with one index never
    meet, but a third one meets both.
    """

    def __init__(self, own: _Greeting, addresses: Sequence[str]) -> None:
        self.own, self.addresses = own, addresses
        self.greetings = {own.token: own}
        self.answered: set[int] = set()  # Workers that this one has reached,
        self.called: set[int] = set()  # and those that have reached this one.
        self.elsewhere: dict[str, int] = {}  # Addresses of a different worker.

    def line(self) -> bytes:
        """The greetings as they are sent."""
        known = [dataclasses.asdict(one) for one in self.greetings.copy().values()]
        return json.dumps(known).encode() + b"\n"

    def call(self, index: int) -> None:
        """Exchanges greetings with a worker, if it is there."""
        host, _, port = self.addresses[index].rpartition(":")
        with contextlib.suppress(OSError):
            place = (host.strip("[]"), int(port))
            with socket.create_connection(place, timeout=1) as connection:
                connection.settimeout(5)
                connection.sendall(self.line())
                with connection.makefile("rb") as file:
                    found = _read(file.readline(LIMIT))
            self._note(found)
            for one in found[:1]:
                self.answered.add(index)
                if one.index != index:
                    self.elsewhere[self.addresses[index]] = one.index

    def take(self, line: bytes) -> None:
        """Notes a worker that has called, and whom it knows."""
        found = _read(line)
        self._note(found)
        self.called.update(one.index for one in found[:1])

    def _note(self, found: Sequence[_Greeting]) -> None:
        self.greetings.update({one.token: one for one in found})

    def missing(self) -> set[int]:
        """Workers that have not been met in both directions."""
        others = set(range(len(self.addresses))) - {self.own.index}
        return others - (self.answered & self.called)

    def problem(self) -> str | None:
        """Returns what is wrong with those who have come, if anything is."""
        found = sorted(self.greetings.copy().values(), key=lambda one: one.index)
        places: dict[int, list[str]] = {}
        for one in found:
            places.setdefault(one.index, []).append(one.process)
        for index, processes in places.items():
            if len(processes) > 1:
                return (
                    "Expected another index in each worker. Received: index "
                    f"{index} in {' and in '.join(processes)}. Give each its own"
                )
        if any(one.workers != self.own.workers for one in found):
            counts = [f"{one.workers} in worker {one.index}" for one in found]
            return (
                "Expected the same cluster in every worker. Received: a cluster of "
                f"{', of '.join(counts)} workers. Give all the same addresses"
            )
        for address, index in self.elsewhere.items():
            return (
                "Expected the addresses in one order in every worker. Received: worker "
                f"{index} at {address}, where worker {self.addresses.index(address)} "
                "should be. Give all the same addresses"
            )
        return different_versions({one.index: one.versions for one in found})


def different_versions(workers: Mapping[int, Mapping[str, str]]) -> str | None:
    """Returns an error message that names each version that differs, by worker."""
    lines = []
    for name in {name: None for found in workers.values() for name in found}:
        where: dict[str, list[str]] = {}
        for index, found in workers.items():
            where.setdefault(str(found.get(name)), []).append(str(index))
        if len(where) > 1:
            at = (f"{v} in worker {', '.join(on)}" for v, on in where.items())
            lines.append(f"{name} {' and '.join(at)}")
    if not lines:
        return None
    return (
        "Expected the same versions in all workers, which compute one update "
        f"together. Received: {'; '.join(lines)}. Install the same ones everywhere"
    )


def wait_for(
    addresses: Sequence[str],
    own: int,
    seconds: float = 600,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Returns when all workers have met each other, and are of the same versions.

    Each worker listens on its own port and calls at the others'. It waits until it has
    reached all and all have reached it.

    Args:
        addresses: addresses of the workers, "HOST:PORT".
        own: which of them is this process.
        seconds: how long to wait.
        versions: see `environment.versions()`; they have to be the same in all
            processes.

    Raises:
        ValueError: naming the addresses where no worker was, an index that two
            workers have, a different cluster, or the versions that differ.
    """
    if len(addresses) < 2:
        return
    process = f"process {os.getpid()} of {socket.gethostname()}"
    token = secrets.token_hex(8)
    greeting = _Greeting(own, len(addresses), process, token, dict(versions or {}))
    meeting = _Meeting(greeting, addresses)
    ends = time.monotonic() + seconds
    with _listening(meeting, int(addresses[own].rpartition(":")[2])):
        while meeting.missing() or meeting.problem():
            for index in sorted(meeting.missing()):
                meeting.call(index)
            if meeting.problem():
                ends = min(ends, time.monotonic() + GRACE)
            if time.monotonic() > ends:
                break
            time.sleep(0.1 if meeting.missing() or meeting.problem() else 0)
    if problem := meeting.problem():
        raise ValueError(problem)
    if meeting.missing():
        raise ValueError(_absent(meeting, seconds))


def _absent(meeting: _Meeting, seconds: float) -> str:
    silent = sorted(meeting.missing() - meeting.answered)
    places = ", ".join(meeting.addresses[index] for index in silent)
    received = f"nobody at {places}. Is it started, and is its port open to this one?"
    if not silent:
        callers = ", ".join(str(index) for index in sorted(meeting.missing()))
        own = meeting.addresses[meeting.own.index]
        received = (
            f"no call of worker {callers}, which answers, at {own}. Is this worker's "
            "port open to it, and is this machine's address right?"
        )
    return (
        f"Expected {len(meeting.addresses)} workers within {seconds:g} s. "
        f"Received: {received}"
    )


@contextlib.contextmanager
def _listening(meeting: _Meeting, port: int) -> Iterator[None]:
    """Inside, whoever calls at a port is greeted and noted."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = 5

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                line = self.rfile.readline(LIMIT)
                self.wfile.write(meeting.line())
                meeting.take(line)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = False  # The last caller gets its answer.
        request_queue_size = 256

    try:
        server = Server(("", port), Handler)
    except OSError as error:
        raise ValueError(
            f"Expected port {port} of this machine to be free: it is that of worker "
            f"{meeting.own.index}, this process. Received: {error.strerror}. Does "
            "another training use it, or another process the same index?"
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
