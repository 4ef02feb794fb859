"""Seeds of the KServe V2 protocol: requests over gRPC and HTTP, load calls, configs with schedulers."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf import text_format
from handlers_v2 import MODEL_CONFIG, MODELS, REGION
from seeds_messages import wire
from targets_v2 import framed

from tfs_lite.protocols.messages import TritonModelConfig
from tfs_lite.protocols.v2 import messages as v2

_MEMORY = {"shared_memory_region": REGION, "shared_memory_byte_size": 12}


def _parameters(values: dict[str, Any]) -> dict[str, Any]:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param", bytes: "bytes_param"}
    return {key: {kinds[type(value)]: value} for key, value in values.items()}


def _texts(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _input(name: str, datatype: str, *shape: int, **fields: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **fields}


def _infer(model: str, inputs: Iterable[dict[str, Any]], *raw: bytes, **fields: Any) -> bytes:
    parameters = _parameters(fields.pop("parameters", {}))
    request = v2.ModelInferRequest(
        model_name=model, inputs=list(inputs), raw_input_contents=raw, parameters=parameters, **fields
    )
    return wire(request)


_ROW = np.array([[1, 2, 3]], np.float32).tobytes()


def _row(**fields: Any) -> bytes:
    return _infer("m", [_input("x", "FP32", 1, 3)], _ROW, **fields)


def _sequence(**fields: Any) -> bytes:
    return _row(id="s", parameters={"sequence_id": 7, **fields})


def _repeat(*numbers: int, **fields: Any) -> bytes:
    return _infer("repeat", [_input("IN", "INT32", len(numbers))], np.array(numbers, np.int32).tobytes(), **fields)


def v2_infer() -> dict[str, bytes]:
    place = _parameters(_MEMORY)
    wanted = {"name": "y", "parameters": _parameters({"classification": 2})}
    return {
        "row": _row(id="one"),
        "version": _row(model_version="3", outputs=[{"name": "y"}]),
        "typed": _infer("m", [_input("x", "FP32", 1, 3, contents={"fp32_contents": [1, 2, 3]})]),
        "int8": _infer("INT8", [_input("IN", "INT8", 2, contents={"int_contents": [1, 300]})]),
        "uint64": _infer("UINT64", [_input("IN", "UINT64", 1, contents={"uint64_contents": [2**64 - 1]})]),
        "typed-texts": _infer("BYTES", [_input("IN", "BYTES", 2, contents={"bytes_contents": [b"a", b"\xff"]})]),
        "two": _infer("two", [_input("a", "FP32", 1), _input("b", "BYTES", 1)], bytes(4), _texts(b"ab")),
        "shapes": _infer("shapes", [_input("x", "INT64", 1, 1, 2), _input("k", "FP64", 2, 1)], bytes(16), bytes(16)),
        "open": _infer("open", [_input("x", "BOOL", 1, 1)], b"\2"),
        "bfloat16": _infer("BF16", [_input("IN", "BF16", 2)], bytes(4)),
        "half": _infer("FP16", [_input("IN", "FP16", 1)], b"\0\x3c"),
        "defaults": _infer("defaults", [_input("x", "FP32", 2)], bytes(8)),
        "classes": _infer("classes", [_input("x", "FP32", 1, 3)], _ROW, outputs=[wanted]),
        "memory-in": _infer("m", [_input("x", "FP32", 1, 3, parameters=place)]),
        "memory-out": _row(outputs=[{"name": "y", "parameters": place}]),
        "sequence": _sequence(sequence_start=True, sequence_end=True),
        "text-sequence": _row(parameters={"sequence_id": "abc", "sequence_start": True}),
        "parameters": _row(parameters={"priority": 1, "timeout": 5_000_000, "own": 1.5, "other": "x"}),
        "reserved": _row(parameters={"triton_x": True}),
        "repeat": _repeat(1, 2),
        "empty": _infer("INT32", [_input("IN", "INT32", 0)], b""),
        "huge": _infer("INT32", [_input("IN", "INT32", 2**40)], b""),
        "no-version": _row(model_version="x"),
        "nobody": _infer("nobody", []),
    }


def v2_stream() -> dict[str, bytes]:
    bad = _infer("nobody", [], id="bad")
    return {
        "one": b"m" + framed([_row(id="1")]),
        "several": b"m" + framed([_row(id="1"), bad, _row(id="2")]),
        "status": b"e" + framed([_row(id="1"), bad, _row(id="2")]),
        "sequence": b"m" + framed([_sequence(sequence_start=True), _sequence(), _sequence(sequence_end=True)]),
        "parts": b"m" + framed([_repeat(1, 2, 3, id="r"), _row(), _repeat(id="none")]),
        "final": b"m" + framed([_repeat(1, parameters={"triton_enable_empty_final_response": True})]),
        "negative": b"m" + framed([_repeat(-1)]),
        "junk": b"m" + framed([b"\xff\xff", b"", _row()]),
        "nothing": b"m",
    }


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()


def _for(model: str) -> bytes:
    return bytes([MODELS.index(model)])


def v2_rest() -> dict[str, bytes]:
    x = {"name": "x", "shape": [1, 3], "datatype": "FP32"}
    row = {**x, "data": [1, 2.5, -3e2]}
    sized = {**x, "parameters": {"binary_data_size": 12}}
    as_bytes = [{"name": "y", "parameters": {"binary_data": True}}]

    def plain(model: str, **members: Any) -> bytes:
        return b"j" + _for(model) + _json(**members)

    def echo(datatype: str, data: Any, *shape: int) -> bytes:
        return plain(datatype, inputs=[{"name": "IN", "shape": shape, "datatype": datatype, "data": data}])

    def binary(*blobs: bytes, **members: Any) -> bytes:
        text = _json(**members)
        return b"b" + _for("m") + struct.pack("<H", len(text)) + text + b"".join(blobs)

    two = [
        {"name": "a", "shape": [2], "datatype": "FP32", "data": [1, 2]},
        {"name": "b", "shape": [2], "datatype": "BYTES", "data": ["é", "\0"]},
    ]
    return {
        "row": plain("m", id="one", inputs=[row]),
        "nested": plain("m", inputs=[{**row, "data": [[1, 2, 3]]}], outputs=[{"name": "y"}]),
        "two": plain("two", inputs=two),
        "texts": echo("BYTES", ["a", "ü"], 2),
        "bools": echo("BOOL", [True, False], 2),
        "int8": echo("INT8", [127, -129], 2),
        "uint64": echo("UINT64", [2**64 - 1], 1),
        "double": echo("FP64", [1e308, 1, -0.0], 3),
        "half": echo("FP16", [1], 1),
        "empty": echo("INT32", [], 0),
        "huge": echo("INT32", [1], 2**62),
        "large": echo("INT64", [*range(500)], 4, 125),
        "out": plain("m", inputs=[row], outputs=as_bytes),
        "in": binary(_ROW, inputs=[sized]),
        "in-out": binary(_ROW, inputs=[sized], parameters={"binary_data_output": True}),
        "short": binary(_ROW[:7], inputs=[sized]),
        "long": binary(_ROW * 2, inputs=[sized]),
        "classes": plain("classes", inputs=[row], outputs=[{"name": "y", "parameters": {"classification": 9}}]),
        "memory": plain("m", inputs=[{**x, "parameters": _MEMORY}], outputs=[{"name": "y", "parameters": {**_MEMORY}}]),
        "sequence": plain("m", inputs=[row], parameters={"sequence_id": "a", "sequence_start": True, "own": 1.5}),
        "timeout": plain("m", inputs=[row], parameters={"priority": 2, "timeout": 10**6, "sequence_id": 2**64 - 1}),
        "repeat": plain("repeat", inputs=[{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]),
        "raw": b"r" + _for("row") + bytes(16),
        "raw-text": b"r" + _for("text") + b"\xff text",
        "raw-any": b"r" + _for("any") + bytes(16),
        "raw-batch": b"r" + _for("INT32") + bytes(4),
        "deflated": b"d" + _for("m") + zlib.compress(_json(inputs=[row])),
        "bomb": b"d" + _for("m") + zlib.compress(b" " * (1 << 19)),
        "nothing": b"j" + _for("m"),
    }


def v2_generate() -> dict[str, bytes]:
    def chat(verb: bytes = b"g", model: str = "chat", **members: Any) -> bytes:
        return verb + _for(model) + _json(**members)

    return {
        "text": chat(text_input="hello"),
        "parameters": chat(id="one", text_input="hello", parameters={"max_tokens": 20, "temperature": 0.5}),
        "array": chat(text_input=["hello"], max_tokens=[1]),
        "stream": chat(b"s", text_input="hello"),
        "repeat": chat(b"s", "repeat", IN=[1, 2, 3]),
        "none": chat(b"s", "repeat", IN=[]),
        "negative": chat(b"s", "repeat", IN=[-1]),
        "one": chat(b"g", "repeat", IN=[1]),
        "several": chat(b"g", "repeat", IN=[1, 2]),
        "shapes": chat(b"g", "shapes", x=[[[1, 2]]], k=[[1], [2]]),
        "row": chat(b"g", "row", IN=[1, 2, 3, 4]),
        "open": chat(b"g", "open", x=[1.5, 2]),
        "missing": chat(),
        "nested": chat(text_input="x", parameters={"parameters": {}}),
        "sequence": chat(text_input="x", sequence_id=3, sequence_start=True),
        "twice": b"g" + _for("chat") + b'{"text_input": "a", "text_input": "b"}',
        "inner-twice": b"g" + _for("chat") + b'{"text_input": "a", "parameters": {"text_input": "b"}}',
        "nobody": chat(model="nobody", text_input="x"),
    }


def v2_http() -> dict[str, bytes]:
    def request(line: str, *headers: str, body: bytes = b"") -> bytes:
        length = [f"content-length: {len(body)}"] if body else []
        return "\r\n".join((f"{line} HTTP/1.1", "host: x", *headers, *length, "", "")).encode() + body

    row = _json(inputs=[{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}])
    region = _json(key="none", offset=0, byte_size=4)
    return {
        "server": request("GET /v2", "accept-encoding: gzip"),
        "live": request("GET /v2/health/live"),
        "ready": request("HEAD /v2/health/ready"),
        "model": request("GET /v2/models/m"),
        "model-ready": request("GET /v2/models/%6d/versions/003/ready"),
        "config": request("GET /v2/models/m/config", "accept-encoding: deflate;q=0.5, *;q=0"),
        "stats": request("GET /v2/models/stats"),
        "model-stats": request("GET /v2/models/m/versions/1/stats"),
        "infer": request("POST /v2/models/m/versions/3/infer", body=row),
        "cut": request("POST /v2/models/m/infer", "content-length: 99"),
        "encoding": request("POST /v2/models/m/infer", "content-encoding: br", body=row),
        "length": request("POST /v2/models/m/infer", "Inference-Header-Content-Length: 99999999999", body=row),
        "version": request("GET /v2/models/m/versions/9223372036854775808"),
        "escapes": request("GET /v2/models/a%2Fb%00%ff%zz+!/config"),
        "index": request("POST /v2/repository/index", body=b'{"ready": true}'),
        "load": request("POST /v2/repository/models/m/load"),
        "override": request("POST /v2/repository/models/m/load", body=_json(parameters={"config": "{}"})),
        "unload": request(
            "POST /v2/repository/models/m/unload", body=_json(parameters={"unload_dependents": True, "other": 1})
        ),
        "named": request("GET /v2/repository/other/index"),
        "trace": request("GET /v2/models/m/trace/setting"),
        "set-trace": request("POST /v2/trace/setting", body=_json(trace_level=["TIMESTAMPS"], trace_rate="5")),
        "logging": request("POST /v2/logging", body=_json(log_verbose_level=1, log_format="ISO8601")),
        "register": request("POST /v2/systemsharedmemory/region/q/register", body=region),
        "regions": request("GET /v2/systemsharedmemory/status"),
        "region": request("GET /v2/systemsharedmemory/region/r/status"),
        "unregister": request("POST /v2/systemsharedmemory/unregister"),
        "cuda": request(
            "POST /v2/cudasharedmemory/region/q/register",
            body=_json(raw_handle={"b64": "AAAA"}, device_id=0, byte_size=4),
        ),
        "method": request("DELETE /v2/models/m/infer"),
        "other": request("GET /v2//models/?#"),
    }


def _load(name: str, **parameters: Any) -> bytes:
    named = {key.replace("__", "/").replace("file_", "file:"): value for key, value in parameters.items()}
    return wire(v2.RepositoryModelLoadRequest(model_name=name, parameters=_parameters(named)))


def v2_load() -> dict[str, bytes]:
    config = json.dumps({"platform": "python", "max_batch_size": 4, "version_policy": {"all": {}}})
    step = {"model_name": "n", "input_map": {"x": "a"}, "output_map": {"y": "b"}}
    tensors = {
        "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "b", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    ensemble = json.dumps({"platform": "ensemble", **tensors, "ensemble_scheduling": {"step": [step]}})
    circle = ensemble.replace('"n"', '"m"')
    return {
        "plain": _load("m"),
        "nobody": _load("nobody"),
        "config": _load("m", config=config),
        "files": _load("new", config=config, file_1__model_py=b"", file_2__model_py=b"x", file_labels=b"a\nb"),
        "ensemble": _load("e", config=ensemble, file_1__x=b""),
        "circle": _load("m", config=circle),
        "no-config": _load("new", file_1__model_py=b""),
        "outside": _load("new", config="{}", file____etc__passwd=b"", file_1__x=b""),
        "clash": _load("new", config="{}", file_1=b"", file_1__x=b""),
        "manifest": _load("new", config="{}", **{"file_1__.tfs_lite_manifest.json": b"{}"}),
        "versions": _load("new", config="{}", file_9223372036854775807__x=b"", file_007__x=b""),
        "broken": _load("m", config='{"max_batch_size": '),
        "unknown": _load("m", config='{"nothing": 1}'),
        "name": _load("m", config='{"name": "other"}'),
        "text": _load("m", file_1__x="text"),
        "number": _load("m", other=1),
        "up": _load(".."),
        "blank": _load(" "),
    }


def v2_control() -> dict[str, bytes]:
    return {
        "ready": b"r" + wire(v2.ModelReadyRequest(name="m", version="1")),
        "metadata": b"m" + wire(v2.ModelMetadataRequest(name="m")),
        "config": b"c" + wire(v2.ModelConfigRequest(name="m", version="3")),
        "statistics": b"s" + wire(v2.ModelStatisticsRequest(name="m")),
        "index": b"i" + wire(v2.RepositoryIndexRequest(ready=True)),
        "named": b"i" + wire(v2.RepositoryIndexRequest(repository_name="x")),
        "unload": b"u"
        + wire(v2.RepositoryModelUnloadRequest(model_name="m", parameters=_parameters({"unload_dependents": True}))),
        "regions": b"S" + wire(v2.SystemSharedMemoryStatusRequest(name=REGION)),
        "register": b"R" + wire(v2.SystemSharedMemoryRegisterRequest(name="q", key="none", byte_size=2**64 - 1)),
        "unregister": b"U" + wire(v2.SystemSharedMemoryUnregisterRequest()),
        "cuda": b"C" + wire(v2.CudaSharedMemoryRegisterRequest(name="q", raw_handle=b"abc", byte_size=1)),
        "trace": b"t" + wire(v2.TraceSettingRequest(model_name="m", settings={"trace_rate": {"value": ["5"]}})),
        "log": b"l" + wire(v2.LogSettingsRequest(settings={"log_verbose_level": {"uint32_param": 1}})),
        "server": b"?",
    }


_TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }'
SEQUENCE = f"""name: "m" platform: "python" max_batch_size: 4 {_TENSORS}
sequence_batching {{ max_sequence_idle_microseconds: 5000000 direct {{ max_queue_delay_microseconds: 9 }}
  control_input [ {{ name: "START" control [ {{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "ID" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} ] }} ]
  state [ {{ input_name: "s" output_name: "t" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state {{ name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }} }} ] }}"""
OLDEST = f"""platform: "python" max_batch_size: 8 {_TENSORS}
sequence_batching {{ oldest {{ max_candidate_sequences: 4 preferred_batch_size: [ 2, 4 ] preserve_ordering: true }} }}
instance_group [ {{ kind: KIND_CPU count: 2 }} ] response_cache {{ enable: false }}"""
ENSEMBLE = """name: "e" platform: "ensemble" max_batch_size: 4
input { name: "a" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "c" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { max_inflight_requests: 3 step [
  { model_name: "m" model_version: -1 input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } },
  { model_name: "n" model_version: 2 input_map { key: "x" value: "b" } output_map { key: "y" value: "c" } } ] }"""
BATCHING = f"""platform: "python" max_batch_size: 16 {_TENSORS}
dynamic_batching {{ preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 priority_levels: 2
  default_priority_level: 1 default_queue_policy {{ timeout_action: DELAY default_timeout_microseconds: 9
    max_queue_size: 7 allow_timeout_override: true }}
  priority_queue_policy {{ key: 2 value {{ max_queue_size: 1 }} }} }}
instance_group [ {{ count: 2 kind: KIND_CPU
  rate_limiter {{ resources {{ name: "R" count: 4 global: true }} priority: 2 }} }} ]
version_policy {{ specific {{ versions: [ 1, 3 ] }} }} model_transaction_policy {{ decoupled: true }}
parameters {{ key: "k" value {{ string_value: "v" }} }}
model_warmup [ {{ name: "one" batch_size: 2 count: 3
  inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: [ 3 ] zero_data: true }} }} }} ]
optimization {{ cuda {{ graphs: true }} priority: PRIORITY_MAX }} response_cache {{ enable: true }}"""
RESHAPED = """backend: "pytorch" default_model_filename: "model.pt" max_batch_size: 2
input [ { name: "x" data_type: TYPE_FP16 format: FORMAT_NCHW dims: [ 3, 2, 2 ] reshape { shape: [ 12 ] } },
  { name: "s" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } optional: true allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_BF16 dims: [ 2 ] label_filename: "labels.txt" is_shape_tensor: true } ]
version_policy { latest { num_versions: 2 } }"""
CONFIGS = {
    "plain": MODEL_CONFIG,
    "sequence": SEQUENCE,
    "oldest": OLDEST,
    "ensemble": ENSEMBLE,
    "batching": BATCHING,
    "reshaped": RESHAPED,
    "iterative": OLDEST.replace("oldest {", "iterative_sequence: true oldest {"),
    "all": 'name: "m" version_policy { all {} } metric_tags { key: "a" value: "b" }',
    "empty": "",
}


def v2_config() -> dict[str, bytes]:
    return {name: wire(text_format.Parse(text, TritonModelConfig())) for name, text in CONFIGS.items()}
