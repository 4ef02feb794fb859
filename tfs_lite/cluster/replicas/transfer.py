"""How a replica comes by the files of a version: from a path that all nodes share, or from the server that asks it.

    server -> replica   FILES      [digest, directory, None or a list of (name, bytes)]
    replica -> server              the directory to open on its node, or nothing: then, for a version with a list,
    server -> replica   FILE       [number of the file, offset, bytes], again and again, in order
    server -> replica   FILES_END  [SHA-256 of each file]
    replica -> server              the directory

Either way the replica opens only what has the digest that the server has told (``generation.files_digest``). Nothing of
what comes over the connection is believed before it was checked: names stay below the version's directory, no file is
larger than was announced, and what is not whole is not kept.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from tfs_lite.cluster.replicas.generation import files_digest, is_digest, read_manifest, version_files
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.storage.files_cache import Download, FilesCache
from tfs_lite.storage.url import check_name, check_names
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.request_channel import RequestChannel

FILES, FILE, FILES_END = "files", "file", "files_end"
CHUNK = 4 << 20
"""Bytes of a file in one message."""
MAX_FILES = 100_000


class ListedFile(NamedTuple):
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class OfferedFiles:
    """A version's files on the server. ``sends`` them to nodes; else their path is the same on every node."""

    directory: str
    digest: str
    sends: bool = False

    @classmethod
    def of(cls, directory: str, sends: bool) -> OfferedFiles:
        """Raises as :func:`files_digest`."""
        return cls(directory, files_digest(directory), sends)


def deliver(channel: RequestChannel, files: OfferedFiles) -> str:
    """The directory on the replica's node that has these files; sends them if need be, and waits while another replica
    of the node gets them. Raises what the replica refuses with, FAILED_PRECONDITION ``node N has other files`` for one;
    FAILED_PRECONDITION if the files change meanwhile; ConnectionClosed, ProtocolError."""
    listed = [ListedFile(*item) for item in version_files(files.directory).items()] if files.sends else None
    plain = None if listed is None else [list(item) for item in listed]
    answer = channel.ask(FILES, [files.digest, files.directory, plain])
    if answer is None and listed is not None:
        answer = channel.ask(FILES_END, [_send(channel, files.directory, *item) for item in enumerate(listed)])
    if not isinstance(answer, str):
        raise ProtocolError("no directory of files")
    return answer


def _send(channel: RequestChannel, directory: str, number: int, listed: ListedFile) -> str:
    """Sends one file; returns its SHA-256."""
    digest, offset = hashlib.sha256(), 0
    with open(os.path.join(directory, listed.name), "rb") as file:
        for chunk in _chunks(file, listed.size):
            channel.ask(FILE, [number, offset, chunk])
            digest.update(chunk)
            offset += len(chunk)
        if offset != listed.size or file.read(1):
            raise failed_precondition(f"{listed.name} was changed while it was sent to a replica")
    return digest.hexdigest()


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields chunks of at most ``size`` bytes."""
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        size -= len(chunk)
        yield chunk


class FilesReceiver:
    """The replica's part, for one connection. ``close`` gives up what is not whole. One thread at a time."""

    def __init__(self, cache: FilesCache, known: dict[str, str], node: str = "") -> None:
        """``known``: what the replica has looked at before, by digest; what changes on the disk afterwards is nothing
        to a model that is open. ``node``: the host's name, for people; empty: as the system says."""
        self._cache = cache
        self._known = known
        self._node = node or socket.gethostname()
        self._digest = ""
        self._listed: list[ListedFile] = []
        self._download: Download | None = None

    def answer(self, what: str, extra: object) -> str | None:
        """Answers FILES, FILE and FILES_END. Raises ProtocolError for what cannot be understood, and ServingError:
        INVALID_ARGUMENT for what may not be, FAILED_PRECONDITION for other files, RESOURCE_EXHAUSTED without room. A
        failure ends the transfer."""
        try:
            if what == FILES:
                return self._look(*_read_request(extra))
            if what == FILE:
                self._receive(*_read_chunk(extra))
                return None
            return self._finish(_read_digests(extra))
        except OSError as error:
            self.close()
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = StatusCode.RESOURCE_EXHAUSTED if full else StatusCode.FAILED_PRECONDITION
            raise ServingError(code, f"node {self._node}: {error.strerror or error}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        download, self._download = self._download, None
        if download is not None:
            download.abort()

    def _look(self, digest: str, directory: str, listed: list[ListedFile] | None) -> str | None:
        self.close()
        if digest in self._known:
            return self._known[digest]
        if listed is None:
            self._check(directory, digest)
            found: str | Download = directory
        else:
            name, size = os.path.basename(directory.rstrip("/")), sum(file.size for file in listed)
            found = self._cache.find_or_begin(digest, name, size)
        if isinstance(found, str):
            self._known[digest] = found
            return found
        self._digest, self._listed, self._download = digest, listed or [], found
        return None

    def _check(self, directory: str, digest: str) -> None:
        try:
            found = files_digest(directory)
        except ServingError as error:
            if error.code is not StatusCode.NOT_FOUND:
                raise
            raise failed_precondition(f"node {self._node} does not have its files; is their path shared?") from None
        if found != digest:
            raise failed_precondition(f"node {self._node} has other files")

    def _receive(self, number: int, offset: int, chunk: bytes) -> None:
        if self._download is None or number >= len(self._listed):
            raise ProtocolError("a piece of a file that was not asked for")
        listed = self._listed[number]
        if offset + len(chunk) > listed.size:
            raise invalid_argument(f"{listed.name} is larger than was announced")
        if self._download.written(listed.name) != offset:
            raise invalid_argument(f"{listed.name}: its pieces do not come in order")
        self._download.write(listed.name, chunk)

    def _finish(self, digests: Sequence[str]) -> str:
        download = self._download
        if download is None or len(digests) != len(self._listed):
            raise ProtocolError("the end of files that were not asked for")
        for listed, digest in zip(self._listed, digests, strict=True):
            if not listed.size:
                download.write(listed.name, b"")
            if download.written(listed.name) != listed.size:
                raise invalid_argument(f"{listed.name} is not whole")
            if download.sha256(listed.name) != digest:
                raise failed_precondition(f"{listed.name} has arrived with another digest")
        manifest = read_manifest(download.directory)
        for name, file in manifest.files.items() if manifest else ():
            if download.written(name) and download.sha256(name) != file.sha256:
                raise failed_precondition(f"{name} is not what its manifest says")
        if files_digest(download.directory) != self._digest:
            raise failed_precondition(f"node {self._node} was sent other files")
        directory = download.finish()
        self._download = None
        self._known[self._digest] = directory
        return directory


def _read_request(raw: object) -> tuple[str, str, list[ListedFile] | None]:
    if not isinstance(raw, list) or len(raw) != 3 or not all(isinstance(text, str) for text in raw[:2]):
        raise ProtocolError("no request for files")
    digest, directory, listed = raw
    if not is_digest(digest):
        raise ProtocolError("no digest of files")
    if listed is None:
        return digest, directory, None
    if not isinstance(listed, list) or len(listed) > MAX_FILES:
        raise ProtocolError("no list of files")
    files = [_read_listed(entry) for entry in listed]
    check_names([file.name for file in files])
    check_name(os.path.basename(directory.rstrip("/")))
    return digest, directory, files


def _read_listed(raw: object) -> ListedFile:
    if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[0], str):
        raise ProtocolError("no file")
    if type(raw[1]) is not int or raw[1] < 0:
        raise ProtocolError("no size of a file")
    return ListedFile(raw[0], raw[1])


def _read_chunk(raw: object) -> tuple[int, int, bytes]:
    if not isinstance(raw, list) or len(raw) != 3 or not isinstance(raw[2], bytes) or not raw[2]:
        raise ProtocolError("no piece of a file")
    if not all(type(number) is int and number >= 0 for number in raw[:2]):
        raise ProtocolError("no place in a file")
    return raw[0], raw[1], raw[2]


def _read_digests(raw: object) -> list[str]:
    if not isinstance(raw, list) or not all(isinstance(text, str) for text in raw):
        raise ProtocolError("no digests of files")
    return raw
