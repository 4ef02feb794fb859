"""How each server wants to be asked: bytes of a request from an array, an array from bytes of the answer.

All arrays are float32, rows first. TensorFlow Serving's two forms, KServe's V2 over gRPC (written field by field, there
are few) and over HTTP (JSON, and binary tensors behind a JSON head), JSON as ``{"x": rows}`` -> ``{"y": rows}``, and
bare bytes. Encoding happens once, before anything is measured; decoding only for the answers that are checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from connections import Connection, GrpcConnection, HttpConnection
from models import Model, Rows

from tfs_lite.protocols.varints import encode_varint

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"
Encode = Callable[[str, Rows], bytes]
Decode = Callable[[bytes], Rows]


@dataclass(frozen=True, slots=True)
class Codec:
    """``path`` may hold ``{name}``. ``content_type`` empty: gRPC. ``headers``: more lines for a message's HTTP head."""

    label: str
    path: str
    encode: Encode
    decode: Decode
    content_type: str = ""
    headers: Callable[[bytes], str] = lambda message: ""

    def messages(self, model: Model) -> list[bytes]:
        return [self.encode(model.name, question) for question in model.questions]

    def connect(self, port: int, model: Model, messages: Sequence[bytes]) -> Connection:
        path = self.path.format(name=model.name)
        if self.content_type:
            return HttpConnection(port, path, messages, self.content_type, self.headers)
        return GrpcConnection(port, path, messages)


def predict_request(name: str, rows: Rows) -> bytes:
    from tfs_lite.protocols.messages import PredictRequest
    from tfs_lite.protocols.tensorflow.tensor_proto import encode

    message = PredictRequest(model_spec={"name": name})
    message.inputs["x"].CopyFrom(encode(rows, as_content=True))
    text: bytes = message.SerializeToString()
    return text


def predict_answer(body: bytes) -> Rows:
    from tfs_lite.protocols.messages import PredictResponse

    tensor = PredictResponse.FromString(body).outputs["y"]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, np.float32)
    return np.array(tensor.float_val, np.float32)


def _field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def infer_request(name: str, rows: Rows) -> bytes:
    """A ModelInferRequest with one input ``x`` of raw content."""
    shape = b"".join(encode_varint(size) for size in rows.shape)
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, shape)
    return _field(1, name.encode()) + _field(5, tensor) + _field(7, rows.tobytes())


def _length_delimited(message: bytes) -> list[tuple[int, bytes]]:
    """(number, content) of the fields that have a length; numbers are skipped."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value, at

    at, found = 0, []
    while at < len(message):
        tag, at = varint(at)
        size, after = varint(at)
        if tag & 7 == 2:
            found.append((tag >> 3, message[after : after + size]))
            after += size
        elif tag & 7 in (1, 5):
            after = at + (8 if tag & 7 == 1 else 4)
        at = after
    return found


def infer_answer(body: bytes) -> Rows:
    """Raw contents, or the floats in the contents of the first output."""
    for number, content in _length_delimited(body):
        if number == 6:
            return np.frombuffer(content, np.float32)
    outputs = [content for number, content in _length_delimited(body) if number == 5]
    contents = [content for number, content in _length_delimited(outputs[0]) if number == 5]
    floats = [content for number, content in _length_delimited(contents[0]) if number == 6]
    return np.frombuffer(floats[0], np.float32)


def json_request(name: str, rows: Rows) -> bytes:
    return orjson.dumps({"x": rows}, option=orjson.OPT_SERIALIZE_NUMPY)


def json_answer(body: bytes) -> Rows:
    return np.array(orjson.loads(body)["y"], np.float32)


def list_answer(body: bytes) -> Rows:
    return np.array(orjson.loads(body), np.float32)


def rest_request(name: str, rows: Rows) -> bytes:
    return orjson.dumps({"instances": rows}, option=orjson.OPT_SERIALIZE_NUMPY)


def rest_answer(body: bytes) -> Rows:
    return np.array(orjson.loads(body)["predictions"], np.float32)


def v2_json_request(name: str, rows: Rows) -> bytes:
    tensor = {"name": "x", "shape": rows.shape, "datatype": "FP32", "data": rows.ravel()}
    return orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)


def v2_json_answer(body: bytes) -> Rows:
    return np.array(orjson.loads(body)["outputs"][0]["data"], np.float32)


def v2_binary_request(name: str, rows: Rows) -> bytes:
    """As Triton's client writes it, with the answer's tensors in binary, too."""
    tensor = {"name": "x", "shape": rows.shape, "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes}}
    return orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}) + rows.tobytes()


def json_head_size(message: bytes) -> int:
    """Bytes of the JSON before the tensors."""
    return json.JSONDecoder().raw_decode(message.decode("latin-1"))[1]


def v2_binary_headers(message: bytes) -> str:
    return f"Inference-Header-Content-Length: {json_head_size(message)}\r\n"


def v2_binary_answer(body: bytes) -> Rows:
    return np.frombuffer(body, np.float32, offset=json_head_size(body))


def raw_request(name: str, rows: Rows) -> bytes:
    return rows.tobytes()


def raw_answer(body: bytes) -> Rows:
    return np.frombuffer(body, np.float32)


def _echoed_rest(body: bytes) -> Rows:
    return np.array(orjson.loads(body)["instances"], np.float32)


def _echoed_predict(body: bytes) -> Rows:
    from tfs_lite.protocols.messages import PredictRequest

    return np.frombuffer(PredictRequest.FromString(body).inputs["x"].tensor_content, np.float32)


def json_at(path: str, decode: Decode = json_answer) -> Codec:
    return Codec("JSON", path, json_request, decode, "application/json")


GRPC = Codec("gRPC", PREDICT, predict_request, predict_answer)
GRPC_ECHO = Codec("gRPC", PREDICT, predict_request, _echoed_predict)
REST = Codec("REST", "/v1/models/{name}:predict", rest_request, rest_answer, "application/json")
REST_ECHO = Codec("REST", "/v1/models/{name}:predict", rest_request, _echoed_rest, "application/json")
V2 = Codec("V2 gRPC", INFER, infer_request, infer_answer)
V2_PATH = "/v2/models/{name}/infer"
V2_JSON = Codec("V2 JSON", V2_PATH, v2_json_request, v2_json_answer, "application/json")
V2_BINARY = Codec(
    "V2 binary", V2_PATH, v2_binary_request, v2_binary_answer, "application/octet-stream", v2_binary_headers
)
RAW = Codec("raw bytes", "/inference", raw_request, raw_answer, "application/octet-stream")
