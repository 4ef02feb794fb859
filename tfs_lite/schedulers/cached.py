"""A servable whose answers are kept and given again; see :mod:`tfs_lite.schedulers.response_cache`.

    submit -> hit: answered at once
           -> miss: the inner servable -> inserted if it succeeds -> answered

Equal calls that come while the first of them runs all run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from tfs_lite.core.model import JudgesCalls, Model, PredictCall, PredictServable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, Tensor, find_signature
from tfs_lite.core.status import ServingError, Status, queue_full
from tfs_lite.schedulers.batching.ordering import Order
from tfs_lite.schedulers.calls import Answer
from tfs_lite.schedulers.response_cache import ResponseCache, request_key

logger = logging.getLogger(__name__)


class CachedServable(JudgesCalls):
    """A :class:`~tfs_lite.core.model.Servable` that takes another one over.

    Threads and order as the inner one's. A hit is answered on the submitting thread, with arrays that are read-only; it
    has a queue time of its lookup and no run time. A call with parts (a decoupled model's) is never kept. One that
    names versions for the steps of an ensemble (``instead``) is neither looked up nor kept. Lookups cost a digest over
    the inputs, about a second for a gigabyte, on the submitting thread.
    """

    def __init__(
        self,
        inner: PredictServable,
        cache: ResponseCache,
        servable_id: ServableId,
        *,
        ordered: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A call that the inner servable does not see is marked ``cached`` before its caller is told. ``ordered``
        is how many answers may wait for earlier ones (Triton's ``preserve_ordering``); with 0 hits overtake."""
        self.inner = inner
        self.id = servable_id
        self.traits = inner.traits
        self._cache = cache
        self._ordered = ordered
        self._order = Order() if ordered else None
        self._monotonic = monotonic
        cache.open(servable_id)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self.inner.signatures

    @property
    def pending(self) -> int:
        return self.inner.pending

    @property
    def pending_rows(self) -> int:
        return self.inner.pending_rows

    @property
    def models(self) -> Sequence[Model]:
        return self.inner.models

    def submit(self, call: PredictCall) -> None:
        """Submits a call as the inner servable does; also UNAVAILABLE when too many answers wait for an earlier one."""
        started = self._monotonic()
        if self._order is not None:
            if len(self._order) >= self._ordered:
                call.on_done(self._full())
                return
            self._order.keep(call)
        if call.instead:
            self.inner.submit(call)
            return
        loads = self._loads()
        key = request_key(self.id, call, loads)
        outputs = self._cache.lookup(key)
        seconds = self._monotonic() - started
        if outputs is None:
            self._cache.count(self.id, misses=1, seconds=seconds)
            self._insert_when_done(call, key, loads)
            self.inner.submit(call)
            return
        self._cache.count(self.id, hits=1, seconds=seconds)
        call.admitted, call.queue_seconds = True, seconds
        call.cached = True
        call.on_done(outputs)

    def cancel(self, call: PredictCall) -> None:
        self.inner.cancel(call)

    def resize(self, add: Sequence[Model] = (), remove: Collection[Model] = ()) -> bool:
        """Resizes the inner servable; kept answers stay."""
        return self.inner.resize(add, remove)

    def close(self) -> None:
        self.inner.close()
        self._cache.forget(self.id)

    def _loads(self) -> tuple[int, ...]:
        """The answer of an ensemble depends on the loads of its models, too."""
        try:
            return (self.traits.load, *self.traits.loads())
        except ServingError:
            return ()  # a model is missing, and the call will fail

    def _insert_when_done(self, call: PredictCall, key: bytes, loads: Sequence[int]) -> None:
        """The answer is inserted before the caller gets it: an equal call that follows it is a hit."""
        in_parts: list[bool] = []
        on_part = call.on_part
        if on_part is not None:

            def part(outputs: Mapping[str, Tensor], pass_on: Callable[[Mapping[str, Tensor]], None] = on_part) -> None:
                in_parts[:] = [True]
                pass_on(outputs)

            call.on_part = part
        wanted = call.outputs or find_signature(self.signatures, call.signature).output_names
        call.on_done = partial(self._done, key, loads, wanted, in_parts, call.on_done)

    def _done(
        self,
        key: bytes,
        loads: Sequence[int],
        wanted: Sequence[str],
        in_parts: Sequence[bool],
        on_done: Callable[[Answer], None],
        result: Answer,
    ) -> None:
        """Keeps the answer, unless it lacks an output, which another call may need, or another load of a model has come
        meanwhile: then it is not known which gave it."""
        if not isinstance(result, Status) and not in_parts:
            try:
                if self._loads() == loads and all(name in result for name in wanted):
                    self._insert(key, result)
            except Exception:
                logger.exception("an answer of %s could not be kept in the response cache", self.id)
        on_done(result)

    def _insert(self, key: bytes, outputs: Mapping[str, Tensor]) -> None:
        started = self._monotonic()
        kept = self._cache.insert(self.id, key, outputs)
        self._cache.count(self.id, seconds=self._monotonic() - started, too_large=0 if kept else 1)

    def _full(self) -> Status:
        name = f"{self.id.name}-{self.id.version}"
        text = f"{name} has {self._ordered} answers that wait for an earlier one, the most allowed; try again later"
        return queue_full(text)
