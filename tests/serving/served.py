"""A server as users start it: a process of its own, asked over the network."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def free_port():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


class Server:
    """`keras-vit serve PATH`, once it answers.

    Args:
        path: the versions' folder.
        options: of the command.
        descriptors: the most open files.
        stderr: a file for what it says.

    Attributes:
        url: of REST's model.
        target: of gRPC.
        printed: what it said when it was ready.
    """

    def __init__(self, path, *options, descriptors=None, stderr=subprocess.DEVNULL):
        self.port, grpc_port = free_port(), free_port()
        self.target = f"localhost:{grpc_port}"
        self.name = Path(path).name
        self.url = f"http://localhost:{self.port}/v1/models/{self.name}"
        words = ["serve", path, "--port", self.port, "--grpc-port", grpc_port, *options]
        self.process = subprocess.Popen(
            [
                *("sh", "-c", 'ulimit -n "$0" && exec "$@"', descriptors or "1024"),
                *(sys.executable, "-m", "keras_vit.cli", *map(str, words)),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self.printed = self._until_ready()

    def _until_ready(self):
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if ":predict" in line:
                return "".join(lines)
        raise RuntimeError(f"the server ended with {self.process.wait()}: {lines}")

    def rss(self):
        """Resident memory, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        told = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(told.split()[1]) * 1024

    def stop(self):
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def serving(path, *options, **limits):
    server = Server(path, *options, **limits)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
