"""What a real server tells of its past: over HTTP, gRPC and on the command line, over a kill and a restart."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import urllib.request

import grpc
import pytest

from tests.support.servers.in_process import config_text, entry, serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import ServerProcess, default_command, wait_until
from tfs_lite.cli.main import main
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError
from tfs_lite.operations.history.feature import memory_of
from tfs_lite.protocols.messages import AdminRequest, AdminResponse

AVAILABLE = VersionState.AVAILABLE
KILLED = """
import os, signal
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        if float(x[0, 0]) < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return x
def load(directory):
    return Model()
"""


@pytest.fixture
def root(tmp_path, archives):
    archives.write_version(1, tmp_path / "m")
    return tmp_path


def ask(url, **fields):
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    with urllib.request.urlopen(f"{url}/v1/events?{query}", timeout=40) as answer:
        return json.loads(answer.read())


def texts(events, version=None):
    return [event["text"] for event in events if version in (None, event["version"])]


def until_ended(served, version):
    wait_until(lambda: "ENDED" in texts(ask(served.url, model="m")["events"], version), f"{version} has ended")


def test_a_version_that_unloaded_itself_has_its_story(root, archives):
    archives.write_version(8, root / "m")
    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        served.wait_states({8: AVAILABLE})
        shutil.rmtree(root / "m" / "8")
        until_ended(served, 8)
        gone, begun, drained, ended = texts(ask(served.url, model="m")["events"], 8)[-4:]
    assert gone == "no longer wanted (POLL): directory 8 is gone"
    assert begun == "unload begun, wanted by POLL"
    assert drained.startswith("DRAINED in ")
    assert drained.endswith(" s")
    assert ended == "ENDED"


def test_a_reload_is_named_with_its_caller_also_when_it_is_refused(root, archives):
    archives.write_version(1, root / "n")
    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        served.reload(entry("n"))
        until_ended(served, 1)
        events = ask(served.url)["events"]
        assert "no longer wanted (RELOAD_RPC, 127.0.0.1): the model is not in the config any more" in texts(events)
        added = [event for event in events if event["model"] == "n" and event["kind"] == "ASPIRED"]
        assert [(event["cause"], event["by"]) for event in added] == [("RELOAD_RPC", "127.0.0.1")]
        wrong = config_text(root, entry("n", 'version_labels { key: "x" value: 7 }'))
        with pytest.raises(ServingError):
            served.client.reload(parse_model_server_config(wrong, "wrong"))
        (refused,) = ask(served.url, kind="CONFIG_REFUSED")["events"]
    assert refused["cause"] == "RELOAD_RPC"
    assert 'label "x"' in refused["status"]["message"]


def test_a_long_poll_returns_with_the_next_event(root, archives):
    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        page = ask(served.url, limit=1)
        pages = []
        waiting = threading.Thread(target=lambda: pages.append(ask(served.url, after=page["next"], wait=30, model="m")))
        waiting.start()
        archives.write_version(2, root / "m")
        waiting.join(60)
        assert pages[0]["events"]
        assert pages[0]["events"][0]["seq"] > page["next"]


def test_a_stream_goes_on_where_it_was_cut_and_ends_with_the_server(root):
    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        first, second = ask(served.url)["events"][:2]
        request = urllib.request.Request(
            f"{served.url}/v1/events", headers={"Accept": "text/event-stream", "Last-Event-ID": str(first["seq"])}
        )
        with urllib.request.urlopen(request, timeout=30) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in stream.headers
            assert stream.readline() == b"id: %d\n" % second["seq"]
            assert json.loads(stream.readline().removeprefix(b"data: ")) == second
            served.server.stop()
            assert b"AVAILABLE" in stream.read()  # to its end


def test_events_stream_over_grpc_too(root):
    with (
        serving(root, model_name="m", model_base_path=str(root / "m")) as served,
        grpc.insecure_channel(served.target) as channel,
    ):
        call = channel.unary_stream(
            "/tfs_lite.AdminService/Events", AdminRequest.SerializeToString, AdminResponse.FromString
        )
        answers = call(AdminRequest(json=b'{"model": "m", "kind": ["ASPIRED"]}'), timeout=30)
        assert json.loads(next(answers).json)["text"] == "wanted by START"
        answers.cancel()
        with pytest.raises(grpc.RpcError) as refused:
            next(call(AdminRequest(json=b'{"kind": ["NONE"]}'), timeout=30))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("kind=AVAILABL", "did you mean AVAILABLE?"),
        ("limit=0", "field limit: expected a whole number from 1 to 1000"),
        ("after=-1", "field after"),
        ("wait=31", "field wait: expected a number from 0 to 30"),
        ("wait=nan", "field wait"),
        ("modle=m", "this page knows: model, kind, after, limit, wait"),
    ],
)
def test_wrong_questions_are_refused_with_what_is_right(root, query, words):
    with serving(root, ready=False, model_name="m", model_base_path=str(root / "m")) as served:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{served.url}/v1/events?{query}", timeout=30)
        with refused.value as answer:
            assert answer.code == 400
            assert words in json.loads(answer.read())["error"]


def test_the_command_shows_the_story(root, capsys):
    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        rest = served.url.removeprefix("http://")
        assert main(["events", "m", "--server", rest, "--since", "1h"]) == 0
        shown = capsys.readouterr().out
        assert "m@1  wanted by START" in shown
        assert "m@1  AVAILABLE after " in shown
        assert main(["events", "--server", rest, "--kind", "server_started", "--json"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["kind"] == "SERVER_STARTED"
    assert main(["events", "--server", rest]) == 1
    assert "no server answers" in capsys.readouterr().err


def test_metrics_count_events_and_memory(root):
    with serving(root, model_name="m", model_base_path=str(root / "m")) as served:
        with urllib.request.urlopen(f"{served.url}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        (memory,) = memory_of(served.server.core, "m")
    assert 'tfs_lite_events_total{kind="AVAILABLE",model="m"} 1.0' in page
    assert 'tfs_lite_events_total{kind="LEAK",model="m"} 0.0' in page
    assert 'tfs_lite_version_memory_bytes{device="main",kind="measured",model="m",version="1"} 4.0' in page
    assert "process_resident_memory_bytes " in page
    assert memory.resident
    assert memory.files > 0


def test_a_killed_server_leaves_a_readable_history_to_the_next(root, tmp_path):
    state = tmp_path / "state"
    flags = ("--model_name=m", f"--model_base_path={root}/m", f"--state_directory={state}")
    with ServerProcess(*flags, command=default_command()) as server:
        url = f"http://127.0.0.1:{server.http_port}"
        wait_until(lambda: "AVAILABLE" in (state / "events.jsonl").read_text(), "the event is written")
        before = ask(url)["events"]
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
    with (state / "events.jsonl").open("a") as file:
        file.write('{"seq": 17, "torn')
    with ServerProcess(*flags, command=default_command()) as server:
        events = ask(f"http://127.0.0.1:{server.http_port}")["events"]
        second = ServerProcess(*flags, command=default_command()).start()
        try:
            assert second.wait() == 1
            (line,) = second.log().strip().splitlines()
        finally:
            second.stop()
    assert events[: len(before)] == before
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert sum(event["kind"] == "SERVER_STARTED" for event in events) == 2
    assert line.startswith(f"tfs-lite: state_directory: another server uses {state}; give each server")
    for text in (state / "events.jsonl").read_text().splitlines():
        assert text.startswith("{")


def test_following_goes_on_over_a_restart(root, tmp_path, archives):
    flags = ("--model_name=m", f"--model_base_path={root}/m", f"--state_directory={tmp_path}/state")
    server = ServerProcess(*flags, command=default_command())
    seen: list[str] = []

    def read(lines):
        seen.extend(lines)

    with server:
        command = [*default_command(), "events", "--follow", "--json", f"--server=127.0.0.1:{server.http_port}"]
        following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        reader = threading.Thread(target=read, args=(following.stdout,))
        reader.start()
        try:
            wait_until(lambda: any("SERVER_STARTED" in line for line in seen), "the first server is told")
            server.stop()
            again = (f"--port={server.grpc_port}", f"--rest_api_port={server.http_port}")
            second = ServerProcess(*flags, *again, command=default_command())
            second.http_port = server.http_port
            with second:
                wait_until(lambda: sum("SERVER_STARTED" in line for line in seen) == 2, "the second one, too")
        finally:
            following.kill()
            following.wait()
            reader.join()
            following.stdout.close()
    numbers = [json.loads(line)["seq"] for line in seen]
    assert numbers == sorted(set(numbers))


def test_a_process_that_was_killed_is_told_with_its_signal(tmp_path):
    write_python_version(tmp_path / "m", 1, KILLED)
    with serving(
        tmp_path,
        model_name="m",
        model_base_path=str(tmp_path / "m"),
        worker="process",
        trusted_model_base_paths=(str(tmp_path / "m"),),
    ) as served:
        (memory,) = memory_of(served.server.core, "m")
        assert memory.workers[0] > 1 << 20
        with pytest.raises(ServingError):
            served.client.predict("m", {"x": [[-1.0, 0.0, 0.0]]})
        wait_until(lambda: "its process runs again" in texts(ask(served.url, model="m")["events"]), "it runs again")
        assert "its process ended: signal 9" in texts(ask(served.url, model="m")["events"])
