"""The number of a model's instances is changed by load calls over V2, while clients ask it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.servers.in_process import ROW, ServerFixture, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tests.support.servers.v2_client import V2Client

CLIENTS = 3
PATIENCE = 60.0


class Clients:
    """Ask without a pause. ``answers``: how many there were; every one is right."""

    def __init__(self, client: V2Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._counts = [0] * CLIENTS
        self.faults: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    @property
    def answers(self) -> int:
        return sum(self._counts)

    def _run(self, index: int) -> None:
        try:
            while not self._stop.is_set():
                ask(self._client, index * 1000.0 + self._counts[index])
                self._counts[index] += 1
        except BaseException as error:
            self.faults.append(error)

    def wait_more(self, number: int = 50) -> None:
        wanted = self.answers + number
        wait_until(lambda: bool(self.faults) or self.answers >= wanted, f"{number} more answers", PATIENCE)
        assert not self.faults, self.faults[0]

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not self.faults, self.faults[0]


def ask(client: V2Client, plus: float = 0.0) -> None:
    """The model adds its version, 1."""
    x = ROW + np.float32(plus)
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    answer = client.call("ModelInfer", model_name="m", inputs=[tensor], raw_input_contents=[x.tobytes()])
    found = dict(zip([output.name for output in answer.outputs], answer.raw_output_contents, strict=True))
    np.testing.assert_array_equal(np.frombuffer(found["y"], np.float32).reshape(x.shape), x + 1)


def load(client: V2Client, instances: int) -> None:
    config = {"platform": "pytorch_export", "instance_group": [{"count": instances}]}
    client.call(
        "RepositoryModelLoad", PATIENCE, model_name="m", parameters={"config": {"string_param": json.dumps(config)}}
    )


def statistics(client: V2Client) -> Any:
    (found,) = client.call("ModelStatistics", name="m").model_stats
    return found


def told(client: V2Client) -> int:
    return sum(group.count for group in client.call("ModelConfig", name="m").config.instance_group)


def workers(fixture: ServerFixture) -> int:
    """Instances, as the metrics have them."""
    return sum(state.up for state in fixture.server.core.view.workers())


@pytest.fixture(params=["thread", "process"])
def fixture(request: pytest.FixtureRequest, tmp_path: Path, archives: TaggedArchives) -> Iterator[ServerFixture]:
    archives.write_version(1, tmp_path / "m")
    fields = {"model_repository": str(tmp_path), "model_control_mode": "explicit", "worker": request.param}
    with serving(tmp_path, **fields) as found:
        yield found


def test_instances_come_and_go_without_a_reload_or_a_lost_request(fixture: ServerFixture) -> None:
    with grpc.insecure_channel(fixture.target) as channel:
        client = V2Client(channel)
        load(client, 1)
        clients = Clients(client)
        clients.wait_more()
        for count in (3, 1, 2):
            load(client, count)
            assert (told(client), workers(fixture)) == (count, count)
            clients.wait_more()
        clients.end()
        wait_until(lambda: statistics(client).inference_count >= clients.answers, "all are counted", PATIENCE)
        found = statistics(client)
        assert (found.inference_count, found.inference_stats.success.count) == (clients.answers, clients.answers)
        assert found.inference_stats.fail.count == 0
