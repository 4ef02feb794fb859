"""How a version lies on disk: the name of its directory, and the manifest that says when it is all there.

A version is a directory whose name is a decimal number. A manifest inside it lists every file with size and digest,
so that a reader can tell a finished version from one that is still being copied. Publishing writes manifests,
sources check them; both import this module.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.core.version_files import is_looked_at

MANIFEST_NAME = "tfs_lite.manifest.json"
MAX_MANIFEST_BYTES = 16 << 20
_FORMAT = 1
_CHUNK = 1 << 20
_DECIMAL = re.compile(r"[0-9]+", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def parse_version(name: str) -> int | None:
    """The version a directory of this name holds, or None. Leading zeros count; more than int64 does not."""
    if len(name) > 255 or not _DECIMAL.fullmatch(name):
        return None
    number = int(name)
    return number if number <= MAX_VERSION else None


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
        """Why files of these sizes are not what was published; empty when they are. More files do no harm, and what is
        not looked at is not missed."""
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
