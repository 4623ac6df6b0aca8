"""The lock file: what is downloaded later is what was downloaded first."""

import hashlib
import re
import tomllib
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keras_vit import callers
from keras_vit.cli import app
from keras_vit.weights import download as module
from keras_vit.weights import hashes, sources
from keras_vit.weights.download import download, fetch, locate, lock
from keras_vit.weights.mirrors import DownloadError
from keras_vit.weights.registry import Checkpoint, Mirror
from tests.weights.hub import connected

pytestmark = pytest.mark.tensorflow_only

CONFIG, NEW = b'{"model_type": "vit"}', b'{"model_type": "new"}'
REPOSITORY = {"config.json": CONFIG, "model.h5": b"weights"}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub, an empty cache, and a working directory that is a project."""
    callers.warn_once.cache_clear()
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("KERAS_VIT_LOCK", raising=False)
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    with connected(tmp_path / "home", monkeypatch) as hub:
        yield hub


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A function that changes to a machine with an empty cache."""

    def change(name):
        from huggingface_hub import constants

        monkeypatch.setenv("KERAS_HOME", str(tmp_path / name))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / name / "hub"))

    return change


def url_of(hub, file="config.json"):
    return f"{hub.url}/me/vit/resolve/main/{file}"


def test_a_lock_file_is_written_once_for_each_url(hub):
    commit = hub.add("me/vit", REPOSITORY)
    download([url_of(hub)], module.cache_dir() / "urls" / "config.json")
    path, count, new, unknown = lock()
    assert (path, count, new, unknown) == (Path("keras-vit.lock"), 1, 1, [])
    text = path.read_text()
    entry = {"commit": commit, "sha256": sha256(CONFIG), "size": len(CONFIG)}
    assert tomllib.loads(text) == {"version": 1, "files": {url_of(hub): entry}}
    assert text.startswith("# sha256, size and commit of downloaded weights, written")
    assert lock()[1:] == (1, 0, [])
    assert path.read_text() == text
    assert hashes.read_lock(path) == {url_of(hub): hashes.Entry(**entry)}


def test_the_locked_commit_is_asked_for(hub, tmp_path, fresh):
    commit = hub.add("me/vit", REPOSITORY)
    download([url_of(hub)], module.cache_dir() / "config.json")
    lock()
    hub.add("me/vit", {"config.json": NEW})
    fresh("second machine")
    path = download([url_of(hub)], module.cache_dir() / "config.json")
    assert path.read_bytes() == CONFIG
    assert hub.log[-1] == ("GET", f"/me/vit/resolve/{commit}/config.json")
    assert lock()[1:] == (1, 0, [])


def test_a_changed_file_names_both_hashes(hub, fresh):
    """A server that answers with a different file for the same commit."""
    commit = hub.add("me/vit", REPOSITORY)
    path = module.cache_dir() / "config.json"
    download([url_of(hub)], path)
    lock()
    hub.repositories["me/vit"].commits[commit]["config.json"] = NEW
    fresh("second machine")
    with pytest.raises(DownloadError) as raised:
        download([url_of(hub)], module.cache_dir() / "config.json")
    [(url, reason)] = raised.value.failures
    assert url == f"{hub.url}/me/vit/resolve/{commit}/config.json"
    assert reason == (
        f"sha256 is {sha256(NEW)} ({len(NEW)} bytes), locked {sha256(CONFIG)} "
        f"({len(CONFIG)} bytes)"
    )
    assert not (module.cache_dir() / "config.json").exists()


def test_a_cached_file_is_compared_too(hub, fresh):
    hub.add("me/vit", REPOSITORY)
    download([url_of(hub)], module.cache_dir() / "config.json")
    lock()
    hub.add("me/vit", {"config.json": NEW})
    Path("keras-vit.lock").rename("elsewhere.lock")
    fresh("second machine")
    path = module.cache_dir() / "config.json"
    download([url_of(hub)], path)  # Without the lock file.
    Path("elsewhere.lock").rename("keras-vit.lock")
    with pytest.raises(
        DownloadError, match=r"to match its entry in keras-vit\.lock"
    ) as at:
        download([url_of(hub)], path)
    for digest in (sha256(NEW), sha256(CONFIG)):
        assert digest in str(at.value)
    with pytest.raises(ValueError, match="downloaded without that lock file") as at:
        lock()
    for digest in (sha256(NEW), sha256(CONFIG)):
        assert f"sha256={digest}" in str(at.value)


def checkpoint(*urls, format="npz"):
    return Checkpoint(
        variant="ViT-T/16",
        tag="tag",
        path="tag/ViT-T_16.npz",
        size=None,
        image_size=(32, 32),
        num_classes=10,
        labels="imagenet2012",
        mirrors=tuple(Mirror(url=at, format=format) for at in urls),
    )


@pytest.fixture
def anything(monkeypatch):
    """Any content passes for a weights file."""
    monkeypatch.setattr(module, "_content_problem", lambda path, suffix: None)


def test_a_tag_is_one_file_whichever_mirror_delivers(hub, fresh, anything):
    for name in ("one", "two", "three"):
        hub.add(f"me/{name}", {"a.npz": b"weights" if name != "two" else b"others"})
    one, two, three = (
        f"{hub.url}/me/{name}/resolve/main/a.npz" for name in ("one", "two", "three")
    )
    locate(checkpoint(one))
    lock()
    del hub.repositories["me/one"]
    fresh("second machine")
    assert locate(checkpoint(one, two, three)).read_bytes() == b"weights"
    assert hub.log[-1] == ("GET", "/me/three/resolve/main/a.npz")
    fresh("third machine")
    with pytest.raises(DownloadError, match=f"sha256 is {sha256(b'others')}"):
        locate(checkpoint(one, two))


def test_a_different_dialect_is_not_the_locked_file(hub, fresh, anything):
    hub.add("me/copy", {"model.safetensors": b"copy"})
    copy = f"{hub.url}/me/copy/resolve/main/model.safetensors"
    locate(checkpoint(copy, format="timm"))
    lock()
    hub.add("me/vit", {"a.npz": b"official"})  # It comes back.
    row = checkpoint(f"{hub.url}/me/vit/resolve/main/a.npz")
    copies = checkpoint(copy, format="timm").mirrors
    both = Checkpoint(**{**vars(row), "mirrors": (*row.mirrors, *copies)})
    fresh("second machine")
    assert locate(both).read_bytes() == b"copy"


def test_own_mirrors_deliver_the_locked_file(
    hub, fresh, tmp_path, monkeypatch, anything
):
    hub.add("me/vit", {"a.npz": b"weights"})
    row = checkpoint(f"{hub.url}/me/vit/resolve/main/a.npz")
    monkeypatch.setattr(module, "select", lambda variant, tag: [row])
    [copied] = fetch("tag", to=tmp_path / "usb")
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "usb"))
    assert lock()[1] == 1  # The public URL: the folder is in no other place.
    assert set(hashes.read_lock(Path("keras-vit.lock"))) == {row.mirrors[0].url}
    fresh("second machine")
    assert locate(row) == copied
    copied.write_bytes(b"changed")
    Path(f"{copied}.sha256").unlink()
    with pytest.raises(DownloadError, match=f"locked {sha256(b'weights')}"):
        locate(row)


def test_a_file_that_is_not_locked_is_reported_once(hub):
    hub.add("me/vit", REPOSITORY)
    download([url_of(hub)], module.cache_dir() / "config.json")
    lock()
    other = url_of(hub, "model.h5")
    with pytest.warns(UserWarning, match=f"no entry for {re.escape(other)}"):
        download([other], module.cache_dir() / "model.h5")
    assert lock()[1:3] == (2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        download([other], module.cache_dir() / "model.h5")


def test_a_repository_by_name_is_pinned(hub, fresh):
    commit = hub.add("me/vit", REPOSITORY)
    assert sources.resolve("hf://me/vit").revision == commit
    assert lock()[1] == 2
    entries = hashes.read_lock(Path("keras-vit.lock"))
    assert set(entries) == {
        "https://huggingface.co/me/vit/resolve/main/config.json",
        "https://huggingface.co/me/vit/resolve/main/model.h5",
    }
    assert {entry.commit for entry in entries.values()} == {commit}
    later = hub.add("me/vit", {"config.json": NEW})
    fresh("second machine")
    assert sources.resolve("hf://me/vit").revision == commit
    hub.repositories["me/vit"].commits[commit]["config.json"] = NEW
    fresh("third machine")
    with pytest.raises(
        DownloadError, match=r"to match its entry in keras-vit\.lock"
    ) as at:
        sources.resolve("hf://me/vit")
    for digest in (sha256(NEW), sha256(CONFIG)):
        assert digest in str(at.value)
    Path("keras-vit.lock").unlink()
    assert sources.resolve("hf://me/vit").revision == later


def test_a_repository_at_a_revision_has_entries_of_its_own(hub):
    hub.add("me/vit", REPOSITORY)
    pull = hub.add("me/vit", {**REPOSITORY, "config.json": NEW}, branch="refs/pr/1")
    sources.resolve("hf://me/vit@refs/pr/1")
    lock()
    prefix = "https://huggingface.co/me/vit/resolve/refs%2Fpr%2F1/"
    entries = hashes.read_lock(Path("keras-vit.lock"))
    assert entries[f"{prefix}config.json"].commit == pull
    with pytest.warns(UserWarning, match="no entry for hf://me/vit"):
        sources.resolve("hf://me/vit")


def test_a_read_only_cache_is_a_warning(hub, tmp_path, monkeypatch):
    hub.add("me/vit", REPOSITORY)
    (tmp_path / "file").write_text("where a folder should be")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"weights lock. will not find"):
        assert sources.resolve("hf://me/vit").revision


URL = "https://huggingface.co/me/vit/resolve/main/a"
ENTRY = f'[files."{URL}"]\nsha256 = "{"0" * 64}"\nsize = 1\n'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<<<<<<< HEAD\n",
        "version = 2\n",
        f"version = 1\n{ENTRY}{ENTRY}",  # Git merges such.
        f"version = 1\n{ENTRY.replace('0' * 64, '0' * 63)}",
        f"version = 1\n{ENTRY.replace('1', 'true')}",
        f"version = 1\n{ENTRY.replace('1', '-1')}",
        f'version = 1\n{ENTRY}commit = "main"\n',
        f'version = 1\n{ENTRY}more = "main"\n',
        "version = 1\nfiles = 1\n",
        "version = 1\n[files]\na = 1\n",
        "version = 1\nmore = 1\n",
        "\xff",
    ],
)
def test_a_damaged_lock_file(hub, text):
    Path("keras-vit.lock").write_text(text, "latin-1")
    with pytest.raises(ValueError, match="Expected a lock file") as raised:
        download([URL], module.cache_dir() / "a")
    assert "keras-vit.lock" in str(raised.value)
    assert hub.log == []


def test_a_lock_file_by_the_environment(hub, tmp_path, monkeypatch, fresh):
    monkeypatch.setenv("KERAS_VIT_LOCK", str(tmp_path / "mine.lock"))
    with pytest.raises(ValueError, match=r"Received: \S+mine\.lock .*No such file"):
        download([url_of(hub)], module.cache_dir() / "config.json")
    monkeypatch.delenv("KERAS_VIT_LOCK")
    hub.add("me/vit", REPOSITORY)
    download([url_of(hub)], module.cache_dir() / "config.json")
    monkeypatch.setenv("KERAS_VIT_LOCK", str(tmp_path / "mine.lock"))
    assert lock()[0] == tmp_path / "mine.lock"
    assert not list(Path().iterdir())


def test_several_commits_of_a_repository(hub):
    entries = [
        f'[files."{URL}{at}"]\nsha256 = "{"0" * 64}"\nsize = 1\ncommit = "{at * 40}"\n'
        for at in "ab"
    ]
    Path("keras-vit.lock").write_text("version = 1\n" + "\n".join(entries))
    message = r"one commit of hf://me/vit in keras-vit\.lock"
    with pytest.raises(ValueError, match=message):
        sources.resolve("hf://me/vit")


def test_the_command(hub):
    run = CliRunner()
    found = run.invoke(app, ["weights", "lock"])
    assert found.exit_code
    assert not Path("keras-vit.lock").exists()
    hub.add("me/vit", REPOSITORY)
    download([url_of(hub)], module.cache_dir() / "config.json")
    earlier = module.cache_dir() / "old.npz.sha256"  # As earlier versions wrote it.
    earlier.write_text(f"{'0' * 64}  old.npz\n")
    found = run.invoke(app, ["weights", "lock", "mine.lock"])
    assert found.exit_code == 0
    assert "mine.lock: 1 entries, 1 of them new" in found.output
    assert f"{earlier} has no URL" in found.output.replace("\n", "")
