"""Causes of snapshots that are made up: bounds of chains and texts; figures that a real server shows for a moment."""

from __future__ import annotations

from dataclasses import replace

from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.managers.harness import HarnessState, ServableStateSnapshot
from tfs_lite.managers.survey import LoadStage, LoadView, ManagerView, VersionView
from tfs_lite.server.explain.causes import explain, line_of_model
from tfs_lite.server.explain.explanation import MAX_CHAIN, MAX_TEXT, Explanation, Verdict, shortened
from tfs_lite.server.explain.snapshot import Incomplete, ModelSnapshot, ServerSnapshot, VersionSnapshot

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
