"""What the tests of the transport share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.grpc.manual_loop import ManualLoop


@pytest.fixture
def manual_loop() -> Iterator[ManualLoop]:
    made = ManualLoop()
    yield made
    made.close()
