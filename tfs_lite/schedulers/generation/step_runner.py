"""Runs the steps of a model, and finds out which text makes a step fail.

A step that raises is repeated once for each of its texts alone. If that raises too, the text has failed; the other
texts only lose time. Copies read nothing that a step writes, so they can be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType

from tfs_lite.core.generation import LanguageModel, Rows, SampledToken, Step

MAX_CAUSES = 100
"""The most different causes of failure that are logged."""

logger = logging.getLogger(__name__)


class StepRunner:
    """Runs the steps of a model. ``name`` is the model's, in log lines. One thread."""

    def __init__(self, model: LanguageModel, name: str) -> None:
        self._model = model
        self._name = name
        self._causes: set[object] = set()
        self.failures = 0
        """Steps that raised, not counting repeated ones."""

    def run(self, step: Step) -> Sequence[SampledToken | None]:
        """One result for each of the step's rows, in order. None means that the model raises because of it."""
        try:
            return self._run(step)
        except Exception as error:
            self.failures += 1
            self._log_once("a step of %s failed, its texts are tried alone", error)
        return [self._alone(step, rows) for rows in step.rows]

    def _alone(self, step: Step, rows: Rows) -> SampledToken | None:
        copies = [copy for copy in step.copies if copy.target == rows.slot]
        try:
            return self._run(Step((rows,), copies))[0]
        except Exception as error:
            self._log_once("a text of %s failed", error)
            return None

    def _run(self, step: Step) -> Sequence[SampledToken]:
        sampled = self._model.step(step)
        if len(sampled) != len(step.rows):
            raise RuntimeError(f"the model gave {len(sampled)} answers to {len(step.rows)} texts")
        return sampled

    def _log_once(self, what: str, error: Exception) -> None:
        """Logs each cause once, with its stack."""
        cause = (what, type(error), _origin(error.__traceback__))
        if cause not in self._causes and len(self._causes) < MAX_CAUSES:
            self._causes.add(cause)
            logger.error(f"{what}; the same is not told again", self._name, exc_info=error)


def _origin(at: TracebackType | None) -> object:
    """The file and the line that raised."""
    if at is None:
        return None
    while at.tb_next is not None:
        at = at.tb_next
    return at.tb_frame.f_code.co_filename, at.tb_lineno
