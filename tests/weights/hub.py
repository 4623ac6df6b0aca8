"""A Hugging Face Hub on the loopback: what huggingface_hub asks of the real one."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_loopback"
LFS = (".safetensors", ".npz", ".h5", ".bin", ".onnx")  # Large files, by their names.


def sha(content, kind="sha1"):
    return hashlib.new(kind, content, usedforsecurity=False).hexdigest()


class Repository:
    """Files by commit, commits by branch."""

    def __init__(self, access="public"):
        self.access = access  # Or "private", "gated".
        self.commits, self.refs = {}, {}
        self.sizes = {}  # Of files whose size is stated wrongly.

    def commit(self, files, branch="main"):
        """Adds files to a branch; returns the commit."""
        whole = {**self.commits.get(self.refs.get(branch), {}), **files}
        listing = [f"{len(self.commits)}", *(f"{n} {sha(c)}" for n, c in whole.items())]
        commit = sha("\n".join(listing).encode())
        self.commits[commit], self.refs[branch] = whole, commit
        return commit

    def find(self, revision):
        commit = self.refs.get(revision, revision)
        return (commit, self.commits[commit]) if commit in self.commits else None


class Hub:
    """The server's state."""

    def __init__(self):
        self.repositories = {}
        self.lfs = {}  # Uploaded content by its sha256.
        self.log = []  # (method, path) of every request.
        self.faults = {}  # A fault by the file's name: "truncated", "slow", a status.
        self.url = ""

    def add(self, name, folder_or_files, access="public", branch="main"):
        """A repository of a folder's files; returns its commit."""
        files = folder_or_files
        if isinstance(files, Path):
            files = {
                path.relative_to(files).as_posix(): path.read_bytes()
                for path in files.rglob("*")
                if path.is_file()
            }
        repository = self.repositories.setdefault(name, Repository(access))
        return repository.commit(files, branch)

    def downloads(self):
        """The names of the files that were sent, in order."""
        return [
            path.rpartition("/")[2]
            for method, path in self.log
            if method == "GET" and "/resolve/" in path
        ]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    @property
    def hub(self):
        return self.server.hub

    def answer(self, status, content=b"", **headers):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers["Content-Type"] = "application/json"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status, code, message=""):
        self.answer(status, b"", X_Error_Code=code, X_Error_Message=message)

    def repository(self, name):
        """The repository, if this request may see it; else it has been answered."""
        found = self.hub.repositories.get(name)
        known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        if found is None or (found.access == "private" and not known):
            self.refuse(404 if known else 401, "RepoNotFound", "Repository not found")
            return None
        return found

    def do_GET(self):
        path = urlsplit(self.path).path  # A revision may have an escaped "/".
        self.hub.log.append((self.command, path))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.info(found[1], unquote(found[2] or "main"))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*map(unquote, found.groups()))
        elif path == "/api/whoami-v2":
            self.answer(200, {"type": "user", "name": "user"})
        else:
            self.answer(404)

    do_HEAD = do_GET

    def info(self, name, revision):
        if (repository := self.repository(name)) is None:
            return
        if (found := repository.find(revision)) is None:
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        if isinstance(fault := self.hub.faults.get(name), int):
            self.answer(fault)
            return
        commit, files = found
        siblings = []
        for file, content in files.items():
            size = repository.sizes.get(file, len(content))
            row = {"rfilename": file, "size": size, "blobId": sha(content)}
            if file.endswith(LFS):
                digest = sha(content, "sha256")
                row["lfs"] = {"size": size, "sha256": digest, "pointerSize": 134}
            siblings.append(row)
        self.answer(
            200,
            {
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": repository.access == "private",
                "gated": "manual" if repository.access == "gated" else False,
                "tags": [],
                "siblings": siblings,
            },
        )

    def resolve(self, name, revision, file):
        if (repository := self.repository(name)) is None:
            return
        if repository.access == "gated":
            known = self.headers["Authorization"] is not None
            self.refuse(403 if known else 401, "GatedRepo", "Access is restricted")
            return
        if (found := repository.find(revision)) is None:
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        commit, files = found
        if file not in files:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        content, fault = files[file], self.hub.faults.get(file)
        if isinstance(fault, int):
            self.answer(fault)
            return
        large = file.endswith(LFS)
        etag = sha(content, "sha256" if large else "sha1")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        if large:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": len(content)}
        start, status = 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-.*", self.headers["Range"] or "")
        if asked and self.command == "GET":
            start, status = int(asked[1]), 206
            extent = f"bytes {start}-{len(content) - 1}/{len(content)}"
            headers["Content-Range"] = extent
        body = content[start:]
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "truncated":
            body, self.close_connection = body[: len(body) // 2], True
        for begin in range(0, len(body), 4096):
            self.wfile.write(body[begin : begin + 4096])
            if fault == "slow":
                time.sleep(0.01)

    def body(self):
        if "chunked" in (self.headers["Transfer-Encoding"] or ""):
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def do_POST(self):
        path, body = unquote(urlsplit(self.path).path), self.body()
        self.hub.log.append((self.command, path))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.refuse(401, "", "Invalid credentials")
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(\S+/\S+)/preupload/(.+)", path):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(LFS) else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(body)["files"]
            ]
            self.answer(200, {"files": files})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {
                    "oid": at["oid"],
                    "size": at["size"],
                    "actions": {"upload": {"href": f"{self.hub.url}/lfs/{at['oid']}"}},
                }
                for at in json.loads(body)["objects"]
            ]
            self.answer(200, {"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/(\S+/\S+)/commit/(.+)", path):
            self.commit(*found.groups(), body)
        else:
            self.answer(404)

    def do_PUT(self):
        path, body = urlsplit(self.path).path, self.body()
        self.hub.log.append((self.command, path))
        self.hub.lfs[path.rpartition("/")[2]] = body
        self.answer(200)

    def create(self, asked):
        user = asked.get("organization") or "user"
        name = f"{user}/{asked['name']}"
        if user != "user":
            self.answer(403, {"error": f"no rights in {user}"})
            return
        exists = name in self.hub.repositories
        if not exists:
            hidden = asked.get("private") or asked.get("visibility") == "private"
            access = "private" if hidden else "public"  # By the client's version.
            self.hub.add(name, {".gitattributes": b""}, access)
        status = 409 if exists else 200
        self.answer(status, {"url": f"{self.hub.url}/{name}", "name": name})

    def commit(self, name, revision, body):
        files = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.lfs[value["oid"]]
        commit = self.hub.add(name, files, branch=revision)
        url = f"{self.hub.url}/{name}/commit/{commit}"
        self.answer(200, {"success": True, "commitOid": commit, "commitUrl": url})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that went away is part of a test."""


@contextlib.contextmanager
def serving():
    """Runs a hub; yields its state."""
    hub = Hub()
    server = Server(("127.0.0.1", 0), Handler)
    server.hub, hub.url = hub, f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def connected(home, monkeypatch):
    """A hub that huggingface_hub talks to, with an empty cache."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_HOME", str(home / "keras"))
    with serving() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # By LFS instead.
        hub.cache = home / "hub"
        hub.environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
        yield hub
