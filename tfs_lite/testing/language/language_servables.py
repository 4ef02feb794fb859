"""Real engines in front of a model whose words are set: for tests of the protocols that language models speak.

servable = language("grüße")   # whatever is asked, it says that, byte by byte, and ends
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.generation import Limits, SamplingRequest, Step
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.generation.loop import StepLoop
from tfs_lite.schedulers.generation.servable import GenerativeServable
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.testing.language.byte_codec import END, VOCABULARY, ByteCodec
from tfs_lite.testing.language.hash_model import HashModel

BROKEN = "\x00"
"""In the words: there the model fails."""
PATIENCE = 20.0


class Gate:
    """Holds the model's steps up once it is shut. ``open`` lets all through, ``let`` some."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._left: int | None = None
        self.held = 0

    def shut(self) -> None:
        self.let(0)

    def let(self, count: int) -> None:
        """So many more steps."""
        with self._changed:
            self._left = count
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._left = None
            self._changed.notify_all()

    def __call__(self, step: Step) -> None:
        with self._changed:
            self.held += 1
            self._changed.wait_for(lambda: self._left is None or self._left > 0, PATIENCE)
            self.held -= 1
            if self._left is not None:
                self._left -= 1


class LanguageServable(GenerativeServable):
    """In real time, with a loop and a clock of its own. ``steps`` holds the model up."""

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
    """Says ``words`` to every prompt; None: what the hash of the prompt gives."""
    steps = Gate()
    choose: Any = None
    if words is not None:
        said = [None if byte == ord(BROKEN) else byte for byte in words.encode()]

        def choose(held: Sequence[int], draw: SamplingRequest) -> int | None:
            return said[draw.index] if draw.index < len(said) else END

    limits = Limits(slots, length, VOCABULARY, frozenset({END}))
    model = HashModel(limits, ByteCodec() if has_text else None, choose=choose, before=steps)
    settings = EngineSettings(slots, length, 32, 32, max_queue, 10_000, 30.0)
    return LanguageServable(model, ServableId(name, 1), settings, steps)
