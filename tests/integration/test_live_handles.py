"""A request keeps the version that it entered: the swap goes on around it, the unloading waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.servers.models import gated_source
from tests.support.servers.process import wait_until

pytestmark = pytest.mark.wire


@pytest.fixture
def gate(tmp_path):
    return tmp_path


def test_slow_request_is_answered_by_its_version_while_the_next_is_swapped_in(served, gate):
    model = "code_slow_request"
    served.publish_code(model, 1, gated_source(1, gate))
    served.probe.wait_available(model, 1)
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(served.probe.ask, model)
        wait_until(lambda: (gate / "entered-1").exists(), "the request is inside version 1")
        served.publish(model, 2)
        served.probe.wait_states(model, {2: "AVAILABLE", 1: "UNLOADING"})
        assert served.probe.ask(model) == 2
        assert not inside.done()
        assert served.probe.states(model)[1] == "UNLOADING", "it must not unload under a live request"
        (gate / "open").touch()
        assert inside.result(60) == 1
    served.probe.wait_states(model, {1: "END"})


def test_a_live_request_holds_up_no_other_model(served, model, gate):
    slow = "code_holds_up_nobody"
    served.publish_code(slow, 1, gated_source(1, gate))
    served.probe.wait_available(slow, 1)
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(served.probe.ask, slow)
        wait_until(lambda: (gate / "entered-1").exists(), "the request is inside")
        served.publish(slow, 2)
        served.probe.wait_states(slow, {1: "UNLOADING"})
        for version in (1, 2, 3):
            served.publish(model, version)
            served.probe.wait_available(model, version)
            assert served.probe.ask(model) == version
        served.probe.wait_states(model, {2: "END"})
        assert not inside.done()
        (gate / "open").touch()
        assert inside.result(60) == 1
