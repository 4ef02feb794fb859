"""Buckets of S3 and GCS, and containers of Azure, by obstore.

Credentials and addresses come from the environment and from the machine's identity, as obstore reads them; it reads the
environment once, when a store is made. Requests are repeated once, after 0.2 seconds, except a PUT that must create an
object and whose answer was lost. obstore is imported with the first URL, which takes about 40 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.manifest import MAX_FILES
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.storage.object_errors import UNREADABLE, OddKey, error_of, setup_error_of
from tfs_lite.storage.store import PAGE, Children, FlatListing, OnRequest, RemoteFile, Storage, StorageError
from tfs_lite.storage.url import StorageUrl, folders_of, join_path, start_of

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

T = TypeVar("T")
CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}

LISTS = {"connect_timeout": "5s", "read_timeout": "5s", "timeout": "30s"}
"""For LIST and DELETE. ``read_timeout`` is the most seconds without a byte, ``timeout`` that for a whole answer."""
BODIES = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "24h"}
UPLOADS = {"connect_timeout": "5s", "read_timeout": "120s", "timeout": "24h"}
"""``read_timeout`` counts from the start of a request, so that it must suffice to send a part too."""

MAX_LEVEL = MAX_FILES
"""The most objects and prefixes directly below a prefix."""
LEVEL_SECONDS = 20.0
"""The seconds in which they have to be listed."""
TOO_MANY = f"more than {MAX_LEVEL} objects and prefixes lie directly below its prefix: keep other things elsewhere"
TOO_LONG = f"listing what lies directly below its prefix takes longer than {LEVEL_SECONDS:g} s"
MAX_PAGES = 100
"""The most requests for a first level that has a key which no file can have."""
PART = 8 << 20
MAX_PARTS = 9_000
PARTS_AT_ONCE = 4
FIRST_WAIT, LONGEST_WAIT = timedelta(milliseconds=200), timedelta(seconds=2)


def open_storage(url: StorageUrl, on_request: OnRequest = ignore) -> Storage:
    """The storage of the URL's place; asks it nothing yet. Raises FAILED_PRECONDITION, without the extra or if the
    environment's settings are no settings."""
    if url.scheme == "hf":
        from tfs_lite.storage.hub import open_hub

        return open_hub(url, on_request)
    storage = ObjectStorage(url, on_request)
    try:
        storage.lists, storage.bodies  # noqa: B018
    except StorageError as error:
        raise error.to_serving_error() from None
    return storage


class ObjectStorage:
    """The objects of a bucket or of a container."""

    is_atomic = False

    def __init__(self, url: StorageUrl, on_request: OnRequest) -> None:
        self.scheme = url.scheme
        self._url, self._on_request = url, on_request
        self._measured = set[str]()  # prefixes whose first level was small enough; races ask once more

    @cached_property
    def lists(self) -> ObjectStore:
        return _make(self._url, LISTS)

    @cached_property
    def bodies(self) -> ObjectStore:
        return _make(self._url, BODIES)

    @cached_property
    def uploads(self) -> ObjectStore:
        return _make(self._url, UPLOADS)

    def files(self, prefix: str) -> FlatListing:
        found = self._page(prefix)
        if isinstance(found, OddKey):
            return FlatListing((), is_whole=False)
        return FlatListing(without_markers(found, prefix), is_whole=len(found) < PAGE)

    def children(self, prefix: str) -> Children:
        """FAILED_PRECONDITION beyond :data:`MAX_LEVEL`, UNAVAILABLE after :data:`LEVEL_SECONDS`."""
        if prefix not in self._measured:
            self._measure(prefix)
        found = self._listing(prefix, lambda: asyncio.run(self._level(prefix)))
        if not isinstance(found, OddKey):
            return _children([_file(each) for each in found["objects"]], found["common_prefixes"], prefix)
        if not found.sorts_first:
            raise found.error
        exact = self._page(prefix)  # the other listing may tell the folder alone
        return self._children_from_0(prefix, exact if isinstance(exact, OddKey) and exact.sorts_first else found)

    async def _level(self, prefix: str) -> Any:
        from obstore import list_with_delimiter_async

        try:
            return await asyncio.wait_for(list_with_delimiter_async(self.lists, prefix=prefix), LEVEL_SECONDS)
        except TimeoutError:
            self._on_request("list", "unavailable")
            raise StorageError(StatusCode.UNAVAILABLE, TOO_LONG, is_transient=True) from None

    def _measure(self, prefix: str) -> None:
        """Raises FAILED_PRECONDITION if more than :data:`MAX_LEVEL` names are directly below the prefix, as far as some
        pages show: obstore gathers all of them before it gives one. Azure cannot list from a name on."""
        if self.scheme != "az":
            self._scan(prefix, None, MAX_LEVEL // PAGE + 1)
        if len(self._measured) >= MAX_LEVEL:
            self._measured.clear()
        self._measured.add(prefix)

    def _scan(self, prefix: str, after: str | None, pages: int) -> tuple[Children | None, OddKey | None]:
        """The first level, of what sorts behind ``after``, from at most so many pages; or the key at which a page ends.
        Neither: there are more. A page costs a request, and what else is in its last folder is skipped."""
        start = start_of(prefix)
        files, folders, at = list[RemoteFile](), set[str](), after
        for _ in range(pages):
            page = self._page(prefix, at)
            if isinstance(page, OddKey):
                return None, page
            if page and at is not None and min(file.path for file in page) < at:  # it would never end
                raise StorageError(StatusCode.UNAVAILABLE, UNREADABLE, is_transient=True)
            for file in page:
                top, slash, _ = file.path[len(start) :].partition("/")
                if slash:
                    folders.add(start + top)
                else:
                    files.append(file)
            found = _children(files, folders, prefix)
            if len(page) < PAGE:
                return found, None
            top, slash, _ = page[-1].path[len(start) :].partition("/")
            at = f"{start}{top}0" if slash else page[-1].path  # "0" is the character behind "/"
        return None, None

    def _page(self, prefix: str, after: str | None = None) -> list[RemoteFile] | OddKey:
        """The first objects below the prefix, at most :data:`PAGE`, that sort behind ``after``."""
        from obstore import list as list_objects

        listing = self._listing(
            prefix, lambda: next(list_objects(self.lists, prefix=prefix, offset=after, chunk_size=PAGE), [])
        )
        return listing if isinstance(listing, OddKey) else [_file(each) for each in listing]

    def _listing(self, prefix: str, ask: Callable[[], T]) -> T | OddKey:
        from obstore.exceptions import InvalidPathError

        with self._asking("list"):
            try:
                return ask()
            except InvalidPathError as raised:
                return OddKey.of(str(raised), prefix)

    def _children_from_0(self, prefix: str, odd: OddKey) -> Children:
        """The first level without what sorts up to ``0``, and so without the keys that :attr:`OddKey.sorts_first` tells
        of, with which the rest of their page is lost. Another key that no file can have is an error: versions may be
        lost with it."""
        found, other = self._scan(prefix, join_path(prefix, "0"), MAX_PAGES)
        if found is None:
            raise (other or odd).error
        return replace(found, passed_over=odd.name)

    def read(self, path: str, start: int = 0, tag: str = "") -> Iterator[bytes]:
        from obstore import get

        try:
            with self._asking("get", only_errors=True):
                result = get(self.bodies, path, options=_options(start, tag))
        except StorageError as error:
            if error.code is not StatusCode.OUT_OF_RANGE:
                raise
            return iter(())
        if tag and result.meta["e_tag"] is None:  # a page of something between: the storage tells the tag
            self._on_request("get", "unavailable")
            raise StorageError(StatusCode.UNAVAILABLE, UNREADABLE, is_transient=True)
        return self._pieces(result.stream(min_chunk_size=1))

    def _pieces(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """The body. Pieces are as they come: what obstore gathers to larger ones is lost when the body ends early."""
        with self._asking("get"):
            yield from stream

    def put(self, path: str, source: bytes | BinaryIO, *, create: bool = False) -> None:
        from obstore import put

        if not create:
            with self._asking("put"):
                put(self.uploads, path, source, chunk_size=_part_size(source), max_concurrency=PARTS_AT_ONCE)
            return
        data = source if isinstance(source, bytes) else source.read()
        try:
            with self._asking("put"):
                put(self.uploads, path, data, mode="create")
        except StorageError as error:
            if error.code not in (StatusCode.ALREADY_EXISTS, StatusCode.UNAVAILABLE) or not self._has(path, data):
                raise

    def _has(self, path: str, data: bytes) -> bool:
        """Whether the object has these bytes; False too if that cannot be found out."""
        try:
            return b"".join(self.read(path)) == data
        except StorageError:
            return False

    def delete(self, path: str) -> None:
        from obstore import delete

        try:
            with self._asking("delete"):
                delete(self.lists, path)
        except StorageError as error:
            if error.code is not StatusCode.NOT_FOUND:
                raise

    @contextmanager
    def _asking(self, operation: str, *, only_errors: bool = False) -> Iterator[None]:
        """Reports a request, and makes a StorageError of what obstore raises. Other errors pass, such as those of a
        file that is put. A body that nobody reads to its end has not failed."""
        try:
            yield
        except GeneratorExit:
            self._on_request(operation, "ok")
            raise
        except BaseException as raised:
            if not _is_of_obstore(raised):
                raise
            error = error_of(str(raised), type(raised), listing=operation == "list")
            self._on_request(operation, error.code.name.lower())
            raise error from None
        if not only_errors:
            self._on_request(operation, "ok")


def _is_of_obstore(raised: BaseException) -> bool:
    """A panic of obstore, such as at a token that cannot be a header, is no ``Exception``."""
    from obstore.exceptions import BaseError

    return isinstance(raised, BaseError | FileNotFoundError | ValueError) or _is_panic(raised)


def _is_panic(raised: BaseException) -> bool:
    return type(raised).__name__ == "PanicException"


def _make(url: StorageUrl, timeouts: dict[str, str]) -> ObjectStore:
    """A store with these timeouts. They go among the settings, because ``client_options`` would replace those of the
    environment, such as AWS_ALLOW_HTTP. Nothing may ask an AzureStore for its ``repr``: that panics."""
    try:
        from obstore import store as stores
    except ImportError:
        raise ServingError(
            StatusCode.FAILED_PRECONDITION,
            f"base paths of {url.scheme}:// need an extra that is not installed: pip install 'tfs-lite[remote]'",
            Reason.NEEDS_EXTRA,
        ) from None
    settings: dict[str, str] = dict(timeouts)
    if url.account:
        settings["account_name"] = url.account
    backoff = {"init_backoff": FIRST_WAIT, "max_backoff": LONGEST_WAIT, "base": 2}
    try:
        made: ObjectStore = getattr(stores, CLASSES[url.scheme])(
            url.bucket, config=settings, retry_config={"max_retries": 1, "backoff": backoff}
        )
    except BaseException as raised:
        if isinstance(raised, Exception) or _is_panic(raised):
            raise setup_error_of(str(raised)) from None
        raise
    return made


def _options(start: int, tag: str) -> Any:
    """No range for the whole object, because an empty one has none."""
    options: dict[str, object] = {"range": {"offset": start}} if start else {}
    if tag:
        options["if_match"] = tag if tag.startswith("W/") else f'"{tag}"'
    return options


def _file(found: ObjectMeta) -> RemoteFile:
    tag = (found["e_tag"] or "").strip('"')
    modified_ms = round(found["last_modified"].timestamp() * 1000)
    return RemoteFile(found["path"], found["size"], tag, modified_ms * 1_000_000)


def _children(files: Collection[RemoteFile], folders: Collection[str], prefix: str) -> Children:
    """FAILED_PRECONDITION if they are more than :data:`MAX_LEVEL`."""
    if len(files) + len(folders) > MAX_LEVEL:
        raise StorageError(StatusCode.FAILED_PRECONDITION, TOO_MANY)
    folders = sorted(folders)
    return Children(without_markers(files, prefix, folders), tuple(path.rpartition("/")[2] for path in folders))


def without_markers(files: Iterable[RemoteFile], prefix: str, folders: Iterable[str] = ()) -> tuple[RemoteFile, ...]:
    """The files below the prefix, sorted. Those that only mark a folder are left out: objects without bytes whose name
    is that of a folder, by itself or with a ``/``, which obstore takes away. ``folders``: more prefixes known."""
    listed = sorted(files, key=lambda file: file.path)
    known = {prefix, *folders, *folders_of(file.path for file in listed)}
    return tuple(file for file in listed if file.size or file.path not in known)


def _part_size(source: bytes | BinaryIO) -> int:
    if isinstance(source, bytes):
        return max(PART, len(source) // MAX_PARTS)
    at = source.tell()
    size = source.seek(0, 2) - at
    source.seek(at)
    return max(PART, size // MAX_PARTS)
