"""Models behind the V2 services, and a client of the gRPC one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.servers.v2_client import V2Client
    from tests.support.servers.v2_fixture import V2Fixture


@pytest.fixture
def models() -> Iterator[V2Fixture]:
    from tests.support.servers.process import wait_until
    from tests.support.servers.v2_fixture import V2Fixture

    models = V2Fixture()
    yield models
    models.close()
    wait_until(lambda: models.handles == 0, "handles")


@pytest.fixture
def control() -> Any:
    """Inference needs none."""
    return None


@pytest.fixture
def client(loop_thread: Any, models: V2Fixture, control: Any) -> Iterator[V2Client]:
    import grpc

    from tests.support.grpc.grpc_choice import chosen
    from tests.support.servers.v2_client import V2Client
    from tfs_lite.server.grpc.factory import make_grpc_server
    from tfs_lite.server.v2.grpc_service import V2GrpcService

    async def start() -> Any:
        server = make_grpc_server(chosen(), V2GrpcService(models.infer, control, models.fast).methods(), -1)
        return server, await server.start("127.0.0.1", 0, "")

    server, port = loop_thread.run(start())
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield V2Client(channel)
    loop_thread.run(server.stop(0))
