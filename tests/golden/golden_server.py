"""One server in this process, with models that make every kind of answer and every metric; and its callers."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from golden_code import PACKAGE
from google.protobuf import any_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

import tfs_lite

PATIENCE = 30.0
PLUS_ONE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + 1}
"""
ROWS = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
"""
BATCHED = """
platform: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
dynamic_batching { }
"""
SCORES = """
platform: python
max_batch_size: 4
input: [{name: x, data_type: TYPE_FP32, dims: [1]}]
output: [{name: y, data_type: TYPE_FP32, dims: [1]}]
signatures:
  regress: {method_name: regress, outputs: {outputs: y}}
  classify: {method_name: classify, outputs: {scores: y}}
warmup:
  - body: {instances: [[1.0]]}
"""
SEQUENCES = """
sequence_batching { direct { } control_input {
  name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } }
"""
MODELS: Mapping[str, Mapping[str, str]] = {
    "plain": {"config.pbtxt": ROWS},
    "batched": {"config.pbtxt": BATCHED},
    "cached": {"config.pbtxt": BATCHED + "response_cache { enable: true }"},
    "scores": {"config.yaml": SCORES},
    "sequences": {"config.pbtxt": BATCHED.replace("dynamic_batching { }", SEQUENCES)},
}
LOGGED = """logging_config {
  log_collector_config { type: "file" filename_prefix: "ROOT/log" } sampling_config { sampling_rate: 1.0 } }"""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of HTTP. Headers that differ from one answer to the next are left out."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class World:
    """A started server. One thread."""

    server: tfs_lite.Server
    root: Path
    channel: grpc.Channel = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.server.port}")

    def http(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.rest_api_port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, {k.replace("_", "-"): v for k, v in headers.items()})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders() if name.lower() != "date"}
            return Answer(response.status, found, response.read())

    def rpc(self, path: str, request: bytes, **metadata: str) -> bytes:
        """Raises grpc.RpcError."""
        call = self.channel.unary_unary(path, request_serializer=None, response_deserializer=None)
        answer: bytes = call(request, timeout=PATIENCE, metadata=tuple(metadata.items()))
        return answer

    def stream(self, path: str, requests: Iterable[bytes], most: int) -> list[bytes]:
        """The first answers. Raises grpc.RpcError."""
        method = self.channel.stream_stream(path, request_serializer=None, response_deserializer=None)
        calls = method(iter(requests), timeout=PATIENCE)
        answers: list[bytes] = list(itertools.islice(calls, most))
        calls.cancel()
        return answers

    def plain(self, text: str) -> str:
        """Without what is of this run: directories, ports, times, and the release."""
        text = text.replace(str(self.root), "ROOT").replace(tfs_lite.__version__, "VERSION")
        for port in (self.server.port, self.server.rest_api_port):
            text = re.sub(rf"\b{port}\b", "PORT", text)
        return text


@contextlib.contextmanager
def started() -> Iterator[World]:
    """The one server of all lists that need one."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, files in MODELS.items():
            version = root / name / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(PLUS_ONE)
            for file, text in files.items():
                (version / file).write_text(text)
        config = root / "models.config"
        entries = (_entry(name) for name in MODELS)
        config.write_text(f"model_config_list {{ {' '.join(entries)} }}".replace("ROOT", directory))
        server = tfs_lite.Server(
            model_config_file=str(config),
            trusted_model_base_paths=(f"{root}/*",),
            version_quiet_period_seconds=0.0,
            file_system_poll_wait_seconds=0.05,
            num_initial_load_threads=1,
            ready_requires_all_models=True,
            enable_batching=True,
            cache_config="local,size=1048576",
            device="cpu",
            grpc_server="native",
        )
        with server:
            server.wait_ready(PATIENCE)
            world = World(server, root)
            with world.channel:
                yield world


def _entry(name: str) -> str:
    rest = f'version_labels {{ key: "stable" value: 1 }} {LOGGED}' if name == "plain" else ""
    return f'config {{ name: "{name}" base_path: "ROOT/{name}" {rest} }}'


@cache
def descriptors() -> FileDescriptorSet:
    """The wire definitions that the product brings."""
    found: FileDescriptorSet = FileDescriptorSet.FromString(next(PACKAGE.rglob("*.binpb")).read_bytes())
    return found


@cache
def pool() -> DescriptorPool:
    made = DescriptorPool()
    for module in (any_pb2, wrappers_pb2):
        made.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in descriptors().file:
        made.AddSerializedFile(file.SerializeToString())
    return made


def message(name: str) -> Any:
    """A class of message."""
    return GetMessageClass(pool().FindMessageTypeByName(name))
