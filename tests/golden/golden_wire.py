"""What goes over the wire: the definitions of messages and services, and the answers to a fixed set of requests.

A gRPC answer stands here as its bytes, in hex, and as text. Where it names what is of this run only, or holds a map of
several entries, which has no order, the text must do.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from golden_code import one_line
from golden_server import World, descriptors, message, pool
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

PREDICTION, MODELS = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
STREAMED = "tfs_lite.GenerationService"
V2 = "inference.GRPCInferenceService"
ROW = struct.pack("<3f", 1, 2, 3)
FLOAT, INT32 = 1, 3
SHOWN_BYTES = 200


def definitions() -> Iterator[str]:
    for file in descriptors().file:
        yield f"file {file.name} sha256 {hashlib.sha256(file.SerializeToString(deterministic=True)).hexdigest()}"
        for found in file.message_type:
            yield from _message(found, file.package)
        for found in file.enum_type:
            yield from _enum(found, file.package)
        for service in file.service:
            for method in service.method:
                ways = f"{_many(method.client_streaming)}{method.input_type} -> {_many(method.server_streaming)}"
                yield f"service {file.package}.{service.name}.{method.name}: {ways}{method.output_type}"


def _many(streaming: bool) -> str:
    return "stream of " if streaming else ""


def _message(found: DescriptorProto, package: str) -> Iterator[str]:
    name = f"{package}.{found.name}"
    yield f"message {name}"
    for field in found.field:
        kind = field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
        choice = f" of {found.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        yield f"message {name} field {field.number} {field.name}: {label} {kind}{choice}"
    for inner in found.nested_type:
        yield from _message(inner, name)
    for enum in found.enum_type:
        yield from _enum(enum, name)


def _enum(found: EnumDescriptorProto, package: str) -> Iterator[str]:
    yield from (f"enum {package}.{found.name}.{value.name} = {value.number}" for value in found.value)


def answers(world: World) -> Iterator[str]:
    """What the server answers, protocol by protocol."""
    for part in (_tensorflow, _tensorflow_errors, _v2, _v2_errors, _streams, _http, _http_errors):
        for line in part(world):
            yield world.plain(line)


# gRPC


def _call(world: World, what: str, path: str, request: Any) -> Iterator[str]:
    data = request if isinstance(request, bytes) else request.SerializeToString(deterministic=True)
    yield from _told(world, f"gRPC {path}, {what}", lambda: [world.rpc(f"/{path}", data)], path)


def _told(world: World, title: str, ask: Callable[[], list[bytes]], path: str) -> Iterator[str]:
    try:
        found = ask()
    except grpc.RpcError as error:
        yield f"{title}: {error.code().name}: {one_line(error.details())}"
        return
    for place, data in enumerate(found):
        yield from _answer(world, f"{title}: answer {place}", path, data)


def _answer(world: World, title: str, path: str, data: bytes) -> Iterator[str]:
    service, _, method = path.partition("/")
    output = pool().FindServiceByName(service).methods_by_name[method].output_type
    answer = message(output.full_name).FromString(data)
    text = text_format.MessageToString(answer, as_one_line=True, descriptor_pool=pool())
    yield f"{title}: {text}"
    if world.plain(text) == text and not _has_wide_map(answer):
        yield f"{title}: {_hex(data)}"


def _hex(data: bytes) -> str:
    return f"bytes {data.hex()}" if len(data) <= SHOWN_BYTES else f"sha256 {hashlib.sha256(data).hexdigest()}"


def _has_wide_map(answer: Any) -> bool:
    for field, value in answer.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            values = [value[key] for key in value]
            if len(values) > 1 or any(hasattr(each, "ListFields") and _has_wide_map(each) for each in values):
                return True
        elif any(_has_wide_map(each) for each in (value if field.is_repeated else [value])):
            return True
    return False


def predict(model: str = "plain", **spec: Any) -> Any:
    """A row of three numbers, as raw bytes."""
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model
    for name, value in spec.items():
        if name == "version":
            request.model_spec.version.value = value
        else:
            setattr(request.model_spec, name, value)
    fill(request.inputs["x"], ROW, 1, 3)
    return request


def fill(tensor: Any, data: bytes, *shape: int, dtype: int = FLOAT) -> None:
    del tensor.tensor_shape.dim[:]
    tensor.dtype = dtype
    tensor.tensor_content = data
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)


def _tensorflow(world: World) -> Iterator[str]:
    path = f"{PREDICTION}/Predict"
    yield from _call(world, "raw bytes", path, predict())
    yield from _call(world, "version 1", path, predict(version=1))
    yield from _call(world, "label", path, predict(version_label="stable"))
    yield from _call(world, "signature", path, predict(signature_name="serving_default"))
    yield from _call(world, "batched", path, predict("batched"))
    for time in ("once", "twice"):
        yield from _call(world, f"cached, {time}", path, predict("cached"))
    typed = predict()
    typed.inputs["x"].ClearField("tensor_content")
    typed.inputs["x"].float_val.extend((1, 2, 3))
    yield from _call(world, "typed field", path, typed)
    filtered = predict()
    filtered.output_filter.append("y")
    yield from _call(world, "output filter", path, filtered)
    metadata = message("tensorflow.serving.GetModelMetadataRequest")(metadata_field=["signature_def"])
    metadata.model_spec.name = "plain"
    yield from _call(world, "plain", f"{PREDICTION}/GetModelMetadata", metadata)
    status = message("tensorflow.serving.GetModelStatusRequest")()
    status.model_spec.name = "plain"
    yield from _call(world, "plain", f"{MODELS}/GetModelStatus", status)
    for verb, kind in (("Classify", "Classification"), ("Regress", "Regression")):
        request = message(f"tensorflow.serving.{kind}Request")(input=_examples())
        request.model_spec.name, request.model_spec.signature_name = "scores", verb.lower()
        yield from _call(world, "an example", f"{PREDICTION}/{verb}", request)
    multi = message("tensorflow.serving.MultiInferenceRequest")(input=_examples())
    for verb in ("regress", "classify"):
        task = multi.tasks.add(method_name=f"tensorflow/serving/{verb}")
        task.model_spec.name, task.model_spec.signature_name = "scores", verb
    yield from _call(world, "two tasks", f"{PREDICTION}/MultiInference", multi)
    yield from _call(world, "the server", "grpc.health.v1.Health/Check", b"")


def _examples() -> Any:
    found = message("tensorflow.serving.Input")()
    found.example_list.examples.add().features.feature["x"].float_list.value.append(1.0)
    return found


def _tensorflow_errors(world: World) -> Iterator[str]:
    path = f"{PREDICTION}/Predict"
    yield from _call(world, "no message", path, b"\xff\xff")
    yield from _call(world, "no model", path, b"")
    yield from _call(world, "unknown model", path, predict("nothing"))
    yield from _call(world, "unknown version", path, predict(version=7))
    yield from _call(world, "unknown label", path, predict(version_label="nothing"))
    yield from _call(world, "unknown signature", path, predict(signature_name="nothing"))
    wrong = predict()
    fill(wrong.inputs["z"], ROW, 1, 3)
    yield from _call(world, "one input too many", path, wrong)
    del wrong.inputs["x"]
    yield from _call(world, "wrong input", path, wrong)
    for what, data, shape, dtype in (
        ("wrong shape", ROW, (3,), FLOAT),
        ("wrong size", ROW, (1, 4), FLOAT),
        ("wrong type", ROW, (1, 3), INT32),
        ("no type", ROW, (1, 3), 0),
        ("negative size", ROW, (-1, 3), FLOAT),
    ):
        wrong = predict()
        fill(wrong.inputs["x"], data, *shape, dtype=dtype)
        yield from _call(world, what, path, wrong)
    filtered = predict()
    filtered.output_filter.append("nothing")
    yield from _call(world, "unknown output", path, filtered)
    for method in ("Classify", "Regress", "MultiInference", "GetModelMetadata"):
        yield from _call(world, "empty", f"{PREDICTION}/{method}", b"")
    for method in ("GetModelStatus", "HandleReloadConfigRequest"):
        yield from _call(world, "empty", f"{MODELS}/{method}", b"")
    health = message("grpc.health.v1.HealthCheckRequest")(service="nothing")
    yield from _call(world, "unknown service", "grpc.health.v1.Health/Check", health)
    yield from _call(world, "unknown method", f"{PREDICTION}/Nothing", b"")
    yield from _call(world, "unknown service", "nothing.Nothing/Nothing", b"")


def infer(model: str = "plain", name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (1, 3)) -> Any:
    """A row of three numbers, as raw bytes, of a request with an id."""
    request = message("inference.ModelInferRequest")(model_name=model, id="7", raw_input_contents=[ROW])
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    return request


def _v2(world: World) -> Iterator[str]:
    path = f"{V2}/ModelInfer"
    yield from _call(world, "raw bytes", path, infer())
    yield from _call(world, "batched", path, infer("batched"))
    typed = infer()
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend((1, 2, 3))
    yield from _call(world, "typed contents", path, typed)
    begins = infer("sequences")
    begins.parameters["sequence_id"].int64_param = 5
    begins.parameters["sequence_start"].bool_param = True
    yield from _call(world, "a sequence begins", path, begins)
    for method in ("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex", "TraceSetting", "LogSettings"):
        yield from _call(world, "empty", f"{V2}/{method}", b"")
    for method in ("SystemSharedMemoryStatus", "CudaSharedMemoryStatus"):
        yield from _call(world, "empty", f"{V2}/{method}", b"")
    for method in ("ModelReady", "ModelMetadata", "ModelConfig"):
        for model in ("plain", "batched"):
            request = message(f"inference.{method}Request")(name=model)
            yield from _call(world, model, f"{V2}/{method}", request)


def _v2_errors(world: World) -> Iterator[str]:
    path = f"{V2}/ModelInfer"
    yield from _call(world, "no message", path, b"\xff\xff")
    yield from _call(world, "no model", path, b"")
    yield from _call(world, "unknown model", path, infer("nothing"))
    yield from _call(world, "wrong input", path, infer(name="z"))
    yield from _call(world, "wrong shape", path, infer(shape=(3,)))
    yield from _call(world, "wrong size", path, infer(shape=(1, 4)))
    yield from _call(world, "wrong type", path, infer(datatype="INT32"))
    yield from _call(world, "unknown type", path, infer(datatype="NOTHING"))
    yield from _call(world, "too many rows", path, infer("batched", shape=(9, 3)))
    yield from _call(world, "no sequence", path, infer("sequences"))
    versioned = infer()
    versioned.model_version = "nothing"
    yield from _call(world, "wrong version", path, versioned)
    named = infer()
    named.outputs.add(name="nothing")
    yield from _call(world, "unknown output", path, named)
    for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        request = message(f"inference.{method}Request")(name="nothing")
        yield from _call(world, "unknown model", f"{V2}/{method}", request)
    for method in ("RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryRegister"):
        yield from _call(world, "empty", f"{V2}/{method}", b"")
    yield from _call(world, "empty", f"{V2}/CudaSharedMemoryRegister", b"")


def _streams(world: World) -> Iterator[str]:
    reflection = message("grpc.reflection.v1.ServerReflectionRequest")
    asked: tuple[tuple[str, str, list[Any], int], ...] = (
        ("two rows", f"{STREAMED}/PredictStreamed", [predict(), predict()], 2),
        ("unknown model", f"{STREAMED}/PredictStreamed", [predict("nothing")], 1),
        ("a row, and a wrong one", f"{V2}/ModelStreamInfer", [infer(), infer(name="z")], 2),
        ("unknown model", f"{V2}/ModelStreamInfer", [infer("nothing")], 1),
        ("services", "grpc.reflection.v1.ServerReflection/ServerReflectionInfo", [reflection(list_services="*")], 1),
        (
            "unknown symbol",
            "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            [reflection(file_containing_symbol="nothing")],
            1,
        ),
        ("the server", "grpc.health.v1.Health/Watch", [message("grpc.health.v1.HealthCheckRequest")()], 1),
    )
    for what, path, requests, most in asked:
        sent = [request.SerializeToString() for request in requests]
        ask = _asker(world, path, sent, most)
        yield from _told(world, f"gRPC {path}, {what}", ask, path)


def _asker(world: World, path: str, sent: list[bytes], most: int) -> Callable[[], list[bytes]]:
    return lambda: world.stream(f"/{path}", sent, most)


# HTTP


def _ask(world: World, what: str, method: str, path: str, body: bytes = b"", **headers: str) -> Iterator[str]:
    answer = world.http(method, path, body, **headers)
    title = f"HTTP {method} {path}, {what}:"
    headers = answer.headers | ({"x-request-id": "16 digits"} if answer.headers.get("x-request-id", "7") != "7" else {})
    told = ", ".join(f"{name}: {value}" for name, value in sorted(headers.items()) if name != "content-length")
    yield f"{title} {answer.status} {told}"
    printable = "json" in answer.headers.get("content-type", "") and "inference-header" not in told
    yield f"{title} {one_line(answer.body.decode()) if printable else _hex(answer.body)}"


V2_BODY = b'{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}'
V2_HEAD = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12}}]%s}'


def _http(world: World) -> Iterator[str]:
    plain = "/v1/models/plain"
    yield from _ask(world, "rows", "POST", f"{plain}:predict", b'{"instances":[[1,2,3],[4,5,6]]}')
    yield from _ask(world, "named rows", "POST", f"{plain}:predict", b'{"instances":[{"x":[1,2,3]}]}')
    yield from _ask(world, "columns", "POST", f"{plain}:predict", b'{"inputs":[[1,2,3]]}')
    yield from _ask(world, "named columns", "POST", f"{plain}:predict", b'{"inputs":{"x":[[1,2,3]]}}')
    row = b'{"instances":[[1,2,3]]}'
    yield from _ask(world, "version", "POST", f"{plain}/versions/1:predict", row)
    yield from _ask(world, "label", "POST", f"{plain}/labels/stable:predict", row)
    yield from _ask(world, "msgpack back", "POST", f"{plain}:predict", row, accept="application/msgpack")
    packed = bytes.fromhex("81a9696e7374616e6365739193010203")
    yield from _ask(world, "msgpack", "POST", f"{plain}:predict", packed, content_type="application/msgpack")
    example = b'{"signature_name":"%s","examples":[{"x":1.0}]}'
    for verb in (b"classify", b"regress"):
        yield from _ask(world, "an example", "POST", f"/v1/models/scores:{verb.decode()}", example % verb)
    for path in ("/v1/models", plain, f"{plain}/versions/1", f"{plain}/labels/stable", f"{plain}/metadata"):
        yield from _ask(world, "asked", "GET", path)
    for path in ("/livez", "/startupz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/logging"):
        yield from _ask(world, "asked", "GET", path)
    for path in ("/v2/models/plain", "/v2/models/plain/config", "/v2/models/batched/config", "/v2/trace/setting"):
        yield from _ask(world, "asked", "GET", path)
    yield from _ask(world, "asked", "POST", "/v2/repository/index")
    yield from _ask(world, "asked", "GET", "/openai/v1/models")
    infer_path = "/v2/models/plain/infer"
    yield from _ask(world, "JSON", "POST", infer_path, V2_BODY)
    for what, more in (("binary", b',"parameters":{"binary_data_output":true}'), ("binary, JSON back", b"")):
        head = V2_HEAD % more
        length = {"inference_header_content_length": str(len(head))}
        yield from _ask(world, what, "POST", infer_path, head + ROW, **length)


def _http_errors(world: World) -> Iterator[str]:
    path = "/v1/models/plain:predict"
    for what, body in (
        ("empty", b""),
        ("no JSON", b"{"),
        ("no object", b"[1]"),
        ("no values", b"{}"),
        ("both forms", b'{"instances":[[1,2,3]],"inputs":[[1,2,3]]}'),
        ("ragged", b'{"instances":[[1,2,3],[1]]}'),
        ("wrong shape", b'{"instances":[1,2,3]}'),
        ("wrong type", b'{"instances":[["a","b","c"]]}'),
        ("wrong input", b'{"instances":[{"z":[1,2,3]}]}'),
        ("unknown signature", b'{"signature_name":"nothing","instances":[[1,2,3]]}'),
    ):
        yield from _ask(world, what, "POST", path, body)
    row = b'{"instances":[[1,2,3]]}'
    for what, wrong in (("model", "/v1/models/nothing"), ("version", "/v1/models/plain/versions/7")):
        yield from _ask(world, f"unknown {what}", "POST", f"{wrong}:predict", row)
        yield from _ask(world, f"unknown {what}", "GET", wrong)
    yield from _ask(world, "unknown label", "POST", "/v1/models/plain/labels/nothing:predict", row)
    yield from _ask(world, "unknown packing", "POST", path, row, content_encoding="br")
    yield from _ask(world, "not packed", "POST", path, row, content_encoding="gzip")
    yield from _ask(world, "no msgpack", "POST", path, b"\xc1", content_type="application/msgpack")
    path = "/v2/models/plain/infer"
    for what, body in (
        ("empty", b""),
        ("no JSON", b"{"),
        ("no inputs", b"{}"),
        ("wrong input", V2_BODY.replace(b'"x"', b'"z"')),
        ("wrong shape", V2_BODY.replace(b"[1,3]", b"[3]")),
        ("wrong type", V2_BODY.replace(b"FP32", b"INT32")),
        ("unknown type", V2_BODY.replace(b"FP32", b"NOTHING")),
        ("too few values", V2_BODY.replace(b"[1,2,3]", b"[1,2]")),
    ):
        yield from _ask(world, what, "POST", path, body)
    yield from _ask(world, "wrong length", "POST", path, V2_BODY, inference_header_content_length="9999")
    yield from _ask(world, "unknown model", "POST", "/v2/models/nothing/infer", V2_BODY)
    yield from _ask(world, "wrong version", "POST", "/v2/models/plain/versions/a/infer", V2_BODY)
    for verb in ("load", "unload"):
        yield from _ask(world, "by nobody", "POST", f"/v2/repository/models/plain/{verb}")
    yield from _ask(world, "unknown", "GET", "/openai/v1/models/nothing")
    for path in ("/openai/v1/completions", "/openai/v1/chat/completions"):
        for what, body in (
            ("empty", b""),
            ("no JSON", b"{"),
            ("no model", b"{}"),
            ("unknown model", b'{"model":"nothing","prompt":"a","messages":[{"role":"user","content":"a"}]}'),
            ("no language model", b'{"model":"plain","prompt":"a","messages":[{"role":"user","content":"a"}]}'),
        ):
            yield from _ask(world, what, "POST", path, body)
