"""Makes it safe for several loads to import the same libraries at once.

Two things can go wrong between threads that import. A package may replace itself while it is imported, as
``transformers`` and the packages of its model families do, and whoever has waited for it gets the first module, which
is empty ("cannot import name"):

    thread 1: import p -> p is in sys.modules, its code runs -> sys.modules["p"] = another module -> done
    thread 2:             import p -> finds the first module, waits ----------------------------> gets the first module

Here a module that was replaced passes on what it lacks to the one in its place. And where modules import one another in
a circle, as in torch and transformers, two threads that come from two sides would wait for each other; Python gives one
of them a module of which half is missing ("partially initialized"). Loads therefore import in turns. Other threads
never wait for a turn: a request that imports something is not held up by a load.

A turn has to begin before Python takes the lock of the module, or who waits for a turn has a module that who has the
turn may wait for. Nothing public is called so early but ``builtins.__import__``, which ``importlib.import_module`` goes
past and which would slow down every ``import`` of the process: finders and loaders are called with the lock held.
Hence the one private name, ``importlib._bootstrap._find_and_load``; Python itself looks it up there for each import.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

from tfs_lite.adapters.collection import exempt_imports
from tfs_lite.core.yielding import switch_interval

MAX_WAIT = 60.0
"""Seconds that other loads wait for the import of one; then they import at the same time."""
SWITCH_SECONDS = 0.0005
"""The interpreter's switch interval during a turn. An import is thousands of short pieces of Python: with the ordinary
5 ms, each request that comes meanwhile waits that long whenever it needs the interpreter lock. An import never releases
it, so that a still shorter interval would only take it away from a request again, before it is done."""
YOUNG = 1_000_000
"""Objects after which Python collects the youngest generation during a turn: torch and transformers make 400,000."""


class _Loader(SourceFileLoader):
    """Runs a module as ever. If another module has taken its place by then, it becomes a door to that one."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if sys.modules.get(module.__name__, module) is not module:
            vars(module).setdefault("__getattr__", _door(module.__name__))


def _door(name: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose place another one has taken. That one may ask the first for what it lacks
    itself, as those of ``cryptography`` do; then there is no such attribute."""
    asking = threading.local()

    def ask_the_other(attribute: str) -> Any:
        asked = vars(asking)
        if attribute in asked:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        asked[attribute] = True
        try:
            return getattr(sys.modules[name], attribute)
        finally:
            del asked[attribute]

    return ask_the_other


class _Finder:
    """Finds what Python's finder of files finds, and has source files run by :class:`_Loader`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class Turns:
    """A lock for imports, with the imports inside them, that no thread keeps from the others for ever. Who has it gives
    the interpreter lock away every half millisecond. Garbage collections are rare meanwhile: a large import brings some
    forty, each of which looks at what the import has made, and holds the lock for up to 40 ms. Any thread."""

    def __init__(self, max_wait: float = MAX_WAIT) -> None:
        self._max_wait = max_wait
        self._changed = threading.Condition()  # guards the fields below
        self._holder: int | None = None
        self._depth = 0
        self._since = 0.0
        self._thresholds = gc.get_threshold()  # those before the turn

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if self._holder not in (None, me) and not self._wait():
                return
            if self._holder is None:
                self._holder, self._since = me, time.monotonic()
                switch_interval.ask(SWITCH_SECONDS)
                self._thresholds = gc.get_threshold()
                gc.set_threshold(YOUNG, *self._thresholds[1:])
            self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            if self._holder != threading.get_ident():
                return
            self._depth -= 1
            if not self._depth:
                self._holder = None
                switch_interval.withdraw(SWITCH_SECONDS)
                exempt_imports()
                gc.set_threshold(*self._thresholds)
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Waits for the turn, with the lock held. False when the turn of another thread takes too long."""
        while self._holder is not None:
            left = self._since + self._max_wait - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(left)
        return True


class _OfThread(threading.local):
    loads = 0


_turns = Turns()
_thread = _OfThread()
_installing = threading.Lock()


@contextmanager
def importing_in_turns() -> Iterator[None]:
    """Lets one thread import at a time: what this thread imports inside, it imports while no other thread inside
    imports. The first call changes how this process imports; any thread."""
    _install()
    _thread.loads += 1
    try:
        yield
    finally:
        _thread.loads -= 1


def _install() -> None:
    """Installs the turns for modules that are imported from now on, in this process; once."""
    with _installing:
        if PathFinder not in sys.meta_path or any(isinstance(finder, _Finder) for finder in sys.meta_path):
            return
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder())
        _take_turns()


def _take_turns() -> None:
    """Puts the turns around the function that Python calls for each module that is not there yet, and around no
    other."""
    bootstrap: Any = importlib._bootstrap
    find_and_load: Callable[..., ModuleType] = bootstrap._find_and_load

    def in_turn(name: str, import_: Callable[..., ModuleType]) -> ModuleType:
        if not _thread.loads:
            return find_and_load(name, import_)
        with _turns:
            return find_and_load(name, import_)

    bootstrap._find_and_load = in_turn
