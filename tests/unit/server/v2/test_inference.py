"""A V2 request on its way to a model and back."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.v2_fixture import Repeater, V2Fixture
from tfs_lite.core.model import PredictCall, SequenceFlags, Traits
from tfs_lite.core.signature import DataType, SymbolicDim
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest, SentTensor, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import RawTensor
from tfs_lite.server.runtime.event_loop import BackgroundRunner

ROW = np.array([[1, 2, 3, 4]], np.int32)


class Memory:
    """Regions that are arrays."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def read(
        self, place: SharedMemorySlice, datatype: str, shape: tuple[int, ...], name: str = "", model: str = ""
    ) -> Array:
        if place.region not in self.arrays:
            raise ServingError(StatusCode.NOT_FOUND, f"Unable to find shared memory region: '{place.region}'")
        return self.arrays[place.region]

    def write(self, place: SharedMemorySlice, array: Array) -> None:
        self.arrays[place.region] = array


class House(V2Fixture):
    """With one event loop for all that is asked."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__(memory)
        self.runner = asyncio.Runner()

    def close(self) -> None:
        self.runner.close()
        super().close()


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def house(memory: Memory) -> Iterator[House]:
    house = House(memory)
    yield house
    house.close()
    assert house.handles == 0


def sent(name: str, array: Array) -> SentTensor:
    datatype = "INT32" if array.dtype == np.int32 else "FP32"
    return SentTensor(name, datatype, array.shape, array)


def simple(**fields: Any) -> InferRequest:
    inputs = [sent("INPUT0", ROW), sent("INPUT1", ROW)]
    return InferRequest(**{"model": "simple", "inputs": inputs, **fields})


def ask(house: House, request: InferRequest) -> InferAnswer:
    async def run() -> InferAnswer:
        with house.metrics.record("ModelInfer", request.model) as record:
            return await house.infer.begin(request, record, None).answer()

    return house.runner.run(run())


def ask_for_all(house: House, request: InferRequest) -> list[InferAnswer]:
    async def run() -> list[InferAnswer]:
        with (
            house.metrics.record("ModelInfer", request.model) as record,
            house.infer.begin(request, record, None, house.infer.room.client()) as answers,
        ):
            return [answer async for answer in answers]

    try:
        return house.runner.run(run())
    finally:
        house.runner.run(asyncio.to_thread(wait_until, lambda: house.handles == 0, "handles"))


def refusal(house: House, request: InferRequest) -> tuple[StatusCode, str]:
    with pytest.raises(ServingError) as caught:
        ask(house, request)
    return caught.value.code, str(caught.value)


def test_the_newest_version_answers_and_is_named(house: House) -> None:
    house.add_simple()
    house.add_simple(version=4)
    answer = ask(house, simple(id="x"))
    assert (answer.version.version, answer.id) == (4, "x")
    assert list(answer.outputs) == ["OUTPUT0", "OUTPUT1"]
    assert answer.outputs["OUTPUT0"].tolist() == [[2, 4, 6, 8]]
    assert ask(house, simple(version=1)).version.version == 1
    assert house.count("OK", version="4") == 1


def test_wanted_outputs_come_in_their_order(house: House) -> None:
    house.add_simple()
    answer = ask(house, simple(outputs=[WantedOutput("OUTPUT1"), WantedOutput("OUTPUT0")]))
    assert list(answer.outputs) == ["OUTPUT1", "OUTPUT0"]


def test_the_models_batch_size_is_what_counts(house: House) -> None:
    house.add_simple()
    nine = np.ones((9, 4), np.int32)
    request = simple(inputs=[sent("INPUT0", nine), sent("INPUT1", nine)])
    assert refusal(house, request) == (
        StatusCode.INVALID_ARGUMENT,
        "inference request batch-size must be <= 8 for 'simple'",
    )


def test_classes_have_the_models_labels(house: House) -> None:
    house.add_simple().labels["OUTPUT0"] = ["a", "b", "c", "d"]
    answer = ask(house, simple(outputs=[WantedOutput("OUTPUT0", 2)]))
    assert answer.outputs["OUTPUT0"].tolist() == [[b"8:3:d", b"6:2:c"]]


def test_without_a_batch_classes_are_of_all_elements(house: House) -> None:
    house.add_echo("echo", DataType.FLOAT, SymbolicDim("n"), 2)
    array = np.array([[1, 4], [3, 2]], np.float32)
    request = InferRequest("echo", inputs=[sent("IN", array)], outputs=[WantedOutput("OUT", 2)])
    assert ask(house, request).outputs["OUT"].tolist() == [b"4.000000:1", b"3.000000:2"]


def test_models_and_versions_that_are_not_there_are_named(house: House) -> None:
    house.add_simple()
    assert refusal(house, simple(model="nope")) == (
        StatusCode.NOT_FOUND,
        "Request for unknown model: 'nope' is not found",
    )
    assert refusal(house, simple(version=9)) == (
        StatusCode.NOT_FOUND,
        "Request for unknown model: 'simple' version 9 is not found",
    )


def test_failures_of_the_model_are_told(house: House) -> None:
    house.add_simple()
    bad = np.full((1, 4), 13, np.int32)
    request = simple(inputs=[sent("INPUT0", bad), sent("INPUT1", ROW)])
    assert refusal(house, request) == (StatusCode.INTERNAL, "thirteen brings bad luck")
    assert house.count("INTERNAL") == 1


def test_tensors_are_taken_from_and_put_into_shared_memory(house: House, memory: Memory) -> None:
    house.add_simple()
    memory.arrays["in"] = ROW
    place = SharedMemorySlice("in", 16)
    inputs = [sent("INPUT0", ROW), SentTensor("INPUT1", "INT32", (1, 4), memory=place)]
    answer = ask(house, simple(inputs=inputs, outputs=[WantedOutput("OUTPUT0", memory=SharedMemorySlice("out", 16))]))
    assert memory.arrays["out"].tolist() == [[2, 4, 6, 8]]
    assert answer.wanted["OUTPUT0"].memory is not None


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        (SharedMemorySlice("no", 16), StatusCode.NOT_FOUND, "Unable to find shared memory region: 'no'"),
        (
            SharedMemorySlice("no", 15),
            StatusCode.INVALID_ARGUMENT,
            "input byte size mismatch for input 'INPUT1' for model 'simple'. Expected 16, got 15",
        ),
    ],
    ids=["unknown", "wrong size"],
)
def test_places_that_cannot_be_are_refused(house, place: SharedMemorySlice, code: StatusCode, message: str) -> None:
    house.add_simple()
    inputs = [sent("INPUT0", ROW), SentTensor("INPUT1", "INT32", (1, 4), memory=place)]
    assert refusal(house, simple(inputs=inputs)) == (code, message)


def test_without_shared_memory_there_are_no_regions() -> None:
    house = House()
    house.add_simple()
    place = SharedMemorySlice("r", 16)
    inputs = [sent("INPUT0", ROW), SentTensor("INPUT1", "INT32", (1, 4), memory=place)]
    expected = (StatusCode.UNIMPLEMENTED, "Unable to find shared memory region: 'r'")
    assert refusal(house, simple(inputs=inputs)) == expected
    assert refusal(house, simple(outputs=[WantedOutput("OUTPUT0", memory=place)])) == expected
    house.close()


def repeat(*numbers: int) -> InferRequest:
    return InferRequest("repeat", inputs=[sent("IN", np.array(numbers, np.int32))], id="x")


def test_answers_of_a_decoupled_model_are_given_in_order(house: House) -> None:
    house.add("repeat", Repeater())
    answers = ask_for_all(house, repeat(5, 6, 7))
    assert [answer.outputs["OUT"].item() for answer in answers] == [5, 6, 7]
    assert {answer.id for answer in answers} == {"x"}


def test_an_answer_that_cannot_be_made_cancels_the_request(house: House) -> None:
    repeater = house.add("repeat", Repeater())
    request = repeat(*range(100))
    request.outputs = [WantedOutput("OUT", memory=SharedMemorySlice("gone", 4))]
    house.infer._memory = None
    with pytest.raises(ServingError, match="Unable to find shared memory region"):
        ask_for_all(house, request)
    assert repeater.cancelled.is_set()


def test_a_decoupled_model_needs_a_caller_that_takes_several_answers(house: House) -> None:
    house.add("repeat", Repeater())
    assert refusal(house, repeat(5)) == (
        StatusCode.UNIMPLEMENTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )


class Noting(Repeater):
    """Keeps what it was asked."""

    traits = Traits("test")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[PredictCall] = []

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        call.on_done({"OUT": np.zeros(1, np.int32)})


def test_the_servable_gets_what_the_request_says(house: House) -> None:
    servable = house.add("repeat", Noting())
    request = repeat(1)
    request.sequence, request.priority, request.timeout = SequenceFlags(5, start=True), 3, 0.5
    ask(house, request)
    (call,) = servable.calls
    assert (call.sequence, call.priority, call.timeout) == (SequenceFlags(5, start=True), 3, 0.5)


def test_requests_are_queued_in_the_order_in_which_they_begin(house: House) -> None:
    servable = house.add_simple()
    servable.model.gate.clear()

    async def run() -> list[int]:
        started = []
        for number in range(5):
            row = np.full((1, 4), number, np.int32)
            record = house.metrics.record("ModelInfer", "simple").__enter__()
            request = simple(inputs=[sent("INPUT0", row), sent("INPUT1", ROW)])
            started.append(house.infer.begin(request, record, None))
        servable.model.gate.set()
        answers = await asyncio.gather(*(one.answer() for one in started))
        return [int(answer.outputs["OUTPUT0"][0, 0]) for answer in answers]

    assert house.runner.run(run()) == [1, 2, 3, 4, 5]
    assert [int(inputs["INPUT0"][0, 0]) for inputs in servable.model.runs] == [0, 1, 2, 3, 4]


def raw_texts(*texts: bytes) -> InferRequest:
    data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return InferRequest("text", inputs=[RawTensor("IN", "BYTES", (len(texts),), data=data)])


@pytest.mark.parametrize("size", [10, COMFORTABLE_BYTES])
def test_large_inputs_of_texts_are_decoded_on_a_thread(house: House, size: int) -> None:
    house.add_echo("text", DataType.STRING, SymbolicDim("n"))
    background = BackgroundRunner("large body", 1, 8)
    house.infer._background = background
    request = raw_texts(b"a" * size, b"b")

    async def run() -> InferAnswer:
        await house.infer.decode_texts(request)
        assert (request.inputs[0].array is not None) == (size > 10)
        with house.metrics.record("ModelInfer", "text") as record:
            return await house.infer.begin(request, record, None).answer()

    assert house.runner.run(run()).outputs["OUT"].tolist() == [b"a" * size, b"b"]
    background.close()


def test_large_inputs_that_cannot_be_decoded_are_refused_in_their_turn(house: House) -> None:
    house.add_echo("text", DataType.STRING, SymbolicDim("n"))
    background = BackgroundRunner("large body", 1, 8)
    house.infer._background = background
    request = raw_texts(b"a" * COMFORTABLE_BYTES)
    request.inputs[0].shape = (2,)
    house.runner.run(house.infer.decode_texts(request))
    code, message = refusal(house, request)
    assert (code, "for model 'text'" in message) == (StatusCode.INVALID_ARGUMENT, True), message
    background.close()
