"""The contract between a manager and the loaders that bring versions into memory.

    estimate_resources*  ->  load (again after a failure)  ->  unload (once, after the last handle)

An adapter makes a loader from a storage path; a manager drives it. The manager never looks inside the servable. How
far a load is, is told by a :class:`LoadMeter`, which the loading thread writes and pages read as :class:`LoadProgress`.
"""

from __future__ import annotations

import enum
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableId

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
MEASURED_SECONDS = 0.5
"""A phase tells nothing about the time it still takes before it has run this long."""


class LoadPhase(enum.Enum):
    """The phases of a load. The values are words for people and for JSON."""

    FETCHING = "fetching the files"
    """They come from a storage to this machine, before the load; their bytes are counted."""
    FETCHED_ELSEWHERE = "another process of this machine fetches the files"
    LOOKING = "looking at the files"
    CHECKING = "checking the files"
    """Every byte is compared with its checksum; these bytes are counted."""
    READING = "reading the weights"
    """Bytes are counted."""
    OPENING = "opening the model"
    """A library, a process or the model's own code is at work: its bytes cannot be told."""
    WARMING_UP = "warming up"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load. ``seconds`` counts from the begin of the attempt, ``phase_seconds`` from that of the
    phase. The bytes are those of this phase, and None where they cannot be told."""

    phase: LoadPhase
    seconds: float
    phase_seconds: float
    read_bytes: int | None = None
    expected_bytes: int | None = None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left in this phase at the present rate; None if unknown."""
        if not self.read_bytes or self.expected_bytes is None or self.phase_seconds < MEASURED_SECONDS:
            return None
        return max(self.expected_bytes - self.read_bytes, 0) * self.phase_seconds / self.read_bytes

    def __str__(self) -> str:
        """``reading the weights: 1.2 of 5.0 GiB, 8 s left``, ``warming up for 12 s``."""
        if self.read_bytes is None or self.expected_bytes is None:
            return f"{self.phase.value} for {self.phase_seconds:.0f} s"
        left = self.seconds_left
        ends = "" if left is None else f", {left:.0f} s left"
        return f"{self.phase.value}: {bytes_text(self.read_bytes, self.expected_bytes)}{ends}"

    def as_json(self) -> dict[str, str | float | int]:
        """The progress as JSON, without the fields that are not known."""
        fields: dict[str, str | float | int | None] = {
            "phase": self.phase.value,
            "seconds": round(self.seconds, 3),
            "phase_seconds": round(self.phase_seconds, 3),
            "read_bytes": self.read_bytes,
            "expected_bytes": self.expected_bytes,
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 3),
        }
        return {name: value for name, value in fields.items() if value is not None}


def bytes_text(done: int, expected: int) -> str:
    """``1.2 of 5.0 GiB``, both in the unit of the larger one."""
    unit, size = next(((unit, size) for unit, size in _UNITS if expected >= size), ("bytes", 1))
    digits = 0 if size == 1 else 1
    return f"{done / size:.{digits}f} of {expected / size:.{digits}f} {unit}"


def size_text(count: float) -> str:
    """``512 bytes``, ``3.4 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


class LoadMeter:
    """The notebook of a load for its progress: one thread begins phases, any thread may add bytes or read."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """``now``: a clock that only goes forward, in seconds."""
        self._now = now
        self._started = now()
        self._phase = _Phase(LoadPhase.LOOKING, self._started, None)
        self._adding = threading.Lock()

    def begin(self, phase: LoadPhase, expected_bytes: int | None = None) -> None:
        """The phase begins, anew if it is the same again. Without ``expected_bytes`` its bytes are not told."""
        self._phase = _Phase(phase, self._now(), expected_bytes)

    def add(self, nbytes: int) -> None:
        """Counts so many more bytes of this phase as read."""
        with self._adding:
            self._phase.read_bytes += nbytes

    @property
    def progress(self) -> LoadProgress:
        phase, now = self._phase, self._now()
        read = None if phase.expected_bytes is None else min(phase.read_bytes, phase.expected_bytes)
        return LoadProgress(phase.name, now - self._started, now - phase.started, read, phase.expected_bytes)


@dataclass(slots=True)
class _Phase:
    name: LoadPhase
    started: float
    expected_bytes: int | None
    read_bytes: int = 0


class Loader(ABC):
    """Brings one version into memory and out again. Making and dropping a loader is cheap.

    Threads: the manager calls ``load`` and ``unload`` on its executors, never two at a time for one loader;
    ``estimate_resources`` may be called at any time from any thread; ``servable`` is read by request threads.
    """

    @abstractmethod
    def estimate_resources(self) -> ResourceAllocation:
        """An upper bound of what the version takes, that never grows over time and may shrink after loading.

        Before loading, entries may leave the device instance open; once loaded, every entry names its instance.
        Raises ServingError when it cannot tell.
        """

    @abstractmethod
    def load(self, servable_id: ServableId) -> None:
        """Makes ``servable`` usable. After an error the loader holds no memory and may be asked again."""

    @abstractmethod
    def unload(self) -> None:
        """Drops the servable and gives its memory back. Called once, only after a successful load, when no handle
        is left. Cannot fail: what goes wrong is logged. ``load`` is never called afterwards."""

    def resize(self, settings: Any) -> bool:
        """Opens and closes instances of what is loaded, until it is what ``settings`` ask for, which are of the
        adapter's own kind; requests are served all the time. False: that takes another load, and nothing has changed.
        Raises ServingError, also with nothing changed, if an instance cannot be opened.

        One thread at a time, which has a handle, so that nothing is unloaded meanwhile."""
        return False

    @property
    @abstractmethod
    def servable(self) -> Any:
        """The loaded object between a successful ``load`` and ``unload``; None otherwise."""

    @property
    def file_bytes(self) -> int | None:
        """The size of the version's files, unpacked; None where it is not known. Any thread, at any time."""
        return None

    @property
    def progress(self) -> LoadProgress | None:
        """The progress of ``load``; None while it does not run, and for a loader that does not measure it. Any
        thread."""
        return None


class LoaderAround(Loader):
    """A loader around another one that it passes every call on to. One with an idea of its own overrides the calls that
    this is about; the loader inside is ``_inner``."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def estimate_resources(self) -> ResourceAllocation:
        return self._inner.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        self._inner.load(servable_id)

    def unload(self) -> None:
        self._inner.unload()

    def resize(self, settings: Any) -> bool:
        return self._inner.resize(settings)

    @property
    def servable(self) -> Any:
        return self._inner.servable

    @property
    def file_bytes(self) -> int | None:
        return self._inner.file_bytes

    @property
    def progress(self) -> LoadProgress | None:
        return self._inner.progress
