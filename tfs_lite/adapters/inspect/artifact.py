"""What may be inside ``model.pt2`` and ``model.pt``: the members that torch writes, and nothing else.

Every archive must be whole: sound frame, every member as its checksum says. Unless the operator trusts the path, it
must also be harmless: no pickle that torch would open, no native code, no graph or script that reaches beyond tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfs_lite.adapters.inspect.archive import Archive, damaged, open_archive, unsafe
from tfs_lite.adapters.inspect.program import check_payload, check_program

COMPILED = "data/aotinductor/"
_PROGRAM = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"
_WEIGHTS = "data/weights/model_weights_config.json"
_CONSTANTS = "data/constants/model_constants_config.json"
_OLD_PROGRAM = re.compile(r"(.*/)?serialized_(exported_program\.json|state_dict\.pt)")
_FRAME = r"version|byteorder|archive_format|archive_version|\.format_version|\.storage_alignment|\.data/\w+|extra/.*"
_EXPORTED = re.compile(
    rf"{_FRAME}|{re.escape(_PROGRAM)}|{re.escape(SAMPLES)}|{re.escape(_WEIGHTS)}|{re.escape(_CONSTANTS)}"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+"
)
_SCRIPT = re.compile(rf"{_FRAME}|(data|constants|traced_inputs)(\.pkl|/\d+)|code/.*")
_SCRIPT_CODE = re.compile(r"code/.*\.py")
_GETATTR = re.compile(rb'getattr\s*\([^"\']*,\s*"([^"\\]*)"\s*\)')
_TOUCHES_FILES = re.compile(rb"\.(\s|#[^\n]*\n)*(save|from_file|read_file|write_file)\b")


def inspect_exported(path: str, name: str, trusted: bool) -> None:
    """Checks all that ``torch.export.save`` wrote. DATA_LOSS if it is damaged, PERMISSION_DENIED if it is unsafe."""
    with open_archive(path, name) as archive:
        archive.verify_checksums()
        check_exported(archive, trusted)


def check_exported(archive: Archive, trusted: bool) -> None:
    """The same without the checksums of the weights, for callers that read the weights next."""
    if any(_OLD_PROGRAM.fullmatch(member) for member in archive.members):
        raise damaged(f"{archive.name} was written by a torch that is too old: export the model again")
    if archive.read("archive_format", 16) != b"pt2":
        raise damaged(f"{archive.name} is no archive of torch.export.save")
    if trusted:
        return
    _check_members(archive, _EXPORTED)
    check_program(archive.read(_PROGRAM), archive.name)
    check_payload(archive.read(_WEIGHTS), archive.name, "weight_", _sizes(archive, "data/weights/"))
    check_payload(archive.read(_CONSTANTS), archive.name, "tensor_", _sizes(archive, "data/constants/"))


def inspect_script(path: str, name: str, trusted: bool) -> None:
    """Checks what ``torch.jit.save`` wrote. Scripts are no Python, but a few of their functions write files."""
    with open_archive(path, name) as archive:
        if "constants.pkl" not in archive.members:
            raise damaged(f"{name} is no TorchScript archive; weights alone cannot be served")
        archive.verify_checksums()
        if trusted:
            return
        _check_members(archive, _SCRIPT)
        for member in archive.members:
            if _SCRIPT_CODE.fullmatch(member):
                _check_script(archive.read(member), name)


def _check_script(code: bytes, name: str) -> None:
    """Scripts reach torch's functions as attributes, or by ``getattr`` with a plain text."""
    plain = _GETATTR.sub(rb".\1", code)
    if b"getattr" in plain or _TOUCHES_FILES.search(plain):
        raise unsafe(f"{name} contains a script that may read or write files")


def _check_members(archive: Archive, expected: re.Pattern[str]) -> None:
    for member in archive.members:
        if not expected.fullmatch(member):
            raise unsafe(f"{archive.name} holds {member!r:.80}, which torch does not put there")


def _sizes(archive: Archive, directory: str) -> Mapping[str, int]:
    return {
        member.removeprefix(directory): info.file_size
        for member, info in archive.members.items()
        if member.startswith(directory)
    }
