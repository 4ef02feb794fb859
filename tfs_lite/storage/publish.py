"""Publishes a version into a bucket: the claim first, the manifest last, so that no server ever takes half of one.

    files of SRC -> hashed -> BASE/N/tfs_lite.uploading -> BASE/N/... -> BASE/N/tfs_lite.manifest.json -> the claim goes

The claim is an object that only one publisher can create. While it is there and the manifest is not, servers wait. A
publication that fails deletes what it has put there, the claim last. One that is killed leaves the claim behind, and
with it a version that no server takes; the next publication takes the next number.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.manifest import MANIFEST_NAME, MAX_FILES, Manifest, ManifestFile, sha256_of
from tfs_lite.core.publish import (
    MAX_RACES,
    Counter,
    OnProgress,
    Published,
    advised,
    already_exists,
    check_unchanged,
    end_by,
    fatal_signals,
    files_of,
    next_version,
    too_many_races,
)
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument, printable
from tfs_lite.storage.fetch import CLAIM_NAME
from tfs_lite.storage.store import Storage, StorageError, is_transient
from tfs_lite.storage.url import StorageUrl, check_names, join_path

if TYPE_CHECKING:
    from tenacity import Retrying

T = TypeVar("T")

ATTEMPTS = 5
"""Attempts for each request; between them are 0.5 s, 1 s, 2 s, 4 s and up to 1 s more each time."""
_FIRST_WAIT, _MOST_WAIT = 0.5, 10.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""Characters that end a listing of everything below the base path, of this version and of all others."""
_RIGHTS = "publishing needs the rights to list, read, write and delete there"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """Who publishes a version: the machine's name, and when it began, in UTC. The token is another one each time."""

    host: str
    time: str
    token: str

    @classmethod
    def now(cls) -> Claim:
        return cls(socket.gethostname(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), secrets.token_hex(16))

    def to_bytes(self) -> bytes:
        return json.dumps({"host": self.host, "time": self.time, "token": self.token}).encode()


def publish_to_url(
    source: str,
    url: StorageUrl,
    storage: Storage,
    version: int | None = None,
    on_progress: OnProgress = ignore,
    *,
    follow_links: bool = False,
    sleep: Callable[[float], None] | None = None,
) -> Published:
    """Copies ``source`` to ``url/<version>``; without a version, to the highest one there plus 1. ``storage`` is that
    of the URL's place; the files are those that :func:`tfs_lite.core.publish.publish` takes. ``sleep`` waits between
    two attempts. ``on_progress`` is called on this thread, with ``hashing`` and then ``uploading``.

    Errors: NOT_FOUND (no source, no bucket), FAILED_PRECONDITION (source empty, not a plain file, with a name that no
    object can have, with too many files), ALREADY_EXISTS, ABORTED (source changed meanwhile, too many publishers at the
    same time), PERMISSION_DENIED, and UNAVAILABLE when the storage does not answer.
    """
    refuse_hub(url)
    with _advised(url):
        files = files_of(source, follow_links)
        files.pop(CLAIM_NAME, None)
        _check_files(source, files)
        publication = _Publication(storage, url, _retrying(sleep))
        publication.next_version(version)  # refuses a version that is there before the files are read
        hashed = _hash(files, on_progress)
        with _ended_by_exceptions():
            return publication.publish(version, hashed, on_progress)


def refuse_hub(url: StorageUrl) -> None:
    if url.scheme == "hf":
        raise invalid_argument("hf:// is read only: publish to a bucket, or commit to the hub with its own tools")


@dataclass(frozen=True, slots=True)
class _Hashed:
    """A file of the source, as it was when it was hashed."""

    origin: str
    status: os.stat_result
    entry: ManifestFile


class _Publication:
    """One publication. ``_put`` has the objects that may be there because of it, by their paths below the base path,
    with the bytes by which it knows its own: None for files, which stand below the claim."""

    def __init__(self, storage: Storage, url: StorageUrl, retrying: Retrying) -> None:
        self._storage, self._url, self._retrying = storage, url, retrying
        self._claim = Claim.now().to_bytes()
        self._put: dict[str, bytes | None] = {}

    def next_version(self, version: int | None) -> int:
        """As :func:`tfs_lite.core.publish.next_version`, of what is listed now."""
        found = self._ask(lambda: self._storage.children(self._url.prefix))
        return next_version((*found.folders, *(file.path.rpartition("/")[2] for file in found.files)), version)

    def publish(self, version: int | None, files: Mapping[str, _Hashed], on_progress: OnProgress) -> Published:
        """Removes what it has put there unless it succeeds."""
        try:
            number = self._claim_version(version)
            uploaded = Counter("uploading", sum(file.entry.size for file in files.values()), on_progress)
            for relative, file in sorted(files.items()):
                self._upload(f"{number}/{relative}", relative, file, uploaded)
            manifest = Manifest({relative: file.entry for relative, file in files.items()}).to_bytes()
            if not self._create(f"{number}/{MANIFEST_NAME}", manifest):
                raise ServingError(StatusCode.ABORTED, f"another publisher has written version {number} meanwhile")
        except BaseException:
            self._remove_all()
            raise
        try:
            self._ask(lambda: self._storage.delete(self._path(f"{number}/{CLAIM_NAME}")))
        except StorageError as error:  # it is published: who is told of a failure would publish it twice
            logger.warning(
                "%s stays, which does no harm: %s; %s", self._url.join(str(number), CLAIM_NAME), error.sentence, _RIGHTS
            )
        return Published(number, self._url.join(str(number)))

    def _claim_version(self, version: int | None) -> int:
        """Takes a number that nobody else has. ALREADY_EXISTS, ABORTED after many races."""
        least = 0
        for _ in range(MAX_RACES):
            number = max(self.next_version(version), least)
            if self._take(number):
                return number
            if version is not None:
                raise already_exists(version)
            least = number + 1
        raise too_many_races()

    def _take(self, number: int) -> bool:
        """Whether this publication has the number now: another one may have ended since the listing, and taken its
        claim away."""
        claim = f"{number}/{CLAIM_NAME}"
        if not self._create(claim, self._claim):
            return False
        found = self._ask(lambda: self._storage.files(self._path(str(number))))
        if any(file.path != self._path(claim) for file in found.files):
            self._remove(claim)
            return False
        self._check_conditions(claim)
        return True

    def _check_conditions(self, claim: str) -> None:
        """A second claim has to fail; a warning where it does not."""
        second = Claim.now().to_bytes()
        try:
            self._ask(lambda: self._storage.put(self._path(claim), second, create=True))
        except StorageError as error:
            if error.code is not StatusCode.ALREADY_EXISTS:
                raise
        else:
            self._put[claim] = second
            logger.warning("this storage ignores conditions: do not publish twice at the same time")

    def _create(self, name: str, data: bytes) -> bool:
        """False if there is such an object of somebody else. Ours may be there already: a request whose answer was lost
        is repeated."""
        self._put[name] = data
        try:
            self._ask(lambda: self._storage.put(self._path(name), data, create=True))
        except StorageError as error:
            exists = error.code is StatusCode.ALREADY_EXISTS
            if exists and self._is_ours(name, data):
                return True
            if not error.is_transient:  # else it may be there all the same
                del self._put[name]
            if exists:
                return False
            raise
        return True

    def _is_ours(self, name: str, data: bytes) -> bool:
        try:
            return self._ask(lambda: b"".join(self._storage.read(self._path(name)))) == data
        except StorageError as error:
            if error.code is StatusCode.NOT_FOUND:
                return False
            raise

    def _upload(self, name: str, relative: str, file: _Hashed, uploaded: Counter) -> None:
        """ABORTED if the file is not the one that was hashed."""
        self._put[name] = None

        def attempt() -> None:
            with _Reader(file.origin, uploaded) as reader:
                check_unchanged(relative, file.status, os.fstat(reader.fileno()), "published")
                reader.put(lambda body: self._storage.put(self._path(name), body))
                check_unchanged(relative, file.status, os.stat(file.origin), "published")

        self._ask(attempt)

    def _remove_all(self) -> None:
        """The manifest first, the claim last: what cannot be deleted stays claimed."""
        try:
            for name in reversed(tuple(self._put)):
                self._remove(name)
        except StorageError as error:
            places = ", ".join(self._url.join(number) for number in sorted({name.split("/")[0] for name in self._put}))
            logger.warning("files of a failed publication may be left in %s (%s): delete them", places, error.sentence)

    def _remove(self, name: str) -> None:
        data = self._put[name]
        if data is None or self._is_ours(name, data):
            self._ask(lambda: self._storage.delete(self._path(name)))
        del self._put[name]

    def _path(self, name: str) -> str:
        return join_path(self._url.prefix, name)

    def _ask(self, request: Callable[[], T]) -> T:
        return self._retrying.copy()(request)


class _Reader(FileIO):
    """A file of the source, read for one attempt to upload it."""

    def __init__(self, path: str, counter: Counter) -> None:
        super().__init__(path)
        self._counter, self._read = counter, 0
        self._error: BaseException | None = None

    def read(self, size: int | None = -1) -> bytes:
        try:
            data = super().read(-1 if size is None else size) or b""
            self._read += len(data)
            self._counter.add(len(data))
        except BaseException as error:
            self._error = error
            raise
        return data

    def put(self, work: Callable[[BinaryIO], None]) -> None:
        """Does the work with the file. Raises the reader's own error where there is one, which a storage hides in an
        error of its own; the bytes of a failed attempt do not count."""
        try:
            work(self)
        except BaseException:
            self._counter.add(-self._read)
            if self._error is not None:
                raise self._error from None
            raise


def _check_files(source: str, files: Mapping[str, str]) -> None:
    if not files:
        raise failed_precondition(f"source {source!r}: expected at least one file, it is empty")
    if len(files) >= MAX_FILES:  # the manifest is one more
        raise failed_precondition(f"source {source!r}: too many files: {len(files)}, servers take {MAX_FILES - 1}")
    for name in files:
        if _CONTROL.search(name) or printable(name) != name:
            raise failed_precondition(f"{printable(name)!r}: an object cannot have such a name")
    check_names(tuple(files))


def _hash(files: Mapping[str, str], on_progress: OnProgress) -> dict[str, _Hashed]:
    counter = Counter("hashing", sum(map(os.path.getsize, files.values())), on_progress)
    return {relative: _hash_file(relative, origin, counter) for relative, origin in sorted(files.items())}


def _hash_file(relative: str, origin: str, counter: Counter) -> _Hashed:
    with open(origin, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        digest = sha256_of(file, on_read=counter.add)
        check_unchanged(relative, before, os.fstat(file.fileno()), "hashed")
    return _Hashed(origin, before, ManifestFile(before.st_size, digest))


def _retrying(sleep: Callable[[float], None] | None) -> Retrying:
    """What asks again where a while may help."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

    given: dict[str, Any] = {} if sleep is None else {"sleep": sleep}
    return Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(_FIRST_WAIT, max=_MOST_WAIT) + wait_random(0, 1),
        retry=retry_if_exception(is_transient),
        reraise=True,
        **given,
    )


@contextlib.contextmanager
def _advised(url: StorageUrl) -> Iterator[None]:
    """Errors of the storage and of the source's disk become a ServingError that says what to do."""
    with advised(url.text):
        try:
            yield
        except StorageError as error:
            advice = f"; {_RIGHTS}" if error.code is StatusCode.PERMISSION_DENIED else ""
            raise ServingError(error.code, f"publishing to {url.text} failed: {error.sentence}{advice}") from error


class _EndedError(BaseException):
    """A signal wants to end the process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _ended_by_exceptions() -> Iterator[None]:
    """Lets the block clean up before a signal ends the process that would end it at once. The exception comes as soon
    as the storage asks for the next bytes, or has answered."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _EndedError(number)

    try:
        with fatal_signals(end):
            yield
    except _EndedError as ended:
        end_by(ended.number)
        raise
