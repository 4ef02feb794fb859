"""What a person sees and says at night: which version answers, which is bad, why, and the one command to type. The ways
to ask: HTTP, gRPC, ``tfs-lite guard`` and ``tfs-lite rollback``, explain, events, metrics, the page's JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers.access_fixture import SECRET, access_line, managed
from tests.support.servers.in_process import TIMEOUT, ServerFixture, serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.cli.main import main
from tfs_lite.core.publish import publish
from tfs_lite.core.status import ServingError, StatusCode

GOOD = """
class Model:
    def __init__(self, context): pass
    def predict(self, inputs): return {{"y": inputs["x"] + {version}}}
"""
RAISES = """
class Model:
    def __init__(self, context): pass
    def predict(self, inputs): raise RuntimeError("it is broken")
"""
RENAMED = """
class Model:
    def __init__(self, context): pass
    def predict(self, inputs): return {"z": inputs["x"]}
"""
BROKEN = """
class Model:
    def __init__(self, context): raise RuntimeError("no weights")
    def predict(self, inputs): return inputs
"""
Captured = pytest.CaptureFixture[str]


class NightFixture:
    """A server with a bake of a minute and the model ``m``, versions 6 and 7. ``run`` runs a command."""

    def __init__(self, root: Path, capsys: Captured) -> None:
        self.root = root
        self._capsys = capsys
        self.served: ServerFixture

    def put(self, version: int, source: str = GOOD) -> None:
        staged = self.root / "staged"
        shutil.rmtree(staged, ignore_errors=True)
        directory = write_python_version(staged, version, source.format(version=version) if source is GOOD else source)
        publish(str(directory), str(self.root / "m"), version)

    def wait_answer(self, version: int) -> None:
        wait_until(lambda: self.served.version() == version, f"version {version} answers", TIMEOUT)

    def run(self, *words: str, grpc: bool = False) -> tuple[int, str]:
        """The exit code, and what was printed."""
        served = self.served
        where = f"--server={served.target}" if grpc else f"--server=127.0.0.1:{served.server.rest_api_port}"
        code = main([*words, where])
        found = self._capsys.readouterr()
        return code, found.out + found.err

    def rollout(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.served.url}/v1/models/m:guard", timeout=TIMEOUT).json())

    def post(self, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.served.url}/v1/models/m:guard", json=body, timeout=TIMEOUT)

    def events(self) -> list[tuple[str, int, str, str]]:
        found = self.served.server.core.history.of_model("m")
        return [(e.kind.value, e.version or 0, e.cause.value if e.cause else "", e.text) for e in found]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.served.server.core.registry.get_sample_value(f"tfs_lite_{name}", {"model": "m", **labels})


@pytest.fixture
def night(tmp_path: Path, capsys: Captured) -> Iterator[NightFixture]:
    found = NightFixture(tmp_path, capsys)
    found.put(6)
    found.put(7)
    options = {"trusted_model_base_paths": (str(tmp_path / "**"),), "bake_seconds": 60, "max_num_load_retries": 0}
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m"), **options) as found.served:
        yield found


def test_a_rollback_is_one_command_that_says_which_version_answers(
    night: NightFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``latest 1``: version 6 has to be loaded first."""
    code, said = night.run("rollback", "m")
    assert (code, night.served.version()) == (0, 6)
    assert said.startswith("model m: version 6 answers now, after ")
    assert " s, in place of version 7; " in said
    assert "version 7 must not, until the next push or tfs-lite rollback m --undo" in said
    assert said.endswith(". A restart of the server forgets this, because it has no --state_directory\n")
    assert "m version 7 must not answer: rolled back to version 6 by 127.0.0.1; version 6 answers" in caplog.text
    code, said = night.run("explain", "m")
    assert code == 1
    assert "version 7 must not answer: rolled back to version 6 by 127.0.0.1; version 6 answers instead" in said
    assert "do: to have version 7 answer again: tfs-lite rollback m --undo" in said
    assert "ABORTED: rolled back to version 6" in night.run("status")[1]
    assert night.metric("version_rejected") == 1
    assert night.metric("taken_back_total") == 0
    assert ("TAKEN_BACK", 7, "OPERATOR") in [event[:3] for event in night.events()]
    why = next(text for kind, version, _, text in night.events() if (kind, version) == ("UNASPIRED", 7))
    assert "rolled back to version 6" in why
    code, said = night.run("rollback", "m", "--undo", grpc=True)
    assert code == 0
    assert said.startswith("model m: the rollback is undone; version 7 answers now, after ")
    assert night.run("explain", "m")[0] == 0
    assert night.metric("version_rejected") == 0


@pytest.mark.parametrize("grpc", [False, True])
def test_who_may_only_manage_hears_that_it_is_done_and_does_not_do_it_twice(
    tmp_path: Path, capsys: Captured, grpc: bool
) -> None:
    night, token = NightFixture(tmp_path, capsys), tmp_path / "token"
    for version in (5, 6, 7):
        night.put(version)
    token.write_text(SECRET)
    options = {"model_name": "m", "model_base_path": str(tmp_path / "m"), "bake_seconds": 60}
    access = {"read_access": "token", "management_access": "token"}
    options |= {"trusted_model_base_paths": (str(tmp_path / "**"),), **access}
    with managed(tmp_path, [access_line("ops", "manage", SECRET)], **options) as server:
        night.served = server.served
        by = f"--token_file={token}"
        code, said = night.run("rollback", "m", by, grpc=grpc)
        assert (code, said) == (0, "model m: version 6 is to answer; this token may not read how it stands\n")
        night.wait_answer(6)
        code, said = night.run("rollback", "m", "--undo", by, grpc=grpc)
        assert (code, said) == (0, "model m: the rollback is undone; this token may not read how it stands\n")
        night.wait_answer(7)
        night.put(8)
        night.wait_answer(8)
        code, said = night.run("guard", "undo", "m", by, grpc=grpc)
        assert code == 0
        assert said.startswith("model m: undo is done; version ")
        assert said.endswith("; this token may not read how it stands\n")
        night.wait_answer(7)
        code, said = night.run("guard", "accept", "m@8", "--wait=5", by, grpc=grpc)
        assert code == 1
        assert "model m: accept is done; version " in said
        assert "it cannot be waited for: " in said
        night.wait_answer(8)
        code, said = night.run("guard", "m", by, grpc=grpc)
        assert code == 1, "there is nothing but to read"


def test_a_rollback_that_could_not_be_written_down_says_that_a_restart_forgets_it(
    tmp_path: Path, capsys: Captured
) -> None:
    night, state = NightFixture(tmp_path, capsys), tmp_path / "state"
    for version in (6, 7):
        night.put(version)
    options = {"trusted_model_base_paths": (str(tmp_path / "**"),), "state_directory": str(state)}
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m"), **options) as night.served:
        shutil.rmtree(state)
        code, said = night.run("rollback", "m")
        assert code == 0
        why = "guard.json of the state directory cannot be written: No such file or directory"
        assert f". A restart of the server forgets this, because {why}\n" in said


def test_the_next_push_undoes_a_rollback(night: NightFixture) -> None:
    assert night.run("rollback", "m", "--to", "6", grpc=True)[0] == 0
    assert night.rollout()["rejected"][0]["rolled_back"] is True
    night.put(8)
    night.wait_answer(8)
    assert night.run("explain", "m")[0] == 0


def test_what_cannot_be_gone_back_to_is_said_with_what_there_is(night: NightFixture) -> None:
    code, said = night.run("rollback", "m", "--to", "3")
    assert code == 1
    assert "version 3 is not on disk, or not complete; complete are 6, 7; version 7 answers now" in said
    assert "7 (SERVING), 6 (NOT_WANTED)" in said
    assert "tfs-lite publish SRC --base BASE" in said
    code, said = night.run("rollback", "m", "--to", "7")
    assert code == 1
    assert "version 7 is the highest one already; version 7 answers now" in said
    code, said = night.run("rollback", "m", "--undo")
    assert code == 1
    assert "no rollback is in force; version 7 answers now" in said
    night.run("rollback", "m")
    code, said = night.run("rollback", "m")
    assert code == 1
    assert "there is no version below 6 to go back to; version 6 answers now" in said
    code, said = night.run("rollback", "n")
    assert code == 1
    assert "did you mean m" in said or "served are: m" in said
    assert night.run("rollback", "m@stable")[0] == night.run("rollback", "m", "--undo", "--to=6")[0] == 2


def test_a_version_that_cannot_be_loaded_changes_nothing_and_says_why(night: NightFixture) -> None:
    night.put(5, BROKEN)
    code, said = night.run("rollback", "m", "--to", "5")
    assert code == 1
    assert "version 5 cannot answer in place of a newer one: its load failed" in said
    assert "no weights" in said
    assert "version 7 answers now" in said
    assert "tfs-lite rollback m --to VERSION" in said
    assert night.served.version() == 7
    assert [kind for kind, version, *_ in night.events() if version == 5][-1] == "WAY_BACK_FAILED"


def test_a_bad_push_is_named_everywhere_and_accepted_only_by_command(night: NightFixture) -> None:
    night.put(8, RAISES)
    wait_until(lambda: night.rollout()["state"] == "BAKING", "version 8 is on trial", TIMEOUT)
    assert night.metric("on_trial") == 1

    def is_taken_back() -> bool:
        assert night.served.version() == 7  # whatever version 8 does
        return bool(night.rollout()["rejected"])

    assert night.served.version() == 7
    code, said = night.run("guard", "m")
    assert code == 0
    assert "version 8 answers, but it is on trial until" in said
    assert "version 7 answered them" in said
    assert "do: wait: the trial ends by itself; to go back to version 7 now: tfs-lite guard undo m" in said
    wait_until(is_taken_back, "version 8 is taken back", TIMEOUT)
    code, said = night.run("guard", "m", "--wait", "5")
    assert code == 1
    assert "version 8 must not answer: taken back after" in said
    assert "version 7 answered all: INTERNAL: model m version 8 failed: it is broken; version 7 answers" in said
    code, said = night.run("explain", "m")
    assert code == 1
    assert said.startswith("m (SERVING_OTHER): version 8 must not answer: taken back after")
    assert "tfs-lite guard retry m@8" in said
    assert "STANDS_IN" not in said
    line = httpx.get(f"{night.served.url}/v1/models:explain").json()["models"][0]
    assert (line["verdict"], line["version"], line["cause"]) == ("SERVING_OTHER", 7, "TAKEN_BACK")
    causes = {kind: cause for kind, version, cause, _ in night.events() if version == 8}
    assert {causes[kind] for kind in ("BAKE_BEGUN", "SHIELDED", "TAKEN_BACK", "UNASPIRED")} == {"GUARD"}
    assert (night.metric("taken_back_total"), night.metric("on_trial")) == (1, 0)
    faults = night.metric("trial_requests_total", outcome="fault")
    assert faults == night.metric("shielded_requests_total") >= 10  # type: ignore[operator]
    explanation = httpx.get(f"{night.served.url}/v1/overview?model=m").json()["details"]["explanation"]
    assert explanation["rollout"]["back_to"] == 6
    answer = night.post(action="accept", version=8)
    assert answer.status_code == 200
    wait_until(lambda: night.rollout()["answers"] == 8, "version 8 answers as it is", TIMEOUT)
    assert ("LIFTED", 8, "OPERATOR") in [event[:3] for event in night.events()]
    assert night.run("guard", "m@8", "--wait", "20")[0] == 0


def test_an_undo_takes_a_version_on_trial_back_at_once(night: NightFixture) -> None:
    night.put(8)
    wait_until(lambda: night.rollout()["state"] == "BAKING", "version 8 is on trial", TIMEOUT)
    assert night.rollout()["back_to"] == 7
    assert night.served.version() == 8
    code, said = night.run("guard", "m", "--wait", "0.2")
    assert code == 1
    assert "version 8 is not decided after 0.2 s" in said
    code, said = night.run("guard", "undo", "m")
    assert (code, night.served.version()) == (0, 7)
    assert "taken back by 127.0.0.1" in said
    assert "do: to have it answer again: tfs-lite guard accept m@8" in said
    code, said = night.run("guard", "undo", "m")
    assert (code, night.served.version()) == (1, 7)
    assert "model m has no trial; tfs-lite rollback m goes back to an older version" in said
    assert night.run("guard", "accept", "m@8", "--wait", "20")[0] == 0
    night.wait_answer(8)


def test_doors_are_one_contract_over_http_and_grpc(night: NightFixture) -> None:
    client, rollout = night.served.client, night.rollout()
    assert client.guard("m") == rollout == client.explain("m")["rollout"]
    assert (rollout["state"], rollout["answers"], rollout["back_to"], rollout["rejected"]) == ("NONE", 7, 6, [])
    assert client.rollback("m", 6)["going_back"] in (6, None)
    night.wait_answer(6)
    client.rollback("m", undo=True)
    night.wait_answer(7)
    for body, part in (({"action": "x"}, "one of: accept"), ({}, "an action"), ({"action": "undo", "to": 1}, "'to'")):
        answer = night.post(**body)
        assert answer.status_code == 400
        assert part in answer.json()["error"]
    assert night.post(action="rollback", version=3).status_code == 404
    assert night.post(action="retry").status_code == 400
    unknown = httpx.get(f"{night.served.url}/v1/models/n:guard")
    assert (unknown.status_code, "no model named 'n' is served" in unknown.text) == (404, True)
    with pytest.raises(ServingError, match="nothing to accept") as error:
        client.guard("m", "accept")
    assert error.value.code is StatusCode.FAILED_PRECONDITION
    schemas = httpx.get(f"{night.served.url}/openapi.json").json()
    assert schemas["paths"]["/v1/models/{model}:guard"].keys() >= {"get", "post"}
    assert sorted(rollout) == sorted(schemas["components"]["schemas"]["Rollout"]["properties"])
    code, said = night.run("guard", "m", "--json")
    assert (code, json.loads(said)["answers"]) == (0, 7)


def test_a_version_that_was_held_back_is_named_and_answers_only_by_command(night: NightFixture) -> None:
    """Recorded answers have an output that it does not give."""
    recorded = night.root / "m" / "replay.tfrecord"
    asked = night.root / "asked.json"
    asked.write_text('{"inputs": {"x": [[1.0, 2.0, 3.0]]}}')
    where = f"--server={night.served.target}"
    assert main(["record", "--model_name=m", f"--out={recorded}", where, str(asked)]) == 0
    night.put(8, RENAMED)
    wait_until(lambda: night.metric("held_back_total") == 1, "version 8 is held back", TIMEOUT)
    code, said = night.run("guard", "m@8", "--wait", "20")
    assert code == 1
    assert "version 8 is held back: " in said
    assert "version 7 answers" in said
    assert "tfs-lite rollback stays with version 7" in night.run("guard", "m")[1], "and 8 must not answer then"
    code, said = night.run("explain", "m")
    assert code == 1
    assert said.startswith("m (SERVING_OTHER): version 8 is held back: replay.tfrecord: record 1 (serving_default, ")
    assert "HELD_BACK: " in said
    assert "tfs-lite guard accept m@8" in said
    assert night.served.version() == 7
    assert "HELD_BACK" in [kind for kind, version, *_ in night.events() if version == 8]
    assert night.run("guard", "accept", "m@8", "--wait", "20")[0] == 0
    assert night.rollout()["answers"] == 8
