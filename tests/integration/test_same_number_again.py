"""The same version number with other files, or at another path, is another state of the version: with the flags that a
server has by default, it is loaded beside what serves and swapped, every time, and no answer mixes two states."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.servers.in_process import ROW, TIMEOUT, ServerFixture, entry, serving
from tests.support.servers.models import TaggedArchives, write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.client import Client
from tfs_lite.core.history import EventKind
from tfs_lite.core.servable import ModelRef, ServableId, VersionState
from tfs_lite.core.status import ServingError
from tfs_lite.serving.options import ServerOptions

DEFAULTS = {
    name: getattr(ServerOptions(), name) for name in ("version_quiet_period_seconds", "file_system_poll_wait_seconds")
}
SOURCE = """
import pathlib
import time

TAG = float((pathlib.Path(__file__).parent / "tag.txt").read_text())


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + TAG}
"""


class Asked:
    """Which tags a model answers with, while it is asked without a pause; errors are kept, too."""

    def __init__(self, served: ServerFixture, model: str = "m") -> None:
        self.seen: list[float] = []
        self.faults: list[BaseException] = []
        self._served, self._model = served, model
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asked:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT)

    def _ask(self) -> None:
        with Client(self._served.target, timeout=TIMEOUT) as client:
            while not self._stop.is_set():
                try:
                    self.seen.append(tag_of(client, self._model))
                except ServingError as error:
                    self.faults.append(error)

    def settled(self) -> set[float]:
        """What the next hundred answers say."""
        begin = len(self.seen)
        wait_until(lambda: len(self.seen) > begin + 100, "a hundred more answers", TIMEOUT)
        return set(self.seen[begin + 1 :])


def tag_of(client: Client, model: str = "m") -> float:
    (tag,) = set((np.asarray(client.predict(model, {"x": ROW}).outputs["y"]) - ROW).ravel().tolist())
    return float(tag)


def wait_tag(served: ServerFixture, tag: float, model: str = "m") -> None:
    wait_until(lambda: tag_of(served.client, model) == tag, f"{model} answers {tag:g}", TIMEOUT)


def kinds(served: ServerFixture, model: str = "m") -> list[EventKind]:
    return [event.kind for event in served.server.core.history.of_model(model)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


def overwritten(archives: TaggedArchives, base: Path, tag: int) -> None:
    archives.write(tag, base / "1" / "model.pt2")


def removed_and_copied(archives: TaggedArchives, base: Path, tag: int) -> None:
    new = archives.write_version(tag, base.parent / "made")
    shutil.rmtree(base / "1")
    shutil.copytree(new, base / "1")


def moved_twice(archives: TaggedArchives, base: Path, tag: int) -> None:
    new = archives.write_version(tag, base.parent / "made")
    os.rename(base / "1", base.parent / f"old-{tag}")
    os.rename(new, base / "1")


WAYS = [overwritten, removed_and_copied, moved_twice]


@pytest.mark.parametrize("way", [removed_and_copied, moved_twice])
def test_the_same_number_again_is_served(
    root: Path, archives: TaggedArchives, way: Callable[[TaggedArchives, Path, int], None]
) -> None:
    _again(root, archives, way, times=1)


@pytest.mark.load
@pytest.mark.parametrize("way", WAYS)
def test_the_same_number_again_is_served_ten_times_in_a_row(
    root: Path, archives: TaggedArchives, way: Callable[[TaggedArchives, Path, int], None]
) -> None:
    _again(root, archives, way, times=10)


def _again(root: Path, archives: TaggedArchives, way: Callable[..., None], times: int) -> None:
    base = root / "m"
    archives.write_version(1, base)
    with serving(root, model_name="m", model_base_path=str(base), **DEFAULTS) as served:
        for tag in range(2, 2 + times):
            way(archives, base, tag)
            wait_until(lambda: _answers(served, tag), f"it answers {tag}", TIMEOUT)  # noqa: B023
            wait_until(lambda: str(served.status()[1].status) == "OK", "its status is fine", TIMEOUT)
        assert served.states() == {1: VersionState.AVAILABLE}


def _answers(served: ServerFixture, tag: int) -> bool:
    try:
        return tag_of(served.client) == tag
    except ServingError:  # the only version was removed, and came back
        return False


def test_overwritten_files_are_swapped_without_a_failed_request_and_shown(root: Path, archives: TaggedArchives) -> None:
    base = root / "m"
    archives.write_version(1, base)
    with serving(root, model_name="m", model_base_path=str(base), **DEFAULTS) as served, Asked(served) as asked:
        overwritten(archives, base, 2)
        wait_tag(served, 2)
        assert asked.settled() == {2}
        assert asked.faults == []
        assert list(dict.fromkeys(asked.seen)) == [1, 2]
        wait_until(lambda: EventKind.FILES_CHANGED in kinds(served), "the event tells", TIMEOUT)
        (base / "1" / "model.pt2").write_bytes(b"PK\x03\x04 and no more")
        problem = wait_until(lambda: str(served.status()[1].status).removeprefix("OK"), "its status says so", TIMEOUT)
        assert "it goes on with the files of before: " in problem
        wait_until(lambda: "truncated" in str(served.status()[1].status), "and why", TIMEOUT)
        assert asked.settled() == {2}
        overwritten(archives, base, 3)
        wait_tag(served, 3)
        wait_until(lambda: str(served.status()[1].status) == "OK", "its status is fine", TIMEOUT)
        assert asked.faults == []


def test_a_reload_with_another_base_path_and_the_same_number_serves_what_lies_there(
    root: Path, archives: TaggedArchives
) -> None:
    for tag, name in enumerate(("a", "b"), 1):
        archives.write_version(1, root / name / "made")
        archives.write(tag, root / name / "made" / "1" / "model.pt2")
    with serving(root, model_name="m", model_base_path=str(root / "a" / "made"), **DEFAULTS) as served:
        with Asked(served) as asked:
            served.reload(entry("m", path="ROOT/b/made"))
            wait_tag(served, 2)
            assert asked.settled() == {2}
            assert asked.faults == []
        shutil.rmtree(root / "a")
        wait_until(lambda: str(served.status()[1].status) == "OK", "its status is fine", TIMEOUT)
        assert tag_of(served.client) == 2


def test_a_polled_config_file_with_another_base_path_serves_what_lies_there(
    root: Path, archives: TaggedArchives
) -> None:
    for tag, name in enumerate(("a", "b"), 1):
        archives.write_version(1, root / name)
        archives.write(tag, root / name / "1" / "model.pt2")
    file = root / "models.config"

    def write(name: str) -> None:
        file.write_text(f'model_config_list {{ config {{ name: "m" base_path: "{root / name}" }} }}')

    write("a")
    fields = {"model_config_file": str(file), "model_config_file_poll_wait_seconds": 1.0, **DEFAULTS}
    with serving(root, **fields) as served, Asked(served) as asked:
        write("b")
        wait_tag(served, 2)
        assert asked.settled() == {2}
        assert asked.faults == []


def test_a_link_that_is_switched_serves_the_same_number_of_the_other_directory(
    root: Path, archives: TaggedArchives
) -> None:
    for tag, name in enumerate(("a", "b"), 1):
        archives.write_version(1, root / name)
        archives.write(tag, root / name / "1" / "model.pt2")
    (root / "current").symlink_to("a")
    base = root / "current"
    with serving(root, model_name="m", model_base_path=str(base), **DEFAULTS) as served, Asked(served) as asked:
        (root / ".next").symlink_to("b")
        os.replace(root / ".next", base)
        wait_tag(served, 2)
        assert asked.settled() == {2}
        assert asked.faults == []


# Processes.


def write_workers(base: Path, count: int = 2) -> None:
    (write_python_version(base, 1, SOURCE) / "tag.txt").write_text("1")
    with (base / "1" / "config.pbtxt").open("a") as config:
        config.write(f'instance_group [{{ count: {count} worker: "process" }}]\n')


def kill_one(served: ServerFixture) -> int:
    """Kills a process of the model, and returns its id."""
    pid = wait_until(
        lambda: next((w.pid for w in served.server.core.view.workers() if w.up), None), "one is up", TIMEOUT
    )
    os.kill(pid, signal.SIGKILL)
    return pid


def failures(served: ServerFixture) -> list[str]:
    return [worker.failure for worker in served.server.core.view.workers() if not worker.up and worker.failure]


def test_a_process_that_is_started_again_opens_no_other_files_than_the_version_was_loaded_from(root: Path) -> None:
    """In the control mode none, in which nothing follows the disk."""
    base = root / "m"
    write_workers(base)
    fields = {"trusted_model_base_paths": (f"{root}/*",), "model_control_mode": "none", **DEFAULTS}
    with serving(root, model_name="m", model_base_path=str(base), **fields) as served, Asked(served) as asked:
        (base / "1" / "tag.txt").write_text("2")
        kill_one(served)
        failure = wait_until(lambda: failures(served), "it is not started again", TIMEOUT)[0]
        assert "its files have changed since it was loaded (tag.txt)" in failure
        assert asked.settled() == {1}
        link = next(
            link for link in explain(served)["because"] if link["cause"] in ("WORKER_DOWN", "WORKER_RESTARTING")
        )
        assert "one version gives the answers of one model" in link["fix"]
        shutil.rmtree(base / "1")
        assert asked.settled() == {1}
        assert set(asked.seen) == {1}


def test_processes_that_die_between_overwrites_never_mix_two_models(root: Path) -> None:
    base = root / "m"
    write_workers(base)
    fields = {"trusted_model_base_paths": (f"{root}/*",), **DEFAULTS}
    with serving(root, model_name="m", model_base_path=str(base), **fields) as served, Asked(served) as asked:
        for tag in (2, 3):
            (base / "1" / "tag.txt").write_text(str(tag))
            kill_one(served)
            wait_until(lambda: asked.seen and asked.seen[-1] == tag, f"it answers {tag}", TIMEOUT)  # noqa: B023
            assert asked.settled() == {tag}
            wait_until(lambda: all(w.up for w in served.server.core.view.workers()), "all its processes run", TIMEOUT)
        assert list(dict.fromkeys(asked.seen)) == [1, 2, 3]
        assert sorted(asked.seen) == asked.seen


def test_an_instance_that_is_added_opens_no_other_files(root: Path) -> None:
    base = root / "m"
    write_workers(base, count=1)
    fields = {"trusted_model_base_paths": (f"{root}/*",), "model_control_mode": "none", **DEFAULTS}
    with serving(root, model_name="m", model_base_path=str(base), **fields) as served:
        core = served.server.core
        with core.handle(ModelRef("m")) as handle:
            settings = core.renewal.settings_of(handle.servable)
        more = settings.model_copy(
            update={"instance_group": (settings.instance_group[0].model_copy(update={"count": 2}),)}
        )
        (base / "1" / "tag.txt").write_text("2")
        with pytest.raises(ServingError, match="its files have changed since it was loaded"):
            core.renewal.resize(ServableId("m", 1), more)
        assert tag_of(served.client) == 1
        (base / "1" / "tag.txt").write_text("1")  # the same words, and yet another file
        with pytest.raises(ServingError, match="its files have changed since it was loaded"):
            core.renewal.resize(ServableId("m", 1), more)


def explain(served: ServerFixture) -> dict[str, Any]:
    with urllib.request.urlopen(f"{served.url}/v1/models/m:explain", timeout=TIMEOUT) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


# What is kept for a version: answers, counts, names.


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
response_cache { enable: true }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling { step [ { model_name: "m" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }
"""


def write_ensemble(base: Path) -> None:
    (base / "1").mkdir(parents=True)
    (base / "config.pbtxt").write_text(ENSEMBLE)


def post(served: ServerFixture, path: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{served.url}{path}", b"{}"), timeout=TIMEOUT).close()


def stats(served: ServerFixture, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{served.url}/v2/models/{model}/stats", timeout=TIMEOUT) as answer:
        found: dict[str, Any] = json.load(answer)["model_stats"][0]
    return found


def test_an_ensemble_gives_no_kept_answer_of_a_model_that_was_unloaded_and_loaded_from_other_files(
    root: Path, archives: TaggedArchives
) -> None:
    archives.write_version(1, root / "m")
    write_ensemble(root / "e")
    fields = {"model_control_mode": "explicit", "load_model": ("*",), "cache_config": "local,size=1048576"}
    with serving(root, model_repository=str(root), **fields, **DEFAULTS) as served:
        assert [tag_of(served.client, "e") for _ in range(2)] == [1, 1]
        assert stats(served, "e")["inference_stats"]["cache_hit"]["count"] == 1
        post(served, "/v2/repository/models/m/unload")
        wait_until(lambda: served.states("m") == {1: VersionState.END}, "it is unloaded", TIMEOUT)
        overwritten(archives, root / "m", 2)
        post(served, "/v2/repository/models/m/load")
        wait_tag(served, 2)
        assert tag_of(served.client, "e") == 2


LABELLED = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"NAME": inputs["x"]}
"""
LABELLED_CONFIG = """
platform: "python"
max_batch_size: BATCH
response_cache { enable: true }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "NAME" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
"""


def write_labelled(root: Path, name: str, batch: int) -> None:
    """A version 1 below ``root`` in a directory of its own, whose output has this name, as its labels have."""
    directory = root / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(LABELLED.replace("NAME", name))
    config = LABELLED_CONFIG.replace("NAME", name).replace("BATCH", str(batch))
    (directory / "config.pbtxt").write_text(config)
    (directory / "labels.txt").write_text("\n".join(f"{name}{number}" for number in range(3)))


def get_json(served: ServerFixture, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{served.url}{path}", data), timeout=TIMEOUT) as answer:
        return json.load(answer)


def best_class(served: ServerFixture, output: str, shape: list[int]) -> list[str]:
    x = {"name": "x", "datatype": "FP32", "shape": shape, "data": [0, 5, 1]}
    wanted = {"name": output, "parameters": {"classification": 1}}
    found = get_json(served, "/v2/models/m/infer", {"inputs": [x], "outputs": [wanted]})
    return list(found["outputs"][0]["data"])


def test_labels_statistics_answers_and_metadata_of_a_version_at_another_path_are_those_of_what_lies_there(
    root: Path,
) -> None:
    write_labelled(root, "a", 8)
    write_labelled(root, "b", 0)
    fields = {"trusted_model_base_paths": (f"{root}/*",), "cache_config": "local,size=1048576", **DEFAULTS}
    with serving(root, model_name="m", model_base_path=str(root / "a"), **fields) as served:
        for _ in range(3):
            assert best_class(served, "a", [1, 3]) == ["5.000000:1:a1"]
        before = stats(served, "m")
        assert (before["inference_count"], before["inference_stats"]["cache_hit"]["count"]) == (1, 2)
        served.reload(entry("m", path="ROOT/b"))
        names = lambda: [each["name"] for each in get_json(served, "/v2/models/m")["outputs"]]  # noqa: E731
        wait_until(lambda: names() == ["b"], "the version is that of the other path", TIMEOUT)
        after = wait_until(lambda: (found := stats(served, "m"))["last_inference"] == 0 and found, "zeros", TIMEOUT)
        assert (after["inference_count"], after["execution_count"]) == (0, 0)
        assert (after["inference_stats"]["success"]["count"], after["inference_stats"]["cache_hit"]["count"]) == (0, 0)
        assert best_class(served, "b", [3]) == ["5.000000:1:b1"]
        assert get_json(served, "/v2/models/m/config")["max_batch_size"] == 0
        tensors = get_json(served, "/v1/models/m/metadata")["metadata"]["signature_def"]["signature_def"]
        assert list(tensors["serving_default"]["outputs"]) == ["b"]
        assert stats(served, "m")["inference_count"] == 1
