"""The client and `keras-vit predict --server`, against loopback servers of a model."""

import contextlib
import dataclasses
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest

pytest.importorskip("tensorflow_serving")
tf = pytest.importorskip("tensorflow")

import grpc  # noqa: E402

import keras_vit  # noqa: E402
from keras_vit.serving import (  # noqa: E402
    Client,
    Prediction,
    ServerError,
    export,
    savedmodel,
)
from tests.runs import save_run  # noqa: E402
from tests.serving import loopback  # noqa: E402

pytestmark = pytest.mark.tensorflow_only

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
LABELS = ("kite", "gull", "bird's foot", "tern", "Möwe", "heron", "stork")
BAD = b"<html>not found</html>"


@pytest.fixture(scope="module")
def model():
    config = keras_vit.ViTConfig(
        patch_size=8, num_layers=2, hidden_size=24, mlp_dim=32, num_heads=3
    )
    keras.utils.set_random_seed(0)
    model = keras_vit.vit(config, image_size=(16, 24), num_classes=len(LABELS))
    head = model.get_layer("head")
    head.kernel.assign(keras.random.normal(head.kernel.shape, seed=1))
    return model


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "birds"
    export(model, folder, LABELS, verbose=False)
    return loopback.Served(folder / "1")


@pytest.fixture(params=["REST", "gRPC"])
def url(request, servers, served):
    served.reset()
    return servers[request.param]


@pytest.fixture
def client(url):
    with Client(url, timeout=20) as client:
        yield client


def pixels(seed, size=(20, 30)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)


def png(seed):
    return tf.io.encode_png(pixels(seed)).numpy()


def directly(served, signature, **inputs):
    """A signature's outputs without any server."""
    inputs = {key: tf.constant(value) for key, value in inputs.items()}
    outputs = served.loaded.signatures[signature](**inputs)
    return {key: value.numpy() for key, value in outputs.items()}


def predictions(outputs):
    rows = zip(outputs["classes"], outputs["scores"], strict=True)
    return [
        Prediction(tuple(n.decode() for n in names), tuple(map(float, scores)))
        for names, scores in rows
    ]


def assert_same(found, expected):
    """But for the last digits, in which a batch of another size may differ."""
    for said, other in zip(found, expected, strict=True):
        assert (said.classes, said.status) == (other.classes, other.status)
        assert said.scores == pytest.approx(other.scores, abs=1e-6)


def test_predictions_of_files_are_the_signatures(client, served, tmp_path):
    images = [png(seed) for seed in range(3)] + [png(3) + b"\0\0"]
    expected = predictions(directly(served, "serving_default", image_bytes=images))
    assert client.predict(images) == expected
    assert expected[0].ok
    assert len(expected[0].classes) == 5
    assert set(expected[0].classes) < set(LABELS)
    (tmp_path / "a.png").write_bytes(images[0])
    found = client.predict([tmp_path / "a.png", str(tmp_path / "a.png"), images[0]])
    assert_same(found, [expected[0]] * 3)
    sent = served.asked[0]
    assert (sent.model_spec.name, sent.model_spec.signature_name) == (
        "model",
        "serving_default",
    )
    assert list(sent.inputs["image_bytes"].string_val) == images


def test_predictions_of_arrays_are_the_signatures(client, served):
    images = np.stack([pixels(seed) for seed in range(3)])
    expected = predictions(directly(served, "images", images=images))
    assert client.predict(images) == expected
    assert served.asked[0].model_spec.signature_name == "images"
    sent = tf.make_ndarray(served.asked[0].inputs["images"])
    np.testing.assert_array_equal(sent, images)
    assert sent.dtype == np.uint8


def test_arrays_of_one_size_share_a_request(client, served):
    images = [pixels(seed, (16 + 8 * (seed % 2), 24)) for seed in range(6)]
    found = client.predict(images)
    assert len(served.asked) == 2
    alone = [directly(served, "images", images=image[None]) for image in images]
    assert_same(found, [predictions(outputs)[0] for outputs in alone])


@pytest.mark.parametrize("name", ["features", "attention"])
def test_features_and_attention_are_the_signatures(client, served, name):
    images = [png(seed) for seed in range(3)]
    expected = directly(served, name, image_bytes=images)[name]
    found = getattr(client, name)(images)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    # An array goes as PNG, which loses nothing.
    arrays = [pixels(seed) for seed in range(3)]
    np.testing.assert_array_equal(getattr(client, name)(arrays), expected)


def test_features_of_arrays_with_1_or_3_channels(client, served):
    gray = pixels(0)[..., :1]
    file = tf.io.encode_png(gray).numpy()
    np.testing.assert_array_equal(client.features([gray]), client.features([file]))
    for channels in (2, 4):
        array = np.zeros((8, 8, channels), np.uint8)
        with pytest.raises(ValueError, match=rf"1 or 3 .* \[8, 8, {channels}\]"):
            client.features([array])


def test_rest_and_grpc_say_the_same(servers, served):
    served.reset()
    images = [png(seed) for seed in range(4)] + [BAD]
    with Client(servers["REST"]) as rest, Client(servers["gRPC"]) as rpc:
        assert rest.predict(images) == rpc.predict(images)
        np.testing.assert_array_equal(
            rest.features(images[:4]), rpc.features(images[:4])
        )
        assert rest.metadata() == rpc.metadata()


def test_metadata_tell_which_model_answers(client, model):
    told = client.metadata()
    assert (told.name, told.version) == ("model", 1)
    assert set(told.signatures) == {
        *("serving_default", "image_bytes", "images", "images_float32"),
        *("features", "attention"),
    }
    signature = told.signatures["images_float32"]
    assert signature.inputs == {"images": "float32 [?, 16, 24, 3]"}
    assert signature.outputs == {
        "classes": "string [?, 5]",
        "scores": "float32 [?, 5]",
        "logits": f"float32 [?, {model.output_shape[-1]}]",
    }
    assert told.signatures["images"].inputs == {"images": "uint8 [?, ?, ?, 3]"}


def test_a_thousand_images_come_back_in_order(client, served):
    images = [png(seed) for seed in range(40)] * 25
    outputs = directly(served, "serving_default", image_bytes=images[:40])
    expected = predictions(outputs)
    found = client.predict(images)
    assert [len(r.inputs["image_bytes"].string_val) for r in served.asked] == [
        *[32] * 31,
        8,
    ]
    assert_same(found, expected * 25)


def test_a_bad_image_is_told_and_the_others_are_as_without_it(client):
    good = client.predict([png(0), png(1)])
    found = client.predict([png(0), BAD, b"", png(1)])
    assert_same([found[0], found[3]], good)
    for bad in found[1:3]:
        assert (bad.classes, bad.scores, bad.ok) == ((), (), False)
        assert "JPEG" in bad.status


def test_features_name_every_bad_image(client, tmp_path):
    (tmp_path / "b.png").write_bytes(BAD)
    client.batch_size = 2
    images = [png(0), BAD, png(1), tmp_path / "b.png"]
    with pytest.raises(
        ValueError, match=r"2 of 4 that cannot be read: image 1: "
    ) as told:
        client.features(images)
    assert f"{tmp_path / 'b.png'}: not a whole JPEG" in str(told.value)


def test_an_export_that_fails_on_bad_images(model, tmp_path, monkeypatch):
    # The proof needs a process with TensorFlow: `served` has had it.
    monkeypatch.setattr(savedmodel, "run_fresh", lambda *_: {})
    monkeypatch.setattr(savedmodel.Trial, "prove", lambda *_: {})
    export(model, tmp_path / "strict", on_bad_image="fail", verbose=False)
    strict = loopback.Served(tmp_path / "strict" / "1")
    for server in (loopback.rest_server, loopback.grpc_server):
        strict.reset()
        with server(strict) as url, Client(url) as client:
            with pytest.raises(ServerError, match="by index in the batch: 1: not a"):
                client.predict([png(0), BAD])
            assert len(client.predict([png(0)])) == 1
            assert len(strict.asked) == 2  # Not tried again.


@pytest.mark.parametrize("fault", [UNAVAILABLE, "hang up"])
def test_what_passes_is_tried_again(client, served, fault):
    served.faults.extend([fault] * 2)
    # More than gRPC would keep to send again by itself.
    image = png(0) + bytes(2**20)
    assert client.predict([image])[0].ok
    assert served.attempts == 3


def test_a_compressed_answer_in_chunks(servers, served):
    served.reset()
    with Client(servers["REST"], batch_size=1) as client:
        expected = client.predict([png(0)])
        served.faults.extend(["in chunks"] * 2)
        assert client.predict([png(0)] * 2) == expected * 2


def test_messages_longer_than_grpcs_default(servers, served):
    served.reset()
    features = np.zeros((2, 2**20), np.float32)  # 8 MiB, of 4 that gRPC takes.
    served.change = lambda told: told | {"features": features}
    with Client(servers["gRPC"]) as client:
        found = client.features([png(0) + bytes(2**22), png(1)])
    np.testing.assert_array_equal(found, features)


def test_retries_end(client, served):
    served.faults.extend([UNAVAILABLE] * 9)
    with pytest.raises(OSError, match=r"as the test wants it.*retries=3"):
        client.predict([png(0)])
    assert served.attempts == 4


def test_no_retries(url, served):
    served.faults.extend([UNAVAILABLE] * 9)
    with Client(url, retries=0) as client, pytest.raises(OSError, match="retries=0"):
        client.predict([png(0)])
    assert served.attempts == 1


def test_too_many_requests_are_tried_again_over_http(servers, served):
    served.reset()
    served.faults.extend([grpc.StatusCode.RESOURCE_EXHAUSTED] * 2)
    with Client(servers["REST"]) as client:
        assert client.predict([png(0)])[0].ok
    assert served.attempts == 3


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("INVALID_ARGUMENT", "as the test wants it"),
        ("INTERNAL", "as the test wants it.*The server's log"),
        ("UNAUTHENTICATED", "Pass credentials"),
        ("PERMISSION_DENIED", "Pass credentials"),
    ],
)
def test_what_is_refused_is_not_tried_again(client, served, code, match):
    served.faults.append(grpc.StatusCode[code])
    with pytest.raises(ServerError, match=match) as told:
        client.predict([png(0)])
    assert f"{client.target.url} to" in str(told.value)
    assert "'serving_default' with 1 image" in str(told.value)
    assert not served.asked


def assert_kept(url, served):
    with Client(url, timeout=0.4) as client:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"within 0\.4 s"):
            client.predict([png(0)])
        assert time.monotonic() - start < 1.5
    assert served.attempts == 1


def test_a_deadline_is_kept(url, served):
    served.faults.append(3.0)
    assert_kept(url, served)


def test_a_deadline_is_kept_while_bytes_come(servers, served):
    """Over REST; gRPC's own deadline is of the whole call."""
    served.reset()
    served.faults.append("drip")
    assert_kept(servers["REST"], served)


def test_retries_share_the_deadline(url, served):
    served.faults.extend([0.3, UNAVAILABLE, UNAVAILABLE, 0.7])
    with Client(url, timeout=0.5) as client:
        served.faults.popleft()
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
            client.predict([png(0)])
        assert time.monotonic() - start < 1.0


def test_pauses_share_the_deadline(servers, served, monkeypatch):
    """Over REST: five attempts would take pauses of 1.4 s and more."""
    served.reset()
    served.faults.extend([UNAVAILABLE] * 9)
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        time.sleep(seconds)

    clock = types.SimpleNamespace(sleep=sleep, time=time.time)
    monkeypatch.setattr("urllib3.util.retry.time", clock)
    with (
        Client(servers["REST"], timeout=0.5, retries=4) as client,
        pytest.raises(TimeoutError, match=r"within 0\.5 s"),
    ):
        client.predict([png(0)])
    assert pauses
    assert sum(pauses) <= 0.5


def test_the_servers_own_limit(servers, served):
    served.reset()
    # A request of the test before, whose client gave up, can still take a fault.
    served.faults.extend([grpc.StatusCode.DEADLINE_EXCEEDED] * 3)
    with (
        Client(servers["REST"]) as client,
        pytest.raises(TimeoutError, match="rest_api_timeout_in_ms"),
    ):
        client.predict([png(0)])


def test_what_is_no_answer(client, served):
    served.faults.append("garbage")
    with pytest.raises(ServerError, match="Check that the URL is a model server's"):
        client.predict([png(0)])


def nan(scores):
    """Scores of which the second image's are NaN."""
    return np.where(np.arange(len(scores))[:, None] == 1, np.nan, scores)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda told: {k: v[:-1] for k, v in told.items()}, "2 rows of classes"),
        (lambda told: {"scores": told["scores"]}, "outputs scores, without classes"),
        (lambda told: told | {"scores": told["classes"]}, "scores of object"),
        (lambda told: told | {"scores": told["scores"][:, :2]}, r"of shapes \(3, 5\)"),
        (lambda told: told | {"scores": told["scores"][:, 0]}, r"and shape \(3,\)"),
        (lambda told: told | {"scores": nan(told["scores"])}, "in scores of image 1"),
    ],
)
def test_answers_that_do_not_fit(client, served, change, match):
    served.change = change
    with pytest.raises(ServerError, match=match):
        client.predict([png(0), png(1), png(2)])


def test_a_refusal_of_too_many_images_names_batch_size():
    with Client("http://localhost:1") as client:
        for told in (
            "Batching input tensors supplied in a given op invocation: batch 10 is "
            "larger than maximum batch size 4",
            "Task size 10 is larger than maximum input batch size 4",
        ):
            assert "(batch_size=)" in str(client.target.refused("x", told))
        assert "batch_size" not in str(client.target.refused("x", "no such thing"))


def test_no_such_model_or_version(url):
    with Client(url, name="nix") as client:
        with pytest.raises(ServerError, match=r"Latest\(nix\).*Check name and version"):
            client.predict([png(0)])
        with pytest.raises(ServerError, match="Latest"):
            client.metadata()
    for version in (7, "canary"):
        with (
            Client(url, version=version) as client,
            pytest.raises(ServerError, match=rf"version {version}.*Specific"),
        ):
            client.predict([png(0)])


@pytest.mark.parametrize("version", [1, "stable"])
def test_a_version_is_asked_for(url, served, version):
    with Client(url, version=version) as client:
        assert client.predict([png(0)])[0].ok
    spec = served.asked[0].model_spec
    assert version in (spec.version.value, spec.version_label)


def test_a_signature_that_is_not_there(url, served, monkeypatch):
    kept = {key: served.described[key] for key in ("image_bytes", "images")}
    monkeypatch.setattr(served, "described", kept)
    with (
        Client(url) as client,
        pytest.raises(ServerError, match=r"'attention'.*with image_bytes, images\. "),
    ):
        client.attention([png(0)])


@contextlib.contextmanager
def rude_server():
    """Accepts, reads a little and closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(10)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nobody_there_or_nobody_who_speaks_it(protocol, servers):
    other = servers["gRPC" if protocol == "http" else "REST"].split("//")[1]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    with rude_server() as rude:
        for address in (nobody, rude, other):
            with (
                Client(f"{protocol}://{address}", retries=1) as client,
                pytest.raises(ConnectionError, match=r"docs/serving\.md") as told,
            ):
                client.predict([png(0)])
            assert address in str(told.value)
            assert str(told.value).isprintable()


def test_headers_are_sent(url, served):
    with Client(url, headers={"Authorization": "Bearer x"}) as client:
        client.predict([png(0)])
        client.metadata()
    assert [told["authorization"] for told in served.headers] == ["Bearer x"] * 2


def test_netrc_does_not_replace_headers(servers, served, tmp_path, monkeypatch):
    served.reset()
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    url = servers["REST"].replace("localhost", "127.0.0.1")
    for headers in ({"Authorization": "Bearer x"}, {}):
        with Client(url, headers=headers) as client:
            client.metadata()
    found = [told.get("authorization") for told in served.headers]
    assert found == ["Bearer x", None]


def test_connections_are_kept(servers, served, monkeypatch):
    served.reset()
    accepted = []
    accept = socket.socket.accept
    monkeypatch.setattr(
        socket.socket, "accept", lambda self: accepted.append(self) or accept(self)
    )
    with Client(servers["REST"], batch_size=1) as client:
        client.predict([png(seed) for seed in range(5)])
    assert (len(served.asked), len(accepted)) == (5, 1)


@pytest.mark.parametrize(
    "images",
    [
        b"one",
        "one.jpg",
        np.zeros((2, 2, 3), np.uint8),
        [1],
        [np.zeros((2, 2, 3), np.float32)],
        [np.zeros((2, 2), np.uint8)],
        [np.zeros((0, 2, 3), np.uint8)],
        [b"one", np.zeros((2, 2, 3), np.uint8)],
    ],
)
def test_what_are_no_images(client, served, images):
    with pytest.raises(ValueError, match=r"Expected .*Received"):
        client.predict(images)
    assert not served.attempts


def test_no_images(client):
    assert client.predict([]) == []
    with pytest.raises(ValueError, match="Received: none"):
        client.features([])


def test_files_that_cannot_be_read_are_the_callers(client, tmp_path):
    with pytest.raises(FileNotFoundError):
        client.predict([tmp_path / "none.jpg"])


@pytest.mark.parametrize(
    "options",
    [
        {"url": "localhost:8501"},
        {"url": "ftp://localhost"},
        {"url": "http://user:secret@localhost"},
        {"url": "grpc://localhost"},
        {"url": "grpc://localhost:8500/path"},
        {"name": "a/b"},
        {"name": ""},
        {"version": "a b"},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": float("nan")},
        {"retries": 5},
        {"retries": -1},
        {"batch_size": 0},
    ],
)
def test_impossible_clients(options):
    with pytest.raises(ValueError, match=r"Expected .*Received: ") as told:
        Client(**{"url": "http://localhost:8501"} | options)
    assert "secret" not in str(told.value)


def test_rest_needs_no_protos():
    code = (
        "import sys\n"
        "from keras_vit.serving import Client\n"
        "heavy = ('keras_vit.serving.client_rest', 'tensorflow_serving', 'grpc')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "Client('http://127.0.0.1:1')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "['keras_vit.serving.client_rest']"]


@pytest.mark.parametrize(
    ("url", "missing"),
    [
        ("http://localhost", {"requests": None}),
        ("grpc://localhost:1", {"grpc": None}),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, url, missing):
    for name in ("rest", "grpc"):
        module = f"keras_vit.serving.client_{name}"
        monkeypatch.delitem(sys.modules, module, raising=False)
    for name, nothing in missing.items():
        monkeypatch.setitem(sys.modules, name, nothing)
    with pytest.raises(ImportError, match=r"\.\[serving\]"):
        Client(url)


# keras-vit predict --server


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """The same model as a run's folder."""
    return save_run(tmp_path_factory.mktemp("runs"), model, LABELS)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty images, three files that are none and one that may not be read."""
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(40):
        (folder / f"{seed:02}.png").write_bytes(png(seed))
    (folder / "03.png").write_bytes(BAD)
    (folder / "04.png").write_bytes(b"")
    (folder / "38.png").write_bytes(png(0)[:60])
    (folder / "39.png").unlink()
    (folder / "39.png").symlink_to(folder / "nowhere")
    return folder


def assert_same_text(out, expected):
    """But for the last digit of a share, which a last digit of a score may turn."""
    share = re.compile(r"(\d+\.\d\d) %")
    assert share.sub("%", out) == share.sub("%", expected)
    shares = (list(map(float, share.findall(text))) for text in (out, expected))
    assert next(shares) == pytest.approx(next(shares), abs=0.011)


def test_predict_prints_what_the_model_prints(shell, url, trained, photos):
    files = sorted(photos.iterdir())
    own = shell("predict", "--model", trained, photos)
    assert own[0] == 1
    code, out, err = shell("predict", "--server", url, photos)
    assert code == 1
    assert_same_text(out, own[1])
    assert len(err.splitlines()) == len(own[2].splitlines()) == 5
    assert "40 files; 4 cannot be read" in err.splitlines()[-1]
    for line, other in zip(err.splitlines(), own[2].splitlines(), strict=True):
        assert line.split(" (")[0] == other.split(" (")[0]
    assert "39.png: not a readable image (No such file or directory)" in err
    own = shell("predict", "--model", trained, "--json", "--top", 2, *files[:3])
    found = shell("predict", "--server", url, "--json", "--top", 2, *files[:3])
    for line, other in zip(found[1].splitlines(), own[1].splitlines(), strict=True):
        said, expected = json.loads(line), json.loads(other)
        assert said["image"] == expected["image"]
        assert [top["class"] for top in said["top"]] == [
            top["class"] for top in expected["top"]
        ]
        for top, same in zip(said["top"], expected["top"], strict=True):
            assert top["probability"] == pytest.approx(same["probability"], abs=1e-6)
    _, out, _ = shell("predict", "--server", url, "--json", "--top", 7, files[0])
    assert len(json.loads(out)["top"]) == 5  # The export's.


def test_predict_names_model_version_and_deadline(shell, url, served, photos):
    file = photos / "00.png"
    words = ("predict", "--server", url, file)
    assert shell(*words, "--model-version", "1")[0] == 0
    assert shell(*words, "--model-version", "stable")[0] == 0
    for option, value, told in (
        ("--name", "nix", "Latest(nix)"),
        ("--model-version", "7", "Specific(model, 7)"),
    ):
        code, out, err = shell(*words, option, value)
        assert (code, out) == (1, "")
        assert told in err
    served.reset()
    assert shell(*words, file, file, "--batch-size", 2)[0] == 0
    asked = [len(told.inputs["image_bytes"].string_val) for told in served.asked]
    assert asked == [2, 1]
    served.faults.append(2.0)
    code, _, err = shell(*words, "--timeout", 0.3)
    assert code == 1
    assert "within 0.3 s" in err


def test_options_that_make_no_sense_together(shell, trained, photos):
    file = photos / "00.png"
    for option in (
        ("--model", trained),
        ("--weights", "x.npz"),
        ("--mean", 0.5, 0.5, 0.5),
        ("--std", 0.5, 0.5, 0.5),
    ):
        code, _, err = shell("predict", "--server", "http://localhost", *option, file)
        assert code == 1
        assert "without --server, which has its own model" in err
        assert f"Received: {option[0]} with" in err
    for option in (
        ("--name", "x"),
        ("--model-version", "1"),
        ("--timeout", "1"),
        ("--batch-size", "4"),
    ):
        code, _, err = shell("predict", "--model", trained, *option, file)
        assert code == 1
        assert f"with --server. Received: {option[0]} without" in err
    code, _, err = shell("predict", "--server", "localhost:8501", file)
    assert code == 1
    assert "Expected http://host:8501" in err


def test_a_prediction_is_a_value():
    said = Prediction(("kite",), (1.0,))
    assert dataclasses.astuple(said) == (("kite",), (1.0,), "ok")
    with pytest.raises(dataclasses.FrozenInstanceError):
        said.status = "bad"


# docs/serving.md

MANUAL = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()


@pytest.fixture
def birds(served, monkeypatch, tmp_path):
    """The manual's model and its image, in the working directory."""
    served.reset()
    monkeypatch.setattr(served, "name", "birds")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.jpg").write_bytes(tf.io.encode_jpeg(pixels(0)).numpy())
    (tmp_path / "broken.jpg").write_bytes(BAD)


def blocks(language, servers):
    """The manual's, with the addresses of servers that run here."""
    for block in re.findall(rf"```{language}\n(.*?)```", MANUAL, re.DOTALL):
        block = block.replace("http://localhost:8501", servers["REST"])
        yield block.replace("grpc://localhost:8500", servers["gRPC"])


def test_python_of_the_manual_asks(birds, servers, capsys):
    (block,) = (block for block in blocks("python", servers) if "Client(" in block)
    found = {}
    exec(compile(block, "docs/serving.md", "exec"), found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "birds 1"
    assert re.fullmatch(r"ok \('.*',\)", lines[1])
    assert lines[2] == "not a whole JPEG, PNG, GIF, BMP or WebP image ()"
    assert found["features"].shape == (1, 24)


def test_curl_of_the_manual_asks(birds, servers):
    if not (shutil.which("curl") and shutil.which("bash")):
        pytest.skip("needs curl and bash")
    asking = [b for b in blocks("bash", servers) if "curl" in b and "127.0.0.1" in b]
    asking = [block for block in asking if "docker" not in block]
    said = []
    for block in asking:
        done = subprocess.run(
            ["bash", "-e", "-c", block], capture_output=True, text=True, check=True
        )
        decoder, text = json.JSONDecoder(), done.stdout.strip()
        while text:
            told, end = decoder.raw_decode(text)
            said.append(told)
            text = text[end:].strip()
    rows, columns, status, metadata = said
    (row,) = rows["predictions"]
    assert row["status"] == "ok"
    assert len(row["classes"]) == len(row["scores"]) == 5
    assert np.shape(columns["outputs"]["features"]) == (1, 24)
    assert columns["outputs"]["status"] == ["ok"]
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert metadata["model_spec"]["version"] == "1"


def test_shell_of_the_manual_asks(birds, servers, shell, tmp_path):
    (tmp_path / "another-folder").mkdir()
    (tmp_path / "another-folder" / "a.png").write_bytes(png(1))
    lines = "".join(blocks("bash", servers)).splitlines()
    commands = [line for line in lines if line.startswith("keras-vit predict")]
    assert len(commands) == 2
    for command in commands:
        code, out, err = shell(*command.split()[1:])
        assert (code, err) == (0, "")
        assert "some.jpg" in out
