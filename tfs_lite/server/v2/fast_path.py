"""The fast path of plain V2 requests: recognised by their bytes, and taken straight to the Predictor.

    bytes -> find -> PlainRequest -> infer -> InferAnswer -> write -> bytes
              \\-> None: the full way              \\-> None: the full way, whose request is learned if it is answered

The answers are exactly those of the full way, which handles every request for which a step here gives None.
"""

from __future__ import annotations

from tfs_lite.core.status import ServingError
from tfs_lite.metrics.requests import RequestRecord
from tfs_lite.protocols.v2.grpc_answer import GrpcAnswers
from tfs_lite.protocols.v2.grpc_layouts import GrpcLayouts
from tfs_lite.protocols.v2.http_layouts import HttpLayouts
from tfs_lite.protocols.v2.json_answer import HttpAnswers
from tfs_lite.protocols.v2.plain import PlainRequest, Unfit, plain_form
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest
from tfs_lite.server.inference.predictor import Predictor

LESSONS = 64
"""How many requests are learned at once."""
READ_FOR_A_LESSON = 16
"""Requests that are read in full for each further one that is learned: clients whose requests never repeat cost little
more than without a fast path."""


class V2FastPath:
    """On one event loop. ``grpc`` and ``http`` find requests; ``grpc_answers`` and ``http_answers`` write answers of
    either way."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.grpc = GrpcLayouts()
        self.http = HttpLayouts()
        self.grpc_answers = GrpcAnswers()
        self.http_answers = HttpAnswers()
        self._lessons = LESSONS
        self._read = 0

    async def infer(self, request: PlainRequest, record: RequestRecord, deadline: float | None) -> InferAnswer | None:
        """The answer, once the model has given it. None, with nothing queued, if the request must be read in full.
        ``deadline`` is in seconds of ``time.monotonic``. Raises ServingError; CancelledError cancels the request."""
        form = request.form
        try:
            pending = self._predictor.begin(form.model, request.plan, record, deadline)
        except Unfit:
            return None
        except ServingError:
            if request.run is None:  # the version was not found; the full way has V2's words for that
                return None
            raise
        inference = await pending.answer()
        found = inference.output
        outputs = {name: found[name] for name in request.names or found if name in found}
        return InferAnswer(inference.id, request.id, outputs, form.wanted)

    def learn_grpc(self, data: bytes, request: InferRequest) -> None:
        """Remembers a message that was read as ``request`` and answered, if it is plain."""
        form = plain_form(request)
        if form is not None and self._may_learn():
            self.grpc.learn(data, request, form)

    def learn_http(self, body: bytes, length: str | None, request: InferRequest) -> None:
        """Does the same for a body over HTTP; ``length`` is the header Inference-Header-Content-Length."""
        form = plain_form(request)
        if form is not None and self._may_learn():
            self.http.learn(body, length, request, form)

    def _may_learn(self) -> bool:
        self._read += 1
        if self._read % READ_FOR_A_LESSON == 0:
            self._lessons = min(LESSONS, self._lessons + 1)
        if not self._lessons:
            return False
        self._lessons -= 1
        return True
