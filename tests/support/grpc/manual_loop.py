"""An event loop for tests whose time stands still until the test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class ManualLoop(asyncio.SelectorEventLoop):
    """``advance`` moves its time; ``timers`` has every timer that was set."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, **more: Any
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, **more)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Runs what falls due on the way, each at its own time, and at least one turn of the loop."""
        end = self.now + seconds
        while due := [when for when in self.armed if when <= end]:
            self.now = max(self.now, min(due))
            self.run_until_complete(asyncio.sleep(0))
        self.now = end
        self.run_until_complete(asyncio.sleep(0))

    @property
    def armed(self) -> list[float]:
        """When the timers are due that were neither run nor cancelled."""
        return [timer.when() for timer in self.timers if not timer.cancelled() and timer in self._scheduled]  # type: ignore[attr-defined]
