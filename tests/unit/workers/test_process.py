"""Models in processes of their own: what they answer, and what becomes of them and their callers when they die."""

from __future__ import annotations

import gc
import io
import os
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.core.model import WorkerLost
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.operations.history.memory import resident_memory
from tfs_lite.workers import process_connection
from tfs_lite.workers.child import private_bytes
from tfs_lite.workers.connection import RemoteModel
from tfs_lite.workers.priorities import NICENESS
from tfs_lite.workers.process import open_in_process
from tfs_lite.workers.sandbox import Sandbox
from tfs_lite.workers.supervisor import Backoff, Supervisor

ROW = np.arange(6, dtype=np.float32).reshape(2, 3)
NEVER = threading.Event()


def slow_backoff():
    """After the first death the process stays away."""
    return Backoff(first=600.0, most=600.0)


def where(model) -> int:
    """The process that answers."""
    return int(model.run("", {"x": ROW}, ("pid",))["pid"][0])


def test_model_shows_and_answers_what_the_one_in_the_process_does(open_child):
    model = open_child()
    assert (model.platform, model.resident_bytes(), model.has_item_steps, model.concurrency) == (
        "child",
        1234,
        False,
        1,
    )
    assert {"leave", DEFAULT_SIGNATURE} <= set(model.signatures)
    assert (model.alive, model.restarts) == (True, 0)
    answer = model.run("", {"x": ROW}, ())
    np.testing.assert_array_equal(answer["y"], ROW)
    assert answer["pid"].tolist() == [model.pid]
    assert list(model.run("", {"x": ROW}, ("pid", "y"))) == ["pid", "y"]


def test_memory_of_its_own_process_is_measured_there(open_child):
    model = open_child()
    private = model.measured_bytes()["main"]["process"]
    assert 0 < private <= resident_memory(model.pid)
    model.close()
    assert model.measured_bytes() == {}


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        (None, None),
        (
            io.BytesIO(b"0-1 ---p 0 0 [rollup]\nPrivate_Clean:  4 kB\nShared_Dirty: 9 kB\nPrivate_Dirty: 8 kB\n"),
            12 << 10,
        ),
        (io.BytesIO(b""), None),
        (io.BytesIO(b"0-1\nPrivate_Clean: 4 kB\n"), None),
    ],
)
def test_private_memory_is_that_of_private_pages_or_unknown(pages, expected):
    assert private_bytes(pages) == expected


def test_kernel_that_is_short_of_memory_ends_the_process_before_the_server(open_child):
    score = {pid: int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (os.getpid(), open_child().pid)}
    own, of_model = score.values()
    assert of_model == min(own + 500, 1000)


def test_reason_for_an_unusual_way_of_opening_comes_from_the_process(open_child):
    status = open_child(options={"reason": "by other means: no operator"}).worker
    assert (status.kind, status.reason) == ("process", "by other means: no operator")
    assert open_child().worker.reason == ""


def test_module_that_one_model_needs_is_imported_once_for_all_later_processes(tmp_path, monkeypatch, child_models):
    (tmp_path / "needed_by_one.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = Supervisor([child_models])
    try:
        arguments = '{"module": "needed_by_one"}'
        importers = []
        for preload in ((), ("needed_by_one",), ()):
            model = open_in_process(own, "m", f"{child_models}:make", arguments, preload=preload)
            importer = int(model.run("importers", {"x": ROW}, ("y",))["y"][0])
            importers.append("itself" if importer == model.pid else "fork server" if importer == own.pid else importer)
            model.close()
        assert importers == ["itself", "fork server", "fork server"]
    finally:
        own.close()


def test_module_that_cannot_be_imported_keeps_no_process_from_starting(open_child):
    assert open_child(preload=("no_such_module",)).alive


def test_process_of_a_model_steps_back_behind_the_server(open_child):
    model = open_child()
    assert psutil.Process(where(model)).nice() == max(NICENESS, os.nice(0))


def test_opening_by_one_function(supervisor, child_models):
    model = open_in_process(supervisor, "model m version 1", f"{child_models}:make", "{}")
    assert where(model) == model.pid
    model.close()


def test_every_size_and_type_goes_through(open_child):
    model = open_child()
    texts = np.array([b"a", "ü".encode(), b""], dtype=object)
    for value in (texts, np.zeros((0, 4)), np.float64(3.0), np.arange(1_000_000), np.array([True, False]), ROW.T):
        got = model.run("", {"x": np.asarray(value)}, ("y",))["y"]
        assert got.dtype == np.asarray(value).dtype
        assert got.tolist() == np.asarray(value).tolist()


def test_results_are_the_callers_own(open_child):
    model = open_child()
    first = model.run("", {"x": ROW}, ("y",))["y"]
    model.run("", {"x": ROW + 1}, ("y",))
    np.testing.assert_array_equal(first, ROW)
    first += 1


def test_staged_inputs_are_read_in_place(open_child):
    model = open_child()
    for rows in (3, 50_000):
        staged = model.stage("", {"x": ((rows, 3), np.dtype(np.float32)), "t": ((rows,), np.dtype(object))})
        assert list(staged) == ["x"]
        staged["x"][...] = np.arange(rows * 3).reshape(rows, 3)
        got = model.run("", dict(staged), ("y",))["y"]
        assert got.sum() == staged["x"].sum()
        assert not np.shares_memory(got, staged["x"])


def test_memory_of_a_run_is_bounded_both_ways(open_child):
    model = open_child(memory_limit=1 << 20)
    assert "model m version 1: the inputs of a run take 2097152 bytes, at most" in refusal(
        model.run, "", {"x": np.zeros(1 << 18)}, (), code=StatusCode.RESOURCE_EXHAUSTED
    )
    with pytest.raises(ServingError, match=r"model m version 1: the outputs of a run take \d+ bytes, at most") as error:
        model.run("huge", {"x": ROW}, ())
    assert error.value.code is StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(ServingError, match="the inputs of a run") as error:
        model.stage("", {"x": ((1 << 20, 2), np.dtype(np.uint8))})
    assert where(model) == model.pid


def test_large_results_come_whole(open_child):
    model = open_child()
    for size in (1_000, 10_000_000, 7):
        got = model.run("large", {"x": np.array([size])}, ("y",))["y"]
        assert got.shape == (size,)
        assert set(np.unique(got)) == {7}


def test_failures_of_the_model_keep_code_and_message(open_child):
    model = open_child()
    assert "x is not to my liking" in refusal(model.run, "refuse", {"x": ROW}, ())
    assert "model m version 1 failed: ValueError" in refusal(
        model.run, "fail", {"x": ROW}, (), code=StatusCode.INTERNAL
    )
    assert where(model) == model.pid


def test_process_has_its_own_directory_in_memory_where_no_temporary_files_can_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "read-only"))
    sandboxed = RemoteModel("m", "module:function", "{}", sandbox=Sandbox((), 0, False))
    own = process_connection._make_directory(sandboxed)
    assert own.startswith("/dev/shm/tfs-lite-")
    os.rmdir(own)
    monkeypatch.setattr(process_connection, "MEMORY_DIRECTORY", str(tmp_path / "read-only"))
    with pytest.raises(ServingError, match=r"No such file or directory.*let the server write to /tmp, or name a dir"):
        process_connection._make_directory(sandboxed)


def test_log_of_the_process_goes_to_standard_error(child_models, capfd):
    supervisor = Supervisor()
    model = open_in_process(supervisor, "model m version 1", f"{child_models}:make", "{}")
    with pytest.raises(ServingError):
        model.run("fail", {"x": ROW}, ())
    model.close()
    supervisor.close()
    log = capfd.readouterr().err
    assert "ERROR [process of model m version 1]" in log
    assert "ValueError: what is this" in log


def test_unknown_signature_is_refused_here(open_child):
    refusal(open_child().run, "no_such", {"x": ROW}, (), code=StatusCode.FAILED_PRECONDITION)


def test_child_has_one_thread_and_can_use_its_libraries_threads(open_child):
    model = open_child()
    assert int(model.run("count_threads", {"x": ROW}, ("y",))["y"]) == 1
    assert model.run("multiply", {"x": ROW}, ("y",))["y"][0] == pytest.approx(400.0**2)


def test_children_draw_different_random_numbers(open_child):
    draws = [tuple(open_child().run("draw", {"x": ROW}, ("y",))["y"]) for _ in range(2)]
    assert draws[0] != draws[1]


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        ("refuse", StatusCode.DATA_LOSS, "no model: because"),
        ("fail", StatusCode.FAILED_PRECONDITION, "cannot be loaded: RuntimeError"),
        ("there_is_none", StatusCode.FAILED_PRECONDITION, "cannot be loaded: AttributeError"),
        ("leave", StatusCode.UNAVAILABLE, "its process ended while the model was opened (exit code 9)"),
        ("babble", StatusCode.UNAVAILABLE, "its process sent garbage while the model was opened"),
    ],
)
def test_opening_that_fails_says_why_and_leaves_nothing(supervisor, open_child, function, code, message):
    open_child().close()
    gc.collect()
    files, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    assert message in refusal(open_child, function, "because", code=code)
    assert psutil.Process(supervisor.pid).children() == []
    assert set(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("leave", "exit code 3"),
        ("be_killed", "signal 9"),
        ("crash", "signal 6"),
        ("say_garbage", "it sent garbage"),
        ("close_sockets", "it closed its connection"),
    ],
)
def test_process_that_ends_in_a_run_fails_that_run_and_is_started_again(open_child, caplog, what, cause):
    model = open_child()
    first = model.pid
    with pytest.raises(WorkerLost) as error:
        model.run(what, {"x": ROW}, ())
    message = f"model m version 1: its process ended ({cause}); it is being started again, try again later"
    assert str(error.value) == message
    assert model.recover(NEVER)
    assert (model.alive, model.restarts) == (True, 1)
    assert where(model) == model.pid != first
    assert not psutil.pid_exists(first)
    assert caplog.text.count("it is started again in 0.1 s") == 1
    assert f"its process ended ({cause})" in caplog.text


def test_process_that_is_killed_while_it_runs_fails_that_run(open_child, tmp_path):
    model = open_child(options={"gate": str(tmp_path)})
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.run, "gate", {"x": ROW}, ())
        wait_until((tmp_path / "entered").exists, "the run has begun")
        os.kill(model.pid, signal.SIGKILL)
        with pytest.raises(WorkerLost, match="signal 9"):
            answer.result(60)
    assert model.recover(NEVER)
    assert where(model) == model.pid


def test_process_that_dies_while_idle_is_started_again_by_itself(open_child):
    model = open_child()
    first = model.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: model.restarts == 1, "it is back")
    assert where(model) == model.pid != first


@pytest.mark.parametrize("staged", [False, True])
def test_request_that_meets_a_dead_process_is_run_by_the_next(open_child, staged):
    model = open_child(backoff=Backoff(well=0.0))
    for round_ in range(5):
        inputs = {"x": ROW}
        if staged:
            inputs = model.stage("", {"x": (ROW.shape, ROW.dtype)})
            inputs["x"][...] = ROW
        os.kill(model.pid, signal.SIGKILL)
        np.testing.assert_array_equal(model.run("", inputs, ("y",))["y"], ROW)
        assert model.restarts == round_ + 1


def test_request_is_not_run_by_a_third_process(open_child, tmp_path):
    how = tmp_path / "how"
    how.write_text("ok")
    model = open_child("make_from_file", str(how))
    how.write_text("leave")
    os.kill(model.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="try again later"):
        model.run("", {"x": ROW}, ())
    with pytest.raises(WorkerLost, match="signal 9"):
        model.run("", {"x": ROW}, ())
    how.write_text("ok")
    assert model.recover(NEVER)
    assert where(model) == model.pid


def test_failed_starts_are_logged_one_by_one_and_go_on(open_child, tmp_path, caplog):
    how = tmp_path / "how"
    how.write_text("ok")
    model = open_child("make_from_file", str(how), backoff=Backoff(first=0.01))
    how.write_text("refuse")
    os.kill(model.pid, signal.SIGKILL)
    wait_until(lambda: caplog.text.count("cannot be started again") >= 3, "some attempts have failed")
    assert "(x is not to my liking); next attempt in 0.0 s" in caplog.text
    assert not model.alive
    assert model.pid is None
    how.write_text("ok")
    assert model.recover(NEVER)
    assert model.restarts == 1


def test_version_that_has_become_another_does_not_come_back(open_child, tmp_path, caplog):
    how = tmp_path / "how"
    how.write_text("ok")
    model = open_child("make_from_file", str(how), backoff=Backoff(first=0.01))
    how.write_text("other")
    os.kill(model.pid, signal.SIGKILL)
    wait_until(lambda: "its files were changed" in caplog.text, "the change is noticed")
    assert not model.alive
    how.write_text("ok")
    assert model.recover(NEVER)


def test_recovering_is_given_up_at_once(open_child):
    model = open_child(backoff=slow_backoff())
    with pytest.raises(WorkerLost):
        model.run("leave", {"x": ROW}, ())
    give_up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        recovered = pool.submit(model.recover, give_up)
        with pytest.raises(WorkerLost, match="exit code 3"):
            model.run("", {"x": ROW}, ())
        assert not recovered.done()
        give_up.set()
        assert recovered.result(10) is False
    assert model.recover(give_up) is False
    model.close()
    assert model.recover(NEVER) is False


def test_close_ends_the_process_and_what_it_has_started_and_gives_everything_back(supervisor, open_child, tmp_path):
    open_child().close()
    gc.collect()
    files, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    model = open_child(options={"mark": str(tmp_path / "closed")})
    model.run("take_memory", {"x": np.array([100_000_000])}, ())
    grandchild = int(model.run("have_a_child", {"x": ROW}, ("y",))["y"][0])
    model.run("", {"x": np.zeros(1_000_000)}, ())
    tree = [psutil.Process(model.pid), *psutil.Process(model.pid).children()]
    assert sum(process.memory_info().rss for process in tree) > 100_000_000
    assert len(tree) == 2
    model.close()
    assert (tmp_path / "closed").exists()
    assert not psutil.pid_exists(tree[0].pid)
    wait_until(lambda: not psutil.pid_exists(grandchild), "the grandchild is gone")
    assert psutil.Process(supervisor.pid).children() == []
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() == threads
    assert not model.alive
    assert model.pid is None


def test_model_that_hangs_in_close_is_killed(supervisor, open_child, caplog):
    model = open_child(options={"hang_in_close": True}, close_seconds=0.2)
    model.close()
    assert psutil.Process(supervisor.pid).children() == []
    assert "did not close within 0.2 seconds" in caplog.text


def test_close_ends_a_run_that_hangs(supervisor, open_child, tmp_path):
    model = open_child(options={"entered": str(tmp_path / "entered")}, close_seconds=0.1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.run, "hang", {"x": ROW}, ())
        wait_until((tmp_path / "entered").exists, "the run has begun")
        model.close()
        with pytest.raises(WorkerLost, match="it is being unloaded"):
            answer.result(60)
    assert psutil.Process(supervisor.pid).children() == []


def test_close_ends_a_restart_that_waits(open_child):
    model = open_child(backoff=slow_backoff())
    os.kill(model.pid, signal.SIGKILL)
    wait_until(lambda: not model.alive, "the death is noticed")
    model.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tfs-restart"]


def test_close_ends_a_restart_that_is_under_way(supervisor, open_child, tmp_path):
    (tmp_path / "open").touch()
    model = open_child("make_and_wait", str(tmp_path))
    (tmp_path / "open").unlink()
    (tmp_path / "opening").unlink()
    os.kill(model.pid, signal.SIGKILL)
    wait_until((tmp_path / "opening").exists, "it is being opened again")
    model.close()
    assert psutil.Process(supervisor.pid).children() == []


def test_several_are_opened_at_once(supervisor, open_child, tmp_path):
    """None of them gets through alone: the file is there when all have begun."""

    def release():
        wait_until(lambda: len(psutil.Process(supervisor.pid).children()) == 4, "all are being opened")
        (tmp_path / "open").touch()

    with ThreadPoolExecutor(5) as pool:
        models = [pool.submit(open_child, "make_and_wait", str(tmp_path)) for _ in range(4)]
        pool.submit(release).result()
        assert len({where(model.result(60)) for model in models}) == 4


def test_death_of_the_fork_server_is_survived(supervisor, open_child):
    models = [open_child() for _ in range(2)]
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: all(model.restarts == 1 for model in models), "both are back")
    assert len({where(model) for model in models}) == 2


def test_request_does_not_wait_for_ever_while_what_starts_processes_is_frozen(
    supervisor, open_child, monkeypatch
) -> None:
    model = open_child()
    monkeypatch.setattr("tfs_lite.workers.reconnecting.WAIT_SECONDS", 0.3)
    monkeypatch.setattr("tfs_lite.workers.process_connection.START_SECONDS", 0.5)
    monkeypatch.setattr("tfs_lite.workers.process_connection.GRACE_SECONDS", 0.1)
    monkeypatch.setattr("tfs_lite.workers.process_connection.KILL_SECONDS", 0.1)
    os.kill(supervisor.pid, signal.SIGSTOP)
    try:
        os.kill(model.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(WorkerLost, match="it is being started again"):
                model.run("echo", {"x": ROW}, ())
        (asked,) = wait_until(supervisor.unanswered, "a process is asked for").values()
        assert (asked.pid, asked.since < time.monotonic()) == (supervisor.pid, True)
        wait_until(lambda: "has not answered for 0.5 s" in model.worker.failure, "the cause is told")
    finally:
        os.kill(supervisor.pid, signal.SIGCONT)
    wait_until(lambda: model.alive, "it runs again")
    wait_until(lambda: not supervisor.unanswered(), "every question is answered")
