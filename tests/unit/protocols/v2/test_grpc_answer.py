"""ModelInferResponses: those around cached bytes are those that protobuf writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import TABLE, Array
from tfs_lite.protocols.v2.grpc_answer import MAX_FRAMES, GrpcAnswers, answer_bytes
from tfs_lite.protocols.v2.messages import ModelInferResponse
from tfs_lite.protocols.v2.request import InferAnswer, SharedMemorySlice, WantedOutput

NUMBERS = np.arange(6, dtype=np.int64).reshape(2, 3)
EVERY = {
    **{
        row.config: np.arange(4).reshape(2, 2).astype(row.numpy)
        for row in TABLE
        if row.config and not row.numpy.hasobject
    },
    "no dimensions": np.array(2.5, np.float32),
    "no elements": np.zeros((0, 4), np.float32),
    "not contiguous": np.arange(12, dtype=np.int16).reshape(3, 4).T,
    "other byte order": np.arange(3, dtype=">f4"),
    "large": np.zeros(100_000, np.float32),
    "texts": np.array([b"a", "b"], object),
    "no type of V2": np.ones(2, np.complex64),
}


def answer(outputs: dict[str, Array], *wanted: WantedOutput, **rest: Any) -> InferAnswer:
    return InferAnswer(ServableId("m", 3), rest.pop("id", ""), outputs, {one.name: one for one in wanted}, **rest)


def outcome(write: Callable[[], bytes]) -> tuple[str, object]:
    try:
        return "answer", write()
    except ServingError as error:
        return "error", (error.code, str(error))


def assert_written_alike(answers: GrpcAnswers, one: InferAnswer) -> None:
    assert outcome(lambda: answers.write(one)) == outcome(lambda: answer_bytes(one))


@pytest.mark.parametrize("name", EVERY)
def test_an_answer_around_cached_bytes_is_that_of_protobuf(name: str) -> None:
    answers, array = GrpcAnswers(), EVERY[name]
    memory = WantedOutput("y", memory=SharedMemorySlice("r", 48))
    for _ in range(2):
        for request_id in ("", "7", "\u00fc" * 100):
            for chosen in ([], [WantedOutput("y")], [memory]):
                for outputs in ({"y": array}, {"y": array, "z": NUMBERS}, {"y": NUMBERS, "z": array}):
                    assert_written_alike(answers, answer(dict(outputs), *chosen, id=request_id))
    assert_written_alike(answers, answer({"y": array}, parameters={"speed": 2}))
    assert_written_alike(answers, answer({}, id="7"))


def test_a_client_finds_its_numbers_in_the_answer() -> None:
    response = ModelInferResponse.FromString(GrpcAnswers().write(answer({"y": NUMBERS}, id="7")))
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")
    assert (response.outputs[0].name, response.outputs[0].datatype, [*response.outputs[0].shape]) == (
        "y",
        "INT64",
        [2, 3],
    )
    assert response.raw_output_contents[0] == NUMBERS.tobytes()


def test_cached_bytes_are_for_one_version_its_shapes_and_its_types() -> None:
    answers = GrpcAnswers()
    for version in (3, 4):
        for array in (NUMBERS, NUMBERS.T, NUMBERS.astype(np.int32), NUMBERS[:1]):
            one = answer({"y": np.ascontiguousarray(array)})
            assert_written_alike(answers, replace(one, version=ServableId("m", version)))


def test_many_kinds_of_answers_are_written_alike() -> None:
    answers = GrpcAnswers()
    for size in range(2 * MAX_FRAMES):
        assert_written_alike(answers, answer({"y": np.ones(size, np.int8)}))
