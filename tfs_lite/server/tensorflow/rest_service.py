"""Predictions over TensorFlow Serving's REST API.

A request is answered on the event loop; parsing, decoding and printing of large bodies run on a few threads. Its
deadline counts from the arrival of its head. A missed deadline or a disconnect cancels the call at any step. The
request log keeps the messages that gRPC would have carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature
from tfs_lite.core.status import StatusCode
from tfs_lite.metrics.requests import REST, RequestMetrics, RequestRecord
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES, Json
from tfs_lite.protocols.messages import (
    ClassificationRequest,
    Message,
    PredictRequest,
    PredictResponse,
    RegressionRequest,
)
from tfs_lite.protocols.rest.examples import classification_tree, read_examples_body, regression_tree
from tfs_lite.protocols.rest.predict import (
    PredictBody,
    find_rest_signature,
    predict_tree,
    read_predict_body,
    tensors_of,
)
from tfs_lite.protocols.runs import Run
from tfs_lite.protocols.tensorflow.classify_regress import check_predict_method
from tfs_lite.protocols.tensorflow.prediction_log import Method, make_log
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.request_log.sampler import NO_LOG, RequestLog
from tfs_lite.server.http.calls import HttpCall
from tfs_lite.server.http.replies import JSON, BodyFormat, HttpError, answer_format, body_format
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.http.short_path import BufferedRequest
from tfs_lite.server.inference.classify_regress import Infer, Inferences
from tfs_lite.server.inference.pending import Inference
from tfs_lite.server.inference.predictor import Plan, Predictor
from tfs_lite.server.tensorflow.rest_fast_path import print_plain, read_plain
from tfs_lite.server.tensorflow.settings import PredictSettings

T = TypeVar("T")

NUMBER_BYTES = 16
"""The approximate size of a printed number."""


@dataclass(frozen=True, slots=True)
class _Verb:
    """What Classify and Regress differ in. ``tree`` makes the answer of a response's ``result``."""

    name: str
    log: Method
    tree: Callable[[Message], dict[str, Any]]


_CLASSIFY = _Verb("Classify", Method.CLASSIFY, classification_tree)
_REGRESS = _Verb("Regress", Method.REGRESS, regression_tree)


@dataclass(frozen=True, slots=True)
class _Sent(Generic[T]):
    """A body that was read: its size in bytes and whether work on it belongs on a thread. ``parsed`` holds one value,
    which its user pops so that its memory is freed."""

    parsed: list[T]
    size: int
    large: bool


class RestService:
    """On the event loop. ``log`` is offered every success."""

    def __init__(
        self,
        predictor: Predictor,
        inferences: Inferences,
        metrics: RequestMetrics,
        http: HttpResources,
        settings: PredictSettings,
        log: RequestLog = NO_LOG,
    ) -> None:
        self._predictor = predictor
        self._inferences = inferences
        self._metrics = metrics
        self._http = http
        self._log = log
        self._check_method_names = settings.check_method_names

    async def predict(self, request: Request, ref: ModelRef) -> Response:
        """Raises ServingError."""
        format = answer_format(request.headers)
        with self._metrics.record("Predict", ref.name, REST) as record, self._http.calls.call(record) as call:
            sent = await self._read(request, call, body_format(request.headers), read_predict_body)
            rows = sent.parsed[0].rows
            inference, data = await self._predict(ref, self._plan(sent), record, call.deadline, rows, format)
        self._offer(ref, inference, sent.size + len(data))
        return Response(data, media_type=format.media_type)

    async def predict_buffered(self, request: BufferedRequest) -> bytes:
        """As ``predict``, for a request of the short path. The answer has the format that the request asks for."""
        ref, size = request.ref, len(request.body)
        sent_format, format = request.formats
        with self._metrics.record("Predict", ref.name, REST) as record, self._http.calls.call(record) as call:
            request.on_disconnect = call.disconnect
            self._http.bodies.acquire(size)
            try:
                body = read_predict_body(sent_format.loads(request.body))
            finally:
                self._http.bodies.release(size)

            def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
                key, signature = self._find(body, signatures)
                plain = read_plain(body, signature)
                if plain is not None:
                    return [Run(key, plain, fits=signature)]
                return [Run(key, tensors_of(body, signature))]

            inference, data = await self._predict(ref, plan, record, call.deadline, body.rows, format)
        self._offer(ref, inference, size + len(data))
        return data

    async def _predict(
        self, ref: ModelRef, plan: Plan, record: RequestRecord, deadline: float | None, rows: bool, format: BodyFormat
    ) -> tuple[Inference, bytes]:
        inference = await self._predictor.infer(ref, plan, record, deadline)
        outputs = inference.output
        plain = print_plain(outputs, rows) if format is JSON else None
        if plain is not None:
            return inference, plain

        def write() -> bytes:
            return format.dumps(predict_tree(outputs, rows, binary=format.binary))

        return inference, await self._http.run(_are_large(outputs), write)

    def _offer(self, ref: ModelRef, inference: Inference, size: int) -> None:
        self._log.offer(inference.id, inference.run.signature, size, partial(predict_log, ref, inference))

    async def classify(self, request: Request, ref: ModelRef) -> Response:
        """As ``predict``."""
        return await self._infer(request, ref, _CLASSIFY, self._inferences.classify)

    async def regress(self, request: Request, ref: ModelRef) -> Response:
        """As ``predict``."""
        return await self._infer(request, ref, _REGRESS, self._inferences.regress)

    async def _infer(self, request: Request, ref: ModelRef, verb: _Verb, infer: Infer) -> Response:
        with self._metrics.record(verb.name, ref.name, REST) as record, self._http.calls.call(record) as call:
            sent = await self._read(request, call, _json_only(request.headers, verb), read_examples_body)
            body = sent.parsed.pop()
            model = replace(ref, signature=body.signature_name)
            response = await infer(model, body.input, record, call.deadline)
            large = response.ByteSize() > COMFORTABLE_BYTES
            data = await self._http.run(large, lambda: JSON.dumps(verb.tree(response.result)))
        servable_id = ServableId(response.model_spec.name, response.model_spec.version.value)
        make = partial(example_log, verb.log, model, body.input, response)
        self._log.offer(servable_id, response.model_spec.signature_name, sent.size + len(data), make)
        return Response(data, media_type=JSON.media_type)

    async def _read(self, request: Request, call: HttpCall, format: BodyFormat, parse: Callable[[Json], T]) -> _Sent[T]:
        """Parses the body and frees its bytes."""
        with await self._http.bodies.read(request) as body:
            call.watch(request.receive)
            large = body.gzipped or body.size > COMFORTABLE_BYTES
            try:
                parsed = await self._http.run(large, lambda: parse(format.loads(body.take())))
            finally:
                self._http.heap.note(body.size)
        return _Sent([parsed], body.size, large)

    def _plan(self, sent: _Sent[PredictBody]) -> Plan:
        async def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
            key, signature = self._find(sent.parsed[0], signatures)
            return [Run(key, await self._http.run(sent.large, lambda: tensors_of(sent.parsed.pop(), signature)))]

        return plan

    def _find(self, body: PredictBody, signatures: Mapping[str, Signature]) -> tuple[str, Signature]:
        key = body.signature_name
        signature = find_rest_signature(signatures, key)
        if self._check_method_names:
            check_predict_method(signature)
        return key or DEFAULT_SIGNATURE, signature


def _json_only(headers: Mapping[str, str], verb: _Verb) -> BodyFormat:
    format = body_format(headers)
    if format is not JSON:
        raise HttpError(
            StatusCode.INVALID_ARGUMENT,
            f"{verb.name} takes {JSON.media_type} only; {format.media_type} is for Predict",
            415,
            {"Accept": JSON.media_type},
        )
    return format


def _are_large(outputs: Mapping[str, Array]) -> bool:
    """Whether printing them takes long."""
    size = 0
    for array in outputs.values():
        size += array.size * NUMBER_BYTES
        if array.dtype.hasobject:
            size += sum(len(text) for text in array.flat)
    return size > COMFORTABLE_BYTES


def predict_log(ref: ModelRef, inference: Inference) -> Message:
    """A PredictionLog, made on the log's thread. ``ref`` is what the client asked for; the answer names what it got."""
    signature = inference.run.signature
    request = PredictRequest(model_spec=model_spec(replace(ref, signature=signature)))
    for name, array in inference.run.inputs.items():
        request.inputs[name].CopyFrom(encode(array))
    answered = ModelRef(inference.id.name, inference.id.version, signature=signature)
    response = PredictResponse(model_spec=model_spec(answered))
    for name, array in inference.output.items():
        response.outputs[name].CopyFrom(encode(array))
    return make_log(Method.PREDICT, request, response)


def example_log(method: Method, ref: ModelRef, input: Message, response: Message) -> Message:
    """The same for Classify or Regress. ``input`` is an Input, ``response`` the method's answer."""
    kind = ClassificationRequest if method is Method.CLASSIFY else RegressionRequest
    return make_log(method, kind(model_spec=model_spec(ref), input=input), response)
