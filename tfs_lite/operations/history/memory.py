"""The byte account of each load and unload: what was expected of a version, and what the process held around both.

    AccountedLoader -> MemoryAccounts.load / .unload -> VersionMemory, for events, explain and metrics

A version leaks what its load has taken and its unload has not given back. The figures are those of the whole process,
so two loads at once make both accounts wrong: they are then ``disturbed``, their figures stand, and no verdict follows
from them. What versions take in processes of their own is read from those, and exact.

The account also decides when a garbage collection is worth its cost, which grows with all that is loaded: at once where
an unload has left much behind, else once for many unloads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

from tfs_lite.adapters.device import gpu_use
from tfs_lite.adapters.measured import Measured, total
from tfs_lite.adapters.opening import OpenedModel
from tfs_lite.adapters.spare import SPARE
from tfs_lite.core.loader import Loader, LoaderAround
from tfs_lite.core.model import Model
from tfs_lite.core.resources import MAIN
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError

KEPT_ENDED = 4
"""Accounts of a model that are kept after the unload."""
LEAK_BYTES, LEAK_SHARE = 64 << 20, 0.1
"""Less than this, or than this share of what the version takes, is no leak: memory is taken and returned in blocks."""
GPU_LEAK_BYTES, GPU_LEAK_SHARE = 32 << 20, 0.02
"""The same on a GPU, where weights and graphs have blocks of their own."""
KEPT_BYTES = 16 << 20
"""The bytes that an unload or a failed load may leave behind without a collection."""
LEAST_OWED = 64 << 10
"""The least that it counts for: the figures of the process are no finer."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory that a process holds at one moment, in bytes. ``gpus``: per GPU what torch has allocated, and what is
    free; none while torch uses no GPU."""

    rss: int
    gpus: tuple[tuple[int, int], ...] = ()

    def free(self, device: str) -> int | None:
        """The free memory of a device as :class:`VersionMemory` names them, up to a constant: differences count, which
        show what the process takes. On a GPU that is more than torch has allocated: its cache, graphs and libraries
        take memory too. None while torch does not use the GPU."""
        if device == MAIN:
            return -self.rss
        number = int(device.partition("/")[2])
        return self.gpus[number][1] if number < len(self.gpus) else None


@dataclass(frozen=True, slots=True)
class VersionMemory:
    """One version in memory, or one that was. Sizes are in bytes; None is unknown, or not known yet. Devices are
    ``main`` and ``gpu/N``.

    ``files``: of its directory, unpacked. ``reserved``: the estimate before the load. ``measured``: its tensors.
    ``before`` and ``loaded``: the process around the load; ``leaving`` and ``unloaded``: around the unload.
    ``workers``: the resident memory of the processes that the version has for itself, which ``loaded`` does not have.
    ``held``: what it held itself when it was last measured, after the load or before the unload (in a process of its
    own, when that had opened it), by device and kind, see :data:`~tfs_lite.adapters.measured.Measured`.
    """

    version: int
    resident: bool
    """Whether it is in memory now."""
    files: int | None = None
    reserved: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)
    before: Moment | None = None
    loaded: Moment | None = None
    leaving: Moment | None = None
    unloaded: Moment | None = None
    workers: tuple[int, ...] = ()
    disturbed: bool = False
    """Another load, unload or start of a worker overlapped with one of the two."""
    held: Measured = field(default_factory=dict)

    @property
    def devices(self) -> list[str]:
        gpus = max((len(moment.gpus) for moment in self.moments.values()), default=0)
        return [MAIN, *(f"gpu/{number}" for number in range(gpus))]

    @property
    def moments(self) -> dict[str, Moment]:
        """Those that are known."""
        named = {
            "before": self.before,
            "after_load": self.loaded,
            "before_unload": self.leaving,
            "after_unload": self.unloaded,
        }
        return {name: moment for name, moment in named.items() if moment is not None}

    def taken(self, device: str) -> int | None:
        """Bytes by which the process grew during the load; may be negative."""
        return _difference(self.before, self.loaded, device)

    def given_back(self, device: str) -> int | None:
        """Bytes by which the process shrank during the unload; may be negative."""
        return _difference(self.unloaded, self.leaving, device)

    def leaked(self, device: str) -> int | None:
        """Bytes that the load has taken and the unload has not given back, at least 0."""
        taken, given_back = self.taken(device), self.given_back(device)
        return None if taken is None or given_back is None else max(0, taken - given_back)

    @property
    def leaves(self) -> int:
        """The most bytes of one device that the unload may have left behind. The figures of a disturbed account do not
        tell: then it is all that the version takes."""
        if self.disturbed:
            return max(max(self.taken(device) or 0, self.measured.get(device, 0)) for device in self.devices)
        return max(self.leaked(device) or 0 for device in self.devices)

    @property
    def keeps_weights(self) -> bool:
        """Whether the unload seems to have freed less than half of the tensors, or left much behind if their size is
        not known: the load may have imported libraries, which stay."""
        weights = self.measured.get(MAIN)
        return (self.given_back(MAIN) or 0) < weights / 2 if weights else self.leaves > KEPT_BYTES

    @property
    def leaks(self) -> dict[str, int]:
        """The devices on which more stayed behind than can be chance; none of a disturbed account."""
        found = {}
        for device in () if self.disturbed else self.devices:
            leaked, takes = self.leaked(device) or 0, self.measured.get(device, 0)
            least, share = (LEAK_BYTES, LEAK_SHARE) if device == MAIN else (GPU_LEAK_BYTES, GPU_LEAK_SHARE)
            if leaked > max(least, share * takes):
                found[device] = leaked
        return found

    def as_json(self) -> dict[str, Any]:
        """The account as events and explain show it: the figures of main memory first, then those of each GPU."""
        moments = self.moments
        return {
            "version": self.version,
            "resident": self.resident,
            "files": self.files,
            "reserved": sum(self.reserved.values()) if self.reserved else None,
            "measured": sum(self.measured.values()) if self.measured else None,
            "held": {device: dict(kinds) for device, kinds in self.held.items()},
            **{f"rss_{name}": moment.rss for name, moment in moments.items()},
            "given_back": self.given_back(MAIN),
            "leaked": self.leaked(MAIN),
            "workers": list(self.workers),
            "gpus": [self._gpu(number) for number in range(len(self.devices) - 1)],
            "disturbed": self.disturbed,
        }

    def _gpu(self, number: int) -> dict[str, Any]:
        device = f"gpu/{number}"
        known = {name: moment.gpus[number] for name, moment in self.moments.items() if number < len(moment.gpus)}
        return {
            "gpu": number,
            "measured": self.measured.get(device, 0),
            **{f"allocated_{name}": allocated for name, (allocated, _) in known.items()},
            **{f"free_{name}": free for name, (_, free) in known.items()},
            "given_back": self.given_back(device),
            "leaked": self.leaked(device),
        }


def _difference(first: Moment | None, second: Moment | None, device: str) -> int | None:
    """The bytes that the process had taken at ``second`` beyond ``first``; None if one of them is not known."""
    before, after = (None if moment is None else moment.free(device) for moment in (first, second))
    return None if before is None or after is None else before - after


def read_moment() -> Moment:
    """Reads what this process holds now, without the memory that is kept for the next weights. It takes some ten
    microseconds, and one call of the driver per GPU in use."""
    return Moment(max(0, (resident_memory("self") or 0) - SPARE.nbytes), gpu_use())


def resident_memory(pid: int | str) -> int | None:
    """The resident memory of a process; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


@dataclass(slots=True, eq=False)
class _Account:
    """The account of one loader, from its first load on."""

    id: ServableId
    loader: Loader
    reserved: Mapping[str, int]
    measured: Mapping[str, int] = field(default_factory=dict)
    before: Moment | None = None
    loaded: Moment | None = None
    leaving: Moment | None = None
    unloaded: Moment | None = None
    disturbed: bool = False
    held: Measured = field(default_factory=dict)
    exempted: int = 0  # of GivesBack, when its load began

    def value(self) -> VersionMemory:
        """The account of a version in memory, as it is now: instances come and go."""
        resident = self.loaded is not None and self.leaving is None
        return VersionMemory(
            self.id.version,
            resident,
            self.loader.file_bytes,
            self.reserved,
            (resident and by_device(self.loader)) or self.measured,
            self.before,
            self.loaded,
            self.leaving,
            self.unloaded,
            tuple(_workers(self.loader)) if resident else (),
            self.disturbed,
            self.held,
        )


class GivesBack(Protocol):
    """See :class:`tfs_lite.adapters.memory.MemoryReturn`."""

    def return_free(self) -> None: ...

    def exempted(self) -> int: ...

    def collect(self) -> None: ...

    def collect_exempt(self) -> None: ...

    def owe(self, left: int) -> None: ...


class MemoryAccounts:
    """The accounts of all versions. Any thread may call any method."""

    def __init__(
        self,
        on_leak: Callable[[ServableId, Mapping[str, int]], None] = lambda servable_id, leaked: None,
        read: Callable[[], Moment] = read_moment,
        memory: GivesBack | None = None,
    ) -> None:
        """``on_leak`` is told, outside the lock, when two unloads of a model in a row have leaked: the bytes of the
        second one, by device. ``memory`` gives back what is free; None: nothing does."""
        self._memory = memory
        self._on_leak = on_leak
        self._read = read
        self._lock = threading.Lock()  # guards the fields below
        self._accounts: dict[str, dict[Loader, _Account]] = {}  # by model; the latest last
        self._under_way: set[_Account] = set()
        self._suspected: set[str] = set()  # models whose last unload has leaked
        self._leaked: dict[str, int] = {}

    @contextmanager
    def load(self, servable_id: ServableId, loader: Loader) -> Iterator[None]:
        """The load happens within. One that fails leaves no account."""
        account = _Account(servable_id, loader, by_device(loader))
        with self._lock:
            self._accounts.setdefault(servable_id.name, {})[loader] = account
            self._begin(account)
        account.before = self._read()
        account.exempted = self._memory.exempted() if self._memory is not None else 0
        try:
            yield
            account.measured, account.held, account.loaded = by_device(loader), _held(loader), self._read()
        finally:
            if account.loaded is None:
                self._give_back_failed(account)
            with self._lock:
                self._under_way.discard(account)
                if account.loaded is None:
                    self._drop(account)

    @contextmanager
    def unload(self, servable_id: ServableId, loader: Loader) -> Iterator[None]:
        """The unload happens within."""
        with self._lock:
            account = self._accounts.get(servable_id.name, {}).get(loader)
            if account is not None:
                self._begin(account)
        if account is None:
            yield
            if self._memory is not None:
                self._memory.owe(LEAST_OWED)
            return
        account.measured, account.held = by_device(loader) or account.measured, _held(loader) or account.held
        account.leaving = self._read()
        try:
            yield
        finally:
            self._give_back(account)
            with self._lock:
                self._under_way.discard(account)
                self._keep_latest(servable_id.name)
            self._judge(account)

    def disturb(self) -> None:
        """Something else that takes memory happens now, such as the start of a process."""
        with self._lock:
            for account in self._under_way:
                account.disturbed = True

    def of(self, name: str) -> tuple[VersionMemory, ...]:
        """The account of every version of the model that is in memory or being loaded, and of the latest that were; the
        highest version first, of one version the latest first."""
        with self._lock:
            accounts = list(self._accounts.get(name, {}).values())
        found = [account.value() for account in reversed(accounts)]
        return tuple(sorted(found, key=lambda memory: -memory.version))

    def of_version(self, servable_id: ServableId) -> VersionMemory | None:
        """The latest account of the version."""
        with self._lock:
            accounts = self._accounts.get(servable_id.name, {}).values()
            account = next((found for found in reversed(accounts) if found.id == servable_id), None)
        return account.value() if account is not None else None

    def resident(self) -> list[tuple[str, VersionMemory]]:
        """The accounts of every model's versions in memory."""
        with self._lock:
            accounts = [(name, account) for name, own in self._accounts.items() for account in own.values()]
        return [(name, memory) for name, account in accounts if (memory := account.value()).resident]

    def leaked(self) -> dict[str, int]:
        """The bytes, by model, that undisturbed unloads left behind, where that was more than chance."""
        with self._lock:
            return dict(self._leaked)

    def model_gone(self, name: str) -> None:
        """Forgets what has ended of the model."""
        with self._lock:
            self._suspected.discard(name)
            self._leaked.pop(name, None)
            for account in [found for found in self._accounts.get(name, {}).values() if found.unloaded is not None]:
                self._drop(account)

    def _give_back(self, account: _Account) -> None:
        """Called after an unload: returns free memory to the system, and collects where that was not enough."""
        account.unloaded = self._read()
        if self._memory is None:
            return
        if account.value().leaves > KEPT_BYTES:
            self._memory.return_free()
            account.unloaded = self._read()
        left = account.value().leaves
        if left > KEPT_BYTES:
            self._memory.collect()
            account.unloaded = self._read()
            if account.exempted != self._memory.exempted() and account.value().keeps_weights:
                self._memory.collect_exempt()
                account.unloaded = self._read()
        else:
            self._memory.owe(max(left, LEAST_OWED))

    def _give_back_failed(self, account: _Account) -> None:
        """Called after a failed load, of which nothing has to stay."""
        now = self._read()
        if self._memory is None or account.before is None:
            return
        failed = VersionMemory(account.id.version, False, before=account.before, loaded=now, leaving=now, unloaded=now)
        if failed.leaves > KEPT_BYTES:
            self._memory.collect()
        else:
            self._memory.owe(max(failed.leaves, LEAST_OWED))

    def _begin(self, account: _Account) -> None:
        """Called with the lock held."""
        if self._under_way:
            account.disturbed = True
            for other in self._under_way:
                other.disturbed = True
        self._under_way.add(account)

    def _keep_latest(self, name: str) -> None:
        """Called with the lock held."""
        ended = [account for account in self._accounts.get(name, {}).values() if account.unloaded is not None]
        for account in ended[:-KEPT_ENDED]:
            self._drop(account)

    def _drop(self, account: _Account) -> None:
        """Called with the lock held."""
        own = self._accounts.get(account.id.name, {})
        own.pop(account.loader, None)
        if not own:
            self._accounts.pop(account.id.name, None)

    def _judge(self, account: _Account) -> None:
        """A disturbed unload says nothing, neither for nor against."""
        memory, name = account.value(), account.id.name
        if memory.disturbed:
            return
        leaks = memory.leaks
        with self._lock:
            in_a_row = name in self._suspected
            if leaks:
                self._suspected.add(name)
                self._leaked[name] = self._leaked.get(name, 0) + sum(leaks.values())
            else:
                self._suspected.discard(name)
        if leaks and in_a_row:
            self._on_leak(account.id, leaks)


class AccountedLoader(LoaderAround):
    """A loader whose loads and unloads are accounted for."""

    def __init__(self, servable_id: ServableId, inner: Loader, accounts: MemoryAccounts) -> None:
        self._id = servable_id
        super().__init__(inner)
        self._accounts = accounts

    def load(self, servable_id: ServableId) -> None:
        with self._accounts.load(servable_id, self._inner):
            self._inner.load(servable_id)

    def unload(self) -> None:
        with self._accounts.unload(self._id, self._inner):
            self._inner.unload()


def by_device(loader: Loader) -> dict[str, int]:
    """The memory that the version takes by its loader's word, by device; a GPU that is not chosen yet counts as the
    first. Empty where the loader cannot tell."""
    try:
        entries = loader.estimate_resources().entries
    except ServingError:
        return {}
    found: dict[str, int] = {}
    for resource, quantity in entries.items():
        device = MAIN if resource.device == MAIN else f"{resource.device}/{resource.instance or 0}"
        found[device] = found.get(device, 0) + quantity
    return found


def _held(loader: Loader) -> Measured:
    """The memory of all instances by device and kind; empty where models cannot tell."""
    return total([model.measured_bytes() for model in getattr(loader.servable, "models", ()) if _measures(model)])


def _measures(model: Model) -> TypeGuard[OpenedModel]:
    return hasattr(model, "measured_bytes")


def _workers(loader: Loader) -> Iterator[int]:
    """The resident memory of each process of the version on this machine."""
    for model in getattr(loader.servable, "models", ()):
        worker = model.worker
        if worker.kind == "process" and worker.pid is not None:
            memory = resident_memory(worker.pid)
            if memory is not None:
                yield memory
