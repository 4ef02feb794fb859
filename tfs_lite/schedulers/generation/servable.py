"""A language model as a servable: calls become texts of its engine, and the texts' pieces become the call's answer.

submit -> [tokenizing] -> Engine.submit -> pieces, on the engine's thread -> on_piece, or gathered -> on_done
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tfs_lite.core.clock import Clock
from tfs_lite.core.generation import (
    EngineState,
    LanguageModel,
    Limits,
    OnStep,
    OnText,
    Piece,
    StepReport,
    TextCodec,
    TextReport,
    nobody_counts_steps,
    nobody_counts_texts,
)
from tfs_lite.core.model import Model, PredictCall, Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, Tensor, check_output_filter, find_signature
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument
from tfs_lite.protocols.generation_tensors import generation_signature, join, whole_outputs
from tfs_lite.schedulers.batching.execution import CANCELLED, Answer, finish
from tfs_lite.schedulers.generation.calls import GenerationTask
from tfs_lite.schedulers.generation.engine import Engine, Job
from tfs_lite.schedulers.generation.loop import StepLoop, shared_loop
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.tokenizing import LIGHT, Prepared, Tokenizing, Work, prepare, weigh

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1, 60
_NEW_STEP = 0.1
"""Weight of the last step in the average."""
_SEEDS = 2**64
logger = logging.getLogger(__name__)


class GenerativeServable(Traits):
    """A :class:`~tfs_lite.core.model.Servable` around one :class:`~tfs_lite.core.generation.LanguageModel`.

    A call has ``texts``, or inputs of the signature (see :func:`~tfs_lite.protocols.generation_tensors.texts_of`). With
    ``on_piece`` it is told about every piece, whose ``index`` is the text's position, and ``on_done`` has no outputs;
    without, ``on_done`` has the outputs of the signature, and with ``on_part`` these are its only part.

    Promises: ``on_done`` once, after the last piece, when none of its texts runs any more. A text that fails fails its
    call; the others are cancelled, and there is no further piece. Errors: INVALID_ARGUMENT; UNAVAILABLE (QUEUE_FULL,
    QUEUE_TIMEOUT, closed); DEADLINE_EXCEEDED; CANCELLED, also of a call that runs; INTERNAL.
    Threads: any, for every method; ``close`` not the engine's. ``on_piece`` and ``on_done`` are called on the engine's
    thread, so they must be short.
    """

    generates = True
    decoupled = True
    stream_idle_timeout: float
    """Seconds after which a front door gives up a client that reads nothing; set by whoever wants another than its."""

    def __init__(
        self,
        model: LanguageModel,
        servable_id: ServableId,
        settings: EngineSettings,
        *,
        clock: Clock,
        on_step: OnStep = nobody_counts_steps,
        on_text: OnText = nobody_counts_texts,
        loop: StepLoop | None = None,
    ) -> None:
        """Takes the model over: closes it in the end. ``loop`` None: the process's for a model that shares its
        processor, else one of its own."""
        self.model = model
        self.id = servable_id
        self._name = f"model {servable_id.name} version {servable_id.version}"
        short = f"{servable_id.name}-{servable_id.version}"
        self._clock = clock
        self._on_step = on_step
        self._on_text = on_text
        self._limits = replace(model.limits, length=min(settings.length, model.limits.length), places=settings.places)
        self._most = settings.places + settings.max_queue
        self._step_seconds = 0.0  # written by the engine's thread only
        self._ended: TextReport | None = None  # the engine's thread only: of the text whose end is delivered next
        self._signatures = model.signatures or {DEFAULT_SIGNATURE: generation_signature(model.codec is not None)}
        self._tokenizing = Tokenizing(self._name, self._most, short)
        self._closed = threading.Event()
        if loop is None:
            loop = shared_loop() if model.shares_compute else StepLoop(f"tfs-steps-{short}")
        self._engine = Engine(
            model, servable_id, settings, clock=clock, loop=loop, on_step=self._stepped, on_text=self._told
        )

    @property
    def platform(self) -> str:
        return self.model.platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    @property
    def models(self) -> Sequence[Model]:
        return (self.model,)

    @property
    def codec(self) -> TextCodec | None:
        return self.model.codec

    @property
    def batches(self) -> bool:
        """Whether texts share each step."""
        return self.model.batches

    @property
    def limits(self) -> Limits:
        """Those of the model, as far as the settings let it go."""
        return self._limits

    @property
    def pending(self) -> int:
        """Texts that wait for a place, and calls that wait for their tokens."""
        return self._engine.state().waiting + self._tokenizing.waiting

    @property
    def pending_rows(self) -> int:
        return self.pending

    @property
    def retry_seconds(self) -> int:
        """After how many whole seconds a refused call may find room: until an average one of the texts that run has got
        all its tokens, if steps go on as they do. A guess between 1 and 60."""
        state = self._engine.state()
        tokens = (state.reserved - state.written) / max(state.running, 1)
        return min(max(math.ceil(tokens * self._step_seconds), MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)

    def state(self) -> EngineState:
        return self._engine.state()

    def submit(self, call: PredictCall) -> None:
        """Never blocks: long prompts are tokenised elsewhere."""
        asked = call.ticket = GenerationTask(call, self._clock.monotonic())
        if self._is_late(call):
            self._end(asked, self._late())
        elif self._closed.is_set():
            self._end(asked, self._unloaded())
        elif (weight := weigh(call)) <= LIGHT:
            self._prepare(asked)
        else:
            self._prepare_later(asked, weight)

    def cancel(self, call: PredictCall) -> None:
        """A call that runs ends within a step."""
        asked = call.ticket
        if not isinstance(asked, GenerationTask):
            return
        over, jobs = asked.drop()
        if over:
            if asked.work is not None:
                self._tokenizing.discard(asked.work)
            self._answer(asked, CANCELLED)
        elif jobs:
            self._engine.cancel(jobs)

    def close(self) -> None:
        """Calls that are inside, if any, are answered UNAVAILABLE."""
        self._closed.set()
        self._tokenizing.close()
        self._engine.close()
        self.model.close()

    def _prepare_later(self, asked: GenerationTask, weight: int) -> None:
        drop = partial(self._end, asked, self._unloaded())
        work = asked.work = Work(weight, partial(self._prepare, asked), drop)
        refusal = self._tokenizing.put(work)
        if refusal is not None:
            self._end(asked, refusal)

    def _prepare(self, asked: GenerationTask) -> None:
        """On the thread of whoever submits, or on that for long prompts."""
        call = asked.call
        if not asked.is_wanted:
            return
        if self._is_late(call):
            self._end(asked, self._late())
            return
        try:
            check_output_filter(find_signature(self._signatures, call.signature), call.outputs)
            texts = prepare(call, self.codec, self._limits)
            if len(texts) > self._most:
                raise invalid_argument(f"{len(texts)} texts are wanted, {self._name} has room for {self._most} at most")
        except ServingError as error:
            self._end(asked, error.status)
        except Exception:
            logger.exception("the prompts of a call of %s could not be tokenised", self._name)
            self._end(asked, Status(StatusCode.INTERNAL, f"{self._name} failed to tokenise the prompts"))
        else:
            self._enter(asked, texts)

    def _enter(self, asked: GenerationTask, texts: Sequence[Prepared]) -> None:
        deliver = partial(self._deliver, asked)
        deadline = _deadline(asked)
        jobs = [
            Job(text.wanted, text.tokens, text.limit, _seed(text), deadline, index, deliver)
            for index, text in enumerate(texts)
        ]
        if not asked.enter(jobs):
            return
        asked.call.admitted = True
        refusal = self._hand_over(jobs)
        if refusal is not None:
            asked.call.admitted = False
            self._end(asked, refusal)
        elif dropped := asked.entered():
            self._engine.cancel(dropped)

    def _hand_over(self, jobs: Sequence[Job]) -> Status | None:
        try:
            return self._engine.submit(jobs)
        except Exception:
            logger.exception("the engine of %s could not take texts", self._name)
            return Status(StatusCode.INTERNAL, f"{self._name} failed to take the texts")

    def _deliver(self, asked: GenerationTask, job: Job, event: Piece | Status) -> None:
        """On the engine's thread, or on that which closes."""
        is_last = isinstance(event, Status) or event.finish is not None
        taken = asked.take(job, event, self._started() if is_last else None)
        if isinstance(event, Piece) and taken.piece:
            self._pass_on(asked, job.index, event)
        if taken.drop:
            self._engine.cancel(taken.drop)
        if taken.over:
            self._end(asked, asked.failure or self._outputs(asked))

    def _started(self) -> float | None:
        """When the text whose end is delivered now got its place."""
        report = self._ended
        if report is None or report.queue_seconds is None:
            return None
        return self._clock.monotonic() - report.seconds + report.queue_seconds

    def _pass_on(self, asked: GenerationTask, index: int, piece: Piece) -> None:
        on_piece = asked.call.on_piece
        if on_piece is None:
            asked.keep(index, piece)
            return
        try:
            on_piece(piece)
        except Exception:
            logger.exception("a caller of %s broke its contract: on_piece must not raise", self._name)

    def _outputs(self, asked: GenerationTask) -> Answer:
        call = asked.call
        if call.on_piece is not None:
            return {}
        outputs: Mapping[str, Tensor] = whole_outputs([join(each) for each in asked.release()], self.codec is not None)
        if call.outputs:
            outputs = {name: outputs[name] for name in call.outputs}
        if call.on_part is None:
            return outputs
        try:
            call.on_part(outputs)
        except Exception:
            logger.exception("a caller of %s broke its contract: on_part must not raise", self._name)
        return {}

    def _end(self, asked: GenerationTask, answer: Answer) -> None:
        """Answers, unless somebody else has."""
        if asked.end():
            self._answer(asked, answer)

    def _answer(self, asked: GenerationTask, answer: Answer) -> None:
        """Once for each call: by whoever has made it OVER."""
        call, now = asked.call, self._clock.monotonic()
        started = now if asked.started is None else asked.started
        call.queue_seconds, call.run_seconds = started - asked.came, now - started
        asked.release()
        call.ticket = None
        finish(call, answer, self._name)

    def _stepped(self, report: StepReport) -> None:
        if self._step_seconds:
            self._step_seconds += _NEW_STEP * (report.seconds - self._step_seconds)
        else:
            self._step_seconds = report.seconds
        self._on_step(report)

    def _told(self, report: TextReport) -> None:
        """The engine tells of a text's end right before it delivers it."""
        self._ended = report
        self._on_text(report)

    def _is_late(self, call: PredictCall) -> bool:
        return call.deadline is not None and call.deadline <= self._clock.monotonic()

    def _unloaded(self) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} is being unloaded")

    def _late(self) -> Status:
        message = f"the deadline passed before {self._name} had begun with the prompts"
        return Status(StatusCode.DEADLINE_EXCEEDED, message)


def _deadline(asked: GenerationTask) -> float | None:
    """The call's own, or the one that its ``timeout`` means, whichever is sooner."""
    call = asked.call
    if not call.timeout:
        return call.deadline
    own = asked.came + call.timeout
    return own if call.deadline is None else min(own, call.deadline)


def _seed(text: Prepared) -> int:
    """Of 64 bits with a sign; at random if none is asked for."""
    seed = text.wanted.sampling.seed
    if seed is None:
        return secrets.randbits(63)
    return (seed + text.wanted.seed_shift + _SEEDS // 2) % _SEEDS - _SEEDS // 2
