"""What keeps a load from being felt, counted and not timed: no collection in an unload, and pieces that give way."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import httpx
import pytest
import torch

from tests.support.platforms.tagged import TAGGED, Write
from tests.support.servers.in_process import serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import wait_until
from tests.support.threads import LINUX, niceness, of_low_priority
from tfs_lite.adapters import memory
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.adapters.pytorch.libtorch import LARGE_BYTES
from tfs_lite.core import yielding
from tfs_lite.core.servable import ServableId, VersionState
from tfs_lite.operations.history.memory import KEPT_BYTES
from tfs_lite.workers import priorities

WITH_A_THREAD = """
import threading

class Model:
    def __init__(self, context):
        self.closing = threading.Event()
        threading.Thread(target=self.closing.wait, name="of-the-model", daemon=True).start()

    def predict(self, inputs):
        return {"y": inputs["x"]}

    def close(self):
        self.closing.set()
"""
PUSHES = 4
MEGABYTES = 2 * KEPT_BYTES / 1e6


class Pieces:
    """Stands in for the clock of a :class:`~tfs_lite.core.yielding.Yielder`: each piece of work takes a tick."""

    def __init__(self) -> None:
        self.given_away = 0
        self._now = 0.0

    def perf_counter(self) -> float:
        self._now += yielding.INTERVAL_SECONDS
        return self._now

    def sleep(self, seconds: float) -> None:
        self.given_away += 1


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    found = Pieces()
    monkeypatch.setattr(yielding, "time", found)
    return found


def collections(url: str) -> float:
    page = httpx.get(f"{url}/metrics").text
    return sum(float(line.split()[1]) for line in page.splitlines() if line.startswith("tfs_lite_memory_collections_"))


def test_unload_of_a_large_version_needs_no_collection(tmp_path: Path) -> None:
    write = TAGGED["pytorch_export"].writer(tmp_path, MEGABYTES)
    base = tmp_path / "models" / "m"
    base.mkdir(parents=True)

    def push(version: int) -> None:
        write(version, tmp_path / "aside").rename(base / str(version))

    push(1)
    with serving(tmp_path / "models", model_repository=str(tmp_path / "models")) as served:

        def swap_to(version: int) -> None:
            push(version)
            served.wait_states({**dict.fromkeys(range(1, version), VersionState.END), version: VersionState.AVAILABLE})

        swap_to(2)  # the first unload counts the libraries that the first load has imported as left behind
        before = collections(served.url)
        for version in range(3, PUSHES + 3):
            swap_to(version)
        assert collections(served.url) == before


def writers_of(kinds: list[str], root: Path) -> dict[str, Write]:
    """Those of models below ``models``, which have one version each."""
    found = dict[str, Write]()
    for kind in kinds:
        (root / "scratch" / kind).mkdir(parents=True)
        (root / "models" / kind).mkdir(parents=True)
        found[kind] = TAGGED[kind].writer(root / "scratch" / kind, 0)
        found[kind](1, root / "models" / kind)
    return found


@LINUX
def test_loads_leave_no_thread_of_low_priority_behind(tmp_path: Path) -> None:
    usual = niceness()
    models = tmp_path / "models"
    writers = writers_of([kind for kind, tagged in TAGGED.items() if not tagged.lacks()], tmp_path)
    write_python_version(models / "threads", 1, WITH_A_THREAD)
    options = {"trusted_model_base_paths": (f"{models}/*",), "ready_requires_all_models": True}
    with serving(models, model_repository=str(models), **options) as served:
        is_available = served.server.core.states.is_available
        for kind, write in writers.items():
            write(2, models / kind)
            wait_until(lambda: is_available(ServableId(kind, 2)), f"version 2 of {kind} is available")  # noqa: B023
        assert "of-the-model" in {thread.name for thread in threading.enumerate()}
        wait_until(lambda: not of_low_priority(usual), "all threads have the usual priority", timeout=20)


@LINUX
def test_processes_of_models_have_their_own_priority(tmp_path: Path) -> None:
    usual = niceness()
    writers_of(["pytorch_export"], tmp_path)
    with serving(tmp_path / "models", model_repository=str(tmp_path / "models"), worker="process") as served:
        starter = served.server.core.opener._supervisor.pid
        (worker,) = served.server.core.view.workers("pytorch_export")
        found = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (starter, worker.pid) if pid is not None]
    assert found == [usual, max(usual, priorities.NICENESS)]


def test_load_and_unload_of_a_program_give_the_lock_away_with_each_weight(tmp_path: Path, pieces: Pieces) -> None:
    import tfs_lite

    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
    version = tfs_lite.save(module, tmp_path, example_inputs=(torch.zeros(2, 8),))
    model = open_exported(OpenRequest(ServableId("m", 1), read_version(str(version)), "cpu", False))
    assert pieces.given_away > len(list(module.parameters()))
    before = pieces.given_away
    model.close()
    assert pieces.given_away - before >= len(list(module.parameters()))


def test_weights_are_freed_one_by_one(tmp_path: Path, pieces: Pieces) -> None:
    held = [torch.zeros(3) for _ in range(7)]
    memory.free_in_turn(held)
    assert (held, pieces.given_away) == ([], 7)


def test_large_script_gets_a_process_and_a_small_one_a_thread(tmp_path: Path) -> None:
    tagged = TAGGED["pytorch_libtorch"]
    for name, megabytes in (("small", 1.0), ("large", 1.2 * LARGE_BYTES / 1e6)):
        tagged.writer(tmp_path, megabytes)(1, tmp_path / "models" / name)
    with serving(tmp_path / "models", model_repository=str(tmp_path / "models")) as served:
        found = {name: list(served.server.core.view.workers(name)) for name in ("small", "large")}
    assert {name: worker.kind for name, (worker,) in found.items()} == {"small": "thread", "large": "process"}
    assert "torch would hold up the requests of all models" in found["large"][0].reason
