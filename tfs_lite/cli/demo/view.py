"""The view of the demo while it runs: a live table on a terminal, a line a step elsewhere, nothing with ``--json``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tfs_lite.cli.output import console, state_text, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tfs_lite.cli.demo.traffic import Tally, VersionTally
    from tfs_lite.core.servable import VersionStatus


class DemoView:
    """``step`` prints what the demo does next, ``show`` the state of the server and the clients. One thread."""

    def __init__(self, quiet: bool) -> None:
        page = console()
        self._page = None if quiet else page
        self._live = Live(console=page, transient=True) if page.is_terminal and not quiet else None
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        if self._page is not None:
            self._page.print(Text(f"{time.monotonic() - self._started:5.1f} s  {text}"))

    def show(self, versions: Mapping[int, VersionStatus], tally: Tally) -> None:
        if self._live is not None:
            self._live.update(demo_table(versions, tally))

    def __enter__(self) -> DemoView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()


def demo_table(versions: Mapping[int, VersionStatus], tally: Tally) -> RenderableType:
    """The server's states with the clients' counts and accuracy."""
    rows = []
    for number in sorted(versions.keys() | tally.versions.keys(), reverse=True):
        status, counted = versions.get(number), tally.version(number)
        failed = status is not None and not status.status.ok
        rows.append(
            (
                number,
                state_text(status.state.name if status else "", failed),
                f"{counted.requests:,}",
                _percent(counted),
                status.status.message if status else "",
            )
        )
    failures = Text(f"failed requests: {tally.failures}", style="red" if tally.failures else "green")
    return Group(
        table(("version", "state", "requests", "accuracy", "error"), rows),
        failures.append(f"    accuracy of the latest answers: {tally.recent_accuracy:.1%}", style="bold"),
    )


def _percent(counted: VersionTally) -> str:
    return f"{counted.accuracy:.1%}" if counted.requests else ""
