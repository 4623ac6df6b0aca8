"""A SavedModel behind a server that is not ours: KServe's (`make serve-test`)."""

import contextlib
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.serving import hostile

pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.skipif(
        importlib.util.find_spec("kserve") is None,
        reason="LOUD: no KServe, so an export ran behind our server only; "
        "`make serve-test` has it",
    ),
]

SCRIPT = Path(__file__).with_name("kserve_server.py")


@pytest.fixture(scope="module")
def kserve_url(exported):
    """Where KServe answers for the exported model."""
    import requests

    from tests.serving.served import free_port

    port = free_port()
    command = [sys.executable, SCRIPT, exported / "1", exported.name, port]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://localhost:{port}/v1/models/{exported.name}"
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(url, timeout=5).status_code == 200:
                    break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def rows(url, body):
    import requests

    headers = {"Content-Type": "application/json"}
    answer = requests.post(f"{url}:predict", data=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


@pytest.mark.parametrize("kind", ["photos", *hostile.images()])
def test_kserve_says_what_our_server_says(kserve_url, server, kind):
    files = [hostile.images().get(kind, hostile.photo(0)), hostile.photo(1)]
    theirs = rows(kserve_url, hostile.row(*files))
    ours = rows(server.url, hostile.row(*files))
    for their, our in zip(theirs, ours, strict=True):
        assert set(their) == set(our) == {"classes", "scores", "status"}
        assert their["classes"] == our["classes"]
        assert their["status"] == our["status"]
        # KServe writes a float32's double; ours is the shortest of the same bits.
        np.testing.assert_allclose(our["scores"], their["scores"], rtol=0, atol=1e-5)


def test_our_client_asks_kserve_as_it_asks_our_server(kserve_url, server):
    from keras_vit.serving import Client

    images = [hostile.photo(0), hostile.images()["text"], hostile.photo(1)]
    said = []
    for url in (kserve_url, server.url):
        with Client(url.partition("/v1/")[0], name="flowers") as client:
            said.append(client.predict(images))
            features = client.features([images[0]])
            assert features.shape == (1, 24)
    for their, our in zip(*said, strict=True):
        assert their.status == our.status
        assert list(their.classes) == list(our.classes)
        np.testing.assert_allclose(our.scores, their.scores, rtol=0, atol=1e-5)
