"""Games with windows, and clients that ask for much and read nothing: what waits for them is bounded, the handlers that
make it wait too, and who reads nothing for long is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat

import pytest

from tests.support.grpc import http2_peer as h2
from tests.support.grpc.http2_attacks import Attacker, AttackTest
from tests.support.grpc.http2_peer import message
from tests.support.grpc.transport_fixture import COUNT, ECHO, FLOW, LOOPS, PATIENCE, WAIT
from tests.support.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import KIB, MIB, Limits

WIDEST = 2**31 - 1
WIDE_OPEN = {h2.INITIAL_WINDOW: WIDEST}
LARGE = 64 * KIB
"""Of one answer."""
SHORT = Limits(write_timeout=0.3)


def calls(attacker: Attacker, path: str, contents: bytes, first: int = 1) -> Iterator[bytes]:
    block, body = attacker.request_block(path), message(contents)
    pieces = [body[at : at + 16 * KIB] for at in range(0, len(body), 16 * KIB)]
    stream = first
    while True:
        parts = [h2.data(stream, piece, ended=piece is pieces[-1]) for piece in pieces]
        yield h2.headers(stream, block) + b"".join(parts)
        stream += 2


def buffered(attack: AttackTest) -> int:
    """Bytes in the buffers of the server's sockets."""

    async def look() -> int:
        found = [protocol._transport.get_write_buffer_size() for protocol in attack.server.transport._connections]
        return sum(found)

    return attack.server.run(look())


def settle(attack: AttackTest, key: str) -> int:
    """The count when it no longer rises while the control client is answered ten times."""
    happened = attack.service.happened

    def still() -> bool:
        before = happened[key]
        attack.control.wait_more(10)
        return happened[key] == before

    wait_until(still, f"{key} stands still", PATIENCE)
    return happened[key]


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_handlers_of_a_client_that_never_reads_its_socket_stop(loop: str) -> None:
    """With the default limits. Windows are as wide as they can be; every stream has no end."""
    limits = Limits()
    with AttackTest(loop=loop) as attack:
        attacker = attack.attacker(WIDE_OPEN, small=True)
        attacker.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(attacker, FLOW, b"%d" % LARGE), 200))
        settle(attack, "yielded")
        assert attack.numbers.unsent <= 200 * (LARGE + 5)
        assert buffered(attack) <= 2 * limits.write_high_water + LARGE
        assert attack.service.happened["closed"] == 0


def test_client_that_never_reads_is_cut_in_time() -> None:
    with AttackTest(SHORT) as attack:
        attacker = attack.attacker(WIDE_OPEN, small=True)
        attacker.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(attacker, FLOW, b"%d" % LARGE), 20))
        attack.expect_closed("slow_reader")
        attack.wait("closed", 20)


def test_echoes_that_are_not_read_end_the_connection() -> None:
    """Control frames have no window; what they may pile up to is bounded, with the default limits."""
    with AttackTest(Limits(max_ping_strikes=0, pings=(1e9, 1e9))) as attack:
        attacker = attack.attacker(WIDE_OPEN, small=True)
        attacker.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(attacker, FLOW, b"%d" % LARGE), 20))
        attacker.flood(repeat(h2.ping() * 100, 20_000), read=False)
        attack.expect_closed("slow_reader")


def test_large_unary_answers_to_a_client_that_never_reads_are_no_more_than_its_streams() -> None:
    limits = Limits(max_streams=40, write_timeout=1)
    with AttackTest(limits) as attack:
        attacker = attack.attacker({h2.INITIAL_WINDOW: 0})
        attacker.flood(islice(calls(attacker, ECHO, bytes(LARGE)), 2000))
        assert attack.numbers.unsent <= 40 * (LARGE + 200)
        assert attacker.end()[0] is ErrorCode.ENHANCE_YOUR_CALM
        attack.expect_closed("stream_error_flood")


def test_answers_behind_a_shut_window_are_given_up_in_time() -> None:
    with AttackTest(SHORT) as attack:
        attacker = attack.attacker({h2.INITIAL_WINDOW: 0})
        attacker.send(*islice(calls(attacker, ECHO, bytes(1000)), 500))
        wait_until(lambda: attack.numbers.unsent >= 500 * 1005, "all answers wait", PATIENCE)
        attack.expect_closed("slow_reader")


def test_answer_in_steps_of_one_byte_arrives_and_costs_no_more_than_its_steps(attack: AttackTest) -> None:
    size = 3000
    attacker = attack.attacker({h2.INITIAL_WINDOW: 0})
    attacker.send(*islice(calls(attacker, ECHO, bytes(size)), 1))
    attacker.flood(repeat(h2.window_update(1, 1), size + 5))
    attacker.read_until(lambda frame: frame.kind == h2.HEADERS and frame.ended)
    assert attack.numbers.closed.total() == 0


def test_windows_of_all_streams_changed_to_and_fro_are_a_flood_soon(attack: AttackTest, attacker: Attacker) -> None:
    attacker.send(*islice(calls(attacker, WAIT, b"x"), 1000))
    attack.wait("started", 1000)
    to_and_fro = [h2.settings([(h2.INITIAL_WINDOW, size)]) for size in (0, 1 << 20)]
    attacker.flood(repeat(b"".join(to_and_fro), 10_000))
    assert attacker.end() == (ErrorCode.ENHANCE_YOUR_CALM, "settings_flood")
    attack.expect_closed("settings_flood")


def test_thousands_of_settings_in_a_frame_change_every_window_once(attack: AttackTest, attacker: Attacker) -> None:
    """2700 entries for 1000 streams, and that 18 times, would be 50 million changes for 300 KB."""
    attacker.send(*islice(calls(attacker, WAIT, b"x"), 1000))
    attack.wait("started", 1000)
    entries = [(h2.INITIAL_WINDOW, size) for size in (0, 1 << 20)] * 1350
    attack.control.slowest = 0.0
    attacker.send(*[h2.settings(entries) for _ in range(18)])
    attacker.sync()
    attack.control.wait_more()
    assert attack.control.slowest < 1
    windows = [stream.window for made in attack.connections() for stream in made.streams.values()]
    assert windows.count(1 << 20) == 1000


def test_slow_reader_of_a_stream_holds_only_its_own_handler(attack: AttackTest) -> None:
    attacker = attack.attacker({h2.INITIAL_WINDOW: 100})
    attacker.request(1, COUNT, message(b"100000"))
    settle(attack, "yielded")
    assert attack.service.happened["yielded"] < 100
    assert attack.numbers.unsent <= 10
    attacker.request(3, COUNT, message(b"3"))
    assert attacker.status(3) == (0, "")


def test_streams_reset_while_nothing_is_read_leave_nothing_in_the_queue() -> None:
    """Their answers wait behind a socket that takes nothing; each reset has to free them."""
    with AttackTest(Limits(resets=(1e9, 1e9))) as attack:
        attacker = attack.attacker({**WIDE_OPEN}, small=True)
        attacker.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(attacker, FLOW, b"%d" % LARGE), 20))
        settle(attack, "yielded")
        block = attacker.request_block("/no/such")
        for first in range(101, 40_101, 1000):
            numbers = range(first, first + 1000, 2)
            attacker.flood(
                [b"".join(h2.headers(at, block, ended=True) + h2.rst_stream(at) for at in numbers)], read=False
            )
        wait_until(lambda: attack.numbers.resets_received == 20_000, "all is read", PATIENCE)
        lines = [len(made.outgoing._ready_streams) for made in attack.connections()]
        assert max(lines) < 500, lines
        assert attack.numbers.streams <= 21 + 1


def test_memory_of_a_large_answer_is_kept_once() -> None:
    """It waits as it is, not as frames."""
    with AttackTest(Limits(max_streams=4)) as attack:
        attacker = attack.attacker({h2.INITIAL_WINDOW: 0})
        attacker.send(*islice(calls(attacker, ECHO, bytes(200 * KIB)), 4))
        wait_until(lambda: attack.numbers.unsent >= 4 * 200 * KIB, "all answers wait", PATIENCE)
        assert attack.numbers.unsent < 4 * 200 * KIB + 4 * KIB
        assert attack.numbers.unsent < MIB
