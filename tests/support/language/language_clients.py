"""Clients of language models for every API of a real server: texts in pieces, and whole.

    with LanguageClient(server) as client:
        for chunk in client.pieces("openai", LanguageRequest("m", "hello")): ...
        client.whole("predict", LanguageRequest("m", "hello")).text

Texts are greedy, and end by their number of tokens only. Closing the iterator ends the connection or cancels the call.
Needs httpx.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
import httpx
import numpy as np

from tests.support.servers.process import ServerProcess
from tfs_lite.core.servable import ModelRef
from tfs_lite.protocols.messages import PredictRequest, PredictResponse
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.protocols.v2.tensors import decode_raw

STREAMS = ("openai", "v2_events", "v2_stream", "predict_streamed")
WHOLE = ("openai_whole", "v2_generate", "v2_infer", "v2_grpc", "predict", "rest_predict")
PATIENCE = 120.0
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_STREAMED = "/tfs_lite.GenerationService/PredictStreamed"
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(frozen=True, slots=True)
class LanguageRequest:
    """``timeout``: seconds until the server is to give up, where the door knows of such a thing."""

    model: str
    prompt: str
    tokens: int = 16
    timeout: float | None = None
    version: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        """By V2's names."""
        return {"max_tokens": self.tokens, "temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Chunk:
    """More of a text. ``finish`` is empty before the last one."""

    version: int
    text: str
    finish: str = ""


class Refused(Exception):
    """``code``: the HTTP status, or the name of gRPC's."""

    def __init__(self, code: int | str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.headers = headers or {}


class LanguageClient:
    """A connection of each kind. One thread. ``patience``: seconds without a byte after which it goes."""

    def __init__(self, server: ServerProcess, patience: float = PATIENCE) -> None:
        self._patience = patience
        url = f"http://127.0.0.1:{server.http_port}"
        self._http = httpx.Client(base_url=url, timeout=patience, verify=False)  # reading certificates takes long
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=options)

    def __enter__(self) -> LanguageClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()
        self._channel.close()

    def pieces(self, api: str, request: LanguageRequest) -> Iterator[Chunk]:
        """By one of STREAMS. Raises Refused; what breaks raises errors of httpx."""
        apis: dict[str, Callable[[LanguageRequest], Iterator[Chunk]]] = {
            "openai": self._openai,
            "v2_events": self._v2_events,
            "v2_stream": self._v2_stream,
            "predict_streamed": self._predict_streamed,
        }
        return apis[api](request)

    def whole(self, api: str, request: LanguageRequest) -> Chunk:
        """By one of WHOLE."""
        apis: dict[str, Callable[[LanguageRequest], Chunk]] = {
            "openai_whole": self._openai_whole,
            "v2_generate": self._v2_generate,
            "v2_infer": self._v2_infer,
            "v2_grpc": self._v2_grpc,
            "predict": self._predict,
            "rest_predict": self._rest_predict,
        }
        return apis[api](request)

    # HTTP.

    def _openai(self, request: LanguageRequest) -> Iterator[Chunk]:
        with contextlib.closing(self._events("/openai/v1/completions", openai_body(request, stream=True))) as events:
            for data in events:
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                _check(event)
                (choice,) = event["choices"]
                version = int(event["system_fingerprint"].rpartition(":")[2])
                yield Chunk(version, choice["text"], choice["finish_reason"] or "")
        raise Refused("BROKEN", "the events ended without [DONE]")

    def _v2_events(self, request: LanguageRequest) -> Iterator[Chunk]:
        chunk = Chunk(0, "")
        path = f"/v2/models/{path_of(request)}/generate_stream"
        with contextlib.closing(self._events(path, v2_body(request))) as events:
            for data in events:
                event = json.loads(data)
                _check(event)
                chunk = Chunk(int(event["model_version"]), event["text_output"], event.get("finish_reason", ""))
                yield chunk
        if not chunk.finish:
            raise Refused("BROKEN", "the events ended without the text's end")

    def _events(self, path: str, body: Any) -> Generator[bytes]:
        with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise Refused(answer.status_code, answer.text, answer.headers)
            rest = b""
            for data in answer.iter_bytes():
                *events, rest = (rest + data).split(b"\n\n")
                yield from (event.removeprefix(b"data: ") for event in events if event.startswith(b"data: "))

    def _openai_whole(self, request: LanguageRequest) -> Chunk:
        answer = self._post("/openai/v1/completions", openai_body(request))
        (choice,) = answer["choices"]
        return Chunk(int(answer["system_fingerprint"].rpartition(":")[2]), choice["text"], choice["finish_reason"])

    def _v2_generate(self, request: LanguageRequest) -> Chunk:
        answer = self._post(f"/v2/models/{path_of(request)}/generate", v2_body(request))
        return Chunk(int(answer["model_version"]), answer["text_output"], answer["finish_reason"])

    def _v2_infer(self, request: LanguageRequest) -> Chunk:
        text = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [request.prompt]}
        answer = self._post(f"/v2/models/{path_of(request)}/infer", {"inputs": [text], "parameters": request.values})
        found = {output["name"]: output["data"][0] for output in answer["outputs"]}
        return Chunk(int(answer["model_version"]), found["text_output"], found["finish_reason"])

    def _rest_predict(self, request: LanguageRequest) -> Chunk:
        inputs = {"text_input": [request.prompt], **{name: [value] for name, value in request.values.items()}}
        answer = self._post(f"/v1/models/{request.model}:predict", {"inputs": inputs})["outputs"]
        return Chunk(0, answer["text_output"][0], answer["finish_reason"][0])

    def _post(self, path: str, body: Any) -> Any:
        answer = self._http.post(path, json=body)
        if answer.status_code != 200:
            raise Refused(answer.status_code, answer.text, answer.headers)
        return answer.json()

    # gRPC.

    def _v2_stream(self, request: LanguageRequest) -> Iterator[Chunk]:
        chunk = Chunk(0, "")
        for message in self._stream(_STREAM_INFER, v2_request(request), v2.ModelStreamInferResponse, request.timeout):
            if message.error_message:
                raise Refused("ERROR", message.error_message)
            chunk = _v2_chunk(message.infer_response)
            yield chunk
        if not chunk.finish:
            raise Refused("BROKEN", "the stream ended without the text's end")

    def _predict_streamed(self, request: LanguageRequest) -> Iterator[Chunk]:
        chunk = Chunk(0, "")
        for message in self._stream(_STREAMED, predict_request(request), PredictResponse, request.timeout):
            chunk = _predict_chunk(message)
            yield chunk
        if not chunk.finish:
            raise Refused("BROKEN", "the stream ended without the text's end")

    def _stream(self, path: str, message: Any, answer: Any, timeout: float | None) -> Iterator[Any]:
        method = self._channel.stream_stream(path, type(message).SerializeToString, answer.FromString)
        call = method(iter([message]), timeout=timeout or self._patience)
        try:
            yield from call
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details()) from None
        finally:
            call.cancel()

    def _v2_grpc(self, request: LanguageRequest) -> Chunk:
        return _v2_chunk(self._unary(_INFER, v2_request(request), v2.ModelInferResponse, request.timeout))

    def _predict(self, request: LanguageRequest) -> Chunk:
        return _predict_chunk(self._unary(_PREDICT, predict_request(request), PredictResponse, request.timeout))

    def _unary(self, path: str, message: Any, answer: Any, timeout: float | None) -> Any:
        """After its own patience it cancels the call; ``timeout`` goes with the call."""
        method = self._channel.unary_unary(path, type(message).SerializeToString, answer.FromString)
        call = method.future(message, timeout=timeout)
        try:
            return call.result(self._patience)
        except grpc.FutureTimeoutError:
            call.cancel()
            raise Refused("GONE", "the client had no patience") from None
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details()) from None


def openai_body(request: LanguageRequest, **more: Any) -> dict[str, Any]:
    model = request.model if request.version is None else f"{request.model}:{request.version}"
    values = {"max_tokens": request.tokens, "temperature": 0, "ignore_eos": True, **more}
    if request.timeout is not None:
        values["timeout"] = request.timeout
    return {"model": model, "prompt": request.prompt, **values}


def v2_body(request: LanguageRequest) -> dict[str, Any]:
    return {"text_input": request.prompt, "parameters": request.values}


def v2_request(request: LanguageRequest) -> Any:
    message = v2.ModelInferRequest(model_name=request.model, model_version=str(request.version or ""))
    text = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(request.prompt.encode())
    fields = {bool: "bool_param", int: "int64_param", float: "double_param"}
    for name, value in request.values.items():
        setattr(message.parameters[name], fields[type(value)], value)
    return message


def predict_request(request: LanguageRequest) -> Any:
    arrays = {
        "text_input": np.array([request.prompt.encode()], object),
        "max_tokens": np.array([request.tokens], np.int32),
        "temperature": np.zeros(1, np.float32),
        "ignore_eos": np.ones(1, np.bool_),
    }
    inputs = {name: encode(array) for name, array in arrays.items()}
    return PredictRequest(model_spec=model_spec(ModelRef(request.model, request.version)), inputs=inputs)


def path_of(request: LanguageRequest) -> str:
    return request.model if request.version is None else f"{request.model}/versions/{request.version}"


def _check(event: Mapping[str, Any]) -> None:
    if "error" in event:
        raise Refused("ERROR", str(event["error"]))


def _v2_chunk(answer: Any) -> Chunk:
    found = {}
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        found[output.name] = decode_raw(output.datatype, tuple(output.shape), raw, output.name)
    return Chunk(int(answer.model_version), _text(found["text_output"]), _text(found["finish_reason"]))


def _predict_chunk(answer: Any) -> Chunk:
    found = {name: decode(answer.outputs[name], name) for name in ("text_output", "finish_reason")}
    return Chunk(answer.model_spec.version.value, _text(found["text_output"]), _text(found["finish_reason"]))


def _text(array: Any) -> str:
    return b"".join(array.reshape(-1).tolist()).decode()
