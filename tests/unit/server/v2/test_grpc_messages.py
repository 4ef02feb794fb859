"""Everything of V2 over gRPC that is no inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import Mock, call

import grpc
import pytest

from tests.support.servers.v2_client import V2Client
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.v2.shared_memory import CudaRegionStatus, RegionStatus, SharedRegions
from tfs_lite.serving.statistics.trace_settings import V2Settings

pytestmark = pytest.mark.wire


class Control:
    """Answers with values that a test can tell apart, and notes what it was asked to change."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.settings = V2Settings(lambda name: name == "m")
        self.memory = Mock(SharedRegions)
        self.memory.system_status.side_effect = lambda name: [RegionStatus(name or "r", "/key", 8, 64)]
        self.memory.cuda_status.side_effect = lambda name: [CudaRegionStatus(name or "c", 1, 64)]

    def server_live(self) -> bool:
        return True

    def server_ready(self) -> bool:
        return True

    def model_ready(self, name: str, version: int | None) -> bool:
        return name == "simple" and version in (None, 1)

    def server_metadata(self) -> Message:
        return v2.ServerMetadataResponse(name="server", version="9", extensions=("a", "b"))

    def model_metadata(self, name: str, version: int | None) -> Message:
        inputs, outputs = [{"name": "in", "datatype": "FP32", "shape": (-1, 4)}], [{"name": "out", "datatype": "BYTES"}]
        return v2.ModelMetadataResponse(
            name=name, versions=[str(version or 1)], platform="pytorch", inputs=inputs, outputs=outputs
        )

    def model_config(self, name: str, version: int | None) -> Message:
        return v2.ModelConfig(name=name, max_batch_size=8)

    def statistics(self, name: str | None, version: int | None) -> Message:
        return v2.ModelStatisticsResponse(model_stats=[{"name": name or "all", "version": str(version or 1)}])

    def index(self, ready: bool) -> Message:
        broken = v2.ModelIndex(name="b", version="2", state="UNAVAILABLE", reason="why")
        found = [v2.ModelIndex(name="a", version="1", state="READY")] + ([] if ready else [broken])
        return v2.RepositoryIndexResponse(models=found)

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        self.done.append(("load", name, dict(parameters)))

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        self.done.append(("unload", name, unload_dependents))


@pytest.fixture
def control() -> Iterator[Control]:
    control = Control()
    yield control
    control.settings.close()


def test_health_and_metadata(client: V2Client) -> None:
    assert client.call("ServerLive").live
    assert client.call("ServerReady").ready
    assert client.call("ModelReady", name="simple", version="1").ready
    assert not client.call("ModelReady", name="simple", version="2").ready
    server = client.call("ServerMetadata")
    assert (server.name, server.version, list(server.extensions)) == ("server", "9", ["a", "b"])
    model = client.call("ModelMetadata", name="m", version="2")
    assert (model.name, list(model.versions), model.platform) == ("m", ["2"], "pytorch")
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [("in", "FP32", [-1, 4])]
    assert [(t.name, t.datatype, list(t.shape)) for t in model.outputs] == [("out", "BYTES", [])]
    assert client.call("ModelConfig", name="m").config.max_batch_size == 8
    assert client.refusal("ModelReady", name="m", version="-1")[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_statistics_are_of_a_version_or_of_all(client: V2Client) -> None:
    for asked, shown in (({"name": "m", "version": "2"}, ("m", "2")), ({}, ("all", "1"))):
        (found,) = client.call("ModelStatistics", **asked).model_stats
        assert (found.name, found.version) == shown


def test_the_repository_is_asked(client: V2Client, control: Control) -> None:
    models = client.call("RepositoryIndex").models
    assert [(m.name, m.version, m.state, m.reason) for m in models] == [
        ("a", "1", "READY", ""),
        ("b", "2", "UNAVAILABLE", "why"),
    ]
    assert len(client.call("RepositoryIndex", ready=True).models) == 1
    parameters = {"config": {"string_param": "{}"}, "file:1/model.pt": {"bytes_param": b"x"}}
    client.call("RepositoryModelLoad", model_name="m", parameters=parameters)
    client.call("RepositoryModelUnload", model_name="m", parameters={"unload_dependents": {"bool_param": True}})
    client.call("RepositoryModelUnload", model_name="n")
    assert control.done == [
        ("load", "m", {"config": "{}", "file:1/model.pt": b"x"}),
        ("unload", "m", True),
        ("unload", "n", False),
    ]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("RepositoryModelLoad", {"other": {"string_param": "x"}}),
        ("RepositoryModelLoad", {"config": {"bytes_param": b"{}"}}),
        ("RepositoryModelLoad", {"file:1/a": {"string_param": "x"}}),
        ("RepositoryModelUnload", {"unload_dependents": {"int64_param": 1}}),
        ("RepositoryModelUnload", {"other": {"bool_param": True}}),
    ],
    ids=str,
)
def test_unknown_parameters_of_the_repository_are_refused(
    client: V2Client, control: Control, method: str, parameters: dict[str, Any]
) -> None:
    code, message = client.refusal(method, model_name="m", parameters=parameters)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert next(iter(parameters)) in message
    assert not control.done


def test_there_is_one_repository(client: V2Client) -> None:
    for method in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
        assert client.refusal(method, repository_name="x")[0] is grpc.StatusCode.UNIMPLEMENTED


def test_shared_memory_is_registered(client: V2Client, control: Control) -> None:
    found = client.call("SystemSharedMemoryStatus", name="r").regions["r"]
    assert (found.name, found.key, found.offset, found.byte_size) == ("r", "/key", 8, 64)
    client.call("SystemSharedMemoryRegister", name="r", key="/k", offset=1, byte_size=2)
    client.call("SystemSharedMemoryUnregister", name="r")
    client.call("SystemSharedMemoryUnregister")
    cuda = client.call("CudaSharedMemoryStatus").regions["c"]
    assert (cuda.name, cuda.device_id, cuda.byte_size) == ("c", 1, 64)
    client.call("CudaSharedMemoryRegister", name="c", raw_handle=b"h", device_id=1, byte_size=2)
    client.call("CudaSharedMemoryUnregister", name="c")
    assert [done for done in control.memory.mock_calls if not done[0].endswith("status")] == [
        call.system_register(RegionStatus("r", "/k", 1, 2)),
        call.system_unregister("r"),
        call.system_unregister(None),
        call.cuda_register(CudaRegionStatus("c", 1, 2), b"h"),
        call.cuda_unregister("c"),
    ]


def test_settings_are_read_and_changed(client: V2Client) -> None:
    changes = {"trace_level": {"value": ["TIMESTAMPS", "TENSORS"]}, "trace_rate": {"value": ["5"]}}
    changed = client.call("TraceSetting", model_name="m", settings=changes).settings
    assert (list(changed["trace_level"].value), list(changed["trace_rate"].value)) == (["TIMESTAMPS", "TENSORS"], ["5"])
    assert client.call("TraceSetting", model_name="m").settings == changed
    assert list(client.call("TraceSetting").settings["trace_rate"].value) == ["1000"]
    cleared = client.call("TraceSetting", model_name="m", settings={"trace_rate": {"value": []}}).settings
    assert list(cleared["trace_rate"].value) == ["1000"]
    client.call("LogSettings", settings={"log_verbose_level": {"uint32_param": 2}})
    changed = client.call("LogSettings", settings={"log_info": {"bool_param": False}}).settings
    assert changed["log_info"].WhichOneof("parameter_choice") == "bool_param"
    assert not changed["log_info"].bool_param
    assert (changed["log_verbose_level"].uint32_param, changed["log_format"].string_param) == (2, "default")
    assert client.call("LogSettings").settings == changed
