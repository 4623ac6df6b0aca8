"""Versions of a folder: half-written ones are skipped, new ones are picked up."""

import asyncio
import contextlib
import shutil

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from keras_vit.serving import versions  # noqa: E402
from keras_vit.serving.versions import Versions  # noqa: E402

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two SavedModels of one variable, which they return: 1.0 and 2.0."""
    path = tmp_path_factory.mktemp("models")
    for version in (1, 2):
        save(path / str(version), float(version))
    return path


def save(path, value):
    module = tf.Module()
    module.value = tf.Variable(value)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def add(x):
        return {"y": x + module.value}

    tf.saved_model.save(module, str(path), signatures={"serving_default": add})


@pytest.fixture
def folder(models, tmp_path):
    """A folder of version 1."""
    shutil.copytree(models / "1", tmp_path / "served" / "1")
    return tmp_path / "served"


def value(servable):
    return servable.run("serving_default", {"x": np.zeros(1, np.float32)})["y"][0]


def cut_graph(version):
    file = version / "saved_model.pb"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def cut_variables(version):
    (file,) = (version / "variables").glob("*.data-*")
    file.write_bytes(file.read_bytes()[:2])


DAMAGES = {
    "no saved_model.pb": lambda version: (version / "saved_model.pb").unlink(),
    "empty saved_model.pb": lambda version: (version / "saved_model.pb").write_bytes(
        b""
    ),
    "half of saved_model.pb": cut_graph,
    "no variables": lambda version: shutil.rmtree(version / "variables"),
    "half of the variables": cut_variables,
    "a warm-up that fails": lambda version: (
        (version / "assets.extra").mkdir(),
        (version / "assets.extra" / "tf_serving_warmup_requests").write_bytes(
            b"x" * 30
        ),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_version_is_skipped(folder, models, damage):
    shutil.copytree(models / "2", folder / "2")
    DAMAGES[damage](folder / "2")
    said = []
    versions = Versions(folder, report=said.append)
    assert (versions.current.version, value(versions.current)) == (1, 1.0)
    (message,) = said
    assert message.startswith(f"{folder / '2'} is skipped")
    for _ in range(3):
        assert versions.refresh() is versions.current
    assert len(said) == 1  # Once.
    shutil.rmtree(folder / "2")
    shutil.copytree(models / "2", folder / "2")  # Now it is whole.
    versions.refresh()
    assert (versions.refresh().version, value(versions.current)) == (2, 2.0)
    assert f"{folder / '2'} is served from now on" in said[1]


def test_a_new_version_is_served_once_its_files_rest(folder, models):
    versions = Versions(folder, report=str)
    (folder / "2").mkdir()
    for part in ("saved_model.pb", "fingerprint.pb"):
        shutil.copy(models / "2" / part, folder / "2")
        assert versions.refresh().version == 1
    shutil.copytree(models / "2" / "variables", folder / "2" / "variables")
    assert versions.refresh().version == 1
    assert versions.refresh().version == 2


def test_a_folder_that_cannot_be_read_is_reported_and_followed(
    folder, models, monkeypatch
):
    said = []
    served = Versions(folder, report=said.append)
    with monkeypatch.context() as patch:

        def stale(path):
            raise OSError(116, "Stale file handle", str(path))

        patch.setattr(versions, "_numbers", stale)
        for _ in range(3):
            assert served.refresh().version == 1
    (message,) = said
    assert "Stale file handle" in message
    shutil.copytree(models / "2", folder / "2")
    served.refresh()
    assert served.refresh().version == 2


def test_the_version_before_is_served_when_the_newest_is_removed(folder, models):
    shutil.copytree(models / "2", folder / "2")
    versions = Versions(folder, report=str)
    assert value(versions.current) == 2
    shutil.rmtree(folder / "2")
    versions.refresh()
    assert value(versions.refresh()) == 1
    shutil.rmtree(folder / "1")
    assert value(versions.refresh()) == 1  # What is loaded stays.


def test_no_version_that_can_be_loaded_is_an_error(folder, tmp_path):
    with pytest.raises(ValueError, match="no version there"):
        Versions(tmp_path / "absent", report=str)
    cut_graph(folder / "1")
    said = []
    with pytest.raises(ValueError, match=r"Received: 1 that cannot"):
        Versions(folder, report=said.append)
    assert said[0].startswith(f"{folder / '1'} is skipped")


def test_requests_see_no_change_of_versions(folder, models, monkeypatch):
    """8 clients without a pause, as version 2 comes and goes: every answer is whole."""
    pytest.importorskip("grpc")
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    from keras_vit.serving import server

    monkeypatch.setattr(server, "POLL_SECONDS", 0.02)
    versions = Versions(folder, report=str)
    served = server.Models("m", versions.current, server.Limits(), threads=2)
    answers = []

    async def stays():
        return False

    async def client():
        while True:
            body = b'{"instances": [0.0]}'
            answers.append(await served.predict_json("m", None, body, stays))

    async def until(version):
        async with asyncio.timeout(30):
            while served.servable.version != version:
                await asyncio.sleep(0.01)

    async def run():
        clients = [asyncio.create_task(client()) for _ in range(8)]
        following = asyncio.create_task(served.follow(versions.refresh))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(shutil.copytree, models / "2", folder / "2")
        await until(2)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(shutil.rmtree, folder / "2")
        await until(1)
        for task in (*clients, following):
            assert not task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert set(answers) == {
        b'{"predictions": [1.0]}',
        b'{"predictions": [2.0]}',
    }
