"""Who gets which rows of the next step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.language.generation_checker import scheduled_text
from tfs_lite.core.generation import Copy
from tfs_lite.schedulers.generation.cache_slots import CacheSlots
from tfs_lite.schedulers.generation.planner import LEVEL_SECONDS, Snapshot, decide, ranking
from tfs_lite.schedulers.generation.scheduler_state import SchedulerState, StepPlan
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Phase, Text, change_phase

NUMBERS = iter(range(10**6))


def engine(**changes: Any) -> EngineSettings:
    values: dict[str, Any] = {"slots": 4, "length": 1000, "rows": 64, "chunk": 32}
    values |= {"max_queue": 100, "max_queued_tokens": 10**6, "queue_timeout": 30.0}
    return EngineSettings(**values | changes)


def text(length: int = 3, limit: int = 5, arrived: float = 0.0, tokens: list[int] | None = None, **wanted: Any) -> Text:
    number = next(NUMBERS)
    return scheduled_text(number, tokens or [number] * length, limit, arrived, **wanted)


def scheduler_of(settings: EngineSettings, *texts: Text) -> SchedulerState:
    scheduler = SchedulerState(settings)
    for one in texts:
        scheduler.add(one)
    return scheduler


def step(scheduler: SchedulerState, now: float = 0.0) -> StepPlan:
    plan = scheduler.plan(now)
    scheduler.complete(plan)
    for scheduled in plan.schedule:
        if scheduled.draws:
            scheduler.append(scheduled.text, 1)
    return plan


def rows(plan: StepPlan) -> list[tuple[Text, int, int, bool]]:
    return [(scheduled.text, scheduled.start, scheduled.count, scheduled.draws) for scheduled in plan.schedule]


def test_decoding_comes_before_prompts_and_prompts_before_admissions() -> None:
    first, long, last = text(3), text(100), text(3)
    scheduler = scheduler_of(engine(rows=40), first, long)
    step(scheduler)
    scheduler.add(last)
    assert rows(step(scheduler)) == [(first, 3, 1, True), (long, 32, 32, False), (last, 0, 3, True)]


def test_long_prompt_goes_in_chunks_and_its_last_row_draws() -> None:
    long = text(70)
    scheduler = scheduler_of(engine(), long)
    schedule = [rows(step(scheduler))[0][1:] for _ in range(4)]
    assert schedule == [(0, 32, False), (32, 32, False), (64, 6, True), (70, 1, True)]


def test_prompts_share_the_rows_of_a_step_oldest_first() -> None:
    one, two = text(60), text(60)
    scheduler = scheduler_of(engine(rows=40), one, two)
    assert rows(step(scheduler)) == [(one, 0, 32, False), (two, 0, 8, False)]
    assert rows(step(scheduler)) == [(one, 32, 28, True), (two, 8, 12, False)]


def test_no_text_is_admitted_before_the_first_that_waits() -> None:
    long, short = text(100), text(1)
    scheduler = scheduler_of(engine(rows=32, slots=2), long, short)
    assert step(scheduler).admitted == (long,)
    assert list(scheduler.waiting) == [short]


@pytest.mark.parametrize(("limit", "draws"), [(0, False), (1, True)])
def test_text_of_at_most_one_token_never_decodes(limit: int, draws: bool) -> None:
    short = text(3, limit=limit)
    assert rows(step(scheduler_of(engine(), short))) == [(short, 0, 3, draws)]
    assert (short.phase, short.output) == (Phase.PREFILL, int(draws))


def test_urgent_text_takes_the_slot_of_the_least_urgent_one() -> None:
    texts = [text(priority=1), text(priority=2), text(priority=2), text(priority=0)]
    scheduler = scheduler_of(engine(), *texts)
    step(scheduler)
    urgent = text(priority=1)
    scheduler.add(urgent)
    plan = step(scheduler)
    assert (plan.preempted, plan.admitted) == ((texts[2],), (urgent,))
    assert (texts[2].phase, texts[2].done, texts[2].slot, texts[2].preemptions) == (Phase.WAITING, 0, None, 1)
    assert len(texts[2].tokens) == 4


def test_equal_priority_does_not_preempt() -> None:
    scheduler = scheduler_of(engine(slots=1, policy="longest_first"), text(limit=1))
    step(scheduler)
    scheduler.add(text(limit=900))
    assert step(scheduler).preempted == ()


def test_preempted_text_is_computed_again_with_its_output_and_goes_on() -> None:
    low = text(3, priority=1)
    scheduler = scheduler_of(engine(slots=1), low)
    for _ in range(2):
        step(scheduler)
    urgent = text(priority=0, limit=1)
    scheduler.add(urgent)
    step(scheduler)
    scheduler.remove(urgent)
    assert rows(step(scheduler)) == [(low, 0, 5, True)]
    assert low.output == 3
    assert low.phase is Phase.DECODE


def test_text_that_has_long_been_there_does_not_give_way() -> None:
    old = text(priority=1)
    scheduler = scheduler_of(engine(slots=1), old)
    step(scheduler)
    scheduler.add(text(priority=0, arrived=LEVEL_SECONDS + 1))
    assert step(scheduler).preempted == ()


def test_urgent_text_overtakes_prompts_that_have_started() -> None:
    prompts = [text(200, priority=1), text(200, priority=1)]
    scheduler = scheduler_of(engine(), *prompts)
    step(scheduler)
    urgent = text(3)
    scheduler.add(urgent)
    assert rows(step(scheduler))[0] == (urgent, 0, 3, True)


def test_victim_is_left_alone_for_a_step_in_which_it_is_copied_from() -> None:
    stem = list(range(40))
    low = text(tokens=list(stem), priority=1, limit=50)
    scheduler = scheduler_of(engine(slots=2), low)
    for _ in range(3):
        step(scheduler)
    urgent = [text(tokens=[*stem, 5 + number]) for number in range(2)]
    for one in urgent:
        scheduler.add(one)
    plan = step(scheduler)
    assert (plan.admitted, plan.preempted, plan.copies) == ((urgent[0],), (), (Copy(0, 1, 40),))
    assert step(scheduler).preempted == (low,)


def test_free_slot_is_not_taken_in_the_step_in_which_it_is_copied_from() -> None:
    stem = list(range(40))
    scheduler = scheduler_of(engine(slots=2), first := text(tokens=list(stem)))
    for _ in range(2):
        step(scheduler)
    scheduler.remove(first)
    scheduler.add(text(tokens=[*stem[:20], 1]))
    scheduler.add(other := text(30))
    assert step(scheduler).copies == (Copy(0, 1, 20),)
    assert list(scheduler.waiting) == [other]
    assert step(scheduler).admitted == (other,)


def test_text_that_is_to_be_computed_reuses_nothing() -> None:
    stem = list(range(40))
    scheduler = scheduler_of(engine(), text(tokens=list(stem)))
    step(scheduler)
    scored = text(tokens=list(stem), score_prompt=True)
    scheduler.add(scored)
    assert rows(step(scheduler))[-1] == (scored, 0, 32, False)
    assert (scored.cached, scored.cached_asked) == (0, 0)


def test_decision_changes_nothing() -> None:
    waits, slots = text(), CacheSlots(1)
    runs = text(priority=1)
    slots.assign(slots.find(None) or pytest.fail("no free slot"), runs.tokens)
    runs.slot = 0
    change_phase(runs, Phase.PREFILL)
    decision = decide(Snapshot(engine(slots=1), [runs], [waits], slots))
    assert [one for one, _ in decision.admitted] == [waits]
    assert list(decision.preempted) == [runs]
    assert (waits.slot, waits.phase, runs.slot, runs.phase) == (None, Phase.WAITING, 0, Phase.PREFILL)
    assert list(slots.free) == []


@pytest.mark.parametrize(
    ("policy", "order"), [("fifo", [0, 1, 2, 3]), ("longest_first", [1, 0, 2, 3]), ("shortest_first", [2, 0, 1, 3])]
)
def test_policy_orders_texts_within_one_priority(policy: str, order: list[int]) -> None:
    texts = [text(limit=5), text(limit=9), text(limit=1), text(limit=5, priority=1)]
    assert [texts.index(one) for one in sorted(texts, key=ranking(policy))] == order


def test_waiting_makes_up_for_priority() -> None:
    old, young = text(priority=1, arrived=0.0), text(priority=0, arrived=LEVEL_SECONDS + 1)
    assert sorted([young, old], key=ranking("fifo")) == [old, young]


def test_phases_come_in_order() -> None:
    ended = text()
    change_phase(ended, Phase.ENDED)
    for one, phase in ((ended, Phase.WAITING), (text(), Phase.DECODE)):
        with pytest.raises(RuntimeError, match="cannot go"):
            change_phase(one, phase)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("slots", 0), ("rows", 3), ("chunk", 0), ("length", 0)],
        *[("policy", "random"), ("queue_timeout", 0.0), ("max_queue", -1)],
    ],
)
def test_settings_without_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError):
        engine(**{name: value})


WIDE = {"slots": 9, "rows": 512, "chunk": 256}
BUDGETS = {
    "fewer than without texts that decode": (1, [500], 20, [1, 20]),
    "short prompts to their end, then a newcomer only begins": (4, [20] * 4, 16, [1, 1, 1, 1, 20, 20, 20, 1]),
    "more where more texts begin than go on": (1, [500] * 4, 20, [1, 80, 1, 1, 1]),
}


@pytest.mark.parametrize(("decoding", "prompts", "budget", "counts"), BUDGETS.values(), ids=BUDGETS)
def test_prompts_have_a_budget_of_rows_beside_texts_that_decode(
    decoding: int, prompts: list[int], budget: int, counts: list[int]
) -> None:
    running = [text(2, limit=50) for _ in range(decoding)]
    scheduler = scheduler_of(engine(**WIDE), *running)
    scheduler.complete(plan := scheduler.plan(0.0, prefill_rows=budget))
    assert [scheduled.count for scheduled in plan.schedule] == [2] * decoding, "no text decodes yet"
    for one in running:
        scheduler.append(one, 7)
    for length in prompts:
        scheduler.add(text(length, limit=50))
    assert [scheduled.count for scheduled in scheduler.plan(0.0, prefill_rows=budget).schedule] == counts
