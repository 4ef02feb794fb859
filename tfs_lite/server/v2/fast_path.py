"""The fast path of plain V2 requests: recognised by their bytes, and taken straight to the Predictor.

    bytes -> [like an earlier request?] -> PlainRequest -> [fits the version?] -> Predictor -\
               \\-> no: InferRequest, whose form is learned -> V2Inference ---------------------> InferAnswer -> bytes

The answers are exactly those of V2Inference, which takes every request that is not plain or does not fit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfs_lite.core.status import ServingError
from tfs_lite.metrics.request_records import RecordedRequest, RequestRecord
from tfs_lite.protocols.v2.grpc_answer import GrpcAnswers
from tfs_lite.protocols.v2.grpc_layouts import GrpcLayouts
from tfs_lite.protocols.v2.http_layouts import HttpLayouts
from tfs_lite.protocols.v2.json_answer import HttpAnswers
from tfs_lite.protocols.v2.plain import PlainForm, PlainRequest, Unfit, plain_form
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest
from tfs_lite.server.inference.pending import Inference, PendingRequest
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.runtime.reply import ModelReply
from tfs_lite.server.v2.inference import V2Inference
from tfs_lite.transport.table import Reply

LESSONS = 64
"""The most forms that are learned at once."""
READ_FOR_A_LESSON = 16
"""Requests that are read in full for each further one that is learned: clients whose requests never repeat cost little
more than without a fast path."""


class V2FastPath:
    """The fast path of V2 requests, on one event loop but for ``read_http``. ``grpc`` finds requests; ``grpc_answers``
    and ``http_answers`` write the answers of all requests, plain ones or not."""

    def __init__(self, predictor: Predictor, inference: V2Inference) -> None:
        """``inference`` takes what is not plain."""
        self._predictor = predictor
        self._inference = inference
        self.grpc = GrpcLayouts()
        self.grpc_answers = GrpcAnswers()
        self.http_answers = HttpAnswers()
        self._http = HttpLayouts()
        self.find_http = self._http.find
        self._lock = threading.Lock()  # guards the two below
        self._lessons = LESSONS
        self._read = 0

    def learn_grpc(self, data: bytes, request: InferRequest) -> None:
        """Remembers a message that was read as ``request``, if it is plain."""
        form = self._form(request)
        if form is not None:
            self.grpc.learn(data, request, form)

    def read_http(
        self, model: str, version: int | None, body: bytes, length: str | None, in_full: Callable[[bytes], InferRequest]
    ) -> InferRequest | PlainRequest:
        """The request of a body over HTTP, read by ``in_full`` unless it is like an earlier one; raises what that
        raises. ``length`` is the header Inference-Header-Content-Length, None without it. Any thread."""
        found = self._http.find(model, version, body, length)
        if found is not None:
            return found
        request = in_full(body)
        form = self._form(request)
        if form is not None:
            self._http.learn(body, length, request, form)
        return request

    async def answer(
        self, request: InferRequest | PlainRequest, record: RequestRecord, deadline: float | None
    ) -> InferAnswer:
        """The model's answer. ``deadline`` is in seconds of ``time.monotonic``. Raises ServingError; CancelledError
        cancels the request."""
        if isinstance(request, PlainRequest):
            pending = self.begin_plain(request, record, deadline)
            if pending is not None:
                return answer_to_plain(request, await pending.answer())
            request = request.in_full()
        await self._inference.decode_texts(request)
        return await self._inference.begin(request, record, deadline).answer()

    def reply_plain(
        self, request: PlainRequest, record: RecordedRequest, deadline: float | None
    ) -> Reply[bytes] | None:
        """The answer as a message of gRPC, whose ``record`` ends with it. None, with nothing queued and the record as
        it was, if the request does not fit. Raises ServingError."""
        try:
            pending = self.begin_plain(request, record, deadline)
        except Exception as error:
            record.end(error)
            raise
        if pending is None:
            return None
        return ModelReply(
            pending, record, lambda inference: self.grpc_answers.write(answer_to_plain(request, inference))
        )

    def begin_plain(
        self, request: PlainRequest, record: RequestRecord, deadline: float | None
    ) -> PendingRequest | None:
        """None, with nothing queued, if the request does not fit. Raises ServingError."""
        record.sent_id = request.id
        try:
            return self._predictor.begin(request.form.model, request.plan, record, deadline)
        except Unfit:
            return None
        except ServingError:
            if request.run is None:  # the version was not found, for which V2Inference has V2's words
                return None
            raise

    def _form(self, request: InferRequest) -> PlainForm | None:
        """The form of a request that is to be learned."""
        form = plain_form(request)
        if form is None:
            return None
        with self._lock:
            self._read += 1
            if self._read % READ_FOR_A_LESSON == 0:
                self._lessons = min(LESSONS, self._lessons + 1)
            if not self._lessons:
                return None
            self._lessons -= 1
        return form


def answer_to_plain(request: PlainRequest, inference: Inference) -> InferAnswer:
    """The wanted outputs, in their order. Without any wanted ones those of the version that has answered, which need
    not be the one that the request was checked against."""
    found = inference.output
    outputs = {name: found[name] for name in request.names or found if name in found}
    if len(outputs) < len(found) and not request.form.outputs:
        outputs = dict(found)
    return InferAnswer(inference.id, request.id, outputs, request.form.wanted)
