"""Mirrors that misbehave, on the loopback: the next one is tried, whatever one does."""

import gzip
import hashlib
import re
import socketserver
import threading
import time
from pathlib import Path

import pytest

from keras_vit.weights import mirrors
from keras_vit.weights.download import download
from keras_vit.weights.mirrors import DownloadError

BODY = b"the whole of a file, of the first version. " * 50
OTHER = BODY.replace(b"first", b"other")  # As long.
HALF = len(BODY) // 2


def answer(*headers, body=b"", status="200 OK"):
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode() + body


def length(body=BODY):
    return f"Content-Length: {len(body)}"


CHUNKED = "Transfer-Encoding: chunked"
GZIPPED = gzip.compress(BODY)
FOREVER = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"

# What a mirror answers, and a part of the reason that is given. A list is sent without
# end: its first item once, its second again and again.
MISBEHAVING = {
    "a word as length": (answer("Content-Length: abc", body=BODY), "Content-Length"),
    "two lengths": (answer("Content-Length: 5, 5", body=b"12345"), "Content-Length"),
    "two length headers": (
        answer("Content-Length: 5", "Content-Length: 6", body=BODY),
        "Content-Length '5, 6'",
    ),
    "a negative length": (answer("Content-Length: -1", body=BODY), "Content-Length"),
    "a length of 5,000 digits": (
        answer("Content-Length: " + "9" * 5000, body=BODY),
        "Content-Length '999",
    ),
    "100 petabytes": (answer(f"Content-Length: {10**17}", body=BODY), "wrong size"),
    "a redirect to no host": (
        answer("Location: http://[::bad", status="302 Found"),
        "Invalid IPv6 URL",
    ),
    "a redirect to a port of letters": (
        answer("Location: http://127.0.0.1:abc/", status="302 Found"),
        "nonnumeric port",
    ),
    "a redirect to a long name": (
        answer(f"Location: http://{'a' * 70}.example/", status="302 Found"),
        "too long",
    ),
    "a redirect to a file": (
        answer("Location: file:///etc/passwd", status="302 Found"),
        "not allowed",
    ),
    "a redirect to ftp": (
        answer("Location: ftp://127.0.0.1:9/x", status="302 Found"),
        "redirect from http to ftp",
    ),
    "a redirect loop": (
        answer("Location: /bad", length(b""), status="302 Found"),
        "infinite loop",
    ),
    "a redirect with a body without end": (
        [answer("Location: /good", CHUNKED, status="302 Found"), FOREVER],
        None,  # The body is not read.
    ),
    "a redirect without a place": (answer(status="302 Found"), "HTTP 302"),
    "a part that was not asked for": (
        answer(
            f"Content-Range: bytes 0-9/{len(BODY)}", status="206 Partial", body=BODY
        ),
        "not requested",
    ),
    "another part that was not asked for": (
        answer("Content-Range: bytes 5-9/10", status="206 Partial", body=BODY[:5]),
        "not requested",
    ),
    "416 to no range": (
        answer("Content-Range: bytes */0", status="416 No"),
        "HTTP 416",
    ),
    "a header of 100 kB": (answer("X: " + "x" * 100_000, body=BODY), "LineTooLong"),
    "10,000 headers": (answer(*["X: y"] * 10_000, body=BODY), "more than 100 headers"),
    "100 Continue without end": (
        [b"", b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * 100],
        "bytes of headers or trailers",
    ),
    "a body that is cut": (answer(length(), body=BODY[:-5]), "truncated"),
    "a chunk size that is no number": (
        answer(CHUNKED, body=b"xyz\r\n" + BODY),
        "truncated",
    ),
    "a chunk that is cut": (answer(CHUNKED, body=b"ffff\r\n" + BODY), "truncated"),
    "a body without end": ([answer(CHUNKED), FOREVER], "more than "),
    "trailers without end": (
        [answer(CHUNKED, body=b"0\r\n"), b"X: y\r\n" * 1000],
        "bytes of headers or trailers",
    ),
    "an empty body": (answer(length(b"")), "wrong size: 0 bytes"),
    "an empty body without a length": (answer(CHUNKED, body=b"0\r\n\r\n"), "empty"),
    "no content": (answer(status="204 No Content"), "HTTP 204"),
    "a compressed body": (
        answer("Content-Encoding: gzip", length(GZIPPED), body=GZIPPED),
        "Content-Encoding 'gzip'",
    ),
    "a different file": (answer(length(OTHER), body=OTHER), "sha256 is "),
    "a longer file": (answer(length(BODY + b"x"), body=BODY + b"x"), "wrong size"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.9\r\n", "BadStatusLine"),
    "a status with escape codes": (answer(status="500 \x1b[2J"), r"HTTP 500 \u001b[2J"),
    "nothing": (b"", "closed connection"),
}
SIZE = (len(BODY), len(BODY))
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(socketserver.StreamRequestHandler):
    """Sends `server.answers[path]`, bytes or a function of the request's headers."""

    def handle(self):
        path = self.rfile.readline().split()[1].decode()
        headers = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(": ")
            headers[name] = value
        self.server.log.append((path, headers))
        found = self.server.answers[path]
        found = found(headers) if callable(found) else found
        once, again = found if isinstance(found, list) else (found, b"")
        self.wfile.write(once)
        while again:
            self.wfile.write(again)
            time.sleep(self.server.pause)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    pause = 0.0

    def handle_error(self, request, client_address):
        """A client that has heard enough closes the connection."""


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(mirrors, "MAX_HEADERS", 100_000)  # For speed.
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras home"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.answers, server.log = {"/good": answer(length(), body=BODY)}, []
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "files" / "weights.h5"


def part_of(target):
    [part] = target.parent.glob("*.part")
    return part, part.with_name(f"{part.name}.validator")


def reason_of(server, target, **options):
    """Why the only mirror, /bad, did not deliver."""
    with pytest.raises(DownloadError) as raised:
        download([f"{server.url}/bad"], target, **options)
    assert not target.exists()
    [(url, reason)] = raised.value.failures
    assert url == f"{server.url}/bad"
    return reason


@pytest.mark.parametrize("case", MISBEHAVING)
def test_the_next_mirror_is_tried(server, target, case):
    server.answers["/bad"], reason = MISBEHAVING[case]
    urls = [f"{server.url}/bad", f"{server.url}/good"]
    checks = {"size_bounds": SIZE, "sha256": SHA256, "timeout": 5.0}
    if case == "an empty body without a length":
        checks = {"timeout": 5.0}
    began = time.monotonic()
    assert download(urls, target, **checks).read_bytes() == BODY
    if reason is not None:
        assert server.log[-1][0] == "/good"
        target.unlink()
        Path(f"{target}.sha256").unlink()
        assert reason in reason_of(server, target, **checks)
    assert time.monotonic() - began < 4


def test_the_error_lists_each_mirror_with_its_reason(server, target):
    asked = {case: f"/{number}" for number, case in enumerate(MISBEHAVING)}
    del asked["a redirect with a body without end"]
    del asked["an empty body without a length"]
    server.answers = {path: MISBEHAVING[case][0] for case, path in asked.items()}
    server.answers["/bad"] = MISBEHAVING["a redirect loop"][0]
    urls = [server.url + path for path in asked.values()]
    with pytest.raises(DownloadError) as raised:
        download(urls, target, size_bounds=SIZE, sha256=SHA256, timeout=5.0)
    assert [url for url, _ in raised.value.failures] == urls
    for url, case in zip(urls, asked, strict=True):
        line = next(at for at in str(raised.value).split("\n") if f"{url}: " in at)
        assert MISBEHAVING[case][1] in line
        assert len(line) < 350


def version(body, start=0, etag='"1"', date="", total=None, status=None):
    """The rest of a file from `start`, with its validators."""
    rest = body[start:]
    headers = [length(rest)]
    if etag:
        headers.append(f"ETag: {etag}")
    if date:
        headers.append(f"Last-Modified: {date}")
    if start:
        end = f"{start + len(rest) - 1}/{total or len(body)}"
        headers.append(f"Content-Range: bytes {start}-{end}")
    return answer(
        *headers, status=status or ("206 Partial" if start else "200 OK"), body=rest
    )


YEAR, LATER = "Thu, 01 Jan 2026 00:00:00 GMT", "Fri, 02 Jan 2026 00:00:00 GMT"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"etag": '"2"'}),
        ({}, {"etag": ""}),
        ({}, {"etag": 'W/"1"'}),
        ({"etag": "", "date": YEAR}, {"etag": "", "date": LATER}),
        ({"etag": "", "date": YEAR}, {"date": ""}),
        ({}, {"total": len(BODY) + 7}),
    ],
    ids=["etag", "no validator", "weak", "date", "no date", "total"],
)
def test_two_versions_are_not_spliced(server, target, first, second):
    """A server that ignores If-Range sends the rest of a different file."""

    def send(headers):
        if "Range" not in headers:
            return version(OTHER, **{**first, **second, "total": None})
        start = int(re.fullmatch(r"bytes=(\d+)-", headers["Range"])[1])
        return version(OTHER, start, **{**first, **second})

    server.answers["/bad"] = version(BODY, **first)[: -len(BODY) + HALF]
    assert "truncated" in reason_of(server, target)
    server.answers["/bad"] = send
    assert download([f"{server.url}/bad"], target).read_bytes() == OTHER
    asked = [headers.get("Range") for _, headers in server.log]
    assert asked == [None, f"bytes={HALF}-", None]


@pytest.mark.parametrize(
    "same", [{}, {"etag": "", "date": YEAR}, {"etag": 'W/"1"', "date": YEAR}]
)
def test_one_version_is_resumed(server, target, same):
    server.answers["/bad"] = version(BODY, **same)[: -len(BODY) + HALF]
    assert "truncated" in reason_of(server, target)
    server.answers["/bad"] = lambda headers: version(BODY, HALF, **same)
    assert download([f"{server.url}/bad"], target).read_bytes() == BODY
    asked = [headers.get("If-Range") for _, headers in server.log]
    assert asked == [None, same.get("date") or '"1"']


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe",
        b'"1"\r\nX: y',
        b"",
        b"[]",
        b'{"validator": "a\\nb", "size": 1}',
        b'{"validator": "\xc3\xa9", "size": "1"}',
        b"[" * 100_000,
        "directory",
    ],
)
def test_a_damaged_validator_is_as_none(server, target, damage):
    server.answers["/bad"] = version(BODY)[: -len(BODY) + HALF]
    assert "truncated" in reason_of(server, target)
    _, validator = part_of(target)
    validator.unlink()
    if damage == "directory":
        (validator / "inner").mkdir(parents=True)
    else:
        validator.write_bytes(damage)
    server.answers["/bad"] = version(BODY)
    assert download([f"{server.url}/bad"], target).read_bytes() == BODY
    assert "Range" not in server.log[-1][1]
    assert sorted(p.name for p in target.parent.iterdir()) == [
        target.name,
        f"{target.name}.sha256",
    ]


def test_a_resumed_body_beyond_the_size_is_cut(server, target):
    server.answers["/bad"] = version(BODY)[: -len(BODY) + HALF]
    assert "truncated" in reason_of(server, target)
    extent = f"Content-Range: bytes {HALF}-{len(BODY) - 1}/{len(BODY)}"
    rest = answer('ETag: "1"', extent, CHUNKED, status="206 Partial")
    server.answers["/bad"] = lambda headers: [rest, FOREVER]
    assert f"more than {len(BODY):,} bytes" in reason_of(server, target)
    assert not list(target.parent.iterdir())


def test_a_file_of_unknown_size_has_a_maximum(server, target, monkeypatch):
    assert mirrors.MAX_SIZE == 32 * 2**30
    monkeypatch.setattr(mirrors, "MAX_SIZE", 10**6)
    monkeypatch.setattr(mirrors, "CHUNK", 10**4)
    server.answers["/bad"] = [answer(CHUNKED), FOREVER]
    assert "more than 1,000,000 bytes" in reason_of(server, target)
    assert not list(target.parent.iterdir())
    server.answers["/bad"] = answer("Content-Length: 1000001")
    assert "wrong size: 1,000,001 bytes" in reason_of(server, target)


def test_a_body_larger_than_the_disk(server, target, monkeypatch):
    usage = mirrors.shutil.disk_usage("/")._replace(free=10**5)
    monkeypatch.setattr(mirrors.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(mirrors, "CHUNK", 10**4)
    server.answers["/bad"] = [answer(CHUNKED), FOREVER]
    assert "100,000 bytes free" in reason_of(server, target)
    assert not list(target.parent.iterdir())


DRIPS = {
    "of a body": [answer(length()), b"x"],
    "of headers": [b"HTTP/1.1 200 OK\r\nX: ", b"x"],
    "of chunk sizes": [answer(CHUNKED), b"0"],
}


@pytest.mark.parametrize("case", DRIPS)
def test_a_drip_is_given_up(server, target, monkeypatch, case):
    assert (mirrors.MIN_RATE, mirrors.RATE_SECONDS) == (1024, 30.0)
    monkeypatch.setattr(mirrors, "RATE_SECONDS", 0.3)
    server.pause = 0.02
    server.answers["/bad"] = DRIPS[case]
    urls = [f"{server.url}/bad", f"{server.url}/good"]
    began = time.monotonic()
    assert download(urls, target).read_bytes() == BODY
    assert time.monotonic() - began < 3
    target.unlink()
    assert "fewer than 1,024 bytes per second for 0.3 s" in reason_of(server, target)


def test_a_slow_reader_is_not_the_mirrors_fault(server, target, monkeypatch):
    """A stopped process or a slow disk counts for nothing: only waiting does."""
    monkeypatch.setattr(mirrors, "RATE_SECONDS", 0.1)
    monkeypatch.setattr(mirrors, "CHUNK", len(BODY) // 4)
    chunks = mirrors._chunks

    def pausing(*args):
        for chunk in chunks(*args):
            time.sleep(0.1)
            yield chunk

    monkeypatch.setattr(mirrors, "_chunks", pausing)
    assert download([f"{server.url}/good"], target).read_bytes() == BODY
