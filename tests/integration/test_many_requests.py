"""Very many requests at a batching server: every answer is right, every refusal has its code, none is lost.

Sixty-four clients ask for one to seven rows each, which no other request has. One request in a hundred is wrong in
itself, one is cancelled on its way, one has a deadline that cannot be kept. With workers in processes, these are killed
at random meanwhile; then requests may also be UNAVAILABLE, and are sent again.

The variable TFS_LITE_REQUESTS says how many requests there are, if not as many as the profile has.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.support.profiles import is_soak, scaled
from tests.support.servers.models import WIDTH, TaggedArchives
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.protocols import messages
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode

REQUESTS = int(os.environ.get("TFS_LITE_REQUESTS", scaled(4000)))
CLIENTS = 64
CONNECTIONS = 8
MAX_ROWS = 7
BATCH = 32
VERSION = 3
LONG = 60.0
"""Seconds that a request may take; far longer than any does."""
KILL_EVERY = 500 if is_soak() else 100
"""Requests between two kills."""
PREDICT = "/tensorflow.serving.PredictionService/Predict"
PARAMETERS = f"""
max_batch_size {{ value: {BATCH} }}
max_enqueued_batches {{ value: {CLIENTS} }}
allowed_batch_sizes: [ 4, 16, {BATCH} ]
"""
KINDS = ("wrong", "cancelled", "late")
WRONG = ("missing", "unknown input", "dtype", "width", "rank", "too many rows", "model", "signature")
CODES = {
    "model": {grpc.StatusCode.NOT_FOUND},
    "signature": {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND},
}


@dataclass
class Tally:
    """What became of the requests. ``faults`` should stay empty."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    again: int = 0
    kills: int = 0

    @property
    def total(self) -> int:
        return self.outcomes.total()


class Request:
    """Number ``index`` of all: its rows, and what is to go wrong with it ("": nothing)."""

    def __init__(self, index: int, choose: random.Random) -> None:
        self.kind = KINDS[index % 100] if index % 100 < len(KINDS) else ""
        self.wrong = choose.choice(WRONG) if self.kind == "wrong" else ""
        first = index * MAX_ROWS * WIDTH % 2**23
        rows = choose.randint(1, MAX_ROWS)
        self.x = np.arange(first, first + rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
        self.patience = choose.choice([1e-6, 1e-4, 5e-4]) if self.kind == "late" else LONG

    def message(self) -> messages.Message:
        spec = {"name": "none" if self.wrong == "model" else "m"}
        if self.wrong == "signature":
            spec["signature_name"] = "none"
        request = messages.PredictRequest(model_spec=spec)
        for name, array in self._inputs().items():
            request.inputs[name].CopyFrom(encode(array))
        return request

    def _inputs(self) -> dict[str, np.ndarray]:
        x = self.x
        return {
            "missing": {},
            "unknown input": {"x": x, "z": x},
            "dtype": {"x": x.astype(np.int64)},
            "width": {"x": x[:, :2]},
            "rank": {"x": x[0]},
            "too many rows": {"x": np.zeros((BATCH + 1, WIDTH), np.float32)},
        }.get(self.wrong, {"x": x})

    def is_answer(self, response: messages.Message) -> bool:
        y = decode(response.outputs["y"], "y")
        return response.model_spec.version.value == VERSION and np.array_equal(y, self.x + VERSION)


class ClientLoad:
    """All clients together. ``may_fail``: whether workers are being killed."""

    def __init__(self, target: str, count: int, may_fail: bool) -> None:
        self.tally = Tally()
        self._target = target
        self._count = count
        self._may_fail = may_fail
        self._choose = random.Random(count)
        self._indices = iter(range(count))

    async def run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(self._target, options=options) for _ in range(CONNECTIONS)]
        try:
            await asyncio.gather(*(self._client(channels[index % CONNECTIONS]) for index in range(CLIENTS)))
        finally:
            for channel in channels:
                await channel.close()

    async def _client(self, channel: grpc.aio.Channel) -> None:
        ask = channel.unary_unary(
            PREDICT,
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        for index in self._indices:
            request = Request(index, self._choose)
            try:
                await self._ask(ask, request)
            except Exception as error:
                self.tally.faults.append(f"{index} {request.kind}: {error!r}")

    async def _ask(self, ask: grpc.aio.UnaryUnaryMultiCallable, request: Request) -> None:
        message = request.message()
        while True:
            call = ask(message, timeout=request.patience)
            if request.kind == "cancelled":
                asyncio.get_running_loop().call_later(self._choose.uniform(0.0, 0.01), call.cancel)
            try:
                response = await call
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
            except grpc.aio.AioRpcError as error:
                code = error.code()
                if not error.details():
                    self.tally.faults.append(f"{request.kind} {request.wrong}: {code} without a word")
            else:
                self._answered(request, response)
                return
            if code is grpc.StatusCode.UNAVAILABLE and self._may_fail:
                self.tally.again += 1
                await asyncio.sleep(0.01)
                continue
            self._refused(request, code)
            return

    def _answered(self, request: Request, response: messages.Message) -> None:
        self.tally.outcomes[f"{request.kind or 'plain'}: answered"] += 1
        if request.wrong:
            self.tally.faults.append(f"{request.wrong}: answered")
        elif not request.is_answer(response):
            self.tally.faults.append(f"{request.kind}: rows of another request")

    def _refused(self, request: Request, code: grpc.StatusCode) -> None:
        self.tally.outcomes[f"{request.kind or 'plain'}: {code.name}"] += 1
        expected = {
            "wrong": CODES.get(request.wrong, {grpc.StatusCode.INVALID_ARGUMENT}),
            "cancelled": {grpc.StatusCode.CANCELLED},
            "late": {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE},
        }.get(request.kind, set())
        if code not in expected:
            self.tally.faults.append(f"{request.kind} {request.wrong}: {code}")


async def kill_workers(server: ServerProcess, tally: Tally, pids: list[int]) -> None:
    """Kills the worker whenever so many more requests have been answered; ends when it is cancelled."""
    due = KILL_EVERY
    while True:
        await asyncio.sleep(0.001)
        if tally.total < due:
            continue
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            tally.kills += 1
        due = tally.total + KILL_EVERY
        pids = await asyncio.to_thread(worker_pids, server)


def worker_pids(server: ServerProcess) -> list[int]:
    """Of the workers that are processes of their own."""
    page = server.get("/metrics")[1].decode()
    return [int(pid) for pid in re.findall(r'^tfs_lite_worker_info\{.*pid="(\d+)"', page, re.MULTILINE)]


def waiting_rows(server: ServerProcess) -> list[float]:
    page = server.get("/metrics")[1].decode()
    return [float(value) for value in re.findall(r"^tfs_lite_queue_rows\{[^}]*\} (\S+)", page, re.MULTILINE)]


async def load_at(server: ServerProcess, count: int, worker: str) -> Tally:
    load = ClientLoad(server.target, count, may_fail=worker == "process")
    pids = worker_pids(server)
    killer = asyncio.create_task(kill_workers(server, load.tally, pids)) if worker == "process" else None
    try:
        await load.run()
    finally:
        if killer is not None:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
    return load.tally


def serve(root: Path, worker: str) -> ServerProcess:
    """A server of one model; not started yet."""
    TaggedArchives().write_version(VERSION, root / "models" / "m")
    parameters = root / "batching.pbtxt"
    parameters.write_text(PARAMETERS)
    return ServerProcess(
        f"--model_repository={root / 'models'}",
        "--enable_batching",
        f"--batching_parameters_file={parameters}",
        "--version_quiet_period_seconds=0",
        f"--worker={worker}",
    )


@pytest.fixture(params=["thread", "process"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ServerProcess, str]]:
    with serve(tmp_path, request.param) as started:
        yield started, request.param
    assert started.exit_code == 0
    assert not started.leftovers()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_requests_are_all_answered_rightly_or_refused_with_a_code(server: tuple[ServerProcess, str]) -> None:
    process, worker = server
    tally = asyncio.run(load_at(process, REQUESTS, worker))
    assert tally.faults == []
    assert tally.total == REQUESTS
    assert tally.outcomes["plain: answered"] == sum(index % 100 >= len(KINDS) for index in range(REQUESTS))
    if worker == "process":
        assert tally.kills > 0
    wait_until(lambda: not any(waiting_rows(process)), "nothing waits any more")
