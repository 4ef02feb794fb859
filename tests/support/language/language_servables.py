"""Real engines with a model whose output is given: for tests of the protocols of language models.

servable = language("grüße")   # every prompt gets this text, byte by byte
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tests.support.language.byte_codec import END, VOCABULARY, ByteCodec
from tests.support.language.hash_model import HashModel
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.generation import GenerationLimits, SamplingRequest, Step
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.generation.loop import StepLoop
from tfs_lite.schedulers.generation.servable import GenerativeServable
from tfs_lite.schedulers.generation.settings import EngineSettings

BROKEN = "\x00"
"""A character of the text at which the model fails."""
PATIENCE = 30.0


class Gate:
    """Holds the steps of a model while it is shut; in the end it has to be open. ``held``: steps that wait now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._allowed: int | None = None
        """The steps that may pass; None while the gate is open."""
        self.held = 0

    def shut(self) -> None:
        with self._changed:
            self._allowed = 0

    def let(self, count: int = 1) -> None:
        """Shuts the gate, and allows so many more steps."""
        with self._changed:
            self._allowed = (self._allowed or 0) + count
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._allowed = None
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until a step is held."""
        with self._changed:
            held = self._changed.wait_for(lambda: self.held and self._allowed == 0, PATIENCE)
        assert held, "no step came"

    def __call__(self, step: Step) -> None:
        """Called on the engine's thread before each step."""
        with self._changed:
            self.held += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._allowed != 0, PATIENCE)
            self.held -= 1
            if self._allowed:
                self._allowed -= 1


class LanguageServable(GenerativeServable):
    """A servable in real time, with a loop and a clock of its own. ``steps`` can hold the model."""

    def __init__(self, model: HashModel, servable_id: ServableId, settings: EngineSettings, steps: Gate) -> None:
        self.steps = steps
        self.hash_model = model
        self._own_clock = SystemClock()
        super().__init__(model, servable_id, settings, clock=self._own_clock, loop=StepLoop())

    def close(self) -> None:
        """AssertionError if a step broke a promise."""
        self.steps.open()
        super().close()
        self._own_clock.close()
        assert self.hash_model.complaints == []


def language(
    words: str | None = None,
    *,
    name: str = "lm",
    has_text: bool = True,
    slots: int = 2,
    length: int = 64,
    max_queue: int = 8,
) -> LanguageServable:
    """A model that answers every prompt with ``words``; None means the hash of the prompt."""
    steps = Gate()
    choose: Any = None
    if words is not None:
        said = [None if byte == ord(BROKEN) else byte for byte in words.encode()]

        def choose(held: Sequence[int], draw: SamplingRequest) -> int | None:
            return said[draw.index] if draw.index < len(said) else END

    limits = GenerationLimits(slots, length, VOCABULARY, frozenset({END}))
    model = HashModel(limits, ByteCodec() if has_text else None, choose=choose, before=steps)
    settings = EngineSettings(slots, length, 32, 32, max_queue, 10_000, 30.0)
    return LanguageServable(model, ServableId(name, 1), settings, steps)
