"""Decodes the header blocks of one connection (RFC 7541).

A client sends the same fields with every request, so there are two fast paths. A block that is repeated while the
dynamic table is unchanged costs one lookup in a dict. Clients that put a changing ``grpc-timeout`` into the table never
repeat a block: the loop here decodes the usual representations, a byte or two each, by indexing.

The static table and the Huffman code are those of ``hpack``, whose Huffman decoder is as strict as the RFC. Its block
decoder is not used: it copies the rest of the block for every literal, which a client could make expensive, and it
accepts any number of table size updates. Nor is its dynamic table, which writes a debug log for every field.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from tfs_lite.transport.http2.errors import ConnectionFault, ErrorCode
from tfs_lite.transport.remembered import Remembered

T = TypeVar("T")
Field: TypeAlias = tuple[bytes, bytes]
Fields: TypeAlias = tuple[Field, ...]

FIELD_OVERHEAD = 32
"""Bytes added to the name and value in the size of a field, in tables and lists."""
BOMB = 16
"""A list more than so many times too large ends the connection."""
DEFAULT_TABLE = 4096
MAX_REMEMBERED = 64
MAX_REMEMBERED_BLOCK = 1024
MAX_REMEMBERED_LIST = 4096
"""A short block may refer to large fields of the table."""
MAX_SIZE_UPDATES = 2
"""Table size updates that a block may begin with (section 4.2): the smallest size since the last block, and the one
that holds."""
MAX_CONTINUATION = 5
"""Bytes of an integer after its prefix; 2**35 is far beyond everything that is counted here."""

_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_DYNAMIC = len(_STATIC)
"""The index of the newest field of the dynamic table."""


class DynamicTable:
    """Fields that the client has sent and may refer to (sections 2.3.2 and 4); ``entries`` has the newest first."""

    __slots__ = ("_max_size", "_size", "entries")

    def __init__(self, max_size: int) -> None:
        self.entries: deque[Field] = deque()
        self._max_size = max_size
        self._size = 0

    def add(self, field: Field) -> None:
        """Adds a field, for which older ones may have to go: all of them if it is larger than the table."""
        self.entries.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        if self._size > self._max_size:
            self._evict()

    def resize(self, max_size: int) -> None:
        self._max_size = max_size
        self._evict()

    def _evict(self) -> None:
        while self._size > self._max_size:
            name, value = self.entries.pop()
            self._size -= len(name) + len(value) + FIELD_OVERHEAD


class BlockReader(Generic[T]):
    """Reads the header blocks of one connection: every block that arrives must go through it, in order. One thread.

    ``parse`` turns the fields into the owner's value; it gets None for a list of more than ``max_header_list`` bytes
    (counted as in RFC 9113, section 6.5.2). It must not raise, and its result must not be changed, since an equal block
    gets it again. ``table_size`` is the SETTINGS_HEADER_TABLE_SIZE that was sent to the client.

    After a ConnectionFault the reader cannot be used any more. COMPRESSION_ERROR: the block breaks RFC 7541.
    ENHANCE_YOUR_CALM, kind ``header_bomb``: decoded it is more than 16 times ``max_header_list``.
    """

    __slots__ = ("_changed", "_max_list", "_parse", "_remembered", "_size", "_table", "_table_size")

    def __init__(
        self, parse: Callable[[Fields | None], T], max_header_list: int, table_size: int = DEFAULT_TABLE
    ) -> None:
        self._parse = parse
        self._max_list = max_header_list
        self._table_size = table_size
        self._table = DynamicTable(table_size)
        self._changed = False
        self._size = 0
        """The size of the last header list, in bytes."""
        self._remembered = Remembered[bytes, T](MAX_REMEMBERED)

    def read(self, block: bytes) -> T:
        """The result of ``parse`` for the block. Equal blocks may get the same object."""
        remembered = self._remembered
        if block in remembered:
            return remembered[block]
        parsed = self._parse(self.read_fields(block))
        if not self._changed and len(block) <= MAX_REMEMBERED_BLOCK and self._size <= MAX_REMEMBERED_LIST:
            remembered.add(block, parsed)
        return parsed

    def read_fields(self, block: bytes) -> Fields | None:
        """The fields of a block without ``parse``, and without keeping them; None as for ``parse``."""
        self._changed = False
        try:
            fields = self._decode(block)
        except IndexError:
            raise _fault("a header block that is cut short, or an index beyond the table") from None
        except HPACKDecodingError:
            raise _fault("a bad Huffman code in a header block") from None
        if self._changed and self._remembered:
            self._remembered.clear()
        return fields

    def _decode(self, block: bytes) -> Fields | None:
        """Leaves the table right even if the list is too large."""
        table = self._table
        entries = table.entries
        fields: list[Field] = []
        total, max_list = 0, self._max_list
        end = len(block)
        at = self._size_updates(block)
        while at < end:
            first = block[at]
            if first >= 0x80:
                index = first & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                if index >= _DYNAMIC:
                    field = entries[index - _DYNAMIC]
                elif index:
                    field = _STATIC[index]
                else:
                    raise _fault("index 0 in a header block")
            elif first >= 0x40:
                field, at = self._literal(block, at, 0x3F)
                table.add(field)
                self._changed = True
            elif first < 0x20:
                field, at = self._literal(block, at, 0x0F)
            else:
                raise _fault("a table size update behind the start of a header block")
            total += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
            if total <= max_list:
                fields.append(field)
            elif total > max_list * BOMB:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header list far too large", "header_bomb")
        self._size = total
        return tuple(fields) if total <= max_list else None

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        """The field at ``at``, and where the next one begins. ``mask``: the bits of the name's index."""
        index = block[at] & mask
        at += 1
        if index == mask:
            index, at = _integer(block, at, mask)
        if not index:
            name, at = _string(block, at)
        elif index < _DYNAMIC:
            name = _STATIC[index][0]
        else:
            name = self._table.entries[index - _DYNAMIC][0]
        value, at = _string(block, at)
        return (name, value), at

    def _size_updates(self, block: bytes) -> int:
        """Applies the table size updates at the start of the block. Returns where its fields begin."""
        at = updates = 0
        while at < len(block) and block[at] & 0xE0 == 0x20:
            size = block[at] & 0x1F
            at += 1
            if size == 0x1F:
                size, at = _integer(block, at, 0x1F)
            updates += 1
            if size > self._table_size or updates > MAX_SIZE_UPDATES:
                raise _fault("a table size update beyond the limit")
            self._table.resize(size)
            self._changed = True
        return at


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """The integer that continues at ``at`` after a prefix of all ones (``value``), and where it ends (section 5.1)."""
    for shift in range(0, 7 * MAX_CONTINUATION, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _fault("an integer in a header block that is too long")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """The string at ``at``, and where it ends (section 5.2)."""
    length = block[at]
    at += 1
    huffman = length >= 0x80
    length &= 0x7F
    if length == 0x7F:
        length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise _fault("a header block that is cut short")
    text = block[at:end]
    return (decode_huffman(text) if huffman else text), end


def _fault(why: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.COMPRESSION_ERROR, why)
