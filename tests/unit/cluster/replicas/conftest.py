"""One process that replicas are forked from, and models in them, over each kind of connection."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.servers.replicas import HostedReplica, PlaceOfReplicas, ReplicaHost
    from tfs_lite.cluster.replicas.engine import ReplicaAddress
    from tfs_lite.cluster.replicas.near import ReplicaModel

WAYS = ("TCP", "UNIX socket", "shared memory")


@pytest.fixture(scope="session")
def host(child_models: str) -> Iterator[ReplicaHost]:
    from tests.support.servers.replicas import ReplicaHost

    with ReplicaHost([child_models]) as found:
        yield found


@pytest.fixture
def start(host: ReplicaHost) -> Iterator[Callable[..., HostedReplica]]:
    """Starts replicas, each with a name of its own."""
    started: list[HostedReplica] = []
    numbers = itertools.count(1)

    def start_one(**settings: Any) -> HostedReplica:
        started.append(host.start(settings.pop("name", f"m/1/00000000/0#{next(numbers)}"), **settings))
        return started[-1]

    yield start_one
    for replica in started:
        replica.kill()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How tensors travel."""
    return str(request.param)


class OpenReplica:
    """A model in a replica, with its place."""

    def __init__(self, model: ReplicaModel, place: PlaceOfReplicas, over: Callable[[ReplicaAddress], ReplicaAddress]):
        self.model = model
        self.place = place
        self.over = over

    def put(self, replica: HostedReplica) -> None:
        """The next replica of the place."""
        self.place.put(self.over(replica.address))


@pytest.fixture
def open_replica(start: Callable[..., HostedReplica], child_models: str) -> Iterator[Callable[..., OpenReplica]]:
    """Opens a model of ``child_models`` in replicas, the first of which is started here unless there are others."""
    from tests.support.servers.replicas import SECRET, PlaceOfReplicas
    from tfs_lite.cluster.replicas.near import ReplicaModel
    from tfs_lite.workers.connection import RemoteModel
    from tfs_lite.workers.supervisor import Backoff

    opened: list[ReplicaModel] = []

    def open_one(
        function: str = "make",
        options: object = None,
        way: str = "shared memory",
        replicas: list[HostedReplica] | None = None,
        near: dict[str, Any] | None = None,
        **settings: Any,
    ) -> OpenReplica:
        def over(address: ReplicaAddress) -> ReplicaAddress:
            return replace(address, unix=None) if way == "TCP" else address

        arguments = options if isinstance(options, str) else json.dumps(options or {})
        remote = RemoteModel("model m version 1", f"{child_models}:{function}", arguments, **settings)
        place = PlaceOfReplicas(*(over(replica.address) for replica in ([start()] if replicas is None else replicas)))
        near = {"backoff": Backoff(first=0.01), "shared_memory": way == "shared memory", **(near or {})}
        opened.append(ReplicaModel(place, remote, near.pop("secret", SECRET), **near))
        return OpenReplica(opened[-1], place, over)

    yield open_one
    for model in opened:
        model.close()
