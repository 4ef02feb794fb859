"""The state of one call to a language model: its phase, which of its texts still run, and which thread answers it.

    PREPARING (prompts are tokenized) -> SUBMITTING (to the engine) -> SUBMITTED -> DONE (answered)
                        \\_____________________________\\_____________________/

The threads that submit and cancel, the tokenizer's and the engine's meet here; each method is one atomic decision.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from typing import NamedTuple

from tfs_lite.core.generation import GenerationCall, Piece
from tfs_lite.core.status import Status
from tfs_lite.schedulers.generation.text import Text
from tfs_lite.schedulers.generation.tokenizing import Work


class TaskPhase(enum.Enum):
    PREPARING = "its prompts are checked and tokenised"
    SUBMITTING = "the engine is asked to take its texts; it may have begun with them"
    SUBMITTED = "the engine has its texts"
    DONE = "it is answered, or will be at once, by whoever has brought it here"


class EventOutcome(NamedTuple):
    """What has to be done about an event of a text. ``piece``: the caller gets the piece. ``cancel``: texts that have
    to be cancelled. ``finished``: all texts have ended."""

    piece: bool
    cancel: Sequence[Text]
    finished: bool


class GenerationTask:
    """Any thread may call any method, but for ``on_event``, which is for the engine's. ``arrived`` is in seconds of the
    servable's clock."""

    def __init__(self, call: GenerationCall, arrived: float) -> None:
        self.call = call
        self.arrived = arrived
        self.work: Work | None = None
        """The work of the tokenizer thread, if the call goes there; it is set before."""
        self._lock = threading.Lock()  # guards all below
        self._phase = TaskPhase.PREPARING
        self._cancelled = False
        self._texts: Sequence[Text] = ()
        self._left: set[int] = set()  # indices of the texts that have not ended
        self._pieces: Sequence[list[Piece]] = ()
        self._failure: Status | None = None
        self._started: float | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether its prompts still have to be tokenized."""
        with self._lock:
            return self._phase is TaskPhase.PREPARING

    @property
    def failure(self) -> Status | None:
        """The status of the text that failed first."""
        with self._lock:
            return self._failure

    @property
    def started(self) -> float | None:
        """The time when its first text got a slot."""
        with self._lock:
            return self._started

    def begin_submit(self, texts: Sequence[Text]) -> bool:
        """Goes from PREPARING to SUBMITTING. False if the call is done; it must not be submitted then."""
        with self._lock:
            if self._phase is not TaskPhase.PREPARING:
                return False
            self._phase = TaskPhase.SUBMITTING
            self._texts, self._left = texts, {text.index for text in texts}
            self._pieces = [[] for _ in texts]
            return True

    def end_submit(self) -> Sequence[Text]:
        """Goes from SUBMITTING to SUBMITTED, unless the call is done. Returns the texts to cancel, if the call was
        cancelled meanwhile."""
        with self._lock:
            if self._phase is TaskPhase.SUBMITTING:
                self._phase = TaskPhase.SUBMITTED
            return self._texts if self._cancelled else ()

    def cancel(self) -> tuple[bool, Sequence[Text]]:
        """Cancels the call. Returns (True, ()) if it is DONE by this, and the caller has to answer it; else False and
        the texts to cancel."""
        with self._lock:
            before, self._cancelled = self._phase, True
            if before is TaskPhase.PREPARING:
                self._phase = TaskPhase.DONE
                return True, ()
            return False, self._texts if before is TaskPhase.SUBMITTED else ()

    def end(self) -> bool:
        """Goes to DONE. True if the caller has to answer the call."""
        with self._lock:
            before, self._phase = self._phase, TaskPhase.DONE
            return before is not TaskPhase.DONE

    def on_event(self, text: Text, event: Piece | Status, started: float | None) -> EventOutcome:
        """Takes an event of a text. ``started``, with its last event, is when it got its slot."""
        with self._lock:
            is_first_failure = isinstance(event, Status) and self._failure is None
            if isinstance(event, Status) or event.finish is not None:
                self._left.discard(text.index)
                if started is not None and (self._started is None or started < self._started):
                    self._started = started
            if isinstance(event, Status) and is_first_failure:
                self._failure = event
            cancel = [each for each in self._texts if each.index in self._left] if is_first_failure else []
            return EventOutcome(isinstance(event, Piece) and self._failure is None, cancel, not self._left)

    def add_piece(self, index: int, piece: Piece) -> None:
        """Keeps a piece for the whole answer. The engine's thread."""
        self._pieces[index].append(piece)

    def release(self) -> Sequence[Sequence[Piece]]:
        """Returns the pieces of each text, and keeps nothing."""
        with self._lock:
            pieces, self._pieces, self._texts, self.work = self._pieces, (), (), None
            return pieces
