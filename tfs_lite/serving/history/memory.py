"""The byte account of each load and unload: what was expected, and what the process held before, after, and at the end.

The figures are those of a whole process, so two loads at once make both accounts wrong: they are then ``disturbed``,
their figures stand, and no verdict follows from them. A version in a process of its own has exact ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Moment:
    """What a process holds at one moment, in bytes. ``gpus``: per GPU what torch has allocated, and what is free."""

    rss: int
    gpus: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class VersionMemory:
    """One version in memory, or one that was. Sizes are in bytes; None is unknown, or not known yet.

    ``files``: of its directory, unpacked. ``reserved``: the estimate before the load. ``measured``: its tensors.
    ``before``, ``loaded``, ``unloaded``: the process at the three moments. ``workers``: the resident memory of the
    processes that the version has for itself, which ``loaded`` does not contain.
    """

    version: int
    resident: bool
    """Whether it is in memory now."""
    files: int | None = None
    reserved: int | None = None
    measured: int | None = None
    before: Moment | None = None
    loaded: Moment | None = None
    unloaded: Moment | None = None
    workers: tuple[int, ...] = field(default=())
    disturbed: bool = False
    """Another load, unload or start of a worker overlapped."""

    @property
    def taken(self) -> int | None:
        """By which the process grew with the load; may be negative."""
        return self.loaded.rss - self.before.rss if self.before and self.loaded else None

    @property
    def given_back(self) -> int | None:
        """By which the process shrank with the unload; may be negative."""
        return self.loaded.rss - self.unloaded.rss if self.loaded and self.unloaded else None

    @property
    def leaked(self) -> int | None:
        """What the process holds more after the unload than before the load, at least 0."""
        return max(0, self.unloaded.rss - self.before.rss) if self.before and self.unloaded else None

    def as_json(self) -> dict[str, Any]:
        """As events and explain show it."""
        moments = {"before": self.before, "after_load": self.loaded, "after_unload": self.unloaded}
        known = {name: moment for name, moment in moments.items() if moment is not None}
        count = max((len(moment.gpus) for moment in known.values()), default=0)
        return {
            "version": self.version,
            "resident": self.resident,
            "files": self.files,
            "reserved": self.reserved,
            "measured": self.measured,
            **{f"rss_{name}": moment.rss for name, moment in known.items()},
            "gpus": [
                {
                    "gpu": gpu,
                    **{f"allocated_{name}": moment.gpus[gpu][0] for name, moment in known.items() if moment.gpus},
                    **{f"free_{name}": moment.gpus[gpu][1] for name, moment in known.items() if moment.gpus},
                }
                for gpu in range(count)
            ],
            "workers": list(self.workers),
            "given_back": self.given_back,
            "leaked": self.leaked,
            "disturbed": self.disturbed,
        }
