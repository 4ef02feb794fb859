"""A model behind one thread: requests wait in a bounded queue and run one after the other.

The thread that submits (an event loop, a transport's thread) never runs the model and never waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from tfs_lite.core.model import Model, PredictCall, Servable, ServableFactory
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode

DEFAULT_MAX_QUEUE = 1000
logger = logging.getLogger(__name__)


class ThreadServable:
    """A :class:`~tfs_lite.core.model.Servable` that runs its model on a daemon thread of its own, in order of arrival.

    Order: ``submit`` any number of times, then ``close`` once. Threads: ``submit`` and ``pending`` any, ``close`` any
    but the servable's own. Promises: ``on_done`` is called exactly once for every call, on the submitting thread if the
    call is refused at once, else on the servable's thread, or by ``close``; the model is used by one thread at a time;
    while idle, nothing of the last request is held. Not promised: that a call can be interrupted once it has started.
    Errors, all through ``on_done``: UNAVAILABLE (queue full, or closed), DEADLINE_EXCEEDED and CANCELLED (before the
    start), what the model raises, INTERNAL for anything else it raises.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        max_queue: int = DEFAULT_MAX_QUEUE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``name`` is for the thread, logs and messages. Takes the model over: closes it in the end."""
        self._model = model
        self._name = name
        self._max_queue = max_queue
        self._monotonic = monotonic
        self._changed = threading.Condition()  # guards _queue and _closed
        self._queue: deque[PredictCall] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"tfs-model-{name}", daemon=True)
        self._thread.start()

    @property
    def platform(self) -> str:
        return self._model.platform

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._model.signatures

    @property
    def pending(self) -> int:
        """Calls that wait; the one that runs is not among them."""
        with self._changed:
            return len(self._queue)

    def submit(self, call: PredictCall) -> None:
        refusal = self._enqueue(call)
        if refusal is not None:
            self._finish(call, refusal)

    def close(self) -> None:
        """Answers what waits, lets the running call finish, ends the thread and closes the model."""
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            self._changed.notify()
        for call in waiting:
            self._finish(call, self._hindrance(call) or self._unavailable("is being unloaded"))
        self._thread.join()
        self._model.close()

    def _enqueue(self, call: PredictCall) -> Status | None:
        with self._changed:
            if self._closed:
                return self._unavailable("is being unloaded")
            if len(self._queue) >= self._max_queue:
                return self._unavailable(f"has {self._max_queue} requests waiting, the most allowed; try again later")
            self._queue.append(call)
            self._changed.notify()
        return None

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            self._finish(call, self._hindrance(call) or self._run(call))
            del call

    def _next(self) -> PredictCall | None:
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _hindrance(self, call: PredictCall) -> Status | None:
        """Why the call is not worth starting."""
        if call.cancelled:
            return Status(StatusCode.CANCELLED, "the caller cancelled the request")
        if call.deadline is not None and call.deadline <= self._monotonic():
            return Status(
                StatusCode.DEADLINE_EXCEEDED, f"the deadline passed while the request waited for {self._name}"
            )
        return None

    def _run(self, call: PredictCall) -> Mapping[str, Tensor] | Status:
        started = self._monotonic()
        try:
            return self._model.run(call.signature, call.inputs, call.outputs)
        except ServingError as error:
            return error.status
        except BaseException as error:
            logger.exception("%s broke its contract: it may only raise ServingError", self._name)
            return Status(StatusCode.INTERNAL, f"{self._name} failed: {type(error).__name__}")
        finally:
            call.run_seconds = self._monotonic() - started

    def _finish(self, call: PredictCall, result: Mapping[str, Tensor] | Status) -> None:
        try:
            call.on_done(result)
        except Exception:
            logger.exception("a caller of %s broke its contract: on_done must not raise", self._name)

    def _unavailable(self, reason: str) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} {reason}")


def thread_servable_factory(max_queue: int = DEFAULT_MAX_QUEUE) -> ServableFactory:
    """Makes servables that let at most ``max_queue`` calls wait."""

    def make(model: Model, name: str) -> Servable:
        return ThreadServable(model, name, max_queue)

    return make
