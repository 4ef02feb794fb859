"""A few hundred calls of ``soak_grpc.py``: resets, deadlines and clients that vanish leave nothing in the server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from soak_grpc import soak, soak_server

CALLS = 600


@pytest.mark.slow
def test_calls_that_end_in_every_way_are_answered_rightly_and_leave_nothing_behind(tmp_path):
    with soak_server(tmp_path) as server:
        report = soak(server, calls=CALLS, connections=6, callers=6)
    assert report.faults == [], report.grew_most
    assert report.tally.outcomes.total() == CALLS
    assert report.tally.answered > CALLS / 3
    assert not any(report.gauges.values())
