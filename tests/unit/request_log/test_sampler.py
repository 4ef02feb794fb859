"""Which requests are logged, what a record holds, and that a log never stands in the way of a request."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tfrecord import read_records
from tfs_lite.request_log.files import finished
from tfs_lite.request_log.sampler import NO_LOG, RequestLogs
from tfs_lite.request_log.writer import LogLimits
from tfs_lite.testing.lifecycle.clock import VirtualClock

THREAD = "tfs-request-log"
CONFIGURE_AS_NOBODY = """
import os, sys
from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.core.clock import SystemClock
from tfs_lite.request_log.sampler import RequestLogs
if os.geteuid() == 0:
    os.setuid(65534)
try:
    RequestLogs(SystemClock()).configure({"m": LoggingSettings(log_collector_config={"filename_prefix": sys.argv[1]})})
except Exception as error:
    print(error.code.name, error)
"""
"""A process of its own, because tests may run as root."""


def predict_log(text: str) -> Callable[[], Message]:
    def make() -> Message:
        log = messages.PredictionLog()
        log.predict_log.request.model_spec.name = text
        return log

    return make


class LogFixture:
    """Logs of models in a directory, in virtual time."""

    def __init__(self, directory: Path, limits: LogLimits | None = None, chances: Iterable[float] = ()) -> None:
        self.directory = directory
        self.clock = VirtualClock()
        self.results: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()  # guards results
        numbers = itertools.chain(chances, itertools.repeat(0.0))
        self.logs = RequestLogs(self.clock, self._on_result, limits, lambda: next(numbers))

    def _on_result(self, model: str, code: str) -> None:
        with self._lock:
            self.results[model, code] += 1

    def settings(self, prefix: str = "m", rate: float = 1.0, **sampling: Any) -> LoggingSettings:
        return LoggingSettings(
            log_collector_config={"filename_prefix": str(self.directory / prefix)},
            sampling_config={"sampling_rate": rate, **sampling},
        )

    def configure(self, **models: LoggingSettings) -> None:
        self.logs.configure(models)

    def offer(self, model: str, *texts: str, version: int = 1, size: int = 1) -> None:
        for text in texts:
            self.logs.offer(ServableId(model, version), "serving_default", size, predict_log(text))

    def wait_open(self, prefix: str, *texts: str) -> str:
        """Moves the time until the open file holds these records; returns its path."""

        def written() -> str:
            self.clock.advance(0.5)
            paths = [str(path) for path in self.directory.glob(f"{prefix}.*.open")]
            return paths[0] if len(paths) == 1 and read(paths[0]) == list(texts) else ""

        return wait_until(written, f"the open file of {prefix} holds {texts}")

    def wait_finished(self, prefix: str, *texts: str) -> None:
        wait_until(lambda: self.finished(prefix) == list(texts), f"{prefix} holds {texts}")

    def finished(self, prefix: str = "m") -> list[str]:
        """What stands in the finished files."""
        return [text for path in finished(str(self.directory / prefix)) for text in read(path)]


def logs_in(path: str) -> list[Message]:
    with open(path, "rb") as file:
        return [messages.PredictionLog.FromString(data) for data in read_records(file, 1 << 20)]


def read(path: str) -> list[str]:
    return [log.predict_log.request.model_spec.name for log in logs_in(path)]


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[LogFixture]:
    fixture = LogFixture(tmp_path)
    yield fixture
    fixture.logs.close()
    assert not running()


def running() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


def test_a_record_holds_the_request_what_is_known_about_it_and_the_time_of_the_answer(fixture: LogFixture) -> None:
    fixture.configure(ranker=fixture.settings("log", attributes=3, per_task_sampling_configs=({"dc": "x"},)))
    answered = int(fixture.clock.time())
    fixture.offer("ranker", "hello", version=7)
    fixture.wait_open("log", "hello")
    fixture.clock.advance(100.0)
    fixture.logs.close()
    (log,) = logs_in(*finished(str(fixture.directory / "log")))
    assert log.WhichOneof("log_type") == "predict_log"
    assert log.predict_log.request.model_spec.name == "hello"
    metadata = log.log_metadata
    spec = metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("ranker", 7, "serving_default")
    assert metadata.timestamp_secs == answered
    assert (metadata.sampling_config.sampling_rate, metadata.sampling_config.attributes) == (1.0, 3)
    assert metadata.sampling_config.per_task_sampling_configs[0].dc == "x"
    assert fixture.results == {("ranker", "OK"): 1}


def test_a_model_without_settings_costs_no_chance_and_is_never_made(tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("nobody asked for this")

    logs = RequestLogs(VirtualClock(), chance=never)
    other = LogFixture(tmp_path).settings(rate=0.0)
    for configured in ({}, {"m": other}):
        logs.configure(configured)
        logs.offer(ServableId("m", 1), "serving_default", 1, never)
        NO_LOG.offer(ServableId("m", 1), "serving_default", 1, never)
        assert not running()
    logs.close()
    assert list(tmp_path.iterdir()) == []


def test_so_many_are_logged_as_the_rate_says(tmp_path: Path) -> None:
    fixture = LogFixture(tmp_path, chances=[0.0, 0.24, 0.25, 0.9, 0.1])
    fixture.configure(m=fixture.settings(rate=0.25))
    fixture.offer("m", "a", "b", "c", "d", "e")
    fixture.logs.close()
    assert fixture.finished() == ["a", "b", "e"]


def test_a_rate_for_this_server_overrides_the_common_one(fixture: LogFixture) -> None:
    fixture.configure(m=fixture.settings(rate=0.0, per_task_sampling_configs=({"sampling_rate": 1.0},)))
    fixture.offer("m", "x")
    fixture.logs.close()
    assert fixture.finished() == ["x"]


def test_models_with_equal_settings_share_a_file_and_others_do_not(fixture: LogFixture) -> None:
    fixture.configure(a=fixture.settings("both"), b=fixture.settings("both"), c=fixture.settings("alone"))
    for model in "abc":
        fixture.offer(model, model)
    fixture.logs.close()
    assert (fixture.finished("both"), fixture.finished("alone")) == (["a", "b"], ["c"])
    assert len(finished(str(fixture.directory / "both"))) == 1
    assert fixture.results == {(model, "OK"): 1 for model in "abc"}


def test_an_old_file_is_finished_although_nothing_comes(fixture: LogFixture) -> None:
    fixture.configure(m=fixture.settings())
    fixture.offer("m", "a")
    fixture.wait_open("m", "a")

    def later() -> bool:
        fixture.clock.advance(3600.0)  # again and again: the log's thread may not have set its alarm yet
        return fixture.finished("m") == ["a"]

    wait_until(later, "the file is finished")


class Gate:
    """A record whose making waits."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def make(self) -> Message:
        self.reached.set()
        assert self.open.wait(60)
        return predict_log("gate")()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def hold(fixture: LogFixture, gate: Gate, size: int = 1) -> None:
    """The log's thread is busy until the gate opens."""
    fixture.logs.offer(ServableId("m", 1), "serving_default", size, gate.make)
    assert gate.reached.wait(60)


def test_what_does_not_fit_into_the_queue_is_dropped_and_counted(tmp_path: Path, gate: Gate) -> None:
    fixture = LogFixture(tmp_path, LogLimits(queued_records=3))
    fixture.configure(m=fixture.settings(), n=fixture.settings("n"))
    hold(fixture, gate)
    fixture.offer("m", "1", "2", "3", "4", "5")
    fixture.offer("n", "6")
    assert fixture.results == {("m", "RESOURCE_EXHAUSTED"): 2, ("n", "RESOURCE_EXHAUSTED"): 1}
    gate.open.set()
    fixture.wait_open("m", "gate", "1", "2", "3")
    fixture.offer("m", "7")
    fixture.logs.close()
    assert fixture.finished() == ["gate", "1", "2", "3", "7"]


def test_bytes_that_wait_are_bounded_the_record_in_work_included(tmp_path: Path, gate: Gate) -> None:
    fixture = LogFixture(tmp_path, LogLimits(queued_bytes=100))
    fixture.configure(m=fixture.settings())
    fixture.offer("m", "larger than all", size=101)
    hold(fixture, gate, size=60)
    fixture.offer("m", "too large", size=41)
    fixture.offer("m", "fits", size=40)
    fixture.offer("m", "too much", size=1)
    assert fixture.results == {("m", "RESOURCE_EXHAUSTED"): 3}
    gate.open.set()
    fixture.wait_open("m", "gate", "fits")
    fixture.offer("m", "all", size=100)
    fixture.logs.close()
    assert fixture.finished() == ["gate", "fits", "all"]


def test_a_record_that_cannot_be_made_is_counted_and_told_once(
    fixture: LogFixture, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Message:
        raise ValueError("nonsense")

    fixture.configure(m=fixture.settings())
    fixture.offer("m", "a")
    for _ in range(3):
        fixture.logs.offer(ServableId("m", 1), "serving_default", 1, fail)
    fixture.offer("m", "b")
    fixture.logs.close()
    assert fixture.finished() == ["a", "b"]
    assert fixture.results == {("m", "OK"): 2, ("m", "INTERNAL"): 3}
    assert caplog.text.count("a record of model m could not be made") == 1
    assert "nonsense" in caplog.text


def test_a_log_whose_directory_went_disturbs_no_other_log(fixture: LogFixture) -> None:
    (fixture.directory / "sub").mkdir()
    fixture.configure(m=fixture.settings(), sick=fixture.settings("sub/m"))
    (fixture.directory / "sub").rmdir()
    fixture.offer("sick", "lost")
    wait_until(lambda: fixture.clock.advance(1.0) or fixture.results["sick", "UNAVAILABLE"] == 1, "it was noticed")
    fixture.configure(m=fixture.settings(), sick=fixture.settings("sub/m"), more=fixture.settings("more"))
    fixture.offer("m", "fine")
    fixture.logs.close()
    assert fixture.finished() == ["fine"]
    assert fixture.results == {("sick", "UNAVAILABLE"): 1, ("m", "OK"): 1}


def test_a_counter_that_fails_fails_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(model: str, code: str) -> None:
        raise RuntimeError("no counter")

    logs = RequestLogs(VirtualClock(), fail, LogLimits(queued_bytes=10))
    logs.configure({"m": LogFixture(tmp_path).settings()})
    logs.offer(ServableId("m", 1), "", 11, predict_log("dropped"))
    logs.offer(ServableId("m", 1), "", 1, predict_log("kept"))
    logs.close()
    assert [read(path) for path in finished(str(tmp_path / "m"))] == [["kept"]]
    assert "no counter" in caplog.text


def test_a_bad_entry_changes_nothing(fixture: LogFixture) -> None:
    fixture.configure(m=fixture.settings())
    bad: Mapping[str, LoggingSettings] = {"n": fixture.settings("n"), "bad": fixture.settings("missing/m")}
    for attempt in (fixture.logs.check, fixture.logs.configure):
        message = refusal(attempt, bad, code=StatusCode.FAILED_PRECONDITION)
        assert re.search(r"^model bad: .*filename_prefix is .* there is no such dir", message)
    fixture.offer("n", "x")
    fixture.offer("m", "a")
    fixture.wait_open("m", "a")
    assert list(fixture.directory.glob("n*")) == []


def test_a_log_that_stays_keeps_its_file_also_when_its_directory_looks_bad_now(fixture: LogFixture) -> None:
    (fixture.directory / "sub").mkdir()
    fixture.configure(m=fixture.settings("sub/m"))
    fixture.offer("m", "a")
    wait_until(lambda: fixture.clock.advance(0.5) or fixture.results["m", "OK"] == 1, "the record is written")
    (fixture.directory / "sub").rename(fixture.directory / "moved")
    fixture.configure(m=fixture.settings("sub/m"), n=fixture.settings("n"))
    (fixture.directory / "moved").rename(fixture.directory / "sub")
    fixture.offer("m", "b")
    fixture.logs.close()
    (path,) = finished(str(fixture.directory / "sub" / "m"))
    assert read(path) == ["a", "b"]


def test_the_file_of_a_model_that_goes_is_finished_after_what_is_queued(fixture: LogFixture, gate: Gate) -> None:
    fixture.configure(m=fixture.settings(), n=fixture.settings("n"))
    hold(fixture, gate)
    fixture.offer("m", "a", "b")
    fixture.configure(n=fixture.settings("n"))
    fixture.offer("m", "too late")
    gate.open.set()
    fixture.wait_finished("m", "gate", "a", "b")
    fixture.offer("n", "still there")
    fixture.wait_open("n", "still there")


def test_a_new_rate_begins_a_new_file(fixture: LogFixture) -> None:
    fixture.configure(m=fixture.settings(rate=1.0))
    fixture.offer("m", "a")
    fixture.configure(m=fixture.settings(rate=0.5))
    fixture.offer("m", "b")
    fixture.logs.close()
    rates = [
        [log.log_metadata.sampling_config.sampling_rate for log in logs_in(path)]
        for path in finished(str(fixture.directory / "m"))
    ]
    assert sorted(rates) == [[0.5], [1.0]]


def test_a_shared_log_goes_on_while_one_model_needs_it(fixture: LogFixture) -> None:
    fixture.configure(a=fixture.settings(), b=fixture.settings())
    fixture.offer("a", "a")
    path = fixture.wait_open("m", "a")
    fixture.configure(b=fixture.settings())
    fixture.offer("b", "b")
    assert fixture.wait_open("m", "a", "b") == path


def test_the_end_writes_what_is_queued_and_takes_no_more(fixture: LogFixture) -> None:
    fixture.configure(m=fixture.settings(), n=fixture.settings("n"))
    texts = [str(number) for number in range(50)]
    fixture.offer("m", *texts)
    fixture.offer("n", "n")
    fixture.logs.close()
    assert (fixture.finished(), fixture.finished("n")) == (texts, ["n"])
    fixture.logs.close()
    fixture.configure(m=fixture.settings())
    fixture.offer("m", "too late")
    assert fixture.results == {("m", "OK"): 50, ("n", "OK"): 1}


def test_the_end_does_not_wait_for_ever(tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    fixture = LogFixture(tmp_path, replace(LogLimits(), drain_seconds=0.01))
    fixture.configure(m=fixture.settings())
    hold(fixture, gate)
    fixture.offer("m", "a", "b")
    fixture.logs.close()
    assert fixture.results == {("m", "UNAVAILABLE"): 2}
    assert "2 records are dropped at the end" in caplog.text
    gate.open.set()
    wait_until(lambda: not running(), "the thread ends")
    assert fixture.finished() == ["gate"]


def test_logs_that_never_wrote_end_too(tmp_path: Path) -> None:
    for configured in ({}, {"m": LogFixture(tmp_path).settings()}):
        logs = RequestLogs(VirtualClock())
        logs.configure(configured)
        logs.close()
        assert not running()


def test_offers_from_many_threads_are_all_accounted_for(tmp_path: Path) -> None:
    fixture = LogFixture(tmp_path, LogLimits(queued_records=20, file_bytes=3000, files=1000))
    fixture.configure(m=fixture.settings())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda who: fixture.offer("m", *(f"{who}-{number}" for number in range(100))), range(4)))
    fixture.logs.close()
    texts = fixture.finished()
    assert len(set(texts)) == len(texts) == fixture.results["m", "OK"]
    assert fixture.results["m", "OK"] + fixture.results["m", "RESOURCE_EXHAUSTED"] == 400


def test_a_directory_that_may_not_be_written_to_is_refused() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        script = [sys.executable, "-c", CONFIGURE_AS_NOBODY, f"{directory}/m"]
        run = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.startswith("FAILED_PRECONDITION model m: ")
    assert run.stdout.endswith("but the server may not write there\n")
