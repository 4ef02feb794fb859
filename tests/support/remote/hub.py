"""A Hugging Face hub on threads of the tests, in the shape of its API, with its store of large files beside it.

The fields are those that ``huggingface_hub`` 2.4 reads. Like the real hub it tells strangers nothing (401 for what is
not there), redirects the old name of a repository, and gives large files by a signed link to another address, which
refuses a request that brings a token as well.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SIGNATURE = "X-Amz-Signature=canary-signature"


@dataclass
class FakeCommit:
    sha: str
    date: str
    files: dict[str, bytes]
    large: frozenset[str]


@dataclass
class Asked:
    """A request as it came: ``side`` is ``hub`` or ``store``; header names are in small letters."""

    side: str
    path: str
    headers: Mapping[str, str]


@dataclass
class FakeHub:
    """Commits by repository, and branches by (repository, name). ``token``: which one it wants, empty for none.

    ``status``: asked before each request with (side, path); a number is answered in place of the answer. ``cut``: the
    bytes of the next bodies of files after which the connection ends. ``edit`` changes the answers of the API.
    """

    endpoint: str = ""
    store: str = ""
    token: str = ""
    status: Callable[[str, str], int] = lambda side, path: 0
    knows_ranges: bool = True
    edit: Callable[[object], object] = lambda answer: answer
    cut: list[int] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    commits: dict[str, list[FakeCommit]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def push(self, repository: str, date: str, files: Mapping[str, bytes], large: frozenset[str] = frozenset()) -> str:
        """Adds a commit with these files and says its ``sha``."""
        commits = self.commits.setdefault(repository, [])
        sha = hashlib.sha1(f"{repository} {len(commits)}".encode()).hexdigest()
        commits.append(FakeCommit(sha, date, dict(files), large))
        return sha

    def paths(self, side: str = "hub") -> list[str]:
        return [asked.path for asked in self.asked if asked.side == side]

    def find(self, repository: str, revision: str) -> FakeCommit | None:
        commits = self.commits.get(repository, [])
        if revision == "main" and commits:
            return commits[-1]
        return next((commit for commit in commits if commit.sha == revision), None)


def git_id(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def sibling(name: str, data: bytes, is_large: bool) -> dict[str, object]:
    if not is_large:
        return {"rfilename": name, "size": len(data), "blobId": git_id(data)}
    digest = hashlib.sha256(data).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n".encode()
    lfs = {"sha256": digest, "size": len(data), "pointerSize": len(pointer)}
    return {"rfilename": name, "size": len(data), "blobId": git_id(pointer), "lfs": lfs}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: FakeHub, side: str, *args: object) -> None:
        self._hub, self._side = hub, side
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self._hub, unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.asked.append(Asked(self._side, self.path, headers))
        if status := hub.status(self._side, path):
            self._refuse(status)
        elif self._side == "store":
            self._store(path, headers)
        elif hub.token and headers.get("authorization") != f"Bearer {hub.token}":
            self._refuse(401, "RepoNotFound")
        else:
            self._answer(path)

    def _answer(self, path: str) -> None:
        parts = path.removeprefix("/api/models").strip("/").split("/")
        repository = "/".join(parts[:2])
        if repository in self._hub.renamed:
            self._redirect(self.path.replace(repository, self._hub.renamed[repository]))
            return
        commit = self._hub.find(repository, parts[3]) if len(parts) > 3 else None
        if commit is None:
            known = repository in self._hub.commits
            self._refuse(404 if known or self._hub.token else 401, "RevisionNotFound" if known else "RepoNotFound")
        elif parts[2] == "resolve":
            self._resolve(repository, commit, "/".join(parts[4:]))
        elif parts[2] == "commits":
            self._json(self._commits(repository, commit))
        else:
            siblings = [sibling(name, data, name in commit.large) for name, data in sorted(commit.files.items())]
            self._json({"id": repository, "modelId": repository, "sha": commit.sha, "private": False, "gated": False,
                        "lastModified": commit.date, "tags": [], "siblings": siblings})  # fmt: skip

    def _commits(self, repository: str, last: FakeCommit) -> list[dict[str, object]]:
        commits = self._hub.commits[repository]
        return [
            {"id": commit.sha, "title": "Upload", "message": "", "authors": [{"user": "ada"}], "date": commit.date}
            for commit in reversed(commits[: commits.index(last) + 1])
        ]

    def _resolve(self, repository: str, commit: FakeCommit, name: str) -> None:
        if name not in commit.files:
            self._refuse(404, "EntryNotFound")
        elif name in commit.large:
            self._redirect(f"{self._hub.store}/{repository}/{commit.sha}/{name}?{SIGNATURE}")
        else:
            self._file(commit.files[name])

    def _store(self, path: str, headers: Mapping[str, str]) -> None:
        _, organization, name, sha, *parts = path.split("/")
        commit = self._hub.find(f"{organization}/{name}", sha)
        if "authorization" in headers:
            self._refuse(400)
        elif commit is None or SIGNATURE not in self.path:
            self._refuse(403)
        else:
            self._file(commit.files["/".join(parts)])

    def _file(self, data: bytes) -> None:
        asked = self.headers.get("Range", "") if self._hub.knows_ranges else ""
        start = int(asked.removeprefix("bytes=").removesuffix("-") or 0)
        if start and start >= len(data):
            self._refuse(416)
            return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self._hub.cut:
            self.wfile.write(data[start : start + self._hub.cut.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(data[start:])

    def _json(self, answer: object) -> None:
        self._send(200, json.dumps(self._hub.edit(answer)).encode(), {"Content-Type": "application/json"})

    def _redirect(self, url: str) -> None:
        self._send(302, b"", {"Location": url})

    def _refuse(self, status: int, code: str = "") -> None:
        self._send(status, b'{"error":"no"}', {"X-Error-Code": code} if code else {})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub without repositories; ``endpoint`` is what HF_ENDPOINT has to be."""
    hub = FakeHub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub, side)) for side in ("hub", "store")]
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    hub.endpoint, hub.store = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
