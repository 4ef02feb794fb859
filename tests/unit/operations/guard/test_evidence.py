"""The evidence of a trial: which failures are run again, how pairs become votes, and when a rule is met."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.core.trial import Ending, TrialEnding
from tfs_lite.operations.guard.evidence import (
    ENOUGH,
    KEPT_IN_SPAN,
    MAX_INPUT_BYTES,
    MOST_WAITING,
    Failure,
    Ran,
    TrialEvidence,
    failures,
    input_bytes,
    log_evidence,
    needed,
)
from tfs_lite.protocols.runs import Run

INTERNAL = Status(StatusCode.INTERNAL, "it broke")
RUNS = (Run("serving_default", {"x": np.zeros(2, np.float32)}),)
OK = Ran(0.001)
BAD = Ran(0.001, failed=True)


def fault(runs=RUNS, shielded=True, **rest):
    return TrialEnding(Ending.FAULT, INTERNAL, shielded=shielded, old_failed=not shielded, runs=runs, **rest)


WELL = TrialEnding(Ending.WELL, run_seconds=0.002)


class Trial:
    """An evidence in virtual time, whose pairs run in no time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.evidence = TrialEvidence(ServableId("m", 8), 7, lambda: self.now)

    def ends(self, *endings: TrialEnding) -> None:
        for ending in endings:
            self.evidence.on_end(ending)

    def pass_seconds(self, seconds: float, new: Ran | None = OK, old: Ran | None = OK) -> int:
        """Runs what is due meanwhile, each second. The number of pairs."""
        end, pairs = self.now + seconds, 0
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            while (pair := self.evidence.due(self.now)) is not None:
                self.evidence.on_pair(pair, new, old)
                pairs += 1
                self.now += 0.01
        return pairs

    def vote(self, new: Ran, old: Ran, times: int = 1) -> None:
        """One span after the other in which a failure runs again like this."""
        for _ in range(times):
            self.ends(fault())
            self.pass_seconds(10.0, new, old)

    @property
    def judgement(self):
        return self.evidence.judgement(self.now)


@pytest.fixture
def trial() -> Trial:
    return Trial()


# Rule 1.


@pytest.mark.parametrize(("votes_for", "against"), [(0, 15), (1, 21), (2, 24), (3, 27)])
def test_rule_1_needs_so_many_votes(votes_for, against):
    assert needed(votes_for) == against
    assert log_evidence(against, votes_for) >= math.log(ENOUGH) > log_evidence(against - 1, votes_for)


@pytest.mark.parametrize("votes", range(1, 12))
def test_the_evidence_of_fair_votes_has_the_expectation_1(votes):
    """Over every order of so many votes, each as likely as any other."""
    total = sum(math.exp(log_evidence(sum(order), votes - sum(order))) for order in product((0, 1), repeat=votes))
    assert total / 2**votes == pytest.approx(1.0)


@given(st.integers(0, 200), st.integers(0, 200), st.floats(0.0, 0.5))
def test_no_vote_raises_the_expected_evidence_while_at_most_half_of_them_are_against(against, votes_for, share):
    now = log_evidence(against, votes_for)
    growth = share * math.exp(log_evidence(against + 1, votes_for) - now)
    growth += (1 - share) * math.exp(log_evidence(against, votes_for + 1) - now)
    assert growth <= 1.0 + 1e-9


def test_of_fair_votes_at_most_one_row_in_ten_thousand_meets_rule_1_within_an_hour():
    """Exactly: ``alive`` has the probability of each number of votes against, of the rows that have not met it yet."""
    alive, crossed = {0: 1.0}, 0.0
    for votes in range(1, 361):
        after: dict[int, float] = {}
        for against, probability in alive.items():
            for more in (0, 1):
                after[against + more] = after.get(against + more, 0.0) + probability / 2
        met = [against for against in after if against >= needed(votes - against)]
        crossed += sum(map(after.pop, met))
        alive = after
    assert 1e-5 < crossed < 1e-4


def test_votes_are_counted_each_ten_seconds_and_rule_1_is_met_after_160_seconds(trial):
    begun = trial.now
    trial.ends(WELL)
    while not trial.judgement.rule:
        trial.ends(fault())
        trial.pass_seconds(1.0, BAD, OK)
    assert trial.judgement.rule == 1
    assert (trial.judgement.against, trial.judgement.votes_for, trial.judgement.needed) == (15, 0, 15)
    assert 160.0 <= trial.now - begun <= 161.5


def test_many_pairs_of_one_span_are_one_vote(trial):
    trial.ends(*[fault()] * 6)
    trial.pass_seconds(20.0, BAD, OK)
    assert trial.judgement.against == 1


def test_a_span_with_as_many_failures_of_each_side_has_no_vote(trial):
    trial.ends(fault(), fault())
    trial.now += 10.0
    for sides in ((BAD, OK), (OK, BAD)):
        trial.evidence.on_pair(trial.evidence.due(trial.now), *sides)
        trial.now += 1.0
    trial.pass_seconds(20.0)
    assert (trial.judgement.against, trial.judgement.votes_for) == (0, 0)


def test_what_fails_on_both_or_on_neither_says_nothing(trial):
    trial.vote(BAD, BAD, 3)
    trial.vote(OK, OK, 3)
    trial.pass_seconds(20.0)
    assert (trial.judgement.against, trial.judgement.votes_for) == (0, 0)


def test_votes_for_the_new_version_raise_what_is_needed(trial):
    trial.vote(OK, BAD, 2)
    trial.vote(OK, OK, 1)
    assert (trial.judgement.votes_for, trial.judgement.needed) == (2, 24)


def test_it_leans_with_two_votes_against_and_not_with_one_or_with_votes_for(trial):
    trial.vote(BAD, OK)
    trial.pass_seconds(10.0, BAD, OK)
    assert not trial.judgement.leaning
    assert trial.judgement.against == 1
    trial.vote(BAD, OK)
    trial.pass_seconds(10.0, BAD, OK)
    assert trial.judgement.leaning
    for _ in range(3):
        trial.vote(OK, BAD)
    trial.pass_seconds(10.0, OK, BAD)
    assert trial.judgement.votes_for == 3
    assert not trial.judgement.leaning


def test_a_verdict_stays_and_many_more_votes_overflow_nothing(trial):
    trial.vote(BAD, OK, 2000)
    assert trial.judgement.rule == 1
    trial.vote(OK, BAD, 500)
    assert trial.judgement.rule == 1


# Rule 2.


def test_rule_2_needs_ten_failures_ten_seconds_and_that_nothing_was_answered(trial):
    trial.ends(*[fault()] * 9)
    trial.now += 60.0
    assert trial.judgement.rule == 0
    trial.ends(fault())
    assert trial.judgement.rule == 2
    assert trial.judgement.text == "10 of 10 requests failed, version 7 answered all: INTERNAL: it broke"


def test_rule_2_waits_for_ten_seconds_since_the_first_failure(trial):
    trial.now += 100.0
    trial.ends(*[fault()] * 500)
    trial.now += 9.9
    assert trial.judgement.rule == 0
    trial.now += 0.1
    assert trial.judgement.rule == 2


def test_one_good_answer_is_enough_against_rule_2(trial):
    trial.ends(WELL, *[fault()] * 50)
    trial.now += 60.0
    assert trial.judgement.rule == 0


def test_a_cached_answer_and_a_busy_server_say_nothing(trial):
    trial.ends(TrialEnding(Ending.WELL, cached=True), TrialEnding(Ending.LOAD), TrialEnding(Ending.NOTHING))
    trial.ends(*[fault()] * 10)
    trial.now += 10.0
    assert trial.judgement.rule == 2
    assert (trial.evidence.counts.requests, trial.evidence.counts.load) == (10, 1)


def test_rule_2_wants_that_the_old_version_answered_half_of_them(trial):
    trial.ends(*[fault(shielded=False)] * 6, *[fault()] * 5)
    trial.now += 10.0
    assert trial.judgement.rule == 0
    trial.ends(fault())
    assert trial.judgement.rule == 2


def test_late_requests_alone_never_meet_rule_2(trial):
    late = TrialEnding(Ending.LATE, Status(StatusCode.DEADLINE_EXCEEDED, "late"), runs=RUNS)
    trial.ends(*[late] * 50)
    trial.now += 60.0
    assert trial.judgement.rule == 0


@pytest.mark.parametrize(("ending", "rule"), [(Ending.FAULT, 2), (Ending.REFUSAL, 0), (Ending.LATE, 0)])
def test_of_kinds_that_nobody_can_shield_only_faults_count(trial, ending, rule):
    trial.ends(*[TrialEnding(ending, INTERNAL)] * 10)
    trial.now += 10.0
    assert trial.judgement.rule == rule


# Which failures are run again.


def test_the_first_six_failures_of_each_ten_seconds_run_again_ten_seconds_later(trial):
    trial.ends(*[fault()] * 50)
    assert trial.pass_seconds(9.9) == 0
    assert trial.pass_seconds(1.1) == KEPT_IN_SPAN
    trial.ends(*[fault()] * 50)
    assert trial.pass_seconds(30.0) == KEPT_IN_SPAN


def test_pairs_run_one_at_a_time_and_wait_for_nine_times_the_faster_side(trial):
    trial.ends(*[fault()] * 3)
    trial.now += 10.0
    pair = trial.evidence.due(trial.now)
    assert pair is not None
    assert trial.evidence.due(trial.now) is None
    assert trial.evidence.next_at is None
    trial.evidence.on_pair(pair, Ran(2.0), Ran(0.5))
    assert trial.evidence.next_at == trial.now + 4.5
    trial.now += 4.4
    assert trial.evidence.due(trial.now) is None
    trial.now += 0.1
    assert trial.evidence.due(trial.now) is not None


def test_a_pair_without_an_outcome_is_no_vote(trial):
    trial.ends(*[fault()] * 3)
    trial.pass_seconds(10.0, BAD, None)
    trial.pass_seconds(10.0, None, OK)
    assert (trial.judgement.against, trial.judgement.votes_for) == (0, 0)


def test_requests_that_must_not_run_twice_are_counted_and_not_kept(trial):
    trial.ends(*[fault(runs=())] * 20)
    assert trial.pass_seconds(30.0) == 0
    assert trial.evidence.counts.failed == 20


def test_inputs_are_kept_up_to_a_bound_and_given_back_after_the_pair(trial):
    large = (Run("", {"x": np.zeros(MAX_INPUT_BYTES // 2 + 1, np.uint8)}),)
    too_large = (Run("", {"x": np.zeros(MAX_INPUT_BYTES + 1, np.uint8)}),)
    trial.ends(fault(too_large), fault(large), fault(large), fault())
    assert trial.pass_seconds(15.0) == 2
    trial.ends(fault(large))
    assert trial.pass_seconds(15.0) == 1


def test_strings_count_with_their_characters():
    text = np.array([b"abc", b"", b"x" * 1000], object)
    assert 1000 < input_bytes([Run("", {"text": text, "x": np.zeros(4, np.float64)})]) < 1500


def test_a_model_whose_pairs_take_long_keeps_a_bounded_number_of_failures(trial):
    slow, pairs = Ran(10.0), 0
    for _ in range(100):
        trial.ends(*[fault()] * 6)
        pairs += trial.pass_seconds(10.0, slow, slow)
    assert 9 <= pairs <= 12
    assert pairs + MOST_WAITING >= pairs + trial.pass_seconds(100_000.0, OK, OK) > pairs + 12


# How a side fails.


@pytest.mark.parametrize(
    ("new", "old", "failed"),
    [
        (BAD, OK, (True, False)),
        (Ran(1.0, nonfinite=True), OK, (True, False)),
        (Ran(10.1), OK, (True, False)),
        (Ran(9.9), OK, (False, False)),
        (Ran(19.0), Ran(4.0), (False, False)),
        (Ran(20.1), Ran(4.0), (True, False)),
        (OK, Ran(10.1, ended=False), (False, True)),
        (Ran(60.0, ended=False), Ran(13.0), (False, False)),
        (Ran(60.0, ended=False), Ran(11.0), (True, False)),
        (Ran(70.0, ended=False), Ran(60.0, ended=False), (False, False)),
        (Ran(10.1, ended=False), BAD, (True, True)),
    ],
)
def test_a_side_fails_by_its_status_by_values_or_by_time(new, old, failed):
    assert failures(new, old) == failed


NAN = TrialEnding(Ending.NONFINITE, old_failed=True, runs=RUNS)
BOTH_NAN = Ran(0.001, nonfinite=True)


def test_sixteen_pairs_in_a_row_with_values_that_are_not_finite_mean_that_they_are_meant(trial):
    pairs = 0
    while pairs < 15:
        trial.ends(NAN)
        pairs += trial.pass_seconds(2.0, BOTH_NAN, BOTH_NAN)
    assert trial.evidence.nonfinite_fails()
    trial.pass_seconds(30.0, BOTH_NAN, BOTH_NAN)
    assert not trial.evidence.nonfinite_fails()
    before = trial.evidence.counts
    trial.ends(NAN)
    after = trial.evidence.counts
    assert (after.failed, after.answered) == (before.failed, before.answered + 1)
    trial.vote(BOTH_NAN, OK, 5)
    assert trial.judgement.against == 0


def test_a_pair_in_which_one_side_is_finite_begins_the_row_anew(trial):
    for _ in range(10):
        trial.ends(*[NAN] * 6)
        trial.now += 10.0
        for sides in ((BOTH_NAN, BOTH_NAN), (BOTH_NAN, BOTH_NAN), (BOTH_NAN, OK)) * 2:
            pair = trial.evidence.due(trial.now)
            assert pair is not None
            trial.evidence.on_pair(pair, *sides)
            trial.now += 0.01
    assert trial.evidence.nonfinite_fails()


def test_failures_of_other_kinds_leave_the_row_alone(trial):
    for _ in range(20):
        trial.ends(NAN, fault())
        trial.now += 10.0
        while (pair := trial.evidence.due(trial.now)) is not None:
            ran = BOTH_NAN if pair.nonfinite else OK
            trial.evidence.on_pair(pair, ran, ran)
            trial.now += 0.01
    assert not trial.evidence.nonfinite_fails()


# Numbers and words.


def test_every_end_is_counted_once_under_its_name(trial):
    trial.ends(WELL, WELL, fault(run_seconds=9.0, old_run_seconds=0.004), fault(shielded=False))
    trial.ends(TrialEnding(Ending.REFUSAL, INTERNAL, shielded=True, old_run_seconds=0.002))
    trial.ends(TrialEnding(Ending.LATE, INTERNAL), NAN, TrialEnding(Ending.LOAD, INTERNAL))
    counts = trial.evidence.counts
    assert (counts.requests, counts.answered, counts.failed) == (7, 2, 5)
    assert (counts.faults, counts.refused, counts.late, counts.nonfinite, counts.load) == (2, 1, 1, 1, 1)
    assert (counts.shielded, counts.lost) == (2, 2)
    assert (counts.run_ms, counts.old_run_ms) == (pytest.approx(2.0), pytest.approx(3.0))


def test_the_first_three_failures_are_kept_with_bounded_texts(trial):
    trial.ends(TrialEnding(Ending.FAULT, Status(StatusCode.INTERNAL, "x" * 10_000), request_id="r" * 10_000))
    trial.ends(NAN, fault(request_id="third"), fault(request_id="fourth"))
    first, *rest = trial.evidence.counts.failures
    assert (len(first.error), len(first.request_id)) == (300, 300)
    assert rest == [Failure("", "answered with NaN or inf"), Failure("third", "INTERNAL: it broke")]


def test_the_words_have_the_numbers_and_the_votes(trial):
    assert trial.judgement.text == "0 of 0 requests failed"
    trial.ends(WELL)
    trial.vote(BAD, OK, 2)
    trial.ends(fault(shielded=False))
    trial.pass_seconds(10.0, BAD, OK)
    assert trial.judgement.text == (
        "3 of 4 requests failed, version 7 answered 2 of them; votes: 2 against it, 0 for it: INTERNAL: it broke"
    )


def test_the_words_say_that_a_run_takes_longer_than_on_the_old_version(trial):
    trial.ends(TrialEnding(Ending.WELL, run_seconds=0.006), TrialEnding(Ending.WELL, run_seconds=0.012))
    assert trial.evidence.judgement(trial.now, 7.0).text == "0 of 2 requests failed"
    judgement = trial.evidence.judgement(trial.now, 3.0)
    assert judgement.text == "0 of 2 requests failed; a run takes 9 ms, 3 times as long as on version 7"
    assert not judgement.rule


def test_a_trial_without_requests_says_nothing(trial):
    trial.now += 5000.0
    assert trial.judgement == trial.evidence.judgement(trial.now)
    assert (trial.judgement.rule, trial.judgement.leaning, trial.evidence.counts.requests) == (0, False, 0)
    assert trial.evidence.counts.run_ms is None
    assert trial.evidence.next_at is None
