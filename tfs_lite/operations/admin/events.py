"""The history's events for readers: a page of them, a page that waits for the next one, or a stream.

    history -> [a change wakes the readers] -> each reads what it wants, on a thread -> HTTP (events_http), gRPC

A reader says which events it wants (:class:`WantedEvents`). Readers that wait are few and bounded, and all of them end
when the server drains.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from tfs_lite.core.history import Event, EventKind, History
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import ChangeSignal, Health

MAX_WAITING = 32
"""Readers that wait for events; one more is refused."""
MAX_EVENTS = 1000
MAX_WAIT_SECONDS = 30.0
PING_SECONDS = 15.0
FIELDS = ("model", "kind", "after", "limit", "wait")


@dataclass(frozen=True, slots=True)
class WantedEvents:
    """``model`` None: of all; empty: of the server itself. ``kinds`` empty: all. ``after`` None: the latest; else the
    oldest after that number. ``wait``: seconds to wait for one if there is none."""

    model: str | None = None
    kinds: frozenset[EventKind] = frozenset()
    after: int | None = None
    limit: int = MAX_EVENTS
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of events: which models it may know of, and whether it may see the paths of files."""

    allows: Callable[[str], bool]
    manage: bool = False


@dataclass(frozen=True, slots=True)
class EventPage:
    """``next`` is the number to go on after; ``first`` that of the oldest event that is kept, 0 if there is none;
    ``dropped``: events that the history has let go of."""

    events: list[dict[str, Any]]
    next: int
    first: int
    dropped: int

    @property
    def as_json(self) -> dict[str, Any]:
        return {"events": self.events, "next": self.next, "first": self.first, "dropped": self.dropped}


def wanted_events(fields: Mapping[str, Any]) -> WantedEvents:
    """The wanted events by the fields of a query, or of a JSON object; ``kind`` is a text with commas, or a list.
    INVALID_ARGUMENT."""
    model, kinds = fields.get("model"), fields.get("kind", ())
    if model is not None and not isinstance(model, str):
        raise invalid_argument("field model: expected a text")
    if isinstance(kinds, str):
        kinds = [word for word in kinds.split(",") if word]
    if not isinstance(kinds, list | tuple):
        raise invalid_argument("field kind: expected names of kinds")
    after = fields.get("after")
    return WantedEvents(
        model,
        frozenset(_kind(word) for word in kinds),
        None if after is None else int(_number("after", after, 2**63 - 1)),
        int(_number("limit", fields.get("limit", MAX_EVENTS), MAX_EVENTS, least=1)),
        _number("wait", fields.get("wait", 0), MAX_WAIT_SECONDS, whole=False),
    )


def _kind(word: Any) -> EventKind:
    try:
        return EventKind(word)
    except ValueError:
        known = [kind.value for kind in EventKind]
        close = get_close_matches(str(word).upper(), known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else f"; there are: {', '.join(known)}"
        raise invalid_argument(f"field kind: {word!s:.50} is not known{hint}") from None


def _number(name: str, value: Any, most: float, *, least: float = 0, whole: bool = True) -> float:
    expected = f"expected a {'whole ' if whole else ''}number from {least:g} to {most if whole else f'{most:g}'}"
    try:
        number: float = int(value) if whole else float(value)
    except (ValueError, TypeError, OverflowError):
        number = -1
    if not least <= number <= most or isinstance(value, bool):
        raise invalid_argument(f"field {name}: {expected}, got {value!s:.50}")
    return number


class EventFeed:
    """The feed of events, on the event loop; ``background`` reads and encodes."""

    def __init__(self, history: History, health: Health, background: BackgroundRunner) -> None:
        self._history = history
        self._health = health
        self._background = background
        self._signal = ChangeSignal(asyncio.get_running_loop())
        self._waiting = 0
        history.listen(lambda event: self.wake())

    def wake(self) -> None:
        """Readers look again: an event has come, or the server drains. Any thread, cheap."""
        if self._waiting:
            self._signal.notify()

    async def page(self, wanted: WantedEvents, reader: Reader) -> EventPage:
        """A page of the events that there are; with ``wait``, as soon as there are some. UNAVAILABLE if too many
        wait."""
        page = await self._read(wanted, reader)
        if page.events or not wanted.wait:
            return page
        ends = time.monotonic() + wanted.wait
        self._begin_to_wait()
        try:
            while True:
                change = self._signal.next_change()
                page = await self._read(replace(wanted, after=page.next), reader)
                left = ends - time.monotonic()
                if page.events or left <= 0 or self._health.draining:
                    return page
                await _wait(change, left)
        finally:
            self._waiting -= 1

    async def stream(self, wanted: WantedEvents, reader: Reader) -> AsyncIterator[EventPage]:
        """Yields the events that there are, and then new ones, page by page, until the server drains. A page without
        events is sent when nothing has happened for a while. Call :meth:`admit` before."""
        self._waiting += 1
        try:
            while True:
                change = self._signal.next_change()
                page = await self._read(wanted, reader)
                wanted = replace(wanted, after=page.next)
                if page.events:
                    yield page
                elif self._health.draining:
                    return
                elif not await _wait(change, PING_SECONDS):
                    yield page
        finally:
            self._waiting -= 1

    def admit(self) -> None:
        """UNAVAILABLE if as many readers wait as may."""
        if self._waiting >= MAX_WAITING:
            message = f"{self._waiting} readers wait for events, no more are taken"
            raise ServingError(StatusCode.UNAVAILABLE, message)

    def _begin_to_wait(self) -> None:
        self.admit()
        self._waiting += 1

    async def _read(self, wanted: WantedEvents, reader: Reader) -> EventPage:
        return await self._background.run(lambda: read_page(self._history, wanted, reader))


def read_page(history: History, wanted: WantedEvents, reader: Reader) -> EventPage:
    """Reads a page, on any thread."""
    last = history.last_seq  # before reading: what comes meanwhile is in the next page
    found = history.after(wanted.after or 0, wanted.model, wanted.kinds)
    allowed = [event for event in found if event.seq <= last and reader.allows(event.model)]
    cut = allowed[-wanted.limit :] if wanted.after is None else allowed[: wanted.limit]
    following = cut[-1].seq if wanted.after is not None and len(cut) < len(allowed) else last
    shown = [_shown(event, reader) for event in cut]
    return EventPage(shown, max(following, wanted.after or 0), history.first_seq, history.dropped)


def _shown(event: Event, reader: Reader) -> dict[str, Any]:
    return event.as_json(manage=reader.manage)


async def _wait(change: asyncio.Event, seconds: float) -> bool:
    """Whether the change came in time."""
    try:
        async with asyncio.timeout(seconds):
            await change.wait()
    except TimeoutError:
        return False
    return True
