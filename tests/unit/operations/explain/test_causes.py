"""Causes of snapshots that are made up: bounds of chains and texts; figures that a real server shows for a moment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tfs_lite.core.model import SharedRuns
from tfs_lite.core.resources import MAIN, Resource, ResourceAllocation
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.managers.harness import HarnessState, Overdue, ServableStateSnapshot
from tfs_lite.managers.survey import LoadStage, LoadView, ManagerView, VersionView
from tfs_lite.metrics.batches import WorkerState
from tfs_lite.metrics.requests import RequestTotals
from tfs_lite.operations.explain import causes
from tfs_lite.operations.explain.answers import explain, line_of_model
from tfs_lite.operations.explain.causes.case import Case
from tfs_lite.operations.explain.causes.files import artefact_refused
from tfs_lite.operations.explain.causes.serving import stands_in
from tfs_lite.operations.explain.explanation import (
    MAX_CHAIN,
    MAX_TEXT,
    Explanation,
    ModelVerdict,
    Verdict,
    shortened,
    worst_first,
)
from tfs_lite.operations.explain.snapshot import (
    Failing,
    Incomplete,
    ModelSnapshot,
    Pace,
    ServerSnapshot,
    VersionSnapshot,
    answered_before,
)
from tfs_lite.operations.failed_requests.ring import FailedRequest
from tfs_lite.serving.model_states import DIRECTORY_GONE, FILES_OF_BEFORE
from tfs_lite.serving.version_follower import CHANGED, CHANGED_FILES
from tfs_lite.serving.view import Burden
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy
from tfs_lite.workers.supervisor import Unanswered

FAILED = FailedRequest(1e9, "i", "", "Predict", "gRPC", "m", 1, "INTERNAL", "run", "it broke", 0, 0, 0, 1, 1, "", "")
SERVER = ServerSnapshot(1e9, 50.0, ManagerView(50.0), known=("m",))


def model(*versions: VersionSnapshot, name: str = "m", **rest: object) -> ModelSnapshot:
    return replace(ModelSnapshot(name, SERVER, True, {each.version: each for each in versions}), **rest)  # type: ignore[arg-type]


def loading(version: int, name: str = "m", **load: object) -> VersionSnapshot:
    state = ServableStateSnapshot(ServableId(name, version), HarnessState.LOADING, True)
    view = VersionView(state, load=LoadView(**{"since": 49.0, **load}))  # type: ignore[arg-type]
    return VersionSnapshot(version, view, aspired=True)


def ask(snapshot: ModelSnapshot, version: int | None = None, label: str | None = None) -> Explanation:
    return explain(snapshot, ModelRef(snapshot.name, version, label))


def test_the_digests_that_are_being_checked_are_counted() -> None:
    found = VersionSnapshot(1, on_disk=True, incomplete=Incomplete("checking the digests", hashed=(1 << 20, 4 << 20)))
    link = ask(model(found), 1).because[0]
    assert "(1.0 MiB of 4.0 MiB done)" in link.text


def test_the_next_attempt_has_a_time_on_the_wall() -> None:
    failed = Status(StatusCode.UNAVAILABLE, "the disk is away")
    between = loading(1, stage=LoadStage.BETWEEN_ATTEMPTS, retry_at=60.0, failures=2, max_attempts=6, failure=failed)
    answer = ask(model(between), 1)
    assert answer.verdict is Verdict.WAITING
    assert answer.next.at == 1e9 + 10
    assert answer.next.what == "attempt 3 of 6"
    assert "attempt 2 of 6 failed: the disk is away" in answer.because[0].text


@pytest.mark.parametrize(
    ("reason", "mode", "fix"),
    [
        (None, "poll", "before the next attempt at 01:46:50 UTC; a change of its files is noticed and tried at once"),
        (None, "explicit", "mend that before the next attempt at "),
        (Reason.FILES_CHANGED, "poll", "wait: its files are loaded as they are now"),
        (Reason.FILES_CHANGED, "explicit", "mend that before the next attempt at "),
    ],
)
def test_the_next_attempt_comes_by_itself_and_a_change_of_files_is_quicker(
    reason: Reason | None, mode: str, fix: str
) -> None:
    failed = Status(StatusCode.UNAVAILABLE, "its files changed", reason)
    between = loading(1, stage=LoadStage.BETWEEN_ATTEMPTS, retry_at=60.0, failures=2, max_attempts=6, failure=failed)
    found = model(between)
    found = replace(found, server=replace(found.server, control_mode=mode))
    assert fix in ask(found, 1).because[0].fix


def test_a_chain_of_waiting_ensembles_ends() -> None:
    """Even one that waits for itself, over two others."""
    names = ("a", "b", "c")
    found: dict[str, ModelSnapshot] = {}
    for name, other in zip(names, (*names[1:], names[0]), strict=True):
        status = Status(StatusCode.UNAVAILABLE, "waits", Reason.WAITS_FOR_MODELS, (other,))
        waits = loading(1, name, stage=LoadStage.NEEDS_OTHERS, failure=status, waits=Reason.WAITS_FOR_MODELS)
        found[name] = model(waits, name=name)
    nested = replace(found["a"], others={"b": replace(found["b"], others={"c": replace(found["c"], others=found)})})
    answer = ask(nested, 1)
    assert 3 <= len(answer.because) <= MAX_CHAIN
    assert answer.waits_for == ("b",)


def test_long_and_hostile_texts_are_cut_and_cleaned() -> None:
    status = Status(StatusCode.FAILED_PRECONDITION, "\x1b[31m" + "x" * 5000 + "\ud800")
    state = ServableStateSnapshot(ServableId("m", 1), HarnessState.ERROR, True, status=status)
    answer = ask(model(VersionSnapshot(1, VersionView(state), aspired=True)), 1).as_json
    texts = [answer["sentence"], *(link["text"] for link in answer["because"])]
    assert all(len(text) <= MAX_TEXT and text.isprintable() for text in texts)
    assert answer["verdict"] == "FAILED"
    assert shortened("ü" * MAX_TEXT) == "ü" * MAX_TEXT


def test_a_model_says_that_another_version_answers_meanwhile() -> None:
    ready = ServableStateSnapshot(ServableId("m", 1), HarnessState.READY, False)
    old = VersionSnapshot(1, VersionView(ready, answers=True))
    line = line_of_model(model(loading(2, stage=LoadStage.AT_WORK), old))
    assert (line.verdict, line.version) == (Verdict.SERVING_OTHER, 1)
    assert line.sentence.endswith("version 1 answers instead")
    assert line.cause is not None


def serving(version: int, **rest: object) -> VersionSnapshot:
    ready = ServableStateSnapshot(ServableId("m", version), HarnessState.READY, True)
    view = VersionView(ready, answers=True)
    return replace(VersionSnapshot(version, view, aspired=True, on_disk=True), **rest)  # type: ignore[arg-type]


def test_steps_of_other_loads_that_hang_are_told_beside_the_one_that_answers() -> None:
    """The load that was replaced waits for its requests, or is being unloaded; the next one is being loaded."""
    beside = [(Overdue.DRAIN, 41.0), (Overdue.UNLOAD, 42.0), (Overdue.LOAD, 43.0)]
    for (step, since), cause in zip(beside, ("DRAIN_HANGS", "UNLOAD_HANGS", "LOAD_HANGS"), strict=True):
        leaving = 2 if step is Overdue.DRAIN else 0
        ready = ServableStateSnapshot(ServableId("m", 1), HarnessState.READY, True)
        view = VersionView(ready, answers=True, leaving=leaving, hangs_beside=((step, since),))
        hangs = model(serving(1, view=view))
        answer = ask(hangs)
        (link,) = answer.because
        assert (answer.verdict, link.cause, link.since) == (Verdict.SERVING, cause, 1e9 - (50 - since))
        assert "others go on" in link.text
        line = line_of_model(hangs)
        assert (line.verdict, line.cause, line.fix) == (Verdict.SERVING, cause, link.fix)
        assert link.text in line.sentence
        (own,) = ask(hangs, 1).because
        assert (own.cause, f"version 1: {own.text}") == (cause, link.text)


def test_a_remark_about_a_version_that_serves_does_not_read_like_its_answer() -> None:
    missing = Status(StatusCode.NOT_FOUND, "model m: its base path does not exist")
    assert ask(model(serving(1), report=SourceReport("m", missing))).sentence.startswith(
        "version 1 answers, but model m: its base path"
    )


def test_version_that_stays_says_for_how_long_and_the_model_what_it_waits_for() -> None:
    half = VersionSnapshot(2, on_disk=True, incomplete=Incomplete("model.pt2 is truncated"))
    old = serving(1, place="stays until version 2 is available, which waits: model.pt2 is truncated")
    report = SourceReport("m", waiting={2: "model.pt2 is truncated"}, keeps="nothing that is wanted now is there yet")
    found = model(half, old, report=report)
    assert [(link.cause, link.text) for link in ask(found, 1).because] == [("STAYS", f"it {old.place}")]
    answer = ask(found)
    assert answer.verdict is Verdict.SERVING_OTHER
    assert answer.sentence.startswith("version 2 waits: its files are not complete: model.pt2 is truncated")
    assert (answer.because[-1].cause, answer.because[-1].text) == ("STAYS", f"version 1 {old.place}")
    assert old.place in line_of_model(found).sentence


def test_model_is_about_the_version_that_is_wanted_now_though_a_higher_one_stays() -> None:
    half = VersionSnapshot(1, on_disk=True, incomplete=Incomplete("model.pt2 is truncated"))
    found = model(half, serving(2), report=SourceReport("m", waiting={1: "truncated"}, keeps="not there yet"))
    assert ask(found).sentence.startswith("version 1 waits")


def test_version_that_serves_without_its_directory_says_what_to_do_before_a_restart() -> None:
    gone = {2: "there is no such version directory"}
    report = SourceReport("m", waiting=gone, on_disk=frozenset({1}), keeps="nothing that is wanted now is there yet")
    found = model(serving(2, place=DIRECTORY_GONE, on_disk=False), report=report)
    (link,) = ask(found, 2).because
    assert link.text == "it stays, though there is no such version directory any more"
    assert "before the next restart" in link.fix


def test_version_that_stands_in_names_the_one_that_failed_and_how_that_ends() -> None:
    corrupt = Status(StatusCode.DATA_LOSS, "model.pt2 is damaged")
    error = ServableStateSnapshot(ServableId("m", 3), HarnessState.ERROR, True, status=corrupt)
    bad = VersionSnapshot(3, VersionView(error), aspired=True, on_disk=True)
    good = serving(2, place="stands in for version 3, whose load failed")
    found = model(bad, good, report=SourceReport("m", failed=frozenset({3}), stand_ins=frozenset({2})))
    (link,) = ask(found, 2).because
    assert (link.cause, link.text) == ("STANDS_IN", "it stands in for version 3, whose load failed")
    assert "publish a good one as version 4" in link.fix
    answer = ask(found)
    assert answer.sentence == "version 3 is refused: model.pt2 is damaged; version 2 answers instead"
    assert [each.cause for each in answer.because] == ["ARTEFACT_REFUSED", "STANDS_IN"]


def test_version_that_stands_in_for_one_that_failed_on_the_config_beside_them_says_to_mend_that() -> None:
    """The next push would fail on it, too."""
    wrong = Status(StatusCode.INVALID_ARGUMENT, 'config.yaml:1:1: unknown field "max_batch"')
    error = ServableStateSnapshot(ServableId("m", 3), HarnessState.ERROR, True, status=wrong)
    bad = VersionSnapshot(3, VersionView(error), aspired=True, on_disk=True)
    good = serving(2, place="stands in for version 3, whose load failed")
    report = SourceReport("m", failed=frozenset({3}), stand_ins=frozenset({2}))
    found = replace(model(bad, good, report=report), config_name="config.yaml", base_path="/models/m")
    link = stands_in(Case.of(found, 2, paths=True))
    assert link is not None
    assert link.fix == "correct the config file /models/m/config.yaml, which every version is loaded with; it goes then"
    link = stands_in(Case.of(found, 2))
    assert link is not None
    assert "correct the config file config.yaml," in link.fix
    link = artefact_refused(Case.of(found, 3, paths=True))
    assert link is not None
    assert link.fix.startswith("correct /models/m/config.yaml: ")


def test_base_path_that_is_another_directory_now_says_what_brings_it_back() -> None:
    gone = Status(StatusCode.NOT_FOUND, "model m: its base path has become another directory, which holds no version")
    (link,) = ask(model(serving(1), report=SourceReport("m", gone, keeps="it is empty"))).because
    assert link.cause == "BASE_PATH_PROBLEM"
    assert "bring the volume or directory of before back" in link.fix


def test_name_that_looks_like_a_version_is_told_of_the_model_and_not_of_each_version() -> None:
    report = SourceReport("m", passed_over={"12345678901234567890": "the highest version is 9223372036854775807"})
    found = model(serving(1), report=report)
    (link,) = ask(found).because
    assert link.cause == "NAME_PASSED_OVER"
    assert link.text.startswith("12345678901234567890 beside the versions is passed over")
    assert not ask(found, 1).because


def test_what_a_killed_publication_has_left_goes_with_the_next_one() -> None:
    report = SourceReport("m", passed_over={".publish-2-aa": "a publication that did not end has left it"})
    (link,) = ask(model(serving(1), report=report)).because
    assert link.fix == "publish again, or remove the directory"


def test_half_a_copy_is_not_to_be_published_as_a_version_that_exists() -> None:
    """``tfs-lite publish`` never overwrites one."""
    half = VersionSnapshot(2, on_disk=True, incomplete=Incomplete("model.pt2 is truncated"))
    fix = ask(model(half, serving(1)), 2).because[0].fix
    assert "--version 2" not in fix
    assert "as version 3: tfs-lite publish SRC --base BASE --version 3" in fix


def test_the_fix_of_a_policy_can_be_copied_into_the_config() -> None:
    found = VersionSnapshot(2, on_disk=True)
    fix = ask(model(found, serving(1), policy=SpecificPolicy((1,))), 2).because[0].fix
    assert "model_version_policy { specific { versions: 1 versions: 2 } }" in fix


def test_old_versions_that_were_there_before_are_not_worth_a_word() -> None:
    """Only what came last, or is the highest, is looked for by somebody."""
    old = [VersionSnapshot(each, on_disk=True, arrived=1.0) for each in (1, 2)]
    at_start = model(*old, serving(3, arrived=1.0))
    later = model(*old, serving(3, arrived=2.0))
    assert {line_of_model(each).sentence for each in (at_start, later)} == {"version 3 answers"}
    assert not ask(later).because


def test_a_version_that_came_last_and_is_not_wanted_is_named_without_a_remedy_in_the_list() -> None:
    pushed = model(VersionSnapshot(2, on_disk=True, arrived=5.0), serving(3, arrived=1.0))
    line = line_of_model(pushed)
    assert line.sentence.startswith("version 3 answers; version 2 came last, but the version policy latest")
    assert (line.cause, line.fix) == ("POLICY_PASSES_OVER", "")
    both = replace(pushed, versions={**pushed.versions, 4: VersionSnapshot(4, on_disk=True, arrived=1.0)})
    specific = replace(both, policy=SpecificPolicy((3,)))
    assert [link.text.partition(",")[0] for link in ask(specific).because] == ["version 4 is on disk and newer"]


def test_calls_are_slow_if_they_wait_longer_than_they_run_and_longer_than_anybody_would_ask_about() -> None:
    idle = Burden(3, None, ())

    def of(wait: float, run: float, burden: Burden = idle, requests: int = 10) -> list[str]:
        return [link.cause for link in ask(model(serving(1, burden=burden, pace=Pace(wait, run, requests)))).because]

    assert of(wait=0.3, run=0.1) == ["SLOW"]
    assert not of(wait=0.1, run=0.3)
    assert not of(wait=0.03, run=0.001)
    assert not of(wait=0.3, run=0.1, requests=9)
    full = Burden(3, Status(StatusCode.RESOURCE_EXHAUSTED, "the queue is full", Reason.QUEUE_FULL), ())
    assert of(wait=0.3, run=0.1, burden=full) == ["QUEUE_FULL"]
    text = ask(model(serving(1, burden=idle, pace=Pace(1.25, 0.1, 10)))).because[0].text
    assert "1.2 s for a run of 100.0 ms" in text
    assert "3 calls waiting now" in text


def test_an_overloaded_version_whose_batching_is_off_is_told_so_first() -> None:
    full = Status(StatusCode.RESOURCE_EXHAUSTED, "the queue is full", Reason.QUEUE_FULL)
    refused = replace(FAILED, code="UNAVAILABLE", stage="queue", message="the queue is full")

    def fixes(shared_runs: SharedRuns, **rest: str) -> list[str]:
        burdens = Burden(3, full, (), shared_runs), Burden(3, None, (), shared_runs)
        failing = Failing(100, 99, refused)
        found = [serving(1, burden=each, pace=Pace(0.3, 0.1, 100, 99), failing=failing) for each in burdens]
        return [link.fix for each in found for link in ask(model(each, **rest)).because]

    off = fixes(SharedRuns.OFF)
    assert len(off) == 4  # QUEUE_FULL and SLOW, and FAILING of each
    for fix in off:
        assert fix.startswith("batching is off for this version, and each call runs alone")
        assert fix.index("add dynamic_batching {} to config.pbtxt") < fix.index("--enable_batching")
        assert fix.index("--enable_batching") < fix.index("raise instance_group count")
        assert len(fix) <= MAX_TEXT
    assert "add dynamic_batching: {} to config.yaml" in fixes(SharedRuns.OFF, config_name="config.yaml")[0]
    for fix in fixes(SharedRuns.NEVER):
        assert "raise instance_group count" in fix
        assert "batch" not in fix
    for fix in fixes(SharedRuns.BY_CONFIG):
        assert "raise instance_group count or max_batch_size" in fix
        assert "dynamic_batching" not in fix


def test_a_version_that_fails_what_the_one_before_answered_is_to_be_rolled_back() -> None:
    message = "Signature input alias: features not found in request"
    refused = replace(FAILED, version=14, code="INVALID_ARGUMENT", stage="check", message=message)
    pushed = TimedState(ServableState(ServableId("m", 14), ManagerState.AVAILABLE), 1e9 - 20)
    new = serving(14, failing=Failing(80, 80, refused, before=13), state=pushed)
    (link,) = ask(model(new)).because
    assert link.text.startswith(
        "100% of its requests in the last five minutes failed (80 of 80), since version 14 became available at "
        "01:46:20 UTC (version 13 answered its requests), most of them INVALID_ARGUMENT in check"
    )
    assert link.fix.startswith("go back to the version before: tfs-lite rollback m; or mend the requests")
    beside_a_newer_one = model(serving(15), new)
    assert "rollback" not in ask(beside_a_newer_one, 14).because[0].fix


def test_the_version_before_is_the_last_one_with_requests_and_answered_nearly_all_of_them() -> None:
    def before(**codes: dict[str, float]) -> int | None:
        totals = {("m", version.removeprefix("v")): RequestTotals(found) for version, found in codes.items()}
        return answered_before({**totals, ("other", "13"): RequestTotals({"OK": 5.0})}, ServableId("m", 14))

    failed = {"INVALID_ARGUMENT": 90.0}
    assert before(v9={"OK": 1.0}, v13={"OK": 95.0, "INVALID_ARGUMENT": 5.0}, v14=failed, v15={"OK": 1.0}) == 13
    assert before(v9={"OK": 1.0}, v13={"OK": 50.0, "INTERNAL": 50.0}, v14=failed) is None
    assert before(v9={"OK": 1.0}, v13={}, v14=failed) is None
    assert before(v14=failed, v={"NOT_FOUND": 3.0}) is None


def test_a_model_most_of_whose_requests_fail_says_so_before_it_says_that_it_is_slow() -> None:
    def line(failures: int) -> ModelVerdict:
        slow = Pace(0.3, 0.1, 100, failures)
        return line_of_model(model(serving(1, pace=slow, failing=Failing(100, failures, FAILED))))

    assert (line(99).cause, line(99).failed_share) == ("FAILING", 0.99)
    assert "99% of its requests" in line(99).sentence
    assert line(5).cause == "SLOW"
    both = [link.cause for link in ask(model(serving(1, pace=Pace(0.3, 0.1, 100), failing=Failing(100, 5)))).because]
    assert both == ["SLOW", "FAILING"]


def test_the_list_of_models_is_worst_first() -> None:
    lines = [
        ModelVerdict("fine", Verdict.SERVING, ""),
        ModelVerdict("a-bit", Verdict.SERVING, "", cause="FAILING", failed_share=0.02),
        ModelVerdict("waits", Verdict.WAITING, ""),
        ModelVerdict("all", Verdict.SERVING, "", cause="FAILING", failed_share=1.0),
        ModelVerdict("most", Verdict.SERVING, "", cause="FAILING", failed_share=0.6),
        ModelVerdict("slow", Verdict.SERVING, "", cause="SLOW"),
        ModelVerdict("broken", Verdict.REFUSED, ""),
    ]
    assert [line.model for line in worst_first(lines)] == ["all", "most", "broken", "waits", "a-bit", "slow", "fine"]


def test_a_version_whose_process_is_down_answers_nothing_meanwhile() -> None:
    assert ask(model(serving(1))).answers_now
    silent = Status(StatusCode.UNAVAILABLE, "it does not answer: none is up")
    assert not ask(model(serving(1, silence=silent, replicas="none of 1 is up"))).answers_now


def test_a_call_that_is_refused_because_the_process_is_down_is_no_full_queue() -> None:
    down = Status(StatusCode.UNAVAILABLE, "m has lost its worker process")
    worker = WorkerState(ServableId("m", 1), 0, "process", False, cause="signal 9", failure="no process can be forked")
    answer = ask(model(serving(1, burden=Burden(0, down, (worker,)))))
    assert [link.cause for link in answer.because] == ["WORKER_DOWN"]


def test_process_that_is_not_started_again_names_the_one_that_starts_them() -> None:
    lost = Status(StatusCode.UNAVAILABLE, "m has lost its worker process")
    worker = WorkerState(ServableId("m", 1), 0, "process", False, cause="signal 11")
    burden = Burden(0, lost, (worker,))
    for asked, told in ((40.0, ["WORKER_RESTARTING", "PROCESS_NOT_STARTED"]), (49.0, ["WORKER_RESTARTING"])):
        answer = ask(model(serving(1, burden=burden, unanswered=Unanswered(4711, asked))))
        assert [link.cause for link in answer.because] == told
    link = ask(model(serving(1, burden=burden, unanswered=Unanswered(4711, 40.0)))).because[1]
    assert "(pid 4711) was asked for one of version 1 10 s ago" in link.text
    assert "kill -CONT 4711" in link.fix


def test_files_that_are_not_loaded_do_not_go_on_where_every_process_is_down() -> None:
    """Nothing answers, so that no text may say that the files of before do."""
    down = WorkerState(ServableId("m", 1), 0, "process", False, cause="signal 9", failure="its files have changed")
    burden = Burden(0, Status(StatusCode.UNAVAILABLE, "m has lost its worker process"), (down,))
    for remark, text in (
        (CHANGED_FILES, "its files have changed; they are not loaded yet"),
        (Status(StatusCode.DATA_LOSS, f"{FILES_OF_BEFORE}: no model"), "its new files are not loaded: no model"),
    ):
        first, second = ask(model(serving(1, remark=remark, burden=burden))).because
        assert first.cause == "WORKER_DOWN"
        assert (second.cause, second.text) == ("FILES_NOT_LOADED", text)


def test_new_files_whose_process_was_lost_at_the_load_are_not_said_to_be_wrong() -> None:
    lost = f"{FILES_OF_BEFORE}: m version 1: its process ended while the model was opened (signal 9)"
    (link,) = ask(model(serving(1, remark=Status(StatusCode.UNAVAILABLE, lost)))).because
    assert (link.cause, link.text) == ("WORKER_DOWN", lost)
    assert "give the machine more memory" in link.fix
    assert "mend the files" not in link.fix


def test_a_published_version_whose_files_were_changed_is_to_be_published_under_a_new_number() -> None:
    changed = "model.pt2 does not have the sha256 digest that the manifest lists"
    remark = Status(StatusCode.UNAVAILABLE, f"{FILES_OF_BEFORE}: {changed}")
    found = model(serving(1, remark=remark), VersionSnapshot(2, on_disk=True, incomplete=Incomplete(changed)))
    for version, fix in ((1, ask(found, 1).because[0].fix), (2, ask(found, 2).because[0].fix)):
        assert "tfs-lite publish SRC --base BASE --version 3" in fix, version
        assert "put the files back as they were published" in fix, version
        assert "manifest" not in fix, version


def test_an_ensemble_whose_step_has_gone_waits_for_its_model() -> None:
    text = "it does not answer: model s2 of its steps is not available"
    silent = Status(StatusCode.UNAVAILABLE, text, Reason.WAITS_FOR_MODELS, ("s2",))
    answer = ask(model(serving(1, silence=silent)))
    assert answer.verdict is Verdict.WAITING
    assert [link.cause for link in answer.because] == ["WAITS_FOR_MODELS"]
    assert "s2 (NOT_CONFIGURED)" in answer.because[0].text


def test_a_config_that_is_only_waiting_for_its_load_is_not_to_be_corrected() -> None:
    waits = Status(StatusCode.UNAVAILABLE, "a step is missing", Reason.WAITS_FOR_MODELS)
    assert all(ask(model(serving(1, remark=each))).because[0].fix.startswith("wait") for each in (CHANGED, waits))
    wrong = Status(StatusCode.INVALID_ARGUMENT, "config.pbtxt:1:1: no such field")
    assert ask(model(serving(1, remark=wrong))).because[0].fix.startswith("correct")


def test_a_load_with_a_changed_config_that_has_failed_is_not_only_to_be_waited_for() -> None:
    """Whatever its code."""
    for code in (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNKNOWN):
        fix = ask(model(serving(1, remark=Status(code, "it goes on with the config of before")))).because[0].fix
        assert not fix.startswith("wait")
        assert "save the model's config file again" in fix


def test_changed_files_that_are_not_served_say_what_to_do() -> None:
    waits = Status(StatusCode.UNAVAILABLE, "it goes on with the files of before: no room", Reason.WAITS_FOR_PLACE)
    for remark, begin in (
        (CHANGED_FILES, "wait"),
        (waits, "wait"),
        (Status(StatusCode.RESOURCE_EXHAUSTED, "it goes on with the files of before: no memory"), "make room"),
        (Status(StatusCode.UNAVAILABLE, "it goes on with the files of before: m is truncated"), "finish the copy"),
    ):
        (link,) = ask(model(serving(1, remark=remark))).because
        assert link.cause == "FILES_NOT_LOADED"
        assert link.fix.startswith(begin)


def test_a_version_without_memory_in_a_container_is_told_what_else_is_held_there_and_whose_limit_to_raise() -> None:
    status = Status(StatusCode.RESOURCE_EXHAUSTED, "Insufficient resources")
    kind = Resource(MAIN, "ram_in_bytes", 0)
    state = ServableStateSnapshot(ServableId("m", 1), HarnessState.ERROR, True, "", status, True)
    found = VersionSnapshot(1, VersionView(state, ResourceAllocation({kind: 160})), aspired=True, on_disk=True)
    beside = "of the 512 bytes of the control group 300 are held beside models, and 112 are kept back"
    server = replace(SERVER, memory=ResourceAllocation({kind: 100}), beside_models=beside)
    answer = ask(model(found, server=server), 1)
    assert beside in answer.because[0].text
    assert answer.because[0].fix.startswith("raise the container's limit")
    assert answer.next.what.startswith("it is tried again when memory comes free")


def test_the_last_line_of_a_version_without_memory_does_not_contradict_its_fix() -> None:
    status = Status(StatusCode.RESOURCE_EXHAUSTED, "Insufficient resources")
    needs = {Resource(MAIN, "ram_in_bytes", 0): 60}
    server = replace(SERVER, memory=ResourceAllocation({Resource(MAIN, "ram_in_bytes", 0): 100}))
    for has_loader, then in ((True, "it is tried again when memory comes free"), (False, "nothing happens")):
        state = ServableStateSnapshot(ServableId("m", 1), HarnessState.ERROR, True, "", status, has_loader)
        found = VersionSnapshot(1, VersionView(state, ResourceAllocation(needs)), aspired=True, on_disk=True)
        answer = ask(model(found, server=server), 1)
        assert answer.next.what.startswith(then)
        assert ("tried again by itself" in answer.because[0].fix) is has_loader


def test_a_version_that_never_fits_is_not_to_be_helped_by_unloading_others() -> None:
    status = Status(StatusCode.RESOURCE_EXHAUSTED, "Insufficient resources")
    kind = Resource(MAIN, "ram_in_bytes", 0)
    state = ServableStateSnapshot(ServableId("m", 1), HarnessState.ERROR, True, "", status, True)
    found = VersionSnapshot(1, VersionView(state, ResourceAllocation({kind: 200})), aspired=True, on_disk=True)
    server = replace(SERVER, memory=ResourceAllocation({kind: 100}))
    answer = ask(model(found, server=server), 1)
    assert "nothing that is unloaded makes enough room" in answer.because[0].fix
    assert "max_batch_tokens of an encoder" in answer.because[0].fix
    assert answer.next.what == "nothing happens before its files change"


def refused(version: int, message: str = "model.pt2 is damaged") -> VersionSnapshot:
    state = ServableStateSnapshot(
        ServableId("m", version), HarnessState.ERROR, True, status=Status(StatusCode.DATA_LOSS, message)
    )
    return VersionSnapshot(version, VersionView(state), aspired=True, on_disk=True)


def test_a_version_that_is_wanted_too_and_can_never_be_served_is_named_although_a_newer_one_answers() -> None:
    found = model(refused(2), serving(3, on_disk=True), policy=LatestPolicy(3))
    answer = ask(found)
    assert (answer.verdict, answer.sentence) == (Verdict.SERVING, "version 3 answers")
    (link,) = answer.because
    assert link.cause == "ARTEFACT_REFUSED"
    assert link.text == "version 2 is wanted too, but is refused: model.pt2 is damaged"
    assert "publish a good one as version 4" in link.fix
    line = line_of_model(found)
    assert line.sentence == f"version 3 answers; {link.text}"
    assert (line.verdict, line.cause, line.fix) == (Verdict.SERVING, "ARTEFACT_REFUSED", link.fix)
    assert not ask(found, 3).because


def test_a_version_that_is_half_written_is_named_only_if_the_policy_wants_it_too() -> None:
    half = VersionSnapshot(2, on_disk=True, incomplete=Incomplete("model.pt2 is truncated"))
    everything = model(half, serving(3, on_disk=True), policy=AllPolicy())
    (link,) = ask(everything).because
    assert link.text == "version 2 is wanted too, but waits: its files are not complete: model.pt2 is truncated"
    assert "finish the copy" in link.fix
    assert not ask(replace(everything, policy=LatestPolicy(1))).because


def test_a_version_that_answers_beside_the_newest_with_files_of_before_is_named() -> None:
    kept = Status(StatusCode.DATA_LOSS, f"{FILES_OF_BEFORE}: model.pt2 is damaged")
    found = model(serving(1), serving(2, remark=kept), serving(3), policy=AllPolicy())
    (link,) = ask(found).because
    assert (link.cause, link.text) == ("FILES_NOT_LOADED", f"version 2: {kept.message}")
    assert "mend the files" in link.fix
    line = line_of_model(found)
    assert (line.sentence, line.fix) == (f"version 3 answers; version 2: {kept.message}", link.fix)


def test_a_version_that_is_loaded_and_down_does_not_answer_instead() -> None:
    ended = Status(StatusCode.UNAVAILABLE, "it does not answer: its process ended")
    found = model(serving(1, silence=ended), loading(2, stage=LoadStage.AT_WORK), policy=LatestPolicy(1))
    for asked in (None, 2):
        assert ask(found, asked).sentence.endswith("; version 1 is loaded, but does not answer")


def test_versions_that_are_on_their_way_beside_the_one_that_answers_need_no_word() -> None:
    assert not ask(model(loading(2, stage=LoadStage.AT_WORK), serving(3, on_disk=True), policy=AllPolicy())).because


def test_a_version_that_the_policy_names_and_that_is_not_there_is_named() -> None:
    (link,) = ask(model(serving(3, on_disk=True), policy=SpecificPolicy((1, 3)))).because
    assert link.text.startswith("version 1 is wanted too, but is not on disk: there is no directory 1")


def test_of_many_versions_that_do_not_come_to_answer_some_are_explained_and_the_others_named() -> None:
    found = model(*(refused(each) for each in range(1, 21)), serving(21, on_disk=True), policy=AllPolicy())
    links = ask(found).because
    assert [link.text.partition(" is wanted")[0] for link in links[:3]] == ["version 20", "version 19", "version 18"]
    more = "these are wanted too, but do not answer: versions 17, 16, 15, 14, 13 and 12 more"
    assert links[3].text == more
    assert links[3].fix == "tfs-lite explain m@17 says why, and so on"
    assert len(links) == 4


def test_a_model_whose_version_policy_cannot_be_read_says_so_once() -> None:
    """The version has a config of its own, and nothing to say."""
    wrong = Status(StatusCode.INVALID_ARGUMENT, 'config.yaml:1:1: unknown field "version_polcy"')
    (link,) = ask(model(serving(4), unread_policy=wrong)).because
    assert link.cause == "CONFIG_NOT_APPLIED"
    assert link.text.endswith(f"the config beside its versions is wrong: {wrong.message}")
    assert "correct that config file" in link.fix
    goes_on = replace(wrong, message=f"it goes on with the config of before: {wrong.message}")
    (link,) = ask(model(serving(4, remark=goes_on), unread_policy=wrong)).because
    assert link.text == goes_on.message


def test_the_page_has_a_row_of_every_cause_and_of_no_other() -> None:
    page = (Path(__file__).parents[4] / "docs" / "explain.md").read_text(encoding="utf-8")
    table = page.partition("\n## Causes\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall("`([A-Z_]+)`", " ".join(rows))) == set(_causes_said())


def _causes_said() -> Iterator[str]:
    """The names that links are made with."""
    for path in Path(causes.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Link":
                names = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
                assert names, f"{path.name}:{node.lineno} gives no name"
                yield from names
