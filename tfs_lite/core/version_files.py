"""Which files of a version count, and the state that they are in.

    BASE/3/                     read_tree -> Tree -> fingerprint ┐
      model.pt2                 counts                           ├-> state_of: path, files, what the config names beside
      config.pbtxt              counts, as a config              ┘
      .model.pt2.x7Gh2k         says that a copy is in progress: a version waits for its end, and it is no part of it
      ._model.pt2, .DS_Store    litter, which no publisher writes: it is not looked at
      train.log                 is written beside a training: it is not looked at

Sources, loaders and whoever opens a version again compare states; publishing leaves the litter behind. These tables are
the only place that says which names are which.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

MODEL_SETTINGS_FILES = ("config.pbtxt", "config.yaml")
"""The names of a model's own config, in a version or beside its versions."""
MAX_FILES = 10_000
_LITTER = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found", "__pycache__", "@eadir", "$recycle.bin"})
"""In small letters. Besides: hidden files, and what editors leave (``model.py~``, ``#model.py#``)."""
_LOGS = re.compile(r".+\.log|events\.out\.tfevents\..+")
_COPYING_DIRECTORIES = frozenset({".~tmp~", ".rsync-partial", ".cache"})
"""Hidden directories in which rsync and the hub's client keep what has come so far."""
_PARTIAL = re.compile(r".+\.(part|partial|tmp|filepart|crdownload|incomplete)|\.(?!_|nfs).+\.[A-Za-z0-9]{6}|\.in\..+\.")
"""What copying tools call a file that is not whole: rsync's are ``.NAME.xxxxxx``."""


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


def file_stamp(inode: int, ctime_ns: int) -> str:
    return f"{inode}:{ctime_ns}"


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file by its path inside the version directory, ``/`` between the parts; links are followed."""

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def stamp(self) -> str:
        """Names the very inode and its change time; a copy of the file never has it."""
        return file_stamp(self.inode, self.ctime_ns)

    @property
    def state(self) -> str:
        """Differs whenever the contents may have changed."""
        return f"{self.size} {self.mtime_ns} {self.ctime_ns} {self.inode}"

    @property
    def is_partial(self) -> bool:
        return any(map(is_partial, self.name.split("/")))


@dataclass(frozen=True, slots=True)
class Tree:
    """All files below a directory that are looked at, sorted by name, at one moment.

    ``newest_ns`` is the latest time, since the epoch, at which anything in it changed: contents and inodes of files,
    entries of directories. ``changed_ns`` is the latest one of those that only the clock of the disk sets. ``device``
    tells disks apart. ``overflow``: there were more files than the caller wanted, and ``files`` is a part.
    """

    files: tuple[FileStat, ...]
    newest_ns: int
    overflow: bool = False
    changed_ns: int = 0
    device: int = 0

    @property
    def fingerprint(self) -> str:
        """Equal for two looks at the same unchanged files, and different whenever anything was changed."""
        return _digest(f"{file.name}\0{file.state}" for file in self.files)

    @property
    def version(self) -> Tree:
        """The files that make the version: without configs and without what is being copied."""
        return replace(self, files=tuple(f for f in self.files if not (f.is_partial or f.name in MODEL_SETTINGS_FILES)))

    @property
    def configs(self) -> Tree:
        """The configs alone."""
        return replace(self, files=tuple(file for file in self.files if file.name in MODEL_SETTINGS_FILES))

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


def have_same_configs(revision: str, other: str) -> bool:
    """Whether two revisions of a version differ in files alone, if at all."""
    return revision.partition("/")[2] == other.partition("/")[2]


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


def state_of_file(path: str) -> str:
    """:attr:`FileStat.state` of one file; empty if that cannot be told."""
    try:
        return _file("", os.stat(path)).state
    except OSError:
        return ""


def _file(name: str, status: os.stat_result) -> FileStat:
    return FileStat(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


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
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", path)
    return status


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]
