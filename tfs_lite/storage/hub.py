"""Models of the Hugging Face hub, read by plain HTTP: a repository at a revision is one version.

The hub tells a revision's commit (``sha``) with the names, sizes and digests of its files; the commit's date in seconds
is the version's number. A poll costs one request, and two when the revision has moved. Files come from the commit, so
nothing changes while they are fetched.

Three traps of ``urllib`` shape the code. It follows a redirect to the store of large files with the token in the
request: redirects are followed here, and the token goes to the hub's own address only. A body that ends early raises
nothing: bytes are counted. A refused header is repeated in the error, token and all: the token is looked at first.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, NoReturn, cast
from urllib.error import HTTPError
from urllib.parse import quote, urljoin, urlsplit

from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition
from tfs_lite.storage.store import Children, FlatListing, OnRequest, RemoteFile, StorageError
from tfs_lite.storage.url import StorageUrl, check_names, start_of

SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja", ".pt2", ".onnx")
"""Endings of the files at a repository's root that are taken. None of them is code."""

TIMEOUT_S = 10.0
"""Seconds that a connection, an answer's head, or the next bytes of a body may take."""
ANSWER_S, ANSWER_BYTES = 30.0, 32 << 20
"""The most seconds and bytes that an answer of the API takes."""
SMALL_BYTES = 64 << 20
"""The largest file that is taken without a sha256 digest. The hub itself has none above 10 MB."""
REDIRECTS = 5
PIECE = 256 << 10
KEPT = 8
"""Commits that files can still be read of after the revision has moved."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as one version. The paths of its files begin with the version's number."""

    sha: str
    number: int
    files: tuple[RemoteFile, ...]


class Hub:
    """The repository of an ``hf://`` URL, as a storage that holds one version directory. Threads: any.

    ``HF_TOKEN``, or else the hub's token file, is read for each request, so that a renewed one counts at once.
    """

    scheme = "hf"
    is_atomic = True

    def __init__(self, url: StorageUrl, on_request: OnRequest) -> None:
        self._endpoint = _endpoint()
        self._repository = quote(url.bucket)
        self._revision = url.revision or "main"
        self._on_request = on_request
        self._opener = _opener()
        self._commits: tuple[Commit, ...] = ()  # the present one last; replaced whole

    def files(self, prefix: str) -> FlatListing:
        start = start_of(prefix)
        return FlatListing(tuple(file for file in self._present().files if file.path.startswith(start)))

    def children(self, prefix: str) -> Children:
        files, skip = self.files(prefix).files, len(start_of(prefix))
        here = tuple(file for file in files if "/" not in file.path[skip:])
        return Children(here, tuple(sorted({f.path[skip:].split("/")[0] for f in files if "/" in f.path[skip:]})))

    def read(self, path: str, start: int = 0, tag: str = "") -> Iterator[bytes]:
        """As :class:`~tfs_lite.storage.store.Storage` says. A file of which the hub knows no sha256, a small one, is
        read from its beginning into memory, and given once it has its git id; else DATA_LOSS."""
        number, _, name = path.partition("/")
        commits = [commit for commit in self._commits if str(commit.number) == number]
        file = next((file for file in commits[-1].files if file.path == path), None) if commits else None
        if file is None:
            raise StorageError(StatusCode.NOT_FOUND, "there is no such file in the repository")
        if tag and file.tag != tag:
            raise StorageError(StatusCode.ABORTED, f"{name} was changed")
        where = f"/{self._repository}/resolve/{commits[-1].sha}/{quote(name, errors='surrogateescape')}"
        if not file.sha256:
            content = self._small(where, file)
            return (content[at : at + PIECE] for at in range(start, len(content), PIECE))
        if start and start >= file.size:
            return iter(())
        with self._asking("get", only_errors=True):
            response = self._follow(where, start)
        return self._body(response, start, file.size)

    def put(self, path: str, source: bytes | BinaryIO, *, create: bool = False) -> NoReturn:
        raise StorageError(StatusCode.INVALID_ARGUMENT, "hf:// is read only")

    def delete(self, path: str) -> NoReturn:
        raise StorageError(StatusCode.INVALID_ARGUMENT, "hf:// is read only")

    def _present(self) -> Commit:
        """The revision's commit: asked, unless the revision is the commit itself and has been asked before."""
        known = self._commits[-1] if self._commits else None
        if known is not None and known.sha == self._revision.lower():
            return known
        info = self._ask(f"/api/models/{self._repository}/revision/{quote(self._revision, safe='')}?blobs=true")
        sha = _commit_of(info)
        if known is not None and known.sha == sha:
            return known
        commit = read_commit(info, self._ask(f"/api/models/{self._repository}/commits/{sha}"))
        self._commits = (*self._commits, commit)[-KEPT:]
        return commit

    def _ask(self, path: str) -> Any:
        """A JSON answer of the API."""
        deadline, answer = time.monotonic() + ANSWER_S, bytearray()
        with self._asking("list"), self._follow(path) as response:
            for piece in _pieces(response):
                answer += piece
                if len(answer) > ANSWER_BYTES or time.monotonic() > deadline:
                    raise StorageError(StatusCode.UNAVAILABLE, "the answer of the hub is too long", is_transient=True)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise _unreadable() from None

    def _small(self, path: str, file: RemoteFile) -> bytes:
        name, content = file.path.partition("/")[2], bytearray()
        if file.size > SMALL_BYTES:
            sentence = f"{name} has no sha256 digest on the hub, and is larger than {SMALL_BYTES >> 20} MiB"
            raise StorageError(StatusCode.FAILED_PRECONDITION, sentence)
        with self._asking("get", only_errors=True):
            response = self._follow(path)
        for piece in self._body(response, 0, file.size):
            content += piece
            if len(content) > file.size:
                break
        digest = hashlib.sha1(f"blob {file.size}\0".encode() + content, usedforsecurity=False).hexdigest()
        if digest != file.tag:
            raise StorageError(StatusCode.DATA_LOSS, f"{name} does not have the git id that the hub lists")
        return bytes(content)

    def _body(self, response: http.client.HTTPResponse, start: int, size: int) -> Iterator[bytes]:
        """The bytes of a file of ``size`` bytes from ``start`` on, whether or not the server knows ranges."""
        with self._asking("get"), response:
            begins = start if response.status == 206 else 0
            if begins and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise _unreadable()
            given = start
            for piece in _after(start - begins, _pieces(response)):
                given += len(piece)
                yield piece
            if given < size:
                raise StorageError(StatusCode.UNAVAILABLE, "an answer of the hub was cut", is_transient=True)

    @contextmanager
    def _asking(self, operation: str, *, only_errors: bool = False) -> Iterator[None]:
        """Reports a request. A body that nobody reads to its end has not failed."""
        try:
            yield
        except StorageError as error:
            self._on_request(operation, error.code.name.lower())
            raise
        except GeneratorExit:
            self._on_request(operation, "ok")
            raise
        if not only_errors:
            self._on_request(operation, "ok")

    def _follow(self, path: str, start: int = 0) -> http.client.HTTPResponse:
        """The answer to a GET, from byte ``start`` on if the server knows ranges, behind at most 5 redirects."""
        url = self._endpoint + path
        token, target = _token(), ""
        for _ in range(REDIRECTS + 1):
            try:
                url = urljoin(url, target)
                is_hub = _origin(url) == _origin(self._endpoint)
                response = self._opener.open(_request(url, start, token if is_hub else ""), timeout=TIMEOUT_S)
                return cast(http.client.HTTPResponse, response)
            except HTTPError as error:
                with error:
                    target = error.headers.get("Location", "")
                    if not 300 <= error.code < 400 or not target:
                        raise status_error(error.code, is_hub=is_hub, has_token=bool(token)) from None
            except (OSError, http.client.HTTPException, ValueError):
                raise _no_answer() from None
        raise StorageError(StatusCode.UNAVAILABLE, f"the hub redirects more than {REDIRECTS} times", is_transient=True)


def open_hub(url: StorageUrl, on_request: OnRequest) -> Hub:
    """Makes no request. Raises FAILED_PRECONDITION if ``HF_ENDPOINT`` is no address of a hub."""
    return Hub(url, on_request)


def read_commit(info: Any, commits: Any) -> Commit:
    """The version in the hub's answers: for a revision, and for the commits up to it, of which it is the first. Raises
    UNAVAILABLE for answers of another shape, FAILED_PRECONDITION for names that no file can have."""
    try:
        date = datetime.fromisoformat(commits[0]["date"])
        seconds = int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())
        number = max(1, seconds)  # the author of a commit chooses its date
        found = [_read_file(raw, number) for raw in info["siblings"]]
    except (LookupError, TypeError, ValueError, OverflowError):
        raise _unreadable() from None
    names = [file.path.partition("/")[2] for file in found]
    try:
        check_names(names)
    except ServingError as error:
        raise StorageError(
            StatusCode.FAILED_PRECONDITION, f"an object's name cannot be that of a file: {error}"
        ) from None
    files = [file for file, name in zip(found, names, strict=True) if _is_taken(name)]
    return Commit(_commit_of(info), number, tuple(sorted(files, key=lambda file: file.path)))


def _read_file(raw: Any, number: int) -> RemoteFile:
    name, size, blob, large = raw["rfilename"], raw["size"], raw["blobId"], raw.get("lfs")
    digest = large["sha256"] if large else ""
    if type(name) is not str or type(size) is not int or size < 0:
        raise ValueError(size)
    if not _COMMIT.fullmatch(blob) or not _SHA256.fullmatch(digest or "0" * 64):
        raise ValueError(size)
    return RemoteFile(f"{number}/{name}", size, blob, number * 1_000_000_000, digest)


def _is_taken(name: str) -> bool:
    """The hub's own digests are checked, so a manifest, which may list files that are not taken, is not."""
    return "/" not in name and name.endswith(SUFFIXES) and not name.startswith(".") and name != MANIFEST_NAME


def _commit_of(info: Any) -> str:
    if isinstance(info, dict) and isinstance(sha := info.get("sha"), str) and _COMMIT.fullmatch(sha):
        return sha
    raise _unreadable()


def _after(skip: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes behind the first ``skip``."""
    for piece in pieces:
        if len(piece) > skip:
            yield piece[skip:]
        skip = max(0, skip - len(piece))


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """What comes, as it comes: ``read`` would keep back the bytes in front of an error."""
    while True:
        try:
            piece = response.read1(PIECE)
        except (OSError, http.client.HTTPException, ValueError):
            raise _no_answer() from None
        if not piece:
            return
        yield piece


def status_error(status: int, *, is_hub: bool, has_token: bool) -> StorageError:
    """The error of an answer with this status. ``is_hub`` False: it comes from the store of large files, of which the
    hub gives a link that is good for a while."""
    if not is_hub:
        return StorageError(StatusCode.UNAVAILABLE, f"the hub's store of files answers {status}", is_transient=True)
    if status == 401 and not has_token:  # the hub does not tell strangers what it has
        sentence = "there is no such repository, or it needs HF_TOKEN of an account that has accepted its terms"
        return StorageError(StatusCode.PERMISSION_DENIED, f"the hub refuses (401): {sentence}")
    if status in (401, 403):
        sentence = f"the hub refuses ({status}): accept the terms of the repository and set HF_TOKEN"
        return StorageError(StatusCode.PERMISSION_DENIED, sentence)
    if status == 404:
        return StorageError(StatusCode.NOT_FOUND, "the hub has no such repository or revision")
    if status == 429:
        cure = "" if has_token else ": without HF_TOKEN it takes 500 calls of an address in 5 minutes"
        return StorageError(StatusCode.UNAVAILABLE, f"the hub answers 429{cure}", is_transient=True)
    if status == 408 or status >= 500:
        return StorageError(StatusCode.UNAVAILABLE, f"the hub answers {status}", is_transient=True)
    return StorageError(StatusCode.FAILED_PRECONDITION, f"the hub answers {status}")


def _no_answer() -> StorageError:
    return StorageError(StatusCode.UNAVAILABLE, "the hub does not answer", is_transient=True)


def _unreadable() -> StorageError:
    return StorageError(StatusCode.UNAVAILABLE, "the answer of the hub cannot be read", is_transient=True)


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS, over the proxy of the environment: without redirects, files, FTP."""
    opener = urllib.request.OpenerDirector()
    for kind in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(kind())
    return opener


def _request(url: str, start: int, token: str) -> urllib.request.Request:
    headers = {"Accept-Encoding": "identity", "User-Agent": "tfs-lite"}
    if start:
        headers["Range"] = f"bytes={start}-"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return urllib.request.Request(url, headers=headers)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or "https://huggingface.co"
    if not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?", endpoint):
        raise failed_precondition("HF_ENDPOINT is not the address of a hub")
    return endpoint


def _token() -> str:
    """``HF_TOKEN``, else the token file where the hub's own library keeps it; empty if there is neither."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
        path = os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read(4096).strip()
        except (OSError, ValueError):
            return ""
    if token and not _TOKEN.fullmatch(token):
        raise StorageError(StatusCode.FAILED_PRECONDITION, "HF_TOKEN, or the hub's token file, holds no token")
    return token
