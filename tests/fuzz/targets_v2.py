"""The KServe V2 protocol as functions of bytes that raise when a promise is broken: see ``targets``.

Inputs of several kinds begin with bytes that say which; see the functions.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import islice
from unittest import mock

from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError
from handlers_v2 import MODELS, handlers_v2, refusal
from promises import check_error, require
from promises_v2 import check_infer_response, check_left, check_refusal, check_stream_answer, check_v2_reply

from tfs_lite.config.model import ModelSettings, signature_of
from tfs_lite.config.model_export import config_message
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import Message, TritonModelConfig
from tfs_lite.protocols.v2 import grpc_request as v2_grpc
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.protocols.v2.message_json import message_json
from tfs_lite.schedulers.ensemble.types import graph_of
from tfs_lite.schedulers.sequence.settings import direct_settings_of, oldest_settings_of, sequence_settings_of
from tfs_lite.server.v2.grpc_stream import GRPC_ERROR
from tfs_lite.serving.opening.model_configs import settings_from_json

MAX_REQUESTS = 200
"""Of one stream."""


def v2_infer(data: bytes) -> None:
    """A ModelInferRequest; large ones are taken apart before they are parsed, and must mean the same."""
    answers = []
    for least in (v2_grpc.SPLIT_BYTES, 0):
        with mock.patch.object(v2_grpc, "SPLIT_BYTES", least):
            answers.append(_infer(data))
        handlers_v2().reset()
    require(answers[0] == answers[1], f"whole it is {answers[0]!r}, in pieces {answers[1]!r}")


def _infer(data: bytes) -> object:
    """What is answered, in any form that can be compared."""
    try:
        answer = v2.ModelInferResponse.FromString(handlers_v2().grpc("ModelInfer", data))
    except ServingError as error:
        check_refusal(error, len(data))
        check_left()
        return error.code, str(error)
    check_infer_response(answer, v2.ModelInferRequest.FromString(data).id)
    check_left()
    return answer.SerializeToString(deterministic=True)


def v2_stream(data: bytes) -> None:
    """Messages of a ModelStreamInfer, see ``frames``, after a byte: ``e`` if the client wants a status."""
    requests = list(islice(frames(data[1:]), MAX_REQUESTS))
    wants_status = data[:1] == b"e"
    try:
        answers = handlers_v2().stream(requests, {GRPC_ERROR: "true"} if wants_status else {})
    except ServingError as error:
        require(wants_status, f"a stream ended with {error.code.name}: {error}")
        check_refusal(error, len(data))
    else:
        for answer in answers:
            check_stream_answer(answer)
        require(len(answers) >= sum(map(_has_an_answer, requests)), "a request has no answer")
    check_left()
    handlers_v2().reset()


def frames(data: bytes) -> list[bytes]:
    """Each frame is its length, two bytes, and so many bytes; the last one may be short."""
    found, at = [], 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "little")
        found.append(data[at + 2 : end])
        at = end
    return found


def framed(requests: list[bytes]) -> bytes:
    return b"".join(len(request).to_bytes(2, "little") + request for request in requests if len(request) < 2**16)


def _has_an_answer(request: bytes) -> bool:
    """Models with several answers may give none."""
    try:
        return bool(v2.ModelInferRequest.FromString(request).model_name != "repeat")
    except DecodeError:
        return True


def v2_rest(data: bytes) -> None:
    """The body of ``infer`` after a byte for its kind, j(son), b(inary), r(aw) or d(eflated), and one for the model. A
    binary one begins with the length of its JSON, two bytes."""
    kind, model, body = data[:1], _model(data[1:2]), data[2:]
    headers = "accept-encoding: deflate\r\n"
    if kind == b"b":
        headers += f"inference-header-content-length: {int.from_bytes(body[:2], 'little')}\r\n"
        body = body[2:]
    elif kind == b"r":
        headers += "inference-header-content-length: 0\r\n"
    elif kind == b"d":
        headers += "content-encoding: deflate\r\n"
    _http(_request(f"/v2/models/{model}/infer", headers, body))


def v2_generate(data: bytes) -> None:
    """The body of ``generate``, or of ``generate_stream`` after a leading s, after a byte for the model."""
    verb = "generate_stream" if data[:1] == b"s" else "generate"
    _http(_request(f"/v2/models/{_model(data[1:2])}/{verb}", "", data[2:]))


def v2_http(data: bytes) -> None:
    """A whole HTTP/1.1 request."""
    _http(data)
    handlers_v2().reset_settings()


def v2_load(data: bytes) -> None:
    """A RepositoryModelLoadRequest, which also goes over HTTP as far as JSON can say the same."""
    try:
        message = v2.RepositoryModelLoadRequest.FromString(data)
    except DecodeError:
        message = v2.RepositoryModelLoadRequest()
    _grpc("RepositoryModelLoad", data)
    parameters = {key: _json_value(value) for key, value in message.parameters.items()}
    body = json.dumps({"parameters": parameters}).encode()
    name = "".join(f"%{byte:02x}" for byte in message.model_name.encode())
    _http(_request(f"/v2/repository/models/{name}/load", "", body))


def _json_value(value: Message) -> object:
    choice = value.WhichOneof("parameter_choice")
    found = getattr(value, choice) if choice else None
    return base64.b64encode(found).decode() if isinstance(found, bytes) else found


CONTROL_METHODS = {
    ord("r"): "ModelReady",
    ord("m"): "ModelMetadata",
    ord("c"): "ModelConfig",
    ord("s"): "ModelStatistics",
    ord("i"): "RepositoryIndex",
    ord("u"): "RepositoryModelUnload",
    ord("S"): "SystemSharedMemoryStatus",
    ord("R"): "SystemSharedMemoryRegister",
    ord("U"): "SystemSharedMemoryUnregister",
    ord("C"): "CudaSharedMemoryRegister",
    ord("t"): "TraceSetting",
    ord("l"): "LogSettings",
}


def v2_control(data: bytes) -> None:
    """A request of another method after a byte for the method."""
    _grpc(CONTROL_METHODS.get(data[0] if data else 0, "ServerMetadata"), data[1:])
    handlers_v2().reset_settings()
    handlers_v2().reset()


def v2_config(data: bytes) -> None:
    """A model's config as a message, which becomes a file and the JSON of a load call: both mean the same, and what
    the server shows of it can be loaded again."""
    try:
        message = TritonModelConfig.FromString(data)
        text = text_format.MessageToString(message)
        in_json = json_format.MessageToJson(message, preserving_proto_field_name=True)
    except (DecodeError, UnicodeDecodeError, ValueError):
        return
    settings = _settings(lambda: parse_model_settings(text, "c.pbtxt"))
    loaded = _settings(lambda: settings_from_json(in_json, message.name))
    require(type(settings) is type(loaded), f"a file is {settings!r:.400}, a load call {loaded!r:.400}")
    if not isinstance(settings, ModelSettings):
        return
    require(settings == loaded, "a config is another one in a load call")
    use_settings(settings)


def use_settings(settings: ModelSettings) -> None:
    """What a server does with the config of a model that it loads."""
    signature = signature_of(settings)
    shown = message_json(config_message(settings, "m", settings.platform or "python", signature))
    again = _settings(lambda: settings_from_json(json.dumps(shown), "m"))
    require(isinstance(again, ModelSettings), f"a config that is shown cannot be loaded: {again}")
    if settings.sequence_batching is not None:
        sequence_settings_of(settings)
        direct_settings_of(settings)
        oldest_settings_of(settings)
    if settings.ensemble_scheduling is not None:
        error = refusal(lambda: graph_of("m", settings))
        if error is not None:
            check_error(error, {StatusCode.INVALID_ARGUMENT})


def _settings(parse: Callable[[], ModelSettings]) -> ModelSettings | str:
    try:
        return parse()
    except ServingError as error:
        check_error(error, {StatusCode.INVALID_ARGUMENT})
        return str(error)


def _grpc(method: str, data: bytes) -> None:
    error = refusal(lambda: handlers_v2().grpc(method, data))
    if error is not None:
        check_refusal(error, len(data))
    check_left()


def _http(data: bytes) -> None:
    reply = handlers_v2().http(data)
    if reply is not None:
        check_v2_reply(reply, len(data))
        check_left()
        handlers_v2().reset()


def _model(choice: bytes) -> str:
    return MODELS[choice[0] % len(MODELS)] if choice else MODELS[0]


def _request(path: str, headers: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\n{headers}host: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


TARGETS_V2: dict[str, Callable[[bytes], None]] = {
    "v2_infer": v2_infer,
    "v2_stream": v2_stream,
    "v2_rest": v2_rest,
    "v2_generate": v2_generate,
    "v2_http": v2_http,
    "v2_load": v2_load,
    "v2_control": v2_control,
    "v2_config": v2_config,
}
