"""Two implementations of HTTP/2 read the same bytes: ours, and the server's side of the ``h2`` package.

    python tests/fuzz/http2_difference.py --seconds 60 --seed N

A case (:mod:`http2_cases`) is a list of steps: bytes of the client's, or something that the owner of the server does.
Both sides get it frame by frame, in lockstep. After each frame they must have reported the same events (requests with
fields, contents, resets) and the same frames (RST_STREAM, acknowledgements, GOAWAY and its code); their windows must be
equal. Where they differ, the difference has to be in the table (:mod:`http2_allowed`), with a reason; the case ends
there, as the two are in different states from then on. Apart from that, ours must not raise, and what it holds is
bounded. A case that breaks this is kept in tests/fuzz/found, and runs again with ``--case FILE``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import DataReceived, PingAckReceived, RequestReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple
from http2_allowed import Difference, reason_for
from http2_cases import Act, Case, load, make, save

from tests.support.grpc import http2_peer as wire
from tests.support.grpc.http2_peer import ConnectionFixture, Peer
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import FLOODS, Limits

FOUND = Path(__file__).parent / "found"
MAX_STREAMS, STREAM_WINDOW, MAX_LIST = 6, 30_000, 16_384
OK, DONE = NeverIndexedHeaderTuple(b":status", b"200"), NeverIndexedHeaderTuple(b"grpc-status", b"0")
MAX_HELD = 512 * 1024
"""Bytes that one of our connections may hold with these limits."""
LIMITS = Limits(
    max_streams=MAX_STREAMS,
    stream_window=STREAM_WINDOW,
    connection_window=65_535,
    max_frame=16_384,
    max_header_list=MAX_LIST,
    **dict.fromkeys(FLOODS, (inf, inf)),  # type: ignore[arg-type]
)


class Mismatch(AssertionError):
    """A difference that is not in the table, or a promise of ours that was broken."""


@dataclass
class Outcome:
    """What one side made of one frame. ``fault``: the code of its GOAWAY; ``crash``: an exception that must not happen.

    ``why`` is its own text on a fault, and is not compared.
    """

    events: list[tuple[Any, ...]] = field(default_factory=list)
    frames: list[tuple[Any, ...]] = field(default_factory=list)
    fault: int | None = None
    crash: str = ""
    why: str = field(default="", compare=False)


class Ours:
    """A fixture whose owner gives nothing back on its own."""

    def __init__(self) -> None:
        self.conn = ConnectionFixture(LIMITS, preface=False, credit=False)
        self.conn.take()
        self.widened: list[tuple[int, int]] = []

    def receive(self, data: bytes) -> Outcome:
        self.conn.events.clear()
        return self._outcome(self.conn.send(data))

    def act(self, act: Act, number: int) -> Outcome:
        self.conn.events.clear()
        stream = self.conn.calls[number]
        if act.name == "reset":
            self.conn.connection.reset(stream, ErrorCode(act.value))
        elif act.name == "answer":
            self.conn.connection.answer(stream, wire.RESPONSE_HEADERS, bytes(act.value), wire.TRAILERS)
        else:
            self.conn.connection.headers(stream, wire.TRAILERS, True)
        self.conn.connection.release(stream)
        return self._outcome(self.conn.take())

    def _outcome(self, frames: list[wire.Frame]) -> Outcome:
        outcome = Outcome()
        self.widened = [(frame.stream, frame.value) for frame in frames if frame.kind == wire.WINDOW_UPDATE]
        if self.conn.connection.closing is not None:
            end = next(frame for frame in reversed(self.conn.frames) if frame.kind == wire.GOAWAY)
            outcome.fault, outcome.why = end.value, end.payload.decode("ascii")
            return outcome
        outcome.frames = [_plain(frame) for frame in frames if frame.kind != wire.WINDOW_UPDATE]
        ours_reset = {frame.stream for frame in frames if frame.kind == wire.RST_STREAM}
        for event in self.conn.events:
            if event.name in ("request", "data"):
                outcome.events.append((event.name, event.stream, event.value, event.ended))
            elif event.name == "ping_ack" or (event.name == "reset" and event.stream not in ours_reset):
                outcome.events.append((event.name, event.stream, event.value))
        return outcome

    @property
    def windows(self) -> dict[int, int]:
        connection = self.conn.connection
        found = {number: stream.window for number, stream in connection.streams.items() if not stream.finished}
        return {0: connection.outgoing.window, **found}


class Theirs:
    """The server's side of ``h2``, its windows widened as ours are."""

    def __init__(self) -> None:
        config = H2Configuration(
            client_side=False, header_encoding=None, validate_inbound_headers=True, normalize_inbound_headers=False
        )
        self.connection = H2Connection(config)
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_LIST,
        }
        self.connection.local_settings = Settings(client=False, initial_values=values)
        self.connection.decoder.max_header_list_size = MAX_LIST
        self.connection.initiate_connection()
        self._peer = Peer()
        self._peer.decoder.max_allowed_table_size = 2**32
        self._peer.read(self.connection.data_to_send() or b"")

    def receive(self, data: bytes) -> Outcome:
        outcome = Outcome()
        try:
            events = self.connection.receive_data(data)
        except ProtocolError as error:
            outcome.fault, outcome.why = int(error.error_code), f"{type(error).__name__}: {error}"
            return outcome
        except Exception as error:
            outcome.crash = f"{type(error).__name__}: {error}"
            return outcome
        self._read_events(outcome, events)
        self._collect(outcome)
        return outcome

    def act(self, act: Act, number: int) -> Outcome:
        connection = self.connection
        if act.name == "reset":
            connection.reset_stream(number, act.value)
        elif act.name == "answer":
            connection.send_headers(number, [OK])
            connection.send_data(number, struct.pack(">BI", 0, act.value) + bytes(act.value))
            connection.send_headers(number, [DONE], end_stream=True)
        else:
            connection.send_headers(number, [OK], end_stream=True)
        outcome = Outcome()
        self._collect(outcome)
        return outcome

    def widen(self, widened: list[tuple[int, int]]) -> None:
        for number, increment in widened:
            stream = self.connection.streams.get(number)
            if number == 0:
                self.connection._inbound_flow_control_window_manager.window_opened(increment)
            elif stream is not None:
                stream._inbound_window_manager.window_opened(increment)

    @property
    def windows(self) -> dict[int, int]:
        connection = self.connection
        found = {n: s.outbound_flow_control_window for n, s in connection.streams.items() if not s.closed}
        return {0: connection.outbound_flow_control_window, **found}

    def _read_events(self, outcome: Outcome, events: list[Any]) -> None:
        for event in events:
            ended = getattr(event, "stream_ended", None) is not None
            if isinstance(event, RequestReceived):
                fields = tuple((bytes(name), bytes(value)) for name, value in event.headers)
                outcome.events.append(("request", event.stream_id, fields, ended))
            elif isinstance(event, DataReceived):
                outcome.events.append(("data", event.stream_id, bytes(event.data), ended))
            elif isinstance(event, TrailersReceived):
                outcome.events.append(("data", event.stream_id, b"", True))
            elif isinstance(event, StreamReset) and event.remote_reset:
                outcome.events.append(("reset", event.stream_id, int(event.error_code)))
            elif isinstance(event, PingAckReceived):
                outcome.events.append(("ping_ack", 0, bytes(event.ping_data)))
            else:
                assert not isinstance(event, StreamEnded) or outcome.events

    def _collect(self, outcome: Outcome) -> None:
        frames = self._peer.read(self.connection.data_to_send() or b"")
        outcome.frames = [_plain(frame) for frame in frames if frame.kind != wire.WINDOW_UPDATE]


def _plain(frame: wire.Frame) -> tuple[Any, ...]:
    if frame.kind == wire.HEADERS:
        return ("headers", frame.stream, frame.ended)
    if frame.kind == wire.SETTINGS:
        return ("settings", frame.ack)
    return (frame.kind, frame.stream, frame.flags, frame.payload, frame.value)


def frames_of(case: Case) -> Iterator[bytes | Act]:
    """The preface, then frame by frame; acts where they stand; a rest that is no whole frame at the end."""
    rest, need = b"", len(wire.PREFACE)
    for step in case:
        if isinstance(step, Act):
            yield step
            continue
        rest += step
        while len(rest) >= need:
            piece, rest = rest[:need], rest[need:]
            if need == wire.FRAME_HEAD and (length := int.from_bytes(piece[:3], "big")) <= LIMITS.max_frame and length:
                rest, need = piece + rest, wire.FRAME_HEAD + length
                continue
            yield piece
            need = wire.FRAME_HEAD
    yield rest


@dataclass
class Result:
    """``steps``: pieces that both have read; ``reason``: why the case ended before its end, ``""`` if it did not."""

    steps: int = 0
    requests: int = 0
    faults: int = 0
    reason: str = ""


def run(case: Case) -> Result:
    """Raises Mismatch."""
    ours, theirs, result = Ours(), Theirs(), Result()
    past: list[bytes] = []
    for step in frames_of(case):
        if isinstance(step, Act):
            number = _target(step, ours, theirs)
            if number is None:
                continue
            mine, other = ours.act(step, number), theirs.act(step, number)
        else:
            past.append(step)
            mine, other = ours.receive(step), theirs.receive(step)
            result.requests += sum(event[0] == "request" for event in mine.events)
        theirs.widen(ours.widened)
        result.steps += 1
        same_windows = mine.fault is not None or _windows_agree(ours.windows, theirs.windows)
        if mine != other or not same_windows:
            difference = Difference(step, past, mine, other, ours, theirs)
            result.reason = reason_for(difference) or ""
            if not result.reason:
                raise Mismatch(f"after {step!r}:\n  ours   {mine}\n  theirs {other}\n  {ours.windows} {theirs.windows}")
            break
        if mine.fault is not None:
            result.faults += 1
            break
    size = held(ours.conn.connection)
    if size > MAX_HELD:
        raise Mismatch(f"our connection holds {size} bytes")
    return result


def _target(act: Act, ours: Ours, theirs: Theirs) -> int | None:
    """The stream that the act is about: one that both can answer."""
    if theirs.connection.state_machine.state is ConnectionState.CLOSED:
        return None  # the client has sent GOAWAY
    windows = ours.windows
    numbers = [number for number in sorted(windows) if number and number in theirs.connection.streams]
    if act.name != "reset":
        numbers = [number for number in numbers if ours.conn.calls[number].ended]
    if act.name == "answer":
        size = act.value + wire.MESSAGE_PREFIX
        numbers = [number for number in numbers if size <= min(windows[0], windows[number], 16_384)]
    return numbers[act.which % len(numbers)] if numbers else None


def _windows_agree(ours: dict[int, int], theirs: dict[int, int]) -> bool:
    return all(theirs.get(number, window) == window for number, window in ours.items())


def held(root: object) -> int:
    """Bytes of everything that is reached from there, functions, modules and classes left out."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _NOT_HELD):
            continue
        seen[id(thing)] = thing
        waiting += gc.get_referents(thing)
    return sum(sys.getsizeof(thing) for thing in seen.values())


_NOT_HELD = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, ConnectionFixture, Limits)


def keep(case: Case, seed: str) -> Path:
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"http2-{seed}"
    path.write_bytes(save(case))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=Path, help="run this one again")
    chosen = parser.parse_args()
    if chosen.case:
        print(run(load(chosen.case.read_bytes())))
        return 0
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    end = time.monotonic() + chosen.seconds
    for number in itertools.count():
        if time.monotonic() > end:
            break
        name = f"{chosen.seed}-{number}"
        case = make(random.Random(name))
        try:
            result = run(case)
        except Exception as error:
            counts["failures"] += 1
            print(f"{keep(case, name)}: {type(error).__name__}: {error}", file=sys.stderr)
            if counts["failures"] >= 10:
                break
            continue
        counts.update(cases=1, frames=result.steps, requests=result.requests, faults=result.faults)
        counts["whole"] += not result.reason and not result.faults
        if result.reason:
            reasons[result.reason] += 1
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))
    for reason, count in reasons.most_common():
        print(f"{count:8} {reason}")
    return 1 if counts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
