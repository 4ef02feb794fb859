"""Everything that reads bytes from outside, as functions of bytes that raise when a promise is broken.

A target takes any bytes. It raises nothing if they were answered, or refused with a canonical code that blames the
request; whatever else happens (another exception, INTERNAL, an answer that cannot be read, a handle that was not given
back) is a violation. Time and memory are held against their bounds by whoever calls a target.

Inputs of several kinds begin with a byte that says which; see the functions.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from google.protobuf.message import DecodeError
from handlers import PLATFORMS, ROOT, Model, handlers
from promises import check_details, check_error, check_reply, plain, require, same
from targets_generation import TARGETS_GENERATION
from targets_onnx import onnx
from targets_programs import program
from targets_v2 import TARGETS_V2, use_settings

from tfs_lite.adapters.replay.requests import replay_of_body, replay_of_log
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.server_files import parse_batching_parameters, parse_monitoring_config, parse_ssl_config
from tfs_lite.config.settings import Settings
from tfs_lite.config.text import parse_model_server_config, parse_model_settings
from tfs_lite.core.manifest import parse_manifest
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.protocols import messages
from tfs_lite.protocols.json import msgpack as msgpack_body
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.json.chunks import read_large
from tfs_lite.protocols.json.diagnosis import find_fault
from tfs_lite.protocols.json.tree import JsonRefused, read
from tfs_lite.protocols.tensorflow.prediction_log import logged_request, parse_log
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.protocols.tfrecord import frame, read_records
from tfs_lite.sources.structure import structural_problem

MAX_WORDS = 4096
"""Bytes of an error, beside what it repeats of the request."""
MAX_RECORD_BYTES = 1 << 16
SMALLEST_CHUNK = 2048
"""Bytes of the pieces that JSON is read in here, so that small inputs have several."""
SMALLEST_ARRAY = 16
MAX_TEXT_BYTES = 1 << 13
REPEAT = b"\x02"
"""Stands for a repetition in JSON inputs: a length and a number follow, one byte each."""

Target = Callable[[bytes], None]


def predict(data: bytes) -> None:
    """A PredictRequest; it and its like are answered the same by a server that remembers requests."""
    answer = _grpc("Predict", data)
    if answer is not None:
        for name, tensor in messages.PredictResponse.FromString(answer).outputs.items():
            decode(tensor, name)
    for alike in (data, *_alike(data)):
        known, anew = (
            _prediction(lambda it: handlers().grpc("Predict", it), alike),
            _prediction(handlers().predict_anew, alike),
        )
        require(known == anew, f"a server that remembers requests answers {known!r}, one that does not {anew!r}")


def _alike(data: bytes) -> list[bytes]:
    """The same with one byte changed: near the end are mostly numbers, before them all kinds of fields."""
    places = sorted({place for place in (-1, -3, -9, -14, len(data) // 2) if -len(data) <= place < len(data)})
    return [data[:place] + bytes([data[place] ^ bits]) + data[place:][1:] for place in places for bits in (1, 0x80)]


def _prediction(ask: Callable[[bytes], bytes], data: bytes) -> object:
    """What a client understands of the answer. One NaN is like another: protobuf does not keep their bits."""
    try:
        response = messages.PredictResponse.FromString(ask(data))
    except ServingError as error:
        return error.code, str(error)
    arrays = {name: decode(tensor, name) for name, tensor in response.outputs.items()}
    plain = {
        name: np.where(np.isnan(array), array.dtype.type(np.nan), array) if array.dtype.kind in "fc" else array
        for name, array in arrays.items()
    }
    values = {
        name: (str(array.dtype), array.shape, array.tolist() if array.dtype.hasobject else array.tobytes())
        for name, array in plain.items()
    }
    return str(response.model_spec), values


def examples(data: bytes) -> None:
    """A request of Classify, which one of Regress looks like: both are asked."""
    for method, answer_class in (
        ("Classify", messages.ClassificationResponse),
        ("Regress", messages.RegressionResponse),
    ):
        answer = _grpc(method, data)
        if answer is not None:
            answer_class.FromString(answer)


def multi_inference(data: bytes) -> None:
    answer = _grpc("MultiInference", data)
    if answer is not None:
        request = messages.MultiInferenceRequest.FromString(data)
        results = messages.MultiInferenceResponse.FromString(answer).results
        require(len(results) == len(request.tasks), "a result is missing")


def model_info(data: bytes) -> None:
    """A request of GetModelMetadata, and as far as they look like it of GetModelStatus and of the health check."""
    for method in ("GetModelMetadata", "GetModelStatus", "Check"):
        _grpc(method, data)


def reload(data: bytes) -> None:
    """A ReloadConfigRequest, up to the check of its config."""
    _grpc("HandleReloadConfigRequest", data)


def tensor(data: bytes) -> None:
    """A TensorProto: what is read can be written, and then reads the same."""
    try:
        message = messages.TensorProto.FromString(data)
    except DecodeError:
        return
    try:
        array = decode(message, "x", MAX_RECORD_BYTES)
    except ServingError as error:
        check_error(error, {StatusCode.INVALID_ARGUMENT})
        return
    for as_content in (False, True):
        again = decode(encode(array, as_content), "x")
        alike = (again.dtype, again.shape) == (array.dtype, array.shape)
        texts = array.dtype == object
        values = [given.ravel().tolist() if texts else given.tobytes() for given in (again, array)]
        require(alike and values[0] == values[1], "a tensor changes on its way")


_REST = {
    ord("p"): "POST /v1/models/m:predict HTTP/1.1\r\n",
    ord("v"): "POST /v1/models/m/versions/7:predict HTTP/1.1\r\naccept: application/msgpack\r\n",
    ord("c"): "POST /v1/models/m:classify HTTP/1.1\r\n",
    ord("r"): "POST /v1/models/m/labels/stable:regress HTTP/1.1\r\naccept-encoding: gzip\r\n",
}


def rest_json(data: bytes) -> None:
    """A JSON body after a byte for the verb: p, v (answered in msgpack), c, r. Repetitions may be short."""
    head = _REST.get(data[0] if data else 0, _REST[ord("p")])
    _http(_request(head, _expanded(data[1:])))


def rest_msgpack(data: bytes) -> None:
    """A msgpack body after a byte for the verb."""
    head = _REST.get(data[0] if data else 0, _REST[ord("p")]) + "content-type: application/msgpack\r\n"
    _http(_request(head, data[1:]))


def rest_gzip(data: bytes) -> None:
    """A gzip body after a byte for the verb."""
    head = _REST.get(data[0] if data else 0, _REST[ord("p")]) + "content-encoding: gzip\r\n"
    _http(_request(head, data[1:]))


def http(data: bytes) -> None:
    """A whole HTTP/1.1 request."""
    _http(data)


def json_body(data: bytes) -> None:
    """A JSON text, in which repetitions may be short (see ``REPEAT``). The ways to read it must agree."""
    text = _expanded(data)
    accepted, tree = _read(read, text)
    large = functools.partial(read_large, chunk_bytes=SMALLEST_CHUNK, least_array=SMALLEST_ARRAY)
    also, in_pieces = _read(large, text)
    require(accepted == also, "a text is accepted whole, but not in pieces, or the other way round")
    require((find_fault(text) is None) == accepted, "a text has a fault and is accepted, or has none and is not")
    require(not accepted or same(plain(tree), plain(in_pieces)), "a text means something else in pieces")
    try:
        loaded = json_text.loads(text)
    except ServingError as error:
        check_error(error, {StatusCode.INVALID_ARGUMENT})
        require(str(error).startswith("JSON Parse error: "), f"unknown words: {error}")
        return
    again = json_text.loads(json_text.dumps(loaded))
    require(same(plain(loaded), plain(again)), "a tree changes when it is printed and read")


def msgpack_tree(data: bytes) -> None:
    """A msgpack value, in which repetitions may be short (see ``REPEAT``): large arrays mean what small ones mean."""
    packed = _expanded(data)
    trees = []
    for least in (msgpack_body.LEAST_ARRAY_BYTES, SMALLEST_ARRAY):
        with mock.patch.object(msgpack_body, "LEAST_ARRAY_BYTES", least):
            try:
                trees.append(plain(msgpack_body.loads(packed)))
            except ServingError as error:
                check_error(error, {StatusCode.INVALID_ARGUMENT})
                require(str(error).startswith("msgpack Parse error: "), f"unknown words: {error}")
                trees.append(error.status)
    require(same(*trees), "a value means something else as an array")
    if not isinstance(trees[0], Status):
        again = plain(msgpack_body.loads(msgpack_body.dumps(trees[0])))
        require(same(trees[0], again), "a tree changes when it is packed and read")


def tfrecord(data: bytes) -> None:
    """A file of TFRecords."""
    try:
        size = sum(len(frame(record)) for record in read_records(io.BytesIO(data), MAX_RECORD_BYTES))
        require(size <= len(data), "records came out that did not go in")
    except ServingError as error:
        check_error(error, {StatusCode.DATA_LOSS, StatusCode.INVALID_ARGUMENT})


def warmup(data: bytes) -> None:
    """A PredictionLog, which becomes a record and is run again; with a leading "{" the JSON row of a config."""
    servable = Model()
    try:
        if data.startswith(b"{"):
            replay_of_body(servable.signatures, data.decode()).once(servable, 1.0)
            return
        for record in read_records(io.BytesIO(frame(data)), len(data)):
            request = logged_request(parse_log(record))
            if request is not None:
                require("" not in request.model_names, "an empty name")
                replay_of_log(servable.signatures, request).once(servable, 1.0)
    except UnicodeDecodeError:
        return
    except ServingError as error:
        check_error(error)


def version_file(data: bytes) -> None:
    """A file of a version after a byte for its kind: m(anifest), z(ip), s(afetensors)."""
    name = {ord("z"): "model.pt2", ord("s"): "model.safetensors"}.get(data[0] if data else 0)
    if name is not None:
        structural_problem(name, len(data) - 1, io.BytesIO(data[1:]))
        return
    try:
        manifest = parse_manifest(data[1:])
    except ServingError as error:
        check_error(error, {StatusCode.INVALID_ARGUMENT})
        return
    require(parse_manifest(manifest.to_bytes()) == manifest, "a manifest changes on its way")
    manifest.size_problem({"model.pt2": 1})


def config_pbtxt(data: bytes) -> None:
    """A text-format file after a byte for its kind: s(erved models), m(odel), t(ls), p(rometheus), b(atching)."""
    _config(data, "c.pbtxt")


def config_yaml(data: bytes) -> None:
    """The same in YAML."""
    _config(data, "c.yaml")


TARGETS: dict[str, Target] = {
    "predict": predict,
    "examples": examples,
    "multi_inference": multi_inference,
    "model_info": model_info,
    "reload": reload,
    "tensor": tensor,
    "rest_json": rest_json,
    "rest_msgpack": rest_msgpack,
    "rest_gzip": rest_gzip,
    "http": http,
    "json_body": json_body,
    "msgpack_tree": msgpack_tree,
    "tfrecord": tfrecord,
    "warmup": warmup,
    "version_file": version_file,
    "config_pbtxt": config_pbtxt,
    "config_yaml": config_yaml,
    **TARGETS_V2,
    **TARGETS_GENERATION,
    "program": program,
    "onnx": onnx,
}


def _grpc(method: str, data: bytes) -> bytes | None:
    """The answer; None for a refusal that is in order."""
    handlers().handles, answer = 0, None
    try:
        answer = handlers().grpc(method, data)
    except ServingError as error:
        check_error(error)
        check_details(error)
        require(len(str(error)) <= MAX_WORDS + 8 * len(data), "an error is much longer than its request")
    _check_handles()
    return answer


def _http(data: bytes) -> None:
    handlers().handles = 0
    reply = handlers().http(data)
    if reply is not None:
        check_reply(reply)
        short = reply.status < 400 or len(reply.body) <= MAX_WORDS + 8 * len(data)
        require(short, "an error is much longer than its request")
        _check_handles()
        require(handlers().bodies.numbers.held_bytes == 0, "the room of a body is not given back")


def _request(head: str, body: bytes) -> bytes:
    return f"{head}host: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _check_handles() -> None:
    held = handlers().handles
    require(held == 0, f"{held} handles are not given back")


def _read(reader: Callable[[bytes], Any], text: bytes) -> tuple[bool, Any]:
    try:
        return True, reader(text)
    except JsonRefused:
        return False, None


def _expanded(data: bytes) -> bytes:
    """Every ``REPEAT`` L N becomes the L bytes before it, N times more, if that is not too much in all."""
    text, done = bytearray(), 0
    while (at := data.find(REPEAT, done)) >= 0:
        text += data[done:at]
        length, times = (*data[at + 1 : at + 3], 0, 0)[:2]
        if length and len(text) + length * times <= MAX_TEXT_BYTES:
            text += bytes(text[-length:]) * times
        done = at + 3
    return bytes(text + data[done:])


Parser = Callable[[str, str], Settings]
_PARSERS: Mapping[int, Parser] = {
    ord("s"): lambda text, name: parse_model_server_config(text, name, Path(ROOT), PLATFORMS),
    ord("m"): parse_model_settings,
    ord("t"): parse_ssl_config,
    ord("p"): parse_monitoring_config,
    ord("b"): parse_batching_parameters,
}


@functools.cache
def _pair() -> tuple[str, str]:
    """A key and its certificate, as they stand in a quoted text."""
    import trustme

    pair = trustme.CA().issue_cert("localhost")
    key, certificate = pair.private_key_pem.bytes().decode(), pair.cert_chain_pems[0].bytes().decode()
    return json.dumps(key)[1:-1], json.dumps(certificate)[1:-1]


def _config(data: bytes, name: str) -> None:
    """KEY and CERT in a TLS file stand for a key and its certificate."""
    kind = data[0] if data and data[0] in _PARSERS else ord("s")
    try:
        text = data[1:].decode()
    except UnicodeDecodeError:
        return
    if kind == ord("t"):
        key, certificate = _pair()
        text = text.replace("@KEY@", key).replace("@CERT@", certificate)
    try:
        settings = _PARSERS[kind](text, name)
    except ServingError as error:
        check_error(error, {StatusCode.INVALID_ARGUMENT})
        require(str(error).startswith(f"{name}:"), f"an error without a place: {error}")
        return
    require(isinstance(settings, Settings), "no settings")
    if isinstance(settings, ModelSettings):
        use_settings(settings)
