"""From the tokens of one text to its words, and whether it is over.

    token -> ends it by itself? -> TextStream (incomplete characters wait) -> StopFinder (beginnings of stops wait)

Reasons are looked at in this order: end of text, stop tokens, stop texts, the limit. A token that ends the text by
itself counts as output, and has no words. What a token costs depends on its own text only, never on what came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfs_lite.core.generation import Finish, Generation, TextCodec

NOTHING: frozenset[int] = frozenset()
LAST = 8
"""Tokens of a prompt that its first words may depend on: whether there is a space."""


class DetokenizerOutput(NamedTuple):
    """What a token has added. ``finish``: it was the last one; ``stop`` is the token or the text that ended it."""

    text: str = ""
    finish: Finish | None = None
    stop: int | str | None = None


class Detokenizer:
    """Of one text. Made on any thread, used by one.

    ``opening``: the words of the prompt, for texts that want them back. Without ``codec`` there are no words at all.
    ``limit``: after so many tokens it is over, 0 for a prompt that is only read."""

    __slots__ = ("_banned", "_eos", "_finder", "_least", "_limit", "_stop_ids", "_stream", "count", "opening")

    def __init__(
        self, wanted: Generation, prompt: Sequence[int], limit: int, eos: frozenset[int], codec: TextCodec | None
    ) -> None:
        skip = wanted.skip_special_tokens
        self.opening = codec.decode(prompt, skip) if codec is not None and wanted.echo else ""
        self.count = 0
        """Tokens so far."""
        self._limit = limit
        self._least = wanted.min_tokens
        self._eos = NOTHING if wanted.ignore_eos else eos
        self._stop_ids = frozenset(wanted.stop_token_ids)
        self._banned = eos | self._stop_ids if wanted.min_tokens else NOTHING
        self._stream = codec.stream(skip, prompt[-LAST:]) if codec is not None else None
        self._finder = StopFinder(wanted.stop, wanted.include_stop) if wanted.stop else None

    @property
    def banned(self) -> frozenset[int]:
        """Tokens that may not be the next one, because it would be over too soon."""
        return self._banned if self.count < self._least else NOTHING

    def push(self, token: int) -> DetokenizerOutput:
        """The next token. Not to be called any more once the text is over."""
        self.count += 1
        if token in self._eos or token in self._stop_ids:
            return DetokenizerOutput(self._rest("")[0], Finish.STOP, token)
        text = self._stream.push(token) if self._stream is not None else ""
        if self.count < self._limit:
            return self._search(text)
        text, stop = self._rest(text)
        return DetokenizerOutput(text, Finish.LENGTH if stop is None else Finish.STOP, stop)

    def _search(self, text: str) -> DetokenizerOutput:
        if self._finder is None or not text:
            return DetokenizerOutput(text)
        text, stop = self._finder.push(text, self.count >= self._least)
        return DetokenizerOutput(text, None if stop is None else Finish.STOP, stop)

    def _rest(self, text: str) -> tuple[str, str | None]:
        """``text`` and all that was held back, up to a stop, and that stop."""
        if self._stream is not None:
            text += self._stream.flush()
        if self._finder is None:
            return text, None
        text, stop = self._finder.push(text, self.count >= self._least)
        return (text, stop) if stop is not None else (text + self._finder.held, None)


class StopFinder:
    """Finds the stop that is complete first, wherever the text is cut into parts; the longest of several that end at
    the same character. Holds back the longest end of the text that may become a stop.

    By the prefix function of Knuth, Morris and Pratt: one number for each stop says how much of it the text ends with.
    """

    __slots__ = ("_fallbacks", "_include", "_matched", "_stops", "held")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """``include``: the stop is part of the text. Stops are not empty."""
        self.held = ""
        """What is held back now."""
        self._include = include
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._fallbacks = [_prefix_function(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    def push(self, text: str, counts: bool = True) -> tuple[str, str | None]:
        """The text that can be let go, and the stop that was found; then there is no more. ``counts`` False: a stop
        that is complete now does not count."""
        pending = self.held + text
        for at, character in enumerate(text, len(self.held) + 1):
            found = self._advance(character)
            if counts and found is not None:
                return pending[: at if self._include else at - len(found)], found
        keep = len(pending) - max(self._matched)
        self.held = pending[keep:]
        return pending[:keep], None

    def _advance(self, character: str) -> str | None:
        """The longest stop that ends with this character."""
        found: str | None = None
        for index, stop in enumerate(self._stops):
            fallback, matched = self._fallbacks[index], self._matched[index]
            while matched and stop[matched] != character:
                matched = fallback[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                found = found or stop
                matched = fallback[matched - 1]
            self._matched[index] = matched
        return found


def _prefix_function(stop: str) -> list[int]:
    """Of each beginning of ``stop``: the length of its longest proper end that ``stop`` begins with."""
    lengths = [0] * len(stop)
    matched = 0
    for at in range(1, len(stop)):
        while matched and stop[at] != stop[matched]:
            matched = lengths[matched - 1]
        if stop[at] == stop[matched]:
            matched += 1
        lengths[at] = matched
    return lengths
