"""Events of the models (what happened, when, and who wanted it) and the bounded memory of them.

    with acting(Origin(Cause.RELOAD_RPC, "127.0.0.1")):     where a wish enters the server
        reloader.reload(config)                             every event below says who wanted it

An event that repeats the one before it counts that one up. The history lets go of the oldest events first: beyond a
number per model, of models, of events in all, and of bytes.
"""

from __future__ import annotations

import enum
import logging
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from tfs_lite.core.event_bus import Subscription
from tfs_lite.core.loader import size_text
from tfs_lite.core.status import OK, Status, StatusCode

logger = logging.getLogger(__name__)

MAX_TEXT = 500
"""Characters of a message or of a text among the details; what is longer is cut."""
NO_DETAILS: Mapping[str, Any] = MappingProxyType({})
MANAGE_ONLY = frozenset({"path"})
"""Details that only those may see who may manage the server."""


class EventKind(enum.Enum):
    """The kinds of events. Events of the server itself have no model."""

    SEEN = "SEEN"
    """A version's directory was found for the first time."""
    BASE_PATH_PROBLEM = "BASE_PATH_PROBLEM"
    """The model's base path is gone, cannot be read, or holds nothing that is wanted; the status says which."""
    BASE_PATH_GOOD = "BASE_PATH_GOOD"
    """It is there again."""
    FETCH_BEGUN = "FETCH_BEGUN"
    """Its files are being brought from a storage to this machine."""
    FETCHED = "FETCHED"
    FETCH_FAILED = "FETCH_FAILED"
    """A fetch has ended without all files; a later look may begin another one."""
    CACHE_EVICTED = "CACHE_EVICTED"
    """Files that nothing uses were removed from the cache of files, for others."""
    COMPLETE = "COMPLETE"
    """Its files are all there."""
    ASPIRED = "ASPIRED"
    """It is wanted from now on."""
    UNASPIRED = "UNASPIRED"
    """It is not wanted any more; the detail ``why`` says why."""
    LOAD_BEGUN = "LOAD_BEGUN"
    LOAD_ATTEMPT_FAILED = "LOAD_ATTEMPT_FAILED"
    PARKED = "PARKED"
    """Its load waits: for memory, for other models, or for room in the cluster."""
    AVAILABLE = "AVAILABLE"
    OVERDUE = "OVERDUE"
    """Its load or unload takes longer than the bound; it goes on, and others do not wait for it."""
    UNLOAD_BEGUN = "UNLOAD_BEGUN"
    DRAINED = "DRAINED"
    """The last request inside has ended."""
    ENDED = "ENDED"
    """It is unloaded, or its load has failed for good."""
    FILES_CHANGED = "FILES_CHANGED"
    """Files of a version that serves were changed."""
    CONFIG_APPLIED = "CONFIG_APPLIED"
    CONFIG_REFUSED = "CONFIG_REFUSED"
    LABEL_MOVED = "LABEL_MOVED"
    WORKER_LOST = "WORKER_LOST"
    WORKER_STARTED = "WORKER_STARTED"
    BAKE_BEGUN = "BAKE_BEGUN"
    """A version that was pushed is on trial; the version before it stays ready."""
    SHIELDED = "SHIELDED"
    """Requests that failed on a version on trial were answered by the version before it."""
    BAKE_ENDED = "BAKE_ENDED"
    """The trial is over, and its version was not taken back; the detail ``why`` says how it stood."""
    TAKEN_BACK = "TAKEN_BACK"
    """A version must not answer any more: it failed in its trial, or an operator went back to an older one."""
    WOULD_TAKE_BACK = "WOULD_TAKE_BACK"
    """With the verdict ``tell``: the version would have been taken back, and stays."""
    HELD_BACK = "HELD_BACK"
    """Recorded answers, or the signature of the version before, have ended a load."""
    LIFTED = "LIFTED"
    """A version that was taken back may answer again; the detail ``why`` says why."""
    WAY_BACK_FAILED = "WAY_BACK_FAILED"
    """The version that an operator wanted to go back to cannot answer; everything is as it was."""
    LEAK = "LEAK"
    """Two unloads of the model in a row have left memory behind."""
    ACCESS_DENIED = "ACCESS_DENIED"
    SERVER_STARTED = "SERVER_STARTED"
    SERVER_STOPPING = "SERVER_STOPPING"


class Cause(enum.Enum):
    """The causes of a change: who or what wanted it."""

    START = "START"
    """The config of the server's start."""
    POLL = "POLL"
    """A look at the disk."""
    RELOAD_RPC = "RELOAD_RPC"
    CONFIG_FILE = "CONFIG_FILE"
    """The watched config file was changed."""
    REPOSITORY_CALL = "REPOSITORY_CALL"
    OPERATOR = "OPERATOR"
    GUARD = "GUARD"
    """A version on trial, or its end."""
    MEMORY = "MEMORY"
    """Memory came free."""
    FILES = "FILES"
    """Files of a version that serves were changed."""
    SHUTDOWN = "SHUTDOWN"


@dataclass(frozen=True, slots=True)
class Origin:
    """The cause of a change and who asked for it. ``by`` is a name or an address for people; empty if there is none."""

    cause: Cause
    by: str = ""


_ORIGIN: ContextVar[Origin | None] = ContextVar("tfs_lite_origin", default=None)


@contextmanager
def acting(origin: Origin) -> Iterator[None]:
    """Marks everything that this thread (or task) does within the block as wanted by ``origin``; the innermost block
    counts. Other threads do not inherit it: say it where the work runs."""
    token = _ORIGIN.set(origin)
    try:
        yield
    finally:
        _ORIGIN.reset(token)


def current_origin() -> Origin | None:
    """The origin of what this thread does; None if no caller has set one."""
    return _ORIGIN.get()


@dataclass(frozen=True, slots=True)
class Event:
    """``seq`` orders events and never repeats, over restarts too; times are in seconds since the epoch. ``time`` is
    that of the first, ``last`` of the latest of ``count`` events that were alike. ``details``: JSON values by name."""

    seq: int
    time: float
    kind: EventKind
    model: str = ""
    version: int | None = None
    cause: Cause | None = None
    by: str = ""
    status: Status = OK
    details: Mapping[str, Any] = field(default_factory=lambda: NO_DETAILS)
    count: int = 1
    last: float = 0.0

    def repeats(self, before: Event) -> bool:
        """Whether it says what ``before`` said, but for numbers among the details."""
        same_kind = self.kind is before.kind and self.version == before.version
        return same_kind and _telling(self) == _telling(before)

    def as_json(self, *, manage: bool = True) -> dict[str, Any]:
        """The event as JSON, for clients and for the file, without the paths of files unless the reader may
        ``manage``."""
        shown = {key: value for key, value in self.details.items() if manage or key not in MANAGE_ONLY}
        status = {"code": self.status.code.name, "message": self.status.message}
        found: dict[str, Any] = {
            "seq": self.seq,
            "time": iso_time(self.time),
            "kind": self.kind.value,
            "model": self.model,
            "version": self.version,
            "cause": self.cause.value if self.cause else None,
            "by": self.by,
            "status": None if self.status.ok else status,
            "details": shown,
            "text": self.text,
        }
        if self.count > 1:
            found |= {"count": self.count, "last": iso_time(self.last)}
        return found

    @property
    def text(self) -> str:
        """One line for people, without the model: ``no longer wanted (POLL): directory 8 is gone``."""
        return _TEXTS[self.kind].format_map(_words(self))

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Event:
        """Raises ValueError, KeyError, TypeError or AttributeError for what is no event."""
        status, cause, time = value["status"], value["cause"], parse_time(value["time"])
        return Event(
            seq=int(value["seq"]),
            time=time,
            kind=EventKind(value["kind"]),
            model=str(value["model"]),
            version=None if value["version"] is None else int(value["version"]),
            cause=None if cause is None else Cause(cause),
            by=str(value["by"]),
            status=OK if status is None else Status(StatusCode[status["code"]], str(status["message"])),
            details=MappingProxyType(dict(value["details"])),
            count=int(value.get("count", 1)),
            last=parse_time(value["last"]) if "last" in value else time,
        )


_TEXTS = {
    EventKind.SEEN: "found, not complete{why}",
    EventKind.BASE_PATH_PROBLEM: "base path{status}",
    EventKind.BASE_PATH_GOOD: "base path is there again",
    EventKind.FETCH_BEGUN: "fetch begun{size}",
    EventKind.FETCHED: "fetched{after}{size}{fetched}",
    EventKind.FETCH_FAILED: "its files cannot be fetched{status}",
    EventKind.CACHE_EVICTED: "files that nothing uses were removed from the cache{size}",
    EventKind.COMPLETE: "files complete",
    EventKind.ASPIRED: "wanted{by}",
    EventKind.UNASPIRED: "no longer wanted{because}{why}",
    EventKind.LOAD_BEGUN: "load begun, wanted{by}",
    EventKind.LOAD_ATTEMPT_FAILED: "load attempt{attempt} failed{after}{status}",
    EventKind.PARKED: "load waits{why}{status}",
    EventKind.AVAILABLE: "AVAILABLE{after}{anew}",
    EventKind.OVERDUE: "takes too long{status}",
    EventKind.UNLOAD_BEGUN: "unload begun, wanted{by}",
    EventKind.DRAINED: "DRAINED{within}",
    EventKind.ENDED: "ENDED{status}",
    EventKind.FILES_CHANGED: "its files were changed",
    EventKind.CONFIG_APPLIED: "config applied{by}{why}",
    EventKind.CONFIG_REFUSED: "config refused, wanted{by}{status}",
    EventKind.LABEL_MOVED: "label{label} moved{by}",
    EventKind.WORKER_LOST: "its process ended{why}",
    EventKind.WORKER_STARTED: "its process runs again",
    EventKind.BAKE_BEGUN: "on trial{over}",
    EventKind.SHIELDED: "requests that it failed were answered by the version before it{shielded}{why}",
    EventKind.BAKE_ENDED: "its trial is over{why}",
    EventKind.TAKEN_BACK: "must not answer any more{status}{answers}",
    EventKind.WOULD_TAKE_BACK: "stays, because its verdict is only told{why}",
    EventKind.HELD_BACK: "load{attempt} stopped{after}{status}",
    EventKind.LIFTED: "may answer again{by}{why}",
    EventKind.WAY_BACK_FAILED: "cannot answer in place of a newer one{why}",
    EventKind.LEAK: "memory was not given back{leaked}",
    EventKind.ACCESS_DENIED: "access denied{to}{why}{status}",
    EventKind.SERVER_STARTED: "server started{version}",
    EventKind.SERVER_STOPPING: "server stops",
}


def _words(event: Event) -> dict[str, str]:
    """The facts that the text may say, each with the words before it; empty for a fact that is not known."""
    details, cause = event.details, event.cause.value if event.cause else ""
    why = next((details[name] for name in ("why", "waits_for", "summary") if name in details), "")
    seconds = f"{details['seconds']:.3g} s" if "seconds" in details else ""
    leaked = ", ".join(f"{size / 2**20:.0f} MiB on {device}" for device, size in details.get("leaked", {}).items())
    label, before = details.get("label"), details.get("from")
    size, fetched = details.get("bytes"), details.get("fetched_bytes")
    return {
        "by": f" by {cause}{event.by and f' ({event.by})'}" if cause else "",
        "because": f" ({', '.join(filter(None, (cause, event.by)))})" if cause else "",
        "to": f" to {event.by}" if event.by else "",
        "why": f": {why}" if why else "",
        "status": "" if event.status.ok else f": {event.status.message}",
        "after": f" after {seconds}" if seconds else "",
        "within": f" in {seconds}" if seconds else "",
        "attempt": f" {details['attempt']}" if "attempt" in details else "",
        "anew": ", loaded anew" if details.get("loaded_anew") else "",
        "label": f" {label!r}{'' if before is None else f' of version {before}'}" if label else "",
        "leaked": f": {leaked}" if leaked else "",
        "over": f"; version {details['over']} answers what fails on it" if "over" in details else "",
        "shielded": f" ({details['shielded']} of {details['requests']})" if "shielded" in details else "",
        "answers": f"; version {details['to']} answers" if "to" in details else "",
        "size": "" if size is None else f": {size_text(size)}",
        "fetched": "" if fetched in (None, size) else f", {size_text(fetched)} of it from the storage",
        "version": f" (tfs_lite {details['version']})" if "version" in details else "",
    }


def iso_time(seconds: float) -> str:
    """``2026-11-23T03:12:07.250Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_text(seconds: float | None) -> str | None:
    """The same, for an answer in which a time may be missing."""
    return None if seconds is None else iso_time(seconds)


def parse_time(text: str) -> float:
    """Seconds since the epoch. ValueError for what is no time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _telling(event: Event) -> tuple[Any, ...]:
    texts = tuple((key, None if _is_number(value) else repr(value)) for key, value in event.details.items())
    return event.model, event.version, event.kind, event.cause, event.by, event.status, texts


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """The most that the history keeps; ``size`` in bytes, as estimated from its values."""

    of_model: int = 256
    models: int = 1000
    events: int = 10_000
    size: int = 6 << 20


class History:
    """The latest events. Any thread may call any method; none waits for anything but this object's short lock.

    Sequence numbers begin at the time of the start in milliseconds, so that a reader of the server before this one is
    not taken for one of this.
    """

    def __init__(self, time: Callable[[], float], bounds: HistoryBounds | None = None) -> None:
        """``time``: seconds since the epoch."""
        self._time = time
        self._bounds = bounds or HistoryBounds()
        self._lock = threading.Lock()  # guards the fields below; nothing is called under it
        self._events: OrderedDict[int, tuple[Event, int]] = OrderedDict()  # by seq: the event and its size
        self._of_model: OrderedDict[str, deque[int]] = OrderedDict()  # the model of the latest event is last
        self._size = 0
        self._dropped = 0
        self._last_seq = int(time() * 1000)
        self._listeners: dict[int, Callable[[Event], None]] = {}
        self._next_listener = 0

    # Writing.

    def append(
        self,
        kind: EventKind,
        model: str = "",
        version: int | None = None,
        *,
        origin: Origin | None = None,
        status: Status = OK,
        details: Mapping[str, Any] = NO_DETAILS,
    ) -> Event:
        """Notes what has just happened. Without ``origin`` it is what this thread acts for; see :func:`acting`. Cheap;
        listeners run before it returns, on this thread."""
        origin = origin or current_origin()
        now = self._time()
        event = Event(
            0,
            now,
            kind,
            model,
            version,
            origin.cause if origin else None,
            origin.by if origin else "",
            _cut_status(status),
            MappingProxyType({key: _cut(value) for key, value in details.items()}),
            1,
            now,
        )
        with self._lock:
            event = self._add(event)
            listeners = list(self._listeners.values())
        for listener in listeners:
            _call(listener, event)
        return event

    def restore(self, events: Iterable[Event]) -> None:
        """Puts the events of an earlier server in, in their order, before any of this one. Listeners are not told."""
        with self._lock:
            for event in sorted(events, key=lambda found: found.seq):
                if event.seq in self._events:
                    continue
                self._last_seq = max(self._last_seq, event.seq)
                of_model = self._of_model.get(event.model)
                if of_model and event.count > 1 and event.repeats(self._events[of_model[-1]][0]):
                    self._remove(of_model.pop())
                self._put(event)

    def _add(self, event: Event) -> Event:
        """Called with the lock held."""
        self._last_seq += 1
        of_model = self._of_model.get(event.model)
        before = self._events[of_model[-1]][0] if of_model else None
        event = replace(event, seq=self._last_seq)
        if of_model and before is not None and event.repeats(before):
            event = replace(event, time=before.time, count=before.count + 1)
            self._remove(of_model.pop())
        self._put(event)
        return event

    def _put(self, event: Event) -> None:
        """Called with the lock held."""
        size = _size(event)
        self._events[event.seq] = event, size
        self._size += size
        of_model = self._of_model.setdefault(event.model, deque())
        of_model.append(event.seq)
        self._of_model.move_to_end(event.model)
        self._keep_bounds(of_model)

    def _keep_bounds(self, of_model: deque[int]) -> None:
        """Called with the lock held, after each new event, which stays whatever its size."""
        bounds = self._bounds
        if len(of_model) > bounds.of_model:
            self._remove(of_model.popleft())
            self._dropped += 1
        if len(self._of_model) > bounds.models:
            _, oldest = self._of_model.popitem(last=False)
            for seq in oldest:
                self._remove(seq)
            self._dropped += len(oldest)
        while len(self._events) > bounds.events or (self._size > bounds.size and len(self._events) > 1):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        seq, (event, _) = next(iter(self._events.items()))
        of_model = self._of_model[event.model]
        of_model.popleft()
        if not of_model:
            del self._of_model[event.model]
        self._remove(seq)
        self._dropped += 1

    def _remove(self, seq: int) -> None:
        _, size = self._events.pop(seq)
        self._size -= size

    # Reading.

    def after(
        self, seq: int, model: str | None = None, kinds: Collection[EventKind] = (), limit: int | None = None
    ) -> list[Event]:
        """The events after that number, the oldest first, at most ``limit``: of one model (``""``: the server itself)
        or of all, and of these kinds or of all."""
        with self._lock:
            if model is not None:
                known = [self._events[own][0] for own in self._of_model.get(model, ()) if own > seq]
            elif seq >= self._last_seq:
                known = []
            else:
                known = [event for own, (event, _) in self._events.items() if own > seq]
        found = [event for event in known if not kinds or event.kind in kinds]
        return found if limit is None else found[:limit]

    def of_model(self, name: str) -> list[Event]:
        """Every event of the model that is kept, the oldest first."""
        return self.after(0, name)

    @property
    def last_seq(self) -> int:
        """The number of the latest event, or of the moment before the first."""
        return self._last_seq

    @property
    def first_seq(self) -> int:
        """The number of the oldest event that is kept; 0 if there is none."""
        with self._lock:
            return next(iter(self._events), 0)

    @property
    def dropped(self) -> int:
        """The number of events that were dropped because of the bounds."""
        return self._dropped

    @property
    def size(self) -> int:
        """Bytes that the events take, as estimated."""
        return self._size

    def __len__(self) -> int:
        return len(self._events)

    def listen(self, listener: Callable[[Event], None]) -> Subscription:
        """``listener`` runs after each event, on the thread that appends, outside the lock: it must be short, and may
        see the events of two threads in another order than their numbers."""
        with self._lock:
            key = self._next_listener
            self._next_listener += 1
            self._listeners[key] = listener
        return Subscription(lambda: self._forget(key))

    def _forget(self, key: int) -> None:
        with self._lock:
            self._listeners.pop(key, None)


def _call(listener: Callable[[Event], None], event: Event) -> None:
    try:
        listener(event)
    except Exception:
        logger.exception("a listener of the history failed on %s", event)


def _cut(value: Any) -> Any:
    return value[: MAX_TEXT - 1] + "…" if isinstance(value, str) and len(value) > MAX_TEXT else value


def _cut_status(status: Status) -> Status:
    return status if len(status.message) <= MAX_TEXT else replace(status, message=_cut(status.message))


def _size(event: Event) -> int:
    """Bytes, about: the values of its own, and its places in the history."""
    own = 600 + sys.getsizeof(event.status.message) + sys.getsizeof(event.by)
    return own + sum(_deep_size(key) + _deep_size(value) for key, value in event.details.items())


def _deep_size(value: Any) -> int:
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(_deep_size(key) + _deep_size(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(_deep_size, value))
    return sys.getsizeof(value)
