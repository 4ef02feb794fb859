"""What the tests of HTTP/2 share."""

from __future__ import annotations

import pytest

from tests.support.grpc.http2_peer import ConnectionFixture


@pytest.fixture
def conn() -> ConnectionFixture:
    """An open connection with the default limits, and its client."""
    return ConnectionFixture()
