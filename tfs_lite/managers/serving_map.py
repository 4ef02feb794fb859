"""The versions that can be served right now, and the handles on them.

Requests look versions up here and nowhere else, so this is kept tiny: one lookup takes one short lock, adds one to the
version's handle count and returns. Managers add a version when it is loaded and withdraw it before it is unloaded;
each version counts its own handles, so a long request holds up the unloading of its own version only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Set
from typing import Any

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import not_found


class _ServedVersion:
    """One version. ``handles`` and ``on_drained`` are guarded by the lock of the map."""

    __slots__ = ("_lock", "handles", "id", "on_drained", "servable")

    def __init__(self, servable_id: ServableId, servable: Any, lock: threading.Lock) -> None:
        self.id, self.servable, self._lock = servable_id, servable, lock
        self.handles = 0
        self.on_drained: Callable[[], None] | None = None

    def take(self) -> ServableHandle:
        """A new handle. Called with the lock held."""
        self.handles += 1
        return ServableHandle(self.id, self.servable, self.release)

    def release(self) -> None:
        with self._lock:
            self.handles -= 1
            drained = self.take_drained() if self.on_drained is not None else None
        if drained is not None:
            drained()

    def take_drained(self) -> Callable[[], None] | None:
        """The callback to call, once, when the version is withdrawn and unused. Called with the lock held."""
        if self.handles or self.on_drained is None:
            return None
        drained, self.on_drained = self.on_drained, None
        self.servable = None
        return drained


class _ServedStream:
    """The versions of one name, immutable: changes make a new one."""

    __slots__ = ("latest", "versions")

    def __init__(self, versions: dict[int, _ServedVersion], held: Set[int]) -> None:
        self.versions = versions
        self.latest = versions[max(versions.keys() - held, default=max(versions))]


class ServingMap:
    """Versions that are ready, by name, and their live handles. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _streams and the counts of every entry; nothing is called under it
        self._streams: dict[str, _ServedStream] = {}
        self._held: dict[str, frozenset[int]] = {}  # versions, also such that are not ready; guarded by the lock too
        self._leaving: dict[_ServedVersion, None] = {}  # withdrawn, with live handles; guarded by the lock too

    def lookup(self, request: ModelRef) -> ServableHandle:
        """A handle to the version that answers ``request`` now. "Latest" is the highest version number that is ready
        and not held, or the highest one if all are held. NOT_FOUND if there is none."""
        with self._lock:
            stream, version = self._streams.get(request.name), request.version
            if stream is not None:
                entry = stream.latest if version is None else stream.versions.get(version)
                if entry is not None:
                    return entry.take()
        raise not_found(f"Servable not found for request: {request}")

    def add(self, servable_id: ServableId, servable: Any) -> None:
        """Lets lookups find ``servable`` from now on. The version must not be in the map."""
        with self._lock:
            versions = self._versions(servable_id.name)
            if servable_id.version in versions:
                raise ValueError(f"{servable_id} is already being served")
            versions[servable_id.version] = _ServedVersion(servable_id, servable, self._lock)
            self._keep(servable_id.name, versions)

    def replace(self, servable_id: ServableId, servable: Any, on_drained: Callable[[], None]) -> None:
        """Lets lookups find ``servable`` from now on for the version, which is in the map: no lookup fails meanwhile.
        ``on_drained`` is called as by :meth:`withdraw`, for the servable that was there before."""
        with self._lock:
            versions = self._versions(servable_id.name)
            entry = versions[servable_id.version]
            versions[servable_id.version] = _ServedVersion(servable_id, servable, self._lock)
            self._keep(servable_id.name, versions)
            drained = self._leave(entry, on_drained)
        if drained is not None:
            drained()

    def withdraw(self, servable_id: ServableId, on_drained: Callable[[], None]) -> None:
        """Hides the version from lookups. ``on_drained`` is called exactly once, when the last handle is gone: on the
        releasing thread (often a request's), or inside this call if none is live. It must be short."""
        with self._lock:
            versions = self._versions(servable_id.name)
            entry = versions.pop(servable_id.version)
            self._keep(servable_id.name, versions)
            drained = self._leave(entry, on_drained)
        if drained is not None:
            drained()

    def hold(self, servable_id: ServableId, held: bool) -> None:
        """Keeps the version from being the latest, or no longer does; by its number it answers. It need not be ready,
        and stays held until a call says otherwise."""
        with self._lock:
            name, version = servable_id.name, frozenset((servable_id.version,))
            known = self._held.pop(name, frozenset())
            if after := known | version if held else known - version:
                self._held[name] = after
            self._keep(name, self._versions(name))

    def _leave(self, entry: _ServedVersion, on_drained: Callable[[], None]) -> Callable[[], None] | None:
        """The callback to call at once, if the entry is unused. Called with the lock held."""

        def gone() -> None:
            with self._lock:
                del self._leaving[entry]
            on_drained()

        if not entry.handles:
            entry.servable = None
            return on_drained
        self._leaving[entry] = None
        entry.on_drained = gone
        return None

    def users(self) -> dict[ServableId, int]:
        """Live handles of every version that can be had, and of those that are withdrawn and still in use."""
        with self._lock:
            entries = [entry for stream in self._streams.values() for entry in stream.versions.values()]
            return _count((*entries, *self._leaving))

    def leaving(self) -> dict[ServableId, int]:
        """Live handles of what was withdrawn or replaced."""
        with self._lock:
            return _count(self._leaving)

    def ids(self) -> list[ServableId]:
        """The versions that can be had now, in order."""
        with self._lock:
            return sorted(entry.id for stream in self._streams.values() for entry in stream.versions.values())

    def versions(self, name: str) -> set[int]:
        """Those of one name that can be had now."""
        with self._lock:
            return set(self._versions(name))

    def handles(self, names: Collection[str] | None = None) -> dict[ServableId, ServableHandle]:
        """One handle to every version that can be had now, or of these names, in the order of their ids. The caller
        releases each."""
        with self._lock:
            streams = self._streams
            found = streams.values() if names is None else [streams[name] for name in names if name in streams]
            entries = [entry for stream in found for entry in stream.versions.values()]
            return {entry.id: entry.take() for entry in sorted(entries, key=lambda entry: entry.id)}

    def leaving_handles(self, name: str | None = None) -> list[ServableHandle]:
        """One more handle to each version, or each of one name, that was withdrawn or replaced and is still in use, in
        the order of their ids. The caller releases each soon: they are waited for."""
        with self._lock:
            entries = [entry for entry in self._leaving if entry.handles and name in (None, entry.id.name)]
            return [entry.take() for entry in sorted(entries, key=lambda entry: entry.id)]

    def _keep(self, name: str, versions: dict[int, _ServedVersion]) -> None:
        """Makes these the versions of the name. Called with the lock held."""
        if versions:
            self._streams[name] = _ServedStream(versions, self._held.get(name, frozenset()))
        else:
            self._streams.pop(name, None)

    def _versions(self, name: str) -> dict[int, _ServedVersion]:
        """A copy to change. Called with the lock held."""
        stream = self._streams.get(name)
        return dict(stream.versions) if stream is not None else {}


def _count(entries: Iterable[_ServedVersion]) -> dict[ServableId, int]:
    """Live handles by version. Called with the lock held."""
    found: dict[ServableId, int] = {}
    for entry in entries:
        found[entry.id] = found.get(entry.id, 0) + entry.handles
    return found
