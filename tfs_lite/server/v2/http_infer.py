"""Inference of the KServe V2 protocol over HTTP: ``infer``, ``generate`` and ``generate_stream``.

    body -> InferRequest -> V2Inference -> answer, or answers -> body or events

As with other predictions over HTTP the deadline counts from the arrival of the head, a client that goes ends its call,
and large bodies are read and written on threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from tfs_lite.core.signature import naming
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import REST
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.v2.binary import LENGTH_HEADER, DeclaredInput, raw_request, read_length
from tfs_lite.protocols.v2.generate import ONE_ANSWER, read_generate, write_generate
from tfs_lite.protocols.v2.json_answer import printed_size, write_answer
from tfs_lite.protocols.v2.json_request import read_infer
from tfs_lite.protocols.v2.plain import PlainRequest
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest
from tfs_lite.server.http.calls import HttpCall, Written
from tfs_lite.server.http.events import EVENT_TYPE, event
from tfs_lite.server.http.message import Request, Response, StreamResponse
from tfs_lite.server.http.replies import JSON, error_text, failure_of
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.fast_path import V2FastPath, answer_to_plain
from tfs_lite.server.v2.http_paths import V2Target
from tfs_lite.server.v2.http_replies import v2_status, v2_success
from tfs_lite.server.v2.inference import METHOD, V2Answers, V2Inference

_LENGTH = LENGTH_HEADER.lower()


class V2HttpInfer:
    """V2's inference over HTTP, on the event loop. Every method raises ServingError, and CancelledError when the client
    has gone."""

    def __init__(self, inference: V2Inference, control: V2Control, http: HttpResources, fast: V2FastPath) -> None:
        self._inference = inference
        self._control = control
        self._http = http
        self._fast = fast

    def infer(self, request: Request, target: V2Target) -> HttpCall | Coroutine[Any, Any, Response]:
        """Queues a plain request at once, if it has come."""
        fast, http = self._fast, self._http
        body = http.bodies.small(request)
        if body is None:
            return self._infer_any(request, target)
        sent = fast.find_http(target.name, target.version, body, request.headers.find(_LENGTH))
        if sent is None:
            request.body.put_back(body)
            return self._infer_any(request, target)
        record = self._inference.metrics.record(METHOD, target.name, REST, request)
        try:
            call = http.calls.call(request, record)
            pending = fast.begin_plain(sent, record, call.deadline)
        except Exception as error:
            record.end(error)
            raise
        if pending is None:
            request.body.put_back(body)
            return self._infer_any(request, target)
        return call.reply(pending, lambda inference: self._write(answer_to_plain(sent, inference), sent.binary_outputs))

    async def _infer_any(self, request: Request, target: V2Target) -> Response:
        with (
            self._inference.metrics.record(METHOD, target.name, REST, request) as record,
            self._http.calls.call(request, record) as call,
        ):
            self._inference.admit(target.name, target.version, record, call.deadline)
            sent = await self._http.bodies.read(request, self._reader(request, target))
            answer = await self._fast.answer(sent, record, call.deadline)
            written = self._write(answer, sent.binary_outputs)
            return written if isinstance(written, Response) else await written

    def _write(self, answer: InferAnswer, binary: bool) -> Written:
        written = self._fast.http_answers.write(answer, binary)
        return self._write_slowly(answer, binary) if written is None else v2_success(written)

    async def _write_slowly(self, answer: InferAnswer, binary: bool) -> Response:
        return v2_success(await self._http.run(True, lambda: write_answer(answer, binary)))

    async def generate(self, request: Request, target: V2Target) -> Response:
        """The one answer of a model, also of a decoupled one; a language model's is whole. INTERNAL if there is none or
        there are several."""
        with ExitStack() as inside:
            answers = await self._begin(request, target, inside)
            text = await self._next_text(answers)
            if text is None or await anext(answers, None) is not None:
                raise ServingError(StatusCode.INTERNAL, ONE_ANSWER)
        return Response(text, media_type=JSON.media_type)

    async def generate_stream(self, request: Request, target: V2Target) -> Response | StreamResponse:
        """An event for each answer. Failures before the request is queued are raised, and of a language model also
        those before its first piece; another model that fails at once gives an event with the failure's status."""
        as_event = False
        try:
            with ExitStack() as inside:
                answers = await self._begin(request, target, inside, in_pieces=True)
                as_event = not answers.generates
                events = self._events(await self._next_text(answers), answers, inside.pop_all(), request.head.path)
                await anext(events)
        except ServingError as error:
            if not as_event:
                raise
            return Response(event(error_text(error)), v2_status(error), EVENT_TYPE)
        return StreamResponse(events, media_type=EVENT_TYPE, headers={"cache-control": "no-cache"})

    async def _begin(self, request: Request, target: V2Target, inside: ExitStack, in_pieces: bool = False) -> V2Answers:
        """Queues a request of ``generate``. Closing ``inside`` ends it."""
        model, version = target.name, target.version
        record = inside.enter_context(self._inference.metrics.record(METHOD, model, REST, request))
        call = inside.enter_context(self._http.calls.call(request, record))
        declared = self._declared(target)

        def read(body: bytes) -> InferRequest:
            with naming(model):
                return read_generate(model, version, body, declared)

        sent = await self._http.bodies.read(request, read)
        await self._inference.decode_texts(sent)
        room = self._inference.room.client()
        begin = partial(self._inference.begin, in_pieces=in_pieces, text_outputs_only=True)
        answers = inside.enter_context(begin(sent, record, call.deadline, room))
        record.mark()
        return answers

    async def _events(
        self, text: bytes | None, answers: V2Answers, inside: ExitStack, path: str
    ) -> AsyncIterator[bytes]:
        """The events from ``text`` on. The first chunk is empty: from then on ``inside`` is closed with the stream."""
        try:
            with inside:
                yield b""
                while text is not None:
                    yield event(text)
                    text = await self._next_text(answers)
        except Exception as error:
            yield event(error_text(failure_of(error, path)))

    async def _next_text(self, answers: V2Answers) -> bytes | None:
        answer = await anext(answers, None)
        if answer is None:
            return None
        large = printed_size(answer, False) > COMFORTABLE_BYTES
        return await self._http.run(large, lambda: write_generate(answer))

    def _reader(self, request: Request, target: V2Target) -> Callable[[bytes], InferRequest | PlainRequest]:
        model, version, length = target.name, target.version, request.headers.find(_LENGTH)
        is_raw = length is not None and length.strip("0 ") == "" and "0" in length
        declared, batches = (self._declared(target), self._batches(target)) if is_raw else ((), False)

        def read_in_full(body: bytes) -> InferRequest:
            with naming(model):
                if is_raw:
                    return raw_request(model, version, memoryview(body), declared, batches)
                return read_infer(model, version, body, read_length(length, len(body)))

        return lambda body: self._fast.read_http(model, version, body, length, read_in_full)

    def _declared(self, target: V2Target) -> Sequence[DeclaredInput]:
        metadata = self._control.model_metadata(target.name, target.version)
        return [DeclaredInput(spec.name, spec.datatype, spec.shape) for spec in metadata.inputs]

    def _batches(self, target: V2Target) -> bool:
        config: Any = self._control.model_config(target.name, target.version)
        return bool(config.max_batch_size > 0)
