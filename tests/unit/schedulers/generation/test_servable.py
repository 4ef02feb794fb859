"""Language models as servables: answers whole and in pieces, refusals, cancellations, deadlines, and the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.language.byte_codec import END, VOCABULARY, ByteCodec
from tests.support.language.hash_model import HashModel, hashed
from tfs_lite.core.generation import (
    ChatPrompt,
    Finish,
    Generation,
    GenerationCall,
    GenerationLimits,
    Piece,
    Sampling,
    SamplingRequest,
    StepReport,
    join_pieces,
)
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.protocols.generation_tensors import generation_signature
from tfs_lite.schedulers.generation.loop import StepLoop
from tfs_lite.schedulers.generation.servable import GenerativeServable
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.tokenizing import LIGHT
from tfs_lite.testing.lifecycle.clock import VirtualClock

PATIENCE = 60
LENGTH = 2 * LIGHT
GREEDY = Sampling(temperature=0)
LONG = "a" * (LIGHT + 1)
"""Tokenised on the thread for long prompts."""


class Request:
    """A call, and its events."""

    def __init__(self, *texts: Generation, pieces: bool = False, **fields: Any) -> None:
        self.pieces: list[Piece] = []
        self.parts: list[Any] = []
        self.answers: list[Any] = []
        self.ended, self.first = threading.Event(), threading.Event()
        inputs = fields.pop("inputs", {})
        outputs = fields.pop("outputs", ())
        self.call = GenerationCall(
            DEFAULT_SIGNATURE, inputs, outputs, fields.pop("deadline", None), self._done, **fields
        )
        self.call.texts = texts
        if pieces:
            self.call.on_piece = self._take

    def _take(self, piece: Piece) -> None:
        assert not self.answers
        self.pieces.append(piece)
        self.first.set()

    def _done(self, result: Any) -> None:
        self.answers.append(result)
        self.ended.set()

    def result(self) -> Any:
        assert self.ended.wait(PATIENCE)
        (answer,) = self.answers
        return answer

    def outputs(self) -> dict[str, Any]:
        found = self.result()
        assert not isinstance(found, Status), found
        return {name: array.tolist() for name, array in found.items()}

    def status(self) -> Status:
        found = self.result()
        assert isinstance(found, Status), found
        return found

    def code(self) -> StatusCode:
        return self.status().code


class SlowCodec(ByteCodec):
    """Holds long prompts up, once it is told to."""

    def __init__(self, has_chat_template: bool = True) -> None:
        super().__init__(has_chat_template)
        self.go, self.inside = threading.Event(), threading.Event()
        self.go.set()

    def encode(self, text: str) -> list[int]:
        if len(text) > LIGHT:
            self.inside.set()
            assert self.go.wait(PATIENCE)
            if text.endswith("!"):
                raise RuntimeError("no such word")
        return super().encode(text)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        if 200 in tokens:
            raise RuntimeError("no such token")
        return super().decode(tokens, skip_special_tokens)


class ServableFixture:
    """A servable, its model and its clock. Steps wait for ``go``."""

    def __init__(self, codec: bool = True, slots: int = 2, max_queue: int = 4, **options: Any) -> None:
        self.clock = VirtualClock()
        self.codec = SlowCodec()
        self.go, self.inside = threading.Event(), threading.Event()
        self.go.set()
        self.step_seconds = 0.0
        limits = GenerationLimits(slots, LENGTH, VOCABULARY, frozenset({END}))
        self.model = HashModel(limits, self.codec if codec else None, before=self._before, **options.pop("model", {}))
        settings = EngineSettings(slots, options.pop("length", LENGTH), LENGTH, LENGTH, max_queue, 10 * LENGTH, 30.0)
        self.servable = GenerativeServable(self.model, ServableId("m", 1), settings, clock=self.clock, **options)

    def _before(self, step: Any) -> None:
        self.inside.set()
        assert self.go.wait(PATIENCE)
        self.clock.advance(self.step_seconds)

    def hold(self) -> None:
        self.go.clear()
        self.inside.clear()

    def submit(self, *texts: Generation, **fields: Any) -> Request:
        request = Request(*texts, **fields)
        self.servable.submit(request.call)
        return request

    def running(self, texts: int = 1) -> Request:
        """A call whose first step is under way, and held up there."""
        self.hold()
        request = self.submit(*[Generation("x", 500, sampling=GREEDY, ignore_eos=True)] * texts, pieces=True)
        assert self.inside.wait(PATIENCE)
        return request

    def tokenizing(self) -> Request:
        """A call whose long prompt is held up in the tokenizer."""
        self.codec.go.clear()
        request = self.submit(Generation(LONG, 1))
        assert self.codec.inside.wait(PATIENCE)
        return request

    def end(self) -> None:
        self.go.set()
        self.codec.go.set()
        self.servable.close()
        assert self.model.closed
        assert self.model.complaints == []


@pytest.fixture
def threads() -> Callable[[], list[str]]:
    """The names of the threads that the test has started and that still run."""
    before = set(threading.enumerate())
    return lambda: sorted(each.name for each in {*threading.enumerate()} - before if each.name.startswith("tfs-"))


@pytest.fixture
def make(threads) -> Iterator[Callable[..., ServableFixture]]:
    fixtures = []

    def made(**options: Any) -> ServableFixture:
        fixtures.append(ServableFixture(**options))
        return fixtures[-1]

    yield made
    for fixture in fixtures:
        fixture.end()
    assert threads() == []


@pytest.fixture
def fixture(make) -> ServableFixture:
    return make()


def greedy(tokens: Sequence[int], count: int, sampling: Sampling = GREEDY, seed: int = 0) -> list[int]:
    """What the model says to these tokens, one by one."""
    found = list(tokens)
    for index in range(count):
        found.append(hashed(found, SamplingRequest(sampling, seed, index, found, len(tokens)), VOCABULARY))
        if found[-1] == END:
            break
    return found[len(tokens) :]


def test_answer_to_tensors_is_whole(fixture):
    prompts = [b"first", b"second one"]
    inputs = {
        "text_input": np.array(prompts, object),
        "max_tokens": np.array([3, 7], np.int32),
        "temperature": np.array(0, np.float32),
        "ignore_eos": np.array([True]),
    }
    outputs = fixture.submit(inputs=inputs).outputs()
    assert list(outputs) == list(generation_signature(True).output_names)
    ids = [fixture.codec.encode(prompt.decode()) for prompt in prompts]
    first, second = greedy(ids[0], 3), greedy(ids[1], 7)
    assert outputs["token_ids"] == [first + [-1] * 4, second]
    assert outputs["text_output"] == [fixture.codec.decode(each).encode() for each in (first, second)]
    assert outputs["finish_reason"] == [b"length"] * 2
    assert (outputs["prompt_tokens"], outputs["completion_tokens"]) == ([6, 11], [3, 7])


def test_model_without_a_tokenizer_answers_in_tokens(make):
    fixture = make(codec=False)
    inputs = {"input_ids": np.array([1, 2, 3]), "temperature": np.array(0, np.float32)}
    outputs = fixture.submit(inputs=inputs).outputs()
    assert list(outputs) == list(generation_signature(False).output_names)
    assert outputs["token_ids"] == [greedy([1, 2, 3], 16)]
    assert fixture.servable.codec is None
    assert fixture.servable.signatures == {DEFAULT_SIGNATURE: generation_signature(False)}


def test_only_the_outputs_that_are_wanted_are_given(fixture):
    request = fixture.submit(Generation([1], 2, ignore_eos=True), outputs=("finish_reason",))
    assert request.outputs() == {"finish_reason": [b"length"]}
    assert fixture.submit(Generation([1], 2), outputs=("logits",)).code() is StatusCode.INVALID_ARGUMENT


def test_pieces_come_before_the_end_and_are_all_of_each_text(fixture):
    prompts = [[1], [2, 3], [4, 5, 6], [7]]
    wanted = [Generation(each, 5 + index, sampling=GREEDY, ignore_eos=True) for index, each in enumerate(prompts)]
    request = fixture.submit(*wanted, pieces=True)
    assert request.result() == {}
    for index, (each, text) in enumerate(zip(prompts, wanted, strict=True)):
        whole = join_pieces([piece for piece in request.pieces if piece.index == index])
        assert list(whole.tokens) == greedy(each, text.max_tokens)
        assert (whole.finish, whole.usage.prompt, whole.usage.output) == (Finish.LENGTH, len(each), text.max_tokens)
    assert sum(piece.finish is not None for piece in request.pieces) == len(prompts)
    assert request.call.admitted


@pytest.mark.parametrize("takes", ["on_piece", "on_done"])
def test_caller_that_breaks_its_contract_hurts_only_itself(fixture, caplog, takes):
    ended = threading.Event()

    def fails(*_: Any) -> None:
        ended.set()
        raise RuntimeError("no thanks")

    request = Request(Generation([1], 2))
    setattr(request.call, takes, fails)
    fixture.servable.submit(request.call)
    assert ended.wait(PATIENCE)
    assert fixture.submit(Generation([1], 2)).outputs()
    assert f"{takes} must not raise" in caplog.text
    assert takes == "on_done" or request.result() == {}


def test_chat_and_long_prompts_are_tokenised_before_they_enter(fixture):
    chat = ChatPrompt(({"role": "user", "content": LONG},))
    for prompt, tokens in ((chat, fixture.codec.chat(chat)), (LONG, fixture.codec.encode(LONG))):
        outputs = fixture.submit(Generation(prompt, 2, sampling=GREEDY)).outputs()
        assert outputs["token_ids"] == [greedy(tokens, 2)]


def test_prompt_is_only_read_when_nothing_but_its_echo_is_wanted(fixture):
    outputs = fixture.submit(Generation("hello", 0, echo=True)).outputs()
    assert (outputs["text_output"], outputs["token_ids"]) == ([b"hello"], [[]])
    assert (outputs["completion_tokens"], outputs["finish_reason"]) == ([0], [b"length"])


def test_text_without_max_tokens_ends_with_the_context(make):
    fixture = make(length=20)
    assert fixture.servable.limits.length == 20
    assert fixture.submit(Generation([1] * 15, ignore_eos=True)).outputs()["completion_tokens"] == [5]
    reason = "the prompt has 15 tokens and max_tokens is 6, together more than the 20 of the model's context (model m)"
    refused = fixture.submit(Generation([1] * 15, 6)).status()
    assert (refused.code, refused.message) == (StatusCode.INVALID_ARGUMENT, reason)


class Seeds:
    """A model's choice that only keeps what it is asked with."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, tokens: Sequence[int], draw: SamplingRequest) -> int:
        self.seen.append(draw.seed)
        return 1


@pytest.mark.parametrize(
    ("seed", "shift", "expected"),
    [(5, 0, 5), (5, 3, 8), (2**63 - 1, 1, -(2**63)), (-(2**63), 0, -(2**63))],
    ids=["plain", "shifted", "past the end", "the least"],
)
def test_seed_is_that_of_the_text_and_its_number(make, seed, shift, expected):
    seeds = Seeds()
    fixture = make(model={"choose": seeds})
    fixture.submit(Generation([1], 1, sampling=Sampling(seed=seed), seed_shift=shift)).outputs()
    assert seeds.seen == [expected]


def test_texts_without_a_seed_have_seeds_of_their_own_that_last(make):
    seeds = Seeds()
    fixture = make(model={"choose": seeds})
    fixture.submit(*[Generation([1], 4, ignore_eos=True)] * 2).outputs()
    fixture.submit(*[Generation([1], 4, ignore_eos=True)] * 2).outputs()
    assert len(seeds.seen) == 16
    assert len(set(seeds.seen)) == 4


def test_failure_of_one_text_is_that_of_its_call_and_ends_the_others(make):
    fixture = make(model={"choose": lambda tokens, draw: None if tokens[-1] == 9 else 1})
    request = fixture.submit(Generation([1], 500), Generation([9], 500), pieces=True)
    status = request.status()
    assert status.code is StatusCode.INTERNAL
    assert all(piece.finish is None for piece in request.pieces)
    assert fixture.servable.state().running == 0
    assert fixture.submit(Generation([1], 2)).outputs()["token_ids"] == [[1, 1]]


def test_refused_call_is_not_admitted_and_tells_the_number_of_the_prompt(fixture):
    request = fixture.submit(Generation([1], 1), Generation([], 1))
    assert request.status() == Status(
        StatusCode.INVALID_ARGUMENT, "prompt 1: the prompt is empty, expected one token at least (model m)"
    )
    assert not request.call.admitted
    assert fixture.submit(inputs={}).code() is StatusCode.INVALID_ARGUMENT
    assert fixture.model.steps == 0


def test_call_with_more_texts_than_there_can_be_is_refused_for_good(fixture):
    status = fixture.submit(*[Generation([1], 1)] * 7).status()
    assert status == Status(StatusCode.INVALID_ARGUMENT, "7 texts are wanted, there is room for 6 at most (model m)")


def test_full_queue_refuses_at_once_and_says_when_to_come_again(fixture):
    fixture.step_seconds = 0.01
    first = fixture.submit(Generation([1], 3, ignore_eos=True))
    assert first.outputs()
    running = fixture.running(2)
    waiting = fixture.submit(*[Generation([1], 1)] * 4)
    assert fixture.servable.pending == fixture.servable.pending_rows == 4
    refused = fixture.submit(Generation([1], 1))
    status = refused.status()
    assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    assert not refused.call.admitted
    assert 1 <= fixture.servable.retry_seconds <= 6
    fixture.go.set()
    assert running.result() == {}
    assert waiting.outputs()["completion_tokens"] == [1] * 4
    assert fixture.servable.pending == 0


def test_guess_of_when_to_come_again_grows_with_the_steps_and_is_bounded(fixture):
    assert fixture.servable.retry_seconds == 1
    fixture.step_seconds = 10.0
    fixture.submit(Generation([1], 3, ignore_eos=True)).outputs()
    fixture.running()
    assert fixture.servable.retry_seconds == 60


def test_call_that_waits_is_cancelled_while_the_others_run_on(fixture):
    running = fixture.running(2)
    waiting = fixture.submit(Generation([1], 1))
    fixture.servable.cancel(waiting.call)
    fixture.go.set()
    assert waiting.code() is StatusCode.CANCELLED
    assert running.result() == {}


def test_call_that_runs_is_cancelled_within_a_step(fixture):
    request = fixture.running()
    fixture.servable.cancel(request.call)
    fixture.go.set()
    assert request.code() is StatusCode.CANCELLED
    assert sum(len(piece.tokens) for piece in request.pieces) <= 1
    stranger = Request(Generation([1], 1))
    for ended_or_never_submitted in (request, stranger):
        fixture.servable.cancel(ended_or_never_submitted.call)
    assert stranger.answers == []
    assert fixture.servable.state().running == 0


def test_call_is_cancelled_while_its_prompt_waits_for_the_tokenizer(fixture):
    first = fixture.tokenizing()
    second = fixture.submit(Generation(LONG, 1))
    assert fixture.servable.pending == 1
    fixture.servable.cancel(second.call)
    assert second.code() is StatusCode.CANCELLED
    assert fixture.servable.pending == 0
    fixture.servable.cancel(first.call)
    assert first.code() is StatusCode.CANCELLED
    fixture.codec.go.set()
    assert fixture.submit(Generation(LONG, 1)).outputs()
    assert fixture.model.steps == 1
    assert not first.call.admitted


def test_queue_of_the_tokenizer_is_bounded(fixture):
    first = fixture.tokenizing()
    waiting = [fixture.submit(Generation(LONG, 1)) for _ in range(6)]
    status = fixture.submit(Generation(LONG, 1)).status()
    assert (status.code, status.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    for each in waiting:
        fixture.servable.cancel(each.call)
    fixture.codec.go.set()
    assert first.outputs()["completion_tokens"] == [1]


@pytest.mark.parametrize(
    ("text", "failed", "logged"),
    [
        (Generation(LONG + "!", 1), "tokenise the prompts", "no such word"),
        (Generation([200], 1, echo=True), "take the texts", "no such token"),
    ],
    ids=["prompt", "echo"],
)
def test_tokenizer_that_fails_is_the_call_s_failure(fixture, caplog, text, failed, logged):
    request = fixture.submit(text)
    assert request.status() == Status(StatusCode.INTERNAL, f"model m version 1 failed to {failed}")
    assert not request.call.admitted
    assert logged in caplog.text
    assert fixture.submit(Generation(LONG, 1)).outputs()


def test_deadline_that_has_passed_costs_nothing(fixture):
    status = fixture.submit(Generation([1], 1), deadline=fixture.clock.monotonic()).status()
    assert status.code is StatusCode.DEADLINE_EXCEEDED
    assert fixture.model.steps == 0


def test_deadline_counts_while_a_prompt_waits_for_the_tokenizer(fixture):
    first = fixture.tokenizing()
    late = fixture.submit(Generation(LONG, 1), deadline=fixture.clock.monotonic() + 5)
    fixture.clock.advance(5)
    fixture.codec.go.set()
    assert late.code() is StatusCode.DEADLINE_EXCEEDED
    assert first.outputs()


@pytest.mark.parametrize(
    ("timeout", "deadline", "tokens"),
    [(None, 3.0, 3), (3.0, None, 3), (3.0, 9.0, 3), (3.0, 2.0, 2)],
    ids=["deadline", "timeout", "timeout is the sooner", "timeout is the later"],
)
def test_sooner_of_deadline_and_timeout_ends_a_text_between_its_tokens(fixture, timeout, deadline, tokens):
    fixture.step_seconds = 1.0
    at = None if deadline is None else fixture.clock.monotonic() + deadline
    text = Generation([1], 500, ignore_eos=True)
    request = fixture.submit(text, pieces=True, timeout=timeout, deadline=at)
    assert request.code() is StatusCode.DEADLINE_EXCEEDED
    assert sum(len(piece.tokens) for piece in request.pieces) == tokens


def test_call_knows_how_long_it_waited_and_how_long_it_ran(make):
    fixture = make(slots=1)
    fixture.step_seconds = 1.0
    running = fixture.running()
    waiting = fixture.submit(Generation([1], 3, ignore_eos=True), Generation([2], 2, ignore_eos=True))
    fixture.clock.advance(2.0)
    fixture.servable.cancel(running.call)
    fixture.go.set()
    waiting.outputs()
    assert running.code() is StatusCode.CANCELLED
    assert (waiting.call.queue_seconds, waiting.call.run_seconds) == (3.0, 5.0)
    assert (running.call.queue_seconds, running.call.run_seconds) == (0.0, 3.0)


def test_steps_and_texts_are_reported(make):
    steps: list[StepReport] = []
    texts: list[Any] = []
    fixture = make(on_step=steps.append, on_text=texts.append)
    fixture.submit(Generation([1, 2], 3, ignore_eos=True)).outputs()
    assert [report.rows for report in steps] == [2, 1, 1]
    assert [(report.outcome, report.usage.output) for report in texts] == [("length", 3)]


def test_models_of_one_process_take_turns_and_others_have_their_own_thread(make, threads, monkeypatch):
    monkeypatch.setattr(HashModel, "shares_compute", False)
    make()
    assert threads() == ["tfs-steps-m-1"]
    monkeypatch.setattr(HashModel, "shares_compute", True)
    make()
    make()
    assert threads() == ["tfs-steps", "tfs-steps-m-1"]
    make(loop=StepLoop("tfs-given"))
    assert threads() == ["tfs-given", "tfs-steps", "tfs-steps-m-1"]


def test_call_after_the_end_and_inside_it_is_answered(make):
    fixture = make()
    inside = fixture.tokenizing()
    waiting = fixture.submit(Generation(LONG, 1))
    closing = threading.Thread(target=fixture.servable.close)
    closing.start()
    unloaded = Status(StatusCode.UNAVAILABLE, "model m version 1 is being unloaded")
    assert waiting.status() == unloaded
    fixture.codec.go.set()
    closing.join(PATIENCE)
    inside.result()
    assert fixture.submit(Generation([1], 1)).status() == unloaded


@pytest.mark.parametrize("seed", range(4))
def test_each_of_many_calls_has_one_answer_whatever_is_cancelled(make, seed):
    fixture = make(slots=3, max_queue=20)
    dice = random.Random(seed)
    calls: list[Request] = []

    def ask(own: random.Random) -> None:
        for _ in range(60):
            prompt: Any = LONG if own.random() < 0.1 else [own.randrange(VOCABULARY)] * own.randrange(1, 20)
            texts = [Generation(prompt, own.randrange(1, 30)) for _ in range(own.randrange(1, 4))]
            request = fixture.submit(*texts, pieces=own.random() < 0.5)
            calls.append(request)
            if own.random() < 0.5:
                fixture.servable.cancel(own.choice(calls).call)

    askers = [threading.Thread(target=ask, args=(random.Random(dice.random()),)) for _ in range(3)]
    for thread in askers:
        thread.start()
    for thread in askers:
        thread.join(PATIENCE)
    codes = {StatusCode.CANCELLED, StatusCode.UNAVAILABLE}
    results = [request.result() for request in calls]
    assert all(result.code in codes for result in results if isinstance(result, Status))
    assert any(not isinstance(result, Status) for result in results)
    state = fixture.servable.state()
    assert (state.running, state.waiting, fixture.servable.pending) == (0, 0, 0)
