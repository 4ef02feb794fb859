"""A call to a language model on its way: which phase it is in, which of its texts go on, and who may answer it.

    PREPARING (its tokens are looked for) -> ENTERING (the engine is asked) -> INSIDE -> OVER (answered)
                        \\_____________________________\\________________________/

Whoever cancels, the engine, the tokenizer's thread and whoever submits meet here; each method is one decision.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from typing import NamedTuple

from tfs_lite.core.generation import Piece
from tfs_lite.core.model import PredictCall
from tfs_lite.core.status import Status
from tfs_lite.schedulers.generation.entries import Job
from tfs_lite.schedulers.generation.tokenizing import Work


class Phase(enum.Enum):
    PREPARING = "its prompts are checked and tokenised"
    ENTERING = "the engine is asked to take its texts; it may have begun with them"
    INSIDE = "the engine has its texts"
    OVER = "it is answered, or will be at once, by whoever has brought it here"


class Taken(NamedTuple):
    """What has to be done about an event of a text. ``piece``: the caller is to get it. ``drop``: texts to be
    cancelled. ``over``: it was the last text to end."""

    piece: bool
    drop: Sequence[Job]
    over: bool


class GenerationTask:
    """Any thread may call any method; ``take`` is the engine's. ``came``: in seconds of the servable's clock."""

    def __init__(self, call: PredictCall, came: float) -> None:
        self.call = call
        self.came = came
        self.work: Work | None = None
        """Of the tokenizer's thread, if it goes there; set before it does."""
        self._lock = threading.Lock()  # guards all below
        self._phase = Phase.PREPARING
        self._dropped = False
        self._jobs: Sequence[Job] = ()
        self._left: set[int] = set()  # indices of the texts that have not ended
        self._pieces: Sequence[list[Piece]] = ()
        self._failure: Status | None = None
        self._started: float | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether its tokens are still worth looking for."""
        with self._lock:
            return self._phase is Phase.PREPARING

    @property
    def failure(self) -> Status | None:
        """Of the text that failed first."""
        with self._lock:
            return self._failure

    @property
    def started(self) -> float | None:
        """When its first text got a place."""
        with self._lock:
            return self._started

    def enter(self, jobs: Sequence[Job]) -> bool:
        """PREPARING to ENTERING. False: it is over, and the engine must not be asked."""
        with self._lock:
            if self._phase is not Phase.PREPARING:
                return False
            self._phase = Phase.ENTERING
            self._jobs, self._left = jobs, {job.index for job in jobs}
            self._pieces = [[] for _ in jobs]
            return True

    def entered(self) -> Sequence[Job]:
        """ENTERING to INSIDE, unless it is over. The jobs to be cancelled, because somebody has meanwhile."""
        with self._lock:
            if self._phase is Phase.ENTERING:
                self._phase = Phase.INSIDE
            return self._jobs if self._dropped else ()

    def drop(self) -> tuple[bool, Sequence[Job]]:
        """Nobody wants it any more. (It is OVER by this, and to be answered; or else the jobs to be cancelled)."""
        with self._lock:
            before, self._dropped = self._phase, True
            if before is Phase.PREPARING:
                self._phase = Phase.OVER
                return True, ()
            return False, self._jobs if before is Phase.INSIDE else ()

    def end(self) -> bool:
        """To OVER. True for the one who has to answer."""
        with self._lock:
            before, self._phase = self._phase, Phase.OVER
            return before is not Phase.OVER

    def take(self, job: Job, event: Piece | Status, started: float | None) -> Taken:
        """An event of a text; ``started``, with the last one: when it got its place."""
        with self._lock:
            is_first_failure = isinstance(event, Status) and self._failure is None
            if isinstance(event, Status) or event.finish is not None:
                self._left.discard(job.index)
                if started is not None and (self._started is None or started < self._started):
                    self._started = started
            if isinstance(event, Status) and is_first_failure:
                self._failure = event
            drop = [each for each in self._jobs if each.index in self._left] if is_first_failure else []
            return Taken(isinstance(event, Piece) and self._failure is None, drop, not self._left)

    def keep(self, index: int, piece: Piece) -> None:
        """For the whole answer; the engine's thread."""
        self._pieces[index].append(piece)

    def release(self) -> Sequence[Sequence[Piece]]:
        """The pieces of each text. It has ended, and holds nothing any more."""
        with self._lock:
            pieces, self._pieces, self._jobs, self.work = self._pieces, (), (), None
            return pieces
