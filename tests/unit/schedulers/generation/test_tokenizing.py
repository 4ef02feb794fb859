"""From a call to the tokens of its texts, and the thread for what takes long."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.language.byte_codec import BEGIN, END, VOCABULARY, ByteCodec
from tfs_lite.core.generation import ChatPrompt, Generation, GenerationCall, GenerationLimits, Sampling
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import Reason, StatusCode
from tfs_lite.schedulers.generation.tokenizing import LIGHT, Prepared, TokenizerThread, Work, prepare, weigh

PATIENCE = 60
LIMITS = GenerationLimits(4, 64, VOCABULARY, frozenset({END}))
CHAT = ChatPrompt(({"role": "user", "content": "hi"},))


def call_for(*texts: Generation, inputs: Mapping[str, Any] | None = None, priority: int = 0) -> GenerationCall:
    return GenerationCall(DEFAULT_SIGNATURE, inputs or {}, (), None, lambda _: None, priority=priority, texts=texts)


class CountingCodec(ByteCodec):
    """Knows what it was asked."""

    def __init__(self, has_chat_template: bool = True) -> None:
        super().__init__(has_chat_template)
        self.encoded: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode(text)


class BareCodec(ByteCodec):
    """Puts nothing before a prompt."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text)[1:]


def test_each_kind_of_prompt_becomes_tokens():
    wanted = [Generation("ab", 5), Generation((7, 8), 5), Generation(CHAT, 5)]
    expected = [[BEGIN, 97, 98], [7, 8], [BEGIN, *b"user: hi\nassistant:"]]
    found = prepare(call_for(*wanted), ByteCodec(), LIMITS)
    assert found == [Prepared(text, tokens, 5) for text, tokens in zip(wanted, expected, strict=True)]


def test_tensors_become_texts():
    inputs = {"input_ids": np.array([[1, 2], [3, 4]]), "max_tokens": np.array([5, 6], np.int32)}
    found = prepare(call_for(inputs=inputs), None, LIMITS)
    assert [(text.tokens, text.limit) for text in found] == [([1, 2], 5), ([3, 4], 6)]


def test_parameters_of_the_call_count_with_its_tensors():
    call = call_for(inputs={"text_input": np.array([b"ab"], object)})
    call.parameters = {"max_tokens": 3, "temperature": 0}
    (found,) = prepare(call, ByteCodec(), LIMITS)
    assert (found.limit, found.wanted.sampling) == (3, Sampling(temperature=0))


def test_prompt_of_several_texts_is_tokenised_once():
    codec = CountingCodec()
    prompt = "ab" * 5
    found = prepare(call_for(*[Generation(prompt, 1, seed_shift=shift) for shift in range(8)]), codec, LIMITS)
    assert len(found) == 8
    assert codec.encoded == [prompt]


FITTING = {
    "the rest of the context after one token": (Generation([1]), 1, 63),
    "the last position": (Generation([1] * 63), 63, 1),
    "prompt and output fill the context": (Generation([1] * 60, 4), 60, 4),
    "prompt that is only read fills the context": (Generation("a" * 63, 0, echo=True), 64, 0),
}


@pytest.mark.parametrize(("wanted", "length", "limit"), FITTING.values(), ids=FITTING)
def test_text_may_fill_the_context_and_gets_its_rest_without_max_tokens(wanted, length, limit):
    (found,) = prepare(call_for(wanted), ByteCodec(), LIMITS)
    assert (len(found.tokens), found.limit) == (length, limit)


@pytest.mark.parametrize(("own", "calls", "expected"), [(0, 0, 0), (0, 2, 2), (-1, 2, -1), (3, 0, 3)])
def test_text_without_a_priority_has_that_of_the_call(own, calls, expected):
    (found,) = prepare(call_for(Generation([1], 1, priority=own), priority=calls), None, LIMITS)
    assert found.wanted.priority == expected


UNREADABLE = "the prompt is a text, and the model has no tokenizer; send tokens"
LONG = "the prompt has 65 tokens, more than the 64 of the model's context"
REFUSED = {
    "no token": ([Generation([], 1)], None, "the prompt is empty, expected one token at least"),
    "no text": ([Generation("", 1)], BareCodec(), "the prompt is empty, expected one token at least"),
    "long": ([Generation([1] * 65, 1)], None, LONG),
    "long text": ([Generation("a" * 64, 1)], ByteCodec(), LONG),
    "long, to be read only": ([Generation("a" * 64, 0, echo=True)], ByteCodec(), LONG),
    "long together": (
        [Generation([1] * 60, 5)],
        None,
        "the prompt has 60 tokens and max_tokens is 5, together more than the 64 of the model's context",
    ),
    "no room": (
        [Generation([1] * 64)],
        None,
        "the prompt has 64 tokens, which leaves no room for a single one in the 64 of the model's context",
    ),
    "no room for the least": (
        [Generation([1] * 60, min_tokens=5)],
        None,
        "the prompt has 60 tokens, which leaves no room for the 5 of min_tokens in the 64 of the model's context",
    ),
    "characters": (
        [Generation("a" * (2**20 + 1), 1)],
        ByteCodec(),
        "the prompt has 1048577 characters, more than the 1048576 that a context of 64 tokens may hold",
    ),
    "unknown token": ([Generation([1, 258], 1)], None, "the prompt has token 258; the vocabulary has 0 to 257"),
    "negative token": ([Generation([-1], 1)], None, "the prompt has token -1; the vocabulary has 0 to 257"),
    "text without a tokenizer": ([Generation("a", 1)], None, UNREADABLE),
    "chat without a tokenizer": ([Generation(CHAT, 1)], None, UNREADABLE),
    "chat without a template": (
        [Generation(CHAT, 1)],
        ByteCodec(False),
        "the model has no chat template; send the prompt as a text",
    ),
    "echo without a tokenizer": (
        [Generation([1], 1, echo=True)],
        None,
        "echo: the model has no tokenizer, and cannot give the prompt back as a text",
    ),
    "nothing wanted": (
        [Generation([1], 0)],
        None,
        "max_tokens is 0: nothing would be generated; that is only of use with echo",
    ),
    "no number": (
        [Generation([1], 1, sampling=Sampling(temperature=float("nan")))],
        None,
        "temperature is nan, expected at least 0.0 and at most 100.0",
    ),
    "too many": ([Generation([1], 1)] * 129, None, "129 texts are wanted, at most 128 are allowed in a request"),
    "half a character": ([Generation("\ud800", 1)], ByteCodec(), "the prompt is no text: it has half a surrogate pair"),
    "one of several": ([Generation([1], 1), Generation([1] * 65, 1)], None, "prompt 1: " + LONG),
}


@pytest.mark.parametrize(("texts", "codec", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_generated_is_refused_with_the_numbers(texts, codec, words):
    assert refusal(prepare, call_for(*texts), codec, LIMITS) == words


@pytest.mark.parametrize(
    ("characters", "context", "words", "encoded"),
    [(2**20 + 1, 64, "characters", 0), (64 * 20_000, 20_000, "tokens, more than the 20000 of", 1)],
    ids=["too long for any tokens", "not too long for this context"],
)
def test_only_a_text_that_could_fit_the_context_reaches_the_tokenizer(characters, context, words, encoded):
    codec = CountingCodec()
    assert words in refusal(
        prepare, call_for(Generation("a" * characters, 1)), codec, GenerationLimits(1, context, VOCABULARY)
    )
    assert len(codec.encoded) == encoded


def test_only_what_takes_long_weighs_much():
    deep = ChatPrompt(({"role": "user", "content": [{"type": "text", "text": "a" * LIGHT}]},))
    assert weigh(call_for(Generation("a" * 100, 1), Generation([1] * 800, 1))) == 200
    assert weigh(call_for(*[Generation(CHAT, 1)] * 100)) < 20
    assert weigh(call_for(Generation(deep, 1))) > LIGHT
    assert weigh(call_for(inputs={"text_input": np.array([b"a" * LIGHT, b"b"], object)})) == LIGHT + 1
    assert weigh(call_for(inputs={"input_ids": np.zeros((4, LIGHT * 2), np.int64)})) == LIGHT
    assert weigh(call_for()) == 0


class TokenizerFixture:
    """A thread for tokens, whose first work can be held up."""

    def __init__(self) -> None:
        self.tokenizing = TokenizerThread("model m version 1", 3, "m-1", 100)
        self.ran: list[str] = []
        self.dropped: list[str] = []
        self.threads: set[str] = set()
        self.go, self.inside, self.over = threading.Event(), threading.Event(), threading.Event()

    def work(self, name: str, weight: int = 10, fails: bool = False) -> Work:
        def run() -> None:
            self.threads.add(threading.current_thread().name)
            self.ran.append(name)
            if name == "hold":
                self.inside.set()
                assert self.go.wait(PATIENCE)
            if name == "last":
                self.over.set()
            if fails:
                raise RuntimeError("no such word")

        return Work(weight, run, lambda: self.dropped.append(name))

    def hold(self) -> None:
        assert self.tokenizing.put(self.work("hold")) is None
        assert self.inside.wait(PATIENCE)

    def put(self, *works: Work) -> Sequence[Any]:
        return [self.tokenizing.put(work) for work in works]


@pytest.fixture
def fixture() -> Iterator[TokenizerFixture]:
    found = TokenizerFixture()
    yield found
    found.go.set()
    found.tokenizing.close()


def test_works_run_in_order_on_one_thread_of_their_own(fixture):
    fixture.hold()
    assert fixture.put(fixture.work("a"), fixture.work("b"), fixture.work("last")) == [None] * 3
    assert fixture.tokenizing.waiting == 3
    fixture.go.set()
    assert fixture.over.wait(PATIENCE)
    assert (fixture.ran, fixture.threads) == (["hold", "a", "b", "last"], {"tfs-tokenize-m-1"})


def test_queue_is_bounded_in_works_and_in_characters(fixture):
    fixture.hold()
    heavy, first, second = fixture.work("heavy", 500), fixture.work("a", 1), fixture.work("b", 1)
    assert fixture.put(heavy) == [None]
    (refused,) = fixture.put(first)
    assert (refused.code, refused.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    most = "waiting for its tokenizer, the most allowed; try again later"
    assert refused.message == f"model m version 1 has prompts of 500 characters {most}"
    fixture.tokenizing.discard(heavy)
    assert fixture.put(first, second, fixture.work("c", 98)) == [None] * 3
    (refused,) = fixture.put(fixture.work("d", 0))
    assert refused.message == f"model m version 1 has 3 prompts {most}"


def test_discarded_work_does_not_run(fixture):
    fixture.hold()
    unwanted = fixture.work("unwanted")
    fixture.put(unwanted, fixture.work("last"))
    fixture.tokenizing.discard(unwanted)
    fixture.tokenizing.discard(unwanted)
    fixture.go.set()
    assert fixture.over.wait(PATIENCE)
    assert fixture.ran == ["hold", "last"]


def test_work_that_breaks_its_contract_is_logged_and_the_next_one_runs(fixture, caplog):
    fixture.put(fixture.work("bad", fails=True), fixture.work("last"))
    assert fixture.over.wait(PATIENCE)
    assert fixture.ran == ["bad", "last"]
    assert "no such word" in caplog.text


def test_end_drops_what_waits_and_takes_no_more(fixture):
    fixture.hold()
    fixture.put(fixture.work("a"), fixture.work("b"))
    fixture.go.set()
    fixture.tokenizing.close()
    assert sorted(fixture.ran[1:] + fixture.dropped) == ["a", "b"]
    (refused,) = fixture.put(fixture.work("late"))
    assert (refused.code, refused.message) == (StatusCode.UNAVAILABLE, "model m version 1 is being unloaded")
    assert not [each for each in threading.enumerate() if each.name == "tfs-tokenize-m-1"]


def test_without_heavy_works_there_is_no_thread(fixture):
    assert not [each for each in threading.enumerate() if each.name == "tfs-tokenize-m-1"]
    fixture.tokenizing.close()
