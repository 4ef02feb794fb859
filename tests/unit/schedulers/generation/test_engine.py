"""The engine with a model whose every token depends on all that its slot holds: texts come out as if each were alone,
and each has exactly one end, whatever happens."""

from __future__ import annotations

import logging
import random
import threading
import weakref
from collections.abc import Callable, Sequence

import pytest

from tests.support.language.byte_codec import BEGIN, END, VOCABULARY, ByteCodec
from tests.support.language.hash_model import HashModel, hashed, logprob_of
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.generation import (
    Finish,
    Generation,
    GenerationLimits,
    Piece,
    SampledToken,
    Sampling,
    SamplingRequest,
    Step,
    StepReport,
    TextReport,
    TokenLogprob,
    Usage,
)
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.generation.engine import Engine
from tfs_lite.schedulers.generation.loop import StepLoop
from tfs_lite.schedulers.generation.scheduler_state import SchedulerState
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.text import Text
from tfs_lite.testing.lifecycle.clock import VirtualClock

PATIENCE = 30
LENGTH = 64
ID = ServableId("m", 3)
GREEDY = Sampling(temperature=0)
CODEC = ByteCodec()
EOS = frozenset({END})


class ManualLoop(StepLoop):
    """A loop without a thread."""

    def join(self, engine) -> None:
        """The test gives the turns."""

    def leave(self, engine) -> None:
        """No turn is under way."""


class Request:
    """A text for the engine, and its events."""

    def __init__(self, prompt: list[int], limit: int = 8, *, seed: int = 0, deadline=None, **wanted) -> None:
        wanted.setdefault("sampling", GREEDY)
        self.pieces: list[Piece] = []
        self.ended = threading.Event()
        self.first = threading.Event()
        self.status: Status | None = None
        generation = Generation(tuple(prompt), limit, **wanted)
        self.asked = Text(generation, prompt, limit, seed, deadline, 0, self._take)

    def _take(self, text: Text, event: Piece | Status) -> None:
        assert text is self.asked
        assert not self.ended.is_set(), "there is one end"
        if isinstance(event, Piece):
            self.pieces.append(event)
            self.first.set()
            if event.finish is None:
                return
        else:
            self.status = event
        self.ended.set()

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.tokens]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def last(self) -> Piece:
        return self.pieces[-1]

    @property
    def code(self) -> StatusCode:
        assert self.ended.is_set()
        return self.status.code if self.status else StatusCode.OK

    def alone(self, eos: frozenset[int] = EOS) -> list[int]:
        """The output of the model for this prompt alone."""
        asked, tokens = self.asked, list(self.asked.wanted.prompt)
        for index in range(asked.limit):
            draw = SamplingRequest(asked.wanted.sampling, asked.seed, index, tokens, len(asked.wanted.prompt))
            tokens.append(hashed(tokens, draw, VOCABULARY))
            if tokens[-1] in eos:
                break
        return tokens[len(asked.wanted.prompt) :]


class SteppedEngine:
    """An engine whose turns the test gives, with its reports."""

    def __init__(self, slots: int = 2, codec: ByteCodec | None = None, choose=None, before=None, **settings) -> None:
        self.clock = VirtualClock()
        self.model = HashModel(GenerationLimits(slots, LENGTH, VOCABULARY, EOS), codec, choose=choose, before=before)
        self.steps: list[StepReport] = []
        self.texts: list[TextReport] = []
        self.engine = Engine(
            self.model,
            ID,
            settings_of(slots, **settings),
            clock=self.clock,
            loop=ManualLoop(),
            on_step=self.steps.append,
            on_text=self.texts.append,
        )

    def submit(self, *requests: Request) -> None:
        assert self.engine.submit([one.asked for one in requests]) is None

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.turn()

    def run(self, *requests: Request) -> None:
        """Runs until there is nothing to do; no text runs or waits then."""
        if requests:
            self.submit(*requests)
        for _ in range(100_000):
            if not self.engine.turn():
                break
        state = self.engine.state()
        assert (state.running, state.waiting, state.reserved, state.written) == (0, 0, 0, 0)
        assert self.model.complaints == []


def settings_of(slots: int, **changes) -> EngineSettings:
    values = {"rows": 32, "chunk": 8, "max_queue": 10_000, "max_queued_tokens": 10**6, "queue_timeout": 1e6} | changes
    return EngineSettings(slots=slots, length=LENGTH, **values)


def prompt(number: int, length: int = 5) -> list[int]:
    return [BEGIN, *((number * 31 + at * 7) % 256 for at in range(length - 1))]


def saying(text: str, then: int = END) -> Callable[[Sequence[int], SamplingRequest], int]:
    """Whatever the prompt, the model says this."""
    tokens = [*text.encode(), then]
    return lambda _, draw: tokens[min(draw.index, len(tokens) - 1)]


@pytest.mark.parametrize(("slots", "chunk", "reuse"), [(1, 64, False), (3, 4, True), (8, 1, True)])
def test_each_text_comes_out_as_if_it_were_alone(slots: int, chunk: int, reuse: bool) -> None:
    stepped = SteppedEngine(slots, chunk=chunk, prefix_reuse=reuse)
    requests = [Request(prompt(n, 1 + n * 2), 1 + n % 9, seed=n) for n in range(12)]
    requests += [Request(prompt(n, 20), 8, seed=n, sampling=Sampling(temperature=1)) for n in range(6)]
    stepped.run(*requests)
    for one in requests:
        assert one.tokens == one.alone()
        assert one.last.usage is not None
        assert (one.last.usage.prompt, one.last.usage.output) == (len(one.asked.wanted.prompt), len(one.tokens))
        assert [piece.usage is not None for piece in one.pieces] == [piece is one.last for piece in one.pieces]


def test_pieces_together_are_the_whole_decode() -> None:
    said = "grüße 👩‍👩‍👧 €"
    stepped = SteppedEngine(codec=CODEC, choose=saying(said))
    requests = [Request(prompt(1), 50), Request(prompt(2), 12), Request(prompt(3), 50, echo=True)]
    stepped.run(*requests)
    for one in requests:
        tokens = one.tokens if one.last.finish is Finish.LENGTH else one.tokens[:-1]
        opening = CODEC.decode(one.asked.wanted.prompt) if one.asked.wanted.echo else ""
        assert one.text == opening + CODEC.decode(tokens)
    assert requests[0].text == said
    assert (requests[0].last.finish, requests[0].last.stop) == (Finish.STOP, END)
    assert requests[1].last.finish is Finish.LENGTH


@pytest.mark.parametrize("length", [1, 7, 8, 9, 20])
def test_one_token_is_there_after_the_prompt(length: int) -> None:
    stepped = SteppedEngine(codec=CODEC, choose=saying("xyz"))
    one = Request(prompt(1, length), 1)
    stepped.run(one)
    assert [(piece.tokens, piece.text, piece.finish) for piece in one.pieces] == [((120,), "x", Finish.LENGTH)]
    assert {report.kind for report in stepped.steps} == {"prefill"}
    assert sum(report.rows for report in stepped.steps) == length


def test_end_of_text_as_first_token_is_a_whole_answer() -> None:
    stepped = SteppedEngine(codec=CODEC, choose=saying(""))
    one = Request(prompt(1), 8)
    stepped.run(one)
    assert one.pieces == [Piece(0, (END,), "", (), Finish.STOP, END, Usage(5, 1))]


def test_stop_text_across_tokens_ends_in_the_step_that_completes_it() -> None:
    stepped = SteppedEngine(codec=CODEC, choose=saying("abcdef"))
    one, other = Request(prompt(1), 8, stop=("cde",)), Request(prompt(2), 5, stop=("de",))
    stepped.run(one, other)
    assert [piece.text for piece in one.pieces] == ["a", "b", "", "", ""]
    assert (one.last.finish, one.last.stop, one.last.usage) == (Finish.STOP, "cde", Usage(5, 5))
    assert (other.text, other.last.finish, other.last.stop) == ("abc", Finish.STOP, "de")


def test_context_may_be_exactly_full() -> None:
    stepped = SteppedEngine()
    one = Request(prompt(1, 40), LENGTH - 40, ignore_eos=True)
    stepped.run(one)
    assert (len(one.tokens), one.last.finish) == (LENGTH - 40, Finish.LENGTH)
    whole = Request(prompt(1, LENGTH), 0, echo=True)
    stepped.run(whole)
    assert whole.last.finish is Finish.LENGTH


@pytest.mark.parametrize(("length", "limit"), [(40, LENGTH - 39), (0, 1), (LENGTH + 1, 0), (1, -1)])
def test_text_that_fits_no_slot_is_not_taken(length: int, limit: int) -> None:
    stepped = SteppedEngine()
    with pytest.raises(ValueError, match="do not fit"):
        stepped.engine.submit([Request([1] * length, limit).asked])
    stepped.run()


def test_texts_may_be_made_of_one_list_of_tokens_and_keep_it() -> None:
    stepped = SteppedEngine()
    shared = prompt(1)
    requests = [Request(shared, 5, seed=seed, sampling=Sampling(temperature=1)) for seed in range(3)]
    stepped.run(*requests)
    assert shared == prompt(1)
    assert [one.tokens for one in requests] == [one.alone() for one in requests]


def test_least_tokens_are_drawn_before_an_end() -> None:
    ends: list[frozenset[int]] = []

    def choose(tokens: Sequence[int], draw: SamplingRequest) -> int:
        ends.append(draw.banned)
        return hashed(tokens, draw, VOCABULARY) if draw.banned else END

    stepped = SteppedEngine(choose=choose)
    one = Request(prompt(1), 9, min_tokens=3, stop_token_ids=(5,))
    stepped.run(one)
    assert ends == [frozenset({5, END})] * 3 + [frozenset()]
    assert (len(one.tokens), one.last.stop) == (4, END)


def test_scored_prompt_comes_with_the_first_piece() -> None:
    stepped = SteppedEngine(codec=CODEC, chunk=3)
    scored = Sampling(temperature=0, logprobs=2)
    tokens = prompt(4, 20)
    first = Request(tokens, 4, ignore_eos=True)
    stepped.run(first)  # its cache is there, and must not be used
    only, more = (
        Request(tokens, limit, sampling=scored, score_prompt=True, echo=True, ignore_eos=True) for limit in (0, 3)
    )
    stepped.run(only, more)
    expected = [TokenLogprob(tokens[0], None)]
    for at in range(1, len(tokens)):
        top = tuple((token, logprob_of(tokens[:at], token)) for token in (0, 1))
        expected.append(TokenLogprob(tokens[at], logprob_of(tokens[:at], tokens[at]), top))
    assert list(only.last.logprobs) == expected
    assert (only.tokens, only.text, only.last.finish) == ([], CODEC.decode(tokens), Finish.LENGTH)
    assert only.last.usage == Usage(20, 0, 0)
    assert list(more.pieces[0].logprobs[:-1]) == expected
    assert [piece.logprobs[-1].token for piece in more.pieces] == more.tokens
    assert len(more.pieces[1].logprobs) == 1


def test_prompt_that_was_preempted_is_scored_once() -> None:
    stepped = SteppedEngine(1, chunk=4)
    scored = Sampling(temperature=0, logprobs=0)
    slow = Request(prompt(1, 20), 2, sampling=scored, score_prompt=True, priority=5, ignore_eos=True)
    stepped.submit(slow)
    stepped.turn(2)
    urgent = Request(prompt(2), 3, ignore_eos=True)
    stepped.run(urgent)
    assert [one.token for piece in slow.pieces for one in piece.logprobs] == [*prompt(1, 20), *slow.tokens]
    assert [report.preemptions for report in stepped.texts] == [0, 1]


def test_more_urgent_text_takes_a_slot_and_no_token_comes_twice() -> None:
    stepped = SteppedEngine(1, codec=CODEC)
    slow = Request(prompt(1), 20, seed=9, priority=3, sampling=Sampling(temperature=1), ignore_eos=True)
    stepped.submit(slow)
    stepped.turn(6)
    before = slow.tokens
    assert len(before) == 6
    urgent = Request(prompt(2), 4, ignore_eos=True)
    stepped.submit(urgent)
    stepped.turn(4)
    assert (len(urgent.tokens), slow.tokens) == (4, before)
    stepped.run()
    assert slow.tokens == slow.alone(frozenset())
    assert slow.text == CODEC.decode(slow.tokens)
    assert urgent.tokens == urgent.alone(frozenset())
    assert sum(report.preempted for report in stepped.steps) == 1
    assert stepped.texts[-1].preemptions == 1


def test_slot_of_a_cancelled_text_is_taken_in_the_next_turn() -> None:
    stepped = SteppedEngine(2)
    running = [Request(prompt(n), 30, ignore_eos=True) for n in range(2)]
    waiting = Request(prompt(3), 3, ignore_eos=True)
    stepped.submit(*running, waiting)
    stepped.turn(3)
    assert waiting.pieces == []
    outputs = len(running[0].pieces)
    stepped.engine.cancel([running[0].asked])
    stepped.turn()
    assert running[0].code is StatusCode.CANCELLED
    assert len(running[0].pieces) == outputs, "nothing more came"
    assert len(waiting.tokens) == 1
    stepped.run()
    assert waiting.tokens == waiting.alone(frozenset())


def test_slot_of_an_ended_text_is_taken_in_the_next_turn() -> None:
    stepped = SteppedEngine(1)
    first, second = Request(prompt(1), 2, ignore_eos=True), Request(prompt(2), 2, ignore_eos=True)
    stepped.submit(first, second)
    stepped.turn(3)
    assert (first.ended.is_set(), len(second.tokens)) == (True, 1)
    stepped.run()


def test_cancelling_what_waits_or_has_ended_or_was_never_there() -> None:
    stepped = SteppedEngine(1)
    first, second, stranger = Request(prompt(1), 2), Request(prompt(2), 2), Request(prompt(3))
    stepped.submit(first, second)
    stepped.engine.cancel([second.asked, second.asked, stranger.asked])
    stepped.run()
    stepped.engine.cancel([first.asked, second.asked])
    stepped.run()
    assert (first.code, second.code, second.pieces) == (StatusCode.OK, StatusCode.CANCELLED, [])
    assert not stranger.ended.is_set()
    assert [report.outcome for report in stepped.texts] == ["cancelled", first.last.finish.value]


def test_deadlines_and_patience_end_texts() -> None:
    stepped = SteppedEngine(1, queue_timeout=5.0)
    runs = Request(prompt(1), 30, deadline=3.0, ignore_eos=True)
    waits = Request(prompt(2), 30, deadline=2.0)
    stepped.submit(runs, waits)
    stepped.turn(2)
    stepped.clock.advance(2.5)
    stepped.turn()
    assert (waits.code, runs.ended.is_set()) == (StatusCode.DEADLINE_EXCEEDED, False)
    stepped.clock.advance(1)
    stepped.turn()
    assert runs.code is StatusCode.DEADLINE_EXCEEDED
    assert len(runs.tokens) == 3
    holds, late = Request(prompt(3), 30, ignore_eos=True), Request(prompt(4), 3)
    stepped.submit(holds, late)
    stepped.turn()
    stepped.clock.advance(6)
    stepped.run()
    assert (holds.code, late.code) == (StatusCode.OK, StatusCode.UNAVAILABLE)
    assert late.status is not None
    assert late.status.reason is Reason.QUEUE_TIMEOUT
    assert [report.outcome for report in stepped.texts] == ["deadline", "deadline", "timeout", "length"]


def test_full_queue_refuses_all_of_them_at_once_and_delivers_nothing() -> None:
    stepped = SteppedEngine(1, max_queue=1)
    first = Request(prompt(1), 2)
    too_many = [Request(prompt(n), 2) for n in range(3)]
    stepped.submit(first)
    refusal = stepped.engine.submit([one.asked for one in too_many])
    assert refusal is not None
    assert (refusal.code, refusal.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    stepped.run(too_many[0])
    assert not any(one.pieces or one.ended.is_set() for one in too_many[1:])
    assert len(stepped.texts) == 2


def test_prompt_that_begins_like_another_one_is_not_computed_again() -> None:
    stepped = SteppedEngine(3, chunk=64, rows=64)
    shared = prompt(1, 30)
    first, second, third = (Request([*shared, n], 6, ignore_eos=True) for n in (1, 2, 3))
    stepped.submit(first)
    stepped.turn(2)
    stepped.submit(second)  # copies from a slot that is in use
    stepped.turn(2)
    stepped.engine.cancel([first.asked])
    stepped.run(third)
    for one in (second, third):
        assert one.tokens == one.alone(frozenset())
        assert one.last.usage == Usage(31, 6, 30)
    assert stepped.model.rows < 31 + 5 + 2 * (1 + 5) + 1
    assert [report.cached_asked for report in stepped.texts] == [31, 31, 31]


def test_step_keeps_one_history_and_decodes_nothing_twice() -> None:
    histories: list[Sequence[int]] = []
    rows: list[int] = []

    class Careful(ByteCodec):
        def decode(self, tokens, skip_special_tokens=True):
            raise AssertionError("the whole text is decoded")

    def before(step: Step) -> None:
        rows.append(len(step.rows[0].tokens))
        if step.rows[0].draw is not None:
            histories.append(step.rows[0].draw.history)

    stepped = SteppedEngine(codec=Careful(), before=before)
    stepped.run(Request(prompt(1), 40, ignore_eos=True))
    assert len(histories) == 40
    assert all(history is histories[0] for history in histories)
    assert rows[1:] == [1] * 39


def refuses(culprit: int, error: type[Exception] = ValueError) -> Callable[[Step], None]:
    """The model cannot bear prompts that have this token."""

    def before(step: Step) -> None:
        if any(culprit in (rows.draw.history if rows.draw else rows.tokens) for rows in step.rows):
            raise error("no such thing")

    return before


def test_step_that_raises_fails_only_the_culprit(caplog: pytest.LogCaptureFixture) -> None:
    stepped = SteppedEngine(4, before=refuses(255))
    good = [Request(prompt(n, 6), 5, ignore_eos=True) for n in (1, 2, 3)]
    for one in good:
        assert 255 not in [*one.asked.tokens, *one.alone(frozenset())]
    bad = [Request([255, n], 5) for n in range(3)]
    with caplog.at_level(logging.ERROR):
        stepped.run(good[0], bad[0], good[1], bad[1], good[2], bad[2])
    for one in bad:
        assert one.code is StatusCode.INTERNAL
        assert one.status is not None
        assert one.status.message == "model m version 3 failed on this text"
        assert one.pieces == []
    assert [one.tokens for one in good] == [one.alone(frozenset()) for one in good]
    assert not stepped.steps[0].ok
    assert stepped.steps[-1].ok
    assert len(caplog.records) == 2, "one for steps, one for texts, however many there were"
    assert all(record.exc_info for record in caplog.records)


def test_step_that_raises_halfway_is_made_again_right() -> None:
    """After some rows were written, and with copies."""
    raised: list[int] = []

    def choose(tokens: Sequence[int], draw: SamplingRequest) -> int:
        if draw.seed == 7 and len(raised) < 2:
            raised.append(draw.index)
            raise RuntimeError("this once")
        return hashed(tokens, draw, VOCABULARY)

    stepped = SteppedEngine(3, choose=choose, chunk=64, rows=64)
    shared = prompt(1, 30)
    first = Request([*shared, 1], 9, ignore_eos=True)
    stepped.submit(first)
    stepped.turn(2)
    second, third = Request([*shared, 2], 5, ignore_eos=True), Request([*shared, 3], 5, seed=7)
    stepped.run(second, third)
    assert (first.tokens, second.tokens) == (first.alone(frozenset()), second.alone(frozenset()))
    assert third.code is StatusCode.INTERNAL
    assert second.last.usage == Usage(31, 5, 30)
    assert raised == [0, 0]


def test_slot_of_a_failure_is_not_reused() -> None:
    broken = [True]

    def choose(tokens: Sequence[int], draw: SamplingRequest) -> int | None:
        return None if broken[0] else hashed(tokens, draw, VOCABULARY)

    stepped = SteppedEngine(choose=choose)
    first, again = Request(prompt(1, 40), 4), Request(prompt(1, 40), 4, ignore_eos=True)
    stepped.run(first)
    assert first.status == Status(
        StatusCode.INTERNAL, "model m version 3 failed on this text: its logits are no numbers"
    )
    broken[0] = False
    stepped.run(again)
    assert again.last.usage == Usage(40, 4, 0)
    assert [report.outcome for report in stepped.texts] == ["error", "length"]


def test_model_that_forgets_an_answer_fails_like_one_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(HashModel):
        def step(self, step: Step) -> Sequence[SampledToken]:
            return super().step(step)[: 1 if len(step.rows) > 1 else None]

    stepped = SteppedEngine()
    stepped.engine._step_runner._model = Forgetful(stepped.model.limits)
    requests = [Request(prompt(n), 3, ignore_eos=True) for n in range(2)]
    stepped.run(*requests)
    assert [one.tokens for one in requests] == [one.alone(frozenset()) for one in requests]
    assert "1 answers to 2 texts" in caplog.text


def test_tokenizer_that_raises_fails_only_its_text(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def push(self, token: int) -> str:
            raise KeyError(token)

        def flush(self) -> str:
            return ""

    class Picky(ByteCodec):
        def stream(self, skip_special_tokens=True, after=()):
            return super().stream() if skip_special_tokens else Broken()

    stepped = SteppedEngine(codec=Picky())
    good, bad = (
        Request(prompt(1), 5, ignore_eos=True),
        Request(prompt(2), 5, ignore_eos=True, skip_special_tokens=False),
    )
    stepped.run(good, bad)
    assert (good.code, bad.code) == (StatusCode.OK, StatusCode.INTERNAL)
    assert "tokenizer" in caplog.text


def test_engine_that_fails_itself_ends_every_text_and_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = SteppedEngine()
    requests = [Request(prompt(n), 5, ignore_eos=True) for n in range(4)]
    stepped.submit(*requests)
    stepped.turn()
    with monkeypatch.context() as patched:
        patched.setattr(SchedulerState, "append", lambda *_: 1 / 0)
        stepped.turn()
    assert [one.code for one in requests] == [StatusCode.INTERNAL] * 4
    again = Request(prompt(1), 5, ignore_eos=True)
    stepped.run(again)
    assert again.tokens == again.alone(frozenset())
    assert "ZeroDivisionError" in caplog.text


def test_texts_that_wait_for_their_timeouts_keep_no_caller() -> None:
    stepped = SteppedEngine(queue_timeout=30.0)
    one = Request(prompt(1), 2, ignore_eos=True)
    stepped.run(one)
    caller = weakref.ref(one)
    del one
    assert caller() is None


def test_callers_that_raise_disturb_no_other_text(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_) -> None:
        raise OSError("gone")

    stepped = SteppedEngine()
    stepped.engine._on_step = stepped.engine._on_text = fail
    rude, other = Request(prompt(1), 2, ignore_eos=True), Request(prompt(2), 2, ignore_eos=True)
    rude.asked.deliver = fail
    stepped.run(rude, other)
    assert other.code is StatusCode.OK
    for words in ("deliver must not raise", "a step of model m version 3 could not", "the end of a text of"):
        assert words in caplog.text


def test_reports_tell_kinds_times_and_counts() -> None:
    stepped = SteppedEngine(1, before=lambda step: stepped.clock.advance(0.5))
    first, second = Request(prompt(1, 10), 3, ignore_eos=True), Request(prompt(2, 5), 2, ignore_eos=True)
    stepped.run(first, second)
    assert [(one.kind, one.rows, one.texts, one.seconds, one.gaps) for one in stepped.steps] == [
        ("prefill", 8, 1, 0.5, ()),
        ("prefill", 2, 1, 0.5, ()),
        ("decode", 1, 1, 0.5, (0.5,)),
        ("decode", 1, 1, 0.5, (0.5,)),
        ("prefill", 5, 1, 0.5, ()),
        ("decode", 1, 1, 0.5, (0.5,)),
    ]
    assert stepped.texts == [
        TextReport(ID, "length", Usage(10, 3), 10, 0.0, 1.0, 2.0, 2.0),
        TextReport(ID, "length", Usage(5, 2), 5, 2.0, 2.5, 3.0, 3.0),
    ]
    two = SteppedEngine(2)
    two.submit(Request(prompt(1), 5, ignore_eos=True))
    two.turn(2)
    two.run(Request(prompt(2), 5, ignore_eos=True))
    assert [report.kind for report in two.steps][:4] == ["prefill", "decode", "mixed", "decode"]


def test_closed_engine_has_ended_every_text_and_takes_none() -> None:
    stepped = SteppedEngine(1)
    requests = [Request(prompt(n), 9, ignore_eos=True) for n in range(3)]
    stepped.submit(*requests)
    stepped.turn(2)
    stepped.engine.close()
    stepped.engine.close()
    assert [one.code for one in requests] == [StatusCode.UNAVAILABLE] * 3
    assert len(requests[0].tokens) == 2
    refusal = stepped.engine.submit([Request(prompt(1)).asked])
    assert refusal == Status(StatusCode.UNAVAILABLE, "model m version 3 is being unloaded")
    assert stepped.engine.state().waiting == 0


@pytest.mark.parametrize("seed", range(4))
def test_thousand_random_submits_and_cancels_leave_nothing_behind(seed: int) -> None:
    random_ = random.Random(seed)
    stepped = SteppedEngine(
        random_.randint(1, 5), codec=CODEC, chunk=random_.randint(1, 12), max_queue=20, queue_timeout=40.0
    )
    taken: list[Request] = []
    for _ in range(1000):
        action = random_.random()
        if action < 0.45:
            requests = [_random_text(random_, stepped.clock.monotonic()) for _ in range(random_.randint(1, 3))]
            if stepped.engine.submit([one.asked for one in requests]) is None:
                taken += requests
        elif action < 0.7 and taken:
            stepped.engine.cancel([one.asked for one in random_.sample(taken[-20:], min(2, len(taken)))])
        else:
            stepped.turn(random_.randint(1, 4))
        stepped.clock.advance(random_.random())
    stepped.run()
    assert len(taken) > 100
    assert all(one.ended.is_set() for one in taken)
    assert len(stepped.texts) == len(taken)
    for one in taken:
        alone = one.alone()
        assert one.tokens == (alone if one.status is None else alone[: len(one.tokens)])
    codes = {one.code for one in taken}
    assert codes >= {StatusCode.OK, StatusCode.CANCELLED}
    assert any(report.preemptions for report in stepped.texts)
    assert any(report.usage.cached for report in stepped.texts)


def _random_text(random_: random.Random, now: float) -> Request:
    """Some begin alike."""
    tokens = prompt(random_.randint(0, 2), random_.randint(1, 24))
    return Request(
        tokens + [random_.randrange(256)] * random_.randint(0, 3),
        random_.randint(1, 20),
        seed=random_.randrange(100),
        deadline=now + random_.uniform(0, 60) if random_.random() < 0.2 else None,
        sampling=random_.choice([GREEDY, Sampling(temperature=1)]),
        priority=random_.choice([0, 0, 0, 1, 3]),
    )


@pytest.fixture
def loop() -> StepLoop:
    return StepLoop("tfs-test-steps")


def threads(name: str = "tfs-test-steps") -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def real(model: HashModel, loop: StepLoop, **settings) -> Engine:
    return Engine(model, ID, settings_of(model.limits.slots, **settings), clock=SystemClock(), loop=loop)


def test_many_threads_submit_and_cancel_while_the_engine_closes(loop: StepLoop) -> None:
    models = [HashModel(GenerationLimits(3, LENGTH, VOCABULARY, EOS)) for _ in range(2)]
    engines = [real(model, loop) for model in models]
    taken: list[list[Request]] = [[] for _ in range(4)]
    enough = threading.Event()

    def ask(number: int) -> None:
        random_ = random.Random(number)
        while True:
            one = _random_text(random_, 1e12)
            if engines[number % 2].submit([one.asked]) is not None:
                return  # it is closed
            taken[number].append(one)
            if random_.random() < 0.3:
                engines[number % 2].cancel([random_.choice(taken[number]).asked])
            else:
                one.first.wait(0.001 if random_.random() < 0.5 else 0)
            if len(taken[number]) == 60:
                enough.set()

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for asker in askers:
        asker.start()
    assert enough.wait(PATIENCE)
    for engine in engines:
        engine.close()
    for asker in askers:
        asker.join(PATIENCE)
    assert threads() == 0
    everyone = [one for each in taken for one in each]
    assert all(one.ended.is_set() for one in everyone)
    for one in everyone:
        assert one.tokens == one.alone()[: len(one.tokens)]
    assert [model.complaints for model in models] == [[], []]
    assert [engine.state().running for engine in engines] == [0, 0]


def test_two_engines_on_one_loop_take_turns(loop: StepLoop) -> None:
    log: list[str] = []
    go = threading.Event()

    def note(name: str) -> Callable[[Step], None]:
        def before(step: Step) -> None:
            assert go.wait(PATIENCE)
            log.append(name)

        return before

    limits = GenerationLimits(2, LENGTH, VOCABULARY, EOS)
    engines = [real(HashModel(limits, before=note(name)), loop) for name in "ab"]
    requests = [Request(prompt(n), 6, ignore_eos=True) for n in range(2)]
    for engine, one in zip(engines, requests, strict=True):
        assert engine.submit([one.asked]) is None
    go.set()
    for one in requests:
        assert one.ended.wait(PATIENCE)
    assert log == ["a", "b"] * 6
    assert threads() == 1
    engines[0].close()
    assert threads() == 1
    engines[1].close()
    assert threads() == 0


def test_closing_waits_for_the_step_that_is_under_way(loop: StepLoop) -> None:
    inside, go = threading.Event(), threading.Event()

    def before(step: Step) -> None:
        inside.set()
        assert go.wait(PATIENCE)

    model = HashModel(before=before)
    engine = real(model, loop)
    one = Request(prompt(1), 9, ignore_eos=True)
    assert engine.submit([one.asked]) is None
    assert inside.wait(PATIENCE)
    closed = threading.Event()
    closer = threading.Thread(target=lambda: (engine.close(), closed.set()))
    closer.start()
    assert not one.ended.is_set()
    assert not closed.is_set()
    go.set()
    assert closed.wait(PATIENCE)
    closer.join()
    assert one.code is StatusCode.UNAVAILABLE
    assert threads() == 0


def test_idle_engine_wakes_for_each_text(loop: StepLoop) -> None:
    engine = real(HashModel(), loop)
    for number in range(50):
        one = Request(prompt(number), 2, ignore_eos=True)
        assert engine.submit([one.asked]) is None
        assert one.ended.wait(PATIENCE)
        assert one.tokens == one.alone(frozenset())
    engine.close()
