"""Seeds that are protobuf messages: requests of gRPC, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tfs_lite.core.signature import CLASSIFY_METHOD, REGRESS_METHOD
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.testing.servers.examples import rows


def wire(message: Message) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def _array(values: Any, dtype: Any = np.float32) -> Message:
    return encode(np.array(values, dtype))


def _predict(signature: str, outputs: Any = (), spec: Mapping[str, Any] | None = None, **inputs: Message) -> bytes:
    request = messages.PredictRequest(
        model_spec={"name": "m", "signature_name": signature, **(spec or {})}, output_filter=list(outputs)
    )
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(value)
    return wire(request)


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
        return wire(sent)

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
        return wire(sent)

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
        return wire(sent)

    return {
        "default": request(name="m"),
        "version": request(name="m", version={"value": 7}),
        "negative": request(name="m", version={"value": -1}),
        "label": request(name="m", version_label="stable"),
        "nobody": request(name="nobody"),
        "field": request(("signature_def", "other"), name="m"),
        "no-field": request((), name="m"),
        "health": wire(messages.HealthCheckRequest(service="m")),
    }


def reload() -> dict[str, bytes]:
    def request(*models: Mapping[str, Any], metrics: Any = ()) -> bytes:
        sent = messages.ReloadConfigRequest(
            config={"model_config_list": {"config": models}}, metric_names=list(metrics)
        )
        return wire(sent)

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
    return {name: wire(message) for name, message in arrays.items()}
