"""The check of what is inside ``model.pt``: the members that ``torch.jit.save`` writes, and scripts that only compute.

Every archive must be whole: a sound frame, and every member as its checksum says.
"""

from __future__ import annotations

import re

from tfs_lite.adapters.inspect.archive import (
    FRAME,
    PICKLE,
    PROGRAM,
    SCRIPT_CONSTANTS,
    check_members,
    damaged,
    open_archive,
    pickled,
    unsafe,
)
from tfs_lite.core.loader import LoadMeter

_SCRIPT = re.compile(rf"{FRAME}|(data|constants|traced_inputs)(\.pkl|/\d+)|code/.*")
_SCRIPT_CODE = re.compile(r"code/.*\.py")
_GETATTR = re.compile(rb'getattr\s*\([^"\']*,\s*"([^"\\]*)"\s*\)')
_TOUCHES_FILES = re.compile(rb"\.(\s|#[^\n]*\n)*(save|from_file|read_file|write_file)\b")


def inspect_script(path: str, name: str, trusted: bool, meter: LoadMeter | None = None) -> None:
    """Checks what ``torch.jit.save`` wrote. Scripts are no Python, but a few of their functions write files."""
    with open_archive(path, name, meter) as archive:
        if SCRIPT_CONSTANTS not in archive.members:
            if PROGRAM in archive.members:
                raise damaged(f"{name} is an exported program: call it model.pt2")
            if PICKLE in archive.members:
                raise pickled(name)
            raise damaged(f"{name} is no TorchScript archive; weights alone cannot be served")
        archive.verify_checksums()
        if trusted:
            return
        check_members(archive, _SCRIPT)
        for member in archive.members:
            if _SCRIPT_CODE.fullmatch(member):
                _check_script(archive.read(member), name)


def _check_script(code: bytes, name: str) -> None:
    """Scripts reach torch's functions as attributes, or by ``getattr`` with a plain text."""
    plain = _GETATTR.sub(rb".\1", code)
    if b"getattr" in plain or _TOUCHES_FILES.search(plain):
        raise unsafe(f"{name} contains a script that may read or write files")
