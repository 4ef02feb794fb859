"""The data-plane contract: what an adapter loads, and what a request does with it.

    adapter -> Model (or several equal ones) -> scheduler -> Servable (any thread) -> Predictor

A :class:`Model` is the bare artefact, here or in a process of its own. A :class:`Servable` is one or more models behind
whatever decides who runs next; it is what handles give out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode

if TYPE_CHECKING:
    from tfs_lite.core.generation import Generation, Piece

Shapes = Mapping[str, tuple[tuple[int, ...], Any]]
"""Input name -> (shape, numpy dtype)."""


class WorkerLost(ServingError):
    """The process that ran the model has died, with whatever it was running. UNAVAILABLE."""

    def __init__(self, message: str) -> None:
        super().__init__(StatusCode.UNAVAILABLE, message)

    def __reduce__(self) -> tuple[type[WorkerLost], tuple[str]]:  # type: ignore[override]
        return type(self), (self.status.message,)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Where a model runs, and how that fares. ``pid``: of a process of its own; ``restarts``: how often it had to be
    started again."""

    kind: str = "thread"
    up: bool = True
    pid: int | None = None
    restarts: int = 0


class Model(Protocol):
    """A loaded artefact, or the near end of one that lives in another process.

    Threads: at most ``concurrency`` threads are inside ``run`` (with the ``stage`` before it) at any time; ``close`` is
    called once, after the last ``run``; ``signatures``, ``preprocess`` and ``postprocess`` by any number of threads,
    also beside ``run``. Inherit it: what follows ``close`` has answers that fit most models.
    """

    @property
    def platform(self) -> str: ...

    @property
    def signatures(self) -> Mapping[str, Signature]: ...

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """Runs one request or batch. Inputs were checked against the signature; arrays may be read-only and must not
        be written to. Returns exactly ``outputs`` (all of the signature's when empty), arrays of the caller's own.
        Raises ServingError; WorkerLost means that nothing can be run until :meth:`recover` says so."""

    def close(self) -> None:
        """Drops weights, threads and processes. Called once, after the last ``run``."""

    def parts(
        self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]
    ) -> Iterator[dict[str, Tensor]]:
        """As ``run``, for models that may have several answers to a request, or none: one after the other. Whoever
        stops early closes the iterator."""
        yield self.run(signature, inputs, outputs)

    @property
    def worker(self) -> WorkerStatus:
        """Any thread."""
        return WorkerStatus()

    @property
    def concurrency(self) -> int:
        """How many threads may be inside ``run`` at once."""
        return 1

    @property
    def useful_threads(self) -> int:
        """How many threads are worth having: 1, or more where copying and computing overlap. At most
        ``concurrency``."""
        return 1

    def stage(self, signature: str, shapes: Shapes) -> dict[str, Tensor] | None:
        """Memory for the inputs of this thread's next ``run``, which reads it fastest: pinned for a GPU, shared with a
        process. Contents are arbitrary; valid until that run returns. An input of texts is left out; None: the model
        does not care, any array is as good."""
        return None

    def recover(self, give_up: threading.Event) -> bool:
        """After a WorkerLost: returns True when the model can run again, False once ``give_up`` is set. Blocks; waits
        longer from failure to failure."""
        return True

    @property
    def has_item_steps(self) -> bool:
        """Whether requests go through ``preprocess`` and ``postprocess``."""
        return False

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """What a request's items become before they are batched. Raises ServingError, INVALID_ARGUMENT for an item that
        the model refuses. ``deadline`` is in seconds of ``time.monotonic``."""
        return dict(inputs)

    def postprocess(self, signature: str, outputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        """What the rows of a request become after the run. Raises ServingError."""
        return dict(outputs)


@dataclass(frozen=True, slots=True)
class SequenceFlags:
    """Which sequence a request belongs to, in Triton's words: ``id`` is its correlation id, an unsigned 64-bit number
    or a text, which are different sequences even when they look alike. 0 and the empty text are no id."""

    id: int | str
    start: bool = False
    end: bool = False


@dataclass(slots=True, eq=False)
class PredictCall:
    """One request on its way through a servable.

    ``deadline`` is in seconds of ``time.monotonic``. ``on_done`` is called exactly once, on any thread, with the
    outputs or with the status of the failure; it must be short and must not raise. ``priority`` (1 is the most urgent;
    0: the default) and ``timeout`` (seconds in the queue; 0: the default) count where the model's settings have them.
    ``sequence`` is for models with state. ``on_part``, for models with several answers to a request (``decoupled``), is
    called with each of them, in order, on any thread, before ``on_done``, which then gets no outputs.
    The servable fills in ``queue_seconds``, the wait, and ``run_seconds``, the time in the model, before ``on_done``;
    ``admitted`` is set once the call has been let into the queue, and stays false for one refused at once.
    """

    signature: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    deadline: float | None
    on_done: Callable[[Mapping[str, Tensor] | Status], None]
    priority: int = field(default=0)
    timeout: float = field(default=0.0)
    queue_seconds: float = field(default=0.0)
    run_seconds: float = field(default=0.0)
    ticket: object = field(default=None)
    """The servable's own note while the call is inside."""
    sequence: SequenceFlags | None = field(default=None)
    on_part: Callable[[Mapping[str, Tensor]], None] | None = field(default=None)
    admitted: bool = field(default=False)
    part_seconds: list[float] | None = field(default=None)
    """Of a call with several answers: how long the model took for each, up to a number of them."""
    cached: bool = field(default=False)
    """The answer came from the response cache; the model was not asked."""
    arrived: float = field(default=0.0)
    """When it came, in seconds of ``time.monotonic``; 0: nobody noted it."""
    moving_seconds: tuple[float, float] = field(default=(0.0, 0.0))
    """Of ``run_seconds``, the time for putting inputs together and for handing outputs out."""
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """What the request says to the model beside its inputs; V2 only."""
    texts: Sequence[Generation] = field(default=())
    """For language models, instead of inputs: what is to be generated."""
    on_piece: Callable[[Piece], None] | None = field(default=None)
    """For language models: told about each piece of the texts, on any thread, before ``on_done``, which then gets no
    outputs. It never blocks. None: the whole answer is wanted at once."""


class Traits:
    """What protocols want to know of a servable beside its signatures; whoever makes one sets what differs.

    ``max_batch_size`` and ``labels`` are what the model's config says: the most rows of a request, 0 where the config
    knows of no batch; and the names of classes by output. ``decoupled``: calls may have several answers, or none.
    ``keeps_sequences``: calls belong to sequences. ``generates``: it is a language model, whose calls may have texts
    instead of inputs, and whose answer comes whole or, to ``on_piece``, in pieces.
    """

    max_batch_size: int = 0
    labels: Mapping[str, Sequence[str]] = MappingProxyType({})
    decoupled: bool = False
    keeps_sequences: bool = False
    generates: bool = False

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        """More instances join, and others leave; at least one has to stay. Requests are served all the time.

        True: ``add`` is taken over, and each of ``remove`` is closed once nobody is inside any more. False: nothing has
        changed, because it is closed or not possible here. One thread at a time, not beside ``close``."""
        return False


class Servable(Protocol):
    """A model that any number of threads may call. Made by a loader, given out through handles. Most have
    :class:`Traits`, too; one without has the defaults."""

    @property
    def platform(self) -> str: ...

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

    def submit(self, call: PredictCall) -> None:
        """Queues the call and returns at once. A full queue answers UNAVAILABLE, an expired deadline
        DEADLINE_EXCEEDED, through ``on_done``."""

    def cancel(self, call: PredictCall) -> None:
        """The caller has lost interest: a call that waits leaves the queue and is answered CANCELLED at once; one that
        runs is answered as ever. Any thread, also after the answer."""

    def close(self) -> None:
        """Ends its threads and closes the model. Called once, when no handle is left and every call is answered."""


def resize(servable: Servable, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
    """See :meth:`Traits.resize`; False for a servable without."""
    found: Callable[[Sequence[Model], Collection[Model]], bool] | None = getattr(servable, "resize", None)
    return found is not None and found(add, remove)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One run of a model. ``rows`` are those of requests, ``padding`` those added to reach an allowed size;
    ``queue_seconds`` has the wait of every call in it. ``moving_seconds``: of ``run_seconds``, the time for putting
    inputs together and for handing outputs out."""

    id: ServableId
    rows: int
    padding: int
    run_seconds: float
    queue_seconds: tuple[float, ...]
    ok: bool
    moving_seconds: tuple[float, float] = (0.0, 0.0)


OnBatch = Callable[[BatchReport], None]
"""Told about every run, on the thread that ran it, before the callers are; must be short and must not raise."""


def nobody_counts(report: BatchReport) -> None:
    """For servers without metrics."""


OnCall = Callable[[ServableId, PredictCall, Mapping[str, Tensor] | Status], None]
"""Told about every call that has ended, and how, whoever made it; must be short and must not raise."""


def nobody_asks(servable_id: ServableId, call: PredictCall, result: Mapping[str, Tensor] | Status) -> None:
    """For servers without statistics of calls."""
