"""What a version is asked before it becomes available, and how that may end."""

from __future__ import annotations

import os
import threading
from typing import ClassVar

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.logs import examples_log, log_file, predict_log, write_warmup
from tests.support.servers.platforms import SETTINGS, write_plain
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.opening import OpenRequest, VersionFiles
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.replay import files as recordings
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.adapters.warmup import Warmup
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.signatures import WarmupRequest
from tfs_lite.core.model import Model
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import REGRESS_METHOD, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import OK, ServingError, StatusCode
from tfs_lite.protocols.tfrecord import frame
from tfs_lite.testing.lifecycle.servables import OwnClockServable, run_alone

ID = ServableId("m", 7)
FILE = "assets.extra/tf_serving_warmup_requests"
MARKER = "Please verify your warmup data is in TFRecord format"
BATCH = SymbolicDim("batch")
X = TensorSpec("x", DataType.FLOAT, (BATCH, 2))


class RowSums(Model):
    """Adds up rows, and remembers the signatures that it was asked for."""

    platform = "test"

    signatures: ClassVar = {
        "serving_default": Signature((X,), (TensorSpec("y", DataType.FLOAT, (BATCH,)),)),
        "value": Signature((X,), (TensorSpec("outputs", DataType.FLOAT, (BATCH,)),), REGRESS_METHOD),
    }

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure: ServingError | None = None

    def run(self, signature, inputs, outputs):
        self.asked.append(signature)
        if self.failure is not None:
            raise self.failure
        (name,) = self.signatures[signature].output_names
        return {name: inputs["x"].sum(1)}

    def close(self) -> None:
        pass


@pytest.fixture
def model() -> RowSums:
    return RowSums()


@pytest.fixture
def servable(model):
    found = OwnClockServable([model], ID)
    yield found
    found.close()


@pytest.fixture
def reports() -> list:
    return []


@pytest.fixture
def warm_up(servable, reports, tmp_path):
    """Warms the model up with the bytes of a file and the rows of a config."""

    def run(content=None, *rows: WarmupRequest, **options) -> None:
        if content is not None:
            write_warmup(tmp_path).write_bytes(content)
        files = VersionFiles(str(tmp_path), frozenset())
        request = OpenRequest(ID, files, "cpu", False, ModelSettings(warmup=rows))
        Warmup(on_report=reports.append, **options)(servable, request)

    return run


@pytest.fixture
def refused(warm_up, reports):
    """The message of a warm-up that fails; the error has to be reported as well."""

    def run(content=None, *rows: WarmupRequest, code=StatusCode.INVALID_ARGUMENT, **options) -> str:
        with pytest.raises(ServingError) as caught:
            warm_up(content, *rows, **options)
        assert caught.value.code is code
        assert reports[-1].status == caught.value.status
        return str(caught.value)

    return run


def predict(x=((1, 2),), dtype=np.float32, **rest):
    return predict_log({"x": np.array(x, dtype)}, **rest)


def regress():
    return examples_log("regress", [{"x": [1.0, 2.0]}], "value")


ROW = WarmupRequest(body='{"instances": [[1, 2]]}')


def test_records_of_the_file_are_run_in_order_and_then_the_rows_of_the_config(model, warm_up, reports, tmp_path):
    warm_up(log_file(regress(), predict(), regress()), ROW, ROW)
    assert model.asked == ["value", "serving_default", "value", "serving_default", "serving_default"]
    (report,) = reports
    assert (report.id, report.directory, report.records, report.status) == (ID, str(tmp_path), 5, OK)


@pytest.mark.parametrize(("iterations", "times"), [(0, 1), (1, 1), (3, 3)])
def test_each_request_is_repeated_before_the_next(model, warm_up, reports, iterations, times):
    row = WarmupRequest(body='{"signature_name": "value", "instances": [[1, 2]]}', count=2)
    warm_up(log_file(predict(), regress(), predict()), row, iterations=iterations)
    expected = ["serving_default"] * times + ["value"] * times + ["serving_default"] * times + ["value"] * 2 * times
    assert model.asked == expected
    assert reports[0].records == 4


def test_without_a_file_and_rows_there_is_nothing_to_report(model, warm_up, reports, tmp_path):
    warm_up()
    (tmp_path / "assets.extra").write_bytes(b"a file where a directory is expected")
    warm_up()
    assert (model.asked, reports) == ([], [])


@pytest.mark.parametrize(
    ("content", "records"),
    [
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"\xff" * 11, 0, id="stray bytes"),
        pytest.param(log_file({}), 1, id="unset type"),
        pytest.param(frame(b""), 1, id="empty record"),
        pytest.param(log_file(predict()) + b"stray", 1, id="stray bytes after a record"),
    ],
)
def test_files_without_much_in_them_are_fine(warm_up, reports, content, records):
    warm_up(content)
    (report,) = reports
    assert (report.records, report.status) == (records, OK)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"this is no TFRecord file", StatusCode.DATA_LOSS, "record 1 is truncated or damaged"),
        (log_file(predict())[:-1], StatusCode.DATA_LOSS, "record 1 is truncated or damaged"),
        (frame(b"\xff\xff"), StatusCode.INVALID_ARGUMENT, "record 1: Failed to parse warmup record"),
        (log_file({}, {"session_run_log": {}}), StatusCode.UNIMPLEMENTED, "record 2: Unsupported log_type for warmup"),
        (log_file({"predict_streamed_log": {}}), StatusCode.UNIMPLEMENTED, "record 1: Unsupported log_type for warmup"),
        (log_file(predict([[1, 2, 3]])), StatusCode.INVALID_ARGUMENT, "record 1: input x has size 3 in dimension 1"),
        (log_file(predict(signature="other")), StatusCode.FAILED_PRECONDITION, "record 1: Serving signature key"),
    ],
)
def test_a_file_that_cannot_be_answered_fails_the_load_and_names_the_record(refused, content, code, message):
    found = refused(content, code=code)
    assert found.startswith(f"{FILE}: {message}")
    assert (MARKER in found) == (code is StatusCode.DATA_LOSS)


def test_records_before_the_damage_are_run(model, refused, reports):
    message = refused(log_file(predict(), predict())[:-10], code=StatusCode.DATA_LOSS)
    assert message.startswith(f"{FILE}: record 2 is truncated or damaged")
    assert len(model.asked) == reports[0].records == 1


def test_a_record_above_the_bound_is_refused(refused, monkeypatch):
    monkeypatch.setattr(recordings, "MAX_LOG_BYTES", 10)
    assert "at most 10 are allowed" in refused(log_file(predict()))


def test_an_error_of_the_model_keeps_its_code(model, refused, reports):
    model.failure = ServingError(StatusCode.RESOURCE_EXHAUSTED, "no memory left")
    message = refused(log_file(predict()), code=StatusCode.RESOURCE_EXHAUSTED)
    assert message == f"{FILE}: record 1: no memory left"
    assert reports[0].records == 1


def test_a_row_that_would_be_refused_is_named(refused, reports):
    assert refused(None, ROW, WarmupRequest(body='{"inputs": [["a", "b"]]}')).startswith("warmup[1] of the config: ")
    assert reports[0].records == 2


def test_method_names_are_checked_where_the_server_checks_them(refused):
    log = log_file(examples_log("classify", [{"x": [1.0, 2.0]}], "value"))
    assert "method_name" in refused(log, check_method_names=True)
    assert "method_name" not in refused(log)


def test_a_thousand_records_are_the_most_and_one_more_is_run_and_refused(model, warm_up, refused, reports):
    thousand = log_file(predict()) * 1000
    warm_up(thousand)
    assert len(model.asked) == reports[0].records == 1000
    message = refused(thousand + log_file(predict(), predict()))
    assert "Number of warmup records exceeds the maximum (1000)" in message
    assert len(model.asked) == 2001
    assert reports[1].records == 1001


def replace_by_link(path, directory):
    path.rename(directory / "elsewhere")
    path.symlink_to(directory / "elsewhere")


def make_link_of_directory(path, directory):
    replace_by_link(path.parent, directory)


def make_pipe(path, directory):
    path.unlink()
    os.mkfifo(path)


def make_directory(path, directory):
    path.unlink()
    path.mkdir()


def make_large(path, directory):
    os.truncate(path, recordings.MAX_FILE_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (replace_by_link, "it is a link"),
        (make_link_of_directory, "assets.extra is a link"),
        (make_pipe, "it is no file but something else"),
        (make_directory, "it is no file but something else"),
        (make_large, "at most 4294967296 are allowed"),
    ],
)
def test_what_is_no_plain_file_is_refused_and_not_read(model, refused, tmp_path, make, reason):
    make(write_warmup(tmp_path, predict()), tmp_path)
    message = refused()
    assert reason in message
    assert str(tmp_path) not in message
    assert model.asked == []


def test_a_file_that_the_system_refuses_may_be_tried_again(servable, reports):
    request = OpenRequest(ID, VersionFiles("x" * 300, frozenset()), "cpu", False)
    with pytest.raises(ServingError) as caught:
        Warmup(on_report=reports.append)(servable, request)
    reason = f"{FILE} cannot be read: File name too long"
    assert (caught.value.code, str(caught.value)) == (StatusCode.UNAVAILABLE, reason)
    assert reports[0].status == caught.value.status


def test_a_model_that_does_not_answer_fails_the_load(model, refused):
    gate = threading.Event()
    model.run = lambda signature, inputs, outputs: {"y": inputs["x"]} if gate.wait(30) else {}
    try:
        message = refused(log_file(predict()), seconds_per_run=0.05, code=StatusCode.DEADLINE_EXCEEDED)
    finally:
        gate.set()
    assert message.startswith(f"{FILE}: record 1: the model did not answer")


def test_seconds_are_those_of_the_clock(warm_up, reports):
    times = iter([10.0, 12.5])
    warm_up(log_file(predict()), monotonic=lambda: next(times))
    assert reports[0].seconds == 2.5


def test_a_listener_that_fails_is_logged_and_fails_nothing(servable, tmp_path, caplog):
    write_warmup(tmp_path, predict())
    request = OpenRequest(ID, VersionFiles(str(tmp_path), frozenset()), "cpu", False)
    Warmup(on_report=lambda report: 1 / 0)(servable, request)
    assert "could not be reported" in caplog.text


@pytest.fixture
def load(tmp_path):
    """Loads a doubling python model behind a thread, with a warm-up file of these logs."""

    def run(*logs, warm_up=None) -> ArtifactLoader:
        write_plain(tmp_path)
        write_warmup(tmp_path, *logs)
        settings = AdapterSettings(
            run_alone,
            "cpu",
            trusted=TrustedPaths.of([str(tmp_path)]),
            model_settings=lambda path, name: SETTINGS,
            warm_up=warm_up or Warmup(),
        )
        loader = ArtifactLoader(str(tmp_path), "", settings, PLATFORMS)
        loader.load(ID)
        return loader

    return run


def test_a_load_ends_after_its_warm_up(load, reports):
    loader = load(predict([[1, 2, 3, 4]]), warm_up=Warmup(on_report=reports.append))
    assert (reports[0].records, reports[0].status) == (1, OK)
    assert loader.servable is not None
    loader.unload()


def test_a_failing_warm_up_fails_the_load_and_leaves_nothing_behind(load, tmp_path):
    before = set(threading.enumerate())
    message = refusal(load, predict([[1, 2, 3, 4, 5]]))
    assert message.startswith(f"model m version 7: {FILE}: record 1: input x has size 5 in dimension 1")
    assert str(tmp_path) not in message
    assert set(threading.enumerate()) == before
