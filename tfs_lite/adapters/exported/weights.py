"""Reads the weights of a ``.pt2`` archive without holding up the rest of the process.

torch's own reader copies a member inside one call that keeps Python's global lock: 200 MB of weights are a fifth of a
second in which no request of any model is answered. This one reads in pieces, which releases the lock, into one mapping
of the version's own. Dropping the tensors returns it to the system, or keeps it for the next version,
while freed pieces of the heap would stay with the process. Huge pages are not asked for: a virtual machine whose host
takes back what is free stands still for milliseconds while it gets one. The file itself is not mapped: a mapped file
that is truncated in place ends the process that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from tfs_lite.adapters.exported.arguments import DTYPES
from tfs_lite.adapters.exported.document import CONSTANTS, WEIGHTS, ProgramDocument
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.inspect.archive import Archive, damaged
from tfs_lite.adapters.spare import SPARE
from tfs_lite.core.loader import LoadPhase
from tfs_lite.core.yielding import Yielder

_STRIDED = 7
_ALIGNMENT = 64
"""Bytes, as torch aligns its own tensors."""


def read_members(archive: Archive, members: Collection[str]) -> dict[str, memoryview]:
    """The bytes of members in memory that may be written to, one mapping for all of them: it is given back when the
    last of them is dropped, or kept. DATA_LOSS if one is missing or damaged."""
    places, size = dict[str, int](), 0
    for member in members:
        places[member] = size
        size += -(-archive.size(member) // _ALIGNMENT) * _ALIGNMENT
    view, found, yielder = SPARE.map(max(size, 1)).data, dict[str, memoryview](), Yielder()
    for member, place in places.items():
        found[member] = view[place : place + archive.size(member)]
        archive.read_into(member, found[member], yielder)
    return found


def read_weights(
    archive: Archive, document: ProgramDocument, wanted: Collection[str], move: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors ``wanted``, each called by its directory in the archive and its name. Tensors that share bytes in the
    file share memory here; ``move`` takes the bytes of each member to the device. DATA_LOSS if one is missing or lies
    outside of its bytes."""
    entries = {
        directory + name: (directory, entry)
        for directory, listed in ((WEIGHTS, document.weights), (CONSTANTS, document.constants))
        for name, entry in listed.items()
        if directory + name in wanted
    }
    if missing := set(wanted) - set(entries):
        raise damaged(f"{document.file} has no data for {_shown(min(missing))}")
    members = {name: directory + entry["path_name"] for name, (directory, entry) in entries.items()}
    dtypes = _dtypes({name: entry for name, (_, entry) in entries.items()}, members)
    distinct = set(members.values())
    archive.meter.begin(LoadPhase.READING, sum(map(archive.size, distinct)))
    contents = read_members(archive, distinct)
    archive.meter.begin(LoadPhase.OPENING)
    payloads = {member: move(_flat(archive, member, contents.pop(member), dtypes[member])) for member in dtypes}
    return {name: _strided(archive, name, payloads[members[name]], entry) for name, (_, entry) in entries.items()}


def _dtypes(entries: Mapping[str, Mapping[str, Any]], members: Mapping[str, str]) -> dict[str, torch.dtype]:
    """The dtype of each member. UnsupportedProgram for a tensor that is no plain bytes of one type."""
    dtypes = dict[str, torch.dtype]()
    for name, entry in entries.items():
        meta = entry["tensor_meta"]
        dtype = None if entry["use_pickle"] is not False or meta is None else DTYPES.get(meta["dtype"])
        if dtype is None or meta["layout"] != _STRIDED:
            raise UnsupportedProgram(f"{_shown(name)} is no dense tensor of a known type")
        if dtypes.setdefault(members[name], dtype) is not dtype:
            raise UnsupportedProgram(f"{_shown(name)} shares its bytes with a tensor of another type")
    return dtypes


def _flat(archive: Archive, member: str, content: memoryview, dtype: torch.dtype) -> torch.Tensor:
    if len(content) % dtype.itemsize:
        raise damaged(f"{member} in {archive.name} has {len(content)} bytes, which is no whole number of {dtype}")
    return torch.frombuffer(content, dtype=dtype) if len(content) else torch.empty(0, dtype=dtype)


def _strided(archive: Archive, name: str, payload: torch.Tensor, entry: Mapping[str, Any]) -> torch.Tensor:
    """A parameter stays one, with its gradient flag: ``matmul`` chooses by it in which order it adds."""
    meta, learns = entry["tensor_meta"], entry["tensor_meta"]["requires_grad"] is True
    sizes, strides, offset = _numbers(meta["sizes"]), _numbers(meta["strides"]), _numbers([meta["storage_offset"]])
    try:
        if entry["is_param"] is True:
            return torch.nn.Parameter(torch.as_strided(payload, sizes, strides, *offset), requires_grad=learns)
        return torch.as_strided(payload.requires_grad_(learns), sizes, strides, *offset)
    except (RuntimeError, OverflowError, TypeError):
        raise damaged(f"{archive.name} has no sound tensor {_shown(name)}") from None


def _shown(name: str) -> str:
    return repr(name.rpartition("/")[2][:80])


def _numbers(sizes: list[Mapping[str, Any]]) -> list[int]:
    numbers = [size["as_int"] for size in sizes]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise UnsupportedProgram("a weight has a size that is no number")
    return numbers
