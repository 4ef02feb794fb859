"""OpenAI's API in front of language models and encoders: what answers its routes.

    body -> OpenAiRequest -> Predictor -> pieces -> one answer, or server-sent events

A request's time runs from the arrival of its head. It ends with its answer or its deadline, or when the client goes or
the server stops; then its texts are cancelled, and their slots in the model are free.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

from tfs_lite.core.generation import LanguageServable, Piece, TextCodec, is_language_servable, join_pieces
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError
from tfs_lite.metrics.request_records import RecordedRequest
from tfs_lite.metrics.requests import REST, RequestMetrics
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.openai.answers import AnswerHead, Printer, printed_size
from tfs_lite.protocols.openai.embeddings import read_embeddings
from tfs_lite.protocols.openai.fields import MAX_TIMEOUT, FieldError
from tfs_lite.protocols.openai.request import OpenAiRequest, read_chat, read_completion
from tfs_lite.protocols.runs import Run
from tfs_lite.server.http.events import EVENT_TYPE
from tfs_lite.server.http.message import Request, Response, StreamResponse
from tfs_lite.server.http.replies import JSON
from tfs_lite.server.http.resources import HttpResources
from tfs_lite.server.inference.pending import PendingRequest
from tfs_lite.server.inference.predictor import CallOptions, Lookup, Predictor
from tfs_lite.server.openai.embeddings import EMBEDDINGS, answer, plan
from tfs_lite.server.openai.errors import retry_after
from tfs_lite.server.openai.ignored_names import IgnoredNames
from tfs_lite.server.openai.models import Listing, OpenAiModels
from tfs_lite.server.openai.stream import Choices, choice_events

VERSION_HEADER = "x-model-version"
TIMEOUT_HEADER = "timeout"
NUMBER_BYTES = 12
"""About how many bytes a number of an embedding takes as JSON."""


@dataclass(frozen=True, slots=True)
class OpenAiSettings:
    """All in seconds. ``timeout`` is the most for a request, which may ask for less; None means no bound. ``ping`` is
    how long a stream may be silent before it sends a comment. ``stream_idle`` is how long a client may read nothing
    before its stream is cut, unless the model has a ``stream_idle_timeout`` of its own."""

    timeout: float | None = 600.0
    ping: float = 15.0
    stream_idle: float = 60.0


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The differences between completions and chat completions."""

    method: str
    prefix: str
    read: Callable[[bytes], OpenAiRequest]


_COMPLETIONS = _Endpoint("Completions", "cmpl", read_completion)
_CHAT = _Endpoint("ChatCompletions", "chatcmpl", read_chat)


class _OpenAiCall:
    """One request. ``codec``, ``retry_seconds`` and ``idle`` are those of the model once it is found."""

    __slots__ = ("_servable", "deadline", "endpoint", "record", "ref", "sent")

    def __init__(
        self, endpoint: _Endpoint, record: RecordedRequest, deadline: float | None, sent: OpenAiRequest, ref: ModelRef
    ) -> None:
        """``deadline`` is in seconds of ``time.monotonic``."""
        self.endpoint = endpoint
        self.record = record
        self.sent = sent
        self.ref = ref
        self.deadline = deadline
        self._servable: LanguageServable | None = None

    @property
    def retry_seconds(self) -> float:
        """The seconds after which a request that was refused may be tried again."""
        return 1.0 if self._servable is None else self._servable.retry_seconds

    @property
    def codec(self) -> TextCodec | None:
        return None if self._servable is None else self._servable.codec

    def idle(self, usual: float) -> float:
        """Seconds after which the stream of a client that reads nothing is cut: the model's own, else ``usual``."""
        own = None if self._servable is None else self._servable.traits.stream_idle_timeout
        return usual if own is None else own

    def plan(self, servable: Servable) -> Sequence[Run]:
        if not is_language_servable(servable):
            raise FieldError("model", f"The model '{self.sent.model}' is no language model")
        if servable.codec is None and not self.sent.token_ids:
            message = f"The model '{self.sent.model}' has no tokenizer and answers no text; set return_token_ids"
            raise FieldError("return_token_ids", message)
        self._servable = servable
        return [Run(DEFAULT_SIGNATURE, {}, ())]


class OpenAiApp:
    """OpenAI's API, on the event loop. The time limit of ``http.calls`` does not apply here. ``now`` gives the seconds
    since 1970."""

    def __init__(
        self,
        predictor: Predictor,
        lookup: Lookup,
        models: Listing,
        metrics: RequestMetrics,
        http: HttpResources,
        settings: OpenAiSettings | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._predictor = predictor
        self._models = OpenAiModels(lookup, models)
        self._metrics = metrics
        self._http = http
        self._settings = settings or OpenAiSettings()
        self.ignored = IgnoredNames()
        self._now = now

    async def completions(self, request: Request, model: str) -> Response | StreamResponse:
        return await self._generate(request, _COMPLETIONS)

    async def chat_completions(self, request: Request, model: str) -> Response | StreamResponse:
        return await self._generate(request, _CHAT)

    async def embeddings(self, request: Request, model: str) -> Response:
        with ExitStack() as inside:
            record = inside.enter_context(self._metrics.record("Embeddings", "", REST, request))
            seconds = _smaller(_header_timeout(request), self._settings.timeout)
            http_call = inside.enter_context(self._http.calls.call(request, record, seconds))
            sent = await self._http.bodies.read(request, read_embeddings)
            ref = self._models.ref(sent.model, request.grant)
            if sent.timeout is not None:
                http_call.limit(sent.timeout)
            record.model = ref.name
            try:
                with self._naming(sent.model, ref, record):
                    pending = self._predictor.begin(ref, partial(plan, sent), record, http_call.deadline)
                found = await pending.answer()
            except ServingError as error:
                raise retry_after(error, 1.0) from None
            numbers = sum(output[EMBEDDINGS].size for output in found.outputs)
            body = await self._http.run(numbers * NUMBER_BYTES > COMFORTABLE_BYTES, lambda: answer(sent, found.outputs))
            return Response(body, media_type=JSON.media_type, headers={VERSION_HEADER: str(found.id.version)})

    async def list_models(self, request: Request, model: str) -> Response:
        with self._metrics.record("ListModels", "", REST, request):
            return Response(self._models.list(request.grant), media_type=JSON.media_type)

    async def retrieve_model(self, request: Request, model: str) -> Response:
        with self._metrics.record("RetrieveModel", self._models.ref(model, request.grant).name, REST, request):
            return Response(self._models.one(model), media_type=JSON.media_type)

    async def _generate(self, request: Request, endpoint: _Endpoint) -> Response | StreamResponse:
        with ExitStack() as inside:
            record = inside.enter_context(self._metrics.record(endpoint.method, "", REST, request))
            seconds = _smaller(_header_timeout(request), self._settings.timeout)
            http_call = inside.enter_context(self._http.calls.call(request, record, seconds))
            sent = await self._http.bodies.read(request, endpoint.read)
            self.ignored.note(sent.ignored, endpoint.method)
            ref = self._models.ref(sent.model, request.grant)
            if sent.timeout is not None:
                http_call.limit(sent.timeout)
            call = _OpenAiCall(endpoint, record, http_call.deadline, sent, ref)
            record.model = ref.name
            try:
                return await (self._stream(request, call, inside) if sent.stream else self._whole(call))
            except ServingError as error:
                raise retry_after(error, call.retry_seconds) from None

    async def _whole(self, call: _OpenAiCall) -> Response:
        found: list[list[Piece]] = [[] for _ in call.sent.texts]
        pending = self._begin(call)
        await pending.answer()
        for piece in cast("list[Piece]", pending.take()):
            found[piece.index].append(piece)
        printer = self._printer(call, pending.id)
        pieces = [join_pieces(each) for each in found]
        body = await self._http.run(printed_size(pieces) > COMFORTABLE_BYTES, lambda: printer.whole(pieces))
        return Response(body, media_type=JSON.media_type, headers={VERSION_HEADER: str(pending.id.version)})

    async def _stream(self, request: Request, call: _OpenAiCall, inside: ExitStack) -> StreamResponse:
        """Raises failures that come before the first piece, so that the answer has their status."""
        sent, settings = call.sent, self._settings
        choices = Choices(len(sent.texts), sent.token_ids or sent.top is not None)
        pending = inside.enter_context(self._begin(call))
        await choices.wait(pending, settings.ping)
        pending.check()
        printer = self._printer(call, pending.id)

        async def write(taken: Sequence[Piece]) -> list[bytes]:
            large = printed_size(taken) > COMFORTABLE_BYTES
            return await self._http.run(large, lambda: [chunk for piece in taken for chunk in printer.chunks(piece)])

        def last() -> list[bytes]:
            return [printer.usage_chunk(choices.usages)] if sent.include_usage else []

        events = choice_events(pending, choices, write, last, settings.ping, inside.pop_all(), request.head.path)
        await anext(events)
        call.record.mark()
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", VERSION_HEADER: str(pending.id.version)}
        idle = call.idle(settings.stream_idle)
        return StreamResponse(events, media_type=EVENT_TYPE, headers=headers, write_timeout=idle)

    def _begin(self, call: _OpenAiCall) -> PendingRequest:
        options = CallOptions(texts=call.sent.texts, in_pieces=True)
        with self._naming(call.sent.model, call.ref, call.record):
            return self._predictor.begin(call.ref, call.plan, call.record, call.deadline, options)

    @contextmanager
    def _naming(self, sent: str, ref: ModelRef, record: RecordedRequest) -> Iterator[None]:
        """Says what a failed lookup means."""
        try:
            yield
        except ServingError as error:
            if record.version is not None:
                raise  # the model was found
            raise self._models.missing(sent, ref, error) from None

    def _printer(self, call: _OpenAiCall, servable_id: ServableId) -> Printer:
        head = AnswerHead(
            f"{call.endpoint.prefix}-{secrets.token_hex(16)}",
            int(self._now()),
            f"{servable_id.name}:{servable_id.version}",
        )
        return Printer(head, call.sent, call.codec)


def _header_timeout(request: Request) -> float | None:
    if TIMEOUT_HEADER not in request.headers:
        return None
    text = request.headers.get(TIMEOUT_HEADER)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIMEOUT:
        raise FieldError(
            TIMEOUT_HEADER, f"the header {TIMEOUT_HEADER} is {text[:50]!r}, expected seconds up to {MAX_TIMEOUT:g}"
        )
    return seconds


def _smaller(first: float | None, second: float | None) -> float | None:
    found = [value for value in (first, second) if value is not None]
    return min(found) if found else None
