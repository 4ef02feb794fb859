"""What explain says of versions on trial, taken back, held back and rolled back: which one answers, why, what helps."""

from __future__ import annotations

from dataclasses import replace

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.managers.harness import HarnessState, ServableStateSnapshot
from tfs_lite.managers.survey import ManagerView, VersionView
from tfs_lite.operations.explain.answers import explain, line_of_model
from tfs_lite.operations.explain.explanation import Explanation, Verdict
from tfs_lite.operations.explain.snapshot import ModelSnapshot, ServerSnapshot, VersionSnapshot
from tfs_lite.operations.guard.evidence import Failure, TrialCounts
from tfs_lite.operations.guard.stage import GuardView
from tfs_lite.operations.guard.trial import By, Judgement, Rejection, Running, Stage, TrialSettings
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy

SERVER = ServerSnapshot(1e9, 50.0, ManagerView(50.0), known=("m",))
BAKING = Running(8, 7, "files", Stage.BAKING, 0.0, TrialSettings(bake_seconds=600))
WHY = "taken back after 11 s: 1000 of 1000 requests failed, version 7 answered all: INTERNAL: it is broken"
TAKEN_BACK = Rejection(8, "files", WHY, 1e9 - 60)
ROLLED_BACK = Rejection(8, "files", "rolled back to version 7 by ops", 1e9 - 60, By.OPERATOR, True)


def answers(version: int, aspired: bool = True, state: HarnessState = HarnessState.READY) -> VersionSnapshot:
    view = VersionView(ServableStateSnapshot(ServableId("m", version), state, aspired), answers=True)
    return VersionSnapshot(version, view, aspired=aspired, on_disk=True)


def on_disk(version: int) -> VersionSnapshot:
    return VersionSnapshot(version, on_disk=True)


def model(
    view: GuardView, *versions: VersionSnapshot, counts: TrialCounts | None = None, **rest: object
) -> ModelSnapshot:
    found = ModelSnapshot("m", SERVER, True, {each.version: each for each in versions})
    return replace(found, guard=(view, counts or TrialCounts()), **rest)  # type: ignore[arg-type]


def ask(snapshot: ModelSnapshot, version: int | None = None, label: str | None = None) -> Explanation:
    return explain(snapshot, ModelRef("m", version, label))


def test_a_version_on_trial_serves_and_says_how_it_stands() -> None:
    view = GuardView("m", BAKING, 1e9, 1e9 + 620, Judgement(against=3, needed=15))
    failure = Failure("r", "INTERNAL: it is broken")
    counts = TrialCounts(requests=1204, failed=31, shielded=31, faults=31, failures=(failure,))
    found = ask(model(view, answers(8), answers(7), counts=counts))
    assert found.verdict is Verdict.SERVING
    assert found.sentence == (
        "version 8 answers, but it is on trial until 01:57:00 UTC: 31 of 1,204 requests failed, version 7 answered "
        "them; 3 of 15 votes against it; the first failure: INTERNAL: it is broken"
    )
    assert found.because[0].cause == "ON_TRIAL"
    assert "tfs-lite guard undo m" in found.because[0].fix
    assert "accept" not in found.because[0].fix
    assert [(each.reference, each.version) for each in found.answers_now] == [("unversioned", 8)]
    assert ask(model(view, answers(8), answers(7)), 7).because == ()


def test_a_trial_without_failures_may_be_ended() -> None:
    found = ask(model(GuardView("m", BAKING, 1e9, 1e9 + 620), answers(8), answers(7), counts=TrialCounts(requests=5)))
    assert "none of 5 requests failed, version 7 stays ready" in found.sentence
    assert "tfs-lite guard accept m" in found.because[0].fix


def test_a_version_that_was_taken_back_is_wanted_and_another_answers() -> None:
    snapshot = model(GuardView("m", rejected=(TAKEN_BACK,)), on_disk(8), answers(7))
    found = ask(snapshot)
    assert found.verdict is Verdict.SERVING_OTHER
    assert found.sentence == f"version 8 must not answer: {WHY}; version 7 answers instead"
    assert found.because[0].cause == "TAKEN_BACK"
    for command in ("tfs-lite publish", "version 9", "tfs-lite guard accept m@8", "tfs-lite guard retry m@8"):
        assert command in found.because[0].fix
    assert ask(snapshot, 8).verdict is Verdict.REJECTED
    line = line_of_model(snapshot)
    assert (line.verdict, line.version, line.cause) == (Verdict.SERVING_OTHER, 7, "TAKEN_BACK")


def test_a_rolled_back_version_says_how_it_comes_back() -> None:
    found = ask(model(GuardView("m", rejected=(ROLLED_BACK,)), on_disk(8), answers(7)))
    assert (found.verdict, found.because[0].cause) == (Verdict.SERVING_OTHER, "ROLLED_BACK")
    assert "rolled back to version 7 by ops" in found.sentence
    assert "tfs-lite rollback m --undo" in found.because[0].fix


def test_who_undid_a_trial_is_not_told_to_mend_it_first() -> None:
    undone = replace(TAKEN_BACK, why="taken back by ops", by=By.OPERATOR)
    (link,) = ask(model(GuardView("m", rejected=(undone,)), on_disk(8), answers(7))).because
    assert link.fix.startswith("to have it answer again: tfs-lite guard accept m@8")


def test_a_newer_version_that_answers_ends_the_matter() -> None:
    """Where the policy wants the rejected one as well, it is still named."""
    view = GuardView("m", rejected=(TAKEN_BACK,))
    versions = answers(9), on_disk(8), on_disk(7)
    assert ask(model(view, *versions, policy=LatestPolicy(1))).because == ()
    found = ask(model(view, *versions, policy=AllPolicy()))
    assert found.verdict is Verdict.SERVING
    assert "version 8 is wanted too, but must not answer: taken back after 11 s" in found.because[0].text
    assert ask(model(view, *versions, policy=SpecificPolicy((9,)))).because == ()


def test_the_stand_in_of_a_rejected_version_has_nothing_to_add() -> None:
    stand_in = replace(answers(7), place="stands in for version 8, which must not answer")
    report = SourceReport("m", stand_ins=frozenset({7}))
    found = ask(model(GuardView("m", rejected=(TAKEN_BACK,)), on_disk(8), stand_in, report=report))
    assert [link.cause for link in found.because] == ["TAKEN_BACK"]


def test_a_trial_whose_bake_is_over_says_until_when_it_may_stay_undecided() -> None:
    view = GuardView("m", BAKING, 1e9 - 621, 1e9 - 1, Judgement(leaning=True, against=9, needed=15))
    found = ask(model(view, answers(8), answers(7), counts=TrialCounts(requests=100)))
    assert found.sentence.startswith(
        "version 8 answers, but it is on trial, undecided after its bake, until 02:36:19 UTC at the latest: none of 100"
    )


def test_where_versions_come_by_calls_the_next_one_needs_a_call() -> None:
    server = replace(SERVER, control_mode="explicit")
    snapshot = model(GuardView("m", rejected=(ROLLED_BACK,)), on_disk(8), answers(7), server=server)
    (link,) = ask(snapshot, 8).because
    assert link.fix.endswith("publish a good one as version 9, and load it: POST /v2/repository/models/m/load")


def test_a_label_on_a_rejected_version_means_the_one_that_answers() -> None:
    snapshot = model(GuardView("m", rejected=(TAKEN_BACK,)), on_disk(8), answers(7), labels={"stable": 8})
    found = ask(snapshot, label="stable")
    assert found.verdict is Verdict.SERVING_OTHER
    assert "version 7 answers for it" in found.because[0].text
    assert ("stable", 7) in [(each.reference, each.version) for each in found.answers_now]
    assert "tfs-lite reload" in found.because[0].fix


def test_a_label_on_a_rejected_version_means_the_one_below_it_and_no_later_push() -> None:
    versions = (answers(6), answers(7), on_disk(8), answers(9))
    snapshot = model(GuardView("m", rejected=(TAKEN_BACK,)), *versions, labels={"stable": 8}, policy=AllPolicy())
    found = ask(snapshot, label="stable")
    assert found.sentence.endswith("version 7 answers instead")
    assert "version 7 answers for it" in found.because[0].text
    assert "point the label to version 7" in found.because[0].fix
    assert ("stable", 7) in [(each.reference, each.version) for each in found.answers_now]


def test_a_version_that_was_deleted_is_not_on_disk() -> None:
    gone = VersionSnapshot(8, on_disk=False)
    assert ask(model(GuardView("m", rejected=(TAKEN_BACK,)), gone, answers(7)), 8).verdict is Verdict.NOT_ON_DISK


def test_a_held_back_version_says_which_record_does_not_fit() -> None:
    why = "model m version 8: held back: replay.tfrecord: record 3: output scores: recorded float[1,10], got [1,12]"
    status = Status(StatusCode.FAILED_PRECONDITION, why, Reason.HELD_BACK)
    state = ServableStateSnapshot(ServableId("m", 8), HarnessState.ERROR, True, status=status)
    held = VersionSnapshot(8, VersionView(state), aspired=True, on_disk=True)
    snapshot = model(GuardView("m"), held, answers(7))
    found = ask(snapshot)
    assert (found.verdict, ask(snapshot, 8).verdict) == (Verdict.SERVING_OTHER, Verdict.HELD_BACK)
    assert found.sentence.startswith("version 8 is held back: replay.tfrecord: record 3")
    assert [link.cause for link in found.because] == ["HELD_BACK"]
    assert "tfs-lite guard accept m@8" in found.because[0].fix


def test_the_version_that_an_operator_waits_for_is_named() -> None:
    found = ask(model(GuardView("m", going_back=6), answers(8), on_disk(6)))
    assert "version 6 is to answer in its place, by an operator, as soon as it has loaded" in found.sentence
    assert "tfs-lite rollback m --undo" in found.because[0].fix
