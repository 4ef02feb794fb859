"""The fast path of plain V2 requests: its answers, errors and counts are those of the full way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.servers.v2_fixture import BATCH, FunctionServable, Repeater, V2Fixture, echo_signature
from tfs_lite.core.model import Traits
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.metrics.requests import REST
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.protocols.v2.binary import read_length
from tfs_lite.protocols.v2.json_answer import WrittenAnswer, write_answer
from tfs_lite.protocols.v2.json_request import read_infer
from tfs_lite.protocols.v2.messages import ModelInferRequest
from tfs_lite.protocols.v2.plain import PlainRequest
from tfs_lite.protocols.v2.request import InferRequest
from tfs_lite.protocols.v2.tensors import name_of
from tfs_lite.server.v2.fast_path import LESSONS, V2FastPath
from tfs_lite.server.v2.grpc_service import V2GrpcService
from tfs_lite.server.v2.inference import METHOD
from tfs_lite.transport.table import CallContext

NUMBERS = [
    *(DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16),
    *(DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64),
    *(DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64),
]
Outcome = tuple[str, Any]
HttpBody = tuple[bytes, str | None]


@dataclass
class TwoWays:
    """Models, and every request in both ways: by a fast path that remembers, and by one that is always new."""

    models: V2Fixture
    loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self.fast = self.new_path()
        self.taken = 0

    def new_path(self) -> V2FastPath:
        return V2FastPath(self.models.predictor, self.models.infer)

    def grpc(self, data: bytes) -> Outcome:
        """The answer, which has to be the same both ways."""
        self.taken += self.fast.grpc.find(data) is not None
        full, fast = (self._run(self._grpc(path, data)) for path in (self.new_path(), self.fast))
        assert fast == full
        return fast

    def http(self, body: HttpBody, model: str = "m", version: int | None = None) -> Outcome:
        full = self._run(self._http_in_full(model, version, body))
        fast = self._run(self._http(model, version, body))
        assert fast == full
        return fast

    def _run(self, asked: Coroutine[Any, Any, Any]) -> Outcome:
        try:
            return "answer", self.loop.run_until_complete(asyncio.wait_for(asked, 20))
        except ServingError as error:
            return "error", (error.code, str(error))

    async def _grpc(self, path: V2FastPath, data: bytes) -> bytes:
        control: Any = None  # inference needs none
        return await V2GrpcService(self.models.infer, control, path).model_infer(data, CallContext(None))

    async def _http(self, model: str, version: int | None, body: HttpBody) -> WrittenAnswer | None:
        with self.models.metrics.record(METHOD, model, REST) as record:
            sent = self.fast.read_http(model, version, *body, partial(_read, model, version, body[1]))
            self.taken += isinstance(sent, PlainRequest)
            answer = await self.fast.answer(sent, record, None)
            return self.fast.http_answers.write(answer, sent.binary_outputs)

    async def _http_in_full(self, model: str, version: int | None, body: HttpBody) -> WrittenAnswer:
        with self.models.metrics.record(METHOD, model, REST) as record:
            request = _read(model, version, body[1], body[0])
            answer = await self.models.infer.begin(request, record, None).answer()
            return write_answer(answer, request.binary_outputs)


def _read(model: str, version: int | None, length: str | None, data: bytes) -> InferRequest:
    return read_infer(model, version, data, read_length(length, len(data)))


@pytest.fixture
def ways(models: V2Fixture) -> Iterator[TwoWays]:
    with asyncio.Runner() as runner:
        yield TwoWays(models, runner.get_loop())


def twice(inputs: Mapping[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        return {"OUT": inputs["IN"] + inputs["IN"]}


def add(models: V2Fixture, dtype: DataType = DataType.FLOAT, name: str = "m", version: int = 1) -> FunctionServable:
    return models.add_function(name, echo_signature(dtype, BATCH, 2), twice, 8, version)


def message(array: Array, model: str = "m", datatype: str = "FP32", typed: bool = False, **fields: Any) -> bytes:
    request = ModelInferRequest(model_name=model, **fields)
    tensor = request.inputs.add(name="IN", datatype=datatype, shape=array.shape)
    if typed:
        contents = tensor.contents.fp64_contents if array.dtype == np.float64 else tensor.contents.fp32_contents
        contents.extend(array.ravel().tolist())
    else:
        request.raw_input_contents.append(array.tobytes())
    encoded: bytes = request.SerializeToString()
    return encoded


def rows(*values: float) -> Array:
    return np.array(values, np.float32).reshape(-1, 2)


def body(array: Array, datatype: str = "FP32", binary: bool = False, **members: Any) -> HttpBody:
    tensor: dict[str, Any] = {"name": "IN", "shape": array.shape, "datatype": datatype}
    if not binary:
        return json.dumps({**members, "inputs": [{**tensor, "data": array.ravel().tolist()}]}).encode(), None
    tensor["parameters"] = {"binary_data_size": array.nbytes}
    text = json.dumps({**members, "inputs": [tensor]}).encode()
    return text + array.tobytes(), str(len(text))


# The same answers.


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: name_of(dtype))
def test_every_type_of_numbers_is_answered_the_same(ways: TwoWays, dtype: DataType) -> None:
    add(ways.models, dtype)
    name = name_of(dtype)
    for start in range(3):
        array = np.arange(start, start + 4).reshape(2, 2).astype(to_numpy(dtype))
        assert ways.grpc(message(array, datatype=name, id=str(start)))[0] == "answer"
        for outputs in ([], [{"name": "OUT", "parameters": {"binary_data": True}}]):
            outcome = ways.http(body(array, name, binary=True, id=str(start), outputs=outputs))
            assert outcome[0] == ("answer" if outputs or dtype not in (DataType.HALF, DataType.BFLOAT16) else "error")
        if dtype not in (DataType.HALF, DataType.BFLOAT16):
            assert ways.http(body(array, name, id=str(start)))[0] == "answer"
        if dtype in (DataType.FLOAT, DataType.DOUBLE):
            assert ways.grpc(message(array, datatype=name, typed=True))[0] == "answer"
    assert ways.taken >= (6 if dtype in (DataType.HALF, DataType.BFLOAT16) else 8)


WIDE = Signature(
    (TensorSpec("IN", DataType.FLOAT, (BATCH, SymbolicDim("n"))),),
    (TensorSpec("OUT", DataType.FLOAT, (BATCH, SymbolicDim("n"))),),
)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.booleans(), st.integers(0, 3)), max_size=12))
@examples(200)
def test_any_requests_in_any_order_are_answered_the_same(asked: list[tuple[int, int, bool, int]]) -> None:
    models = V2Fixture()
    try:
        models.add_function("m", WIDE, twice, 8)
        with asyncio.Runner() as runner:
            ways = TwoWays(models, runner.get_loop())
            for height, width, named, way in asked:  # nine rows are too many, and no columns are an empty input
                array = np.full((height, width), len(asked), np.float32)
                fields: dict[str, Any] = {"id": f"r{width}"} if named else {}
                if way < 2:
                    ways.grpc(message(array, typed=way == 1, **fields))
                else:
                    ways.http(body(array, binary=way == 3, **fields))
    finally:
        models.close()


CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.binary(max_size=2)), min_size=1, max_size=3)


@given(st.sampled_from(["grpc", "typed", "json", "binary"]), CHANGES)
@examples(600)
def test_a_damaged_request_is_answered_the_same(kind: str, changes: list[tuple[int, int, bytes]]) -> None:
    models = V2Fixture()
    try:
        add(models)
        with asyncio.Runner() as runner:
            ways = TwoWays(models, runner.get_loop())
            sent = rows(1.5, 2.5)
            if kind in ("grpc", "typed"):
                data, length = message(sent, typed=kind == "typed", id="seven"), None
            else:
                data, length = body(sent, binary=kind == "binary", id="seven")
            answer = (lambda one: ways.grpc(one)) if kind in ("grpc", "typed") else lambda one: ways.http((one, length))
            assert answer(data)[0] == "answer"
            damaged = bytearray(data)
            for position, removed, added in changes:
                at = position % len(damaged) if damaged else 0
                damaged[at : at + removed] = added
            answer(bytes(damaged))
            assert answer(data)[0] == "answer"
            assert ways.taken >= 1
    finally:
        models.close()


# What changes below a form that is remembered.


def test_a_new_version_with_another_signature_is_checked_again(ways: TwoWays) -> None:
    add(ways.models)
    data, sent = message(rows(1, 2)), body(rows(1, 2))
    for _ in range(2):
        assert (ways.grpc(data)[0], ways.http(sent)[0]) == ("answer", "answer")
    add(ways.models, DataType.INT32, version=2)
    for _ in range(2):
        assert "data-type is 'FP32'" in ways.grpc(data)[1][1]
        assert "data-type is 'FP32'" in ways.http(sent)[1][1]
    add(ways.models, version=3)
    assert (ways.grpc(data)[0], ways.http(sent)[0]) == ("answer", "answer")


def test_a_batch_limit_that_shrinks_is_kept(ways: TwoWays) -> None:
    servable = add(ways.models)
    data = message(rows(1, 2, 3, 4))
    for _ in range(2):
        assert ways.grpc(data)[0] == "answer"
    servable.traits = Traits("test", 1)
    assert "batch-size must be <= 1" in ways.grpc(data)[1][1]


def test_a_model_that_goes_is_not_found_in_v2s_words(ways: TwoWays) -> None:
    add(ways.models)
    data, sent = message(rows(1, 2), model_version="1"), body(rows(1, 2))
    for _ in range(2):
        assert (ways.grpc(data)[0], ways.http(sent)[0]) == ("answer", "answer")
    ways.models.servables.clear()
    assert "unknown model: 'm'" in ways.grpc(data)[1][1]
    assert "unknown model: 'm'" in ways.http(sent)[1][1]


def test_a_model_that_becomes_decoupled_is_refused(ways: TwoWays) -> None:
    ways.models.add_echo("m", DataType.INT32, SymbolicDim("n"))
    data = message(np.ones(2, np.int32), datatype="INT32")
    for _ in range(2):
        assert ways.grpc(data)[0] == "answer"
    ways.models.add("m", Repeater())
    assert "decoupled" in ways.grpc(data)[1][1]


def test_a_failing_model_fails_the_same(ways: TwoWays) -> None:
    def fail_at_13(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if (inputs["IN"] == 13).any():
            raise ServingError(StatusCode.INTERNAL, "thirteen brings bad luck")
        return twice(inputs)

    ways.models.add_function("m", echo_signature(DataType.FLOAT, BATCH, 2), fail_at_13, 8)
    for value in (1, 13, 2):
        outcome = ways.grpc(message(rows(value, 2)))
        assert outcome[0] == ("error" if value == 13 else "answer")


def test_an_input_with_a_default_that_is_left_out_is_filled_in(ways: TwoWays) -> None:
    two = Signature(
        (TensorSpec("IN", DataType.FLOAT, (BATCH, 2)), TensorSpec("MORE", DataType.FLOAT, (BATCH, 2))),
        (TensorSpec("OUT", DataType.FLOAT, (BATCH, 2)),),
        defaults={"MORE": np.array([10, 20], np.float32)},
    )
    ways.models.add_function("m", two, lambda inputs: {"OUT": inputs["IN"] + inputs["MORE"]}, 8)
    for value in range(3):
        _, answer = ways.http(body(rows(value, 2)))
        assert json.loads(answer.body)["outputs"][0]["data"] == [value + 10, 22]
    assert ways.taken


def test_only_the_outputs_that_are_wanted_come_in_their_order(ways: TwoWays) -> None:
    ways.models.add_simple("m")
    tensors = [
        {"name": name, "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]} for name in ("INPUT1", "INPUT0")
    ]
    for wanted in (["OUTPUT1", "OUTPUT0"], ["OUTPUT1"], []):
        sent = json.dumps({"inputs": tensors, "outputs": [{"name": name} for name in wanted]}).encode(), None
        for _ in range(2):
            _, answer = ways.http(sent)
            names = [output["name"] for output in json.loads(answer.body)["outputs"]]
            assert names == (wanted or ["OUTPUT0", "OUTPUT1"])
    assert ways.taken == 3


# Counts.


def test_requests_of_the_fast_path_are_counted_like_others(ways: TwoWays) -> None:
    add(ways.models)
    for value in range(4):
        ways.grpc(message(rows(value, 2)))
    assert ways.taken == 3
    assert ways.models.count("OK", "m") == 8
    add(ways.models, DataType.INT32, version=2)
    ways.grpc(message(rows(7, 2)))
    assert ways.models.count("INVALID_ARGUMENT", "m", "2") == 2


def test_clients_that_never_repeat_are_not_learned_for_ever(ways: TwoWays) -> None:
    add(ways.models)
    texts = [body(rows(1, 2), parameters={}, nonce=str(index)) for index in range(3 * LESSONS)]
    for sent in texts:
        ways.http(sent)
    ways.taken = 0
    for sent in texts:
        ways.http(sent)
    assert LESSONS <= ways.taken < 2 * LESSONS
    for _ in range(40):
        ways.grpc(message(rows(1, 2)))
    assert ways.fast.grpc.find(message(rows(3, 4))) is not None
