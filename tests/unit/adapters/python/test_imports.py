"""Imports of several threads at once: whoever comes second gets the whole of a module, and loads import in turns."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.servers.process import wait_until
from tfs_lite.adapters.python.imports import SWITCH_SECONDS, Turns, importing_in_turns
from tfs_lite.core.yielding import giving_way

REPLACED = """
import sys
import types
import gate

class Lazy(types.ModuleType):
    def __getattr__(self, name):
        if name == "color":
            return "red"
        raise AttributeError(name)

gate.pass_through(__name__)
other = Lazy(__name__)
other.__spec__, other.__path__ = __spec__, __path__
sys.modules[__name__] = other
"""
ASKS_BACK = """
import sys
import types

class Wrapper(types.ModuleType):
    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

color = "red"
wrapper = Wrapper(__name__)
wrapper.__dict__["inner"] = sys.modules[__name__]
sys.modules[__name__] = wrapper
"""
LARGE = """
import gc

def count():
    return sum(generation["collections"] for generation in gc.get_stats())

before = count()
kept = [[] for _ in range(100_000)]
collections = count() - before
"""
SLOW = "import gate\ngate.pass_through(__name__)\n"


class Gate(SimpleNamespace):
    """Modules that are imported wait in it until they are let through."""

    def __init__(self) -> None:
        super().__init__(inside=[], most=0, opened=threading.Event())
        self._lock = threading.Lock()

    def pass_through(self, name: str) -> None:
        with self._lock:
            self.inside.append(name)
            self.most = max(self.most, len(self.inside))
        assert self.opened.wait(60)
        with self._lock:
            self.inside.remove(name)


class Importer:
    """A thread that runs an import; ``value`` is what it found, or the error."""

    def __init__(self, work: Callable[[], Any], context: AbstractContextManager[None] | None = None) -> None:
        self.value: Any = None
        self._work, self._context = work, context or importing_in_turns()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._context:
                self.value = self._work()
        except BaseException as error:
            self.value = error

    def waits_in(self, function: str) -> bool:
        """Whether its thread is inside a call of this function."""
        assert self.thread.ident is not None
        frame = sys._current_frames().get(self.thread.ident)
        while frame is not None and frame.f_code.co_name != function:
            frame = frame.f_back
        return frame is not None

    def result(self) -> Any:
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.value


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate()
    monkeypatch.setitem(sys.modules, "gate", found)  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield found
    found.opened.set()
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, name: str, text: str) -> None:
    (path / name).mkdir()
    (path / name / "__init__.py").write_text(text)


def run(statement: str, name: str) -> Callable[[], Any]:
    def work() -> Any:
        found: dict[str, Any] = {}
        exec(statement, found)
        return found[name]

    return work


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("from replaced import color", "color"),
        ("import replaced; color = replaced.color", "color"),
        ("import importlib; color = importlib.import_module('replaced').color", "color"),
    ],
)
def test_import_that_waits_for_a_package_that_replaces_itself_gets_what_took_its_place(
    gate: Gate, tmp_path: Path, statement: str, name: str
) -> None:
    write(tmp_path, "replaced", REPLACED)
    first = Importer(run("from replaced import color", "color"))
    wait_until(lambda: gate.inside, "the first import is in the package")
    second = Importer(run(statement, name))
    wait_until(lambda: second.waits_in("acquire") or second.waits_in("_wait"), "the second waits")
    gate.opened.set()
    assert (first.result(), second.result()) == ("red", "red")


def test_what_the_other_module_lacks_is_lacking(gate: Gate, tmp_path: Path) -> None:
    write(tmp_path, "replaced", REPLACED)
    first = Importer(run("from replaced import color", "color"))
    wait_until(lambda: gate.inside, "the first import is in the package")
    second = Importer(run("from replaced import shape", "shape"))
    wait_until(lambda: second.waits_in("acquire"), "the second waits")
    gate.opened.set()
    assert first.result() == "red"
    assert isinstance(second.result(), ImportError)


def test_loads_import_in_turns_and_other_threads_do_not_wait_for_them(gate: Gate, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        write(tmp_path, name, SLOW)
    one = Importer(lambda: importlib.import_module("one"))
    wait_until(lambda: gate.inside == ["one"], "the first load imports")
    two = Importer(lambda: importlib.import_module("two"))
    wait_until(lambda: two.waits_in("_wait"), "the second load waits for its turn")
    three = Importer(lambda: importlib.import_module("three"), nullcontext())
    wait_until(lambda: gate.inside == ["one", "three"], "a thread that loads nothing imports")
    gate.opened.set()
    assert [each.result().__name__ for each in (one, two, three)] == ["one", "two", "three"]
    assert gate.most == 2


def test_load_that_waits_for_its_turn_holds_no_module_that_another_load_needs(gate: Gate, tmp_path: Path) -> None:
    """A turn that began inside a finder or a loader of modules would begin with the lock of the module held."""
    write(tmp_path, "first", SLOW + "import second\n")
    write(tmp_path, "second", "import threading\nmade_by = threading.get_ident()\n")
    one = Importer(lambda: importlib.import_module("first"))
    wait_until(lambda: gate.inside == ["first"], "the first load imports")
    two = Importer(lambda: importlib.import_module("second"))
    wait_until(lambda: two.waits_in("_wait"), "the second load waits for its turn")
    gate.opened.set()
    assert one.result().second is two.result()
    assert two.value.made_by == one.thread.ident


def test_import_of_a_load_brings_no_collection_and_leaves_the_collector_alone(gate: Gate, tmp_path: Path) -> None:
    write(tmp_path, "large", LARGE)
    before = gc.get_threshold()
    with importing_in_turns():
        large = run("import large", "large")()
    assert large.collections == 0
    assert gc.get_threshold() == before


def test_import_that_hangs_holds_the_others_up_for_a_bounded_time() -> None:
    turns, entered, over = Turns(max_wait=0.05), threading.Event(), threading.Event()

    def hang() -> None:
        with turns, turns:
            entered.set()
            assert over.wait(60)

    hanging = threading.Thread(target=hang)
    hanging.start()
    assert entered.wait(60)
    with turns:
        over.set()
        hanging.join()
        with turns:
            assert turns._holder == threading.get_ident()
    assert turns._holder is None


def test_package_that_takes_its_own_place_and_asks_the_first_module_is_imported(gate: Gate, tmp_path: Path) -> None:
    """As those of ``cryptography`` do: what neither has does not exist."""
    write(tmp_path, "asks_back", ASKS_BACK)
    assert Importer(run("from asks_back import color", "color")).result() == "red"
    assert isinstance(Importer(run("from asks_back import shape", "shape")).result(), ImportError)


def test_import_in_a_turn_gives_the_interpreter_lock_away_ten_times_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "inner_turn.py").write_text("import sys\ninterval = sys.getswitchinterval()\n")
    code = "import sys\nimport inner_turn\nintervals = inner_turn.interval, sys.getswitchinterval()\n"
    (tmp_path / "outer_turn.py").write_text(code)
    before = sys.getswitchinterval()
    with giving_way(), importing_in_turns():
        intervals = importlib.import_module("outer_turn").intervals
    assert intervals == pytest.approx((SWITCH_SECONDS, SWITCH_SECONDS))
    assert before > 5 * SWITCH_SECONDS
    assert sys.getswitchinterval() == before
