"""Writes the seeds of the corpora: python tests/fuzz/seeds.py

Seeds are inputs that mean something, good and bad, from which a fuzzer starts. Files beside them that are called
``found-*`` are inputs that broke something once; this leaves them alone.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import ormsgpack

from tfs_lite.core.signature import CLASSIFY_METHOD, REGRESS_METHOD
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensor_proto import encode
from tfs_lite.protocols.tfrecord import frame
from tfs_lite.testing.examples import rows

CORPUS = Path(__file__).parent / "corpus"


def _array(values: Any, dtype: Any = np.float32) -> Message:
    return encode(np.array(values, dtype))


def _predict(signature: str, outputs: Any = (), spec: Mapping[str, Any] | None = None, **inputs: Message) -> bytes:
    request = messages.PredictRequest(
        model_spec={"name": "m", "signature_name": signature, **(spec or {})}, output_filter=list(outputs)
    )
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(value)
    return bytes(request.SerializeToString())


def _tensor(**fields: Any) -> Message:
    return messages.TensorProto(**fields)


def _sized(*sizes: int) -> dict[str, Any]:
    return {"dim": [{"size": size} for size in sizes]}


_INT8 = encode(np.array([1, -2], np.int8), as_content=True)
_STRINGS = _array([b"a", b"\xff", b""], object)


def predict() -> dict[str, bytes]:
    return {
        "default": _predict("", x=_array([[1, 2, 3]])),
        "two": _predict("two", ("c",), a=_array([1.5, 2]), b=_array([b"a", b"b"], object)),
        "version": _predict("float", spec={"version": {"value": 7}}, x=_array([1])),
        "label": _predict("float", spec={"version_label": "stable"}, x=_array([1])),
        "content": _predict("int8", x=_INT8),
        "strings": _predict("string", x=_STRINGS),
        "fill": _predict("double", x=_tensor(dtype=2, tensor_shape=_sized(1000), double_val=[1])),
        "huge": _predict("float", x=_tensor(dtype=1, tensor_shape=_sized(2**40), float_val=[1])),
        "empty": _predict("float", x=_tensor(dtype=1, tensor_shape=_sized(0))),
        "open": _predict("open", x=_array([[[True]]], bool)),
        "shapes": _predict("shapes", x=_array([[[1, 2], [3, 4]]], np.int64), k=_array([[1, 2], [3, 4]], np.float64)),
        "scalar": _predict("scalar", x=_array(3, np.int32)),
        "defaults": _predict("defaults", x=_array([1, 2])),
        "no-inputs": _predict("nothing"),
        "all-defaults": _predict("all_defaults"),
        "complex": _predict("complex64", x=_array([1 + 2j], np.complex64)),
        "bfloat16": _predict("bfloat16", x=_array([1.5], ml_dtypes.bfloat16)),
        "strange-name": _predict("float", spec={"name": "nobody\n\u2028"}, x=_array([1])),
    }


def examples() -> dict[str, bytes]:
    def request(signature: str, input: Message) -> bytes:
        sent = messages.ClassificationRequest(model_spec={"name": "m", "signature_name": signature}, input=input)
        return bytes(sent.SerializeToString())

    return {
        "classify": request("classify", rows({"x": [1.5], "name": [b"a"]}, {"x": [2]})),
        "regress": request("regress", rows({"x": [1.5]}, {"x": [2.5]})),
        "lax": request("lax", rows({"x": [1.5]})),
        "context": request("classify", rows({"x": [1.5]}, {}, context={"name": [b"all"], "x": [3]})),
        "serialized": request("serialized", rows({"y": [1]}, {"y": [b"z"]})),
        "not-utf8": request("classify", rows({"x": [1.0], "name": [b"\xff"]})),
        "several": request("wide", rows({"x": [1.0, 2.0], "any": [1, 2]}, {"x": [3.0, 4.0], "any": [3, 4]})),
        "mixed": request("wide", rows({"x": [1.0, 2.0], "any": [1]}, {"x": [3, 4], "any": [b"a"]})),
        "range": request("classify_int8", rows({"x": [300]})),
        "bool": request("classify_bool", rows({"x": [0, 1]})),
        "half": request("classify_half", rows({"x": [1e9, 1.0]})),
        "ragged": request("classify_float", rows({"x": [1.0, 2.0]}, {"x": [1.0]})),
        "no-values": request("classify_float", rows({"x": []}, {"x": None})),
        "empty": request("classify", rows()),
        "other-type": request("regress", rows({"x": [b"text"]})),
    }


def multi_inference() -> dict[str, bytes]:
    def request(input: Message, *tasks: tuple[str, str]) -> bytes:
        sent = messages.MultiInferenceRequest(input=input)
        for key, method in tasks:
            sent.tasks.add(model_spec={"name": "m", "signature_name": key}, method_name=method)
        return bytes(sent.SerializeToString())

    both = (("classify", CLASSIFY_METHOD), ("regress", REGRESS_METHOD))
    return {
        "both": request(rows({"x": [1.5]}, {"x": [2.5]}), *both),
        "shared": request(rows({"x": [1.5]}), ("regress", REGRESS_METHOD), ("lax", CLASSIFY_METHOD)),
        "twice": request(rows({"x": [1.5]}), ("lax", REGRESS_METHOD), ("lax", CLASSIFY_METHOD)),
        "predict": request(rows({"x": [1.5]}), ("float", "tensorflow/serving/predict")),
        "default": request(rows({"x": [1.0, 2.0, 3.0]}), ("", REGRESS_METHOD)),
        "context": request(rows({}, {}, context={"x": [1.5]}), *both),
        "no-input": request(messages.Input(), *both),
        "no-task": request(rows({"x": [1.5]})),
    }


def model_info() -> dict[str, bytes]:
    def request(fields: Any = ("signature_def",), **spec: Any) -> bytes:
        sent = messages.GetModelMetadataRequest(model_spec=spec, metadata_field=list(fields))
        return bytes(sent.SerializeToString())

    return {
        "default": request(name="m"),
        "version": request(name="m", version={"value": 7}),
        "negative": request(name="m", version={"value": -1}),
        "label": request(name="m", version_label="stable"),
        "nobody": request(name="nobody"),
        "field": request(("signature_def", "other"), name="m"),
        "no-field": request((), name="m"),
        "health": bytes(messages.HealthCheckRequest(service="m").SerializeToString()),
    }


def reload() -> dict[str, bytes]:
    def request(*models: Mapping[str, Any], metrics: Any = ()) -> bytes:
        sent = messages.ReloadConfigRequest(config={"model_config_list": {"config": models}}, metric_names=list(metrics))
        return bytes(sent.SerializeToString())

    plain = {"name": "m", "base_path": "/srv/m"}
    log = {"log_collector_config": {"filename_prefix": "/log/m"}, "sampling_config": {"sampling_rate": 0.5}}
    return {
        "empty": request(),
        "plain": request(plain, metrics=(":tensorflow:x",)),
        "latest": request({**plain, "model_version_policy": {"latest": {"num_versions": 2}}}),
        "specific": request({**plain, "model_version_policy": {"specific": {"versions": [1, 2]}}}),
        "labels": request({**plain, "version_labels": {"stable": 1, "canary": 2}}),
        "logging": request({**plain, "logging_config": log}),
        "relative": request({"name": "m", "base_path": "m/../../etc", "model_platform": "python"}),
        "twice": request(plain, plain),
        "platform": request({**plain, "model_platform": "pyton"}),
        "uri": request({"name": "m", "base_path": "s3://bucket/m"}),
        "custom": b"\x0a\x02\x12\x00",
    }


def tensor() -> dict[str, bytes]:
    arrays = {
        "float": _array([[1, 2], [3, 4]]),
        "int8-content": _INT8,
        "strings": _STRINGS,
        "complex": _array([1 + 2j], np.complex128),
        "half": _array([1.5], np.float16),
        "bool": _array([True, False], bool),
        "uint64": _array([2**64 - 1], np.uint64),
        "float8": _array([1.5, 2], ml_dtypes.float8_e4m3fn),
        "string-content": _tensor(dtype=7, tensor_shape=_sized(2), tensor_content=b"\x01\x02abc"),
        "fill": _tensor(dtype=3, tensor_shape=_sized(3, 3), int_val=[1, 2]),
        "huge": _tensor(dtype=1, tensor_shape=_sized(2**31, 2**31)),
        "negative": _tensor(dtype=1, tensor_shape=_sized(-1)),
        "overflow": _tensor(dtype=4, tensor_shape=_sized(2), int_val=[300, -1]),
        "deep": _tensor(dtype=1, tensor_shape=_sized(*[1] * 65), float_val=[1]),
        "variant": _tensor(dtype=21, variant_val=[{"type_name": "x"}]),
    }
    return {name: bytes(message.SerializeToString()) for name, message in arrays.items()}


def rest_json() -> dict[str, bytes]:
    return {
        "row": b'p{"instances": [[1, 2.5, -3e2]]}',
        "columns": b'p{"signature_name": "float", "inputs": {"x": [1, 2]}}',
        "value": b'v{"signature_name": "string", "inputs": ["a", {"b64": "/w=="}]}',
        "objects": b'p{"signature_name": "two", "instances": [{"a": 1, "b": "x"}, {"b": {"b64": "eA"}, "a": 2}]}',
        "defaults": b'v{"signature_name": "defaults", "instances": [{"x": 1}, {"x": 2}]}',
        "all-defaults": b'p{"signature_name": "all_defaults", "instances": [{}, {}, {}]}',
        "open": b'p{"signature_name": "open", "instances": [[[true]], [[false]]]}',
        "shapes": b'p{"signature_name": "shapes", "inputs": {"x": [[[1, 2]]], "k": [[0.5], [NaN]]}}',
        "scalar": b'p{"signature_name": "scalar", "inputs": 7}',
        "range": b'p{"signature_name": "int8", "instances": [127, 128]}',
        "uint64": b'p{"signature_name": "uint64", "instances": [18446744073709551615]}',
        "complex": b'p{"signature_name": "complex64", "inputs": [1]}',
        "ragged": b'p{"signature_name": "open", "instances": [[1, 2], [3]]}',
        "not-finite": b'p{"signature_name": "half", "instances": [Infinity, -Inf, 1e308]}',
        "both": b'p{"instances": [1], "inputs": [1]}',
        "classify": b'c{"signature_name": "classify", "examples": [{"x": 1.5, "name": "a"}, {"x": [2.5]}]}',
        "context": b'c{"signature_name": "classify", "context": {"name": {"b64": "/w"}}, "examples": [{"x": 1}]}',
        "regress": b'r{"signature_name": "regress", "examples": [{"x": 1.5}, {"x": 2}]}',
        "serialized": b'r{"signature_name": "serialized", "examples": [{"x": [1, true]}, {"y": "z"}]}',
        "twice": b'p{"inputs": {"x": 1, "x": 2}}',
    }


def rest_msgpack() -> dict[str, bytes]:
    def body(tree: Any) -> bytes:
        return b"p" + ormsgpack.packb(tree)

    return {
        "row": body({"instances": [[1, 2.5, -300]]}),
        "binary": body({"signature_name": "string", "inputs": [b"\xff", "text"]}),
        "objects": body({"signature_name": "two", "instances": [{"a": 1, "b": b"x"}, {"b": "y", "a": 2.5}]}),
        "columns": body({"signature_name": "two", "inputs": {"a": [1], "b": [b""]}}),
        "int8": body({"signature_name": "int8", "instances": [127, -128]}),
        "uint64": body({"signature_name": "uint64", "instances": [2**64 - 1]}),
        "open": body({"signature_name": "open", "inputs": [[True, None]]}),
        "defaults": body({"signature_name": "defaults", "instances": [{"x": 1}]}),
        "float32": b"p\x82\xaesignature_name\xa5float\xa9instances\x91\xca\x3f\x80\x00\x00",
        "extension": b"p\x81\xa6inputs\x91\xc7\x04\x01abcd",
        "timestamp": b"p\x81\xa6inputs\xd6\xff\x00\x00\x00\x01",
        "huge-array": b"p\x81\xa6inputs\xdd\xff\xff\xff\xff",
        "huge-text": b"p\x81\xa6inputs\xdb\xff\xff\xff\xff",
        "deep": b"p\x81\xa6inputs" + b"\x91" * 200 + b"\x01",
        "twice": b"p\x82\xa6inputs\x01\xa6inputs\x02",
        "integer-name": b"p\x81\x01\x02",
        "classify": b"c" + ormsgpack.packb({"examples": [{"x": 1}]}),
        "not-utf8": b"p\x81\xa6inputs\xa2\xff\xfe",
    }


def rest_gzip() -> dict[str, bytes]:
    row = b'{"instances": [[1, 2.5, -3e2]]}'
    packed = gzip.compress(row, mtime=0)
    return {
        "row": b"p" + packed,
        "members": b"p" + gzip.compress(row[:9], mtime=0) + gzip.compress(row[9:], mtime=0),
        "empty-members": b"p" + gzip.compress(b"", mtime=0) * 9 + packed,
        "stored": b"p" + gzip.compress(row, 0, mtime=0),
        "bomb": b"p" + gzip.compress(b" " * (1 << 20), mtime=0)[:1200],
        "whole-bomb": b"p" + gzip.compress(b" " * 300_000, mtime=0),
        "large": b"v" + gzip.compress(b'{"signature_name": "float", "instances": [' + b"1," * 40_000 + b"1]}", mtime=0),
        "cut": b"p" + packed[:-4],
        "checksum": b"p" + packed[:-8] + bytes(8),
        "trailing": b"p" + packed + b"more",
        "none": b"p" + row,
        "nothing": b"p",
        "name": b"p\x1f\x8b\x08\x08\0\0\0\0\0\xffname\0" + packed[10:],
    }


def http() -> dict[str, bytes]:
    def request(line: str, *headers: str, body: bytes = b"") -> bytes:
        lines = (f"{line} HTTP/1.1", "host: x", *headers, *([f"content-length: {len(body)}"] if body else []), "", "")
        return "\r\n".join(lines).encode() + body

    row = b'{"instances": [[1, 2, 3]]}'
    chunked = b"5\r\n" + row[:5] + b"\r\n15\r\n" + row[5:] + b"\r\n0\r\n\r\n"
    return {
        "predict": request("POST /v1/models/m:predict", "accept-encoding: gzip;q=0.5", body=row),
        "chunked": request("POST /v1/models/m/versions/007:predict", "transfer-encoding: chunked") + chunked,
        "expect": request("POST /v1/models/m:predict", "expect: 100-continue", body=row),
        "msgpack": request("POST /V1/Models/%6d:predict", "accept: text/html, application/msgpack;q=1", body=row),
        "types": request("POST /v1/models/m:predict", "content-type: application/x-msgpack; v=1", body=b"\x80"),
        "classify": request("POST /v1/models/m/labels/stable:classify", body=b'{"examples": [{"x": 1}]}'),
        "regress": request("POST /v1/models/m:regress", "content-encoding: identity, x-gzip", body=b"\x1f\x8b"),
        "status": request("GET /v1/models/m"),
        "list": request("GET /v1/models", "accept-encoding: gzip"),
        "metadata": request("GET /v1/models/m/versions/7/metadata", "accept-encoding: gzip"),
        "query": request("GET /v1/models/m?x=1&y"),
        "version": request("GET /v1/models/m/versions/9223372036854775808"),
        "escapes": request("GET /v1/models/a%2Fb%00%ff%zz+!/labels/%20"),
        "options": request("OPTIONS /v1/models/m", "origin: https://a.example"),
        "head": request("HEAD /readyz"),
        "metrics": request("GET /monitoring/prometheus/metrics", "accept-encoding: gzip"),
        "openapi": request("GET /openapi.json"),
        "other": request("PATCH http://x/v1/models//m?#"),
        "cut": request("POST /v1/models/m:predict", "content-length: 99") + row,
        "encoding": request("POST /v1/models/m:predict", "content-encoding: br", body=row),
    }


def json_body() -> dict[str, bytes]:
    def repeated(text: bytes, last: int, times: int) -> bytes:
        return text + bytes((2, last, times))

    row = repeated(repeated(b"[1.5, 2, ", 3, 4) + b"7]", 25, 0)
    return {
        "tree": b'{"a": [1, -2.5e3, true, null, "\\u00e9\\n"], "b": {"c": [[], {}]}}',
        "words": b"[NaN, Inf, -Infinity, -Inf, Infinity]",
        "integers": b"[9223372036854775808, -9223372036854775809, 18446744073709551616, 1E400]",
        "matrix": b"[" + repeated(b"[1, 2, 3], ", 11, 255) + b"[4, 5, 6]]",
        "floats": b'{"x": [' + repeated(b"1.25, ", 6, 255) + b'NaN], "y": [' + repeated(b"1, ", 3, 255) + b"-1]}",
        "big": b"[" + repeated(b"18446744073709551615, ", 22, 200) + b"1]",
        "objects": b"[" + repeated(b'{"a": 1, "b": [2]}, ', 20, 150) + b'{"a": "x"}]',
        "ragged": b"[" + repeated(b"[1, 2], ", 8, 255) + b"[3]]",
        "string": b'["' + repeated(b"a\\\\", 3, 255) + repeated(b'\\"', 2, 255) + b'"]',
        "names": b"{" + repeated(b'"a": 1, ', 8, 200) + b'"b": 2}',
        "deep": repeated(b"[", 1, 101) + repeated(b"]", 1, 101),
        "nested": b"[" + repeated(b'{"a": [1, {"b": [', 17, 20) + b"2" + repeated(b"]}]}", 4, 20) + b"]",
        "spaces": b" " + repeated(b"\n\t\r ", 4, 255) + b"1",
        "after": b"{} x",
        "mark": b"\xef\xbb\xbf[1]",
        "surrogates": b'["\\ud83d\\ude00", "\\ud83d"]',
        "not-utf8": b'["\xff"]',
        "cut": b'{"a": [1, "b',
        "commas": b"[1,,2,]",
        "rows": b"[" + row + b"]",
    }


def tfrecord() -> dict[str, bytes]:
    whole = frame(b"abc") + frame(b"") + frame(bytes(40))
    return {
        "whole": whole,
        "cut": whole[:-3],
        "stray": whole + b"stray",
        "flipped": whole[:13] + b"x" + whole[14:],
        "large": frame(bytes(70_000))[:64],
        "huge": frame(struct.pack("<Q", 2**63))[:20],
        "inside": frame(frame(b"x")),
        "empty": b"",
    }


def warmup() -> dict[str, bytes]:
    def log(field: str, request: bytes) -> bytes:
        found = messages.PredictionLog()
        entry = getattr(found, field)
        entry.request.MergeFromString(request)
        return bytes(found.SerializeToString())

    return {
        "predict": log("predict_log", predict()["default"]),
        "two": log("predict_log", predict()["two"]),
        "fill": log("predict_log", predict()["fill"]),
        "classify": log("classify_log", examples()["classify"]),
        "regress": log("regress_log", examples()["regress"]),
        "multi": log("multi_inference_log", multi_inference()["both"]),
        "session": bytes(messages.PredictionLog(session_run_log={}).SerializeToString()),
        "nothing": b"",
        "row": rest_json()["row"][1:],
        "default-row": rest_json()["defaults"][1:],
        "bad-row": b'{"instances": []}',
    }


_SERVED = """model_config_list {
  config {  # one
    name: "ranker" base_path: '/models/' "r\\x61nker" model_type: TENSORFLOW
    model_version_policy { specific { versions: [3, 7] } }
    version_labels { key: "stable" value: 3 }, version_labels { value: 7; key: "canary" }
  },
  config: < name: "other", base_path: "other" model_platform: "python" model_version_policy: { all {} } >
}"""
_LOGGED = """model_config_list { config { name: "m" base_path: "/m" logging_config {
  log_collector_config { type: "file" filename_prefix: "/log/r" }
  sampling_config { sampling_rate: 0.5 per_task_sampling_configs { dc: "x" task_index: 1 sampling_rate: 1 } } } } }"""
_MODEL = """name: "m" platform: "pytorch_export" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ] output { name: "y" data_type: TYPE_BF16 dims: 10 }
parameters { key: "max_tokens" value: { string_value: "16" } }
signatures { key: "again" value { method_name: "classify" inputs { key: "a" value: "x" }
  outputs { key: "scores" value: "y" } defaults { key: "a" value: "[1, 2, 3]" } label_filename: "labels.txt" } }
warmup { body: "{\\"instances\\": [[1, 2, 3]]}" count: 2 }"""
_BATCHING = """max_batch_size { value: 64 } batch_timeout_micros { value: 2000 } num_batch_threads { value: 4 }
allowed_batch_sizes: [8, 16, 64] thread_pool_name { value: "pool" } pad_variable_length_inputs: true
enable_large_batch_splitting { value: true } max_execution_batch_size { value: 32 }"""


def config_pbtxt() -> dict[str, bytes]:
    texts = {
        "served": "s" + _SERVED,
        "logged": "s" + _LOGGED,
        "empty": "smodel_config_list {}",
        "custom": "scustom_model_config { [type.googleapis.com/google.protobuf.Any] { type_url: 'x' } }",
        "relative": "smodel_config_list: { config: [{ name: 'a/b' base_path: '' }] }",
        "model": "m" + _MODEL,
        "dims": "minput { name: 'x' data_type: TYPE_FP3 dims: 0 dims: -2 }",
        "tls": 'tserver_key: "@KEY@" server_cert: "@CERT@" custom_ca: "@CERT@" client_verify: true',
        "swapped": 'tserver_key: "@CERT@" server_cert: "@KEY@"',
        "monitoring": 'pprometheus_config { enable: true path: "/metrics" }',
        "batching": "b" + _BATCHING,
        "escapes": "smodel_config_list { config { name: '\\777\\u00e9\\N' base_path: \"\\xff\" } }",
        "numbers": "bmax_batch_size { value: 0x7f } allowed_batch_sizes: 9223372036854775808",
        "deep": "s" + "model_config_list {" * 60,
    }
    return {name: text.encode() for name, text in texts.items()}


def config_yaml() -> dict[str, bytes]:
    texts = {
        "served": """smodel_config_list:
  config:
    - name: ranker
      base_path: /models/ranker  # where
      model_version_policy: {specific: {versions: [3, 7]}}
      version_labels: {stable: 3, "canary": 7}
    - {name: other, base_path: 'other', model_platform: python, model_version_policy: {all: {}}}
""",
        "model": """mname: m
max_batch_size: 8
input: [{name: x, data_type: TYPE_FP32, dims: [3, -1]}]
output:
  - {name: y, data_type: TYPE_BF16, dims: [10]}
parameters: {max_tokens: 16, fast: true, rate: .5}
signatures:
  again: {method_name: classify, inputs: {a: x}, outputs: {scores: y}, defaults: {a: [1, 2.5, 3]}}
warmup:
  - body: {instances: [[1, 2, 3]]}
    count: 2
""",
        "tls": 'tserver_key: "@KEY@"\nserver_cert: "@CERT@"\nclient_verify: no\n',
        "monitoring": "pprometheus_config:\n  enable: true\n  path: /metrics\n",
        "batching": "bmax_batch_size: 64\nbatch_timeout_micros: {value: 9}\nallowed_batch_sizes: [8, 64]\n",
        "empty": "s",
        "alias": "sa: &a [x]\nb: [*a, *a]\n<<: *a",
        "tags": "ma: !!timestamp x\nb: !!python/name:os.system ''\nc: !!binary /w==",
        "twice": "pprometheus_config: {}\nprometheus_config: {}",
        "block": 'mwarmup:\n- body: |\n    {"inputs": 1}\n- body: >-\n    []\n',
        "numbers": "bmax_batch_size: 0x1_0\nbatch_timeout_micros: 1:30\nnum_batch_threads: .inf",
        "documents": "s---\na: 1\n...\n---\nb: 2",
        "keys": "s? [a]\n: b\n1: c\nnull: d",
        "date": "mparameters: {when: 2020-13-45, now: 2001-12-14t21:59:43.10-05:00}",
    }
    return {name: text.encode() for name, text in texts.items()}


SEEDS = (
    *(predict, examples, multi_inference, model_info, reload, tensor),
    *(rest_json, rest_msgpack, rest_gzip, http, json_body),
    *(tfrecord, warmup, config_pbtxt, config_yaml),
)


def main() -> None:
    for make in SEEDS:
        directory = CORPUS / make.__name__
        directory.mkdir(parents=True, exist_ok=True)
        seeds = make()
        for path in directory.iterdir():
            if not path.name.startswith("found-") and path.name not in seeds:
                path.unlink()
        for name, data in seeds.items():
            (directory / name).write_bytes(data)


if __name__ == "__main__":
    main()
