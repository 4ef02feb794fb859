"""Inference of the KServe V2 protocol over HTTP: ``infer``, ``generate`` and ``generate_stream``.

    body -> InferRequest -> V2Inference -> answer, or answers -> body or events

As with other predictions over HTTP the deadline counts from the arrival of the head, a client that goes ends its call,
and large bodies are read and written on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import REST
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.v2.binary import LENGTH_HEADER, DeclaredInput, raw_request, read_length
from tfs_lite.protocols.v2.generate import ONE_ANSWER, read_generate, write_generate
from tfs_lite.protocols.v2.json_answer import printed_size, write_answer
from tfs_lite.protocols.v2.json_request import read_infer
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest
from tfs_lite.server.http.encoded_bodies import EncodedBodies
from tfs_lite.server.http.replies import JSON
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.http_events import EventStream, failed_stream
from tfs_lite.server.v2.http_paths import Target
from tfs_lite.server.v2.http_replies import v2_success
from tfs_lite.server.v2.inference import METHOD, V2Answers, V2Inference


class V2HttpInfer:
    """On the event loop. Every method raises ServingError, and CancelledError when the server gives up."""

    def __init__(self, inference: V2Inference, control: V2Control, http: HttpResources, bodies: EncodedBodies) -> None:
        self._inference = inference
        self._control = control
        self._bodies = bodies
        self._http = http

    async def infer(self, request: Request, model: str, target: Target) -> Response:
        with self._inference.metrics.record(METHOD, model, REST) as record, self._http.calls.call(record) as call:
            sent = await self._bodies.read(request, call, self._reader(request, model, target))
            answer = await self._inference.begin(sent, record, call.deadline).answer()
            binary = sent.binary_outputs
            large = printed_size(answer, binary) > COMFORTABLE_BYTES
            written = await self._http.run(large, lambda: write_answer(answer, binary))
        return v2_success(written)

    async def generate(self, request: Request, model: str, target: Target) -> Response:
        """The one answer of a model, also of a decoupled one; a language model's is whole. INTERNAL if there is none or
        there are several."""
        with ExitStack() as inside:
            answers = await self._begin(request, model, target, inside)
            answer = await anext(answers, None)
            if answer is None or await anext(answers, None) is not None:
                raise ServingError(StatusCode.INTERNAL, ONE_ANSWER)
            text = await self._print(answer)
        return Response(text, media_type=JSON.media_type)

    async def generate_stream(self, request: Request, model: str, target: Target) -> Response:
        """An :class:`EventStream`, which ends the call when it is sent. Failures before the request is queued are
        raised, and of a language model also those before its first piece; another model that fails at once gives an
        event with the failure's status."""
        event = False
        try:
            with ExitStack() as inside:
                answers = await self._begin(request, model, target, inside, in_pieces=True)
                event = not answers.generates

                async def next_text() -> bytes | None:
                    answer = await anext(answers, None)
                    return None if answer is None else await self._print(answer)

                return EventStream(await next_text(), next_text, inside.pop_all())
        except ServingError as error:
            if not event:
                raise
            return failed_stream(error)

    async def _begin(
        self, request: Request, model: str, target: Target, inside: ExitStack, in_pieces: bool = False
    ) -> V2Answers:
        """Queues a request of ``generate``. Closing ``inside`` ends it."""
        record = inside.enter_context(self._inference.metrics.record(METHOD, model, REST))
        call = inside.enter_context(self._http.calls.call(record))
        declared = self._declared(model, target)
        version = target.version
        sent = await self._bodies.read(request, call, lambda body: read_generate(model, version, body, declared))
        room = self._inference.room.client()
        begin = partial(self._inference.begin, in_pieces=in_pieces, text_outputs_only=True)
        return inside.enter_context(begin(sent, record, call.deadline, room))

    async def _print(self, answer: InferAnswer) -> bytes:
        large = printed_size(answer, False) > COMFORTABLE_BYTES
        return await self._http.run(large, lambda: write_generate(answer))

    def _reader(self, request: Request, model: str, target: Target) -> Callable[[bytes], InferRequest]:
        version, header = target.version, request.headers.get(LENGTH_HEADER)
        if header is not None and header.strip("0 ") == "" and "0" in header:
            declared, batches = self._declared(model, target), self._batches(model, target)
            return lambda body: raw_request(model, version, memoryview(body), declared, batches)
        return lambda body: read_infer(model, version, body, read_length(header, len(body)))

    def _declared(self, model: str, target: Target) -> Sequence[DeclaredInput]:
        metadata = self._control.model_metadata(model, target.version)
        return [DeclaredInput(spec.name, spec.datatype, spec.shape) for spec in metadata.inputs]

    def _batches(self, model: str, target: Target) -> bool:
        config: Any = self._control.model_config(model, target.version)
        return bool(config.max_batch_size > 0)
