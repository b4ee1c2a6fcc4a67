"""A small server in the shape of a Hugging Face hub, on loopback, for files that a test makes."""

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

BIG = {".safetensors", ".bin", ".parquet"}  # kept as large files, whose etag is their sha256


@dataclass
class Repository:
    """Hold the files of one repository at each commit, and what is wrong with them."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    tampered: dict[str, bytes] = field(default_factory=dict)  # sent in place of what is promised
    cut: dict[str, int] = field(default_factory=dict)  # bytes after which the connection breaks, once
    stalled: dict[str, int] = field(default_factory=dict)  # bytes after which nothing more comes

    def commit(self, revision: str) -> str | None:
        found = self.branches.get(revision, revision)
        return found if found in self.commits else None


class Hub:
    """Serve repositories, named ``models/OWNER/NAME`` or ``datasets/OWNER/NAME``, until closed."""

    def __init__(self, **repositories: Repository) -> None:
        self.repositories: dict[str, Repository] = dict(repositories)
        self.requests: list[str] = []
        self.ranges: list[str] = []
        hub = self

        class Handler(_Handler):
            def __init__(self, *args: object) -> None:
                self.hub = hub
                super().__init__(*args)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def put(self, name: str, files: dict[str, bytes], commit: str | None = None, branch: str = "main") -> Repository:
        """Add a commit to a repository and let a branch point to it."""
        commit = commit or hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        repository = self.repositories.setdefault(name, Repository({}, {}))
        repository.commits[commit] = files
        repository.branches[branch] = commit
        return repository

    def downloads(self, name: str) -> int:
        """Count how often a file was asked for."""
        return sum(line.startswith("GET") and line.endswith(f"/{name}") for line in self.requests)

    def close(self) -> None:
        """Stop; what is cached stays."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        api = re.fullmatch(
            r"/api/(models|datasets)/([^/]+/[^/]+?)(?:/(revision|tree|paths-info)/([^/]+)(/.*)?)?", path
        )
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api:
            kind, name, what, revision, inside = api.groups()
        elif file:
            kind, what = (file[1] or "models/").rstrip("/"), "file"
            name, revision = file[2], file[3]
        else:
            return self._refuse("EntryNotFound")
        repository = self.hub.repositories.get(f"{kind}/{name}")
        if repository is None:
            return self._refuse("RepoNotFound")
        commit = repository.commit(revision or "main")
        if commit is None:
            return self._refuse("RevisionNotFound")
        files = repository.commits[commit]
        if what == "file":
            return self._send_file(repository, commit, files, file[4])
        if what == "tree":
            return self._json(_tree(files, (inside or "").strip("/"), "recursive=true" in self.path.lower()))
        if what == "paths-info":
            asked = re.findall(r"paths=([^&]*)", self._body.decode()) or json.loads(self._body or b"{}").get(
                "paths", []
            )
            asked = [unquote(name) for name in asked]
            return self._json([_entry(name, files[name]) for name in asked if name in files])
        siblings = [{"rfilename": name} for name in files]
        about = {"id": name, "_id": "0" * 24, "sha": commit, "siblings": siblings, "private": False, "tags": []}
        return self._json(about | {"gated": False, "disabled": False, "downloads": 0, "likes": 0})

    def _send_file(self, repository: Repository, commit: str, files: dict[str, bytes], name: str) -> None:
        if name not in files:
            return self._refuse("EntryNotFound", commit)
        promised, content = files[name], repository.tampered.get(name, files[name])
        if self.headers.get("Range"):
            self.hub.ranges.append(self.headers["Range"])
        start = int(re.search(r"bytes=(\d+)-", self.headers.get("Range") or "bytes=0-")[1])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{_etag(name, promised)}"')
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if name in repository.stalled:
            self.wfile.write(content[: repository.stalled[name]])
            self.wfile.flush()
            while name in repository.stalled:
                time.sleep(0.05)
            self.close_connection = True
            return None
        if name in repository.cut and start < repository.cut[name]:
            self.wfile.write(content[start : repository.cut[name]])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return None
        self.wfile.write(content[start:])
        return None

    def _json(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: str, commit: str | None = None) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        if commit:
            self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(name: str, content: bytes) -> str:
    if any(name.endswith(ending) for ending in BIG):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _tree(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, object]]:
    """List a folder as the hub does: files, and the folders directly in it."""
    prefix = f"{folder}/" if folder else ""
    inside = {name: content for name, content in files.items() if name.startswith(prefix)}
    direct = {name: content for name, content in inside.items() if "/" not in name.removeprefix(prefix)}
    folders = {prefix + name.removeprefix(prefix).split("/")[0] for name in inside if name not in direct}
    listed = [{"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in sorted(folders)]
    return listed + [_entry(name, content) for name, content in (inside if recursive else direct).items()]


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": _etag(name, content)}
    if any(name.endswith(ending) for ending in BIG):
        entry["lfs"] = {"oid": _etag(name, content), "size": len(content), "pointerSize": 130}
    return entry
