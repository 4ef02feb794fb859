"""Where the server can be asked: the API's description, what each HTTP path answers to each method, gRPC's methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import orjson
from golden_code import one_line
from golden_server import World, message
from google.protobuf.descriptor_pb2 import FileDescriptorProto

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MODEL = tuple(f"/v1/models/plain{which}" for which in ("", "/versions/1", "/labels/stable"))
_V2_MODEL = tuple(f"/v2/models/plain{which}" for which in ("", "/versions/1"))
_V2_ENDS = ("", "/ready", "/config", "/stats", "/infer", "/generate", "/generate_stream")
_MEMORY = ("/status", "/region/r/status", "/region/r/register", "/unregister", "/region/r/unregister")
PATHS = (
    *("/", "/livez", "/startupz", "/readyz", "/metrics", "/monitoring/prometheus/metrics", "/openapi.json", "/nothing"),
    *("/v1", "/v1/", "/v1/models", "/V1/MODELS", "/v1/models/", "/v1/models/plain/", "/v1/nothing"),
    *(
        f"{model}{end}"
        for model in _MODEL
        for end in ("", "/metadata", ":predict", ":classify", ":regress", ":nothing")
    ),
    *("/v1/models/plain:Predict", "/v1/models/plain:predict?a=1", "/v1/models/plain/versions/a"),
    *("/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/nothing"),
    *(f"{model}{end}" for model in _V2_MODEL for end in _V2_ENDS),
    *("/v2/trace/setting", "/v2/models/plain/trace/setting", "/v2/logging"),
    *("/v2/repository/index", "/v2/repository/models/plain/load", "/v2/repository/models/plain/unload"),
    *("/v2/repository/r/index", "/v2/repository/r/models/plain/load", "/v2/repository/r/models/plain/unload"),
    *(f"/v2/{kind}sharedmemory{end}" for kind in ("system", "cuda") for end in _MEMORY),
    *("/openai", "/openai/", "/openai/v1/models", "/openai/v1/models/plain", "/openai/v1/nothing"),
    *("/openai/v1/completions", "/openai/v1/chat/completions"),
)
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def listing(world: World) -> Iterator[str]:
    document = orjson.loads(world.http("GET", "/openapi.json").body)
    yield from (world.plain(f"openapi {line}") for line in _leaves(document))
    for path in PATHS:
        yield f"HTTP {path}: {_answers(world, path)}"
    for service in _services(world):
        yield from _methods(world, service)


def _answers(world: World, path: str) -> str:
    """What the path answers, and to which methods: those with one answer stand together."""
    found: dict[str, list[str]] = {}
    for method in METHODS:
        answer = world.http(method, path)
        told = [answer.headers.get(name, "-") for name in ("content-type", "allow")]
        found.setdefault(f"{answer.status} {told[0]} (allow: {told[1]})", []).append(method)
    return "; ".join(f"{' '.join(methods)} {answer}" for answer, methods in found.items())


def _leaves(tree: Any, path: str = "") -> Iterator[str]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path} {key}".strip())
    elif isinstance(tree, list) and any(isinstance(value, dict) for value in tree):
        for place, value in enumerate(tree):
            yield from _leaves(value, f"{path} [{place}]")
    else:
        yield f"{path} = {orjson.dumps(tree).decode()}"


def _services(world: World) -> list[str]:
    answer = _reflect(world, list_services="*")
    return [service.name for service in answer.list_services_response.service]


def _reflect(world: World, **asked: str) -> Any:
    request = message("grpc.reflection.v1.ServerReflectionRequest")(**asked)
    (answer,) = world.stream(REFLECTION, [request.SerializeToString()], 1)
    return message("grpc.reflection.v1.ServerReflectionResponse").FromString(answer)


def _methods(world: World, service: str) -> Iterator[str]:
    """Each method that the server describes, and what becomes of a call without a request."""
    (data, *_) = _reflect(world, file_containing_symbol=service).file_descriptor_response.file_descriptor_proto
    file = FileDescriptorProto.FromString(data)
    found = next(each for each in file.service if f"{file.package}.{each.name}" == service)
    for method in found.method:
        path = f"/{service}/{method.name}"
        kind = f"{_ways(method.client_streaming)} to {_ways(method.server_streaming)}"
        yield f"gRPC {path} ({kind}): {_outcome(world, path, method.client_streaming, method.server_streaming)}"


def _ways(streaming: bool) -> str:
    return "many" if streaming else "one"


def _outcome(world: World, path: str, *streaming: bool) -> str:
    try:
        if any(streaming):
            world.stream(path, [] if streaming[0] else [b""], 1)
        else:
            world.rpc(path, b"")
    except grpc.RpcError as error:
        return f"{error.code().name}: {one_line(error.details())}"
    return "OK"
