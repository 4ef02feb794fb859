"""Clients for :mod:`http2_difference`, from well-behaved to none at all, out of a random generator.

A case knows a little of what it has sent (which streams are open, how much went on them), so that most of it means
something; how much of it is wrong on purpose is chosen for each case.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from tests.support.grpc import http2_peer as wire
from tests.support.grpc.http2_peer import REQUEST, Fields, Peer

WRONGNESS = (0.0, 0.0, 0.03, 0.1, 0.4)
STEPS = (5, 15, 40)
NUMBERS = (0, 1, 2, 3, 5, 2**31 - 1, 2**31, 2**32 - 1, 16_384, 65_535)
VALUES = (b"", b"v", b"100m", b"trailers", b"x" * 200, bytes(range(128, 160)), b"a, b", b"0")
NAMES = (b"a", b"grpc-timeout", b"x-request-id", b"user-agent", b"te", b"n" * 60, b"cookie")
BAD_FIELDS: tuple[tuple[bytes, bytes], ...] = (
    *((b"Upper", b"v"), (b"a b", b"v"), (b"", b"v"), (b"a", b"v\n"), (b"a", b" v"), (b"connection", b"close")),
    *((b"te", b"gzip"), (b":path", b"/twice"), (b":status", b"200"), (b":other", b"v"), (b"content-length", b"3")),
    *((b"content-length", b"0"), (b"content-length", b"x"), (b"host", b"elsewhere")),
    (b"transfer-encoding", b"chunked"),
)


@dataclass(frozen=True, slots=True)
class Act:
    """``answer`` (of ``value`` bytes), ``end`` (without contents) or ``reset`` (with that code), on one of the streams
    that can be answered."""

    name: str
    which: int
    value: int = 0


Case: TypeAlias = list[bytes | Act]


def save(case: Case) -> bytes:
    steps = [step.hex() if isinstance(step, bytes) else [step.name, step.which, step.value] for step in case]
    return json.dumps(steps, indent=0).encode()


def load(text: bytes) -> Case:
    return [bytes.fromhex(step) if isinstance(step, str) else Act(*step) for step in json.loads(text)]


def make(chance: random.Random) -> Case:
    """A case; equal for equal states of the generator."""
    return _Client(chance, chance.choice(WRONGNESS)).case(chance.choice(STEPS))


class _Client:
    def __init__(self, chance: random.Random, wrongness: float) -> None:
        self.chance = chance
        self.wrongness = wrongness
        self.peer = Peer()
        self.next = 1
        self.open: dict[int, int] = {}
        """Streams that the client has not ended, and what it has sent on them."""
        self.known: list[int] = []
        right: dict[Callable[[], bytes | Act], int] = {
            self.begin: 30,
            self.data: 30,
            self.trailers: 8,
            self.act: 20,
            self.window: 6,
            self.reset: 4,
            self.settings: 4,
            self.ping: 3,
            self.priority: 2,
            self.unknown: 2,
            self.shrink_table: 1,
            self.short_block: 8,
        }
        wrong: dict[Callable[[], bytes | Act], int] = {
            self.bad_request: 10,
            self.any_frame: 20,
            self.bad_block: 6,
            self.late: 10,
            self.goaway: 1,
            self.bad_settings: 2,
            self.garbage: 2,
        }
        self._right = (list(right), list(right.values()))
        self._wrong = (list(wrong), list(wrong.values()))

    def case(self, steps: int) -> Case:
        chance = self.chance
        preface = self._maybe_spoilt(wire.PREFACE) if chance.random() < self.wrongness / 4 else wire.PREFACE
        case: Case = [preface]
        if chance.random() > self.wrongness / 8:
            case.append(self.settings())
        for _ in range(steps):
            makers, weights = self._wrong if chance.random() < self.wrongness else self._right
            step = chance.choices(makers, weights)[0]()
            if isinstance(step, bytes) and chance.random() < self.wrongness / 4:
                step = self._maybe_spoilt(step)
            case.append(step)
        return case

    # What a good client does.

    def begin(self) -> bytes:
        number, self.next = self.next, self.next + self.chance.choice((2, 2, 2, 4, 100))
        ended = self.chance.random() < 0.3
        self.known.append(number)
        if not ended:
            self.open[number] = 0
        return self._headers(number, [*REQUEST, *self._fields()], ended)

    def data(self) -> bytes:
        if not self.open:
            return self.begin()
        number = self.chance.choice(list(self.open))
        size = self.chance.choice((0, 1, 10, 1000, 7000, 16_384))
        if self.open[number] + size > 24_000 and self.chance.random() > self.wrongness:
            size = 0
        padding = self.chance.choice((None, None, None, 0, 1, 100, 255))
        if padding is not None:
            size = min(size, 16_000)
        ended = self.chance.random() < 0.4
        self.open[number] += size + (padding or 0) + 1
        if ended:
            del self.open[number]
        return wire.data(number, self.chance.randbytes(size), ended=ended, padding=padding)

    def trailers(self) -> bytes:
        if not self.open:
            return self.begin()
        number = self.chance.choice(list(self.open))
        del self.open[number]
        return self._headers(number, self._fields(), True)

    def act(self) -> Act:
        which = self.chance.randrange(100)
        return self.chance.choice(
            [Act("answer", which, size) for size in (0, 3, 500, 16_379)] + [Act("end", which), Act("reset", which, 8)]
        )

    def window(self) -> bytes:
        number = self.chance.choice([0, *self.known])
        return wire.window_update(number, self.chance.choice((1, 100, 65_535, 1_000_000)))

    def reset(self) -> bytes:
        if not self.known:
            return self.begin()
        number = self.chance.choice(self.known)
        self.open.pop(number, None)
        return wire.rst_stream(number, self.chance.choice((0, 2, 5, 8, 99)))

    def settings(self) -> bytes:
        choices = {
            wire.HEADER_TABLE_SIZE: (0, 100, 4096, 65_536),
            wire.ENABLE_PUSH: (0, 1),
            wire.MAX_STREAMS: (0, 1, 100),
            wire.INITIAL_WINDOW: (0, 5, 65_535, 1_000_000),
            wire.MAX_FRAME: (16_384, 100_000, 2**24 - 1),
            wire.MAX_HEADER_LIST: (0, 100_000),
            0xABCD: (0, 7),
        }
        keys = self.chance.sample(list(choices), self.chance.randrange(4))
        return wire.settings((key, self.chance.choice(choices[key])) for key in keys)

    def ping(self) -> bytes:
        return wire.ping(self.chance.randbytes(8), ack=self.chance.random() < 0.3)

    def priority(self) -> bytes:
        return wire.priority(self.next + 2 * self.chance.randrange(5), self.chance.choice((0, 1)))

    def unknown(self) -> bytes:
        kind = self.chance.choice((0x0B, 0x0C, 0x10, 0xFE))
        flags, stream = self.chance.randrange(256), self.chance.choice([0, *self.known])
        return wire.raw(kind, flags, stream, self.chance.randbytes(9))

    def shrink_table(self) -> bytes:
        """The client's own table, which the next header block tells of."""
        self.peer.encoder.header_table_size = self.chance.choice((0, 64, 1000, 4096))
        return self.begin()

    def short_block(self) -> bytes:
        """Few bytes, so that equal blocks come again while the table behind them has changed."""
        table = self.peer.encoder.header_table
        block = b"\x83\x86\x84\x01\x04here"
        for _ in range(self.chance.randrange(1, 3)):
            digit = self.chance.choice(b"123")
            known = [at for at, field in enumerate(islice(table.dynamic_entries, 5)) if not field[0].startswith(b":")]
            if known and self.chance.random() < 0.6:
                block += bytes([0x80 | 62 + self.chance.choice(known)])
            elif self.chance.random() < 0.5:
                block += b"\x40\x01d\x01%c" % digit
                table.add(b"d", b"%c" % digit)
            else:
                block += b"\x00\x01e\x01%c" % digit
        number, self.next = self.next, self.next + 2
        self.known.append(number)
        return wire.headers(number, block, ended=True)

    # What it should not do.

    def bad_request(self) -> bytes:
        fields: list[tuple[bytes, bytes]] = [*REQUEST, *self._fields()]
        for _ in range(self.chance.randrange(1, 3)):
            self.chance.choice(
                [
                    lambda: fields.insert(self.chance.randrange(len(fields) + 1), self.chance.choice(BAD_FIELDS)),
                    lambda: fields.pop(self.chance.randrange(len(fields))),
                    lambda: self.chance.shuffle(fields),
                ]
            )()
        number = self.chance.choice([self.next, self.next, *self.open])
        self.next += 2
        self.known.append(number)
        return self._headers(number, fields, self.chance.random() < 0.5)

    def any_frame(self) -> bytes:
        """Of any type, flags and stream, with contents of about the right size."""
        kind = self.chance.randrange(12)
        sizes = {wire.PRIORITY: 5, wire.SETTINGS: 6, wire.PING: 8, wire.GOAWAY: 8}
        sizes |= dict.fromkeys((wire.RST_STREAM, wire.WINDOW_UPDATE), 4)
        size = max(0, sizes.get(kind, self.chance.randrange(20)) + self.chance.choice((0, 0, 0, -1, 1, 6)))
        payload = self.chance.choice([self.chance.randbytes(size), bytes(size)])
        if kind == wire.HEADERS and self.chance.random() < 0.7:
            payload = self.peer.block()
        flags = self.chance.choice((0, 1, 4, 5, 8, 0x20, 0x2D, self.chance.randrange(256)))
        return wire.raw(kind, flags, self._any_stream(), payload)

    def bad_block(self) -> bytes:
        block = bytearray(self.peer.block([*REQUEST, *self._fields()]))
        for _ in range(self.chance.randrange(1, 4)):
            block[self.chance.randrange(len(block))] = self.chance.randrange(256)
        number, self.next = self.next, self.next + 2
        self.known.append(number)
        return wire.headers(number, bytes(block), ended=True)

    def late(self) -> bytes:
        """On a stream of whatever state."""
        number = self._any_stream()
        return self.chance.choice(
            [
                lambda: wire.data(number, b"late", ended=self.chance.random() < 0.5),
                lambda: self._headers(number, self._fields(), self.chance.random() < 0.5),
                lambda: self._headers(number, REQUEST, True),
                lambda: wire.rst_stream(number),
                lambda: wire.window_update(number, self.chance.choice(NUMBERS) % 2**32),
                lambda: wire.priority(number, number),
                lambda: wire.continuation(number),
                lambda: wire.push_promise(number, 2),
                lambda: wire.data(number, bytes(16_384)),
            ]
        )()

    def goaway(self) -> bytes:
        return wire.goaway(self.chance.choice((0, 1)), self.chance.choice((0, 1)), b"why")

    def bad_settings(self) -> bytes:
        return wire.settings((self.chance.randrange(10), self.chance.choice(NUMBERS) % 2**32) for _ in range(2))

    def garbage(self) -> bytes:
        return self.chance.randbytes(self.chance.randrange(1, 40))

    # Inside.

    def _any_stream(self) -> int:
        numbers = [0, 2, self.next, self.next + 2, *self.known[-8:], *self.known[-8:]]
        return self.chance.choice([*numbers, *(number + 2 for number in self.known[-3:])])

    def _fields(self) -> list[tuple[bytes, bytes]]:
        count = self.chance.choice((0, 0, 1, 1, 2, 6))
        names = self.chance.choices(NAMES, k=count)
        return [(name, b"trailers" if name == b"te" else self._value()) for name in names]

    def _value(self) -> bytes:
        return b"%dm" % self.chance.randrange(1000) if self.chance.random() < 0.3 else self.chance.choice(VALUES)

    def _headers(self, number: int, fields: Fields, ended: bool) -> bytes:
        chance = self.chance
        block = self.peer.block(fields, huffman=chance.random() < 0.7)
        cuts = sorted(chance.randrange(len(block) + 1) for _ in range(chance.choice((0, 0, 0, 1, 2, 5))))
        padding = chance.choice((None, None, None, 0, 3, 255)) if not cuts or cuts[0] else None
        depends_on = chance.choice((None, None, None, 0, number + 2, number + 2 | 2**31))
        return wire.headers(number, block, ended=ended, padding=padding, depends_on=depends_on, cuts=cuts)

    def _maybe_spoilt(self, data: bytes) -> bytes:
        spoilt = bytearray(data)
        for _ in range(self.chance.randrange(3)):
            at = self.chance.randrange(len(spoilt)) if spoilt else 0
            what = self.chance.randrange(5)
            if what == 0 and spoilt:
                spoilt[at] ^= 1 << self.chance.randrange(8)
            elif what == 1 and spoilt:
                del spoilt[at]
            elif what == 2:
                spoilt.insert(at, self.chance.randrange(256))
            elif what == 3:
                spoilt = spoilt + spoilt
            elif len(spoilt) >= 2:
                spoilt[:2] = struct.pack(">H", self.chance.randrange(3))
        return bytes(spoilt)
