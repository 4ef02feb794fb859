"""A call to a servable, and what it is answered: for tests of every scheduler."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Status, StatusCode

PATIENCE = 30.0


class Request:
    """``call`` is to be submitted. ``answers`` has what ``on_done`` got, ``parts`` what ``on_part`` got; ``part_came``
    is set with the first part. What waits for the answer fails if there is more than one."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        outputs: tuple[str, ...] = (),
        deadline: float | None = None,
        *,
        takes_parts: bool = False,
        **more: Any,
    ) -> None:
        self.answers: list[Mapping[str, Any] | Status] = []
        self.parts: list[Mapping[str, Any]] = []
        self.part_came = threading.Event()
        self._answered = threading.Event()
        self.call = PredictCall(DEFAULT_SIGNATURE, inputs, outputs, deadline, self._answer, **more)
        if takes_parts:
            self.call.on_part = self._part

    def _answer(self, answer: Mapping[str, Any] | Status) -> None:
        self.answers.append(answer)
        self._answered.set()

    def _part(self, outputs: Mapping[str, Any]) -> None:
        self.parts.append(outputs)
        self.part_came.set()

    @property
    def done(self) -> bool:
        return bool(self.answers)

    def wait(self) -> None:
        """Blocks until it is answered."""
        assert self._answered.wait(PATIENCE), "no answer came"

    @property
    def answer(self) -> Any:
        """Waits for the one answer: outputs or a status."""
        self.wait()
        (answer,) = self.answers
        return answer

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Waits."""
        outputs: Mapping[str, Any] | Status = self.answer
        assert not isinstance(outputs, Status), outputs
        return outputs

    @property
    def values(self) -> dict[str, Any]:
        """Waits. The outputs as lists."""
        return {name: np.asarray(array).tolist() for name, array in self.outputs.items()}

    @property
    def status(self) -> Status:
        """Waits."""
        status: Mapping[str, Any] | Status = self.answer
        assert isinstance(status, Status), status
        return status

    @property
    def code(self) -> StatusCode:
        """Waits. OK for outputs."""
        return self.answer.code if isinstance(self.answer, Status) else StatusCode.OK

    @property
    def message(self) -> str:
        """Waits. Empty for outputs."""
        return self.answer.message if isinstance(self.answer, Status) else ""
