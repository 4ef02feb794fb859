"""``tfs-lite record``: what gets into a warm-up file, and what is refused before anything is written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.errors import fail_syncs
from tests.support.servers.logs import examples_log, log_file, predict_log, write_warmup
from tfs_lite.cli.main import main
from tfs_lite.protocols.tensorflow.prediction_log import MAX_WARMUP_RECORDS, parse_log
from tfs_lite.protocols.tensorflow.tensor_proto import decode
from tfs_lite.protocols.tfrecord import read_records
from tfs_lite.server.server import Server

Captured = pytest.CaptureFixture[str]
FILE = Path("assets.extra", "tf_serving_warmup_requests")


def logs_in(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [parse_log(data) for data in read_records(file, 1 << 20)]


def predict(*row: float, model: str = "") -> Any:
    return predict_log({"x": np.array([row], np.float32)}, model=model)


@pytest.fixture
def record(capsys: Captured) -> Any:
    """Runs ``tfs-lite record WORDS --json`` and returns what it printed."""

    def run(*words: object, exit_code: int = 0) -> Any:
        assert main(["record", *map(str, words), "--json"]) == exit_code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def live(server: Server, record: Any, tmp_path: Path) -> Any:
    """Records requests to the model ``tagged``, which answers with ``x + 2``, into the directory ``version``."""
    (tmp_path / "version").mkdir()

    def run(*words: object, exit_code: int = 0) -> Any:
        where = (f"--server=127.0.0.1:{server.port}", "--model_name=tagged", f"--out={tmp_path / 'version'}")
        return record(*words, *where, exit_code=exit_code)

    return run


@pytest.fixture
def body(tmp_path: Path) -> Any:
    """Writes a request body and returns its path."""

    def write(name: str, value: object) -> Path:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_requests_that_were_answered_are_recorded_with_their_answers(live: Any, body: Any, tmp_path: Path) -> None:
    rows = body("rows.json", {"instances": [[1, 2, 3], [4, 5, 6]]})
    columns = body("columns.json", {"signature_name": "serving_default", "inputs": {"x": [[0, 0, 0.5]]}})
    path = tmp_path / "version" / FILE
    assert live(rows, columns) == {"path": str(path), "records": 2, "added": 2, "refused": []}
    first, second = (log.predict_log for log in logs_in(path))
    assert decode(first.request.inputs["x"], "x").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (first.request.model_spec.name, first.request.model_spec.signature_name) == ("tagged", "serving_default")
    assert not first.request.model_spec.HasField("version")
    assert decode(first.response.outputs["y"], "y").tolist() == [[3, 4, 5], [6, 7, 8]]
    assert first.response.model_spec.version.value == 2
    assert decode(second.request.inputs["x"], "x").tolist() == [[0, 0, 0.5]]


@pytest.mark.parametrize("kind", ["json", "npy"])
def test_inputs_may_be_given_as_predict_takes_them(live: Any, tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    value = "[[1, 1, 1]]" if kind == "json" else f"@{tmp_path / 'x.npy'}"
    assert live(f"--input=x={value}")["added"] == 1
    (log,) = logs_in(tmp_path / "version" / FILE)
    assert decode(log.predict_log.request.inputs["x"], "x").tolist() == [[1, 1, 1]]


def test_records_are_added_to_a_file_that_is_there(live: Any, body: Any, tmp_path: Path) -> None:
    path = write_warmup(tmp_path / "version", predict(1, 2, 3), {})
    os.chmod(path.parent, 0o755)
    before = path.read_bytes()
    assert live(body("b.json", {"instances": [[0, 0, 0]]}))["records"] == 3
    assert path.read_bytes().startswith(before)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ('{"instances"', "INVALID_ARGUMENT", "JSON Parse error"),
        ({"inputs": {"z": 1}}, "INVALID_ARGUMENT", "Missing named input: x"),
        ({"instances": [[1, 2]]}, "INVALID_ARGUMENT", "input x has size 2 in dimension 1, expected 3"),
        ({"signature_name": "other", "instances": [[1, 2, 3]]}, "FAILED_PRECONDITION", '"other" not found'),
    ],
)
def test_a_refused_request_is_left_out_and_told(
    live: Any, body: Any, tmp_path: Path, value: object, code: str, message: str
) -> None:
    bad, good = body("bad.json", value), body("good.json", {"instances": [[1, 2, 3]]})
    done = live(bad, good, exit_code=1)
    assert (done["records"], done["added"]) == (1, 1)
    (refused,) = done["refused"]
    assert (refused["source"], refused["code"]) == (str(bad), code)
    assert message in refused["message"]


def test_refusals_are_one_line_for_people(server: Server, body: Any, tmp_path: Path, capsys: Captured) -> None:
    bodies = [body(name, {"instances": [[1, 2]]}) for name in ("a.json", "b.json")]
    where = [f"--server=127.0.0.1:{server.port}", "--model-name=tagged", f"--out={tmp_path / 'w'}"]
    assert main(["record", *map(str, bodies), *where]) == 1
    output = capsys.readouterr()
    assert output.err.startswith(f"tfs-lite: {bodies[0]} was not recorded: INVALID_ARGUMENT: input x has size 2")
    assert output.err.endswith("(and 1 more)\n")
    assert output.out == f"recorded 0 requests: {tmp_path / 'w'} has 0\n"
    assert not (tmp_path / "w").exists()


def test_an_input_that_the_model_does_not_have_is_refused(live: Any) -> None:
    done = live("--input=x=[[1,2,3]]", "--input=z=1", exit_code=1)
    assert done["refused"][0]["message"] == "there is no input z; the signature has x"


def test_a_model_that_is_not_served_is_an_error(server: Server, body: Any, record: Any, tmp_path: Path) -> None:
    where = (f"--server=127.0.0.1:{server.port}", "--model_name=nobody", f"--out={tmp_path / 'w'}")
    error = record(body("b.json", {"instances": [1]}), *where, exit_code=1)["error"]
    assert error["code"] == "NOT_FOUND"
    assert "nobody" in error["message"]


def test_requests_are_copied_from_logs_once_each_and_without_metadata(record: Any, tmp_path: Path) -> None:
    first = {**predict(1), "log_metadata": {"timestamp_secs": 1}}
    again = {**predict(1), "log_metadata": {"timestamp_secs": 2}}
    (tmp_path / "a.log").write_bytes(log_file(first, again, predict(2), {"predict_streamed_log": {}}))
    (tmp_path / "b.log").write_bytes(log_file({}, examples_log("regress", [{"x": [1.0]}]), predict(2)) + b"stray")
    out = tmp_path / "w"
    assert record("--from_log", tmp_path / "a.log", tmp_path / "b.log", f"--out={out}") == {
        "path": str(out),
        "records": 3,
        "added": 3,
        "skipped": {"duplicates": 2, "other_models": 0, "unsupported": 2},
        "more": False,
    }
    assert out.read_bytes() == log_file(predict(1), predict(2), examples_log("regress", [{"x": [1.0]}]))


@pytest.mark.parametrize("of_files", [False, True])
def test_a_disk_that_cannot_sync_is_recorded_to(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_files: bool
) -> None:
    fail_syncs(monkeypatch, errno.EINVAL, of_files=of_files)
    (tmp_path / "a.log").write_bytes(log_file(predict(1)))
    assert record("--from_log", tmp_path / "a.log", f"--out={tmp_path / 'w'}")["added"] == 1
    assert (tmp_path / "w").read_bytes() == log_file(predict(1))


def test_only_requests_to_the_model_are_copied(record: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log_file(predict(1, model="m"), predict(2, model="n"), predict(3)))
    done = record("--from_log", tmp_path / "a.log", "--model_name=m", f"--out={tmp_path / 'w'}")
    assert (done["added"], done["skipped"]["other_models"]) == (1, 2)


def test_copying_twice_adds_nothing(record: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log_file(predict(1), predict(2)))
    words = ("--from-log", tmp_path / "a.log", f"--out={tmp_path / 'w'}")
    assert record(*words)["added"] == 2
    done = record(*words)
    assert (done["records"], done["added"], done["skipped"]["duplicates"]) == (2, 0, 2)


def test_a_limit_says_that_there_is_more(record: Any, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.log").write_bytes(log_file(*(predict(number) for number in range(4))))
    done = record("--from_log", tmp_path / "a.log", "--limit=2", f"--out={tmp_path / 'w'}")
    assert (done["added"], done["more"]) == (2, True)
    assert main(["record", "--from_log", str(tmp_path / "a.log"), "--limit=1", f"--out={tmp_path / 'w'}"]) == 0
    assert capsys.readouterr().out == (
        f"recorded 1 request: {tmp_path / 'w'} has 3\n"
        "left out: 2 duplicates\n"
        "there are more in the logs: the limit is reached\n"
    )


def test_a_file_never_gets_more_records_than_servers_take(record: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log_file(*(predict(number) for number in range(MAX_WARMUP_RECORDS + 5))))
    done = record("--from_log", tmp_path / "a.log", f"--out={tmp_path / 'w'}")
    assert (done["records"], done["more"]) == (1000, True)
    error = record("b.json", "--model_name=m", f"--out={tmp_path / 'w'}", "--server=x", exit_code=1)["error"]
    assert "b.json" in error["message"]
    (tmp_path / "b.json").write_text("{}")
    error = record(tmp_path / "b.json", "--model_name=m", f"--out={tmp_path / 'w'}", exit_code=1)["error"]
    assert "has 1000 records and 1 more were given; servers take at most 1000" in error["message"]


def test_logs_without_a_request_for_warm_up_are_an_error(record: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log_file({}, {"session_run_log": {}}))
    error = record("--from_log", tmp_path / "a.log", f"--out={tmp_path / 'w'}", exit_code=1)["error"]
    assert error["message"].startswith("nothing was recorded: ")
    assert "2 unsupported" in error["message"]
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, "NOT_FOUND", "a.log: there is no such file"),
        (log_file(predict(1))[:-1], "DATA_LOSS", "a.log: record 1 is truncated or damaged"),
        (b"\0" * 16, "DATA_LOSS", "a.log: record 1 is truncated or damaged"),
        (log_file(predict(1)).replace(b"x", b"y"), "DATA_LOSS", "a.log: record 1 is truncated or damaged"),
    ],
)
def test_a_log_that_cannot_be_read_changes_nothing(
    record: Any, tmp_path: Path, content: bytes | None, code: str, message: str
) -> None:
    (tmp_path / "good.log").write_bytes(log_file(predict(5)))
    if content is not None:
        (tmp_path / "a.log").write_bytes(content)
    words = ("--from_log", tmp_path / "good.log", "--from_log", tmp_path / "a.log", f"--out={tmp_path / 'w'}")
    error = record(*words, exit_code=1)["error"]
    assert error["code"] == code
    assert message in error["message"]
    assert sorted(os.listdir(tmp_path)) == sorted(["good.log"] + ["a.log"] * (content is not None))


def test_a_damaged_warm_up_file_is_left_as_it_is(record: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log_file(predict(1)))
    (tmp_path / "w").write_bytes(log_file(predict(2))[:-1])
    error = record("--from_log", tmp_path / "a.log", f"--out={tmp_path / 'w'}", exit_code=1)["error"]
    assert (error["code"], "w: record 1 is truncated" in error["message"]) == ("DATA_LOSS", True)
    assert (tmp_path / "w").read_bytes() == log_file(predict(2))[:-1]


@pytest.mark.parametrize("inside", [".", "assets.extra/tf_serving_warmup_requests"])
def test_a_published_version_is_not_written_into(record: Any, tmp_path: Path, inside: str) -> None:
    from tfs_lite.core.publish import publish

    write_warmup(tmp_path / "source", predict(1))
    published = Path(publish(str(tmp_path / "source"), str(tmp_path / "base")).path)
    before = (published / FILE).read_bytes()
    (tmp_path / "a.log").write_bytes(log_file(predict(2)))
    error = record("--from_log", tmp_path / "a.log", f"--out={published / inside}", exit_code=1)["error"]
    assert "is a published version, which never changes" in error["message"]
    assert (published / FILE).read_bytes() == before


def test_a_link_is_not_written_through(record: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log_file(predict(1)))
    (tmp_path / "w").symlink_to(tmp_path / "elsewhere")
    assert (
        "behind a link"
        in record("--from_log", tmp_path / "a.log", f"--out={tmp_path / 'w'}", exit_code=1)["error"]["message"]
    )
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["b.json"], "--model_name is missing"),
        (["--model_name=m"], "name files with :predict bodies, or --input, or --from_log"),
        (["b.json", "--model_name=m", "--limit=3"], "--limit counts records of --from_log"),
        (["--from_log", "a", "--input=x=1"], "--input does not go with --from_log"),
        (["b.json", "--from_log", "a"], "BODY.json does not go with --from_log"),
        (["--from_log", "a", "--timeout=3"], "--timeout does not go with --from_log"),
        (["--from_log", "a", "--limit=0"], "argument --limit: expected a whole number above 0"),
        (["--input=x", "--model_name=m"], "expected name=JSON"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_done(words: list[str], message: str, capsys: Captured) -> None:
    assert main(["record", *words, "--out=w"]) == 2
    assert message in capsys.readouterr().err
