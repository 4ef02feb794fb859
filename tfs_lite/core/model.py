"""The data-plane contract: what an adapter loads, and what a request does with it.

    adapter -> Model (or several equal ones) -> scheduler -> Servable (any thread) -> Predictor

A :class:`Model` is the bare artefact, here or in a process of its own. A :class:`Servable` is one or more models behind
whatever decides who runs next; it is what handles give out.
"""

from __future__ import annotations

import enum
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode

logger = logging.getLogger(__name__)

Shapes = Mapping[str, tuple[tuple[int, ...], Any]]
"""Input name -> (shape, numpy dtype)."""


class WorkerLost(ServingError):
    """The process that ran the model has died, with whatever it was running. UNAVAILABLE. ``unread`` means that it
    cannot have read the request: it is safe to run it elsewhere."""

    def __init__(self, message: str, unread: bool = False) -> None:
        super().__init__(StatusCode.UNAVAILABLE, message)
        self.unread = unread

    def __reduce__(self) -> tuple[type[WorkerLost], tuple[str, bool]]:  # type: ignore[override]
        return type(self), (self.status.message, self.unread)


class WorkerBusy(ServingError):
    """The process that has the model has as many requests as it takes, and has not looked at this one: it is safe to
    run it elsewhere, or later. RESOURCE_EXHAUSTED, with QUEUE_FULL."""

    def __init__(self, message: str) -> None:
        super().__init__(StatusCode.RESOURCE_EXHAUSTED, message, Reason.QUEUE_FULL)

    def __reduce__(self) -> tuple[type[WorkerBusy], tuple[str]]:  # type: ignore[override]
        return type(self), (self.status.message,)


class SandboxStatus(NamedTuple):
    """The parts that the sandbox of a model's process enforces, and those that this kernel cannot enforce: of "files",
    "programs", "network" and "signals"."""

    holds: tuple[str, ...]
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The place where a model runs and the health of that place. ``pid``: of a process of its own; ``restarts``: how
    often it had to be started again; ``reason``: why the model was not opened in its platform's usual way, empty if it
    was; ``node``: the host where it runs, empty for this one. While it is not up: ``cause``, why it has ended;
    ``failure``, why it could not be started again so far; ``retry_at``, the next attempt, in seconds of
    ``time.monotonic``. ``sandbox``: that of its process, None if it is in none."""

    kind: str = "thread"
    up: bool = True
    pid: int | None = None
    restarts: int = 0
    reason: str = ""
    node: str = ""
    cause: str = ""
    failure: str = ""
    retry_at: float | None = None
    sandbox: SandboxStatus | None = None


class Model(Protocol):
    """A loaded artefact, or the near end of one that lives in another process.

    Threads: at most ``concurrency`` threads are inside ``run`` (with the ``stage`` before it) at any time; ``close`` is
    called once, after the last ``run``; ``signatures``, ``preprocess`` and ``postprocess`` by any number of threads,
    also during ``run``. Inherit from it: the methods after ``close`` have answers that fit most models.
    """

    @property
    def platform(self) -> str: ...

    @property
    def signatures(self) -> Mapping[str, Signature]: ...

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """Runs one request or batch. Inputs were checked against the signature; arrays may be read-only and must not
        be written to. Returns exactly ``outputs`` (all of the signature's when empty), arrays of the caller's own;
        code of a version may leave some out, and its scheduler decides what that means. Raises ServingError; WorkerLost
        means that nothing can be run until :meth:`recover` says so, WorkerBusy that nothing was run this time."""

    def close(self) -> None:
        """Drops weights, threads and processes. Called once, after the last ``run``."""

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        """Yields the answers one after the other: ``run`` for models that may have several answers to a request, or
        none. A caller that stops early closes the iterator."""
        yield self.run(signature, inputs, outputs)

    @property
    def worker(self) -> WorkerStatus:
        """Any thread."""
        return WorkerStatus()

    @property
    def merges_calls(self) -> bool:
        """Whether calls are batched also where no config asks for it."""
        return False

    @property
    def captured_rows(self) -> tuple[int, ...]:
        """The numbers of rows that it runs faster than any other, ascending, so that it is worth while to fill batches
        up to the next of them; empty where every number is as good as the next."""
        return ()

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes, by output, that the artefact itself has."""
        return {}

    @property
    def concurrency(self) -> int:
        """The number of threads that may be inside ``run`` at once."""
        return 1

    @property
    def useful_threads(self) -> int:
        """The number of threads worth having: 1, or more where copying and computing overlap. At most
        ``concurrency``."""
        return 1

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        """Memory for the inputs of this thread's next ``run``, which reads it fastest: pinned for a GPU, shared with a
        process. Contents are arbitrary; valid until that run returns. An input of texts is left out; None: the model
        does not care, any array is as good."""
        return None

    def recover(self, give_up: threading.Event) -> bool:
        """Called after a WorkerLost. Returns True when the model can run again, False once ``give_up`` is set. Blocks;
        waits longer from failure to failure."""
        return True

    @property
    def has_item_steps(self) -> bool:
        """Whether requests go through ``preprocess`` and ``postprocess``."""
        return False

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """Turns a request's items into those that are batched. Raises ServingError, INVALID_ARGUMENT for an item that
        the model refuses. ``deadline`` is in seconds of ``time.monotonic``."""
        return dict(inputs)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """Turns the rows of a request, after the run, into those of its answer. Raises ServingError."""
        return dict(outputs)


class ModelAround(Model):
    """A model around another one that it passes every call on to, and owns. One with an idea of its own overrides the
    members that this is about; the model inside is ``_inner``."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    @property
    def platform(self) -> str:
        return self._inner.platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._inner.signatures

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        return self._inner.run(signature, inputs, outputs)

    def close(self) -> None:
        self._inner.close()

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        return self._inner.parts(signature, inputs, outputs)

    @property
    def worker(self) -> WorkerStatus:
        return self._inner.worker

    @property
    def merges_calls(self) -> bool:
        return self._inner.merges_calls

    @property
    def captured_rows(self) -> tuple[int, ...]:
        return self._inner.captured_rows

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        return self._inner.labels

    @property
    def concurrency(self) -> int:
        return self._inner.concurrency

    @property
    def useful_threads(self) -> int:
        return self._inner.useful_threads

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        return self._inner.stage(signature, shapes)

    def recover(self, give_up: threading.Event) -> bool:
        return self._inner.recover(give_up)

    @property
    def has_item_steps(self) -> bool:
        return self._inner.has_item_steps

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._inner.preprocess(signature, inputs, deadline)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return self._inner.postprocess(signature, outputs, deadline)


def close_models(models: Iterable[Model], name: str) -> None:
    """Closes the models of a servable, whose name is for the log. What one raises, be it ``SystemExit``, is logged, and
    the others are closed all the same."""
    for model in models:
        try:
            model.close()
        except BaseException:
            logger.exception("closing an instance of %s failed", name)


@dataclass(frozen=True, slots=True)
class SequenceFlags:
    """The sequence that a request belongs to, in Triton's words: ``id`` is its correlation id, an unsigned 64-bit
    number or a text, which are different sequences even when they look alike. 0 and the empty text are no id."""

    id: int | str
    start: bool = False
    end: bool = False


RUNNING = "running"
"""The ticket of a call that a model runs."""


class StepTimes(NamedTuple):
    """A call to a model that an ensemble has made for a request of its own: times as in :class:`ServableCall`, and when
    and how it ended."""

    id: ServableId
    arrived: float
    ended: float
    queue_seconds: float
    run_seconds: float
    copy_seconds: tuple[float, float]
    code: StatusCode
    trace: CallTrace


@dataclass(slots=True, eq=False)
class BatchTrace:
    """One run of a model with calls of requests that may be traced. It began at ``started`` of ``time.monotonic``."""

    report: BatchReport
    started: float


class TextTimes(NamedTuple):
    """A text of a language model, in seconds of ``time.monotonic``: when it got a slot, its first token and its end;
    and numbers of tokens."""

    started: float
    first: float
    ended: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class CallTrace:
    """The notes on a call whose request may be traced: the runs that it was in; of an ensemble, its steps; of a
    language model, its texts. One thread at a time adds to one of them. There is one for each call while traces are on:
    what is empty stands in the class."""

    batches: tuple[BatchTrace, ...] = ()
    steps: tuple[StepTimes, ...] = ()
    texts: tuple[TextTimes, ...] = ()


@dataclass(slots=True, eq=False)
class ServableCall:
    """One request on its way through a servable: what requests of every kind have.

    ``inputs`` and ``outputs`` are those of the signature; no outputs means all. ``deadline`` is in seconds of
    ``time.monotonic``. ``on_done`` is called exactly once, on any thread, with the outputs or with the status of the
    failure; it must be short and must not raise. ``priority`` (1 is the most urgent; 0: the default) and ``timeout``
    (seconds in the queue; 0: the default) count where the model's settings have them. ``arrived`` is when the request
    came, in seconds of ``time.monotonic``; 0 means that it was not noted.

    The servable fills in the rest before ``on_done``: ``queue_seconds``, the wait; ``run_seconds``, the time in the
    model, and of that ``copy_seconds``, the time for putting inputs together and for handing outputs out. It sets
    ``admitted`` once the call is in its queue; a call that is refused at once stays without. ``ticket`` is its own note
    while the call is inside, :data:`RUNNING` while it runs. ``trace``: what is noted of a call whose request may be
    traced; None: nothing is.
    """

    signature: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    deadline: float | None
    on_done: Callable[[Mapping[str, Tensor] | Status], None]
    priority: int = 0
    timeout: float = 0.0
    arrived: float = 0.0
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    copy_seconds: tuple[float, float] = (0.0, 0.0)
    admitted: bool = False
    ticket: object = None
    trace: CallTrace | None = None


@dataclass(slots=True, eq=False)
class PredictCall(ServableCall):
    """A request for tensors. A language model takes a :class:`~tfs_lite.core.generation.GenerationCall` instead.

    ``sequence`` is for models with state. ``may_lack``: outputs that the model leaves out are left out of the answer,
    too; otherwise the call fails. ``on_part``, for models with several answers to a request (``decoupled``), is
    called with each of them, in order, on any thread, before ``on_done``, which then gets no outputs; it may block the
    model. The servable fills in ``part_seconds``, the time that the model took for each of the first answers, and
    ``cached``: the answer came from the response cache, and the model was not run. A scheduler that batches fills in
    ``batch_rows``, the rows of the run, and ``halved``: the run with others had failed, and was tried again in halves.
    ``instead``: models that the steps of an ensemble, nested ones too, take in these versions and not in the newest;
    such an answer is not kept.
    """

    sequence: SequenceFlags | None = None
    may_lack: bool = False
    on_part: Callable[[Mapping[str, Tensor]], None] | None = None
    part_seconds: list[float] | None = None
    cached: bool = False
    batch_rows: int = 0
    halved: bool = False
    instead: Mapping[str, int] | None = None


ModelAndVersion = tuple[str, int | None]
"""A model's name and version; None means the newest version."""


class SharedRuns(enum.Enum):
    """Whether the calls of a servable share runs."""

    BY_CONFIG = "as far as its config lets them"
    OFF = "they could, but nothing asks for batching"
    NEVER = "its signatures do not let them"


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a servable other than its signatures. Fixed when it is made.

    Whatever makes a servable gives it one. A servable around another one has the inner one's, with
    ``dataclasses.replace`` for what differs.

    - ``platform``: what made the model.
    - ``max_batch_size``: the most rows of a request that the model's config names; 0 where it names no batch.
    - ``labels``: names of classes, by output. The mapping of an ensemble asks its models at each look.
    - ``decoupled``: a call may have several answers, or none, and needs ``on_part``.
    - ``generates``: it is a :class:`~tfs_lite.core.generation.LanguageServable`, which takes calls of its own kind.
    - ``keeps_sequences``: calls belong to sequences, and need ``sequence``.
    - ``runs_once``: a request must not run twice, because its run has effects (``retry_lost_batches: false``).
    - ``has_item_steps``: each request is preprocessed and postprocessed on its own.
    - ``composing``: for an ensemble, the models of its steps, each once.
    - ``load``: the number of this load of the version, like that of no other in this process. What is kept for a
      version beyond one request is kept for it: the same number of a version may be loaded from other files.
    - ``loads``: tells, for an ensemble, which loads of other models an answer would depend on now; raises NOT_FOUND if
      a model is missing.
    - ``stream_idle_timeout``: after how many seconds a client is given up that reads nothing of a stream. None leaves
      that to the protocol.
    - ``runs_alone``: the reason why no two calls share a run although the settings ask for it; empty if they may.
    - ``shared_runs``: whether calls share runs, and if not, whether a setting changes that.
    """

    platform: str
    max_batch_size: int = 0
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    decoupled: bool = False
    generates: bool = False
    keeps_sequences: bool = False
    runs_once: bool = False
    has_item_steps: bool = False
    composing: tuple[ModelAndVersion, ...] = ()
    load: int = field(default_factory=itertools.count(1).__next__, compare=False)
    loads: Callable[[], tuple[int, ...]] = tuple
    stream_idle_timeout: float | None = None
    runs_alone: str = ""
    shared_runs: SharedRuns = SharedRuns.BY_CONFIG


class Servable(Protocol):
    """One or more models behind a scheduler, for any number of threads. Made by a loader, given out through handles.

    It takes calls of one kind: ``PredictCall`` (:class:`PredictServable`) or, where ``traits.generates``,
    ``GenerationCall`` (:class:`~tfs_lite.core.generation.LanguageServable`)."""

    @property
    def traits(self) -> Traits: ...

    @property
    def signatures(self) -> Mapping[str, Signature]: ...

    @property
    def pending(self) -> int:
        """Calls that wait; those that run are not among them."""

    @property
    def pending_rows(self) -> int:
        """Their rows; 1 for each call that is not batched."""

    @property
    def models(self) -> Sequence[Model]:
        """The instances."""

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        """Lets instances join and others leave while requests are served; at least one has to stay.

        True: ``add`` is taken over, and each of ``remove`` is closed as soon as no call is inside it. False: nothing
        has changed, because the servable is closed or cannot do it. One thread at a time, and never during
        ``close``."""

    def refusal(self, deadline: float | None) -> Status | None:
        """The error that every call with this deadline, in seconds of ``time.monotonic``, would get at once,
        whatever else it asks for; None if that depends on the call. So a request can be refused before it is read.
        Any thread."""

    def submit(self, call: Any) -> None:
        """Queues a call of its kind and returns at once. A full queue answers UNAVAILABLE, an expired deadline
        DEADLINE_EXCEEDED, through ``on_done``."""

    def cancel(self, call: Any) -> None:
        """The caller has lost interest: a call that waits leaves the queue and is answered CANCELLED at once; one that
        runs is answered as ever, or CANCELLED where it can be stopped. Any thread, also after the answer."""

    def close(self) -> None:
        """Ends its threads and closes the models. Called once, when no handle is left and every call is answered."""


class PredictServable(Servable, Protocol):
    """A servable that answers tensors with tensors."""

    def submit(self, call: PredictCall) -> None: ...

    def cancel(self, call: PredictCall) -> None: ...


class JudgesCalls:
    """The part of a :class:`Servable` that refuses nothing before it has seen the call."""

    def refusal(self, deadline: float | None) -> Status | None:
        return None


class FixedInstances:
    """The part of a :class:`Servable` that keeps the instances that it was made with."""

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One run of a model. ``rows`` are those of requests, ``padding`` those added to reach an allowed size;
    ``queue_seconds`` has the wait of every call in it. ``copy_seconds``: of ``run_seconds``, the time for putting
    inputs together and for handing outputs out. ``lost``: the worker's process was lost in it. ``again``: calls in it
    had been queued again."""

    id: ServableId
    rows: int
    padding: int
    run_seconds: float
    queue_seconds: tuple[float, ...]
    ok: bool
    copy_seconds: tuple[float, float] = (0.0, 0.0)
    lost: bool = False
    again: bool = False


OnBatch = Callable[[BatchReport], None]
"""Told about every run, on the thread that ran it, before the callers are; must be short and must not raise."""

OnCall = Callable[[ServableId, ServableCall, Mapping[str, Tensor] | Status], None]
"""Told about every call that has ended, and how; must be short and must not raise."""
