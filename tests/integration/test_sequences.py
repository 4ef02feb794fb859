"""Very many sequences at once, while the versions of their models change: every sum is right, and none changes hands.

Every client has a stream of its own and sends its sequences on it one after the other, all with the same id. It sends
the next request when it has the last answer, or eagerly, whatever was answered so far; the gaps between requests are
random. There are fewer slots than clients. Meanwhile three newer versions of every model come. Then:

- every request has one answer, in its stream's order, which is the sum of what its sequence has sent until then;
- all answers of a sequence come from one version;
- in the end nothing waits, and only the newest version is left.

The variable TFS_LITE_REQUESTS says how many requests there are, if not as many as the profile has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.profiles import is_soak
from tests.support.schedulers.sum_repository import SumRepository, read_response, request_fields
from tests.support.servers.process import ServerProcess, wait_until
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.v2.grpc_service import SERVICE

REQUESTS = int(os.environ.get("TFS_LITE_REQUESTS", 4000 if is_soak() else 1000))
LENGTH = 20
"""Requests of a sequence."""
ROUNDS = 2
"""Sequences of a client."""
VERSIONS = (1, 2, 3, 4)
SWAPS = (0.1, 0.3, 0.5)
"""The next version is published when so much of all is answered."""
CONNECTIONS = 16
LATE = 4
"""Every such client begins its last sequence when the newest version is there."""
GAP = 0.02
"""Seconds; the longest between two requests of a sequence."""
SILENCE = 120.0
"""Seconds; no answer takes nearly as long."""
BATCH = 8
MODELS = ("rows", "states", "ids")


@dataclass
class Tally:
    """What became of the sequences. ``faults`` should stay empty."""

    answers: int = 0
    sequences: Counter[tuple[str, int]] = field(default_factory=Counter)  # by model and version
    faults: list[str] = field(default_factory=list)
    newest: asyncio.Event = field(default_factory=asyncio.Event)
    _awaited: list[tuple[float, asyncio.Event]] = field(default_factory=list)

    def count_answer(self) -> None:
        self.answers += 1
        for count, event in self._awaited:
            if self.answers >= count:
                event.set()

    async def wait_for(self, answers: float) -> None:
        event = asyncio.Event()
        self._awaited.append((answers, event))
        await event.wait()


class SequenceClient:
    """Number ``index`` of all, on one stream."""

    def __init__(self, index: int, call: Any, tally: Tally) -> None:
        self._model = MODELS[index % len(MODELS)]
        self._id = index + 1
        self._late = index % LATE == 0
        self._call = call
        self._tally = tally
        self._choose = random.Random(index)

    async def run(self) -> None:
        for round_ in range(ROUNDS):
            if self._late and round_ == ROUNDS - 1:
                await self._tally.newest.wait()
            numbers = [self._choose.randint(-1_000_000, 1_000_000) for _ in range(LENGTH)]
            eager = self._choose.random() < 0.5
            versions = await (self._eager if eager else self._patient)(numbers, f"{self._id}/{round_}")
            if len(versions) == 1:
                self._tally.sequences[self._model, versions.pop()] += 1
            else:
                self._fault(f"the answers of a sequence came from the versions {sorted(versions)}")
        await self._call.done_writing()
        if await self._call.read() is not grpc.aio.EOF:
            self._fault("more answers than requests")

    async def _patient(self, numbers: list[int], name: str) -> set[int]:
        versions = set()
        for index, number in enumerate(numbers):
            await self._send(index, number, name)
            versions.add(await self._receive(index, numbers, name))
        return versions

    async def _eager(self, numbers: list[int], name: str) -> set[int]:
        async def send() -> None:
            for index, number in enumerate(numbers):
                await self._send(index, number, name)

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            return {await self._receive(index, numbers, name) for index in range(LENGTH)}

    async def _send(self, index: int, number: int, name: str) -> None:
        await asyncio.sleep(self._choose.uniform(0, GAP))
        ends = {"start": index == 0, "end": index == LENGTH - 1}
        fields = request_fields(self._model, number, self._id, **ends, id=f"{name}/{index}")
        await self._call.write(v2.ModelInferRequest(**fields))

    async def _receive(self, index: int, numbers: list[int], name: str) -> int:
        async with asyncio.timeout(SILENCE):
            answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise RuntimeError(f"the stream ended: {await self._call.code()} {await self._call.details()}")
        if answer.error_message:
            raise RuntimeError(f"{name}/{index}: {answer.error_message}")
        found = read_response(answer.infer_response)
        expected = (f"{name}/{index}", sum(numbers[: index + 1]), found.model_version)
        if (found.id, found.sum, found.version) != expected:
            self._fault(f"expected {expected}, got {(found.id, found.sum, found.version)}")
        self._tally.count_answer()
        return found.model_version

    def _fault(self, text: str) -> None:
        self._tally.faults.append(f"{self._model} {self._id}: {text}")


async def load_at(server: ServerProcess, clients: int, sums: SumRepository) -> Tally:
    """All clients, and whoever publishes the versions."""
    tally = Tally()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(server.target, options=options) for _ in range(min(CONNECTIONS, clients))]
    publisher = asyncio.create_task(publish_versions(tally, clients * ROUNDS * LENGTH, sums, server))

    async def client(index: int) -> None:
        method = channels[index % len(channels)].stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            v2.ModelInferRequest.SerializeToString,
            v2.ModelStreamInferResponse.FromString,
        )
        call = method()
        try:
            await SequenceClient(index, call, tally).run()
        except Exception as error:
            tally.faults.append(f"client {index}: {error!r}")
        finally:
            call.cancel()

    try:
        await asyncio.gather(*(client(index) for index in range(clients)))
    finally:
        publisher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publisher
        for channel in channels:
            await channel.close()
    return tally


async def publish_versions(tally: Tally, total: int, sums: SumRepository, server: ServerProcess) -> None:
    try:
        for version, part in zip(VERSIONS[1:], SWAPS, strict=True):
            await tally.wait_for(part * total)
            await asyncio.to_thread(add_version, sums, version)
            wanted = {(model, str(version)) for model in MODELS}
            await asyncio.to_thread(wait_until, lambda wanted=wanted: wanted <= loaded(server), f"{wanted} are loaded")
    finally:
        tally.newest.set()


def add_version(sums: SumRepository, version: int) -> None:
    sums.add("rows", version, batch=BATCH, instances=2, idle=600)
    sums.add_states("states", version, batch=BATCH, instances=2, idle=600)
    sums.add("ids", version, batch=BATCH, instances=2, idle=600, oldest=f"max_candidate_sequences: {BATCH}")


def serve(sums: SumRepository) -> ServerProcess:
    """A server of three models; not started yet."""
    add_version(sums, VERSIONS[0])
    return ServerProcess(
        f"--model_repository={sums.path}",
        f"--trusted_model_base_paths={sums.path}/*",
        "--file_system_poll_wait_seconds=1",
        "--sequence_drain_seconds=600",
        "--max_queued_requests=1000000",
    )


def loaded(server: ServerProcess) -> set[tuple[str, str]]:
    """Versions that are served, by their counters."""
    page = server.get("/metrics")[1].decode()
    return set(re.findall(r'^nv_inference_count\{model="(\w+)",version="(\d+)"\}', page, re.MULTILINE))


def live_sequences(server: ServerProcess) -> list[float]:
    page = server.get("/metrics")[1].decode()
    return [float(value) for value in re.findall(r"^tfs_lite_sequences\{[^}]*\} (\S+)", page, re.MULTILINE)]


def failures(server: ServerProcess) -> list[str]:
    page = server.get("/metrics")[1].decode()
    return re.findall(r"^nv_inference_request_failure\{[^}]*\} [1-9].*", page, re.MULTILINE)


def wait_settled(server: ServerProcess) -> None:
    newest = {(model, str(VERSIONS[-1])) for model in MODELS}
    wait_until(lambda: loaded(server) == newest, f"{newest} alone is loaded")
    wait_until(lambda: not any(live_sequences(server)), "no sequence goes on")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_sequence_is_summed_by_one_version_while_three_newer_ones_come(tmp_path: Path) -> None:
    clients = max(REQUESTS // (ROUNDS * LENGTH), 10)
    sums = SumRepository(tmp_path)
    with serve(sums) as server:
        tally = asyncio.run(load_at(server, clients, sums))
        assert tally.faults == []
        assert tally.answers == clients * ROUNDS * LENGTH
        assert tally.sequences.total() == clients * ROUNDS
        versions = {version for _, version in tally.sequences}
        assert {VERSIONS[0], VERSIONS[-1]} <= versions <= set(VERSIONS)
        wait_settled(server)
        assert failures(server) == []
    assert server.exit_code == 0
    assert not server.leftovers()
