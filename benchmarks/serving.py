"""Latency and images per second of `keras-vit serve`, compared with `model.predict`.

    python benchmarks/serving.py [--run RUN] [--images FOLDER] [--clients 1 2 4 8 16 32]
                                 [--requests N] [--protocols REST gRPC]

RUN is a folder of `keras-vit finetune`; without one, a ViT-S/16 with random weights and
12 classes is used. The model is exported and served by a separate process, without and
with batching. 1 to 32 clients, threads of this process, send requests concurrently.
Each request contains one photo's file; a client sends the next one after the response.
Without --images, the photos are crops of scikit-learn's two, 224x224.

The time of a request is measured by the client, from before it is sent until the
response is read. It includes base64 (REST), the local network, JPEG decoding, resizing,
the model, and names of classes. The comparison does the same without a server:
`model.predict` on batches of 32 from a tf.data pipeline that decodes and resizes the
same files. It runs before and after each line of the table, which shows the ratio to
these two. "alone" is for images that are already decoded.

Everything shares this machine's cores, including the clients.
"""

import argparse
import base64
import concurrent.futures
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import requests
from photographs import crops

BATCH = 32
PORT, GRPC_PORT = 21871, 21870
Ask = Callable[[bytes], None]


def opened(run: Path | None) -> Any:
    """Returns a run's model, or ViT-S/16 with random weights."""
    import keras

    import keras_vit

    if run is None:
        return keras_vit.ViT_S16(weights=None, classes=12)
    return keras.models.load_model(run / "model.keras")


class InProcess:
    """Runs `model.predict` on the files, in images per second."""

    def __init__(self, model: Any, files: list[bytes]) -> None:
        import tensorflow as tf

        from keras_vit.data import preprocessing

        size, channels = model.input_shape[1:3], model.input_shape[-1]

        def prepared(file: Any) -> Any:
            image = preprocessing.decode(file)
            return preprocessing.prepare(image, size, model.preprocessing, channels)

        self.model = model
        self.encoded = (
            tf.data.Dataset.from_tensor_slices(files)
            .map(prepared, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(BATCH)
            .prefetch(1)
        )
        self.images = np.concatenate(list(self.encoded.as_numpy_iterator()))
        self.with_decoding: list[float] = []
        self.model.predict(self.encoded, verbose=0)  # Compiles.

    def measure(self) -> None:
        """Measures again."""
        begun = time.perf_counter()
        self.model.predict(self.encoded, verbose=0)
        self.with_decoding.append(len(self.images) / (time.perf_counter() - begun))

    def measure_alone(self) -> float:
        """Measures with images that are already decoded."""
        begun = time.perf_counter()
        self.model.predict(self.images, batch_size=BATCH, verbose=0)
        return len(self.images) / (time.perf_counter() - begun)

    def beside(self, taken: list[float], wall: float) -> str:
        """Formats requests, percentiles, rate, and the ratio to the last two runs."""
        p50, p95, p99 = np.percentile(np.multiply(taken, 1000), [50, 95, 99])
        rate = len(taken) / wall
        share = rate / statistics.mean(self.with_decoding[-2:])
        return (
            f"{len(taken):8}  {p50:6.0f}  {p95:6.0f}  {p99:6.0f}  {rate:8.1f}  "
            f"{share:10.2f}"
        )

    def __str__(self) -> str:
        least, median, most = np.percentile(self.with_decoding, [0, 50, 100])
        return (
            f"model.predict on files: {median:.1f} images/s ({least:.1f} to {most:.1f} "
            f"in {len(self.with_decoding)} turns); alone {self.measure_alone():.1f}"
        )


@contextmanager
def served(path: Path, batching: bool) -> Iterator[None]:
    """Runs `keras-vit serve PATH` until the block ends."""
    command = [sys.executable, "-m", "keras_vit.cli", "serve", str(path)]
    command += ["--port", str(PORT), "--grpc-port", str(GRPC_PORT)]
    command += ["--batching"] * batching
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        for line in process.stdout or ():
            if ":predict" in line:
                break
        else:
            raise RuntimeError(f"{' '.join(command)} ended with {process.wait()}")
        yield
    finally:
        process.terminate()
        process.wait()


def rest(name: str) -> Ask:
    """Sends requests by REST on a persistent connection."""
    session = requests.Session()
    url = f"http://localhost:{PORT}/v1/models/{name}:predict"

    def ask(file: bytes) -> None:
        encoded = base64.b64encode(file).decode("ascii")
        answer = session.post(url, json={"instances": [{"b64": encoded}]}, timeout=600)
        _require(answer.json()["predictions"][0]["status"] == "ok", answer.text)

    return ask


def grpc(name: str) -> Ask:
    """Sends requests by gRPC on a persistent channel."""
    import tensorflow as tf
    from grpc import insecure_channel
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    channel = insecure_channel(
        f"localhost:{GRPC_PORT}", [("grpc.use_local_subchannel_pool", 1)]
    )
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def ask(file: bytes) -> None:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = name
        request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto([file]))
        answer = stub.Predict(request, timeout=600)
        _require(answer.outputs["status"].string_val[0] == b"ok", str(answer))

    return ask


PROTOCOLS = {"REST": rest, "gRPC": grpc}


def _require(right: bool, answer: str) -> None:
    if not right:
        raise RuntimeError(f"a wrong answer: {answer}")


def seconds_of(
    connect: Callable[[], Ask], files: list[bytes], clients: int, count: int
) -> tuple[list[float], float]:
    """Returns the seconds of each of `count` requests, and of all together."""
    queue = iter(range(count))  # next() is atomic in the interpreter.
    connected = threading.Barrier(clients)

    def work(place: int) -> list[tuple[float, float]]:
        ask, stamps = connect(), []
        ask(files[place % len(files)])
        connected.wait()
        for at in queue:
            begun = time.perf_counter()
            ask(files[at % len(files)])
            stamps.append((begun, time.perf_counter()))
        return stamps

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        stamps = [stamp for one in pool.map(work, range(clients)) for stamp in one]
    wall = max(end for _, end in stamps) - min(begun for begun, _ in stamps)
    return [end - begun for begun, end in stamps], wall


def first_to_median(ask: Ask, files: list[bytes]) -> float:
    """Divides the first request's time after the warm-up by the median of 20 others."""
    taken = []
    for place in range(21):
        begun = time.perf_counter()
        ask(files[place % len(files)])
        taken.append(time.perf_counter() - begun)
    return taken[0] / statistics.median(taken[1:])


def photographs(folder: Path | None) -> list[bytes]:
    """Returns the bytes of every third JPEG of a folder, or of generated crops."""
    with tempfile.TemporaryDirectory() as name:
        images = folder or crops(Path(name, "crops")) / "test"
        return [path.read_bytes() for path in sorted(images.rglob("*.jpg"))[::3]]


def main() -> None:
    """Exports, serves, measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a folder of `keras-vit finetune`")
    parser.add_argument(
        "--images", type=Path, help="folder of JPEG files (default: generated crops)"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument(
        "--requests",
        type=int,
        default=48,
        help="per line, at least 2 per client (default 48)",
    )
    parser.add_argument(
        "--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS)
    )
    options = parser.parse_args()
    files = photographs(options.images)
    if not files:
        parser.error(f"no *.jpg in {options.images}")

    import keras_vit

    model = opened(options.run)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "served")
        keras_vit.serving.export(model, path, verbose=False)
        here = InProcess(model, files[:BATCH])
        here.measure()
        print(HEADER)
        for batching in (False, True):
            word = "yes" if batching else "no"
            with served(path, batching):
                first = first_to_median(rest(path.name), files)
                for protocol in options.protocols:
                    connect = functools.partial(PROTOCOLS[protocol], path.name)
                    for clients in options.clients:
                        count = max(options.requests, 2 * clients)
                        cell = seconds_of(connect, files, clients, count)
                        here.measure()
                        told = here.beside(*cell)
                        print(f"{word:8}  {protocol:8}  {clients:7}  {told}")
            print(f"first request after the warm-up: {first:.2f} times the median")
    print(here)


HEADER = (
    "batching  protocol  clients  requests  p50 ms  p95 ms  p99 ms  images/s  "
    "of predict"
)


if __name__ == "__main__":
    main()
