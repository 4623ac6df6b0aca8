"""The client behind a proxy that delays, resets and cuts, by REST and gRPC."""

import socket
import threading
import time

import pytest

pytest.importorskip("tensorflow_serving")
tf = pytest.importorskip("tensorflow")
grpc = pytest.importorskip("grpc")

import numpy as np  # noqa: E402

from keras_vit.serving import Client, Prediction  # noqa: E402
from tests.serving import loopback  # noqa: E402
from tests.serving.faults import proxied  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

EXPECTED = [Prediction(("a", "b"), (0.75, 0.25))]
IMAGE = [b"any bytes"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A SavedModel with the outputs of an export, whatever the image."""
    folder = tmp_path_factory.mktemp("constant") / "1"
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def constant(image_bytes):
        count = tf.size(image_bytes)
        return {
            "classes": tf.tile([["a", "b"]], [count, 1]),
            "scores": tf.tile([[0.75, 0.25]], [count, 1]),
            "status": tf.fill([count], "ok"),
        }

    tf.saved_model.save(module, str(folder), signatures=constant)
    return loopback.Served(folder)


@pytest.fixture(params=["REST", "gRPC"])
def proxy(request, servers, served):
    served.reset()
    with proxied(servers[request.param]) as proxy:
        proxy.protocol = request.param
        yield proxy


def test_without_faults_a_proxy_changes_nothing(proxy, served):
    with Client(proxy.url) as client:
        assert client.predict(IMAGE) == EXPECTED
        assert client.predict(IMAGE) == EXPECTED
    assert (proxy.accepted, served.attempts) == (1, 2)


@pytest.mark.parametrize(
    ("faults", "attempts"),
    [
        (["reset", "refuse", "reset"], 1),
        ([("half", 1)], 2),
        ([("late", 0.2)] * 2, 1),
        ([("drip", 0.0005)], 1),
    ],
    ids=["three that are reset", "no answer", "late", "in single bytes"],
)
def test_what_passes_is_answered(proxy, served, faults, attempts):
    proxy.faults.extend(faults)
    with Client(proxy.url, timeout=20) as client:
        assert client.predict(IMAGE) == EXPECTED
    assert served.attempts <= attempts  # The server does nothing twice in vain.


def outcome(client, proxy):
    """The right answer, or None: an error that names the address."""
    try:
        answer = client.predict(IMAGE)
    except ConnectionError as error:
        said = str(error)
    else:
        assert answer == EXPECTED
        return answer
    assert proxy.address in said
    return None


@pytest.mark.parametrize("count", [20, 60, 100, 140, 160, 200])
def test_half_an_answer_is_never_an_answer(proxy, served, count):
    """REST asks again; gRPC does unless the answer has begun, as its design has it."""
    proxy.faults.append(("half", count))
    with Client(proxy.url, timeout=20) as client:
        said = outcome(client, proxy)
        assert said == EXPECTED or proxy.protocol == "gRPC"
        assert client.predict(IMAGE) == EXPECTED
    assert served.attempts <= 4


def test_halves_of_answers_share_the_retries(servers, served):
    served.reset()
    with proxied(servers["REST"]) as proxy:
        proxy.faults.extend(["reset", ("half", 140), "reset", ("half", 140), "reset"])
        with (
            Client(proxy.url, retries=3, timeout=20) as client,
            pytest.raises(ConnectionError, match=r"retries=3") as told,
        ):
            client.predict(IMAGE)
        assert proxy.address in str(told.value)
        assert (proxy.accepted, served.attempts) == (4, 2)


@pytest.mark.parametrize("retries", [0, 2])
def test_the_number_of_attempts_is_kept(proxy, served, retries):
    proxy.faults.extend(["reset"] * 50)
    with (
        Client(proxy.url, retries=retries, timeout=20) as client,
        pytest.raises(ConnectionError) as told,
    ):
        client.predict(IMAGE)
    assert proxy.address in str(told.value)
    assert served.attempts == 0
    if proxy.protocol == "REST":
        assert proxy.accepted == 1 + retries


@pytest.mark.parametrize(
    "fault",
    ["swallow", ("late", 5.0), ("drip", 0.1)],
    ids=["never", "late", "drips"],
)
def test_the_deadline_is_kept(proxy, served, fault):
    proxy.faults.extend([fault] * 9)
    with Client(proxy.url, timeout=0.5) as client:
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match=r"within 0\.5 s") as told:
            client.predict(IMAGE)
        assert time.monotonic() - begun < 2
    assert proxy.address in str(told.value)
    assert served.attempts <= 1


def test_a_body_that_stops_has_no_time_of_its_own():
    """A socket's timeout begins again with every byte, here after 1.9 of 2 s."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listening.accept()
        with connection:
            connection.recv(2**16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
            time.sleep(1.9)
            connection.sendall(b"{")
            while connection.recv(2**16):  # The rest of the request; then it leaves.
                pass

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/models/flowers"
    with listening, Client(url, timeout=2, retries=0) as client:
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="within 2 s"):
            client.predict(IMAGE)
        assert time.monotonic() - begun < 3.5
    thread.join(10)


def test_random_faults_never_change_an_answer(proxy, served):
    """30 requests, two thirds of the connections with a fault; seed 0."""
    rng = np.random.default_rng(0)
    kinds = ["reset", "refuse", ("late", 0.02), ("drip", 0.0001), None, None]
    kinds += [("half", int(count)) for count in rng.integers(1, 250, 6)]
    proxy.faults.extend(kinds[place] for place in rng.integers(0, len(kinds), 500))
    failed = 0
    for _ in range(30):
        with Client(proxy.url, timeout=10, retries=4) as client:
            failed += outcome(client, proxy) != EXPECTED
    # Half of gRPC's fail: every second connection ends within an answer. The number of
    # connections depends on the time; of 30 at even odds more than 25 are 1 in 30,000.
    assert failed <= 25
