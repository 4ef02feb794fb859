"""Bad versions pushed under the stock clients of TensorFlow Serving and of Triton, which see no error.

All twelve kinds, for a quarter of an hour: ``python -m tests.support.guard.scenario --way tensorflow`` by this Python.
"""

from pathlib import Path

import pytest

from tests.conformance.servers import SERVER
from tests.support.guard.scenario import FEW, Pushes, check


@pytest.mark.parametrize("way", ["tensorflow", "triton"])
def test_stock_clients_do_not_notice_bad_versions(tmp_path: Path, way: str) -> None:
    with Pushes(tmp_path, way, kinds=FEW, callers=20, rate=40, command=[str(SERVER)]) as pushes:
        pushes.push_all()
        check(pushes.wait_decided(90), recorded=False)
