"""Callers of ``soak_grpc.py``: what they ask, what they do to their calls, and which ends are right."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from soak_client import CANCEL, GONE, RESET, Call, Connection, connect

from tests.support.servers.models import WIDTH
from tfs_lite.protocols import messages
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.protocols.v2 import messages as v2

VERSION = 3
PREDICT = "/tensorflow.serving.PredictionService/Predict"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
WATCH = "/grpc.health.v1.Health/Watch"
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, UNAVAILABLE = 0, 3, 4, 5, 14
PATIENCE = 60.0
"""Seconds for any call to end; far longer than any takes."""
MAX_FAULTS = 100
LARGEST_ROWS = 3000
"""36 KB of floats: several frames."""


class Fault(AssertionError):
    """A fault that was not provoked."""


@dataclass
class Tally:
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return sum(count for name, count in self.outcomes.items() if name.endswith("right"))


class Crowd:
    """Callers of one server. ``seconds`` or ``calls`` bound a part; what each caller does is drawn by chance."""

    def __init__(self, port: int, connections: int, callers: int, seed: int) -> None:
        self.tally = Tally()
        self._port, self._connections, self._callers = port, connections, callers
        self._choose = random.Random(seed)
        self._number = itertools.count(1)
        self._channel: Any = None
        self._kinds: dict[Callable[[Connection], Awaitable[str]], int] = {
            self._plain: 50,
            self._late: 12,
            self._reset: 10,
            self._half: 6,
            self._wrong: 5,
            self._bidi: 8,
            self._bidi_reset: 4,
            self._watch: 4,
            self._leave: 4,
            self._stock: 4,
        }

    def run(self, more: Callable[[], bool]) -> None:
        """Until ``more`` says no. All connections are closed when it returns."""
        asyncio.run(self._run(more))

    async def _run(self, more: Callable[[], bool]) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self._port}", [("grpc.use_local_subchannel_pool", 1)])
        try:
            await asyncio.gather(*(self._on_connection(more) for _ in range(self._connections)))
        finally:
            self._channel.close()

    async def _on_connection(self, more: Callable[[], bool]) -> None:
        connection = await connect(self._port)
        try:
            await asyncio.gather(*(self._caller(connection, more) for _ in range(self._callers)))
        finally:
            connection.close()
            await connection.ended
        if connection.goaway is not None:
            self._fault(f"the server sent GOAWAY: {connection.goaway}")

    async def _caller(self, connection: Connection, more: Callable[[], bool]) -> None:
        kinds, weights = list(self._kinds), list(self._kinds.values())
        while more() and len(self.tally.faults) < MAX_FAULTS:
            (kind,) = self._choose.choices(kinds, weights)
            name = kind.__name__.strip("_")
            try:
                async with asyncio.timeout(PATIENCE):
                    self.tally.outcomes[f"{name}: {await kind(connection)}"] += 1
            except (TimeoutError, Fault, ConnectionError) as error:
                self._fault(f"{name}: {type(error).__name__} {error}")

    def _fault(self, text: str) -> None:
        if len(self.tally.faults) < MAX_FAULTS:
            self.tally.faults.append(text)

    # What callers do. Each returns how it ended, or raises Fault.

    async def _plain(self, connection: Connection) -> str:
        x = self._rows()
        call = connection.open(PREDICT, self._choose.choice(["", "1M", f"{self._choose.randint(30_000, 90_000)}m"]))
        call.send(predict_request(x), end=True, cuts=self._choose)
        return await self._right(call, x)

    async def _right(self, call: Call, x: np.ndarray) -> str:
        answer, status = await call.next(), await call.status
        if status != OK or answer is None:
            raise Fault(f"status {status} for {len(x)} rows: {call.text}")
        if not is_answer(answer, x):
            raise Fault(f"a wrong answer for {len(x)} rows")
        return "right"

    async def _late(self, connection: Connection) -> str:
        """A deadline that may pass anywhere on the way; reading from the wire, too."""
        x = self._rows()
        call = connection.open(PREDICT, f"{self._choose.choice([1, 1, 2, 5, 10, 30, 100])}m")
        call.send(predict_request(x), end=True)
        answer, status = await call.next(), await call.status
        if status == OK and answer is not None and is_answer(answer, x):
            return "right"
        if status in (DEADLINE_EXCEEDED, RESET + CANCEL):
            return "too late"
        if status == UNAVAILABLE and "before its deadline" in call.text:
            return "refused in time"
        raise Fault(f"status {status} for a call with a deadline: {call.text}")

    async def _reset(self, connection: Connection) -> str:
        """A whole request, and RST_STREAM at once or a little later."""
        x = self._rows()
        call = connection.open(PREDICT)
        call.send(predict_request(x), end=True)
        await self._turns(40)
        if call.status.done():
            return await self._right(call, x)
        call.reset(self._choose.choice([CANCEL, 0]))
        return "reset"

    async def _half(self, connection: Connection) -> str:
        """RST_STREAM inside a request: after the headers, or somewhere in the message."""
        data = b"\0" + len(message := predict_request(self._rows())).to_bytes(4, "big") + message
        call = connection.open(PREDICT)
        if sent := self._choose.choice([0, self._choose.randrange(len(data))]):
            call.send_bytes(data[:sent])
        await self._turns(10)
        if call.status.done():
            raise Fault(f"status {call.status.result()} for half a request")
        call.reset()
        return "reset"

    async def _wrong(self, connection: Connection) -> str:
        x, call = self._rows(), connection.open(PREDICT)
        message, expected = self._choose.choice(
            [
                (predict_request(x, "none"), NOT_FOUND),
                (predict_request(x[:, :2]), INVALID_ARGUMENT),
                (b"\xff\xff no message", INVALID_ARGUMENT),
            ]
        )
        call.send(message, end=True)
        if (status := await call.status) != expected:
            raise Fault(f"status {status}, expected {expected}: {call.text}")
        return "refused"

    async def _bidi(self, connection: Connection) -> str:
        asked = [self._rows(7) for _ in range(self._choose.randint(1, 20))]
        call = connection.open(STREAM_INFER)
        await self._ask_and_read(call, asked, len(asked))
        call.send_bytes(b"", end=True)
        if await call.next() is not None or await call.status != OK:
            raise Fault(f"status {await call.status} at the end of a stream")
        return "right"

    async def _bidi_reset(self, connection: Connection) -> str:
        """Left with answers under way."""
        asked = [self._rows(7) for _ in range(self._choose.randint(1, 20))]
        call = connection.open(STREAM_INFER)
        await self._ask_and_read(call, asked, self._choose.randrange(len(asked)))
        call.reset()
        return "reset"

    async def _ask_and_read(self, call: Call, asked: list[np.ndarray], reads: int) -> None:
        for number, x in enumerate(asked):
            call.send(infer_request(x, number), cuts=self._choose)
        for number, x in enumerate(asked[:reads]):
            answer = await call.next()
            if answer is None or not is_infer_answer(answer, x, number):
                raise Fault(f"answer {number} of a stream is wrong or missing; {call.status}")

    async def _watch(self, connection: Connection) -> str:
        call = connection.open(WATCH, self._choose.choice(["", "50m"]))
        call.send(messages.HealthCheckRequest(service="").SerializeToString(), end=True)
        answer = await call.next()
        if answer is None:
            if await call.status in (DEADLINE_EXCEEDED, RESET + CANCEL):
                return "too late"
            raise Fault(f"status {await call.status} before the first answer")
        if messages.HealthCheckResponse.FromString(answer).status != 1:
            raise Fault("not serving")
        call.reset()
        return "right"

    async def _leave(self, _: Connection) -> str:
        """A client of its own that vanishes with everything open."""
        own = await connect(self._port)
        for _ in range(self._choose.randint(0, 5)):
            own.open(PREDICT).send(predict_request(self._rows()), end=self._choose.random() < 0.5)
            own.open(STREAM_INFER).send(infer_request(self._rows(7), 0))
            own.open(WATCH).send(b"", end=True)
        await self._turns(40)
        watches = [call for number, call in own.calls.items() if number % 6 == 5]
        own.abort()
        await own.ended
        if any(watch.status.result() != GONE for watch in watches):
            raise Fault("a watch ended by itself")
        return "left"

    async def _stock(self, _: Connection) -> str:
        """grpcio as a client, that cancels half of its calls."""
        x = self._rows()
        future = self._channel.unary_unary(PREDICT).future(predict_request(x), timeout=PATIENCE / 2)
        if self._choose.random() < 0.5:
            await self._turns(20)
            future.cancel()
        try:
            answer = await asyncio.to_thread(future.result)
        except (grpc.FutureCancelledError, grpc.RpcError) as error:
            if future.code() is not grpc.StatusCode.CANCELLED:
                raise Fault(f"{future.code()}: {future.details()}") from error
            return "cancelled"
        if not is_answer(answer, x):
            raise Fault("a wrong answer to grpcio")
        return "right"

    def _rows(self, most: int = LARGEST_ROWS) -> np.ndarray:
        """Numbers that no other call has, so that no answer fits another call. Mostly few."""
        count = self._choose.choice([1, 1, 1, 2, 3, 7, self._choose.randint(1, 30), most])
        first = next(self._number) * 37 % 2**22
        return np.arange(first, first + min(count, most) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)

    async def _turns(self, most: int) -> None:
        for _ in range(self._choose.randint(0, most)):
            await asyncio.sleep(0)


def predict_request(x: np.ndarray, model: str = "m") -> bytes:
    request = messages.PredictRequest(model_spec={"name": model})
    request.inputs["x"].CopyFrom(encode(x, as_content=True))
    return bytes(request.SerializeToString())


def is_answer(body: bytes, x: np.ndarray) -> bool:
    y = decode(messages.PredictResponse.FromString(body).outputs["y"], "y")
    return np.array_equal(y, x + np.float32(VERSION))


def infer_request(x: np.ndarray, number: int) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    fields = {"model_name": "m", "id": str(number), "inputs": [tensor], "outputs": [{"name": "y"}]}
    return bytes(v2.ModelInferRequest(**fields, raw_input_contents=[x.tobytes()]).SerializeToString())


def is_infer_answer(body: bytes, x: np.ndarray, number: int) -> bool:
    answer = v2.ModelStreamInferResponse.FromString(body)
    found = answer.infer_response
    if answer.error_message or found.id != str(number) or len(found.raw_output_contents) != 1:
        return False
    return np.array_equal(np.frombuffer(found.raw_output_contents[0], np.float32), (x + np.float32(VERSION)).ravel())
