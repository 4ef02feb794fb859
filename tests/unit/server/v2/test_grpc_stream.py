"""The bounds of one ModelStreamInfer, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from tests.support.servers.v2_fixture import Repeater, V2Fixture
from tfs_lite.core.model import PredictCall
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.v2.messages import ModelInferRequest, ModelStreamInferResponse
from tfs_lite.server.inference.pending import MAX_PARTS, PART_BYTES
from tfs_lite.server.v2.grpc_stream import FIRST_BURST, V2Stream
from tfs_lite.transport.table import CallContext


class Counted(Repeater):
    """Counts the answers that it has made."""

    made = 0

    def _answer(self, call: PredictCall) -> None:
        on_part = call.on_part
        assert on_part is not None

        def count(outputs: Any) -> None:
            self.made += 1
            on_part(outputs)

        call.on_part = count
        super()._answer(call)


class OneByOne(Repeater):
    """Answers one request after the other, on one thread, and counts those that are over."""

    def __init__(self) -> None:
        super().__init__()
        self.over = 0
        self._worker = ThreadPoolExecutor(1)

    def submit(self, call: PredictCall) -> None:
        self._worker.submit(self._answer, call)

    def close(self) -> None:
        super().close()
        self._worker.shutdown()

    def _answer(self, call: PredictCall) -> None:
        super()._answer(call)
        self.over += 1


class ByTurns(Repeater):
    """Answers two requests by turns, all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[PredictCall] = []

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        if len(self.calls) == 2:
            for number in range(10):
                for index, each in enumerate(self.calls):
                    assert each.on_part is not None
                    each.on_part({"OUT": np.array([2 * number + index], np.int32)})
            for each in self.calls:
                each.on_done({"OUT": np.array([20], np.int32)})


class Requests:
    """Gives so many requests for one number each, and counts those that were read."""

    def __init__(self, count: int, *values: int, model: str = "simple") -> None:
        self.count = count
        self.values = values
        self.model = model
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for index in range(self.count):
            self.read += 1
            yield self.message(index).SerializeToString()

    def message(self, index: int) -> Any:
        if self.model == "repeat":
            data = np.array(self.values, np.int32)
            tensors = [{"name": "IN", "datatype": "INT32", "shape": data.shape}]
            return ModelInferRequest(model_name="repeat", inputs=tensors, raw_input_contents=[data.tobytes()])
        row = np.full((1, 4), index, np.int32)
        tensors = [{"name": name, "datatype": "INT32", "shape": row.shape} for name in ("INPUT0", "INPUT1")]
        return ModelInferRequest(
            model_name=self.model, id=str(index), inputs=tensors, raw_input_contents=[row.tobytes()] * 2
        )


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await coroutine

    asyncio.run(bounded())


async def turns(count: int) -> None:
    """Lets everybody else on the loop go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def size_of_an_answer(models: V2Fixture) -> int:
    """Of the model ``simple``, to one request."""
    stream = V2Stream(models.infer, CallContext(None))
    (answer,) = [answer async for answer in stream.run(Requests(1).__aiter__())]
    return len(answer)


async def until(reached: Callable[[], bool]) -> None:
    """Whatever the loop and the models' threads still have to do for it."""
    while not reached():
        await turns(1)


def read(data: bytes) -> Any:
    return ModelStreamInferResponse.FromString(data)


def test_no_more_requests_are_read_than_may_be_in_flight(models: V2Fixture) -> None:
    servable = models.add_simple()
    servable.model.gate.clear()
    requests = Requests(20)

    async def scenario() -> None:
        stream = V2Stream(models.infer, CallContext(None), max_in_flight=4)
        async with aclosing(stream.run(requests.__aiter__())) as answers:  # type: ignore[type-var]
            first = asyncio.ensure_future(anext(answers))
            await until(lambda: models.handles == 4 and requests.read == 5)
            await turns(50)
            assert (models.handles, requests.read) == (4, 5)
            servable.model.gate.set()
            ids = [read(await first).infer_response.id]
            ids += [read(answer).infer_response.id async for answer in answers]
            assert ids == [str(index) for index in range(20)]

    run(scenario())


def test_a_client_that_takes_no_parts_is_not_waited_for(models: V2Fixture) -> None:
    repeater = models.add("repeat", Repeater())
    models.infer.room.one = 10 * PART_BYTES
    requests = Requests(1, *range(50), model="repeat")

    async def scenario() -> None:
        stream = V2Stream(models.infer, CallContext(None))
        async with aclosing(stream.run(requests.__aiter__())) as answers:  # type: ignore[type-var]
            first = read(await anext(answers))
            await until(repeater.cancelled.is_set)
            rest = [read(answer) async for answer in answers]
            assert len(first.infer_response.outputs) == 1
            assert "more slowly than the model makes them" in rest[-1].error_message
            assert len(rest) <= 12

    run(scenario())
    assert models.count("RESOURCE_EXHAUSTED", "repeat") == 1
    assert models.infer.room.held == 0


def test_a_decoupled_model_waits_while_many_of_its_answers_wait(models: V2Fixture) -> None:
    counted = models.add("repeat", Counted())
    requests = Requests(1, *range(MAX_PARTS + 50), model="repeat")

    async def scenario() -> None:
        stream = V2Stream(models.infer, CallContext(None))
        async with aclosing(stream.run(requests.__aiter__())) as answers:  # type: ignore[type-var]
            found = [read(await anext(answers))]
            await until(lambda: counted.made > MAX_PARTS)
            await turns(50)
            assert counted.made <= MAX_PARTS + 2
            found += [read(answer) async for answer in answers]
            numbers = [np.frombuffer(one.infer_response.raw_output_contents[0], np.int32)[0] for one in found]
            assert numbers == [*range(MAX_PARTS + 50)]

    run(scenario())
    assert models.count("OK", "repeat") == 1


def test_no_requests_are_read_while_many_bytes_of_answers_wait(models: V2Fixture) -> None:
    models.add_simple()
    first, others, answered = Requests(1), Requests(50), asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        async for request in first:
            yield request
        await answered.wait()
        async for request in others:
            yield request

    async def scenario() -> None:
        models.infer.room.one = 10 * await size_of_an_answer(models)
        stream = V2Stream(models.infer, CallContext(None))
        async with aclosing(stream.run(requests())) as answers:  # type: ignore[type-var]
            read(await anext(answers))
            answered.set()
            found = [read(await anext(answers))]
            await until(lambda: models.handles == 0)
            await turns(50)
            assert 2 < others.read <= 10
            found += [read(answer) async for answer in answers]
            assert [answer.infer_response.id for answer in found] == [str(index) for index in range(50)]
            assert not any("more slowly" in answer.error_message for answer in found)

    run(scenario())
    assert models.infer.room.held == 0


def test_a_first_burst_waits_until_the_size_of_an_answer_is_known(models: V2Fixture) -> None:
    servable = models.add_simple()
    requests = Requests(50)

    async def scenario() -> None:
        models.infer.room.one = FIRST_BURST * await size_of_an_answer(models)
        servable.model.gate.clear()
        stream = V2Stream(models.infer, CallContext(None))
        async with aclosing(stream.run(requests.__aiter__())) as answers:  # type: ignore[type-var]
            first = asyncio.ensure_future(anext(answers))
            await until(lambda: models.handles == FIRST_BURST)
            await turns(50)
            assert models.handles == FIRST_BURST
            servable.model.gate.set()
            found = [read(await first)]
            await until(lambda: models.handles == 0)
            await turns(50)
            found += [read(answer) async for answer in answers]
            assert [answer.infer_response.id for answer in found] == [str(index) for index in range(50)]
            assert not any("more slowly" in answer.error_message for answer in found)

    run(scenario())


def test_an_answer_without_room_becomes_a_failure(models: V2Fixture) -> None:
    servable = models.add_simple()
    requests = Requests(20)

    async def scenario() -> None:
        models.infer.room.one = 2 * await size_of_an_answer(models)
        servable.model.gate.clear()
        stream = V2Stream(models.infer, CallContext(None))
        async with aclosing(stream.run(requests.__aiter__())) as answers:  # type: ignore[type-var]
            first = asyncio.ensure_future(anext(answers))
            await until(lambda: models.handles == FIRST_BURST)
            servable.model.gate.set()
            found = [read(await first)]
            await until(lambda: models.handles == 0)
            await turns(50)
            found += [read(answer) async for answer in answers]
            assert [answer.infer_response.id for answer in found] == [str(index) for index in range(20)]
            assert any("more slowly than the model makes them" in answer.error_message for answer in found)

    run(scenario())
    assert models.count("RESOURCE_EXHAUSTED") > 0
    assert models.infer.room.held == 0


def test_a_stream_that_is_closed_leaves_nothing_behind(models: V2Fixture) -> None:
    servable = models.add_simple()
    servable.model.gate.clear()

    async def scenario() -> None:
        stream = V2Stream(models.infer, CallContext(None))
        async with aclosing(stream.run(Requests(5).__aiter__())) as answers:  # type: ignore[type-var]
            first = asyncio.ensure_future(anext(answers))
            await until(lambda: models.handles == 5)
            first.cancel()
            await asyncio.wait({first})
        assert len(asyncio.all_tasks()) == 1
        servable.model.gate.set()
        await until(lambda: models.handles == 0)

    run(scenario())
    assert models.count("CANCELLED") == 5


def test_requests_that_cannot_be_read_are_failures_of_their_own(models: V2Fixture) -> None:
    models.add_simple()

    async def requests() -> AsyncIterator[bytes]:
        yield b"\xff\xff"
        yield Requests(1).message(7).SerializeToString()

    async def scenario() -> None:
        answers = [read(answer) async for answer in V2Stream(models.infer, CallContext(None)).run(requests())]
        assert "are not a" in answers[0].error_message
        assert answers[1].infer_response.id == "7"

    run(scenario())


def test_requests_that_break_off_are_the_end_of_the_stream(models: V2Fixture) -> None:
    models.add_simple()

    async def requests() -> AsyncIterator[bytes]:
        yield Requests(1).message(7).SerializeToString()
        raise ServingError(StatusCode.UNAVAILABLE, "broken off")

    async def scenario() -> None:
        answers = V2Stream(models.infer, CallContext(None)).run(requests())
        assert read(await anext(answers)).infer_response.id == "7"
        with pytest.raises(ServingError, match="broken off"):
            await anext(answers)

    run(scenario())


def test_answers_of_several_decoupled_requests_go_out_as_their_model_makes_them(models: V2Fixture) -> None:
    model = models.add("repeat", OneByOne())
    requests = Requests(20, *range(10), model="repeat")

    async def scenario() -> None:
        stream = V2Stream(models.infer, CallContext(None))
        async with aclosing(stream.run(requests.__aiter__())) as answers:  # type: ignore[type-var]
            found = [read(await anext(answers))]
            await until(lambda: model.over == 20)
            found += [read(answer) async for answer in answers]
            numbers = [np.frombuffer(one.infer_response.raw_output_contents[0], np.int32)[0] for one in found]
            assert numbers == [*range(10)] * 20

    run(scenario())


def test_answers_that_come_at_once_go_out_in_the_order_in_which_they_were_made(models: V2Fixture) -> None:
    models.add("repeat", ByTurns())

    async def scenario() -> None:
        stream = V2Stream(models.infer, CallContext(None))
        found = [read(answer) async for answer in stream.run(Requests(2, 0, model="repeat").__aiter__())]
        numbers = [np.frombuffer(one.infer_response.raw_output_contents[0], np.int32)[0] for one in found]
        assert numbers == [*range(20), 20, 20]

    run(scenario())
