"""A language model as a servable: the texts of a call go to its engine, and their pieces become the answer.

submit -> [tokenizer thread] -> Engine.submit -> pieces, on the engine's thread -> on_piece, or collected -> on_done
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.generation import (
    EngineState,
    GenerationCall,
    GenerationLimits,
    LanguageModel,
    OnStep,
    OnText,
    Piece,
    StepReport,
    TextCodec,
    TextReport,
    join_pieces,
)
from tfs_lite.core.model import CallTrace, FixedInstances, JudgesCalls, Model, TextTimes, Traits, close_models
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import (
    DEFAULT_SIGNATURE,
    Signature,
    Tensor,
    check_output_filter,
    find_signature,
    named,
    served,
)
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument
from tfs_lite.protocols.generation_tensors import generation_signature, whole_outputs
from tfs_lite.schedulers.calls import CANCELLED, Answer, finish
from tfs_lite.schedulers.generation.engine import Engine
from tfs_lite.schedulers.generation.generation_task import GenerationTask
from tfs_lite.schedulers.generation.loop import StepLoop, shared_loop
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Text
from tfs_lite.schedulers.generation.tokenizing import LIGHT, Prepared, TokenizerThread, Work, prepare, weigh

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1, 60
_NEW_STEP = 0.1
"""Weight of the last step in the average."""
_SEEDS = 2**64
logger = logging.getLogger(__name__)


class GenerativeServable(FixedInstances, JudgesCalls):
    """A :class:`~tfs_lite.core.model.Servable` around one :class:`~tfs_lite.core.generation.LanguageModel`.

    A call has ``texts``, or inputs of the signature (see :func:`~tfs_lite.protocols.generation_tensors.texts_of`). With
    ``on_piece`` it gets every piece, whose ``index`` is the position of the text, and ``on_done`` has no outputs;
    without, ``on_done`` has the outputs of the signature.

    ``on_done`` is called once, after the last piece, when none of the texts runs any more. A text that fails fails its
    call: the others are cancelled, and no further piece comes. Errors: INVALID_ARGUMENT; UNAVAILABLE (QUEUE_FULL,
    QUEUE_TIMEOUT, closed); DEADLINE_EXCEEDED; CANCELLED, also of a call that runs; INTERNAL.
    Any thread may call any method, but the engine's thread must not call ``close``. ``on_piece`` and ``on_done`` are
    called on the engine's thread, so they must be short.
    """

    def __init__(
        self,
        model: LanguageModel,
        servable_id: ServableId,
        settings: EngineSettings,
        *,
        clock: Clock,
        on_step: OnStep = ignore,
        on_text: OnText = ignore,
        loop: StepLoop | None = None,
        stream_idle_timeout: float | None = None,
    ) -> None:
        """Owns the model, and closes it. ``loop`` None means the shared loop of the process for a CPU model, else a
        loop of its own. ``stream_idle_timeout`` is as in :class:`~tfs_lite.core.model.Traits`."""
        self.model = model
        self.traits = Traits(model.platform, decoupled=True, generates=True, stream_idle_timeout=stream_idle_timeout)
        self.id = servable_id
        self._name = f"model {servable_id.name} version {servable_id.version}"
        short = f"{servable_id.name}-{servable_id.version}"
        self._clock = clock
        self._on_step = on_step
        self._on_text = on_text
        self._limits = replace(model.limits, length=min(settings.length, model.limits.length), slots=settings.slots)
        self._max_texts = settings.slots + settings.max_queue
        self._step_seconds = 0.0  # written by the engine's thread only
        self._last_report: TextReport | None = None  # of the text whose end is delivered next; the engine's thread only
        signatures = model.signatures or {DEFAULT_SIGNATURE: generation_signature(model.codec is not None)}
        self._signatures = served(signatures, servable_id.name)
        self._tokenizer = TokenizerThread(self._name, self._max_texts, short)
        self._closed = threading.Event()
        if loop is None:
            loop = shared_loop() if model.shares_compute else StepLoop(f"tfs-steps-{short}")
        self._engine = Engine(
            model, servable_id, settings, clock=clock, loop=loop, on_step=self._step_ended, on_text=self._text_ended
        )

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
    def limits(self) -> GenerationLimits:
        """The limits of the model, lowered to those of the settings."""
        return self._limits

    @property
    def pending(self) -> int:
        """Texts that wait for a slot, and calls that wait for the tokenizer."""
        return self._engine.state().waiting + self._tokenizer.waiting

    @property
    def pending_rows(self) -> int:
        return self.pending

    @property
    def retry_seconds(self) -> int:
        """A guess, in whole seconds from 1 to 60, of when a refused call may find room: the time in which an average
        running text gets all its tokens."""
        state = self._engine.state()
        tokens = (state.reserved - state.written) / max(state.running, 1)
        return min(max(math.ceil(tokens * self._step_seconds), MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)

    def state(self) -> EngineState:
        return self._engine.state()

    def submit(self, call: GenerationCall) -> None:
        """Never blocks: long prompts are tokenized on another thread."""
        task = call.ticket = GenerationTask(call, self._clock.monotonic())
        if self._is_late(call):
            self._end(task, self._late())
        elif self._closed.is_set():
            self._end(task, self._unloaded())
        elif (weight := weigh(call)) <= LIGHT:
            self._prepare(task)
        else:
            self._prepare_later(task, weight)

    def cancel(self, call: GenerationCall) -> None:
        """Cancels the call; one that runs ends within a step."""
        task = call.ticket
        if not isinstance(task, GenerationTask):
            return
        finished, texts = task.cancel()
        if finished:
            if task.work is not None:
                self._tokenizer.discard(task.work)
            self._answer(task, CANCELLED)
        elif texts:
            self._engine.cancel(texts)

    def close(self) -> None:
        """Answers all calls that are left with UNAVAILABLE."""
        self._closed.set()
        self._tokenizer.close()
        self._engine.close()
        close_models([self.model], self._name)

    def _prepare_later(self, task: GenerationTask, weight: int) -> None:
        work = task.work = Work(weight, partial(self._prepare, task), partial(self._end, task, self._unloaded()))
        refusal = self._tokenizer.put(work)
        if refusal is not None:
            self._end(task, refusal)

    def _prepare(self, task: GenerationTask) -> None:
        """On the submitting thread, or on the tokenizer thread."""
        call = task.call
        if not task.is_wanted:
            return
        if self._is_late(call):
            self._end(task, self._late())
            return
        try:
            check_output_filter(find_signature(self._signatures, call.signature), call.outputs)
            texts = prepare(call, self.codec, self._limits)
            if len(texts) > self._max_texts:
                raise invalid_argument(f"{len(texts)} texts are wanted, there is room for {self._max_texts} at most")
        except ServingError as error:
            self._end(task, named(error, self.id.name).status)
        except Exception:
            logger.exception("the prompts of a call of %s could not be tokenised", self._name)
            self._end(task, Status(StatusCode.INTERNAL, f"{self._name} failed to tokenise the prompts"))
        else:
            self._submit(task, texts)

    def _submit(self, task: GenerationTask, prepared: Sequence[Prepared]) -> None:
        deliver = partial(self._deliver, task)
        deadline = _deadline(task)
        texts = [
            Text(each.wanted, each.tokens, each.limit, _seed(each), deadline, index, deliver)
            for index, each in enumerate(prepared)
        ]
        if not task.begin_submit(texts):
            return
        task.call.admitted = True
        refusal = self._submit_texts(texts)
        if refusal is not None:
            task.call.admitted = False
            self._end(task, refusal)
        elif cancelled := task.end_submit():
            self._engine.cancel(cancelled)

    def _submit_texts(self, texts: Sequence[Text]) -> Status | None:
        try:
            return self._engine.submit(texts)
        except Exception:
            logger.exception("the engine of %s could not take texts", self._name)
            return Status(StatusCode.INTERNAL, f"{self._name} failed to take the texts")

    def _deliver(self, task: GenerationTask, text: Text, event: Piece | Status) -> None:
        """On the engine's thread, or on the one that closes it."""
        is_last = isinstance(event, Status) or event.finish is not None
        outcome = task.on_event(text, event, self._started() if is_last else None)
        if is_last and task.call.trace is not None:
            self._trace_text(task.call.trace)
        if isinstance(event, Piece) and outcome.piece:
            self._pass_on(task, text.index, event)
        if outcome.cancel:
            self._engine.cancel(outcome.cancel)
        if outcome.finished:
            self._end(task, task.failure or self._outputs(task))

    def _started(self) -> float | None:
        """When the text whose end is being delivered got its slot."""
        report = self._last_report
        if report is None or report.queue_seconds is None:
            return None
        return self._clock.monotonic() - report.seconds + report.queue_seconds

    def _trace_text(self, trace: CallTrace) -> None:
        """Notes the text whose end is being delivered, if it got a token."""
        report, started = self._last_report, self._started()
        if report is None or started is None or report.first_seconds is None or report.queue_seconds is None:
            return
        arrived, usage = started - report.queue_seconds, report.usage
        first, ended = arrived + report.first_seconds, arrived + report.seconds
        trace.texts += (TextTimes(started, first, ended, usage.prompt, usage.cached, usage.output),)

    def _pass_on(self, task: GenerationTask, index: int, piece: Piece) -> None:
        on_piece = task.call.on_piece
        if on_piece is None:
            task.add_piece(index, piece)
            return
        try:
            on_piece(piece)
        except Exception:
            logger.exception("a caller of %s broke its contract: on_piece must not raise", self._name)

    def _outputs(self, task: GenerationTask) -> Answer:
        call = task.call
        if call.on_piece is not None:
            return {}
        outputs: Mapping[str, Tensor] = whole_outputs(
            [join_pieces(each) for each in task.release()], self.codec is not None
        )
        if call.outputs:
            outputs = {name: outputs[name] for name in call.outputs}
        return outputs

    def _end(self, task: GenerationTask, answer: Answer) -> None:
        """Answers the call, unless it was answered before."""
        if task.end():
            self._answer(task, answer)

    def _answer(self, task: GenerationTask, answer: Answer) -> None:
        """Called once for each call, by the thread that has made it DONE."""
        call, now = task.call, self._clock.monotonic()
        started = now if task.started is None else task.started
        call.queue_seconds, call.run_seconds = started - task.arrived, now - started
        task.release()
        call.ticket = None
        finish(call, answer, self._name)

    def _step_ended(self, report: StepReport) -> None:
        if self._step_seconds:
            self._step_seconds += _NEW_STEP * (report.seconds - self._step_seconds)
        else:
            self._step_seconds = report.seconds
        self._on_step(report)

    def _text_ended(self, report: TextReport) -> None:
        """The engine reports the end of a text right before it delivers it."""
        self._last_report = report
        self._on_text(report)

    def _is_late(self, call: GenerationCall) -> bool:
        return call.deadline is not None and call.deadline <= self._clock.monotonic()

    def _unloaded(self) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} is being unloaded")

    def _late(self) -> Status:
        message = f"the deadline passed before {self._name} had begun with the prompts"
        return Status(StatusCode.DEADLINE_EXCEEDED, message)


def _deadline(task: GenerationTask) -> float | None:
    """The call's deadline, or the end of its ``timeout`` if that is sooner."""
    call = task.call
    if not call.timeout:
        return call.deadline
    own = task.arrived + call.timeout
    return own if call.deadline is None else min(own, call.deadline)


def _seed(text: Prepared) -> int:
    """A signed number of 64 bits; a random one if the text has no seed."""
    seed = text.wanted.sampling.seed
    if seed is None:
        return secrets.randbits(63)
    return (seed + text.wanted.seed_shift + _SEEDS // 2) % _SEEDS - _SEEDS // 2
