"""What holds for a queued request whatever its model, its client and the time do: a state machine in virtual time.

One thread is the model's, and the loop's time stands still until the machine moves it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from tests.support.grpc.manual_loop import ManualLoop
from tests.support.profiles import examples
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.generation import Piece
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.runs import Run
from tfs_lite.server.inference.pending import MAX_PARTS, PART_BYTES, AnswerRoom, PendingRequest
from tfs_lite.server.inference.predictor import CallOptions, Predictor

ID = ServableId("m", 1)
SIGNATURE = Signature((), ())
mostly = st.sampled_from([True, True, True, False])
rarely = st.sampled_from([False] * 5 + [True])
PATIENCE = 20.0
"""Real seconds that a thread may take."""


class Model:
    """A servable whose thread does what it is told, one thing after the other, and notes what is asked of it."""

    signatures: ClassVar[dict[str, Signature]] = {DEFAULT_SIGNATURE: SIGNATURE}

    def __init__(self, generates: bool) -> None:
        self.traits = Traits("test", decoupled=True, generates=generates)
        self.calls: list[Any] = []
        self.cancelled: list[Any] = []
        self.free = threading.Event()
        self.free.set()
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, call: Any) -> None:
        self.calls.append(call)

    def cancel(self, call: Any) -> None:
        self.cancelled.append(call)

    def do(self, work: Callable[[], None]) -> None:
        self.free.clear()
        self._work.put(work)

    def wait(self) -> None:
        assert self.free.wait(PATIENCE), "the model's thread is held up"

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self.free.set()


class PendingMachine(RuleBasedStateMachine):
    """One request. ``given`` counts the parts that the model gave while the request was not over; ``taken`` are those
    that came out. The client has read all of these but the last, while it ``holds`` that."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = ManualLoop()
        self.metrics = RequestMetrics(CollectorRegistry(), lambda name: True)
        self.released = 0
        self.given = 0
        self.taken: list[int] = []
        self.taken_at_end: int | None = None
        self.holds = False
        self.done = False
        self.by_itself = False
        """Whether the model had ended before anything else ended the request."""
        self.failure: StatusCode | None = None
        self.blocked = False
        """Whether the model waits for the client."""
        self.cancelled = False
        self.outcome: StatusCode | None = None

    @initialize(
        generates=st.booleans(),
        takes_parts=mostly,
        keeps=st.booleans(),
        seconds=st.sampled_from([None, 5.0]),
        room=st.sampled_from([None, 2, 1000]),
    )
    def begin(self, generates: bool, takes_parts: bool, keeps: bool, seconds: float | None, room: int | None) -> None:
        self.model, self.keeps = Model(generates), keeps
        self.every = AnswerRoom(one=(room or 0) * 2 * PART_BYTES)
        options = CallOptions(in_parts=True, in_pieces=True, room=None if room is None else self.every.client())
        self.deadline = None if seconds is None else self.loop.time() + seconds
        predictor = Predictor(self._lookup, self.metrics)
        record = self.metrics.record("Predict", "m")
        run = Run(DEFAULT_SIGNATURE, {}, (), fits=SIGNATURE)

        async def start() -> None:
            self.request = predictor.begin(ModelRef("m"), lambda servable: [run], record, self.deadline, options)
            self.reads = asyncio.Semaphore(0)
            self.client = asyncio.create_task(self._take_parts() if takes_parts else self._take_answer())

        self.loop.run_until_complete(start())
        self.takes_parts, self.bounded = takes_parts, room is not None
        self._turns()

    def _lookup(self, model: ModelRef) -> ServableHandle:
        def release() -> None:
            self.released += 1

        return ServableHandle(ID, self.model, release)

    async def _take_parts(self) -> None:
        with self.request as request:
            await self._until_deadline(self._all_parts(request))

    async def _take_answer(self) -> None:
        with self.request as request:
            await self._until_deadline(request.answer())

    async def _until_deadline(self, work: Any) -> None:
        """As the call of a client does it."""
        try:
            async with asyncio.timeout_at(self.deadline):
                await work
            self.outcome = StatusCode.OK
        except ServingError as error:
            self.outcome = error.code
        except TimeoutError:
            self.outcome = StatusCode.DEADLINE_EXCEEDED

    async def _all_parts(self, request: PendingRequest) -> None:
        while (part := await request.next()) is not None:
            self.taken.append(part.tokens[0] if isinstance(part, Piece) else int(part["n"][0]))
            self.holds = True
            sent = request.keep() if self.keeps else ignore
            await self.reads.acquire()
            self.holds = False
            sent()
        await request.answer()

    def _turns(self) -> None:
        """Until nothing happens any more without time, a client or a model."""
        for _ in range(5):
            self.loop.advance(0.0)
        if self.blocked and (self.request.over or self._unread() <= MAX_PARTS):
            self.model.wait()
            self.blocked = False
            for _ in range(5):
                self.loop.advance(0.0)

    def _unread(self) -> int:
        """Parts that were given and that the client has not read."""
        return self.given - len(self.taken) + self.holds

    @property
    def can_give(self) -> bool:
        return not self.done and not self.blocked

    # What may happen.

    @precondition(lambda self: self.can_give)
    @rule(count=st.sampled_from([1, 3, MAX_PARTS + 1]))
    def model_gives(self, count: int) -> None:
        call = self.model.calls[0]
        for _ in range(count):
            if self.blocked:
                break
            number, over = self.given, self.request.over
            if not over:
                self.given += 1
            if self.model.traits.generates:
                self.model.do(partial(call.on_piece, Piece(0, (number,))))
            else:
                self.model.do(partial(call.on_part, {"n": np.array([number])}))
            self.blocked = not (self.model.traits.generates or over) and self._unread() > MAX_PARTS
            if not self.blocked:
                self.model.wait()
            self._turns()

    @precondition(lambda self: self.can_give)
    @rule(failure=st.sampled_from([None, None, StatusCode.INTERNAL]), now=rarely)
    def model_ends(self, failure: StatusCode | None, now: bool) -> None:
        if not now:
            return
        self.done, self.failure, self.by_itself = True, failure, not self.request.over
        result: Any = {} if failure is None else Status(failure, "the model failed")
        self.model.do(partial(self.model.calls[0].on_done, result))
        self.model.wait()
        self._turns()

    @precondition(lambda self: not self.client.done())
    @rule(count=st.sampled_from([1, 5, 2 * MAX_PARTS]))
    def client_reads(self, count: int) -> None:
        for _ in range(count):
            if self.holds:
                self.reads.release()
                self._turns()

    @rule(now=rarely)
    def client_goes(self, now: bool) -> None:
        if now:
            self.client.cancel()
            self._turns()
            assert self.request.over

    @rule(now=rarely)
    def caller_cancels(self, now: bool) -> None:
        if now:
            self.cancelled = True
            self.request.cancel()
            assert self.request.over
            self._turns()

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.advance(seconds)
        self._turns()

    # What holds.

    @invariant()
    def parts_come_in_order_at_most_once(self) -> None:
        assert self.taken == list(range(len(self.taken)))
        assert len(self.taken) <= self.given

    @invariant()
    def nothing_comes_when_the_client_has_ended(self) -> None:
        if self.client.done():
            if self.taken_at_end is None:
                self.taken_at_end = len(self.taken)
            assert len(self.taken) == self.taken_at_end

    @invariant()
    def what_waits_is_bounded(self) -> None:
        assert 0 <= self.every.held <= max(self.every.one, 2 * PART_BYTES)
        assert self.model.free.is_set() == (not self.blocked)
        assert self.request.over or self._unread() - self.blocked <= MAX_PARTS or self.model.traits.generates

    @invariant()
    def the_model_is_cancelled_once_unless_it_has_ended_by_itself(self) -> None:
        assert len(self.model.cancelled) == int(self.request.over and not self.by_itself)

    @invariant()
    def the_version_is_held_until_the_model_has_ended(self) -> None:
        assert self.released == int(self.done)

    @invariant()
    def the_caller_is_told_how_it_ended(self) -> None:
        if not self.client.done() or self.client.cancelled():
            return
        assert self.client.exception() is None
        match self.outcome:
            case StatusCode.OK | StatusCode.INTERNAL:
                assert self.by_itself
                assert self.failure is (None if self.outcome is StatusCode.OK else self.outcome)
                assert len(self.taken) == self.given or not self.takes_parts
            case StatusCode.RESOURCE_EXHAUSTED:
                assert self.bounded
                assert not self.by_itself
            case StatusCode.DEADLINE_EXCEEDED:
                assert self.deadline is not None
                assert self.loop.time() >= self.deadline
            case _:
                assert self.outcome is StatusCode.CANCELLED
                assert self.cancelled

    def teardown(self) -> None:
        if not hasattr(self, "request"):
            self.loop.close()
            return
        self.client.cancel()
        self._turns()
        if not self.done:
            self.model.do(partial(self.model.calls[0].on_done, {}))
            self.model.wait()
        self._turns()
        self.model.close()
        assert self.released == 1
        assert self.every.held == 0
        assert not asyncio.all_tasks(self.loop)
        assert not self.loop.armed
        self.loop.close()


TestPendingRequest = PendingMachine.TestCase
TestPendingRequest.settings = examples(300)
