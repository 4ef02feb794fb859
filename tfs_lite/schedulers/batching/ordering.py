"""Answers in the order of the calls, over any number of workers: Triton's ``preserve_ordering``.

    keep(call)  ->  the call is answered, on any thread, at any time  ->  passed on when all earlier ones have been

Only the passing on is in order; calls run as before. A call that is refused or cancelled is answered too, and so does
not hold up the others.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from tfs_lite.core.model import PredictCall
from tfs_lite.schedulers.calls import Answer

logger = logging.getLogger(__name__)


class _OrderedAnswer:
    """A call in the order. ``answer`` is None until it is answered."""

    __slots__ = ("answer", "on_done")

    def __init__(self, on_done: Callable[[Answer], None]) -> None:
        self.on_done = on_done
        self.answer: Answer | None = None


class Order:
    """Passes answers on in the order of their calls. Any thread may use it; one at a time passes answers on, so that
    none overtakes another on the last steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both below and every answer
        self._answers: deque[_OrderedAnswer] = deque()
        self._passing = False

    def __len__(self) -> int:
        """Calls whose answers have not been passed on."""
        with self._lock:
            return len(self._answers)

    def keep(self, call: PredictCall) -> None:
        """Ensures that the call's ``on_done`` happens after those of all calls that were kept before it."""
        ordered = _OrderedAnswer(call.on_done)
        with self._lock:
            self._answers.append(ordered)
        call.on_done = lambda answer: self._answered(ordered, answer)

    def _answered(self, ordered: _OrderedAnswer, answer: Answer) -> None:
        with self._lock:
            ordered.answer = answer
            if self._passing:
                return
            self._passing = True
        while (due := self._next()) is not None:
            on_done, answer = due
            try:
                on_done(answer)
            except Exception:  # the others must not wait for ever
                logger.exception("a caller broke its contract: on_done must not raise")

    def _next(self) -> tuple[Callable[[Answer], None], Answer] | None:
        with self._lock:
            if not self._answers or self._answers[0].answer is None:
                self._passing = False
                return None
            ordered = self._answers.popleft()
            assert ordered.answer is not None
            return ordered.on_done, ordered.answer
