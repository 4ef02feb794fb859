"""Greedy texts that are served together, token by token those that transformers writes one at a time.

Models are random, and opened from a directory as a server does. In float32 the logits of one text move by some
millionths with the number of rows in a step, so a text may go another way only where the two best logits of the plain
model are nearer to each other than ``CLOSE``; that has to be rare.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.support.language.engine_fixture import (
    ENDS,
    VOCABULARY,
    EngineFixture,
    Response,
    ScheduledRequest,
    generate_alone,
    saved,
)
from tests.support.language.tiny_transformers import Greedy
from tfs_lite.core.generation import Finish, Generation, Piece, Sampling
from tfs_lite.core.status import StatusCode

ROOM = 520
"""Tokens of one text in the tests, prompt and output together."""
TEXTS = 64
GUESTS = 8
"""Further texts, which are cancelled."""
CLOSE = 1e-4
MOST_CLOSE = 2
DISTINCT = 40
GREEDY = Sampling(temperature=0.0)
UNPACKED = {"packed_weights": "false"}

BATCHED = ["gpt2", "llama", "qwen3", "mistral", "wide_gpt2", "wide_llama"]
ALONE = ["bloom", "falcon"]


@dataclass(frozen=True, slots=True)
class Saved:
    """A model in a directory, and what it writes to each of the prompts."""

    directory: Path
    asked: list[Generation]
    alone: list[Greedy]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Of torch: teams of threads for layers as small as these would wait for one another most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    known: dict[str, Saved] = {}

    def get(family: str) -> Saved:
        if family not in known:
            directory = saved(family, tmp_path_factory.mktemp(family))
            asked = _asked(random.Random(11))
            known[family] = Saved(directory, asked, generate_alone(directory, asked, ROOM))
            _check(known[family])
        return known[family]

    return get


def _tokens(numbers: random.Random, count: int) -> list[int]:
    return [numbers.randrange(VOCABULARY) for _ in range(count)]


def _asked(numbers: random.Random) -> list[Generation]:
    """Prompts of 1 to 500 tokens, half of which begin as others do; some are asked for a single token, some as long as
    there is room; a third goes on where others would end."""
    beginnings = [_tokens(numbers, count) for count in (20, 64, 150)]
    prompts = [_tokens(numbers, count) for count in (1, 1, 2, 15, 16, 17, 300, 500, ROOM - 1)]
    while len(prompts) < TEXTS // 2:
        prompts.append(_tokens(numbers, int(2 ** numbers.uniform(0, 7.5))))
    while len(prompts) < TEXTS:
        prompts.append(numbers.choice(beginnings) + _tokens(numbers, numbers.choice([0, 1, 3, 20, 45])))
    asked = []
    for number, prompt in enumerate(prompts):
        most = min(numbers.choice([1, 2, 8, 12, 17, 24]), ROOM - len(prompt))
        limit = None if len(prompt) >= 500 else most
        asked.append(Generation(prompt, max_tokens=limit, sampling=GREEDY, ignore_eos=number % 3 == 0))
    numbers.shuffle(asked)
    return asked


def _check(model: Saved) -> None:
    """The reference is worth comparing with."""
    assert len({token for text in model.alone for token in text.tokens}) >= DISTINCT
    parts = [len(set(text.tokens)) / len(text.tokens) for text in model.alone if len(text.tokens) >= 8]
    assert statistics.median(parts) > 0.6, "the model repeats itself, and would hide mistakes"
    ends = [text.tokens[-1] in ENDS and not wanted.ignore_eos for wanted, text in _pairs(model)]
    goes_on = [wanted.ignore_eos and set(text.tokens[:-1]) & set(ENDS) for wanted, text in _pairs(model)]
    assert sum(ends) >= 3, "hardly any text ends by itself"
    assert any(goes_on), "no text goes on where it would end"
    assert any(len(text.tokens) == 1 for text in model.alone)
    assert any(len(wanted.prompt) + len(text.tokens) == ROOM for wanted, text in _pairs(model)), "no slot was full"


def _pairs(model: Saved) -> list[tuple[Generation, Greedy]]:
    return list(zip(model.asked, model.alone, strict=True))


def _agree(responses: list[Response], model: Saved) -> tuple[int, int]:
    """(tokens that were compared, texts that went another way where two logits were too close to call)."""
    tokens = close = 0
    for one, (wanted, alone) in zip(responses, _pairs(model), strict=True):
        whole = one.whole
        came = list(whole.tokens)
        other = next((at for at, pair in enumerate(zip(came, alone.tokens, strict=False)) if pair[0] != pair[1]), None)
        if other is None:
            assert came == alone.tokens
            ended = came[-1] in ENDS and not wanted.ignore_eos
            assert whole.finish is (Finish.STOP if ended else Finish.LENGTH)
            assert whole.stop == (came[-1] if ended else None)
        else:
            assert alone.ahead[other] < CLOSE, f"another token at {other}, where the best was ahead by far"
            close += 1
        assert (one.usage.prompt, one.usage.output) == (len(wanted.prompt), len(came))
        tokens += len(came) if other is None else other
    assert close <= MOST_CLOSE
    return tokens, close


def _requests(model: Saved, seed: int, ranks: tuple[int, ...] = (0,)) -> list[ScheduledRequest]:
    """At random moments, with random priorities."""
    numbers = random.Random(seed)
    return [
        ScheduledRequest(replace(wanted, priority=numbers.choice(ranks)), after=numbers.choice([0, 0, 0, 1, 2, 5]))
        for wanted in model.asked
    ]


def _with_guests(
    scheduled: list[ScheduledRequest], model: Saved, seed: int
) -> tuple[list[ScheduledRequest], list[int]]:
    """Others come in between, ask for a lot, and leave early; and where they are."""
    numbers = random.Random(seed)
    mixed: list[tuple[ScheduledRequest, bool]] = [(request, False) for request in scheduled]
    for number in range(GUESTS):
        prompt = model.asked[number * 5].prompt[:200]
        wanted = Generation(prompt, max_tokens=300, sampling=GREEDY, ignore_eos=True, priority=numbers.choice([-1, 0]))
        guest = ScheduledRequest(wanted, after=numbers.randrange(4), leaves=numbers.choice([1, 2, 7, 30]))
        mixed.insert(numbers.randrange(1, len(mixed)), (guest, True))
    return [request for request, _ in mixed], [at for at, (_, is_guest) in enumerate(mixed) if is_guest]


def _cached(responses: list[Response]) -> int:
    return sum(one.usage.cached > 0 for one in responses)


def _tell(family: str, how: str, found: tuple[int, int], fixture: EngineFixture) -> None:
    print(
        f"{family} {how}: {TEXTS} texts, {found[0]} tokens compared, {found[1]} too close to call, "
        f"{len(fixture.steps)} steps, {fixture.preempted} preemptions"
    )


CASES = [*[(family, {}) for family in (*BATCHED, *ALONE)], ("wide_gpt2", UNPACKED), ("wide_llama", UNPACKED)]
SHORT = ("gpt2", "wide_llama", "bloom")
"""Of these, ``make test`` has one kind each: dense, packed, and alone in its steps. The others are load."""


def each(cases: list[tuple[str, dict[str, str]]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("family", "more"),
        [
            pytest.param(
                family,
                more,
                id=f"{family}{'_unpacked' if more else ''}",
                marks=() if family in SHORT and not more else pytest.mark.load,
            )
            for family, more in cases
        ],
    )


each_case = each(CASES)


@each_case
def test_texts_served_together_are_those_written_alone(family: str, more: dict[str, str], model_of) -> None:
    model = model_of(family)
    with EngineFixture(model.directory, max_model_len=ROOM, max_num_seqs=7, prefix_reuse="false", **more) as fixture:
        assert fixture.servable.model.batches == (family not in ALONE)
        assert (fixture.packed_bytes > 0) == (family.startswith("wide") and not more)
        responses = fixture.serve(_requests(model, seed=1))
        found = _agree(responses, model)
        assert max(report.texts for report in fixture.steps) == 7
        assert _cached(responses) == 0
        _tell(family, "together", found, fixture)


@each_case
def test_neither_chunks_nor_neighbours_nor_preemption_change_a_text(
    family: str, more: dict[str, str], model_of
) -> None:
    model = model_of(family)
    scheduled, guests = _with_guests(_requests(model, seed=2, ranks=(0, 0, 0, -1, 1)), model, seed=3)
    with EngineFixture(
        model.directory, max_model_len=ROOM, max_num_seqs=3, prefill_chunk=13, max_batched_tokens=24, **more
    ) as fixture:
        responses = fixture.serve(scheduled)
        stayed = [one for at, one in enumerate(responses) if at not in guests]
        found = _agree(stayed, model)
        assert _cached(stayed) >= 5, "hardly any prompt began as another one"
        assert fixture.preempted >= 3
        assert max(report.rows for report in fixture.steps) <= 24
        assert any(report.kind == "mixed" for report in fixture.steps)
        for at in guests:
            assert responses[at].status is not None
            assert responses[at].status.code is StatusCode.CANCELLED
        assert any(responses[at].tokens for at in guests), "all guests left before their first token"
        state = fixture.servable.state()
        assert (state.running, state.waiting, state.written) == (0, 0, 0)
        _tell(family, "crowded", found, fixture)


SEEDED = Generation(
    _tokens(random.Random(21), 70),
    max_tokens=40,
    sampling=Sampling(temperature=1.1, top_p=0.97, repetition_penalty=1.05, seed=99),
    ignore_eos=True,
    priority=1,
)
SEVERAL = [("qwen3", {}), ("wide_llama", {}), ("wide_llama", UNPACKED), ("bloom", {})]
each_of_several = each(SEVERAL)


def _seeded_alone(model: Saved, more: dict[str, str]) -> list[int]:
    with EngineFixture(model.directory, max_model_len=ROOM, max_num_seqs=1, **more) as fixture:
        tokens = list(fixture.ask(SEEDED).whole.tokens)
        other = fixture.ask(replace(SEEDED, sampling=replace(SEEDED.sampling, seed=100))).whole.tokens
    assert len(tokens) == SEEDED.max_tokens
    assert len(set(tokens)) >= 15
    assert list(other) != tokens, "the seed has no effect"
    return tokens


@each_of_several
def test_a_seed_gives_one_text_alone_and_in_company(family: str, more: dict[str, str], model_of) -> None:
    model = model_of(family)
    alone = _seeded_alone(model, more)
    scheduled = _requests(model, seed=4)[:24]
    at = [3, 9, 17]
    for index in at:
        scheduled.insert(index, ScheduledRequest(SEEDED, after=1))
    with EngineFixture(model.directory, max_model_len=ROOM, max_num_seqs=5, prefill_chunk=32, **more) as fixture:
        responses = fixture.serve(scheduled)
        assert [list(responses[index].whole.tokens) for index in at] == [alone] * 3
        assert max(report.texts for report in fixture.steps) == 5


@each_of_several
def test_a_seed_gives_one_text_in_a_slot_that_was_used(family: str, more: dict[str, str], model_of) -> None:
    model = model_of(family)
    alone = _seeded_alone(model, more)
    longer = Generation(_tokens(random.Random(22), 300), max_tokens=4, sampling=GREEDY)
    with EngineFixture(model.directory, max_model_len=ROOM, max_num_seqs=1, **more) as fixture:
        assert fixture.ask(longer).usage.cached == 0
        for cached in (0, len(SEEDED.prompt) - 1, len(SEEDED.prompt) - 1):
            responses = fixture.ask(SEEDED)
            assert list(responses.whole.tokens) == alone
            assert responses.usage.cached == cached


@each_of_several
def test_a_seed_gives_one_text_after_others_took_its_slot(family: str, more: dict[str, str], model_of) -> None:
    model = model_of(family)
    alone = _seeded_alone(model, more)
    urgent = Generation(_tokens(random.Random(23), 130), max_tokens=5, sampling=GREEDY, priority=-1)
    others: list[Response] = []
    with EngineFixture(model.directory, max_model_len=ROOM, max_num_seqs=1, **more) as fixture:

        def interrupt(piece: Piece) -> None:
            if len(seeded) in (5, 23):
                others.append(fixture.ask(urgent))
            seeded.extend(piece.tokens)

        seeded: list[int] = []
        whole = fixture.ask(SEEDED, on_piece=interrupt).whole
        assert list(whole.tokens) == seeded == alone
        assert [list(other.whole.tokens) for other in others] == [list(others[0].whole.tokens)] * 2
        assert [report.preemptions for report in fixture.texts] == [0, 0, 2]
        assert fixture.preempted == 2


@each_of_several
def test_a_prompt_that_goes_on_from_an_answer_is_read_from_there(family: str, more: dict[str, str], model_of) -> None:
    model = model_of(family)
    first = Generation(_tokens(random.Random(24), 40), max_tokens=9, sampling=GREEDY, ignore_eos=True)
    with EngineFixture(model.directory, max_model_len=ROOM, max_num_seqs=1, **more) as fixture:
        said = list(fixture.ask(first).whole.tokens)
        held = [*first.prompt, *said]
        asked = [replace(first, prompt=[*held, *_tokens(random.Random(seed), 30)]) for seed in (25, 26)]
        responses = [fixture.ask(wanted) for wanted in asked]
        came = [list(one.whole.tokens) for one in responses]
        # The last token of an answer was never read itself; the second goes on from the same answer.
        assert [one.usage.cached for one in responses] == [len(held) - 1, len(held)]
    assert [said, *came] == [text.tokens for text in generate_alone(model.directory, [first, *asked], ROOM)]


@each_of_several
def test_pieces_put_together_are_the_whole_answer(family: str, more: dict[str, str], model_of) -> None:
    model = model_of(family)
    plain = Generation("Zwölf Boxkämpfer jagen Viktor", max_tokens=60, sampling=GREEDY, ignore_eos=True)
    sampled = replace(plain, prompt="quer über den Deich", sampling=SEEDED.sampling)
    with EngineFixture(model.directory, max_model_len=ROOM, max_num_seqs=4, **more) as fixture:
        said = fixture.ask(plain).whole.text
        assert len(said) >= 20
        stopped = replace(plain, stop=(said[11:13],), echo=True)
        asked = [plain, sampled, stopped, replace(sampled, max_tokens=1)]
        responses = [fixture.ask(wanted) for wanted in asked]
        wholes = [one.whole for one in responses]
        outputs = fixture.answer(asked)
        assert all(len(one.pieces) == len(one.tokens) for one in responses)
        assert outputs["text_output"].tolist() == [whole.text.encode() for whole in wholes]
        for row, whole in zip(outputs["token_ids"].tolist(), wholes, strict=True):
            assert [token for token in row if token >= 0] == list(whole.tokens)
        codec = fixture.servable.codec
        for wanted, whole in zip(asked, wholes, strict=True):
            if wanted is not stopped:
                assert whole.text == codec.decode(whole.tokens)
        assert wholes[0].text == said
        assert wholes[2].finish is Finish.STOP
        assert wholes[2].text == str(plain.prompt) + said[: said.index(said[11:13])]
