"""Downloads against a real server on the loopback: nothing here needs a network."""

import errno
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import filelock
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.weights import download as module
from keras_vit.weights.download import download, fetch, locate
from keras_vit.weights.mirrors import DownloadError
from keras_vit.weights.registry import BIT_BUCKET, BUCKET, Checkpoint, Mirror, find

pytestmark = pytest.mark.tensorflow_only

HTML = b"<!DOCTYPE html><html><body>Sign in to continue</body></html>"


def npz(seed=0, size=50_000):
    buffer = io.BytesIO()
    kernel = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
    np.savez(buffer, kernel=kernel)
    return buffer.getvalue()


BODY = npz()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`, with the fault that `server.faults` has for the path."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.log.append((self.path, self.headers["Range"], self.headers["If-Range"]))
        body = server.files.get(self.path)
        fault = server.faults.get(self.path, "")
        if isinstance(fault, int) or body is None:
            self.send_error(fault or 404)
            return
        start, status = 0, 200
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if asked and self.headers["If-Range"] == etag:
            start, status = int(asked[1]), 206
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(status)
        if fault != "no validator":
            self.send_header("ETag", etag)
        if status == 206:
            extent = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self.send_header("Content-Range", extent)
        if body is HTML:
            self.send_header("Content-Type", "text/html; charset=utf-8")
        if fault == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.send(body[start:], fault)

    def send(self, body, fault):
        if fault in ("truncated", "stalled", "no validator"):
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            if fault == "stalled":
                self.server.release.wait(20)
        elif fault == "chunked":  # And no last chunk.
            self.wfile.write(b"%x\r\n%b\r\n" % (len(body) // 2, body[: len(body) // 2]))
            self.close_connection = True
        elif fault == "slow":
            for begin in range(0, len(body), 4096):
                self.wfile.write(body[begin : begin + 4096])
                time.sleep(0.01)
        else:
            self.wfile.write(body)


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that was killed is part of a test, not news."""


@pytest.fixture
def server():
    server = QuietServer(("127.0.0.1", 0), Handler)
    server.files, server.faults, server.log = {"/a.npz": BODY, "/b.npz": BODY}, {}, []
    server.release = threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras home"))
    monkeypatch.delenv("KERAS_VIT_WEIGHTS", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "keras home"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "files" / "ViT.npz"


def checkpoint(*urls, size=None, path="tag+x/R50+ViT-T_16.npz"):
    return Checkpoint(
        variant="R50+ViT-T/16",
        tag="tag+x",
        path=path,
        size=size,
        image_size=(32, 32),
        num_classes=10,
        labels="imagenet2012",
        mirrors=tuple(Mirror(url=url, format="npz") for url in urls),
    )


def parts(target):
    return sorted(target.parent.glob("*.part"))


def fails(server, target, reason, *, kept=False, **options):
    """The download fails for `reason` and leaves nothing under the final name."""
    with pytest.raises(DownloadError, match="Expected one of the mirrors") as error:
        download([f"{server.url}/a.npz"], target, **options)
    assert re.search(reason, str(error.value))
    assert error.value.failures[0][0] == f"{server.url}/a.npz"
    assert "KERAS_VIT_WEIGHTS" in str(error.value)
    assert not target.exists()
    assert bool(parts(target)) == kept
    assert not list(target.parent.glob("*.lock"))


def test_a_download_is_whole_and_recorded(server, target, capsys):
    assert download([f"{server.url}/a.npz"], target) == target
    assert target.read_bytes() == BODY
    digest = hashlib.sha256(BODY).hexdigest()
    first, second = Path(f"{target}.sha256").read_text().splitlines()
    assert first == f"{digest}  ViT.npz"
    found = {"url": f"{server.url}/a.npz", "sha256": digest, "size": len(BODY)}
    assert json.loads(second.removeprefix("# ")) == found
    check = ["sha256sum", "--strict", "-c", f"{target}.sha256"]
    subprocess.run(check, cwd=target.parent, check=True, capture_output=True)
    assert sorted(p.name for p in target.parent.iterdir()) == [
        "ViT.npz",
        "ViT.npz.sha256",
    ]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"Downloading {server.url}/a.npz (0.2 MiB)"]
    download([f"{server.url}/a.npz"], target)
    assert len(server.log) == 1  # The second call found it.


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_http_errors(server, target, status):
    server.faults["/a.npz"] = status
    fails(server, target, f"HTTP {status}")


def test_truncated_then_resumed_with_a_range(server, target):
    server.faults["/a.npz"] = "truncated"
    half = len(BODY) // 2
    fails(server, target, "truncated: ", kept=True)
    assert parts(target)[0].read_bytes() == BODY[:half]
    server.faults.clear()
    download([f"{server.url}/a.npz"], target)
    assert target.read_bytes() == BODY
    asked, if_range = server.log[-1][1:]
    assert asked == f"bytes={half}-"
    assert if_range.startswith('"')
    assert not parts(target)
    assert not list(target.parent.glob("*.validator"))


def test_truncated_without_a_length(server, target):
    server.faults["/a.npz"] = "chunked"
    fails(server, target, "truncated: ", kept=True)
    server.faults.clear()
    download([f"{server.url}/a.npz"], target)
    assert server.log[-1][1] == f"bytes={len(BODY) // 2}-"
    assert target.read_bytes() == BODY


def test_a_file_that_changed_is_not_spliced(server, target):
    server.faults["/a.npz"] = "truncated"
    fails(server, target, "truncated", kept=True)
    server.faults.clear()
    server.files["/a.npz"] = npz(seed=1)  # If-Range no longer holds: 200.
    download([f"{server.url}/a.npz"], target)
    assert server.log[-1][1] == f"bytes={len(BODY) // 2}-"
    assert target.read_bytes() == npz(seed=1)


def test_without_a_validator_nothing_is_resumed(server, target):
    server.faults["/a.npz"] = "no validator"
    fails(server, target, "truncated", kept=True)
    server.faults.clear()
    download([f"{server.url}/a.npz"], target)
    assert server.log[-1][1] is None
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("extra", [b"", b"too long"])
def test_416(server, target, extra):
    """A part that is whole is used; one that is longer than the file is not."""
    server.faults["/a.npz"] = "truncated"
    fails(server, target, "truncated", kept=True)
    server.faults.clear()
    parts(target)[0].write_bytes(BODY + extra)
    download([f"{server.url}/a.npz"], target)
    assert target.read_bytes() == BODY
    assert len(server.log) == (3 if extra else 2)


def test_stalled(server, target):
    server.faults["/a.npz"] = "stalled"
    start = time.monotonic()
    fails(server, target, "no data for 0.3 s", kept=True, timeout=0.3)
    assert time.monotonic() - start < 5


def test_no_server(server, target):
    with pytest.raises(DownloadError, match="refused"):
        download(["http://127.0.0.1:9/a.npz"], target)
    assert not target.exists()


def test_html_is_told_apart(server, target):
    server.files["/a.npz"] = HTML
    fails(server, target, "an HTML or XML page, not a .npz")
    fails(server, target, "wrong size: 60 .* an HTML page", size_bounds=(100, 200))


def test_wrong_size_is_refused_before_the_body(server, target):
    server.faults["/a.npz"] = "stalled"  # The body would never end.
    fails(server, target, f"wrong size: {len(BODY):,} bytes", size_bounds=(1, 9))


def damaged():
    body = bytearray(BODY)
    body[len(body) // 2] ^= 1
    return bytes(body)


def compressed(method):
    """A .npz with a member of a method that NumPy does not write, damaged."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("kernel.npy", bytes(range(256)))
    body = bytearray(buffer.getvalue())
    body[45:55] = b"\xff" * 10
    return bytes(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (damaged(), "CRC of its member kernel.npy"),
        (compressed(zipfile.ZIP_BZIP2), "not a whole zip archive"),
        (compressed(zipfile.ZIP_LZMA), "not a whole zip archive"),
        (BODY[:-30], "not a whole zip archive"),
        (b"\x00" * 1000, "not a whole zip archive"),
        (b"", "an empty file"),
    ],
)
def test_content_is_checked(server, target, body, reason):
    server.files["/a.npz"] = body
    fails(server, target, reason)


def test_sha256(server, target):
    fails(server, target, "sha256 is .*, expected 0000", sha256="0" * 64)


def test_another_sha256_than_at_first(server, target):
    download([f"{server.url}/a.npz"], target)
    target.unlink()
    server.files["/a.npz"] = npz(seed=1)
    fails(
        server, target, f"from the first download, in {re.escape(str(target))}.sha256"
    )
    server.files["/c.npz"] = BODY
    download([f"{server.url}/a.npz", f"{server.url}/c.npz"], target)
    assert target.read_bytes() == BODY


def test_next_mirror(server, target, capsys):
    server.faults["/a.npz"] = 403
    server.files["/html.npz"] = HTML
    urls = [f"{server.url}/{name}.npz" for name in ("a", "html", "b")]
    download(urls, target)
    assert target.read_bytes() == BODY
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{urls[0]}: HTTP 403 Forbidden"
    assert lines[2].startswith(f"{urls[1]}: an HTML or XML page")


def test_every_mirror_is_listed_when_none_is_left(server, home):
    server.faults["/a.npz"] = 404
    server.faults["/b.npz"] = "truncated"
    row = checkpoint(f"{server.url}/a.npz", f"{server.url}/b.npz")
    with pytest.raises(DownloadError) as error:
        locate(row)
    message = str(error.value)
    assert f"{server.url}/a.npz: HTTP 404 Not Found\n" in message
    assert f"{server.url}/b.npz: truncated" in message
    assert "keras_vit.weights.fetch('tag+x', to=DIRECTORY)" in message
    assert "KERAS_VIT_WEIGHTS" in message
    assert not (home / "keras_vit" / row.path).exists()


def test_a_leftover_of_another_mirror_is_removed(server, target):
    server.faults["/a.npz"] = "truncated"
    download([f"{server.url}/a.npz", f"{server.url}/b.npz"], target)
    assert not parts(target)


def test_unwritable_cache(server, home):
    home.write_text("a file, where a directory should be")
    with pytest.raises(DownloadError, match="to be writable") as error:
        locate(checkpoint(f"{server.url}/a.npz", f"{server.url}/b.npz"))
    assert "KERAS_HOME" in str(error.value)
    assert str(home / "keras_vit") in str(error.value)
    assert not server.log


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_cache(server, target):
    target.parent.mkdir()
    target.parent.chmod(0o500)
    with pytest.raises(DownloadError, match="Permission denied"):
        download([f"{server.url}/a.npz"], target)
    assert not target.exists()


def test_no_room_is_known_before_the_download(server, target, monkeypatch):
    """A size is a mirror's claim: a smaller file of the next one may have room."""
    usage = shutil.disk_usage("/")._replace(free=300_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    server.files["/a.npz"] = npz(size=100_000)
    reason = f"{len(npz(size=100_000)):,} bytes to download, but 300,000 bytes free in "
    fails(server, target, f"{reason}{re.escape(str(target.parent))} .KERAS_HOME")
    download([f"{server.url}/a.npz", f"{server.url}/b.npz"], target)
    assert target.read_bytes() == BODY


def test_disk_full(server, target, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match="KERAS_HOME") as error:
        download([f"{server.url}/a.npz", f"{server.url}/b.npz"], target)
    assert f"free space for {len(BODY):,} bytes" in str(error.value)
    assert str(target.parent) in str(error.value)
    assert not error.value.failures
    assert not target.exists()
    monkeypatch.undo()
    assert download([f"{server.url}/a.npz"], target).read_bytes() == BODY


# The module alone, without Keras: other processes start in a fraction of a second.
CHILD = f"""
import sys, types
for name, path in (("keras_vit", "."), ("keras_vit.weights", "weights")):
    package = types.ModuleType(name)
    package.__path__ = [r"{Path(module.__file__).parents[1]}/" + path]
    sys.modules[name] = package
from keras_vit.weights.download import download
print(download([sys.argv[1]], sys.argv[2]))
assert not {{"keras", "tensorflow", "numpy"}} & set(sys.modules)
"""


def child(url, target):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, url, str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_at_once(server, target):
    server.faults["/a.npz"] = "slow"
    children = [child(f"{server.url}/a.npz", target) for _ in range(3)]
    outputs = [process.communicate(timeout=60) for process in children]
    assert [process.returncode for process in children] == [0, 0, 0], outputs
    assert len(server.log) == 1
    assert target.read_bytes() == BODY
    assert sorted(p.name for p in target.parent.iterdir()) == [
        "ViT.npz",
        "ViT.npz.sha256",
    ]


def test_a_second_process_waits_with_a_message(server, target):
    target.parent.mkdir()
    with filelock.FileLock(f"{target}.lock"):
        process = child(f"{server.url}/a.npz", target)
        line = process.stderr.readline()
        assert line == f"Waiting for another process that downloads {target}\n"
        assert not server.log
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("content", ["kept", None])
def test_a_symbolic_link_is_refused_as_a_lock(server, target, tmp_path, content):
    """Following one could truncate, create or delete a file elsewhere."""
    target.parent.mkdir()
    if content:
        (tmp_path / "other").write_text(content)
    link = Path(f"{target}.lock")
    link.symlink_to(tmp_path / "other")
    with pytest.raises(DownloadError, match="symbolic links"):
        download([f"{server.url}/a.npz"], target)
    assert link.is_symlink()
    assert (tmp_path / "other").exists() == (content is not None)
    assert content is None or (tmp_path / "other").read_text() == content
    assert not server.log


def test_a_file_system_without_locks(server, target, monkeypatch, capsys):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    assert download([f"{server.url}/a.npz"], target).read_bytes() == BODY
    told = capsys.readouterr().err
    assert "This file system has no locks ([Errno 37] No locks available)" in told
    assert not list(target.parent.glob("*.lock"))


def test_killed_then_resumed(server, target):
    server.files["/a.npz"] = body = npz(size=500_000)
    server.faults["/a.npz"] = "slow"
    process = child(f"{server.url}/a.npz", target)
    deadline = time.monotonic() + 30
    while not any(p.stat().st_size for p in parts(target)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not target.exists()
    server.faults.clear()
    download([f"{server.url}/a.npz"], target)
    assert target.read_bytes() == body
    assert server.log[-1][1].startswith("bytes=")


def test_the_cache_is_used_and_checked(server, home):
    row = checkpoint(f"{server.url}/a.npz")
    path = locate(row)
    assert path == home / "keras_vit" / row.path
    assert locate(row) == path
    assert len(server.log) == 1
    path.write_bytes(npz(seed=1))
    with pytest.raises(DownloadError) as error:
        locate(row)
    for body in (BODY, npz(seed=1)):
        assert f"sha256={hashlib.sha256(body).hexdigest()}" in str(error.value)
    assert f"Delete {path}" in str(error.value)


@pytest.mark.parametrize("name", ["tag+x/R50+ViT-T_16.npz", "R50+ViT-T_16.npz"])
def test_own_directory_is_used_in_place(tmp_path, monkeypatch, home, name):
    own = tmp_path / "own" / name
    own.parent.mkdir(parents=True)
    own.write_bytes(BODY)
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "own"))
    with pytest.warns(UserWarning, match="the published .* has 9.99 MiB"):
        assert locate(checkpoint(size="9.99 MiB")) == own
    assert locate(checkpoint(size="9.99 MiB")) == own  # It warns once.
    assert not home.exists()
    own.write_bytes(HTML)
    with pytest.raises(DownloadError, match="an HTML or XML page"):
        locate(checkpoint())


def test_own_directory_without_the_file(server, tmp_path, monkeypatch, home):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    assert locate(checkpoint(f"{server.url}/a.npz")).is_relative_to(home)


def test_own_base_url_comes_before_the_mirrors(server, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", f"{server.url}/mirror/")
    quoted = "/mirror/tag%2Bx/R50%2BViT-T_16.npz"
    server.files[quoted] = npz(seed=2)
    row = checkpoint(f"{server.url}/a.npz", size="8 MiB")
    with pytest.warns(UserWarning, match="The file is used anyway"):
        assert locate(row).read_bytes() == npz(seed=2)
    assert [path for path, *_ in server.log] == [quoted]


def test_public_mirrors_follow_an_own_one_that_fails(server, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", f"{server.url}/mirror")
    server.faults["/a.npz"] = 500
    with pytest.raises(DownloadError) as error:
        locate(checkpoint(f"{server.url}/a.npz"))
    reasons = [reason for _, reason in error.value.failures]
    assert reasons == ["HTTP 404 Not Found", "HTTP 500 Internal Server Error"]
    assert locate(checkpoint(f"{server.url}/b.npz")).read_bytes() == BODY


def test_public_mirrors_must_have_the_published_size(server, home):
    row = checkpoint(f"{server.url}/a.npz", size="8 MiB")
    with pytest.raises(DownloadError, match="wrong size"):
        locate(row)
    assert not (home / "keras_vit" / row.path).exists()


def test_own_mirror_that_is_neither(monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", "/no/such/place")
    with pytest.raises(ValueError, match="Received: KERAS_VIT_WEIGHTS='/no/such"):
        locate(checkpoint())


def test_only_formats_that_can_be_read(server):
    row = checkpoint()
    with pytest.raises(DownloadError, match="no mirror in a format that can be read"):
        locate(row)
    mirror = Mirror(url=f"{server.url}/model.safetensors", format="timm")
    whole = safetensors.numpy.save({"head.bias": np.ones(3, np.float32)})
    row = Checkpoint(**{**vars(row), "mirrors": (mirror,), "size": "8 MiB"})
    for damaged in (whole[:-1], whole[1:], b"not a weights file"):
        server.files["/model.safetensors"] = damaged
        with pytest.raises(DownloadError, match=r"model\.safetensors: Expected"):
            locate(row)
    server.log.clear()
    server.files["/model.safetensors"] = whole
    path = locate(row)
    assert path.name == "R50+ViT-T_16.timm.safetensors"
    assert locate(row, formats=("timm",)) == path
    assert len(server.log) == 1


def test_fetch_then_offline(server, tmp_path, monkeypatch, home):
    for row in (find("ViT-B/16", "gsam"), find("ViT-S/32", "gsam")):
        server.files[f"/{row.path}"] = npz(seed=row.image_size[0])
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", server.url)
    with pytest.raises(ValueError, match="Expected tag to be one of imagenet21k, "):
        fetch("gsan", to=tmp_path / "usb")
    [path] = fetch("gsam", to=tmp_path / "usb", variant="ViT_B16")
    assert path == tmp_path / "usb" / "gsam" / "ViT-B_16.npz"
    fetch("gsam", to=tmp_path / "usb", variant="ViT-S/32")
    asked = len(server.log)
    fetch("gsam", to=tmp_path / "usb", variant="ViT-S/32")
    assert len(server.log) == asked == 2
    sums = (tmp_path / "usb" / "SHA256SUMS").read_text().splitlines()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert [line.split()[1] for line in sums] == [
        "gsam/ViT-B_16.npz",
        "gsam/ViT-S_32.npz",
    ]
    assert sums[0].split()[0] == digest
    assert not home.exists()

    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "usb"))
    server.faults.update(dict.fromkeys(server.files, 500))
    assert locate(find("ViT-B/16", "gsam")) == path
    path.write_bytes(npz(seed=3))  # Worn out on the way.
    with pytest.raises(DownloadError, match=f"sha256={digest}"):
        locate(find("ViT-B/16", "gsam"))


def test_fetch_copies_from_own_directory(tmp_path, monkeypatch, home):
    own = tmp_path / "own" / "gsam" / "ViT-B_16.npz"
    own.parent.mkdir(parents=True)
    own.write_bytes(npz())
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path / "own"))
    [path] = fetch("gsam", to=tmp_path / "usb", variant="ViT_B16")
    assert path.read_bytes() == own.read_bytes()
    assert (tmp_path / "usb" / "SHA256SUMS").is_file()
    assert not home.exists()


def test_a_whole_tag_is_fetched(monkeypatch, tmp_path):
    asked = []

    def remember(urls, destination, **checks):
        asked.append((urls, destination.relative_to(tmp_path).as_posix(), checks))
        destination.parent.mkdir(exist_ok=True)
        destination.write_bytes(BODY)
        return destination

    monkeypatch.setattr(module, "download", remember)
    monkeypatch.setattr(module, "_warn_of_size", lambda path, checkpoint: None)
    assert len(fetch("imagenet21k", to=tmp_path)) == 15  # BiT's six are last.
    urls, path, checks = asked[6]
    assert path == "imagenet21k/R26+ViT-B_32.npz"
    assert urls == [f"{BUCKET}imagenet21k/R26%2BViT-B_32.npz"]
    row = find("R26+ViT-B/32", "imagenet21k")
    official = {"size_bounds": row.size_bounds(), "sha256": None}
    assert checks == {**official, "published": urls}
    urls, path, checks = asked[-1]
    assert (urls, path) == ([f"{BIT_BUCKET}BiT-M-R152x4.npz"], "BiT-M-R152x4.npz")
    assert checks == {"size_bounds": None, "sha256": None, "published": urls}
