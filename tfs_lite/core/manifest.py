"""The layout of a version on disk: the name of its directory, the files that count, their state, and the manifest.

    BASE/3/                     read_tree -> Tree -> fingerprint ┐
      model.pt2                 counts                           ├-> state_of: path, files, what the config names beside
      config.pbtxt              counts, as a config              ┘
      .model.pt2.x7Gh2k         says that a copy is in progress: a version waits for its end, and it is no part of it
      ._model.pt2, .DS_Store    litter, which no publisher writes: it is not looked at
      train.log                 is written during a training: it is not looked at
      README.md, optimizer.pt   counts, and is about the model or its training: it is no part of what answers
      tfs_lite.manifest.json    lists every file with size and digest

A version is a directory whose name is a decimal number. Sources, loaders and callers that open a version again compare
states; publishing leaves the litter behind. The tables here are the only place that says which names are which. A
manifest lets a reader tell a finished version from one that is still being copied: publishing writes it, sources check
it.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument

MODEL_SETTINGS_FILES = ("config.pbtxt", "config.yaml")
"""The names of a model's own config, in a version or beside its versions."""
REPLAY_NAME = "replay.tfrecord"
REPLAY_FILE = f"assets.extra/{REPLAY_NAME}"
"""Recorded answers that a version is held against: a file beside the versions, and one in a version by its path."""
FILES_ABOUT_LOADS = (*MODEL_SETTINGS_FILES, REPLAY_FILE)
FILES_ABOUT_LOADS_BESIDE = (*MODEL_SETTINGS_FILES, REPLAY_NAME)
"""The files that say how versions are loaded and are no part of one, by their paths in a version and beside them."""
MAX_FILES = 10_000
_LITTER = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found", "__pycache__", "@eadir", "$recycle.bin"})
"""File names in small letters. Hidden files are litter too, and so is what editors leave (``model.py~``,
``#model.py#``)."""
_LOGS = re.compile(r".+\.log|events\.out\.tfevents\..+")
_ABOUT = re.compile(
    r"(.*/)?((readme|licen[sc]e|notice|copying|citation|authors|changelog|requirements)(\..*)?"
    r"|.+\.(md|rst|pdf|html|ipynb|png|jpe?g|svg|gif|sha256|md5|sig))"
    r"|(runs|logs|eval|checkpoint-\d+)/.*"
    r"|training_args\.bin|optimizer\..*|scheduler\.pt|scaler\.pt|rng_state.*|trainer_state\.json|(all|train|eval)_results\.json"
    r"|(pytorch|tf|flax)_model.*|rust_model\.ot|(onnx|openvino|coreml|original)/.*|.+\.gguf",
    re.IGNORECASE,
)
"""Files about a model, those of its training, and its weights in the formats of others."""
_COPYING_DIRECTORIES = frozenset({".~tmp~", ".rsync-partial", ".cache"})
"""Hidden directories in which rsync and the hub's client keep what has come so far."""
_PARTIAL = re.compile(r".+\.(part|partial|tmp|filepart|crdownload|incomplete)|\.(?!_|nfs).+\.[A-Za-z0-9]{6}|\.in\..+\.")
"""Names that copying tools give to a file that is not whole: rsync's are ``.NAME.xxxxxx``."""


def is_litter(name: str) -> bool:
    """Whether a file or directory of this name is something that no publisher writes."""
    if name.startswith("."):
        return not is_partial(name)
    return name.lower() in _LITTER or name.endswith("~") or (len(name) > 2 and name[0] == name[-1] == "#")


def is_partial(name: str) -> bool:
    """Whether it says that a copy is in progress, or was given up."""
    return name in _COPYING_DIRECTORIES or _PARTIAL.fullmatch(name) is not None


def is_looked_at(path: str) -> bool:
    """Whether a file belongs to its version, or says that the version is being copied. ``path`` is that inside the
    version, with ``/`` between the parts."""
    parts = path.split("/")
    return not any(map(is_litter, parts)) and _LOGS.fullmatch(parts[-1]) is None


def is_about(path: str) -> bool:
    """Whether a file of a version tells about the model, or is left of its training, and is no part of it."""
    return _ABOUT.fullmatch(path) is not None


def file_stamp(inode: int, ctime_ns: int) -> str:
    return f"{inode}:{ctime_ns}"


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file by its path inside the version directory, ``/`` between the parts; links are followed.
    ``keeps_inode``: the number of its inode says something about the file."""

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    keeps_inode: bool = True

    @property
    def stamp(self) -> str:
        """Names the very inode and its change time; a copy of the file never has it."""
        return file_stamp(self.inode, self.ctime_ns)

    @property
    def state(self) -> str:
        """Differs whenever the contents may have changed."""
        return f"{self.size} {self.mtime_ns} {self.ctime_ns} {self.inode if self.keeps_inode else '-'}"

    @property
    def is_partial(self) -> bool:
        return any(map(is_partial, self.name.split("/")))


@dataclass(frozen=True, slots=True)
class Tree:
    """All files below a directory that are looked at, sorted by name, at one moment.

    ``newest_ns`` is the latest time, since the epoch, at which anything in it changed: contents and inodes of files,
    entries of directories. ``changed_ns`` is the latest one of those that only the clock of the disk sets. ``device``
    tells disks apart. ``overflow``: there were more files than the caller wanted, and ``files`` is a part. ``is_here``
    False: the files are elsewhere, and come to this machine when they are verified.
    """

    files: tuple[FileStat, ...]
    newest_ns: int
    overflow: bool = False
    changed_ns: int = 0
    device: int = 0
    is_here: bool = True

    @property
    def fingerprint(self) -> str:
        """Equal for two looks at the same unchanged files, and different whenever anything was changed."""
        return _digest(f"{file.name}\0{file.state}" for file in self.files)

    @property
    def version(self) -> Tree:
        """The files that make the version: without configs, recorded answers, and what is being copied."""
        return replace(self, files=tuple(f for f in self.files if not (f.is_partial or f.name in FILES_ABOUT_LOADS)))

    @property
    def configs(self) -> Tree:
        """The configs and recorded answers alone."""
        return replace(self, files=tuple(file for file in self.files if file.name in FILES_ABOUT_LOADS))

    @property
    def has_config(self) -> bool:
        """Whether there is a config among the files."""
        return any(file.name in MODEL_SETTINGS_FILES for file in self.files)

    def differences(self, other: Tree) -> list[str]:
        """The names of the files that are not the same in both, in order."""
        ours, theirs = ({file.name: file.state for file in tree.files} for tree in (self, other))
        return sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))


def state_of(path: str, fingerprint: str, beside: Iterable[tuple[str, str]] = ()) -> str:
    """The state of the version at ``path``: another path and other files are another state, other configs are not.
    ``fingerprint`` is that of :attr:`Tree.version`; ``beside``: names and states of the files that its config names
    beside it."""
    return _digest([path, fingerprint, *(f"{name}\0{state}" for name, state in sorted(beside))])


def revision_of(state: str, configs: str) -> str:
    """The revision of a version in a list: the state of its files, and that of its configs, empty without any."""
    return f"{state}/{configs}"


def configs_of(revision: str) -> str:
    """The state of the configs in a revision."""
    return revision.partition("/")[2]


def have_same_configs(revision: str, other: str) -> bool:
    """Whether two revisions of a version differ in files alone, if at all."""
    return configs_of(revision) == configs_of(other)


def has_state(revision: str, state: str) -> bool:
    """Whether a version with this revision in a list has its files in this state."""
    return revision.partition("/")[0] == state


def read_tree(path: str, max_files: int = MAX_FILES) -> Tree:
    """Looks at no more than ``max_files`` entries. Raises OSError, also for what is neither a directory nor a plain
    file."""
    files: list[FileStat] = []
    newest = changed = device = 0
    for seen, (relative, status) in enumerate(_walk(path)):
        if seen > max_files:
            return Tree(tuple(files), newest, True, changed, device)
        device = device or status.st_dev
        newest = max(newest, status.st_mtime_ns)
        if relative is not None:
            newest, changed = max(newest, status.st_ctime_ns), max(changed, status.st_ctime_ns)
            files.append(_file(relative, status))
    return Tree(tuple(sorted(files, key=lambda file: file.name)), newest, False, changed, device)


class NoPlainFileError(OSError):
    """A pipe, a socket or a device is where a file is expected."""


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """A plain file, opened for reading. Does not wait for the other end of a pipe: NoPlainFileError for what is neither
    a plain file nor a directory, and OSError as ``open`` raises it."""
    return open(path, "rb", opener=_open_plain)


def _open_plain(path: str, flags: int) -> int:
    no_plain_file = NoPlainFileError(errno.EINVAL, "it is no plain file", path)
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise no_plain_file from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a directory is told by ``open``
        os.close(descriptor)
        raise no_plain_file
    return descriptor


def open_unlinked(path: str, flags: int) -> int:
    """An opener for ``open`` that neither follows a link nor waits for the other end of a pipe, whatever has taken the
    file's place since it was looked at."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def state_of_file(path: str) -> str:
    """:attr:`FileStat.state` of one file; empty if that cannot be told."""
    try:
        return _file("", os.stat(path)).state
    except OSError:
        return ""


def _file(name: str, status: os.stat_result) -> FileStat:
    keeps_inode = not is_fuse(status.st_dev)
    return FileStat(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, keeps_inode)


@functools.lru_cache(maxsize=256)
def is_fuse(device: int) -> bool:
    """Whether a file system in user space is mounted there, as those over object stores are. They number inodes as they
    go: a file that has not been looked at for a while gets another number."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            lines = [line.split() for line in mounts]
    except OSError:
        return False
    kinds = [line[line.index("-") + 1] for line in lines if line[2] == wanted and "-" in line]
    return any(kind == "fuse" or kind.startswith("fuse.") for kind in kinds)


def _walk(root: str) -> Iterator[tuple[str | None, os.stat_result]]:
    """Files with their relative paths, and directories with None. A loop of links ends with the system's ELOOP."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        directory = os.path.join(root, prefix) if prefix else root
        yield None, os.stat(directory)
        with os.scandir(directory) as children:
            for child in children:
                if not is_looked_at(child.name):
                    continue
                if child.is_dir():
                    pending.append(f"{prefix}{child.name}/")
                else:
                    yield prefix + child.name, _stat_file(child.path)


def _stat_file(path: str) -> os.stat_result:
    """Pipes, sockets and devices are refused: reading one may block for ever."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise FileNotFoundError(errno.ENOENT, "it is a link that leads nowhere", path) from None
        raise
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", path)
    return status


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


MANIFEST_NAME = "tfs_lite.manifest.json"
MAX_MANIFEST_BYTES = 16 << 20
_FORMAT = 1
_CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def is_text(name: str) -> bool:
    """Whether a name on disk is UTF-8 text. Python has other bytes as halves of characters, which cannot be written to
    JSON, metrics, gRPC or a terminal; see :func:`tfs_lite.core.status.printable`."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins so is a bare pickle. It is no half of an archive, which begins as the whole does."""
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file as it was when the manifest was written.

    ``stamp`` names the very inode and its change time. A file that still carries it is the one that was hashed and
    synced by the publisher; a copy of it never does, and has to be hashed before it is trusted.
    """

    size: int
    sha256: str
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every file of a version by its path inside the version directory, with ``/`` between the parts."""

    files: Mapping[str, ManifestFile]

    def size_problem(self, sizes: Mapping[str, int]) -> str:
        """The reason why files of these sizes are not the published ones; empty when they are. More files do no harm,
        and litter is not missed."""
        for name, listed in sorted(self.files.items()):
            if not is_looked_at(name):
                continue
            found = sizes.get(name)
            if found is None:
                return f"manifest lists {name} with {listed.size} bytes, found no such file"
            if found != listed.size:
                return f"manifest lists {name} with {listed.size} bytes, found {found}"
        return ""

    def to_bytes(self) -> bytes:
        files = {
            name: {"size": file.size, "sha256": file.sha256, "stamp": file.stamp}
            for name, file in sorted(self.files.items())
        }
        return (json.dumps({"format": _FORMAT, "files": files}, indent=1) + "\n").encode()


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes; ServingError (INVALID_ARGUMENT) says what is wrong with them."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise invalid_argument(f"{MANIFEST_NAME} is not whole JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise invalid_argument(f"{MANIFEST_NAME}: expected an object with format {_FORMAT}")
    files = document.get("files")
    if not isinstance(files, dict) or not files:
        raise invalid_argument(f"{MANIFEST_NAME}: field files: expected an object with at least one file")
    return Manifest({name: _parse_file(name, entry) for name, entry in files.items()})


def _parse_file(name: str, entry: Any) -> ManifestFile:
    if name != str(PurePosixPath(name)) or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise invalid_argument(f"{MANIFEST_NAME}: file {name!r}: expected a path inside the version")
    if not isinstance(entry, dict):
        raise invalid_argument(f"{MANIFEST_NAME}: file {name!r}: expected an object")
    size, sha256, stamp = entry.get("size"), entry.get("sha256"), entry.get("stamp", "")
    if type(size) is not int or size < 0:
        raise invalid_argument(f"{MANIFEST_NAME}: file {name!r}: field size: expected a number of bytes, got {size!r}")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise invalid_argument(f"{MANIFEST_NAME}: file {name!r}: field sha256: expected 64 hexadecimal digits")
    if not isinstance(stamp, str):
        raise invalid_argument(f"{MANIFEST_NAME}: file {name!r}: field stamp: expected a string")
    return ManifestFile(size, sha256, stamp)


def sha256_of(
    file: BinaryIO, cancelled: Callable[[], bool] = lambda: False, on_read: Callable[[int], None] = ignore
) -> str:
    """Hexadecimal digest of what is left in the file. Looks at ``cancelled`` every MiB and then raises CANCELLED.
    ``on_read`` gets the number of bytes of each piece."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        if cancelled():
            raise ServingError(StatusCode.CANCELLED, "hashing was cancelled")
        digest.update(chunk)
        on_read(len(chunk))
    return digest.hexdigest()
