"""A language model without a network: the next token is a hash of what its slot holds.

It is fast and exact, and it depends on every token of the cache, so a mistake of the scheduler shows in the output. It
also checks the contract of each step, and keeps violations in ``complaints``.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence

from tests.support.language.byte_codec import END, VOCABULARY
from tfs_lite.core.generation import (
    GenerationLimits,
    LanguageModel,
    Rows,
    SampledToken,
    SamplingRequest,
    Step,
    TextCodec,
    TokenLogprob,
)
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import ServingError, StatusCode

Choose = Callable[[Sequence[int], SamplingRequest], int | None]
"""The token after these, by whom it is wanted; None: the numbers are broken."""


def hashed(tokens: Sequence[int], draw: SamplingRequest, vocabulary: int) -> int:
    """With temperature 0 by the tokens alone, else also by seed and index. Never one that is banned."""
    noise = (0, 0) if draw.sampling.temperature == 0 else (draw.seed % 2**63, draw.index)
    data = array("q", (*tokens, *noise)).tobytes()
    number = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    for shift in range(vocabulary):
        if (token := (number + shift) % vocabulary) not in draw.banned:
            return token
    raise AssertionError("every token is banned")


def logprob_of(tokens: Sequence[int], token: int) -> float:
    """What this model says to the token after ``tokens``: no probability, but a number of its own."""
    digest = hashlib.blake2b(array("q", (*tokens, token)).tobytes(), digest_size=2).digest()
    return -int.from_bytes(digest, "little") / 1000


class HashModel(LanguageModel):
    """``choose`` instead of the hash. ``before`` is called with every step first; it may wait, or raise, and then
    nothing has happened. ``steps``: how many there were; ``rows``: all of their rows."""

    def __init__(
        self,
        limits: GenerationLimits | None = None,
        codec: TextCodec | None = None,
        *,
        choose: Choose | None = None,
        before: Callable[[Step], None] | None = None,
    ) -> None:
        self._limits = limits or GenerationLimits(4, 64, VOCABULARY, frozenset({END}))
        self._codec = codec
        self._choose = choose
        self.before = before
        self.held: list[list[int]] = [[] for _ in range(self._limits.slots)]
        """The tokens that each slot was given."""
        self.complaints: list[str] = []
        self.steps = 0
        self.rows = 0
        self.closed = False

    @property
    def platform(self) -> str:
        return "hash"

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return {}

    @property
    def limits(self) -> GenerationLimits:
        return self._limits

    @property
    def codec(self) -> TextCodec | None:
        return self._codec

    @property
    def shares_compute(self) -> bool:
        return True

    @property
    def batches(self) -> bool:
        return True

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        raise ServingError(StatusCode.UNIMPLEMENTED, "it takes steps only")

    def close(self) -> None:
        self.closed = True

    def step(self, step: Step) -> Sequence[SampledToken]:
        """AssertionError for a promise that does not hold; what was checked before that has happened."""
        if self.before is not None:
            self.before(step)
        try:
            return self._step(step)
        except AssertionError as error:
            self.complaints.append(str(error))
            raise

    def _step(self, step: Step) -> list[SampledToken]:
        _expect(not self.closed, "a step after the end")
        _expect(bool(step.rows), "a step without rows")
        slots = [rows.slot for rows in step.rows]
        _expect(len(set(slots)) == len(slots), f"slots come twice: {slots}")
        for copy in step.copies:
            self._check_slots(copy.source, copy.target)
            _expect(copy.source != copy.target, f"slot {copy.source} is copied onto itself")
            _expect(0 < copy.count <= len(self.held[copy.source]), f"{copy}: {len(self.held[copy.source])} are there")
            self.held[copy.target] = self.held[copy.source][: copy.count]
        drawn = [self._go_on(rows) for rows in step.rows]
        self.steps += 1
        self.rows += sum(len(rows.tokens) for rows in step.rows)
        return drawn

    def _go_on(self, rows: Rows) -> SampledToken:
        self._check_rows(rows)
        held = self.held[rows.slot][: rows.start]
        self.held[rows.slot] = held
        targets = [
            TokenLogprob(token, logprob_of(seen := [*held, *rows.tokens[: at + 1]], token), self._top(seen, rows.top))
            for at, token in enumerate(rows.targets)
        ]
        held.extend(rows.tokens)
        if rows.draw is None:
            return SampledToken(targets=tuple(targets))
        _check_draw(rows.draw, held)
        token = self._choose(held, rows.draw) if self._choose else hashed(held, rows.draw, self._limits.vocabulary)
        if token is None:
            return SampledToken(broken=True)
        wanted = rows.draw.sampling.logprobs
        if wanted is None:
            return SampledToken(token, targets=tuple(targets))
        return SampledToken(token, logprob_of(held, token), self._top(held, wanted), tuple(targets))

    def _top(self, tokens: Sequence[int], count: int) -> tuple[tuple[int, float], ...]:
        return tuple((token, logprob_of(tokens, token)) for token in range(count))

    def _check_slots(self, *slots: int) -> None:
        for slot in slots:
            _expect(0 <= slot < self._limits.slots, f"there is no slot {slot}")

    def _check_rows(self, rows: Rows) -> None:
        self._check_slots(rows.slot)
        count, there = len(rows.tokens), len(self.held[rows.slot])
        _expect(count > 0, f"slot {rows.slot} has no rows")
        _expect(0 <= rows.start <= there, f"slot {rows.slot} holds {there}, and goes on at {rows.start}")
        _expect(rows.start + count <= self._limits.length, f"slot {rows.slot} is too short for {rows.start}+{count}")
        known = all(0 <= token < self._limits.vocabulary for token in rows.tokens)
        _expect(known, f"slot {rows.slot} has tokens out of the vocabulary")
        _expect(len(rows.targets) in (0, count - 1, count), f"{len(rows.targets)} targets of {count} rows")
        follow = list(rows.tokens[1 : len(rows.targets) + 1])
        _expect(list(rows.targets)[: len(follow)] == follow, f"targets of slot {rows.slot} do not follow its rows")


def _check_draw(draw: SamplingRequest, held: Sequence[int]) -> None:
    _expect(list(draw.history) == list(held), f"the slot holds {held}, and the text is {list(draw.history)}")
    _expect(draw.index == len(held) - draw.prompt_length >= 0, f"index {draw.index}, {draw.prompt_length} + output")


def _expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise AssertionError(complaint)
