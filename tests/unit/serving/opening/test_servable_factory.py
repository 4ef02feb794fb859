"""How models run: whose settings count, and what requests are sent to in the end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.adapters.opening import OpenRequest, VersionFiles
from tfs_lite.config.batching import VERSION_FILE
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.model import BatchReport, Model, PredictCall, WorkerStatus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, Tensor, TensorSpec
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen
from tfs_lite.serving.opening.servable_factory import (
    BatchingOptions,
    ServableEnvironment,
    ServableFactory,
    worker_states,
)
from tfs_lite.serving.options import ServerOptions
from tfs_lite.testing.lifecycle.clock import VirtualClock

ID = ServableId("m", 7)
PATIENCE = 30


def signed(most: int | None = None) -> Signature:
    batch = SymbolicDim("batch", most)
    return Signature((TensorSpec("x", DataType.FLOAT, (batch,)),), (TensorSpec("y", DataType.FLOAT, (batch,)),))


def request(directory: Path | str = "/nowhere", **settings: Any) -> OpenRequest:
    files = VersionFiles(str(directory), frozenset())
    return OpenRequest(ID, files, "cpu", False, ModelSettings.model_validate(settings))


def plan(**options: Any) -> BatchingOptions:
    return BatchingOptions.read(ServerOptions(**options))


def settings(asked: OpenRequest | None = None, most: int | None = None, **options: Any) -> BatchSettings:
    return plan(**options).settings(asked or request(), [signed(most)])


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file of batching parameters."""
    path = tmp_path / "batching.pbtxt"
    path.write_text(
        "max_batch_size { value: 32 }\nbatch_timeout_micros { value: 2000 }\nnum_batch_threads { value: 3 }"
    )
    return path


def test_without_a_word_about_batching_every_call_runs_alone() -> None:
    assert settings() == BatchSettings(max_queued_calls=1000)
    assert not settings(request(max_batch_size=8), 8).merges
    assert settings(max_queued_requests=5).max_queued_calls == 5
    assert plan().threads == 1


def test_enable_batching_alone_means_the_defaults() -> None:
    found = settings(enable_batching=True)
    assert (found.max_batch_size, found.max_delay, found.send) == (1000, 0.0, SendWhen.EXPECT)
    assert found.max_queued_calls == 1000
    assert plan(enable_batching=True).threads == 1


def test_file_says_sizes_delay_and_threads(written: Path) -> None:
    options = {"enable_batching": True, "batching_parameters_file": str(written)}
    found = settings(**options)
    assert (found.max_batch_size, found.max_delay, found.send) == (32, 0.002, SendWhen.WAIT)
    assert plan(**options).threads == 3


@pytest.mark.parametrize(
    ("own", "most", "expected"), [(0, None, 1000), (8, None, 8), (0, 16, 16), (8, 16, 8), (32, 16, 16)]
)
def test_runs_are_no_larger_than_the_model_bears(own: int, most: int | None, expected: int) -> None:
    assert settings(request(max_batch_size=own), most, enable_batching=True).max_batch_size == expected


def test_smallest_signature_counts() -> None:
    found = plan(enable_batching=True).settings(request(), [signed(64), signed(4), signed()])
    assert found.max_batch_size == 4


@pytest.mark.parametrize("enable", [False, True], ids=["off", "on"])
def test_config_of_the_model_goes_before_the_server(enable: bool) -> None:
    asked = request(max_batch_size=8, dynamic_batching={"preferred_batch_size": [4]})
    found = settings(asked, enable_batching=enable)
    assert (found.max_batch_size, found.preferred) == (8, (4,))


def test_greedy_batches_do_not_wait_for_what_may_come() -> None:
    own = request(max_batch_size=8, dynamic_batching={})
    for asked in (request(), own):
        assert settings(asked, enable_batching=True).send is SendWhen.EXPECT
        assert settings(asked, enable_batching=True, send_batches="greedy").send is SendWhen.GREEDY
    waiting = request(max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 100})
    assert settings(waiting, send_batches="greedy").send is SendWhen.WAIT


def test_with_settings_per_model_only_versions_with_a_file_are_batched(tmp_path: Path, written: Path) -> None:
    options = {
        "enable_batching": True,
        "enable_per_model_batching_parameters": True,
        "batching_parameters_file": str(written),
    }
    assert not settings(request(tmp_path), **options).merges
    (tmp_path / VERSION_FILE).write_text("max_batch_size { value: 6 }\nnum_batch_threads { value: 9 }")
    assert settings(request(tmp_path), **options).max_batch_size == 6
    assert settings(request(tmp_path), 5, **options).max_batch_size == 5
    assert plan(**options).threads == 3
    own = request(tmp_path, max_batch_size=2, dynamic_batching={})
    assert settings(own, **options).max_batch_size == 2


def test_file_of_a_version_counts_only_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / VERSION_FILE).write_text("max_batch_size { value: 6 }")
    assert settings(request(tmp_path), enable_batching=True).max_batch_size == 1000
    assert not settings(request(tmp_path)).merges


def test_mistake_in_the_file_of_a_version_is_told(tmp_path: Path) -> None:
    (tmp_path / VERSION_FILE).write_text("max_batch_size { value: none }")
    message = refusal(settings, request(tmp_path), enable_batching=True, enable_per_model_batching_parameters=True)
    assert VERSION_FILE in message
    assert str(tmp_path.parent) not in message


@pytest.mark.parametrize(
    "option", [{"batching_parameters_file": "x"}, {"enable_per_model_batching_parameters": True}], ids=str
)
def test_settings_of_batching_without_batching_are_refused(option: dict[str, Any]) -> None:
    assert "is set without setting enable_batching to true" in refusal(plan, **option)


def test_file_that_is_not_there_is_told_when_the_server_starts(tmp_path: Path) -> None:
    refusal(plan, enable_batching=True, batching_parameters_file=str(tmp_path / "none"), code=StatusCode.NOT_FOUND)


class Doubler(Model):
    """Bears any number of threads; holds its first run until the gate is open."""

    platform = "test"
    signatures: ClassVar[Mapping[str, Signature]] = {DEFAULT_SIGNATURE: signed(8)}
    concurrency = 16
    has_item_steps = False
    worker = WorkerStatus()

    def __init__(self, items: bool = False) -> None:
        self.has_item_steps = items
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.runs: list[int] = []
        self.closed = False

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        x = np.asarray(inputs["x"])
        self.runs.append(len(x))
        return {"y": 2 * x}

    def preprocess(self, signature: str, inputs: Mapping[str, Tensor], deadline: float | None) -> dict[str, Tensor]:
        return {"x": np.asarray(inputs["x"]) + 100}

    def close(self) -> None:
        self.closed = True


class Answers:
    def __init__(self) -> None:
        self.results: dict[int, Mapping[str, Tensor] | Status] = {}
        self._came = threading.Semaphore(0)

    def call(self, number: int) -> PredictCall:
        return PredictCall(
            DEFAULT_SIGNATURE, {"x": np.full(1, number, np.float32)}, (), None, lambda result: self._add(number, result)
        )

    def _add(self, number: int, result: Mapping[str, Tensor] | Status) -> None:
        self.results[number] = result
        self._came.release()

    def wait(self, count: int) -> dict[int, float]:
        """The first number of ``count`` more answers."""
        for _ in range(count):
            assert self._came.acquire(timeout=PATIENCE)
        return {
            number: float(np.asarray(result["y"])[0])
            for number, result in self.results.items()
            if not isinstance(result, Status)
        }


class House:
    """Reports of batches and of single runs, apart."""

    def __init__(self, **options: Any) -> None:
        self.batches: list[BatchReport] = []
        self.runs: list[BatchReport] = []
        environment = ServableEnvironment(on_batch=self.batches.append, on_run=self.runs.append)
        self.make = ServableFactory(plan(**options), VirtualClock(), environment)


@pytest.mark.parametrize("enable", [False, True], ids=["alone", "batched"])
def test_runs_are_told_to_whom_they_concern(enable: bool) -> None:
    fixture, answers = House(enable_batching=enable), Answers()
    servable = fixture.make([Doubler()], request())
    servable.submit(answers.call(3))
    assert answers.wait(1) == {3: 6.0}
    servable.close()
    told, other = (fixture.batches, fixture.runs) if enable else (fixture.runs, fixture.batches)
    assert [(report.id, report.rows) for report in told] == [(ID, 1)]
    assert other == []


def test_calls_that_wait_share_a_run_where_batching_is_on() -> None:
    fixture, answers, model = House(enable_batching=True, send_batches="greedy"), Answers(), Doubler()
    servable = fixture.make([model], request())
    model.gate.clear()
    servable.submit(answers.call(0))
    assert model.entered.acquire(timeout=PATIENCE)
    for number in range(1, 12):
        servable.submit(answers.call(number))
    assert (servable.pending, servable.pending_rows) == (11, 11)
    model.gate.set()
    assert answers.wait(12) == {number: 2.0 * number for number in range(12)}
    servable.close()
    assert model.runs == [1, 8, 3]
    assert model.closed


def test_threads_of_the_file_run_one_model_at_once(written: Path) -> None:
    fixture, answers, model = House(enable_batching=True, batching_parameters_file=str(written)), Answers(), Doubler()
    before = set(threading.enumerate())
    servable = fixture.make([model], request())
    assert len(set(threading.enumerate()) - before) == 3
    servable.close()
    assert answers.results == {}


@pytest.mark.parametrize("enable", [False, True], ids=["alone", "batched"])
def test_model_with_item_steps_gets_them_around_its_runs(enable: bool) -> None:
    fixture, answers, model = House(enable_batching=enable, send_batches="greedy"), Answers(), Doubler(items=True)
    servable = fixture.make([model], request())
    for number in range(3):
        servable.submit(answers.call(number))
    assert answers.wait(3) == {number: 2.0 * (number + 100) for number in range(3)}
    assert list(servable.models) == [model]
    servable.close()
    assert model.closed


def test_queue_is_bounded_as_the_options_say() -> None:
    fixture, answers, model = House(max_queued_requests=2), Answers(), Doubler()
    servable = fixture.make([model], request())
    model.gate.clear()
    servable.submit(answers.call(0))
    assert model.entered.acquire(timeout=PATIENCE)
    for number in range(1, 4):
        servable.submit(answers.call(number))
    refused = answers.results[3]
    assert isinstance(refused, Status)
    assert refused.code is StatusCode.UNAVAILABLE
    model.gate.set()
    answers.wait(4)
    servable.close()


def test_models_stay_with_the_caller_when_the_settings_are_wrong(tmp_path: Path) -> None:
    (tmp_path / VERSION_FILE).write_text("max_batch_size { value: 0 }")
    fixture, model = House(enable_batching=True, enable_per_model_batching_parameters=True), Doubler()
    before = set(threading.enumerate())
    refusal(fixture.make, [model], request(tmp_path))
    assert not model.closed
    assert set(threading.enumerate()) == before


OLDEST = {"sequence_batching": {"oldest": {"max_candidate_sequences": 4}}, "max_batch_size": 4}


@pytest.mark.parametrize(
    ("items", "settings"),
    [
        (False, {}),
        (True, {}),
        (False, {"sequence_batching": {}}),
        (False, OLDEST),
        (False, {"model_transaction_policy": {"decoupled": True}}),
    ],
    ids=["alone", "with item steps", "direct sequences", "oldest sequences", "decoupled"],
)
def test_models_stay_with_the_caller_and_no_thread_is_left_where_the_system_refuses_any(
    items: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture, started, bearable, start = House(), list[threading.Thread](), [99], threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if len(started) == bearable[0]:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    fixture.make([Doubler(items), Doubler(items)], request(**settings)).close()
    wanted = len(started)
    assert wanted >= 2
    for bearable[0] in range(wanted):
        started.clear()
        models = [Doubler(items), Doubler(items)]
        refusal(fixture.make, models, request(**settings), code=StatusCode.UNAVAILABLE)
        assert [thread for thread in started if thread.is_alive()] == []
        assert not any(model.closed for model in models)


def test_workers_of_every_instance_are_shown() -> None:
    models = [Doubler(), Doubler()]
    models[1].worker = WorkerStatus("process", False, 4711, 3)
    servable = House().make(models, request())
    assert list(worker_states(ID, servable)) == [
        WorkerState(ID, 0, "thread", True, None, 0),
        WorkerState(ID, 1, "process", False, 4711, 3),
    ]
    servable.close()


def test_a_model_that_merges_calls_is_batched_unless_something_else_is_asked_for() -> None:
    assert plan().settings(request(), [signed()], merges=True).merges
    assert not plan().settings(request(), [signed()]).merges
    asked = plan(enable_batching=True)
    assert asked.settings(request(), [signed()], merges=True) == asked.settings(request(), [signed()])


def test_rows_of_batches_are_known_before_the_model_is_opened() -> None:
    assert plan(enable_batching=True).batch_rows(request(max_batch_size=8)) == (1, 2, 4, 8)
    assert plan().batch_rows(request(max_batch_size=4, dynamic_batching={})) == (1, 2, 4)
    assert plan().batch_rows(request(max_batch_size=8)) == (1,)
    assert plan().batch_rows(request(max_batch_size=4, sequence_batching={})) == (1, 2, 4)
    assert plan().batch_rows(request(sequence_batching={})) == (1,)
