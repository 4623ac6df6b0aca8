"""Determine which processes train together, and connect all before training starts.

TensorFlow waits an hour for a missing worker and does not name it; JAX ends the
process. Neither detects two workers with the same index or with different versions of
Keras.
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

LIMIT = 2**20  # Maximum bytes of greetings.
GRACE = 2.0  # Seconds for the other workers to receive the problem.
ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
PROCESS_ID = "KERAS_DISTRIBUTION_PROCESS_ID"


def is_described() -> bool:
    """Whether the environment describes a cluster."""
    return bool(os.environ.get("TF_CONFIG") or os.environ.get(ADDRESSES))


def cluster() -> tuple[list[str], int]:
    """Returns every worker's address and this process's index; 0 is the chief.

    They come from TF_CONFIG, or from Keras's variables if it is not set.

    Raises:
        ValueError: with the field of TF_CONFIG, or the variable, that is invalid.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text and os.environ.get(ADDRESSES):
        return _keras_variables()

    def wrong(field: str, value: Any) -> ValueError:
        return ValueError(
            'Expected TF_CONFIG to be {"cluster": {"worker": ["HOST:PORT", ...]}, '
            '"task": {"type": "worker", "index": I}}, with the same cluster in every '
            f"process and a different index in each. Received: {field}={value!r}. "
            "On one machine, `keras-vit launch --workers N -- ...` sets it"
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
            f"Expected {ADDRESSES}=HOST:PORT,HOST:PORT,..., with the addresses of all "
            f"processes, and {PROCESS_ID}, the index of this process, from 0. "
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
    """A worker's introduction to the others.

    `process` is a readable name; `token` is unique for each process.
    """

    index: int
    workers: int
    process: str
    token: str
    versions: dict[str, str]


def _read(line: bytes) -> list[_Greeting]:
    """Parses greetings; returns none for other input, such as a port scanner's."""
    try:
        greetings = [_Greeting(**fields) for fields in parse_json(line)]
    except (ValueError, TypeError):
        return []
    kinds = [
        kind
        for one in greetings
        for kind in (
            isinstance(one.index, int) and isinstance(one.workers, int),
            isinstance(one.token, str) and isinstance(one.versions, dict),
        )
    ]
    return greetings if all(kinds) else []


class _Meeting:
    """The workers that have connected so far, updated by threads of the listening port.

    Workers exchange all greetings that they have received, their own first. Two workers
    with the same index never connect to each other, but a third connects to both.
    """

    def __init__(self, own: _Greeting, addresses: Sequence[str]) -> None:
        self.own, self.addresses = own, addresses
        self.greetings = {own.token: own}
        self.answered: set[int] = set()  # Workers that this one has reached,
        self.called: set[int] = set()  # and those that have reached this one.
        self.elsewhere: dict[str, int] = {}  # Addresses of a different worker.

    def line(self) -> bytes:
        """Returns the greetings in the form in which they are sent."""
        known = [dataclasses.asdict(one) for one in self.greetings.copy().values()]
        return json.dumps(known).encode() + b"\n"

    def call(self, index: int) -> None:
        """Exchanges greetings with a worker, if it responds."""
        host, _, port = self.addresses[index].rpartition(":")
        with contextlib.suppress(OSError):
            place = (host.strip("[]"), int(port))
            with socket.create_connection(place, timeout=1) as connection:
                connection.settimeout(5)
                connection.sendall(self.line())
                with connection.makefile("rb") as file:
                    greetings = _read(file.readline(LIMIT))
            self._note(greetings)
            for one in greetings[:1]:
                self.answered.add(index)
                if one.index != index:
                    self.elsewhere[self.addresses[index]] = one.index

    def take(self, line: bytes) -> None:
        """Stores the greetings from a worker that has connected."""
        greetings = _read(line)
        self._note(greetings)
        self.called.update(one.index for one in greetings[:1])

    def _note(self, greetings: Sequence[_Greeting]) -> None:
        self.greetings.update({one.token: one for one in greetings})

    def missing(self) -> set[int]:
        """Returns the workers that are not yet connected in both directions."""
        others = set(range(len(self.addresses))) - {self.own.index}
        return others - (self.answered & self.called)

    def problem(self) -> str | None:
        """Returns an error message if the connected workers are inconsistent."""
        greetings = sorted(self.greetings.copy().values(), key=lambda one: one.index)
        places: dict[int, list[str]] = {}
        for one in greetings:
            places.setdefault(one.index, []).append(one.process)
        for index, processes in places.items():
            if len(processes) > 1:
                return (
                    "Expected a different index in each worker. Received: index "
                    f"{index} in {' and in '.join(processes)}. Give each worker its "
                    "own index"
                )
        if any(one.workers != self.own.workers for one in greetings):
            counts = [
                f"{one.workers} workers in worker {one.index}" for one in greetings
            ]
            return (
                "Expected the same cluster in every worker. Received: a cluster of "
                f"{', of '.join(counts)}. Give all workers the same addresses"
            )
        for address, index in self.elsewhere.items():
            return (
                "Expected the addresses in the same order in every worker. Received: "
                f"worker {index} at {address}, instead of worker "
                f"{self.addresses.index(address)}. Give all workers the same addresses"
            )
        return different_versions({one.index: one.versions for one in greetings})


def different_versions(workers: Mapping[int, Mapping[str, str]]) -> str | None:
    """Returns an error message with each version that differs between workers."""
    lines = []
    for name in {name: None for installed in workers.values() for name in installed}:
        where: dict[str, list[str]] = {}
        for index, installed in workers.items():
            where.setdefault(str(installed.get(name)), []).append(str(index))
        if len(where) > 1:
            at = (f"{v} in worker {', '.join(on)}" for v, on in where.items())
            lines.append(f"{name} {' and '.join(at)}")
    if not lines:
        return None
    return (
        "Expected the same versions in all workers, which compute one update "
        f"together. Received: {'; '.join(lines)}. Install the same versions everywhere"
    )


def wait_for(
    addresses: Sequence[str],
    own: int,
    seconds: float = 600,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Waits until all workers are connected and have the same versions.

    Each worker listens on its own port and connects to the others, until it has reached
    all of them and all of them have reached it.

    Args:
        addresses: addresses of the workers, "HOST:PORT".
        own: index of this process.
        seconds: maximum time to wait.
        versions: see `environment.versions()`; they must be equal in all processes.

    Raises:
        ValueError: with the addresses that do not respond, an index that two workers
            share, a different cluster, or the versions that differ.
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
    received = (
        f"no response from {places}. Check that the worker is started, and that this "
        "machine can reach its port"
    )
    if not silent:
        callers = ", ".join(str(index) for index in sorted(meeting.missing()))
        address = meeting.addresses[meeting.own.index]
        received = (
            f"no connection from worker {callers} to {address}, although it responds. "
            "Check that it can reach this worker's port, and that this machine's "
            "address is correct"
        )
    return (
        f"Expected {len(meeting.addresses)} workers within {seconds:g} s. "
        f"Received: {received}"
    )


@contextlib.contextmanager
def _listening(meeting: _Meeting, port: int) -> Iterator[None]:
    """Listens on a port: sends greetings to each client and stores its greetings."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = 5

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                line = self.rfile.readline(LIMIT)
                self.wfile.write(meeting.line())
                meeting.take(line)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = False  # The last client still gets its response.
        request_queue_size = 256

    try:
        server = Server(("", port), Handler)
    except OSError as error:
        raise ValueError(
            f"Expected port {port} of this machine, the port of worker "
            f"{meeting.own.index}, to be free. Received: {error.strerror}. Check "
            "whether another training run uses the port, or another process has the "
            "same index"
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
