"""The helper that runs servers: it waits for states with a bound, and tells what a process did."""

from __future__ import annotations

import sys

import pytest

from tests.support.servers.process import ServerProcess, free_ports, wait_until


def test_wait_until_returns_the_first_true_value():
    values = iter([0, "", None, "there"])
    assert wait_until(lambda: next(values), "a value", interval=0) == "there"


def test_wait_until_names_what_did_not_happen_and_the_last_value():
    with pytest.raises(TimeoutError, match=r"the flag is up; last seen: 0"):
        wait_until(lambda: 0, "the flag is up", timeout=0)


def test_free_ports_are_distinct_and_outside_the_range_of_outgoing_calls():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(15000 <= port < 32000 for port in ports)


def script(body: str) -> list[str]:
    return [sys.executable, "-c", body]


def test_process_that_ends_before_it_is_ready_shows_its_log():
    server = ServerProcess(command=script("print('no models'); raise SystemExit(3)"))
    with pytest.raises(RuntimeError, match=r"ended with 3 .*\n*no models"), server:
        pass
    assert server.exit_code == 3
    assert "no models" in server.log()
    assert not server.leftovers()


def test_process_that_ignores_the_first_signal_is_killed():
    body = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    server = ServerProcess(command=script(body), stop_timeout=0.1).start()
    wait_until(lambda: "up" in server.log(), "it ignores signals")
    assert server.leftovers()
    assert server.stop() == -9
    assert not server.leftovers()
