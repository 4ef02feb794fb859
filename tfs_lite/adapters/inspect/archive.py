"""Looks at a zip archive before torch opens it. No torch here: what is wrong must show before anything is run.

torch reads TorchScript archives with a parser of its own. The checks of the frame are therefore strict: what could be
read in two ways (a second directory, overlapping members, data before or after the archive) is refused, so that what
was inspected is what torch reads. Contents are checked against their checksums, which torch does not do, in pieces that
let other threads run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tfs_lite.core.loader import LoadMeter, LoadPhase
from tfs_lite.core.manifest import is_pickle
from tfs_lite.core.status import Reason, ServingError, StatusCode

MAX_MEMBERS = 100_000
MAX_RATIO = 100
MAX_TEXT_BYTES = 512 << 20
FRAME = r"version|byteorder|archive_format|archive_version|\.format_version|\.storage_alignment|\.data/\w+|extra/.*"
"""A pattern of the members that torch puts into archives of every kind."""
_CHUNK = 1 << 20
_PIECE = 1 << 18
"""Bytes, a fifth of a millisecond, for those who let others have the processor in between."""
_END, _LOCATOR, _END64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"
_END_SIZE, _LOCATOR_SIZE, _END64_SIZE = 22, 20, 56
_LOCAL_HEADER_SIZE, _LOCAL_LENGTHS_AT = 30, 26
_ENCRYPTED = 0x1
PICKLE = "data.pkl"
"""The member of a module or a state_dict as torch.save writes them, and of TorchScript, which has all it needs."""
SCRIPT_CONSTANTS = "constants.pkl"
"""A member of every TorchScript archive."""
PROGRAM = "models/model.json"
"""The member of an exported program that says what is computed."""
_ZIP64_EXTRA = 1
_ZIP32_LIMIT = 0xFFFFFFFF
_PLAIN_NAME = re.compile(r"[^\x00-\x1f\\]+")


def damaged(what: str) -> ServingError:
    """The error for a file that is truncated, damaged or of another type. Copying it again may help."""
    return ServingError(StatusCode.DATA_LOSS, what)


def changed_meanwhile(what: str) -> ServingError:
    """The error for files that become other ones in the middle of a load, which is tried again."""
    what = f"its files changed while they were read ({what})"
    return ServingError(StatusCode.UNAVAILABLE, what, Reason.FILES_CHANGED)


def pickled(name: str) -> ServingError:
    """The error for what torch.save writes: as a zip archive, or as a bare pickle."""
    return damaged(
        f"{name} is a pickle that torch.save wrote, which is never loaded: write the model with tfs_lite.save or "
        "torch.export.save"
    )


def unsafe(what: str) -> ServingError:
    """The error for a file that could run code or touch the machine when it is loaded. It needs the operator's
    trust."""
    return ServingError(
        StatusCode.PERMISSION_DENIED, f"{what}; such a file is loaded only from below --trusted_model_base_paths"
    )


@dataclass(frozen=True, slots=True)
class Archive:
    """An open archive. Members go by their name below the archive's one root directory. ``meter`` counts what is read
    in pieces. One thread at a time."""

    name: str
    root: str
    members: Mapping[str, zipfile.ZipInfo]
    _zip: zipfile.ZipFile
    _file: io.BufferedIOBase
    meter: LoadMeter = field(default_factory=LoadMeter)

    def read(self, member: str, limit: int = MAX_TEXT_BYTES) -> bytes:
        """The whole member. DATA_LOSS if it is missing, damaged or larger than ``limit``."""
        info = self._find(member)
        if info.file_size > limit:
            raise damaged(f"{member} in {self.name} has {info.file_size} bytes, at most {limit} are allowed")
        with _zip_errors(self.name), self._zip.open(info) as file:
            return file.read()

    def size(self, member: str) -> int:
        """Bytes of the member, unpacked. DATA_LOSS if it is missing."""
        return self._find(member).file_size

    def read_into(self, member: str, target: memoryview, yielder: Callable[[], None]) -> None:
        """Fills ``target``, which has the member's size, in pieces that let other threads run; ``yielder`` is called
        after each of them. DATA_LOSS if the member is missing or damaged."""
        info = self._find(member)
        with _zip_errors(self.name):
            if info.compress_type == zipfile.ZIP_STORED:
                self._read_stored(info, target, yielder)
            else:
                self._unpack(info, target, yielder)

    def _read_stored(self, info: zipfile.ZipInfo, target: memoryview, yielder: Callable[[], None]) -> None:
        """Reads a member straight from the file, without a copy in between."""
        self._zip.open(info).close()  # compares the member's own header with the directory
        self._file.seek(info.header_offset + _LOCAL_LENGTHS_AT)
        self._file.seek(sum(struct.unpack("<HH", self._file.read(4))), os.SEEK_CUR)
        checksum = filled = 0
        while filled < len(target):
            with target[filled : filled + _PIECE] as piece:
                count = self._file.readinto(piece)
                checksum = zlib.crc32(piece[:count], checksum)
            if not count:
                raise zipfile.BadZipFile("its end is missing")
            filled += count
            self.meter.add(count)
            yielder()
        if checksum != info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {info.filename!r}")

    def _unpack(self, info: zipfile.ZipInfo, target: memoryview, yielder: Callable[[], None]) -> None:
        filled = 0
        with self._zip.open(info) as file:
            while piece := file.read(_PIECE):
                target[filled : filled + len(piece)] = piece
                filled += len(piece)
                self.meter.add(len(piece))
                yielder()

    def _find(self, member: str) -> zipfile.ZipInfo:
        info = self.members.get(member)
        if info is None and SCRIPT_CONSTANTS in self.members:
            raise damaged(f"{self.name} is TorchScript: call it model.pt, or export the model anew with tfs_lite.save")
        if info is None and PICKLE in self.members:
            raise pickled(self.name)
        if info is None:
            raise damaged(f"{self.name} has no {member}: it is incomplete, or no archive of this kind")
        return info

    def verify_checksums(self) -> None:
        """Raises DATA_LOSS if any member differs from its checksum."""
        self.meter.begin(LoadPhase.CHECKING, sum(info.file_size for info in self.members.values()))
        with _zip_errors(self.name):
            for info in self.members.values():
                with self._zip.open(info) as file:
                    while piece := file.read(_CHUNK):
                        self.meter.add(len(piece))


@contextlib.contextmanager
def open_archive(source: str | io.BufferedIOBase, name: str, meter: LoadMeter | None = None) -> Iterator[Archive]:
    """Opens a file, or an archive inside another one, whose frame is sound; ``name`` is what messages call it.
    ``meter`` is told of what is read.

    DATA_LOSS if it is truncated or no archive, PERMISSION_DENIED if its frame is ambiguous.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(source, "rb")) if isinstance(source, str) else source
        with _zip_errors(name):
            _check_end(file, name)
            archive = stack.enter_context(zipfile.ZipFile(file))
            infos = archive.infolist()
        _check_members(infos, name)
        _check_layout(infos, archive.start_dir, name)
        root, members = _strip_root(infos, name)
        yield Archive(name, root, members, archive, file, meter or LoadMeter())


def check_members(archive: Archive, expected: re.Pattern[str]) -> None:
    """Raises PERMISSION_DENIED if there is a member of another name."""
    for member in archive.members:
        if not expected.fullmatch(member):
            raise unsafe(f"{archive.name} holds {member!r:.80}, which torch does not put there")


@contextlib.contextmanager
def _zip_errors(name: str) -> Iterator[None]:
    """Turns every error of the zip reader into DATA_LOSS."""
    try:
        yield
    except (ServingError, FileNotFoundError):
        raise
    except Exception as error:
        reason = f": {error!s:.200}" if isinstance(error, zipfile.BadZipFile) else ""
        raise damaged(f"{name} is truncated or damaged{reason}") from None


def _check_end(file: io.BufferedIOBase, name: str) -> None:
    """The closing records must be the last bytes of the file and follow the directory without a gap."""
    file.seek(0)
    if is_pickle(file.read(2)):
        raise pickled(name)
    size = file.seek(0, os.SEEK_END)
    tail_size = min(size, _END_SIZE + _LOCATOR_SIZE + _END64_SIZE)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    end = tail[-_END_SIZE:]
    if len(end) < _END_SIZE or not end.startswith(_END) or end[-2:] != b"\0\0":
        raise damaged(f"{name} is truncated or no zip archive: its directory is not at its end")
    length, offset = struct.unpack_from("<II", end, 12)
    directory_end = size - _END_SIZE
    locator = tail[-_END_SIZE - _LOCATOR_SIZE : -_END_SIZE]
    if locator.startswith(_LOCATOR):
        directory_end -= _LOCATOR_SIZE + _END64_SIZE
        record = tail[:_END64_SIZE]
        if struct.unpack_from("<Q", locator, 8)[0] != directory_end or not record.startswith(_END64):
            raise unsafe(f"{name} has two directories")
        length, offset = struct.unpack_from("<QQ", record, 40)
    if offset + length != directory_end:
        raise damaged(f"{name} is truncated or damaged: its directory is not where it says")


def _check_members(infos: list[zipfile.ZipInfo], name: str) -> None:
    if not infos:
        raise damaged(f"{name} is an empty archive")
    if len(infos) > MAX_MEMBERS:
        raise unsafe(f"{name} has {len(infos)} members, more than {MAX_MEMBERS}")
    seen = set[str]()
    for info in infos:
        _check_name(info, name, seen)
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise unsafe(f"{_member(info)} in {name} is encrypted, or compressed in a way that torch does not use")
        if info.file_size > MAX_RATIO * info.compress_size:
            raise unsafe(f"{_member(info)} in {name} would unpack to {info.file_size} bytes")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise damaged(f"{_member(info)} in {name} has two sizes")


def _check_name(info: zipfile.ZipInfo, name: str, seen: set[str]) -> None:
    member = info.orig_filename
    parts = member.split("/")
    if not _PLAIN_NAME.fullmatch(member) or ".." in parts or "" in parts:
        raise unsafe(f"{name} has a member called {_member(info)}")
    if member in seen:
        raise unsafe(f"{name} has two members called {_member(info)}")
    seen.add(member)


def _check_layout(infos: list[zipfile.ZipInfo], directory: int, name: str) -> None:
    """Members lie one after the other from the first byte to the directory, and none inside another."""
    free = 0
    ordered = sorted(infos, key=lambda info: info.header_offset)
    if ordered[0].header_offset != 0:
        raise unsafe(f"{name} does not begin with a member")
    for info in ordered:
        if info.header_offset < free:
            raise unsafe(f"{_member(info)} in {name} overlaps another member")
        free = info.header_offset + _LOCAL_HEADER_SIZE + len(info.orig_filename.encode()) + info.compress_size
        if directory < _ZIP32_LIMIT and _has_zip64_extra(info.extra):
            raise unsafe(f"{_member(info)} in {name} has two sizes")
    if free > directory:
        raise damaged(f"{name} is truncated or damaged: its members reach into its directory")


def _has_zip64_extra(extra: bytes) -> bool:
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == _ZIP64_EXTRA:
            return True
        extra = extra[4 + length :]
    return False


def _strip_root(infos: list[zipfile.ZipInfo], name: str) -> tuple[str, dict[str, zipfile.ZipInfo]]:
    root = infos[0].filename.partition("/")[0]
    members = {}
    for info in infos:
        first, _, rest = info.filename.partition("/")
        if first != root or not rest:
            raise damaged(f"{name} was not written by torch: its members are not in one directory")
        members[rest] = info
    return root, members


def _member(info: zipfile.ZipInfo) -> str:
    return repr(info.orig_filename[:80])
