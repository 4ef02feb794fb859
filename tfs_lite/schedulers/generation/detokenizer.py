"""Turns the tokens of one text into characters, and finds where the text ends.

    token -> end of text or stop token? -> TextStream (holds incomplete characters) -> StopFinder (holds partial stops)

A text ends by, in this order: end of text, stop tokens, stop strings, the limit. A token that ends the text counts as
output and adds no characters. The cost of a token depends on its own characters only, not on the text before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfs_lite.core.generation import Finish, Generation, TextCodec

NO_TOKENS: frozenset[int] = frozenset()
CONTEXT_TOKENS = 8
"""Last tokens of the prompt that the first output characters may depend on: whether they begin with a space."""


class DetokenizerOutput(NamedTuple):
    """The text that a token added. ``finish`` is set by the last token; ``stop`` is the token or string that ended the
    text."""

    text: str = ""
    finish: Finish | None = None
    stop: int | str | None = None


class Detokenizer:
    """The detokenizer of one text. It may be made on any thread and is used by one.

    ``prompt_text`` is the text of the prompt where ``echo`` asks for it. Without ``codec`` all text is empty. ``limit``
    is the most output tokens, 0 for a prompt that is only scored."""

    __slots__ = ("_banned", "_eos", "_finder", "_least", "_limit", "_stop_ids", "_stream", "count", "prompt_text")

    def __init__(
        self, wanted: Generation, prompt: Sequence[int], limit: int, eos: frozenset[int], codec: TextCodec | None
    ) -> None:
        skip = wanted.skip_special_tokens
        self.prompt_text = codec.decode(prompt, skip) if codec is not None and wanted.echo else ""
        self.count = 0
        """Output tokens so far."""
        self._limit = limit
        self._least = wanted.min_tokens
        self._eos = NO_TOKENS if wanted.ignore_eos else eos
        self._stop_ids = frozenset(wanted.stop_token_ids)
        self._banned = eos | self._stop_ids if wanted.min_tokens else NO_TOKENS
        self._stream = codec.stream(skip, prompt[-CONTEXT_TOKENS:]) if codec is not None else None
        self._finder = StopFinder(wanted.stop, wanted.include_stop) if wanted.stop else None

    @property
    def banned(self) -> frozenset[int]:
        """Tokens that may not be drawn next, because they would end the text before ``min_tokens``."""
        return self._banned if self.count < self._least else NO_TOKENS

    def push(self, token: int) -> DetokenizerOutput:
        """Takes the next token. It must not be called after the end of the text."""
        self.count += 1
        if token in self._eos or token in self._stop_ids:
            return DetokenizerOutput(self._flush("")[0], Finish.STOP, token)
        text = self._stream.push(token) if self._stream is not None else ""
        if self.count < self._limit:
            return self._search(text)
        text, stop = self._flush(text)
        return DetokenizerOutput(text, Finish.LENGTH if stop is None else Finish.STOP, stop)

    def _search(self, text: str) -> DetokenizerOutput:
        if self._finder is None or not text:
            return DetokenizerOutput(text)
        text, stop = self._finder.push(text, self.count >= self._least)
        return DetokenizerOutput(text, None if stop is None else Finish.STOP, stop)

    def _flush(self, text: str) -> tuple[str, str | None]:
        """``text`` and everything that was held back, up to a stop string; and that string."""
        if self._stream is not None:
            text += self._stream.flush()
        if self._finder is None:
            return text, None
        text, stop = self._finder.push(text, self.count >= self._least)
        return (text, stop) if stop is not None else (text + self._finder.held, None)


class StopFinder:
    """Finds the stop string that ends first in a text that comes in parts; of several that end at the same character
    the longest. It holds back the longest end of the text that may become a stop.

    It uses the prefix function of Knuth, Morris and Pratt: one number for each stop says how much of it the text ends
    with.
    """

    __slots__ = ("_fallbacks", "_include", "_matched", "_stops", "held")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """``include``: the stop string stays in the text. Stop strings are not empty."""
        self.held = ""
        """The text that is held back now."""
        self._include = include
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._fallbacks = [_prefix_function(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    def push(self, text: str, counts: bool = True) -> tuple[str, str | None]:
        """The text that can be sent, and the stop that was found, after which no more text may come. With ``counts``
        False a stop that is complete now is ignored."""
        pending = self.held + text
        for at, character in enumerate(text, len(self.held) + 1):
            found = self._advance(character)
            if counts and found is not None:
                return pending[: at if self._include else at - len(found)], found
        keep = len(pending) - max(self._matched)
        self.held = pending[keep:]
        return pending[:keep], None

    def _advance(self, character: str) -> str | None:
        """The longest stop that this character completes."""
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
    """For each prefix of ``stop``, the length of its longest proper suffix that is a prefix of ``stop``."""
    lengths = [0] * len(stop)
    matched = 0
    for at in range(1, len(stop)):
        while matched and stop[at] != stop[matched]:
            matched = lengths[matched - 1]
        if stop[at] == stop[matched]:
            matched += 1
        lengths[at] = matched
    return lengths
