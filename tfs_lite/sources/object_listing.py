"""The objects below a base path at a URL, arranged as directories: pure, over what a storage has listed.

m/1/model.pt2             a file of version 1
m/1/                      a marker, which some tools leave for a folder: it makes a version, and is no file
m/2/tfs_lite.uploading    somebody publishes version 2; it has no manifest yet
m/labels.txt              a file beside the versions
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfs_lite.core.manifest import MANIFEST_NAME, MODEL_SETTINGS_FILES, FileStat, is_looked_at
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import ServingError
from tfs_lite.storage.fetch import CLAIM_NAME, wanted_files
from tfs_lite.storage.store import FlatListing, RemoteFile, StorageError
from tfs_lite.storage.url import folders_of, start_of

Signature = tuple[tuple[str, int, str], ...]
"""Paths, sizes and tags of the files of a version but its configs: equal for the same state of the same files."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version directory. ``files``: those that are fetched, sorted, by their paths inside it. ``problem``: why they
    cannot be the files of a directory. ``claim``: the file of whoever publishes it; None where a manifest is there.
    ``error``: why it could not be listed."""

    files: tuple[RemoteFile, ...] = ()
    problem: str = ""
    claim: RemoteFile | None = None
    error: StorageError | None = None

    @property
    def signature(self) -> Signature:
        return tuple((f.path, f.size, f.tag) for f in self.files if f.path not in MODEL_SETTINGS_FILES)

    @property
    def configs(self) -> tuple[RemoteFile, ...]:
        return tuple(file for file in self.files if file.path in MODEL_SETTINGS_FILES)

    @property
    def stats(self) -> tuple[FileStat, ...]:
        """The files as a disk shows them. The tag stands for the inode; times say nothing about contents."""
        return tuple(FileStat(f.path, f.size, 0, 0, number_of(f.tag)) for f in self.files)

    @property
    def newest_ns(self) -> int:
        return max((file.modified_ns for file in self.files), default=0)


@dataclass(frozen=True, slots=True)
class BaseListing:
    """The listing of a base path; replaced as a whole. ``versions``: by the names of their directories; None where the
    listing is deep and nobody has asked for the files yet. ``beside``: the files outside of versions, by their paths
    below the base path; of those in ``folders``, as far as they have been listed (``read``). ``missing``: the versions
    that are not there any more and are reported once more, each with the time, in seconds of ``monotonic``, of the
    first listing without it."""

    versions: Mapping[str, ListedVersion | None]
    beside: Mapping[str, RemoteFile] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    missing: Mapping[str, float] = field(default_factory=dict)

    @property
    def state(self) -> int:
        """A number that differs whenever something in it differs."""
        versions = [(name, v and [v.signature, v.configs, v.problem, v.claim]) for name, v in self.versions.items()]
        beside = [(path, file.size, file.tag) for path, file in self.beside.items()]
        return number_of(repr((sorted(versions, key=repr), sorted(beside), sorted(self.folders))))


def number_of(text: str) -> int:
    """A number for a text; another one for another text."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:8])


def flat_or_deep(flat: FlatListing) -> bool:
    """Whether the base path has to be listed level by level from now on: there are too many objects for one request,
    or the name of one ends every listing that has it."""
    return not flat.is_whole


def listed_version(files: Iterable[RemoteFile]) -> ListedVersion:
    """The version whose objects these are, by their paths inside its directory."""
    found = tuple(files)
    try:
        wanted = wanted_files(found)
    except ServingError as error:
        return ListedVersion(problem=str(error))
    claim = next((file for file in found if file.path == CLAIM_NAME), None)
    is_published = any(file.path == MANIFEST_NAME for file in wanted)
    return ListedVersion(wanted, claim=None if is_published else claim)


def below(prefix: str, file: RemoteFile) -> RemoteFile:
    """The file by its path below the prefix."""
    return replace(file, path=file.path[len(start_of(prefix)) :])


def arrange(prefix: str, files: Iterable[RemoteFile], folders: Iterable[str] | None = None) -> BaseListing:
    """The listing of the base path at ``prefix``, from all objects below it, or, with ``folders``, from its first level
    alone. An empty object with the number of a version for its name is the marker of a version directory."""
    versions: dict[str, list[RemoteFile]] = {}
    others, beside = set(folders or ()), dict[str, RemoteFile]()
    for file in (below(prefix, file) for file in files):
        top, slash, inner = file.path.partition("/")
        if parse_version(top) is not None and (slash or not file.size):
            versions.setdefault(top, []).extend([replace(file, path=inner)] if inner else [])
        elif file.path and is_looked_at(file.path):
            others.update({top} if slash else ())
            beside.update({file.path: file} if not slash or inner else {})
    of_all = {name for name in others if parse_version(name) is not None}
    listed: dict[str, ListedVersion | None] = {name: listed_version(found) for name, found in versions.items()}
    if folders is not None:
        listed = dict.fromkeys(listed.keys() | of_all)
    others = {name for name in others - of_all if is_looked_at(name)}
    markers = folders_of(beside) | others
    beside = {path: file for path, file in beside.items() if path not in markers}
    return BaseListing(listed, beside, frozenset(others), frozenset() if folders is not None else frozenset(others))


def still_there(before: BaseListing | None, found: BaseListing, now: float, after: float) -> BaseListing:
    """The listing with the versions that were in the one before and are not in this one, if it is the first without
    them, or the first was less than ``after`` seconds ago: a storage may leave something out."""
    if before is None:
        return found
    gone = {name: before.missing.get(name, now) for name in before.versions if name not in found.versions}
    kept = {name: t for name, t in gone.items() if name not in before.missing or now < t + after}
    return replace(found, versions={**found.versions, **{n: before.versions[n] for n in kept}}, missing=kept)


# What outlives the process.


@dataclass(frozen=True, slots=True)
class SavedVersion:
    """A fetched version: its name in the cache, and its files as they were listed then."""

    key: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True)
class SavedBase:
    """The last good listing of a base path, of which an offline start takes what is in the cache."""

    url: str
    versions: Mapping[str, SavedVersion]
    beside: tuple[RemoteFile, ...] = ()

    def to_json(self) -> str:
        versions = {name: {"key": v.key, "files": _rows(v.files)} for name, v in sorted(self.versions.items())}
        return json.dumps({"format": _FORMAT, "url": self.url, "versions": versions, "beside": _rows(self.beside)})

    @classmethod
    def from_json(cls, text: str, url: str) -> SavedBase:
        """Without versions where the text is not such a listing of this URL."""
        try:
            found = json.loads(text)
            if (found["format"], found["url"]) != (_FORMAT, url):
                return cls(url, {})
            versions = {
                name: SavedVersion(str(each["key"]), _files(each["files"])) for name, each in found["versions"].items()
            }
            return cls(url, versions, _files(found["beside"]))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return cls(url, {})

    @property
    def listing(self) -> BaseListing:
        beside = {file.path: file for file in self.beside}
        folders = frozenset(path.partition("/")[0] for path in beside if "/" in path)
        return BaseListing({n: listed_version(v.files) for n, v in self.versions.items()}, beside, folders, folders)


def _rows(files: Iterable[RemoteFile]) -> list[list[Any]]:
    return [[file.path, file.size, file.tag, file.modified_ns, file.sha256] for file in files]


def _files(rows: Any) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(str(path), int(size), str(tag), int(modified), str(sha256))
        for path, size, tag, modified, sha256 in rows
    )
