"""What holds a version back at its load, what is only told, and what is not looked at."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.servers.logs import Log, examples_log, log_file, multi_log, predict_log
from tfs_lite.adapters.opening import OpenRequest, VersionFiles
from tfs_lite.adapters.replay.gate import MAX_RECORDS, ReplayGate
from tfs_lite.config.guard import GuardSettings
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import Model, Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import CLASSIFY_METHOD, REGRESS_METHOD, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, not_found
from tfs_lite.protocols.messages import TensorProto
from tfs_lite.protocols.tensorflow.tensor_proto import encode
from tfs_lite.serving.opening.device_resources import may_be_retried
from tfs_lite.testing.lifecycle.servables import OwnClockServable

BATCH = SymbolicDim("batch")
X = TensorSpec("x", DataType.FLOAT, (BATCH, 2))
ROWS = np.array([[1, 2]], np.float32)
SUM = np.array([3], np.float32)


class Sums(Model):
    """Adds up rows, and ``add`` to that; waits for ``gate`` first."""

    platform = "test"

    def __init__(self, y: str = "y") -> None:
        self.add = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.runs = 0
        number = TensorSpec(y, DataType.FLOAT, (BATCH,))
        scores = TensorSpec("scores", DataType.FLOAT, (BATCH, 2))
        self._signatures = {
            "serving_default": Signature((X,), (number,)),
            "label": Signature((X,), (scores,), CLASSIFY_METHOD),
            "value": Signature((X,), (TensorSpec("outputs", DataType.FLOAT, (BATCH,)),), REGRESS_METHOD),
        }

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
        self.gate.wait(30)
        self.runs += 1
        (name,) = self._signatures[signature].output_names
        x = inputs["x"]
        return {name: x + np.float32(self.add) if name == "scores" else x.sum(1) + np.float32(self.add)}

    def close(self) -> None:
        pass


def recorded(y: object = SUM, version: int | None = 7) -> Log:
    """A Predict of ``ROWS`` and its answer."""
    log = predict_log({"x": ROWS})
    spec = {} if version is None else {"version": {"value": version}}
    outputs = {} if y is None else {"y": encode(np.asarray(y))}
    return {"predict_log": {**log["predict_log"], "response": {"model_spec": spec, "outputs": outputs}}}


@dataclass
class GateFixture:
    """Version 8 below ``base`` at the gate. ``old`` answers now, with number ``old_version``."""

    base: Path
    model: Sums = field(default_factory=Sums)
    old: Sums | None = field(default_factory=Sums)
    old_version: int = 7
    options: dict[str, Any] = field(default_factory=dict)

    def record(self, *logs: Log, inside: bool = False, data: bytes = b"") -> Path:
        path = self.base / "8" / "assets.extra" / "replay.tfrecord" if inside else self.base / "replay.tfrecord"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data or log_file(*logs))
        return path

    def __call__(self, **guard: Any) -> Status | None:
        """The status that holds it back; None: it goes on."""
        (self.base / "8").mkdir(exist_ok=True)
        files = VersionFiles(str(self.base / "8"), frozenset())
        settings = ModelSettings(guard=GuardSettings(**guard))
        servable = OwnClockServable([self.model], ServableId("m", 8))
        try:
            ReplayGate(self._current, **self.options)(
                servable, OpenRequest(servable_id(8), files, "cpu", False, settings)
            )
        except ServingError as error:
            return error.status
        finally:
            self.model.gate.set()
            servable.close()
        return None

    def held_back(self, **guard: Any) -> str:
        status = self(**guard)
        assert status is not None, "it went on"
        assert (status.code, status.reason) == (StatusCode.FAILED_PRECONDITION, Reason.HELD_BACK)
        assert not may_be_retried(status)
        return status.message.removeprefix("held back: ")

    @contextlib.contextmanager
    def _current(self, name: str) -> Iterator[ServableHandle]:
        if self.old is None:
            raise not_found(f"Servable not found for request: {name}")
        servable: Servable = OwnClockServable([self.old], servable_id(self.old_version))
        try:
            with ServableHandle(servable_id(self.old_version), servable, lambda: None) as handle:
                yield handle
        finally:
            servable.close()


def servable_id(version: int) -> ServableId:
    return ServableId("m", version)


@pytest.fixture
def gate(tmp_path: Path) -> GateFixture:
    return GateFixture(tmp_path)


def test_nothing_is_compared_without_a_recording_or_a_trial(gate: GateFixture) -> None:
    gate.model = Sums("z")
    assert gate() is None
    assert gate.model.runs == 0


def test_without_trial_and_recording_the_log_says_what_clients_will_miss(
    gate: GateFixture, caplog: pytest.LogCaptureFixture
) -> None:
    gate.model = Sums("z")
    assert gate(signature="any") is None
    assert not caplog.records
    assert gate() is None
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        "model m version 8: requests that version 7 answers may fail: signature serving_default: output y is gone; "
        "version 7 gives it; tfs-lite rollback m goes back to version 7",
    )
    caplog.clear()
    gate.model, gate.old_version = Sums(), 7
    assert gate() is None
    assert not caplog.records


def test_with_a_trial_signatures_are_compared_without_a_recording(gate: GateFixture) -> None:
    gate.model, gate.options = Sums("z"), {"bake_seconds": 600}
    message = "signature serving_default: output y is gone; version 7 gives it"
    assert gate.held_back() == message
    assert gate(bake_seconds=0) is None
    assert gate(signature="any") is None
    gate.options = {}
    assert gate.held_back(bake_seconds=600) == message


@pytest.mark.parametrize("old_version", [9, None])
def test_first_loads_and_lower_versions_may_have_another_signature(gate: GateFixture, old_version: int | None) -> None:
    gate.model, gate.options = Sums("z"), {"bake_seconds": 600}
    if old_version is None:
        gate.old = None
    else:
        gate.old_version = old_version
    assert gate() is None


def test_a_version_that_an_operator_accepts_is_not_looked_at(gate: GateFixture) -> None:
    gate.record(recorded(y=[4.0]))
    gate.model, gate.options = Sums("z"), {"accepted": lambda id: id == servable_id(8)}
    assert gate() is None
    assert gate.model.runs == 0


def test_recorded_answers_that_have_changed_are_told(gate: GateFixture, caplog: pytest.LogCaptureFixture) -> None:
    gate.record(recorded(), recorded(y=np.float32([4])))
    with caplog.at_level(logging.INFO):
        assert gate() is None
    assert caplog.messages[-1].startswith(
        "model m version 8: 2 recorded requests were run: 1 same, 1 changed, 0 failed; the largest change: "
        "replay.tfrecord: record 2 (serving_default, answered by version 7): output y: "
        "1 of 1 values differ, the most: recorded 4, got 3 ("
    )
    assert caplog.records[-1].levelno == logging.WARNING


def test_more_changed_answers_than_the_model_may_have_hold_it_back(gate: GateFixture) -> None:
    gate.record(recorded(), recorded(y=np.float32([4])), recorded(y=None))
    assert gate(max_changed=0.5) is None
    assert gate.held_back(max_changed=0.4) == (
        "1 of 2 recorded answers changed, at most 0.4 of them may (guard.max_changed); replay.tfrecord: "
        "record 2 (serving_default, answered by version 7): output y: 1 of 1 values differ, the most: recorded 4, got 3"
    )
    assert gate(max_changed=0.4, atol=1.0) is None


def test_a_request_that_is_refused_holds_it_back(gate: GateFixture) -> None:
    gate.record(recorded(version=None), predict_log({"x": np.zeros((1, 3), np.float32)}))
    message = gate.held_back()
    assert message.startswith("replay.tfrecord: record 2 (serving_default): INVALID_ARGUMENT: input x has size 3")
    assert message.endswith("; 1 of 2 records failed")


def test_numbers_that_are_none_hold_it_back_without_a_recorded_answer_too(gate: GateFixture) -> None:
    gate.model.add = math.nan
    tasks = [("label", CLASSIFY_METHOD), ("value", REGRESS_METHOD)]
    for log in (predict_log({"x": ROWS}), multi_log(tasks, [{"x": [1.0, 2.0]}])):
        gate.record(log)
        assert gate.held_back().endswith("values are NaN or infinite; 1 of 1 records failed")


def test_classify_and_regress_are_compared(gate: GateFixture) -> None:
    label, value = (
        examples_log(kind, [{"x": [1.0, 2.0]}], key) for kind, key in (("classify", "label"), ("regress", "value"))
    )
    classes = [{"label": "", "score": 1.0}, {"label": "", "score": 2.0}]
    label["classify_log"]["response"] = {"result": {"classifications": [{"classes": classes}]}}
    value["regress_log"]["response"] = {"result": {"regressions": [{"value": 3.0}]}}
    gate.record(label, value)
    assert gate(max_changed=0) is None
    gate.model.add = 1.0
    assert gate.held_back(max_changed=0).startswith("2 of 2 recorded answers changed")
    label["classify_log"]["response"]["result"]["classifications"][0]["classes"].pop()
    gate.record(label)
    assert gate.held_back() == (
        "replay.tfrecord: record 1 (label): output scores: recorded float[1,1], got float[1,2]; 1 of 1 records failed"
    )


def test_the_files_beside_the_versions_and_in_the_version_count_together(gate: GateFixture) -> None:
    gate.record(recorded())
    gate.record(recorded(y=np.float64([3])), inside=True)
    assert gate.held_back() == (
        "assets.extra/replay.tfrecord: record 1 (serving_default, answered by version 7): output y: "
        "recorded double[1], got float[1]; 1 of 2 records failed"
    )
    assert gate(replay=False) is None


def test_records_beyond_the_bounds_are_counted_and_not_run(gate: GateFixture, caplog: pytest.LogCaptureFixture) -> None:
    gate.record(*[recorded()] * (MAX_RECORDS + 5))
    with caplog.at_level(logging.INFO):
        assert gate() is None
    assert gate.model.runs == MAX_RECORDS
    assert "1000 same, 0 changed, 0 failed, and 5 more were not (at most 1000 run, for 120 s)" in caplog.messages[-1]
    gate.options = {"monotonic": itertools.count(0.0, 50.0).__next__}
    with caplog.at_level(logging.INFO):
        assert gate() is None
    assert "2 recorded requests were run: 2 same, 0 changed, 0 failed, and 1003 more were not" in caplog.messages[-1]


def test_a_request_that_is_not_answered_holds_it_back_unless_the_time_for_all_is_over(
    gate: GateFixture, caplog: pytest.LogCaptureFixture
) -> None:
    gate.record(recorded())
    gate.model.gate.clear()
    gate.options = {"seconds_per_run": 0.05}
    assert "DEADLINE_EXCEEDED: the model did not answer within 0.05 s" in gate.held_back()
    gate.model.gate.clear()
    gate.options = {"seconds": 0.05}
    with caplog.at_level(logging.INFO):
        assert gate() is None
    assert "0 failed, and 1 more were not" in caplog.messages[-1]
    assert caplog.records[-1].levelno == logging.WARNING


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(b"not a file of records at all"), "replay.tfrecord: record 1"),
        (lambda path: path.write_bytes(path.read_bytes()[:-8]), "replay.tfrecord: record 2"),
        (
            lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")),
            "replay.tfrecord has to be a plain file",
        ),
        (lambda path: (path.unlink(), path.mkdir()), "replay.tfrecord has to be a plain file beside the versions"),
        (
            lambda path: path.write_bytes(log_file({"session_run_log": {}})),
            "replay.tfrecord: record 1: Unsupported log",
        ),
        (lambda path: path.write_bytes(log_file(_broken_answer())), "replay.tfrecord: record 1: "),
    ],
)
def test_a_file_that_is_no_recording_holds_it_back(
    gate: GateFixture, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(gate.record(recorded(), recorded()))
    assert gate.held_back().startswith(message)


def _broken_answer() -> Log:
    log = recorded()
    log["predict_log"]["response"]["outputs"] = {"y": TensorProto(dtype=1, tensor_content=b"123")}
    return log


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_tried_again(gate: GateFixture) -> None:
    gate.record(recorded()).chmod(0)
    status = gate()
    assert status is not None
    assert status.code is StatusCode.UNAVAILABLE
    assert may_be_retried(status)
