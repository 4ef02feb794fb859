"""Many swaps while eight clients call without pause: no request fails, no answer comes from the wrong version."""

from __future__ import annotations

import psutil
import pytest

from tests.support.profiles import scaled
from tests.support.servers.probe import Traffic
from tests.support.servers.process import wait_until

SWAPS = scaled(100)
CLIENTS = 8
SPARE = 10
"""Threads and open files that pools and event loops may have gained meanwhile."""


@pytest.mark.parametrize("corrupt_every", [0, 3], ids=["all_good", "every_third_corrupt"])
def test_swaps_under_load_lose_nothing(served, model, corrupt_every):
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    last, process = 1, psutil.Process(served.server.pid)
    threads, files = process.num_threads(), process.num_fds()
    with Traffic(served.server.target, model, CLIENTS) as traffic:
        for version in range(2, SWAPS + 2):
            if corrupt_every and version % corrupt_every == 0:
                served.publish(model, version, content=b"PK\x03\x04 looks like an archive, is none" * 50)
                served.probe.wait_failed(model, version)
            else:
                served.publish(model, version)
                served.probe.wait_available(model, version)
                last = version
    assert traffic.failures == []
    assert traffic.wrong == []
    assert len(traffic.answers) > SWAPS / 4, "the clients saw too few of the versions to prove anything"
    assert served.probe.ask(model) == last
    served.probe.wait_states(model, {last - 1: "END", last: "AVAILABLE"})
    wait_until(lambda: process.num_threads() <= threads + SPARE, "the threads of the old versions are gone")
    wait_until(lambda: process.num_fds() <= files + SPARE, "the files of the old versions are closed")
