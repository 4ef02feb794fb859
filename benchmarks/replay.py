"""gRPC calls as a stock client writes them, at a fraction of its price: frames are made before, answers are told apart
by one regular expression.

:class:`ReplayConnection` writes what gRPC's C core writes: a header block with every field by its number in the dynamic
table, ``grpc-timeout`` as a literal that goes into the table unless one much like it was sent lately, a WINDOW_UPDATE
for the stream, the message in one DATA frame. (``connections.GrpcConnection`` sends literals that never change.) Every
answer must have status 0 and the size that is expected; another size is WRONG_SIZE.

    connection = ReplayConnection(port, PREDICT, messages, sizes, timeouts_of("varying"))
    tally = closed_loop([connection], streams=8, seconds=3, pick=cycle(len(messages)))
"""

from __future__ import annotations

import math
import random
import re
from collections import deque
from collections.abc import Callable, Sequence

import connections
from connections import (
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    PREFACE,
    READ_BYTES,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Answer,
    GrpcConnection,
    ProtocolError,
    frame,
    literal,
)
from hpack import Decoder
from load import cycle

WRONG_SIZE = 2000
"""The code of an answer with status 0 and another size than expected."""
STREAM_WINDOW = 4 << 20
"""As the core has it. Answers here are smaller; it is never widened but by the core's five bytes for every call."""
TABLE_SIZE = 4096
OVERHEAD = 32
"""Of an entry in the dynamic table, besides its name and value."""
FIRST_INDEX = 62
POST_HTTP = b"\x83\x86"
FIELDS = (("content-type", "application/grpc"), ("te", "trailers"), ("grpc-accept-encoding", "identity, deflate, gzip"))
USER_AGENT = ("user-agent", "grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)")
NONE, FIXED, VARYING = "none", "fixed", "varying"
TIMEOUTS = (NONE, FIXED, VARYING)
SHORTEST, LONGEST = 5.0, 60.0
"""Seconds of the varying ones: long enough that none passes here."""
REMEMBERED = 5
"""Timeouts that the core looks back at, and takes again if the new one is at most so much (percent) shorter."""
NEAR_PERCENT = 3.0
Timeout = Callable[[], float | None]


def timeouts_of(kind: str, seed: int = 1) -> Timeout:
    """Seconds of each call's deadline, or None; ``fixed`` is a minute."""
    if kind != VARYING:
        seconds = LONGEST if kind == FIXED else None
        return lambda: seconds
    draw = random.Random(seed)
    drawn = [draw.uniform(SHORTEST, LONGEST) for _ in range(4999)]
    numbers = cycle(len(drawn))
    return lambda: drawn[numbers()]


def timeout_text(seconds: float) -> str:
    """As the core writes it: up to a thousand steps of a power of ten, rounded up, in the largest unit that fits."""
    milliseconds = seconds * 1000
    step = 10 ** max(0, math.ceil(math.log10(milliseconds / 1000))) if milliseconds > 1000 else 1
    whole = math.ceil(milliseconds / step) * step
    if whole % 60_000 == 0:
        return f"{whole // 60_000}M"
    return f"{whole // 1000}S" if whole % 1000 == 0 else f"{whole}m"


class _Entry:
    """A field that goes into the table. ``number`` entries and ``start`` bytes had gone in before it."""

    __slots__ = ("number", "size", "start", "text")

    def __init__(self, name: str, value: str) -> None:
        self.text = b"\x40" + literal(name, value)[1:]
        self.size = len(name) + len(value) + OVERHEAD
        self.number, self.start = 0, -TABLE_SIZE - 1


class CoreHeaders:
    """The header blocks of one connection's calls of one method, in the order in which they are sent."""

    def __init__(self, path: str, authority: str) -> None:
        self._first = [_Entry(":path", path), _Entry(":authority", authority)]
        self._rest = [_Entry(*field) for field in FIELDS]
        self._agent = _Entry(*USER_AGENT)
        self._timeouts: deque[tuple[float, _Entry]] = deque(maxlen=REMEMBERED)
        self._entries = self._bytes = 0
        self._same: dict[float | None, bytes] = {}
        """Blocks that changed nothing, until one does."""

    def block(self, seconds: float | None) -> bytes:
        found = self._same.get(seconds)
        if found is not None:
            return found
        entries = self._entries
        pieces = [self._piece(entry) for entry in self._first]
        pieces.append(POST_HTTP)
        pieces += [self._piece(entry) for entry in self._rest]
        if seconds is not None:
            pieces.append(self._piece(self._timeout(seconds)))
        pieces.append(self._piece(self._agent))
        block = b"".join(pieces)
        if self._entries == entries:
            self._same[seconds] = block
        elif self._same:
            self._same.clear()
        return block

    def _piece(self, entry: _Entry) -> bytes:
        if self._bytes - entry.start <= TABLE_SIZE:
            index = FIRST_INDEX - 1 + self._entries - entry.number
            return bytes((0x80 | index,)) if index < 127 else bytes((0xFF, index - 127))
        entry.number, entry.start = self._entries, self._bytes
        self._entries += 1
        self._bytes += entry.size
        return entry.text

    def _timeout(self, seconds: float) -> _Entry:
        for sent, entry in self._timeouts:
            if self._bytes - entry.start <= TABLE_SIZE and -NEAR_PERCENT < (seconds / sent - 1) * 100 <= 0:
                return entry
        entry = _Entry("grpc-timeout", timeout_text(seconds))
        self._timeouts.append((seconds, entry))
        return entry


class ReplayConnection(GrpcConnection):
    """Unary calls of one method; ``sizes`` are those of the right answers, in bytes, by message. ``timeouts`` gives
    each call's deadline. The server may use its header table as it likes."""

    def __init__(
        self, port: int, path: str, messages: Sequence[bytes], sizes: Sequence[int], timeouts: Timeout = lambda: None
    ) -> None:
        super().__init__(port, path, messages)
        settings = ((ENABLE_PUSH, 0), (INITIAL_WINDOW, STREAM_WINDOW))
        pairs = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings)
        self.out[0] = PREFACE + frame(SETTINGS, 0, 0, pairs)
        self._headers = CoreHeaders(path, f"127.0.0.1:{port}")
        self._sizes, self._timeouts = sizes, timeouts
        self._update_head = frame(WINDOW_UPDATE, 0, 0, bytes(4))[:5]
        self._decoder = Decoder()
        self._known: dict[bytes, int] = {}
        """Blocks that change nothing in the table, and the gRPC status in each; -1: none."""
        self._parts: dict[int, list[tuple[int, int, bytes]]] = {}
        """Frames (kind, flags, payload) of answers that have not ended."""
        self._whole: re.Pattern[bytes] | None = None
        self._whole_size = 0

    def start(self, index: int, due: float) -> None:
        stream, self._next = self._next, self._next + 2
        self._open[stream] = (index, due)
        block = self._headers.block(self._timeouts())
        number = stream.to_bytes(4, "big")
        begin = frame(HEADERS, END_HEADERS, stream, block)
        update = self._update_head + number + b"\0\0\0\5"
        body = self._bodies[index]
        if len(body) <= min(self._window, self._stream_window, self._max_frame) and not self._unsent:
            self._window -= len(body)
            self.out.append(b"".join((begin, update, self._data_heads[index], number, body)))
            return
        self.out.append(begin + update)
        self._unsent.append([stream, index, 0, self._stream_window])
        self._send_waiting()

    def receive(self) -> list[Answer]:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        data = self._rest + data if self._rest else data
        at, end, done = 0, len(data), list[Answer]()
        while True:
            whole = self._whole
            if whole is not None and (found := whole.match(data, at)) is not None:
                self._take_whole(found, done)
                at = found.end()
                continue
            if end - at < 9:
                break
            after = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if after > end:
                break
            stream = int.from_bytes(data[at + 5 : at + 9], "big")
            self._read(data[at + 3], data[at + 4], stream, data[at + 9 : after], done)
            at = after
        self._rest = data[at:]
        return done

    def _take_whole(self, found: re.Match[bytes], done: list[Answer]) -> None:
        stream = int.from_bytes(found[1], "big")
        index, due = self._open.pop(stream)
        self._took(self._whole_size + 5)
        code = 0 if self._sizes[index] == self._whole_size else WRONG_SIZE
        done.append(Answer(index, due, code, found[2] if (stream >> 1) % connections.SAMPLE == 0 else None))

    def _read(self, kind: int, flags: int, stream: int, payload: bytes, done: list[Answer]) -> None:
        if kind not in (DATA, HEADERS):
            if kind == RST_STREAM:
                self._parts.pop(stream, None)
            super()._read(kind, flags, stream, payload, done)
            return
        if kind == HEADERS and not flags & END_HEADERS:
            raise ProtocolError("headers in several frames")
        if stream not in self._open:
            raise ProtocolError(f"a frame for stream {stream}, which has ended")
        parts = self._parts.setdefault(stream, [])
        parts.append((kind, flags, payload))
        if kind == DATA:
            self._took(len(payload))
            return
        status = self._status(payload)
        if flags & END_STREAM:
            self._end(stream, status, done)

    def _status(self, block: bytes) -> int:
        found = self._known.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table.dynamic_entries
        before = (len(table), table[0] if table else None)
        status = -1
        for name, value in self._decoder.decode(block, raw=True):
            if name == b"grpc-status":
                status = int(value)
        if before != (len(table), table[0] if table else None):
            self._known.clear()
            self._whole = None
        elif len(self._known) < 1000:
            self._known[block] = status
        return status

    def _end(self, stream: int, status: int, done: list[Answer]) -> None:
        index, due = self._open.pop(stream)
        parts = self._parts.pop(stream)
        body = b"".join(payload for kind, _, payload in parts if kind == DATA)
        code = WRONG_SIZE if status == 0 and len(body) - 5 != self._sizes[index] else status
        done.append(Answer(index, due, code, body[5:] if (stream >> 1) % connections.SAMPLE == 0 else None))
        if code == 0 and [kind for kind, _, _ in parts] == [HEADERS, DATA, HEADERS]:
            self._learn(*parts)

    def _learn(self, *parts: tuple[int, int, bytes]) -> None:
        """From now on an answer like this one is known at a glance, as long as the header table stays."""
        (_, _, first), (_, _, body), (_, _, last) = parts
        if first not in self._known or last not in self._known:
            return
        heads = [re.escape(frame(kind, flags, 0, payload)[:5]) for kind, flags, payload in parts]
        number, prefix, rest = b"(.{4})", re.escape(body[:5]), b"(.{%d})" % (len(body) - 5)
        pieces = [heads[0], number, re.escape(first), heads[1], rb"\1", prefix, rest, heads[2], rb"\1", re.escape(last)]
        self._whole = re.compile(b"".join(pieces), re.DOTALL)
        self._whole_size = len(body) - 5
