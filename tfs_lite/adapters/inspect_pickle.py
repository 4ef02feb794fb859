"""Reads a pickle without running it, and says whether all it does is build tensors and plain containers.

``torch.export.load`` unpickles the sample inputs of an archive, and falls back to the unrestricted unpickler when the
restricted one refuses. So the pickle itself is checked: only opcodes that build values, and only callables that
rebuild tensors. Everything else (any other import, a class's ``__setstate__``, extension codes) is unsafe.
"""

from __future__ import annotations

import io
import pickletools
import re

from tfs_lite.adapters.inspect_archive import damaged, open_archive, unsafe

MAX_PICKLE_BYTES = 16 << 20
_TENSOR_ARCHIVE = re.compile(
    r"data\.pkl|data/\d+|version|byteorder|\.format_version|\.storage_alignment|\.data/serialization_id"
)
_OPCODES = re.compile(
    "PROTO|STOP|MARK|POP|POP_MARK|NONE|NEWTRUE|NEWFALSE|INT|BININT|BININT1|BININT2|LONG|LONG1|FLOAT|BINFLOAT|UNICODE|"
    "BINUNICODE|SHORT_BINUNICODE|EMPTY_TUPLE|TUPLE|TUPLE1|TUPLE2|TUPLE3|EMPTY_LIST|LIST|APPEND|APPENDS|EMPTY_DICT|DICT|"
    "SETITEM|SETITEMS|GET|BINGET|LONG_BINGET|PUT|BINPUT|LONG_BINPUT|MEMOIZE|FRAME|GLOBAL|REDUCE|BINPERSID"
)
_GLOBALS = re.compile(
    r"collections OrderedDict"
    r"|torch\._utils (_rebuild_tensor_v2|_rebuild_tensor_v3|_rebuild_parameter)"
    r"|torch\._tensor _rebuild_from_type_v2"  # a tensor with attributes: Dim.DYNAMIC leaves one on the example inputs
    r"|torch (Tensor|Size|device|\w+Storage|float(16|32|64|8_\w+)|bfloat16|u?int\d+|bool|complex\d+)"
    r"|torch\.storage (UntypedStorage|TypedStorage)"
)


def check_tensor_pickle(data: bytes, name: str) -> None:
    """Checks what ``torch.save`` wrote. DATA_LOSS if it cannot be read, PERMISSION_DENIED if it is not plain data."""
    with open_archive(io.BytesIO(data), name) as archive:
        for member in archive.members:
            if not _TENSOR_ARCHIVE.fullmatch(member):
                raise unsafe(f"{name} holds {member!r:.80}, which is no tensor")
        check_pickle(archive.read("data.pkl", MAX_PICKLE_BYTES), name)


def check_pickle(data: bytes, name: str) -> None:
    """Checks one pickle stream, to its last byte."""
    end = 0
    try:
        for opcode, argument, position in pickletools.genops(data):
            end = (position or 0) + 1
            if not _OPCODES.fullmatch(opcode.name):
                raise unsafe(f"{name} holds a pickle that does more than build tensors ({opcode.name})")
            if opcode.name == "GLOBAL" and not _GLOBALS.fullmatch(str(argument)):
                raise unsafe(f"{name} holds a pickle that calls {str(argument).replace(' ', '.')!r:.80}")
    except (ValueError, IndexError, OverflowError):
        raise damaged(f"{name} holds a damaged pickle") from None
    if end != len(data):
        raise damaged(f"{name} holds a pickle with something behind it")
