"""Predictions over TensorFlow Serving's REST API.

A request is answered on the event loop; parsing, decoding and printing of large bodies run on a few threads. Its
deadline counts from the arrival of its head. A missed deadline or a disconnect cancels the call at any step. The
request log keeps the messages that gRPC would have carried.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, naming
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import REST, RequestMetrics
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.messages import (
    ClassificationRequest,
    Message,
    PredictRequest,
    PredictResponse,
    RegressionRequest,
)
from tfs_lite.protocols.rest.examples import ExamplesBody, classification_tree, read_examples_body, regression_tree
from tfs_lite.protocols.rest.predict import (
    PredictBody,
    find_rest_signature,
    predict_tree,
    read_predict_body,
    tensors_of,
)
from tfs_lite.protocols.runs import Run
from tfs_lite.protocols.tensorflow.classify_regress import check_predict_method
from tfs_lite.protocols.tensorflow.prediction_log import LoggedMethod, make_log
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.request_log.sampler import NO_LOG, RequestLog
from tfs_lite.server.http.calls import HttpCall, Written
from tfs_lite.server.http.message import Headers, Request, Response
from tfs_lite.server.http.replies import JSON, BodyFormat, HttpError, body_formats
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.inference.classify_regress import Infer, Inferences
from tfs_lite.server.inference.pending import Inference
from tfs_lite.server.inference.predictor import Plan, Predictor
from tfs_lite.server.tensorflow.rest_fast_path import print_plain, read_instances, read_plain
from tfs_lite.server.tensorflow.settings import PredictSettings

NUMBER_BYTES = 16
"""The approximate size of a printed number."""
UNKNOWN_ENCODING = StatusCode.INVALID_ARGUMENT
"""The code of a body with an unknown Content-Encoding, which gives 415."""


@dataclass(slots=True)
class _Sent:
    """The facts about a request that the answer to a prediction needs. ``size`` in bytes; ``format``: of the answer."""

    ref: ModelRef
    rows: bool
    size: int
    format: BodyFormat

    def print(self, inference: Inference) -> bytes:
        return self.format.dumps(predict_tree(inference.output, self.rows, binary=self.format.binary))


@dataclass(frozen=True, slots=True)
class _Verb:
    """The differences between Classify and Regress. ``tree`` makes the answer of a response's ``result``."""

    name: str
    log: LoggedMethod
    tree: Callable[[Message], dict[str, Any]]


_CLASSIFY = _Verb("Classify", LoggedMethod.CLASSIFY, classification_tree)
_REGRESS = _Verb("Regress", LoggedMethod.REGRESS, regression_tree)


class RestService:
    """TensorFlow Serving's REST predictions, on the event loop. ``log`` is offered every success."""

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

    def predict(self, request: Request, ref: ModelRef) -> HttpCall | Coroutine[Any, Any, Response]:
        """Queues the prediction at once, if its body is small and has come. Raises ServingError, at once or later."""
        data = self._http.bodies.small(request)
        if data is None:
            return self._predict_slowly(request, ref)
        sent_format, format = body_formats(request.headers)
        record = self._metrics.record("Predict", ref.name, REST, request)
        try:
            call = self._http.calls.call(request, record)
            body = _read(ref, sent_format, data)
            pending = self._predictor.begin(ref, partial(self._runs, body), record, call.deadline)
        except Exception as error:
            record.end(error)
            raise
        sent = _Sent(ref, body.rows, len(data), format)
        return call.reply(pending, partial(self._write, sent))

    async def _predict_slowly(self, request: Request, ref: ModelRef) -> Response:
        """Answers a prediction with any body."""
        http, (sent_format, format) = self._http, body_formats(request.headers)

        def parse(data: bytes) -> tuple[list[PredictBody], int]:
            return [_read(ref, sent_format, data)], len(data)

        with (
            self._metrics.record("Predict", ref.name, REST, request) as record,
            http.calls.call(request, record) as call,
        ):
            self._predictor.admit(ref, record, call.deadline)
            parsed, size = await http.bodies.read(request, parse, UNKNOWN_ENCODING)
            sent = _Sent(ref, parsed[0].rows, size, format)
            inference = await self._predictor.infer(ref, self._plan(parsed, size), record, call.deadline)
            written = self._write(sent, inference)
            return written if isinstance(written, Response) else await written

    def _write(self, sent: _Sent, inference: Inference) -> Written:
        data = print_plain(inference.output, sent.rows) if sent.format is JSON else None
        if data is None:
            if _are_large(inference.output):
                return self._write_slowly(sent, inference)
            data = sent.print(inference)
        return self._answer(sent, inference, data)

    async def _write_slowly(self, sent: _Sent, inference: Inference) -> Response:
        return self._answer(sent, inference, await self._http.run(True, lambda: sent.print(inference)))

    def _answer(self, sent: _Sent, inference: Inference, data: bytes) -> Response:
        make = partial(predict_log, sent.ref, inference)
        self._log.offer(inference.id, inference.run.signature, sent.size + len(data), make)
        return Response(data, media_type=sent.format.media_type)

    def _runs(self, body: PredictBody, servable: Servable) -> Sequence[Run]:
        key, signature = self._find(body, servable.signatures)
        plain = read_plain(body, signature)
        if plain is not None:
            return (Run(key, plain, fits=signature),)
        return (Run(key, tensors_of(body, signature)),)

    def _plan(self, parsed: list[PredictBody], size: int) -> Plan:
        """``parsed`` holds one body of ``size`` bytes, which is taken out when it is decoded: that frees its memory."""

        async def decode(key: str, signature: Signature) -> Sequence[Run]:
            large = size > COMFORTABLE_BYTES
            tensors = await self._http.run(large, lambda: tensors_of(parsed[0], signature))
            parsed.clear()
            return (Run(key, tensors),)

        return lambda signatures: decode(*self._find(parsed[0], signatures))

    async def classify(self, request: Request, ref: ModelRef) -> Response:
        """Classifies, in the manner of ``predict``."""
        return await self._infer(request, ref, _CLASSIFY, self._inferences.classify)

    async def regress(self, request: Request, ref: ModelRef) -> Response:
        """Regresses, in the manner of ``predict``."""
        return await self._infer(request, ref, _REGRESS, self._inferences.regress)

    async def _infer(self, request: Request, ref: ModelRef, verb: _Verb, infer: Infer) -> Response:
        http = self._http

        def parse(data: bytes) -> tuple[ExamplesBody, int]:
            with naming(ref.name):
                return read_examples_body(JSON.loads(data)), len(data)

        with (
            self._metrics.record(verb.name, ref.name, REST, request) as record,
            http.calls.call(request, record) as call,
        ):
            _check_json(request.headers, verb)
            self._predictor.admit(ref, record, call.deadline)
            body, size = await http.bodies.read(request, parse, UNKNOWN_ENCODING)
            model = replace(ref, signature=body.signature_name)
            response = await infer(model, body.input, record, call.deadline)
            large = response.ByteSize() > COMFORTABLE_BYTES
            data = await http.run(large, lambda: JSON.dumps(verb.tree(response.result)))
        servable_id = ServableId(response.model_spec.name, response.model_spec.version.value)
        make = partial(example_log, verb.log, model, body.input, response)
        self._log.offer(servable_id, response.model_spec.signature_name, size + len(data), make)
        return Response(data, media_type=JSON.media_type)

    def _find(self, body: PredictBody, signatures: Mapping[str, Signature]) -> tuple[str, Signature]:
        key = body.signature_name
        signature = find_rest_signature(signatures, key)
        if self._check_method_names:
            check_predict_method(signature)
        return key or DEFAULT_SIGNATURE, signature


def _read(ref: ModelRef, format: BodyFormat, data: bytes) -> PredictBody:
    plain = read_instances(data) if format is JSON else None
    if plain is not None:
        return plain
    try:
        return read_predict_body(format.loads(data))
    except ServingError:
        with naming(ref.name):
            raise


def _check_json(headers: Headers, verb: _Verb) -> None:
    format, _ = body_formats(headers)
    if format is not JSON:
        raise HttpError(
            StatusCode.INVALID_ARGUMENT,
            f"{verb.name} takes {JSON.media_type} only; {format.media_type} is for Predict",
            415,
            {"accept": JSON.media_type},
        )


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
    return make_log(LoggedMethod.PREDICT, request, response)


def example_log(method: LoggedMethod, ref: ModelRef, input: Message, response: Message) -> Message:
    """The same for Classify or Regress. ``input`` is an Input, ``response`` the method's answer."""
    kind = ClassificationRequest if method is LoggedMethod.CLASSIFY else RegressionRequest
    return make_log(method, kind(model_spec=model_spec(ref), input=input), response)
