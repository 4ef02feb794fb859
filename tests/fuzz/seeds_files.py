"""Seeds of what a server reads from files: TFRecords, logged requests, configs."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import Any

from seeds_messages import examples, multi_inference, predict, wire
from seeds_rest import rest_json
from seeds_v2 import CONFIGS

from tfs_lite.protocols import messages
from tfs_lite.protocols.tfrecord import frame


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
        return wire(found)

    return {
        "predict": log("predict_log", predict()["default"]),
        "two": log("predict_log", predict()["two"]),
        "fill": log("predict_log", predict()["fill"]),
        "classify": log("classify_log", examples()["classify"]),
        "regress": log("regress_log", examples()["regress"]),
        "multi": log("multi_inference_log", multi_inference()["both"]),
        "session": wire(messages.PredictionLog(session_run_log={})),
        "nothing": b"",
        "row": rest_json()["row"][1:],
        "default-row": rest_json()["defaults"][1:],
        "bad-row": b'{"instances": []}',
    }


def version_file() -> dict[str, bytes]:
    def manifest(name: str, size: Any, digest: str = "0" * 64) -> bytes:
        return b"m" + json.dumps({"format": 1, "files": {name: {"size": size, "sha256": digest}}}).encode()

    def tensors(header: bytes, data: bytes = bytes(4)) -> bytes:
        return b"s" + struct.pack("<Q", len(header)) + header + data

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("model/data"), b"data")
    whole = b"z" + packed.getvalue()
    locator = b"PK\x06\x07" + struct.pack("<IQI", 0, 20, 1)
    return {
        "manifest": manifest("model.pt2", 1),
        "outside": manifest("../model.pt2", 1),
        "size": manifest("model.pt2", -1),
        "digest": manifest("model.pt2", 1, "zz"),
        "zip": whole,
        "zip-cut": whole[:-9],
        "zip-comment": whole[:-2] + b"\x03\0abc",
        "zip64": whole[:-22] + b"PK\x06\x06" + bytes(52) + locator + whole[-22:],
        "no-zip": b"ztext",
        "tensors": tensors(b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'),
        "tensors-cut": tensors(b'{"x": {"data_offsets": [0, 8]}, "__metadata__": {}}'),
        "tensors-type": tensors(b'{"x": {"data_offsets": [0, 1e999]}}'),
        "tensors-header": b"s" + struct.pack("<Q", 2**63) + b"{}",
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
        **{f"model-{name}": f"m{text}" for name, text in CONFIGS.items()},
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
