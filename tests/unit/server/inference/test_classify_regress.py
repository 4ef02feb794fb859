"""Classify, Regress and MultiInference over the Predictor: what reaches the model, and what the answer says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.support.servers.examples import rows
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall, Traits
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import (
    CLASSIFY_METHOD,
    PREDICT_METHOD,
    REGRESS_METHOD,
    DataType,
    Signature,
    SymbolicDim,
    TensorSpec,
)
from tfs_lite.core.status import ServingError, Status, StatusCode, not_found
from tfs_lite.metrics.requests import RequestMetrics
from tfs_lite.protocols.messages import Input, Message, MultiInferenceRequest
from tfs_lite.server.inference.classify_regress import COMFORTABLE_VALUES, Inferences
from tfs_lite.server.inference.predictor import Predictor
from tfs_lite.server.runtime.event_loop import BackgroundRunner

T = TypeVar("T")
BATCH = SymbolicDim("batch")
ROOMS = TensorSpec("rooms", DataType.FLOAT, (BATCH,))
SIZE = TensorSpec("size", DataType.FLOAT, (BATCH, 2))
HOUSE = (ROOMS, SIZE)
SCORES = TensorSpec("scores", DataType.FLOAT, (BATCH, 2))
CLASSES = TensorSpec("classes", DataType.STRING, (BATCH, 2))
PRICE = TensorSpec("outputs", DataType.FLOAT, (BATCH,))
SENT = rows({"rooms": [2], "size": [3.0, 4.0]}, {"rooms": [1], "size": [5.0, 6.0]})


class Estate:
    """A servable that answers at once: two classes and a price for every row."""

    traits = Traits("test")
    signatures: ClassVar[dict[str, Signature]] = {
        "serving_default": Signature(HOUSE, (SCORES, CLASSES, TensorSpec("hidden")), CLASSIFY_METHOD),
        "price": Signature(HOUSE, (PRICE,), REGRESS_METHOD),
        "small": Signature((ROOMS,), (PRICE,), REGRESS_METHOD),
        "undeclared": Signature(HOUSE, ()),
        "half": Signature(HOUSE, (PRICE,), PREDICT_METHOD, {"size": np.array([1, 1], np.float32)}),
        "wrong": Signature(HOUSE, (TensorSpec("y"),)),
    }

    def __init__(self) -> None:
        self.calls: list[PredictCall] = []
        self.failing = ""

    def submit(self, call: PredictCall) -> None:
        self.calls.append(call)
        if call.signature == self.failing:
            call.on_done(Status(StatusCode.INTERNAL, "the model fell over"))
            return
        rooms: Any = call.inputs["rooms"]
        labels = np.empty((len(rooms), 2), object)
        labels[:] = [b"flat", b"house"]
        answers = {"classes": labels, "scores": np.stack([rooms, -rooms], 1), "outputs": rooms * 100, "hidden": rooms}
        call.on_done({name: answers[name] for name in call.outputs or answers})

    def cancel(self, call: PredictCall) -> None:
        """Every call is answered by now."""

    def close(self) -> None:
        """Nothing to do."""


class House:
    def __init__(self, background: BackgroundRunner | None = None, check_method_names: bool = False) -> None:
        self.servable = Estate()
        self.lookups: list[ModelRef] = []
        self.counted: list[tuple[str, int]] = []
        self.metrics = RequestMetrics(CollectorRegistry(), lambda name: name == "m")
        self.background = background
        self.check_method_names = check_method_names

    def inferences(self) -> Inferences:
        """A predictor belongs to one event loop, and every request here has a loop of its own."""
        return Inferences(
            Predictor(self.lookup, self.metrics),
            self.check_method_names,
            on_examples=lambda model, examples: self.counted.append((model, examples)),
            background=self.background,
        )

    def lookup(self, ref: ModelRef) -> ServableHandle:
        self.lookups.append(ref)
        if ref.name != "m":
            raise not_found(f"Servable not found for request: Latest({ref.name})")
        return ServableHandle(ServableId("m", 7), self.servable, lambda: None)

    def classify(self, input: Message, signature: str = "", model: str = "m") -> Message:
        return self._ask(Inferences.classify, model, signature, input)

    def regress(self, input: Message, signature: str = "price", model: str = "m") -> Message:
        return self._ask(Inferences.regress, model, signature, input)

    def multi(self, *tasks: tuple[str, str], input: Message = SENT, **spec: Any) -> Message:
        """Tasks are signature and method."""
        request = MultiInferenceRequest(input=input)
        for key, method in tasks:
            request.tasks.add(model_spec={"name": "m", "signature_name": key, **spec}, method_name=method)

        async def main() -> Message:
            with self.metrics.record("MultiInference", "m") as record:
                return await self.inferences().multi_inference(request, record, None)

        return asyncio.run(main())

    def _ask(self, method: Any, model: str, signature: str, input: Message) -> Message:
        async def main() -> Message:
            with self.metrics.record("Classify", model) as record:
                return await method(self.inferences(), ModelRef(model, signature=signature), input, record, None)

        return asyncio.run(main())


@pytest.fixture
def house() -> House:
    return House()


def refused(call: Callable[[], Message], code: StatusCode = StatusCode.INVALID_ARGUMENT) -> str:
    with pytest.raises(ServingError) as raised:
        call()
    assert raised.value.code is code
    return str(raised.value)


def spec(answer: Message) -> tuple[str, int, str]:
    found = answer.model_spec
    assert found.WhichOneof("version_choice") == "version"
    return found.name, found.version.value, found.signature_name


def classes(result: Message) -> list[list[tuple[str, float]]]:
    return [[(item.label, item.score) for item in row.classes] for row in result.classifications]


def values(result: Message) -> list[float]:
    return [item.value for item in result.regressions]


# One signature


def test_classify_answers_every_example_with_labels_and_scores(house: House) -> None:
    answer = house.classify(SENT)
    assert spec(answer) == ("m", 7, "serving_default")
    assert classes(answer.result) == [[("flat", 2), ("house", -2)], [("flat", 1), ("house", -1)]]
    (call,) = house.servable.calls
    assert call.outputs == ("classes", "scores")
    assert {name: array.tolist() for name, array in call.inputs.items()} == {  # type: ignore[attr-defined]
        "rooms": [2, 1],
        "size": [[3, 4], [5, 6]],
    }


def test_regress_answers_every_example_with_a_value(house: House) -> None:
    answer = house.regress(SENT)
    assert spec(answer) == ("m", 7, "price")
    assert values(answer.result) == [200, 100]


def test_outputs_that_are_not_declared_are_looked_for_in_the_answer(house: House) -> None:
    assert values(house.regress(SENT, "undeclared").result) == [200, 100]
    assert classes(house.classify(SENT, "undeclared").result)[1][0] == ("flat", 1)
    assert [call.outputs for call in house.servable.calls] == [(), ()]


def test_features_that_are_missing_come_from_the_defaults(house: House) -> None:
    assert values(house.regress(rows({"rooms": [3]}, {"rooms": [4], "size": [2.0, 2.0]}), "half").result) == [300, 400]
    assert house.servable.calls[0].inputs["size"].tolist() == [[1, 1], [2, 2]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "words"),
    [("classify", "at least one of classes, scores"), ("regress", "No regression outputs found in SignatureDef")],
)
def test_checks_come_in_the_known_order(house: House, method: str, words: str) -> None:
    call, empty = getattr(house, method), Input()
    assert "Latest(nobody)" in refused(lambda: call(empty, "nope", "nobody"), StatusCode.NOT_FOUND)
    assert "No signature was found with the name: nope" in refused(lambda: call(empty, "nope"))
    assert words in refused(lambda: call(empty, "wrong"))
    assert refused(lambda: call(empty, "undeclared")) == "Input is empty"
    assert "rooms is missing in example 0" in refused(lambda: call(rows({}), "undeclared"))
    assert house.servable.calls == []


def test_method_names_are_checked_where_the_server_says_so(house: House) -> None:
    strict = House(check_method_names=True)
    assert "Expected regression signature method_name" in refused(lambda: strict.regress(SENT, "undeclared"))
    assert "Expected classification signature method_name" in refused(lambda: strict.classify(SENT, "undeclared"))
    assert values(strict.regress(SENT, "price").result) == values(house.regress(SENT, "undeclared").result)


def test_failure_of_the_model_is_the_answer(house: House) -> None:
    house.servable.failing = "price"
    assert refused(lambda: house.regress(SENT), StatusCode.INTERNAL) == "the model fell over"


# Several signatures


def test_one_version_answers_every_task_in_the_order_asked(house: House) -> None:
    answer = house.multi(("small", REGRESS_METHOD), ("", CLASSIFY_METHOD), ("price", REGRESS_METHOD))
    assert [spec(result) for result in answer.results] == [
        ("m", 7, "small"),
        ("m", 7, "serving_default"),
        ("m", 7, "price"),
    ]
    assert [result.WhichOneof("result") for result in answer.results] == [
        "regression_result",
        "classification_result",
        "regression_result",
    ]
    assert values(answer.results[0].regression_result) == [200, 100]
    assert classes(answer.results[1].classification_result)[0] == [("flat", 2), ("house", -2)]
    assert len(house.lookups) == 1
    assert house.counted == [("m", 2)]


def test_tasks_that_take_the_same_inputs_share_the_arrays(house: House) -> None:
    house.multi(("", CLASSIFY_METHOD), ("small", REGRESS_METHOD), ("price", REGRESS_METHOD), ("half", REGRESS_METHOD))
    first, small, same, defaulted = (call.inputs for call in house.servable.calls)
    assert first["size"] is same["size"]
    assert set(small) == {"rooms"}
    assert defaulted["size"] is not first["size"]


def test_first_task_chooses_the_version(house: House) -> None:
    house.multi(("price", REGRESS_METHOD), version={"value": 3})
    assert [(ref.name, ref.version) for ref in house.lookups] == [("m", 3)]


@pytest.mark.parametrize(
    ("tasks", "input", "words"),
    [
        ((), SENT, "ModelSpec has no name specified"),
        ((("price", REGRESS_METHOD),) * 2, SENT, "Duplicate evaluation of signature: price"),
        ((("price", REGRESS_METHOD), ("no", REGRESS_METHOD)), SENT, "Requested signature not found in model graph: no"),
        ((("price", REGRESS_METHOD), ("wrong", REGRESS_METHOD)), Input(), "No regression outputs found"),
        ((("price", REGRESS_METHOD),), Input(), "Input is empty"),
        ((("small", REGRESS_METHOD), ("price", REGRESS_METHOD)), rows({"rooms": [1]}), "size is missing in example 0"),
    ],
)
def test_any_mistake_fails_the_whole_request(house: House, tasks: Any, input: Message, words: str) -> None:
    assert words in refused(lambda: house.multi(*tasks, input=input))
    assert house.servable.calls == []
    assert house.counted == []


def test_failure_of_one_task_fails_the_others(house: House) -> None:
    house.servable.failing = "price"
    tasks = ("small", REGRESS_METHOD), ("price", REGRESS_METHOD)
    assert refused(lambda: house.multi(*tasks), StatusCode.INTERNAL) == "the model fell over"
    assert house.counted == []


# Large ones


class Watched(BackgroundRunner):
    """Notes which threads worked."""

    def __init__(self) -> None:
        super().__init__("inference", 1, 8)
        self.threads: list[str] = []

    async def run(self, work: Callable[[], T]) -> T:
        def noted() -> T:
            self.threads.append(threading.current_thread().name)
            return work()

        return await super().run(noted)


@pytest.fixture
def watched() -> Iterator[Watched]:
    runner = Watched()
    yield runner
    runner.close()


def test_large_requests_are_read_and_answered_beside_the_event_loop(watched: Watched, house: House) -> None:
    other = House(watched)
    assert other.regress(SENT) == house.regress(SENT)
    assert watched.threads == []
    many = rows(*({"rooms": [number], "size": [0.0, 0.0]} for number in range(COMFORTABLE_VALUES + 1)))
    answer = other.regress(many)
    assert answer == house.regress(many)
    assert len(answer.result.regressions) == COMFORTABLE_VALUES + 1
    assert len(watched.threads) == 2
    assert all(name.startswith("tfs-inference") for name in watched.threads)


def test_mistakes_of_large_requests_are_told_too(watched: Watched) -> None:
    many = rows(*[{"rooms": [1]}] * COMFORTABLE_VALUES)
    assert "size is missing in example 0" in refused(lambda: House(watched).regress(many))
