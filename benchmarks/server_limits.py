"""Runs three attacks on `keras-vit serve` and measures a legitimate client.

    python benchmarks/server_limits.py
    python benchmarks/server_limits.py --only images --max-request-seconds 10

"images" sends 8 requests at once with 16 PNGs of 8192x8192 pixels, 65 KB each. "bodies"
sends 100 requests at once with 32 MiB that are not JSON. "half-open" opens 1,100
connections that send nothing, with a limit of 1,024 file descriptors. Meanwhile a
legitimate client classifies a small JPEG every quarter of a second and waits up to 5 s.
For each attack, prints its seconds, the statuses of the attackers, the responses to the
client with the slowest one, the server's resident memory before and at most, and the
size of its log. Each attack has a separate server. Linux only.
"""

import argparse
import collections
import concurrent.futures
import http.client
import io
import os
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
PATIENCE = 5.0  # Seconds that the legitimate client waits.
PAUSE = 0.25  # Seconds between two of its requests.
sys.path.insert(0, str(ROOT))

from tests.serving import hostile, served  # noqa: E402


def post(server: Any, body: bytes, timeout: float) -> str:
    """Returns the status of a response, or the reason why there is none."""
    connection = http.client.HTTPConnection("localhost", server.port, timeout=timeout)
    try:
        connection.request("POST", f"/v1/models/{server.name}:predict", body)
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def at_once(server: Any, bodies: list[bytes]) -> list[str]:
    """Returns the statuses of requests that are sent concurrently."""
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: post(server, body, 300), bodies))


def images(server: Any) -> list[str]:
    """Sends small files with many pixels."""
    file = io.BytesIO()
    Image.new("L", (8192, 8192)).save(file, "PNG", compress_level=9)
    return at_once(server, [hostile.row(*16 * [file.getvalue()])] * 8)


def bodies(server: Any) -> list[str]:
    """Sends bodies of the maximum length that the server accepts."""
    return at_once(server, [b" " * 2**25] * 100)


def half_open(server: Any) -> list[str]:
    """Opens connections that send nothing for 20 seconds."""
    attackers = [socket.socket() for _ in range(1100)]
    for one in attackers:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", server.port))
    time.sleep(20)
    for one in attackers:
        one.close()
    return []


ATTACKS: dict[str, Callable[[Any], list[str]]] = {
    "images": images,
    "bodies": bodies,
    "half-open": half_open,
}


class Watch(threading.Thread):
    """Runs a legitimate client and records the server's memory until `ended` is set."""

    def __init__(self, server: Any) -> None:
        super().__init__(daemon=True)
        self.server, self.ended = server, threading.Event()
        self.before = self.most = server.rss()
        self.statuses: collections.Counter[str] = collections.Counter()
        self.slowest = 0.0

    def run(self) -> None:
        body = hostile.row(hostile.photo(0))
        sampler = threading.Thread(target=self._sample, daemon=True)
        sampler.start()
        while not self.ended.is_set():
            began = time.monotonic()
            self.statuses[post(self.server, body, PATIENCE)] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.ended.wait(PAUSE)
        sampler.join()

    def _sample(self) -> None:
        while not self.ended.wait(0.05):
            self.most = max(self.most, self.server.rss())


def exported(folder: Path) -> Path:
    """Exports a small model that is cheap to run."""
    import keras_vit
    from keras_vit import serving

    config = keras_vit.ViTConfig(
        patch_size=16, num_layers=1, hidden_size=32, mlp_dim=64, num_heads=2
    )
    model = keras_vit.vit(config, image_size=(32, 32), num_classes=10)
    serving.export(model, folder / "small")
    return folder / "small"


def told(statuses: collections.Counter[str]) -> str:
    """Formats statuses with their counts."""
    return ", ".join(f"{count} x {status}" for status, count in statuses.most_common())


def main() -> None:
    """Prints a paragraph for each attack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument(
        "--max-request-seconds", default="30", help="of `keras-vit serve` (default 30)"
    )
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    with tempfile.TemporaryDirectory() as temporary:
        export = exported(Path(temporary))
        for name in options.only:
            log = Path(temporary, f"{name}.log")
            deadline = ("--max-request-seconds", options.max_request_seconds)
            with (
                log.open("w") as stderr,
                served.serving(export, *deadline, stderr=stderr) as server,
            ):
                watch = Watch(server)
                watch.start()
                began = time.monotonic()
                statuses = collections.Counter(ATTACKS[name](server))
                seconds = time.monotonic() - began
                watch.ended.set()
                watch.join()
                after = post(server, hostile.row(hostile.photo(0)), PATIENCE)
            print(
                f"{name}: {seconds:.0f} s; attackers {told(statuses) or 'silent'}; "
                f"good client {told(watch.statuses)}, slowest {watch.slowest:.1f} s, "
                f"afterwards {after}; memory {watch.before / 1e9:.2f} GB before, "
                f"{watch.most / 1e9:.2f} at most; log {log.stat().st_size:,} bytes",
                flush=True,
            )


if __name__ == "__main__":
    main()
