"""Steps of a model that may raise: who is to blame for it, and what is written into the log.

A step that raises is made again, once for each of its texts, alone. What raises then too, is that text's failure; the
others lose some time and nothing else. Copies read nothing that a step writes, so they may be made again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType

from tfs_lite.core.generation import LanguageModel, Rows, SampledToken, Step

MAX_CAUSES = 100
"""Different ones that are told of."""

logger = logging.getLogger(__name__)


class StepRunner:
    """Of one model; one thread. ``name``: as people know it."""

    def __init__(self, model: LanguageModel, name: str) -> None:
        self._model = model
        self._name = name
        self._causes: set[object] = set()
        self.failures = 0
        """Steps that raised, those of a text alone not counted."""

    def run(self, step: Step) -> Sequence[SampledToken | None]:
        """For each of the step's rows in order; None: the model raises because of it."""
        try:
            return self._run(step)
        except Exception as error:
            self.failures += 1
            self._tell("a step of %s failed, its texts are tried alone", error)
        return [self._alone(step, rows) for rows in step.rows]

    def _alone(self, step: Step, rows: Rows) -> SampledToken | None:
        copies = [copy for copy in step.copies if copy.target == rows.place]
        try:
            return self._run(Step((rows,), copies))[0]
        except Exception as error:
            self._tell("a text of %s failed", error)
            return None

    def _run(self, step: Step) -> Sequence[SampledToken]:
        drawn = self._model.step(step)
        if len(drawn) != len(step.rows):
            raise RuntimeError(f"the model gave {len(drawn)} answers to {len(step.rows)} texts")
        return drawn

    def _tell(self, what: str, error: Exception) -> None:
        """Once for each cause, with its stack."""
        cause = (what, type(error), _origin(error.__traceback__))
        if cause not in self._causes and len(self._causes) < MAX_CAUSES:
            self._causes.add(cause)
            logger.error(f"{what}; the same is not told again", self._name, exc_info=error)


def _origin(at: TracebackType | None) -> object:
    """The line that raised."""
    if at is None:
        return None
    while at.tb_next is not None:
        at = at.tb_next
    return at.tb_frame.f_code.co_filename, at.tb_lineno
