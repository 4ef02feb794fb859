"""The thread on which engines take turns: who is next, when it sleeps, when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.threads import LINUX, slack_ns
from tfs_lite.schedulers.generation.loop import StepLoop, shared_loop

PATIENCE = 30


class Turns:
    """Has work for so many turns; notes who had one."""

    def __init__(self, name: str, log: list[str], work: int = 0, during: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.log = log
        self.job_state = work
        self.during = during
        self.idle = threading.Semaphore(0)  # one for each turn without work

    def turn(self) -> bool:
        self.during()
        if self.job_state == 0:
            self.idle.release()
            return False
        self.job_state -= 1
        self.log.append(self.name)
        return True

    def wait_idle(self) -> None:
        assert self.idle.acquire(timeout=PATIENCE)


def threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


def hold(loop: StepLoop) -> tuple[Turns, threading.Event]:
    """An engine in whose turn the loop stays until the event is set."""
    inside, go = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        assert go.wait(PATIENCE)

    holder = Turns("holder", [], during=during)
    loop.join(holder)
    assert inside.wait(PATIENCE)
    return holder, go


def test_engines_with_work_take_turns() -> None:
    loop, log = StepLoop(), []
    holder, go = hold(loop)
    engines = [Turns("a", log, 3), Turns("b", log, 3), Turns("c", log, 2)]
    for engine in engines:
        loop.join(engine)
    go.set()
    for engine in engines:
        engine.wait_idle()
    assert log == ["a", "b", "c", "a", "b", "c", "a", "b"]
    for engine in (*engines, holder):
        loop.leave(engine)


def test_thread_starts_with_the_first_engine_and_ends_with_the_last(name: str) -> None:
    loop = StepLoop(name)
    assert threads(name) == 0
    first, second = Turns("a", []), Turns("b", [])
    for _ in range(3):
        loop.join(first)
        loop.join(second)
        assert threads(name) == 1
        loop.leave(first)
        assert threads(name) == 1
        loop.leave(second)
        assert threads(name) == 0


@LINUX
def test_thread_of_the_steps_waits_for_the_interpreter_lock_no_longer_than_it_says() -> None:
    loop, found = StepLoop(), list[int]()
    engine = Turns("a", [], during=lambda: found.append(slack_ns()))
    loop.join(engine)
    engine.wait_idle()
    loop.leave(engine)
    assert found[0] == 1 < slack_ns()


def test_work_that_comes_with_a_wake_is_done() -> None:
    loop, log = StepLoop(), []
    engine = Turns("a", log)
    loop.join(engine)
    for number in range(1, 20):
        engine.wait_idle()
        engine.job_state = 1
        loop.wake()
        engine.wait_idle()
        assert len(log) == number
        loop.wake()
    loop.leave(engine)


def test_idle_loop_sleeps() -> None:
    loop = StepLoop()
    turns = [0, 0]

    def counting(index: int) -> Callable[[], None]:
        def during() -> None:
            turns[index] += 1

        return during

    engines = [Turns("a", [], during=counting(0)), Turns("b", [], during=counting(1))]
    for engine in engines:
        loop.join(engine)
    for _ in range(50):
        for engine in engines:
            engine.wait_idle()
        loop.wake()
    for engine in engines:
        loop.leave(engine)
    assert max(turns) <= 2 * 50 + 6, "each wake is good for a turn, and for another one if it came during a turn"


def test_wake_during_a_turn_that_finds_nothing_is_not_lost() -> None:
    loop = StepLoop()
    holder, go = hold(loop)
    loop.wake()  # what it is about came too late for this turn
    go.set()
    holder.wait_idle()
    holder.wait_idle()
    loop.leave(holder)


def test_leaving_waits_for_the_turn_that_is_under_way() -> None:
    loop = StepLoop()
    other, third = Turns("b", []), Turns("c", [])
    holder, go = hold(loop)
    loop.join(other)
    loop.join(third)
    left = threading.Event()
    thread = threading.Thread(target=lambda: (loop.leave(holder), left.set()))
    thread.start()
    loop.leave(other)  # whose turn it is not: nobody waits
    assert not left.is_set()
    go.set()
    assert left.wait(PATIENCE)
    thread.join()
    loop.leave(third)


def test_engine_that_left_gets_no_turn_any_more() -> None:
    loop, log = StepLoop(), []
    holder, go = hold(loop)
    engine = Turns("a", log, 5)
    loop.join(engine)
    loop.leave(engine)
    loop.leave(engine)
    go.set()
    holder.wait_idle()
    loop.leave(holder)
    loop.leave(holder)
    assert log == []


def test_engine_cannot_leave_during_its_own_turn() -> None:
    loop = StepLoop()
    errors: list[Exception] = []

    def during() -> None:
        try:
            loop.leave(engine)
        except RuntimeError as error:
            errors.append(error)

    engine = Turns("a", [], during=during)
    loop.join(engine)
    engine.wait_idle()
    loop.leave(engine)
    assert "during a turn" in str(errors[0])


def test_turn_that_raises_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    loop, log = StepLoop(), []

    def fail() -> None:
        raise ValueError("no")

    holder, go = hold(loop)
    broken, engine = Turns("broken", log, 1, fail), Turns("a", log, 2)
    loop.join(broken)
    loop.join(engine)
    go.set()
    engine.wait_idle()
    assert log == ["a", "a"]
    for each in (broken, engine, holder):
        loop.leave(each)
    assert "must not raise" in caplog.text


def test_process_has_one_shared_loop() -> None:
    assert shared_loop() is shared_loop()
