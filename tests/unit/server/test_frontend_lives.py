"""How real frontends die, are started again, and stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import psutil
import pytest

from tfs_lite.server.frontend_child import FIRST_PAUSE, LONGEST_PAUSE, pause_before
from tfs_lite.testing.frontend_house import PROCESSES, Served, Talk, Words, call, connections, serving
from tfs_lite.testing.grpc_choice import chosen
from tfs_lite.testing.process import wait_until


@pytest.fixture
def served(loop_thread: Any) -> Iterator[Served]:
    with serving(loop_thread) as served:
        yield served


@pytest.fixture
def channel(served: Served) -> grpc.Channel:
    return served.channel()


# Dying.


@pytest.mark.parametrize(("deaths", "seconds"), [(0, FIRST_PAUSE), (1, 2 * FIRST_PAUSE), (10**6, LONGEST_PAUSE)])
def test_the_pause_before_a_restart_grows_to_a_bound(deaths: int, seconds: float) -> None:
    assert pause_before(deaths) == seconds


class Client(threading.Thread):
    """Calls without pause until it is told to stop, on one connection."""

    def __init__(self, channel: grpc.Channel, stop_at_failure: bool = False) -> None:
        super().__init__()
        self.answers = 0
        self._stop_at_failure = stop_at_failure
        self.failures: list[tuple[Any, str]] = []
        self._channel = channel
        self._stop_calling = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stop_calling.is_set():
            try:
                assert call(self._channel, "echo") == b"x"
                self.answers += 1
            except grpc.RpcError as error:
                self.failures.append((error.code(), error.details()))
                if self._stop_at_failure:
                    return

    def end(self) -> None:
        self._stop_calling.set()
        self.join(60)
        assert not self.is_alive()


def test_a_frontend_that_is_killed_takes_only_its_own_clients_with_it_and_comes_back(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    channels = served.channel_to_each() + [served.channel() for _ in range(4)]
    clients = [Client(channel) for channel in channels]
    try:
        wait_until(lambda: all(client.answers > 10 for client in clients), "traffic flows")
        victim, other = served.pool.process_ids
        touched = connections(victim, served.port)
        assert touched + connections(other, served.port) == len(channels)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: served.pool.restarts == 1 and served.pool.frontends == PROCESSES, "it is back")
        before = [client.answers for client in clients]
        pairs = list(zip(clients, before, strict=True))
        wait_until(lambda: all(client.answers > count + 10 for client, count in pairs), "everybody is served")
    finally:
        for client in clients:
            client.end()
    assert sum(bool(client.failures) for client in clients) <= touched
    assert {code for client in clients for code, _ in client.failures} <= {grpc.StatusCode.UNAVAILABLE}
    assert other in served.pool.process_ids
    assert "gRPC frontend 0 ended; it is started again" in caplog.text
    wait_until(lambda: served.pool.calls_inside == 0, "nothing is left inside")


def test_calls_inside_a_frontend_that_dies_are_cancelled(served: Served) -> None:
    channels = served.channel_to_each()
    futures = [channel.unary_unary("/test.Service/wait").future(b"w") for channel in channels]
    for _ in futures:
        assert served.service.entered.acquire(timeout=20)
    victim = served.pool.process_ids[0]
    lost = connections(victim, served.port)
    os.kill(victim, signal.SIGKILL)
    for _ in range(lost):
        assert served.service.cancelled.acquire(timeout=20)
    assert served.pool.calls_inside == len(futures) - lost
    served.open_gate()
    results = [future.exception(timeout=20) for future in futures]
    assert sum(error is None for error in results) == len(futures) - lost


def test_a_frontend_that_dies_in_the_middle_of_streams_takes_only_its_own_with_it(served: Served) -> None:
    channels = served.channel_to_each()
    talks, joins = [Talk(channel) for channel in channels], [Words(channel) for channel in channels]
    large = os.urandom(300_000)
    for talk, joined in zip(talks, joins, strict=True):
        talk.say(large)
        joined.say(large)
    assert [next(talk.call) for talk in talks] == [large + b"!"] * len(talks)
    for _ in joins:
        assert served.service.entered.acquire(timeout=20)
    victim = served.pool.process_ids[0]
    lost = connections(victim, served.port)
    assert 0 < lost < len(channels)
    os.kill(victim, signal.SIGKILL)
    for _ in range(2 * lost):
        assert served.service.cancelled.acquire(timeout=20)
    assert served.pool.calls_inside == 2 * (len(channels) - lost)
    assert served.service.heard_all == 0, "no handler takes the death of a frontend for the last word of a client"
    for speaker in (*talks, *joins):
        speaker.say(b"more", None)
    answers = [rest(talk) for talk in talks]
    assert sorted(answers.count(kind) for kind in (None, [b"more!", b"bye"])) == sorted([lost, len(channels) - lost])
    wholes = [joined.future.exception(timeout=20) or joined.future.result() for joined in joins]
    assert wholes.count(large + b"more") == len(channels) - lost
    errors = [error for error in wholes if isinstance(error, grpc.RpcError)]
    assert [error.code() for error in errors] == [grpc.StatusCode.UNAVAILABLE] * lost
    wait_until(lambda: served.pool.frontends == PROCESSES, "it is back")
    again = Talk(served.channel())
    again.say(b"a", None)
    assert list(again.call) == [b"a!", b"bye"]


def rest(talk: Talk) -> list[bytes] | None:
    """What is still said; None: the call broke."""
    try:
        return list(talk.call)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
        return None


def test_a_client_that_is_killed_with_streams_open_leaves_nothing_inside(served: Served) -> None:
    program = (
        "import grpc, sys, time\n"
        "from tfs_lite.testing.frontend_house import Talk, Words\n"
        f"channel = grpc.insecure_channel('127.0.0.1:{served.port}')\n"
        "talks = [Talk(channel) for _ in range(5)]\n"
        "words = [Words(channel) for _ in range(5)]\n"
        "for speaker in (*talks, *words): speaker.say(bytes(100_000))\n"
        "for talk in talks: next(talk.call)\n"
        "print('inside', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "inside\n"
            wait_until(lambda: served.pool.calls_inside == 10, "all streams are open")
        finally:
            client.kill()
    wait_until(lambda: served.pool.calls_inside == 0, "nothing is inside")


def test_a_frontend_that_hangs_does_not_hinder_the_others_and_is_ended_by_stop(
    served: Served, channel: grpc.Channel
) -> None:
    assert call(channel, "echo") == b"x"
    victim = next(pid for pid in served.pool.process_ids if not connections(pid, served.port))
    os.kill(victim, signal.SIGSTOP)  # alive, and silent
    assert call(channel, "echo") == b"x"
    served.stop(grace=0.0)
    assert not psutil.pid_exists(victim)


MAIN = """
import asyncio, sys
from tfs_lite.server.frontend_pool import FrontendPool
from tfs_lite.transport.table import unary

async def echo(data, context):
    return data

async def main():
    pool = FrontendPool([unary("/test.Service/echo", echo)], 1000, processes=3, server=sys.argv[1])
    port = await pool.start("127.0.0.1", 0, "")
    print(port, *pool.process_ids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def main_process() -> Iterator[tuple[subprocess.Popen[str], int, list[psutil.Process]]]:
    """A process with a pool; its frontends may outlive it only for a moment."""
    with subprocess.Popen([sys.executable, "-c", MAIN, chosen()], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port, *pids = map(int, process.stdout.readline().split())
            yield process, port, [psutil.Process(pid) for pid in pids]
        finally:
            process.kill()


def test_the_end_of_the_main_process_leaves_no_frontend_behind() -> None:
    with main_process() as (process, port, frontends):
        assert len(frontends) == 3
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert call(channel, "echo") == b"x"
            process.kill()
            wait_until(lambda: not any(frontend.is_running() for frontend in frontends), "every frontend has ended")


def test_a_frontend_is_deaf_to_the_signals_of_a_terminal() -> None:
    with main_process() as (_, port, frontends), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for frontend in frontends:
            frontend.send_signal(signal.SIGINT)
            frontend.send_signal(signal.SIGTERM)
        assert call(channel, "echo") == b"x"
        assert all(frontend.is_running() for frontend in frontends)


# Stopping.


def stopping(served: Served, pool: ThreadPoolExecutor, grace: float) -> Callable[[], Any]:
    future = pool.submit(served.stop, grace)
    return lambda: future.result(30)


def shut(channel: grpc.Channel) -> bool:
    try:
        call(channel, "echo")
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
        return True
    return False


def test_stop_answers_what_is_inside_every_frontend_and_refuses_the_rest(served: Served) -> None:
    channels = served.channel_to_each()
    words = [os.urandom(3_000_000) for _ in channels]
    inside = [
        channel.unary_unary("/test.Service/wait").future(word) for channel, word in zip(channels, words, strict=True)
    ]
    for _ in inside:
        assert served.service.entered.acquire(timeout=20)
    with ThreadPoolExecutor(1) as pool:
        stopped = stopping(served, pool, 60.0)
        for channel in channels:
            wait_until(lambda channel=channel: shut(channel), "the door is shut")
        served.open_gate()
        assert [future.result(timeout=20) for future in inside] == words
        stopped()


def test_drain_under_load_answers_every_call_that_was_let_in(served: Served) -> None:
    channels = served.channel_to_each() + [served.channel() for _ in range(4)]
    before = served.service.ran
    clients = [Client(channel, stop_at_failure=True) for channel in channels]
    try:
        wait_until(lambda: all(client.answers > 10 for client in clients), "traffic flows")
        served.stop(60.0)
    finally:
        for client in clients:
            client.end()
    assert sum(client.answers for client in clients) == served.service.ran - before
    assert {code for client in clients for code, _ in client.failures} == {grpc.StatusCode.UNAVAILABLE}


def test_a_second_stop_with_a_shorter_grace_ends_the_wait(served: Served, channel: grpc.Channel) -> None:
    future = channel.unary_unary("/test.Service/wait").future(b"x")
    assert served.service.entered.acquire(timeout=20)
    with ThreadPoolExecutor(1) as pool:
        stopped = stopping(served, pool, 1000.0)
        wait_until(lambda: shut(channel), "the door is shut")
        served.stop(0.0)
        stopped()
    assert future.exception(timeout=20) is not None
    assert served.service.cancelled.acquire(timeout=20)


def test_stop_while_a_frontend_is_down_starts_it_no_more(served: Served) -> None:
    for pid in served.pool.process_ids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: served.pool.frontends == 0, "all are dead")
    served.stop(10.0)
    assert served.pool.process_ids == ()
