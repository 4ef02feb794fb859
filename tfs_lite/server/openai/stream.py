"""The stream of one request's texts to a client, as server-sent events, no faster than the client reads.

    PendingRequest -> Choices -> Printer.chunks -> choice_events -> the client

A slow reader holds up no other: the pieces that come for a choice in the meantime leave as one event. Their size is
bounded from the start by the length of the texts.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import cast

from tfs_lite.core.generation import Piece, Usage, join_pieces
from tfs_lite.server.http.events import event
from tfs_lite.server.http.replies import failure_of
from tfs_lite.server.inference.pending import PendingRequest
from tfs_lite.server.openai.errors import openai_error_text

WAITING = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"


class Choices:
    """Joins the pieces of several texts, by choice. ``usages`` are those of the texts that are over."""

    def __init__(self, texts: int, eager: bool) -> None:
        """``eager`` means that tokens are sent even when they add no text yet."""
        self.usages: list[Usage | None] = [None] * texts
        self._eager = eager
        self._waiting: dict[int, list[Piece]] = {}
        self._ready: dict[int, None] = {}

    def add(self, piece: Piece) -> None:
        self._waiting.setdefault(piece.index, []).append(piece)
        if piece.usage is not None:
            self.usages[piece.index] = piece.usage
        if piece.text or piece.finish is not None or (self._eager and (piece.tokens or piece.logprobs)):
            self._ready[piece.index] = None

    @property
    def ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self._ready)

    async def wait(self, pending: PendingRequest, seconds: float) -> bool:
        """Adds pieces of the request until there is something to take, or the request has ended, and returns True;
        False after ``seconds`` without either."""
        until = time.monotonic() + seconds
        while True:
            for piece in pending.take():
                self.add(cast("Piece", piece))
            if self._ready or pending.over:
                return True
            if not await pending.wait(until - time.monotonic()):
                return False

    def take(self) -> list[Piece]:
        """One piece for each choice that has something new, in the order in which it came."""
        taken = [join_pieces(self._waiting.pop(index)) for index in self._ready]
        self._ready.clear()
        return taken


async def choice_events(
    pending: PendingRequest,
    choices: Choices,
    write: Callable[[Sequence[Piece]], Awaitable[list[bytes]]],
    last: Callable[[], list[bytes]],
    ping: float,
    inside: ExitStack,
    path: str,
) -> AsyncIterator[bytes]:
    """Yields what ``choices`` give, as ``write`` prints it, and then what ``last`` gives; the last event is a failure,
    or ``[DONE]``. ``ping`` is how many seconds may pass without an event. The first chunk is empty: from then on
    ``inside`` is closed with the stream."""
    try:
        with inside:
            yield b""
            while True:
                if taken := choices.take():
                    yield events(await write(taken))
                elif not await choices.wait(pending, ping):
                    yield WAITING
                elif not choices.ready:
                    break
            pending.check()
            yield events(last()) + DONE
    except Exception as error:
        yield events([openai_error_text(failure_of(error, path))])


def events(bodies: Sequence[bytes]) -> bytes:
    return b"".join(map(event, bodies))
