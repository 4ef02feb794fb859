"""Which requests are logged, what a record holds, and that a log never stands in the way of a request."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.tfrecord import read_records
from tfs_lite.request_log.files import finished
from tfs_lite.request_log.sampler import NO_LOG, RequestLogs
from tfs_lite.request_log.writer import LogLimits
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.servers.process import wait_until

THREAD = "tfs-request-log"


def predict_log(text: str) -> Callable[[], Message]:
    def make() -> Message:
        log = messages.PredictionLog()
        log.predict_log.request.model_spec.name = text
        return log

    return make


class House:
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
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.logs.close()
    assert not running()


def running() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


def test_a_record_holds_the_request_and_what_is_known_about_it(house: House) -> None:
    house.configure(ranker=house.settings("log", attributes=3, per_task_sampling_configs=({"dc": "x"},)))
    house.offer("ranker", "hello", version=7)
    house.logs.close()
    (log,) = logs_in(*finished(str(house.directory / "log")))
    assert log.WhichOneof("log_type") == "predict_log"
    assert log.predict_log.request.model_spec.name == "hello"
    metadata = log.log_metadata
    spec = metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("ranker", 7, "serving_default")
    assert metadata.timestamp_secs == int(house.clock.time())
    assert (metadata.sampling_config.sampling_rate, metadata.sampling_config.attributes) == (1.0, 3)
    assert metadata.sampling_config.per_task_sampling_configs[0].dc == "x"
    assert house.results == {("ranker", "OK"): 1}


def test_the_time_of_a_record_is_that_of_the_answer(house: House) -> None:
    house.configure(m=house.settings())
    answered = int(house.clock.time())
    house.offer("m", "x")
    house.wait_open("m", "x")
    house.clock.advance(100.0)
    house.logs.close()
    assert logs_in(*finished(str(house.directory / "m")))[0].log_metadata.timestamp_secs == answered


def test_a_model_without_settings_costs_no_chance_and_is_never_made(tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("nobody asked for this")

    logs = RequestLogs(VirtualClock(), chance=never)
    other = House(tmp_path).settings(rate=0.0)
    for configured in ({}, {"m": other}):
        logs.configure(configured)
        logs.offer(ServableId("m", 1), "serving_default", 1, never)
        NO_LOG.offer(ServableId("m", 1), "serving_default", 1, never)
        assert not running()
    logs.close()
    assert list(tmp_path.iterdir()) == []


def test_so_many_are_logged_as_the_rate_says(tmp_path: Path) -> None:
    house = House(tmp_path, chances=[0.0, 0.24, 0.25, 0.9, 0.1])
    house.configure(m=house.settings(rate=0.25))
    house.offer("m", "a", "b", "c", "d", "e")
    house.logs.close()
    assert house.finished() == ["a", "b", "e"]


def test_a_rate_for_this_server_overrides_the_common_one(house: House) -> None:
    house.configure(m=house.settings(rate=0.0, per_task_sampling_configs=({"sampling_rate": 1.0},)))
    house.offer("m", "x")
    house.logs.close()
    assert house.finished() == ["x"]


def test_models_with_equal_settings_share_a_file_and_others_do_not(house: House) -> None:
    house.configure(a=house.settings("both"), b=house.settings("both"), c=house.settings("alone"))
    for model in "abc":
        house.offer(model, model)
    house.logs.close()
    assert (house.finished("both"), house.finished("alone")) == (["a", "b"], ["c"])
    assert len(finished(str(house.directory / "both"))) == 1
    assert house.results == {(model, "OK"): 1 for model in "abc"}


def test_records_reach_the_open_file_within_a_second(house: House) -> None:
    house.configure(m=house.settings())
    house.offer("m", "a")
    first = house.wait_open("m", "a")
    house.offer("m", "b")
    assert house.wait_open("m", "a", "b") == first


def test_an_old_file_is_finished_although_nothing_comes(house: House) -> None:
    house.configure(m=house.settings())
    house.offer("m", "a")
    house.wait_open("m", "a")

    def later() -> bool:
        house.clock.advance(3600.0)  # again and again: the log's thread may not have set its alarm yet
        return house.finished("m") == ["a"]

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


def hold(house: House, gate: Gate, size: int = 1) -> None:
    """The log's thread is busy until the gate opens."""
    house.logs.offer(ServableId("m", 1), "serving_default", size, gate.make)
    assert gate.reached.wait(60)


def test_what_does_not_fit_into_the_queue_is_dropped_and_counted(tmp_path: Path, gate: Gate) -> None:
    house = House(tmp_path, LogLimits(queued_records=3))
    house.configure(m=house.settings(), n=house.settings("n"))
    hold(house, gate)
    house.offer("m", "1", "2", "3", "4", "5")
    house.offer("n", "6")
    assert house.results == {("m", "RESOURCE_EXHAUSTED"): 2, ("n", "RESOURCE_EXHAUSTED"): 1}
    gate.open.set()
    house.wait_open("m", "gate", "1", "2", "3")
    house.offer("m", "7")
    house.logs.close()
    assert house.finished() == ["gate", "1", "2", "3", "7"]


def test_bytes_that_wait_are_bounded_the_record_in_work_included(tmp_path: Path, gate: Gate) -> None:
    house = House(tmp_path, LogLimits(queued_bytes=100))
    house.configure(m=house.settings())
    house.offer("m", "larger than all", size=101)
    hold(house, gate, size=60)
    house.offer("m", "too large", size=41)
    house.offer("m", "fits", size=40)
    house.offer("m", "too much", size=1)
    assert house.results == {("m", "RESOURCE_EXHAUSTED"): 3}
    gate.open.set()
    house.wait_open("m", "gate", "fits")
    house.offer("m", "all", size=100)
    house.logs.close()
    assert house.finished() == ["gate", "fits", "all"]


def test_a_record_that_cannot_be_made_is_counted_and_told_once(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Message:
        raise ValueError("nonsense")

    house.configure(m=house.settings())
    house.offer("m", "a")
    for _ in range(3):
        house.logs.offer(ServableId("m", 1), "serving_default", 1, fail)
    house.offer("m", "b")
    house.logs.close()
    assert house.finished() == ["a", "b"]
    assert house.results == {("m", "OK"): 2, ("m", "INTERNAL"): 3}
    assert caplog.text.count("a record of model m could not be made") == 1
    assert "nonsense" in caplog.text


def test_a_log_whose_directory_went_disturbs_no_other_log(house: House) -> None:
    (house.directory / "sub").mkdir()
    house.configure(m=house.settings(), sick=house.settings("sub/m"))
    (house.directory / "sub").rmdir()
    house.offer("sick", "lost")
    wait_until(lambda: house.clock.advance(1.0) or house.results["sick", "UNAVAILABLE"] == 1, "it was noticed")
    house.configure(m=house.settings(), sick=house.settings("sub/m"), more=house.settings("more"))
    house.offer("m", "fine")
    house.logs.close()
    assert house.finished() == ["fine"]
    assert house.results == {("sick", "UNAVAILABLE"): 1, ("m", "OK"): 1}


def test_a_counter_that_fails_fails_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(model: str, code: str) -> None:
        raise RuntimeError("no counter")

    logs = RequestLogs(VirtualClock(), fail, LogLimits(queued_bytes=10))
    logs.configure({"m": House(tmp_path).settings()})
    logs.offer(ServableId("m", 1), "", 11, predict_log("dropped"))
    logs.offer(ServableId("m", 1), "", 1, predict_log("kept"))
    logs.close()
    assert [read(path) for path in finished(str(tmp_path / "m"))] == [["kept"]]
    assert "no counter" in caplog.text


def test_a_bad_entry_changes_nothing(house: House) -> None:
    house.configure(m=house.settings())
    bad: Mapping[str, LoggingSettings] = {"n": house.settings("n"), "bad": house.settings("missing/m")}
    for attempt in (house.logs.check, house.logs.configure):
        with pytest.raises(ServingError, match=r"^model bad: .*filename_prefix is .* there is no such dir") as raised:
            attempt(bad)
        assert raised.value.code is StatusCode.FAILED_PRECONDITION
    house.offer("n", "x")
    house.offer("m", "a")
    house.wait_open("m", "a")
    assert list(house.directory.glob("n*")) == []


def test_a_log_that_stays_keeps_its_file_also_when_its_directory_looks_bad_now(house: House) -> None:
    (house.directory / "sub").mkdir()
    house.configure(m=house.settings("sub/m"))
    house.offer("m", "a")
    wait_until(lambda: house.clock.advance(0.5) or house.results["m", "OK"] == 1, "the record is written")
    (house.directory / "sub").rename(house.directory / "moved")
    house.configure(m=house.settings("sub/m"), n=house.settings("n"))
    (house.directory / "moved").rename(house.directory / "sub")
    house.offer("m", "b")
    house.logs.close()
    (path,) = finished(str(house.directory / "sub" / "m"))
    assert read(path) == ["a", "b"]


def test_the_file_of_a_model_that_goes_is_finished_after_what_is_queued(house: House, gate: Gate) -> None:
    house.configure(m=house.settings(), n=house.settings("n"))
    hold(house, gate)
    house.offer("m", "a", "b")
    house.configure(n=house.settings("n"))
    house.offer("m", "too late")
    gate.open.set()
    house.wait_finished("m", "gate", "a", "b")
    house.offer("n", "still there")
    house.wait_open("n", "still there")


def test_a_new_rate_begins_a_new_file(house: House) -> None:
    house.configure(m=house.settings(rate=1.0))
    house.offer("m", "a")
    house.configure(m=house.settings(rate=0.5))
    house.offer("m", "b")
    house.logs.close()
    rates = [
        [log.log_metadata.sampling_config.sampling_rate for log in logs_in(path)]
        for path in finished(str(house.directory / "m"))
    ]
    assert sorted(rates) == [[0.5], [1.0]]


def test_a_shared_log_goes_on_while_one_model_needs_it(house: House) -> None:
    house.configure(a=house.settings(), b=house.settings())
    house.offer("a", "a")
    path = house.wait_open("m", "a")
    house.configure(b=house.settings())
    house.offer("b", "b")
    assert house.wait_open("m", "a", "b") == path


def test_the_end_writes_what_is_queued_and_takes_no_more(house: House) -> None:
    house.configure(m=house.settings(), n=house.settings("n"))
    texts = [str(number) for number in range(50)]
    house.offer("m", *texts)
    house.offer("n", "n")
    house.logs.close()
    assert (house.finished(), house.finished("n")) == (texts, ["n"])
    house.logs.close()
    house.configure(m=house.settings())
    house.offer("m", "too late")
    assert house.results == {("m", "OK"): 50, ("n", "OK"): 1}


def test_the_end_does_not_wait_for_ever(tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    house = House(tmp_path, replace(LogLimits(), drain_seconds=0.01))
    house.configure(m=house.settings())
    hold(house, gate)
    house.offer("m", "a", "b")
    house.logs.close()
    assert house.results == {("m", "UNAVAILABLE"): 2}
    assert "2 records are dropped at the end" in caplog.text
    gate.open.set()
    wait_until(lambda: not running(), "the thread ends")
    assert house.finished() == ["gate"]


def test_logs_that_never_wrote_end_too(tmp_path: Path) -> None:
    for configured in ({}, {"m": House(tmp_path).settings()}):
        logs = RequestLogs(VirtualClock())
        logs.configure(configured)
        logs.close()
        assert not running()


def test_offers_from_many_threads_are_all_accounted_for(tmp_path: Path) -> None:
    house = House(tmp_path, LogLimits(queued_records=20, file_bytes=3000, files=1000))
    house.configure(m=house.settings())
    threads = [
        threading.Thread(target=house.offer, args=("m", *(f"{who}-{number}" for number in range(100))))
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    house.logs.close()
    texts = house.finished()
    assert len(set(texts)) == len(texts) == house.results["m", "OK"]
    assert house.results["m", "OK"] + house.results["m", "RESOURCE_EXHAUSTED"] == 400
