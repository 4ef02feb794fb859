"""Games with windows, and clients that ask for much and read nothing: what waits for them is bounded, the handlers that
make it wait too, and who reads nothing for long is cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat

import pytest

from tfs_lite.testing.grpc import http2_peer as h2
from tfs_lite.testing.grpc.http2_attacks import Attacker, AttackTest
from tfs_lite.testing.grpc.transport_fixture import COUNT, ECHO, FLOW, LOOPS, PATIENCE, WAIT
from tfs_lite.testing.servers.process import wait_until
from tfs_lite.transport.http2.errors import ErrorCode
from tfs_lite.transport.limits import KIB, MIB, Limits

WIDEST = 2**31 - 1
WIDE_OPEN = {h2.INITIAL_WINDOW: WIDEST}
LARGE = 64 * KIB
"""Of one answer."""
SHORT = Limits(write_timeout=0.3)


def message(contents: bytes) -> bytes:
    return b"\0" + len(contents).to_bytes(4, "big") + contents


def calls(enemy: Attacker, path: str, contents: bytes, first: int = 1) -> Iterator[bytes]:
    block, body = enemy.opening(path), message(contents)
    pieces = [body[at : at + 16 * KIB] for at in range(0, len(body), 16 * KIB)]
    stream = first
    while True:
        parts = [h2.data(stream, piece, ended=piece is pieces[-1]) for piece in pieces]
        yield h2.headers(stream, block) + b"".join(parts)
        stream += 2


def buffered(siege: AttackTest) -> int:
    """Bytes in the buffers of the server's sockets."""

    async def look() -> int:
        found = [protocol._transport.get_write_buffer_size() for protocol in siege.house.server._connections]
        return sum(found)

    return siege.house.run(look())


def settle(siege: AttackTest, key: str) -> int:
    """How often it has happened when it does not happen any more: a bystander was answered ten times meanwhile."""
    happened = siege.service.happened

    def still() -> bool:
        before = happened[key]
        siege.bystander.wait_more(10)
        return happened[key] == before

    wait_until(still, f"{key} stands still", PATIENCE)
    return happened[key]


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_handlers_of_a_client_that_never_reads_its_socket_stand_still(loop: str) -> None:
    """With the default limits. Windows are as wide as they can be; every stream has no end."""
    limits = Limits()
    with AttackTest(loop=loop) as siege:
        enemy = siege.enemy(WIDE_OPEN, small=True)
        enemy.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(enemy, FLOW, b"%d" % LARGE), 200))
        settle(siege, "yielded")
        assert siege.numbers.unsent <= 200 * (LARGE + 5)
        assert buffered(siege) <= 2 * limits.write_high_water + LARGE
        assert siege.service.happened["closed"] == 0


def test_client_that_never_reads_is_cut_in_time() -> None:
    with AttackTest(SHORT) as siege:
        enemy = siege.enemy(WIDE_OPEN, small=True)
        enemy.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(enemy, FLOW, b"%d" % LARGE), 20))
        siege.expect_closed("slow_reader")
        siege.wait("closed", 20)


def test_echoes_that_nobody_reads_end_the_connection() -> None:
    """Control frames have no window; what they may pile up to is bounded, with the default limits."""
    with AttackTest(Limits(max_ping_strikes=0, pings=(1e9, 1e9))) as siege:
        enemy = siege.enemy(WIDE_OPEN, small=True)
        enemy.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(enemy, FLOW, b"%d" % LARGE), 20))
        enemy.pour(repeat(h2.ping() * 100, 20_000), read=False)
        siege.expect_closed("slow_reader")


def test_large_unary_answers_to_a_client_that_never_reads_are_no_more_than_its_places() -> None:
    limits = Limits(max_streams=40, write_timeout=1)
    with AttackTest(limits) as siege:
        enemy = siege.enemy({h2.INITIAL_WINDOW: 0})
        enemy.pour(islice(calls(enemy, ECHO, bytes(LARGE)), 2000))
        assert siege.numbers.unsent <= 40 * (LARGE + 200)
        assert enemy.end()[0] is ErrorCode.ENHANCE_YOUR_CALM
        siege.expect_closed("stream_error_flood")


def test_answers_behind_a_shut_window_are_given_up_in_time() -> None:
    with AttackTest(SHORT) as siege:
        enemy = siege.enemy({h2.INITIAL_WINDOW: 0})
        enemy.send(*islice(calls(enemy, ECHO, bytes(1000)), 500))
        wait_until(lambda: siege.numbers.unsent >= 500 * 1005, "all answers wait", PATIENCE)
        siege.expect_closed("slow_reader")


def test_answer_in_steps_of_one_byte_arrives_and_costs_no_more_than_its_steps() -> None:
    size = 3000
    with AttackTest() as siege:
        enemy = siege.enemy({h2.INITIAL_WINDOW: 0})
        enemy.send(*islice(calls(enemy, ECHO, bytes(size)), 1))
        enemy.pour(repeat(h2.window_update(1, 1), size + 5))
        enemy.read_until(lambda frame: frame.kind == h2.HEADERS and frame.ended)
        assert siege.numbers.closed.total() == 0


def test_windows_of_all_streams_changed_to_and_fro_are_a_flood_soon() -> None:
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.send(*islice(calls(enemy, WAIT, b"x"), 1000))
        siege.wait("started", 1000)
        to_and_fro = [h2.settings([(h2.INITIAL_WINDOW, size)]) for size in (0, 1 << 20)]
        enemy.pour(repeat(b"".join(to_and_fro), 10_000))
        assert enemy.end() == (ErrorCode.ENHANCE_YOUR_CALM, "settings_flood")
        siege.expect_closed("settings_flood")


def test_thousands_of_settings_in_a_frame_change_every_window_once() -> None:
    """2700 entries for 1000 streams, and that 18 times, would be 50 million changes for 300 KB."""
    with AttackTest() as siege:
        enemy = siege.enemy()
        enemy.send(*islice(calls(enemy, WAIT, b"x"), 1000))
        siege.wait("started", 1000)
        entries = [(h2.INITIAL_WINDOW, size) for size in (0, 1 << 20)] * 1350
        siege.bystander.slowest = 0.0
        enemy.send(*[h2.settings(entries) for _ in range(18)])
        enemy.sync()
        siege.bystander.wait_more()
        assert siege.bystander.slowest < 1
        windows = [stream.window for made in siege.connections() for stream in made.streams.values()]
        assert windows.count(1 << 20) == 1000


@pytest.mark.parametrize("stream", [0, 1])
def test_window_beyond_the_largest_ends_what_it_is_of(stream: int) -> None:
    with AttackTest() as siege:
        enemy = siege.enemy(WIDE_OPEN)
        enemy.send(*islice(calls(enemy, WAIT, b"x"), 1))
        siege.wait("started", 1)
        enemy.send(*[h2.window_update(stream, WIDEST)] * 2)
        if stream:
            ended = enemy.read_until(lambda frame: frame.kind == h2.RST_STREAM)
            assert ended.value == ErrorCode.FLOW_CONTROL_ERROR
            enemy.sync()
        else:
            assert enemy.end()[0] is ErrorCode.FLOW_CONTROL_ERROR
            siege.expect_closed("protocol")


def test_slow_reader_of_a_stream_holds_its_handler_and_nobody_elses() -> None:
    with AttackTest() as siege:
        enemy = siege.enemy({h2.INITIAL_WINDOW: 100})
        enemy.request(1, COUNT, message(b"100000"))
        settle(siege, "yielded")
        assert siege.service.happened["yielded"] < 100
        assert siege.numbers.unsent <= 10
        enemy.request(3, COUNT, message(b"3"))
        assert enemy.status(3) == (0, "")


def test_streams_reset_while_nothing_is_read_leave_nothing_in_the_line() -> None:
    """Their answers wait behind a socket that takes nothing; each reset has to free them."""
    with AttackTest(Limits(resets=(1e9, 1e9))) as siege:
        enemy = siege.enemy({**WIDE_OPEN}, small=True)
        enemy.send(h2.window_update(0, WIDEST - 65_535), *islice(calls(enemy, FLOW, b"%d" % LARGE), 20))
        settle(siege, "yielded")
        block = enemy.opening("/no/such")
        for first in range(101, 40_101, 1000):
            numbers = range(first, first + 1000, 2)
            enemy.pour([b"".join(h2.headers(at, block, ended=True) + h2.rst_stream(at) for at in numbers)], read=False)
        wait_until(lambda: siege.numbers.resets_received == 20_000, "all is read", PATIENCE)
        lines = [len(made.outgoing._line) for made in siege.connections()]
        assert max(lines) < 500, lines
        assert siege.numbers.streams <= 21 + 1


def test_memory_of_a_large_answer_is_kept_once() -> None:
    """It waits as it is, not as frames."""
    with AttackTest(Limits(max_streams=4)) as siege:
        enemy = siege.enemy({h2.INITIAL_WINDOW: 0})
        enemy.send(*islice(calls(enemy, ECHO, bytes(200 * KIB)), 4))
        wait_until(lambda: siege.numbers.unsent >= 4 * 200 * KIB, "all answers wait", PATIENCE)
        assert siege.numbers.unsent < 4 * 200 * KIB + 4 * KIB
        assert siege.numbers.unsent < MIB
