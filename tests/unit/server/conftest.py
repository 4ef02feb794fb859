"""Servers of TensorFlow Serving's REST API in front of a fake model: one for each module, or one for a test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.servers.rest_fixture import RestFixture


@pytest.fixture
def serve() -> Iterator[Callable[..., RestFixture]]:
    """``serve(**options)`` starts a server with options of :class:`RestFixture`, for this test only."""
    from tests.support.servers.rest_fixture import serving_rest

    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(serving_rest(**options))


@pytest.fixture
def server(serve: Callable[..., RestFixture]) -> RestFixture:
    """A server of this test only."""
    return serve()


@pytest.fixture(scope="module")
def module_server() -> Iterator[RestFixture]:
    from tests.support.servers.rest_fixture import serving_rest

    with serving_rest() as server:
        yield server


@pytest.fixture
def shared(module_server: RestFixture) -> Iterator[RestFixture]:
    """The server that the tests of a module share; each test must leave no request behind."""
    module_server.log.offers.clear()
    yield module_server
    module_server.servable.open()
    assert module_server.is_empty()


@pytest.fixture
def ask(shared: RestFixture) -> Iterator[Callable[..., bytes]]:
    """Sends pieces over a connection of its own to the shared server; what comes back until the server closes."""
    with contextlib.ExitStack() as stack:

        def send(*pieces: bytes) -> bytes:
            connection = stack.enter_context(shared.raw(*pieces))
            with contextlib.suppress(ConnectionResetError):
                return b"".join(iter(lambda: connection.recv(65536), b""))
            return b""

        yield send
