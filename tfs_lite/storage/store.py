"""The storage, passed in: the few things that are asked of a bucket, a container or a repository of the hub.

Paths are those of objects inside the place, with ``/`` between the parts and neither ``/`` at an end: the part of a URL
behind the bucket. Everything decided about a storage is decided over the values defined here, so that one in memory can
stand in for the real ones.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeAlias

from tfs_lite.core.status import ServingError, StatusCode

PAGE = 1000
"""The most objects that one request for a listing gives."""
READ_SECONDS = 20.0
"""The most seconds for a small read during a look, such as a config or the end of an archive, as long as bytes come."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An object. ``tag``, without quotes, differs whenever the contents may have changed. ``sha256``: its digest in 64
    hexadecimal digits, where the storage or a manifest knows it."""

    path: str
    size: int
    tag: str
    modified_ns: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class FlatListing:
    """All objects below a prefix, at any depth. ``is_whole`` False: they may be a part, because there are
    :data:`PAGE` or more, or because the name of one cannot be that of a file."""

    files: tuple[RemoteFile, ...]
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Children:
    """The objects directly below a prefix, and the last parts of the prefixes directly below it. ``passed_over``: the
    first key, in quotes and below the prefix, that no file can have; those that sort before ``0`` are left out then."""

    files: tuple[RemoteFile, ...]
    folders: tuple[str, ...]
    passed_over: str = ""


class StorageError(OSError):
    """A request that has failed. ``code`` and ``sentence`` say it to people, without URL, token or account; of keys
    only that which no file can have is named, by its part below the prefix;
    ``is_transient``: the same request may succeed in a while. It is an OSError, so that what reads a disk takes it as
    the error of one, with the sentence as its ``strerror``."""

    def __init__(self, code: StatusCode, sentence: str, *, is_transient: bool = False) -> None:
        super().__init__(errno.EIO, sentence)
        self.code, self.sentence, self.is_transient = code, sentence, is_transient

    def to_serving_error(self) -> ServingError:
        return ServingError(self.code, self.sentence)


def is_transient(error: BaseException) -> bool:
    """Whether the request that has failed with this error may succeed in a while."""
    return isinstance(error, StorageError) and error.is_transient


@dataclass(frozen=True, slots=True)
class StorageCondition:
    """The state of a storage as the listings of one base path show it; times are in seconds since 1970. ``last_good``:
    when the last listing came (None: none yet). ``sentence``: why listings fail now, empty if they do not; they have
    ``since`` then, ``tries`` in a row. ``from_cache``: what is offered meanwhile is a listing that an earlier process
    has left on this machine, and ``last_good`` is its time."""

    last_good: float | None = None
    since: float | None = None
    tries: int = 0
    sentence: str = ""
    from_cache: bool = False


OnRequest: TypeAlias = Callable[[str, str], None]
"""Called after each request with the operation (``list``, ``head``, ``get``, ``put``, ``delete``) and the result:
``ok``, or the name of a status code in small letters."""


class Storage(Protocol):
    """The objects of one place. Threads: any. Each request has a bound in seconds; errors are :class:`StorageError`.

    NOT_FOUND: there is no such bucket or object. PERMISSION_DENIED: it refuses (401, 403, expired tokens).
    FAILED_PRECONDITION: it will not work like this, such as a bucket in another region. ABORTED: the object is not the
    one with this tag any more. ALREADY_EXISTS. UNAVAILABLE, and transient: anything that a while may cure.
    """

    @property
    def scheme(self) -> str:
        """The scheme of its URLs, for metrics: ``s3``, ``gs``, ``az`` or ``hf``."""

    @property
    def is_atomic(self) -> bool:
        """Whether a version appears with all its files at once, so that none has to become quiet."""

    def files(self, prefix: str) -> FlatListing:
        """Everything below the prefix, by one request (``s3://b/m`` holds ``m/1/model.pt2``, and not ``m2/1/x``).
        Nothing there is an empty listing."""

    def children(self, prefix: str) -> Children:
        """The first level below the prefix, by one request a page."""

    def read(self, path: str, start: int = 0, tag: str = "") -> Iterator[bytes]:
        """The object from byte ``start`` on, in pieces of at most 1 MiB. With a tag: of that state or ABORTED. The
        iterator raises when a body is cut or stalls, and then has given every byte that came."""

    def put(self, path: str, source: bytes | BinaryIO, *, create: bool = False) -> None:
        """Writes an object. ``create``: ALREADY_EXISTS if there is one of that name with other bytes, in one step. One
        with the same bytes may be ours, whose answer was lost: what must not be made twice holds a token."""

    def delete(self, path: str) -> None:
        """Removes an object; one that is not there is no error."""


def until(deadline: float, now: Callable[[], float], pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces of a body. UNAVAILABLE once one comes after the deadline: a storage that drips holds nobody up."""
    for piece in pieces:
        if now() > deadline:
            raise StorageError(StatusCode.UNAVAILABLE, "the storage answers too slowly", is_transient=True)
        yield piece
