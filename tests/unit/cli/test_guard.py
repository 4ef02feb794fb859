"""When ``tfs-lite guard --wait`` ends, with which code, and what both commands refuse; tests/integration runs them."""

from __future__ import annotations

from typing import Any

import pytest

from tfs_lite.cli import rollback
from tfs_lite.cli.guard import SETTLED_SECONDS, End, judged, newest
from tfs_lite.cli.main import main
from tfs_lite.cli.rollback import numbers, versions_text

Captured = pytest.CaptureFixture[str]


def answer(verdict: str, **rollout: Any) -> dict[str, Any]:
    """An explanation of a model whose version 8 has this verdict, and whose version 7 answers unless said otherwise."""
    lines = [{"version": 8, "verdict": verdict, "sentence": "version 8 is so"}, {"version": 7, "verdict": "SERVING"}]
    found = {"version": None, "answers": 7, "rejected": [], "ended": None, **rollout}
    return {"verdict": verdict, "versions": lines, "rollout": found}


def ended(outcome: str) -> dict[str, Any]:
    return {"version": 8, "outcome": outcome, "text": "the bake is over", "at": ""}


def test_a_trial_that_goes_on_is_waited_for() -> None:
    assert judged(answer("SERVING", version=8, answers=8), 8) is None
    assert judged(answer("LOADING"), 8) is None
    assert judged(answer("WAITING"), 8) is None
    assert judged(answer("SERVING"), 9) is None  # it is not seen yet


@pytest.mark.parametrize("outcome", ["PASSED", "ACCEPTED", "SUPERSEDED", "MEMORY", "OLD_GONE"])
def test_a_version_that_stays_is_0(outcome: str) -> None:
    end = judged(answer("SERVING", answers=8, ended=ended(outcome)), 8)
    assert end == End(0, "the trial of version 8 is over: the bake is over; version 8 answers")


def test_a_version_that_was_taken_back_is_1_and_says_which_answers() -> None:
    rejected = [{"version": 8, "why": "taken back after 11 s"}]
    end = judged(answer("REJECTED", rejected=rejected, ended=ended("TAKEN_BACK")), 8)
    assert end == End(1, "version 8 must not answer: taken back after 11 s; version 7 answers")


@pytest.mark.parametrize("verdict", ["HELD_BACK", "FAILED", "REFUSED"])
def test_a_version_that_cannot_answer_for_a_while_is_1(verdict: str) -> None:
    assert judged(answer(verdict), 8) == End(1, "version 8 is so; version 7 answers", SETTLED_SECONDS)


def test_a_version_that_an_operator_accepted_later_counts_as_it_is_now() -> None:
    end = judged(answer("SERVING", answers=8, ended=ended("TAKEN_BACK")), 8)
    assert end == End(0, "version 8 answers, and is not on trial", SETTLED_SECONDS)


def test_a_version_that_is_gone_is_1() -> None:
    end = judged(answer("NOT_ON_DISK", ended=ended("GONE")), 8)
    assert end == End(1, "the trial of version 8 is over: the bake is over; version 7 answers")


def test_the_version_on_trial_is_meant_else_the_highest() -> None:
    assert newest(answer("SERVING", version=7)) == 7
    assert newest(answer("SERVING")) == 8
    assert newest({"versions": [], "rollout": None}) is None


def test_versions_are_a_list_in_words() -> None:
    assert numbers([8]) == "version 8"
    assert numbers([10, 8, 9]) == "versions 8, 9 and 10"
    assert versions_text(answer("REJECTED")) == "8 (REJECTED), 7 (SERVING)"
    assert versions_text({"versions": []}) == "none"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("guard", "revert", "m"), "expected [accept|retry|undo] MODEL[@VERSION], got 'revert m'"),
        (("guard", "accept", "m", "8"), "expected [accept|retry|undo] MODEL[@VERSION]"),
        (("guard", "m@stable"), "expected MODEL or MODEL@VERSION, got 'm@stable'"),
        (("rollback", "m@stable"), "expected MODEL or MODEL --to VERSION, got 'm@stable'"),
        (("rollback", "m@7", "--to", "6"), "expected MODEL or MODEL --to VERSION"),
        (("rollback", "m", "--to", "seven"), "expected a whole number"),
        (("rollback", "m", "--undo", "--to", "6"), "--undo takes every rollback of the model back"),
    ],
)
def test_wrong_words_change_nothing(words: tuple[str, ...], message: str, capsys: Captured) -> None:
    assert main(list(words)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["guard", "rollback"])
def test_no_server_is_one_line(command: str, capsys: Captured) -> None:
    assert main([command, "m", "--server=127.0.0.1:1"]) == 1
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err


def explanation(answers: int, sentence: str, verdict: str = "LOADING") -> dict[str, Any]:
    """Version 7 is wanted back, and version 8 answers until then, if ``answers`` says so."""
    lines = [
        {"version": 8, "verdict": "SERVING", "sentence": "version 8 answers"},
        {"version": 7, "verdict": verdict, "sentence": sentence},
    ]
    now = [{"reference": "unversioned", "version": answers}]
    rollout = {"answers": answers, "going_back": 7, "rejected": [], "remembered": False, "forgets": "it has no disk"}
    return {"sentence": "?", "versions": lines, "answers_now": now, "rollout": rollout, "events": []}


def test_a_rollback_that_waits_tells_what_it_waits_for(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (f"version 7 waits: attempt {number} of 6 failed; version 8 answers instead" for number in (1, 2))
    answers = [explanation(8, first), explanation(8, first), explanation(8, second), explanation(8, second)]
    given = iter([*answers, explanation(7, "version 7 answers", "SERVING")])
    monkeypatch.setattr(rollback, "explained", lambda args, model: next(given))
    monkeypatch.setattr(rollback, "command", lambda *args: answers[0]["rollout"])
    monkeypatch.setattr(rollback, "LINE_SECONDS", 0.0)
    assert main(["rollback", "m", "--to", "7", "--server=127.0.0.1:1"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [f"model m: {sentence}" for sentence in (first, second)]
    assert said.out.startswith("model m: version 7 answers now, after ")
    assert ", in place of version 8" in said.out
    assert said.out.endswith(". A restart of the server forgets this, because it has no disk\n")


def test_a_rollback_that_does_not_come_says_why_and_what_answers(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = explanation(8, "version 7 waits: attempt 4 of 6 failed; version 8 answers instead")
    monkeypatch.setattr(rollback, "explained", lambda args, model: asked)
    monkeypatch.setattr(rollback, "command", lambda *args: asked["rollout"])
    assert main(["rollback", "m", "--to", "7", "--timeout=0.1", "--server=127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "is still on its way: version 7 waits: attempt 4 of 6 failed; version 8 answers instead. tfs" in said
