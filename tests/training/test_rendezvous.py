"""Workers meet before their first collective, or each ends with one message."""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest

pytest.importorskip("tensorflow")

from keras_vit import __version__, environment
from keras_vit.training import rendezvous

pytestmark = pytest.mark.tensorflow_only

VERSIONS = {"python": "3.11.7", "keras": "3.15.1", "tensorflow": "2.21.0"}


def free_addresses(count):
    """Addresses of this machine where nobody listens."""
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for one in (a, b, c):
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (a, b, c)]
    return [f"127.0.0.1:{port}" for port in ports[:count]]


def met(*workers, seconds=10):
    """What comes of `wait_for` in each of several workers: None, or its message."""

    def one(arguments):
        addresses, own, versions = arguments
        try:
            rendezvous.wait_for(addresses, own, seconds, versions)
        except ValueError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(one, workers))


def test_all_meet_whoever_comes_first():
    addresses = free_addresses(3)
    late = threading.Timer(0.5, rendezvous.wait_for, (addresses, 0, 10, VERSIONS))
    late.start()
    assert met((addresses, 1, VERSIONS), (addresses, 2, VERSIONS)) == [None, None]
    late.join()
    for address in addresses:  # TensorFlow's or JAX's server comes next.
        socket.create_server(("", int(address.rpartition(":")[2]))).close()


def test_one_worker_waits_for_nobody():
    rendezvous.wait_for(["nowhere:1"], 0)


def test_a_missing_worker_is_named_by_all():
    addresses = free_addresses(3)
    began = time.monotonic()
    told = met((addresses, 0, VERSIONS), (addresses, 1, VERSIONS), seconds=0.5)
    assert time.monotonic() - began < 5
    for message in told:
        assert message.startswith("Expected 3 workers within 0.5 s. Received: no ")
        assert f"response from {addresses[2]}." in message


def test_a_host_that_does_not_exist_is_named():
    addresses = [*free_addresses(1), "no-such-host.invalid:2222"]
    (told,) = met((addresses, 0, VERSIONS), seconds=0.5)
    assert "no response from no-such-host.invalid:2222." in told


def test_a_worker_at_a_wrong_address_of_its_own_is_told_that_nobody_calls():
    here, there, wrong = free_addresses(3)
    told = met(
        ([wrong, there], 0, VERSIONS),  # Worker 1 calls at `here`.
        ([here, there], 1, VERSIONS),
        seconds=1,
    )
    assert f"no connection from worker 1 to {wrong}, although" in told[0]
    assert f"no response from {here}." in told[1]


def test_two_workers_of_one_index_on_one_machine():
    addresses = free_addresses(2)
    told = met((addresses, 0, VERSIONS), (addresses, 0, VERSIONS), seconds=0.5)
    (in_use,) = (message for message in told if "to be free" in message)
    assert "or another process has the same index" in in_use
    assert sum("no response from" in message for message in told) == 1


def test_two_workers_of_one_index_on_two_machines():
    first, second, elsewhere = free_addresses(3)
    with ThreadPoolExecutor(1) as pool:
        on_another = ([elsewhere, second], 0, VERSIONS)
        before = pool.submit(met, on_another, ([first, second], 1, VERSIONS))
        time.sleep(0.5)
        told = met(([first, second], 0, VERSIONS)) + before.result()
    for message in told:
        assert message.startswith("Expected a different index in each worker.")
        assert re.search("Received: index 0 in process .* and in process ", message)


def test_a_cluster_of_another_size():
    addresses = free_addresses(3)
    told = met((addresses[:2], 0, VERSIONS), (addresses, 1, VERSIONS), seconds=1)
    for message in told:
        assert (
            "a cluster of 2 workers in worker 0, of 3 workers in worker 1." in message
        )


def test_addresses_in_another_order():
    a, b, c = free_addresses(3)
    told = met(
        ([a, b, c], 0, VERSIONS),
        ([a, c, b], 2, VERSIONS),  # At b, where the others have worker 1.
        seconds=1,
    )
    assert f"worker 2 at {b}, instead of worker 1." in told[0]


@pytest.mark.parametrize("name", VERSIONS)
def test_a_mixed_fleet_is_refused_by_name(name):
    addresses = free_addresses(3)
    began = time.monotonic()
    told = met(
        (addresses, 0, VERSIONS),
        (addresses, 1, VERSIONS | {name: "9.9"}),
        (addresses, 2, VERSIONS),
    )
    assert time.monotonic() - began < 8
    line = f"{name} {VERSIONS[name]} in worker 0, 2 and 9.9 in worker 1"
    for message in told:
        assert message.startswith("Expected the same versions in all workers")
        assert line in message


def test_a_backend_of_its_own_is_refused_by_name():
    addresses = free_addresses(2)
    on_jax = VERSIONS | {"jax": "0.10.2"}
    told = met((addresses, 0, VERSIONS), (addresses, 1, on_jax))
    assert all("jax None in worker 0 and 0.10.2 in worker 1" in one for one in told)


def test_strangers_at_the_port_are_no_workers():
    """A port scanner, and what speaks another protocol, change nothing."""
    addresses = free_addresses(2)
    port = int(addresses[0].rpartition(":")[2])

    def scan():
        for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"index": 1}\n'):
            for _ in range(50):
                try:
                    with socket.create_connection(("127.0.0.1", port)) as connection:
                        connection.sendall(greeting)
                    break
                except OSError:
                    time.sleep(0.05)

    scanner = threading.Thread(target=scan)
    scanner.start()
    late = threading.Timer(1, rendezvous.wait_for, (addresses, 1, 10, VERSIONS))
    late.start()
    assert met((addresses, 0, VERSIONS)) == [None]
    scanner.join()
    late.join()


def test_what_answers_otherwise_is_nobody():
    addresses = free_addresses(2)
    with socket.create_server(("127.0.0.1", int(addresses[1][10:]))) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        (told,) = met((addresses, 0, VERSIONS), seconds=0.2)
        thread.join()
    assert f"no response from {addresses[1]}." in told


def test_versions_are_those_of_this_process():
    found = environment.versions()
    assert found["keras"] == keras.__version__
    assert found["keras_vit"] == __version__
    assert {"python", "tensorflow", "backend"} < found.keys()


def test_the_variables_of_keras_describe_a_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert not rendezvous.is_described()
    monkeypatch.setenv(rendezvous.ADDRESSES, "a:1,b:2")
    monkeypatch.setenv(rendezvous.PROCESS_ID, "1")
    assert rendezvous.is_described()
    assert rendezvous.cluster() == (["a:1", "b:2"], 1)
    for addresses, number in (
        ("a:1,b:2", "2"),
        ("a:1,b:2", ""),
        ("a:1,b", "0"),
        ("a:1,a:1", "0"),
    ):
        monkeypatch.setenv(rendezvous.ADDRESSES, addresses)
        monkeypatch.setenv(rendezvous.PROCESS_ID, number)
        with pytest.raises(ValueError, match=r"Received: KERAS_DIST.*_ID=") as e:
            rendezvous.cluster()
        assert f"{rendezvous.ADDRESSES}={addresses}, " in str(e.value)
    config = {"cluster": {"worker": ["c:3"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))  # It comes first.
    assert rendezvous.cluster() == (["c:3"], 0)
