"""Callers with ``grpc.aio``, for figures with a client that people use. It takes more of its core than most servers
take of theirs, so rates and times are the client's; the server's CPU time a request is still the server's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from connections import Answer
from load import Check, Pick, Tally
from replay import WRONG_SIZE, Timeout

SAMPLE = 64
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 << 20))


def stock_loop(
    port: int,
    path: str,
    messages: Sequence[bytes],
    sizes: Sequence[int],
    layout: tuple[int, int],
    seconds: float,
    pick: Pick,
    check: Check,
    timeouts: Timeout,
    marks: Callable[[], object],
) -> Tally:
    """As :func:`load.closed_loop`, with ``layout`` channels and callers on each."""

    async def caller(channel: Any, tally: Tally) -> None:
        ask = channel.unary_unary(path)
        while (started := time.perf_counter()) < tally.seconds:
            index, code, body = pick(), 0, b""
            try:
                body = await ask(messages[index], timeout=timeouts())
            except grpc.aio.AioRpcError as error:
                code = error.code().value[0]
            if code == 0 and len(body) != sizes[index]:
                code = WRONG_SIZE
            now = time.perf_counter()
            sampled = body if len(tally.served) % SAMPLE == 0 else None
            tally.take(Answer(index, started, code, sampled), now, 0, check, None)

    async def run() -> Tally:
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) for _ in range(layout[0])]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        tally = Tally()
        marks()
        started, cpu = time.perf_counter(), time.process_time()
        tally.seconds = started + seconds
        await asyncio.gather(*(caller(channel, tally) for channel in channels for _ in range(layout[1])))
        tally.seconds = time.perf_counter() - started
        tally.client_share = (time.process_time() - cpu) / tally.seconds
        marks()
        for channel in channels:
            await channel.close()
        return tally

    return asyncio.run(run())
