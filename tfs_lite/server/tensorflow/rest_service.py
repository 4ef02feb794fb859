"""TensorFlow Serving's REST API: predictions, and what is known about models.

A request is answered on the event loop, except for what takes long: parsing, decoding and printing of large bodies go
to a few threads. Its deadline counts from the arrival of its head; when it passes, or the client goes, the call is
dropped wherever it is.

What the request log keeps of a prediction over REST: the messages that gRPC would have carried.

Called on the log's own thread, for the few requests that are logged.
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
from tfs_lite.server.http.bodies import BODY_SECONDS, BodyReader, ClientDisconnected
from tfs_lite.server.http.calls import Call, Calls
from tfs_lite.server.http.heap_trimmer import HeapTrimmer
from tfs_lite.server.http.replies import JSON, BodyFormat, HttpError, answer_form, body_format
from tfs_lite.server.http.short_path import BufferedRequest
from tfs_lite.server.inference.classify_regress import Infer, Inferences
from tfs_lite.server.inference.predictor import Inference, Plan, Predictor
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.tensorflow.rest_fast_path import print_plain, read_plain

T = TypeVar("T")

NUMBER_BYTES = 16
"""About as many bytes as a number has when it is printed."""


@dataclass(frozen=True, slots=True)
class RestSettings:
    """``max_body_bytes`` holds before and after unpacking; ``room_bytes`` is for all bodies together (None: four
    of the largest). ``timeout_seconds`` is for a whole prediction (None: no bound), ``body_seconds`` for its body.

    ``check_method_names``: Predict refuses signatures of a method that is none of TensorFlow Serving's.
    """

    max_body_bytes: int = 100 << 20
    room_bytes: int | None = None
    timeout_seconds: float | None = 30.0
    body_seconds: float = BODY_SECONDS
    check_method_names: bool = False


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
    """A body that was read: how many bytes it has, unpacked, and whether work on it belongs to the threads. What it was
    parsed to is popped when it is used, and is gone then."""

    parsed: list[T]
    size: int
    large: bool


class RestService:
    """Used on the event loop only. ``slow`` runs the work on large bodies; ``log`` is offered every success.

    ``bodies.numbers`` tells about request bodies; ``calls.drain`` lets no more predictions in; ``heap.close`` ends it.
    """

    def __init__(
        self,
        predictor: Predictor,
        inferences: Inferences,
        metrics: RequestMetrics,
        slow: BackgroundRunner,
        settings: RestSettings | None = None,
        log: RequestLog = NO_LOG,
    ) -> None:
        settings = settings or RestSettings()
        self._predictor = predictor
        self._inferences = inferences
        self._metrics = metrics
        self._slow = slow
        self._log = log
        self._check_method_names = settings.check_method_names
        self.bodies = BodyReader(settings.max_body_bytes, settings.room_bytes, settings.body_seconds)
        self.calls = Calls(settings.timeout_seconds)
        self.heap = HeapTrimmer(slow)

    async def predict(self, request: Request, ref: ModelRef) -> Response:
        """Raises ServingError; CancelledError when the server gives up."""
        form = answer_form(request.headers)
        with self._metrics.record("Predict", ref.name, REST) as record, self.calls.call(record) as call:
            sent = await self._read(request, call, body_format(request.headers), read_predict_body)
            rows = sent.parsed[0].rows
            inference, data = await self._predict(ref, self._plan(sent), record, call.deadline, rows, form)
        self._offer(ref, inference, sent.size + len(data))
        return Response(data, media_type=form.media_type)

    async def predict_whole(self, request: BufferedRequest) -> bytes:
        """As ``predict``, for a small body that is there. The answer is in the form that the request asks for."""
        ref, size = request.ref, len(request.body)
        sent_form, form = request.forms
        with self._metrics.record("Predict", ref.name, REST) as record, self.calls.call(record) as call:
            request.on_gone = call.leave
            self.bodies.hold(size)
            try:
                body = read_predict_body(sent_form.loads(request.body))
            finally:
                self.bodies.give(size)

            def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
                key, signature = self._find(body, signatures)
                plain = read_plain(body, signature)
                if plain is not None:
                    return [Run(key, plain, fits=signature)]
                return [Run(key, tensors_of(body, signature))]

            inference, data = await self._predict(ref, plan, record, call.deadline, body.rows, form)
        self._offer(ref, inference, size + len(data))
        return data

    async def _predict(
        self, ref: ModelRef, plan: Plan, record: RequestRecord, deadline: float | None, rows: bool, form: BodyFormat
    ) -> tuple[Inference, bytes]:
        inference = await self._predictor.infer(ref, plan, record, deadline)
        outputs = inference.output
        plain = print_plain(outputs, rows) if form is JSON else None
        if plain is not None:
            return inference, plain
        if not _are_large(outputs):
            return inference, form.dumps(predict_tree(outputs, rows, binary=form.binary))
        return inference, await self._apart(lambda: form.dumps(predict_tree(outputs, rows, binary=form.binary)))

    def _offer(self, ref: ModelRef, inference: Inference, size: int) -> None:
        self._log.offer(inference.id, inference.run.signature, size, partial(predict_log, ref, inference))

    async def classify(self, request: Request, ref: ModelRef) -> Response:
        """As ``predict``."""
        return await self._infer(request, ref, _CLASSIFY, self._inferences.classify)

    async def regress(self, request: Request, ref: ModelRef) -> Response:
        """As ``predict``."""
        return await self._infer(request, ref, _REGRESS, self._inferences.regress)

    async def _infer(self, request: Request, ref: ModelRef, verb: _Verb, infer: Infer) -> Response:
        with self._metrics.record(verb.name, ref.name, REST) as record, self.calls.call(record) as call:
            sent = await self._read(request, call, _json_only(request.headers, verb), read_examples_body)
            body = sent.parsed.pop()
            model = replace(ref, signature=body.signature_name)
            response = await infer(model, body.input, record, call.deadline)
            large = response.ByteSize() > COMFORTABLE_BYTES
            data = await self._run(large, lambda: JSON.dumps(verb.tree(response.result)))
        servable_id = ServableId(response.model_spec.name, response.model_spec.version.value)
        make = partial(example_log, verb.log, model, body.input, response)
        self._log.offer(servable_id, response.model_spec.signature_name, sent.size + len(data), make)
        return Response(data, media_type=JSON.media_type)

    async def _read(self, request: Request, call: Call, form: BodyFormat, parse: Callable[[Json], T]) -> _Sent[T]:
        """The bytes of the body are gone when this returns."""
        with await self.bodies.read(request) as body:
            call.watch(request.receive)
            large = body.packed or body.size > COMFORTABLE_BYTES
            self.heap.note(max(body.size, body.unpacked_size))
            parsed = await self._run(large, lambda: parse(form.loads(body.take())))
        return _Sent([parsed], max(body.size, body.unpacked_size), large)

    def _plan(self, sent: _Sent[PredictBody]) -> Plan:
        async def plan(signatures: Mapping[str, Signature]) -> Sequence[Run]:
            key, signature = self._find(sent.parsed[0], signatures)
            return [Run(key, await self._run(sent.large, lambda: tensors_of(sent.parsed.pop(), signature)))]

        return plan

    def _find(self, body: PredictBody, signatures: Mapping[str, Signature]) -> tuple[str, Signature]:
        key = body.signature_name
        signature = find_rest_signature(signatures, key)
        if self._check_method_names:
            check_predict_method(signature)
        return key or DEFAULT_SIGNATURE, signature

    async def _run(self, large: bool, work: Callable[[], T]) -> T:
        """On the loop if that takes no time."""
        return await self._apart(work) if large else work()

    async def _apart(self, work: Callable[[], T]) -> T:
        """On a thread. Work that nobody waits for any more is not begun."""
        wanted = True

        def if_wanted() -> T:
            if not wanted:
                raise ClientDisconnected
            return work()

        try:
            return await self._slow.run(if_wanted)
        finally:
            wanted = False


def _json_only(headers: Mapping[str, str], verb: _Verb) -> BodyFormat:
    form = body_format(headers)
    if form is not JSON:
        raise HttpError(
            StatusCode.INVALID_ARGUMENT,
            f"{verb.name} takes {JSON.media_type} only; {form.media_type} is for Predict",
            415,
            {"Accept": JSON.media_type},
        )
    return form


def _are_large(outputs: Mapping[str, Array]) -> bool:
    """Whether printing them takes long."""
    size = 0
    for array in outputs.values():
        size += array.size * NUMBER_BYTES
        if array.dtype.hasobject:
            size += sum(len(text) for text in array.flat)
    return size > COMFORTABLE_BYTES


def predict_log(ref: ModelRef, inference: Inference) -> Message:
    """A PredictionLog. ``ref`` is what the client asked for; the answer names what it got."""
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
    """A PredictionLog of a Classify or Regress request. ``input`` is an Input, ``response`` the method's answer."""
    kind = ClassificationRequest if method is Method.CLASSIFY else RegressionRequest
    return make_log(method, kind(model_spec=model_spec(ref), input=input), response)
