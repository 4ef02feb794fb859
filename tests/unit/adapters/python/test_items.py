import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tests.support.servers.platforms import write_python
from tfs_lite.adapters.python.items import MAX_WORDS, ItemSteps
from tfs_lite.adapters.python.model import open_python
from tfs_lite.adapters.signatures import sign
from tfs_lite.config.model import ModelSettings, ModelTensor
from tfs_lite.config.signatures import ModelSignature
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import StatusCode
from tfs_lite.testing.lifecycle.clock import VirtualClock

LATER = time.monotonic() + 3600

AGE = ModelTensor(name="age", data_type=DataType.INT64, dims=())
NAME = ModelTensor(name="name", data_type=DataType.STRING, dims=())
SCORE = ModelTensor(name="score", data_type=DataType.FLOAT, dims=())
WORD = ModelTensor(name="word", data_type=DataType.STRING, dims=())
PERSON = ModelSettings(max_batch_size=8, input=(AGE, NAME), output=(SCORE, WORD))

VALIDATED = """
from typing import Annotated

import torch
from pydantic import BaseModel, Field


class Person(BaseModel):
    age: Annotated[int, Field(ge=0, le=150)]
    name: str


class Model:
    Input = Person

    def __init__(self, context):
        pass

    def preprocess(self, person):
        assert isinstance(person, Person)
        return {"x": torch.tensor([person.age, len(person.name)], dtype=torch.float32)}

    def predict(self, inputs):
        return {"total": inputs["x"].sum(1)}

    def postprocess(self, row):
        return {"score": float(row["total"]), "word": "long" if row["total"] > 30 else "short"}
"""


def people(*pairs):
    """A request: one row for each (age, name)."""
    ages, names = zip(*pairs, strict=True)
    return {"age": np.array(ages, np.int64), "name": np.array([name.encode() for name in names], object)}


def steps(preprocess="", postprocess="", head="", settings=None):
    """Source of a class with these bodies, whose predict hands back what it gets; and its settings: x, y floats."""
    lines = ["import numpy as np", "import sys", "import torch", head, "class Model:"]
    lines += ["    def __init__(self, context): pass", "    def predict(self, inputs): return dict(inputs)"]
    for name, body in (("preprocess", preprocess), ("postprocess", postprocess)):
        if body:
            lines += [f"    def {name}(self, item):", *(f"        {line}" for line in body.splitlines())]
    x = ModelTensor(name="x", data_type=DataType.FLOAT, dims=(2,))
    y = ModelTensor(name="y", data_type=DataType.FLOAT, dims=(2,))
    outputs = (y,) if postprocess else ()
    return "\n".join(lines), settings or ModelSettings(max_batch_size=8, input=(x,), output=outputs)


X = {"x": np.array([[1, 2], [3, 4], [5, 6]], np.float32)}


def returning(declared, value):
    """Source and settings of a class whose postprocess returns this value as the declared output y."""
    x = ModelTensor(name="x", data_type=DataType.FLOAT, dims=(2,))
    y = ModelTensor(name="y", data_type=declared, dims=())
    settings = ModelSettings(max_batch_size=8, input=(x,), output=(y,))
    return steps(postprocess=f"return {{'y': {value}, 'more': 1}}", settings=settings)


def through(model, inputs):
    """All steps of one request."""
    batch = model.run("", model.preprocess("", inputs, LATER), ())
    return model.postprocess("", batch, LATER)


def test_items_are_validated_prepared_and_finished_one_by_one(opened):
    model = opened(VALIDATED, PERSON)
    signature = model.signatures[DEFAULT_SIGNATURE]
    assert (signature.input_names, signature.output_names) == (("age", "name"), ("score", "word"))
    assert model.has_item_steps
    batch = model.preprocess("", people((30, "Ada"), (7, "Bo")), LATER)
    assert {name: (value.dtype, value.tolist()) for name, value in batch.items()} == {
        "x": (np.dtype(np.float32), [[30, 3], [7, 2]])
    }
    answer = model.postprocess("", model.run("", batch, ()), LATER)
    assert (answer["score"].dtype, answer["score"].tolist()) == (np.dtype(np.float32), [33, 9])
    assert answer["word"].tolist() == [b"long", b"short"]


def test_class_without_steps_has_none(opened):
    source, settings = steps()
    model = opened(source, settings)
    assert not model.has_item_steps
    assert through(model, X)["x"].tolist() == X["x"].tolist()


def test_refusal_names_item_and_field_in_the_words_of_the_validator(opened):
    model = opened(VALIDATED, PERSON)
    message = refusal(model.preprocess, "", people((30, "Ada"), (-1, "Bo")), LATER)
    assert message == "model m: item 1: age: Input should be greater than or equal to 0"
    bad = {"age": np.array([200]), "name": np.array([b"\xff\xfe"], object)}
    words = "age: Input should be less than or equal to 150; name: Input should be a valid string"
    assert words in refusal(model.preprocess, "", bad, LATER)


@pytest.mark.parametrize(("count", "words"), [(5, "and 2 more"), (1000, "1000 of its values are refused")])
def test_refusal_of_many_values_is_short(opened, count, words):
    head = "from pydantic import BaseModel, PositiveFloat\nclass Row(BaseModel):\n    x: list[PositiveFloat]"
    source, _ = steps("return {'x': 0.0}", head=head)
    x = ModelTensor(name="x", data_type=DataType.FLOAT, dims=(-1,))
    model = opened(source + "\nModel.Input = Row\n", ModelSettings(max_batch_size=2, input=(x,)))
    message = refusal(model.preprocess, "", {"x": np.full((1, count), -1, np.float32)}, LATER)
    assert words in message
    assert len(message) <= MAX_WORDS


def test_refusal_in_a_validators_own_long_words_is_cut(opened):
    head = (
        "from pydantic import BaseModel, field_validator\n"
        "class Row(BaseModel):\n"
        "    x: list[float]\n"
        "    @field_validator('x')\n"
        "    @classmethod\n"
        "    def no(cls, value): raise ValueError('no\\nnever ' * 1000)\n"
    )
    source, settings = steps("return {'x': 0.0}", head=head)
    message = refusal(opened(source + "\nModel.Input = Row\n", settings).preprocess, "", X, LATER)
    assert message.startswith("model m: item 0: x: Value error, no never")
    assert len(message) <= MAX_WORDS
    assert "\n" not in message


def test_validation_alone_leaves_the_inputs_as_they_are(opened):
    source = VALIDATED.partition("    def preprocess")[0] + (
        "    def predict(self, inputs):\n        return {'score': inputs['age'] * 2.0}\n"
    )
    model = opened(source, ModelSettings(max_batch_size=8, input=(AGE, NAME), output=(SCORE,)))
    request = people((30, "Ada"), (7, "Bo"))
    prepared = model.preprocess("", request, LATER)
    assert prepared["age"] is request["age"]
    assert through(model, request)["score"].tolist() == [60, 14]
    refusal(model.preprocess, "", people((30, "Ada"), (-7, "Bo")), LATER)


def test_preprocess_without_validator_gets_tensors_and_bytes(opened):
    source, _ = steps(
        "assert isinstance(item['x'], torch.Tensor) and item['x'].shape == (2,)\n"
        "assert item['one'].shape == () and item['text'].__class__ is bytes\n"
        "assert isinstance(item['texts'], np.ndarray) and item['texts'].dtype == object\n"
        "return {'sum': item['x'].sum() + item['one'], 'all': item['text'] + b''.join(item['texts'])}"
    )
    declared = (("x", DataType.BFLOAT16, (2,)), ("one", DataType.INT32, ()))
    texts = (("text", DataType.STRING, ()), ("texts", DataType.STRING, (2,)))
    inputs = tuple(ModelTensor(name=name, data_type=dtype, dims=dims) for name, dtype, dims in (*declared, *texts))
    model = opened(source, ModelSettings(max_batch_size=8, input=inputs))
    request = {
        "x": np.array([[1, 2]], ml_dtypes.bfloat16),
        "one": np.array([3], np.int32),
        "text": np.array([b"a\x00"], object),
        "texts": np.array([[b"b\x00", b"c"]], object),
    }
    prepared = model.preprocess("", request, LATER)
    assert prepared["sum"].dtype == ml_dtypes.bfloat16
    assert prepared["sum"].tolist() == [6]
    assert prepared["all"].tolist() == [b"a\x00b\x00c"]
    assert through(model, request)["all"].tolist() == [b"a\x00b\x00c"]


def test_items_may_be_written_to_and_the_request_stays_as_it_is(opened):
    source, settings = steps("item['x'] += 1\nreturn {'x': item['x']}", "item['x'] += 1\nreturn {'y': item['x']}")
    request = {"x": X["x"].copy()}
    request["x"].flags.writeable = False
    assert through(opened(source, settings), request)["y"].tolist() == (X["x"] + 2).tolist()
    assert request["x"].tolist() == X["x"].tolist()


@pytest.mark.parametrize(
    ("value", "dtype", "row"),
    [
        ("1", np.int64, 1),
        ("1.5", np.float32, 1.5),
        ("True", np.bool_, True),
        ("[1, 2]", np.int64, [1, 2]),
        ("np.float64(0.5)", np.float64, 0.5),
        ("np.array([1, 2], np.uint16)", np.uint16, [1, 2]),
        ("torch.ones(2, dtype=torch.bfloat16)", ml_dtypes.bfloat16, [1, 1]),
        ("torch.ones(2, requires_grad=True)", np.float32, [1, 1]),
        ("'héé'", object, "héé".encode()),
        ("b'a\\x00'", object, b"a\x00"),
        ("['a', 'b']", object, [b"a", b"b"]),
    ],
)
def test_preprocess_may_return_any_kind_of_value(opened, value, dtype, row):
    source, settings = steps(f"return {{'v': {value}}}")
    (array,) = opened(source, settings).preprocess("", X, LATER).values()
    assert array.dtype == dtype
    assert array.tolist() == [row] * 3
    assert array.flags.c_contiguous


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return {'v': torch.zeros(int(item['x'][0]))}", "returned v as float[3] for item 1, but as float[1] for item"),
        ("return {'v': 1 if item['x'][0] > 1 else 1.0}", "returned v as int64[] for item 1, but as float[] for item 0"),
        ("return {'v': 1} if item['x'][0] > 1 else {'w': 1}", "returned v for item 1, but w for item 0"),
        ("return {}", "preprocess() returned an empty dict"),
        ("return 1", "preprocess() returned int for item 0, expected a dict"),
        ("return {'v': object()}", "preprocess() returned v for item 0, which cannot be used"),
        ("return {'v': [1, [2, 3]]}", "preprocess() returned v for item 0, which cannot be used"),
        ("return {'v': 2 ** 70}", "preprocess() returned v for item 0, which cannot be used"),
        ("raise KeyError('v')", "KeyError"),
        ("sys.exit(3)", "raised SystemExit"),
    ],
)
def test_preprocess_that_misbehaves_is_the_models_failure(opened, body, reason):
    source, settings = steps(body)
    model = opened(source, settings)
    message = refusal(model.preprocess, "", X, LATER, code=StatusCode.INTERNAL)
    assert reason in message
    assert len(message) <= MAX_WORDS + 100


def test_value_error_of_preprocess_refuses_the_item_in_its_words(opened):
    source, settings = steps(
        "if item['x'][0] > 1: raise ValueError('no such row in /srv/secret/table.csv')\nreturn item"
    )
    assert refusal(opened(source, settings).preprocess, "", X, LATER) == "model m: item 1: no such row in table.csv"


def test_memory_that_runs_out_in_a_step_is_named(opened):
    source, settings = steps("raise MemoryError('too large')")
    refusal(opened(source, settings).preprocess, "", X, LATER, code=StatusCode.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('broken')", "ValueError: broken"),
        ("return {'z': item['x']}", "postprocess() did not return output y for item 0; it returned: z"),
        ("return {'y': item['x'][:1]}", "the model returned output y as float[3,1], expected float[-1,2]"),
        ("return {'y': ['1', '2']}", "the model returned output y as string[3,2], expected float[-1,2]"),
        ("return {'y': [1.5, '2']}", "postprocess() returned y for item 0, which cannot be used"),
        ("return {'y': item['x'].int()}", "the model returned output y as int32[3,2], expected float[-1,2]"),
        ("return None", "postprocess() returned NoneType for item 0, expected a dict"),
    ],
)
def test_postprocess_that_misbehaves_is_the_models_failure(opened, body, reason):
    source, settings = steps(postprocess=body)
    assert reason in refusal(opened(source, settings).postprocess, "", X, LATER, code=StatusCode.INTERNAL)


@pytest.mark.parametrize(
    ("declared", "value", "expected"),
    [
        (DataType.DOUBLE, "0.1", 0.1),
        (DataType.HALF, "1", 1.0),
        (DataType.UINT8, "200", 200),
        (DataType.BFLOAT16, "1.5", 1.5),
        (DataType.STRING, "b'a\\x00'", b"a\x00"),
    ],
)
def test_plain_numbers_get_the_declared_type(opened, declared, value, expected):
    answer = opened(*returning(declared, value)).postprocess("", X, LATER)
    assert list(answer) == ["y"]
    assert answer["y"].tolist() == [expected] * 3


@pytest.mark.parametrize(("declared", "value"), [(DataType.INT32, "1.5"), (DataType.UINT8, "300")])
def test_plain_number_that_the_declared_type_cannot_hold_is_not_rounded(opened, declared, value):
    model = opened(*returning(declared, value))
    refusal(model.postprocess, "", X, LATER, code=StatusCode.INTERNAL)


def test_undeclared_outputs_are_whatever_postprocess_returns(opened):
    source, settings = steps(postprocess="return {'a': item['x'].sum(), 'b': 'text'}")
    x = settings.input
    answer = through(opened(source, ModelSettings(max_batch_size=8, input=x)), X)
    assert answer["a"].tolist() == [3, 7, 11]
    assert answer["b"].tolist() == [b"text"] * 3


@pytest.mark.parametrize("result", ["item['v'][:1]", "item['v'].sum()", "1"])
def test_predict_that_loses_rows_is_not_believed(opened, result):
    source, settings = steps("return {'v': item['x']}")
    model = opened(source.replace("return dict(inputs)", f"item = inputs; return {{'w': {result}}}"), settings)
    message = refusal(through, model, X, code=StatusCode.INTERNAL)
    assert "predict() of model m returned w of shape" in message
    assert "for a batch of 3" in message


def test_failure_of_predict_on_what_preprocess_made_is_the_models(opened):
    source, _ = steps("return {'v': item['x']}")
    x = ModelTensor(name="x", data_type=DataType.FLOAT, dims=(-1,))
    source = source.replace("return dict(inputs)", "return {'w': inputs['v'] @ torch.ones(7)}")
    refusal(through, opened(source, ModelSettings(max_batch_size=8, input=(x,))), X, code=StatusCode.INTERNAL)


def test_request_without_items_is_refused(opened):
    model = opened(VALIDATED, PERSON)
    empty = {"age": np.zeros(0, np.int64), "name": np.zeros(0, object)}
    assert "the request has none" in refusal(model.preprocess, "", empty, LATER)


def test_inputs_with_unlike_numbers_of_items_are_refused(opened):
    flexible = [ModelTensor(name=name, data_type=DataType.FLOAT, dims=(-1,)) for name in "ab"]
    source, settings = steps("return item", settings=ModelSettings(input=tuple(flexible)))
    request = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}
    assert refusal(opened(source, settings).preprocess, "", request, LATER) == "input b has 3 items, but input a has 2"


def test_steps_end_when_the_deadline_passes_between_items():
    clock = VirtualClock()
    seen = []

    class Slow:
        def preprocess(self, item):
            seen.append(item)
            clock.advance(1.0)
            return {"v": 1}

        def postprocess(self, row):
            clock.advance(1.0)
            return row

    signature = Signature((TensorSpec("x", DataType.FLOAT, (SymbolicDim("batch"), 2)),), ())
    slow = ItemSteps("m", Slow(), signature, clock.monotonic)
    assert "preprocess() of model m reached item 2 of 3" in refusal(
        slow.preprocess, X, clock.monotonic() + 1.5, code=StatusCode.DEADLINE_EXCEEDED
    )
    assert len(seen) == 2
    refusal(slow.postprocess, X, clock.monotonic() + 1.5, code=StatusCode.DEADLINE_EXCEEDED)
    assert slow.postprocess(X, None)["x"].tolist() == X["x"].tolist()


def test_steps_run_beside_predict_and_each_other(opened):
    head = "import threading\nbarrier = threading.Barrier(3)"
    source, settings = steps("barrier.wait(30)\nreturn item", "barrier.wait(30)\nreturn {'y': item['x']}", head)
    source = source.replace("return dict(inputs)", "barrier.wait(30); return dict(inputs)")
    model, one = opened(source, settings), {"x": X["x"][:1]}
    with ThreadPoolExecutor(3) as pool:
        calls = (
            pool.submit(model.preprocess, "", one, LATER),
            pool.submit(model.run, "", one, ()),
            pool.submit(model.postprocess, "", one, LATER),
        )
        assert [list(call.result(30)) for call in calls] == [["x"], ["x"], ["y"]]


def test_steps_record_no_gradients(opened):
    source, settings = steps("return {'v': torch.is_grad_enabled()}", "return {'y': [torch.is_grad_enabled()] * 2}")
    model = opened(source, settings)
    assert model.preprocess("", X, LATER)["v"].tolist() == [False] * 3
    assert model.postprocess("", X, LATER)["y"].tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ("Input = dict", "Input of class Model is no subclass of pydantic.BaseModel"),
        ("preprocess = 3", "preprocess of class Model is no ordinary method"),
        ("async def postprocess(self, row): return row", "postprocess of class Model is no ordinary method"),
    ],
)
def test_step_that_is_none_fails_the_load_and_the_object_is_closed(opened, member, reason):
    source, settings = steps()
    source += f"\n    {member}\n    def close(self): sys.modules['closed_by_test'] = sys\n"
    try:
        assert reason in refusal(opened, source, settings)
        assert sys.modules.pop("closed_by_test", None) is not None
    finally:
        sys.modules.pop("closed_by_test", None)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_tensor_without_rows_fails_the_load(opened, kind):
    rows = ModelTensor(name="x", data_type=DataType.FLOAT, dims=(-1, 2))
    fixed = ModelTensor(name="fixed", data_type=DataType.FLOAT, dims=(3,))
    source, _ = steps("return item")
    tensors = {"input": (rows,), "output": (rows,), kind: (rows, fixed)}
    assert f"{kind} fixed of the config has none: set max_batch_size" in refusal(
        opened, source, ModelSettings(**tensors)
    )


def test_closed_model_lets_go_of_the_object(opened):
    source, settings = steps("return item")
    model = opened(source + "\n    def close(self): pass\n", settings)
    user_object = model._object
    held = sys.getrefcount(user_object)
    model.close()
    model.close = lambda: None
    assert sys.getrefcount(user_object) < held
    assert not any(value is user_object for value in vars(model).values())


def test_signatures_exchange_names_around_the_steps(tmp_path, request_for):
    labelled = ModelTensor(name="probabilities", data_type=DataType.FLOAT, dims=(2,))
    wishes = {
        "named": ModelSignature(inputs={"years": "age", "who": "name"}, outputs={"result": "probabilities"}),
        "kinds": ModelSignature(
            method_name="classify", outputs={"scores": "probabilities"}, label_filename="labels.txt"
        ),
    }
    source = VALIDATED.partition("    def postprocess")[0] + (
        "    def postprocess(self, row):\n"
        "        return {'probabilities': torch.stack([row['total'], -row['total']])}\n"
    )
    settings = ModelSettings(max_batch_size=8, input=(AGE, NAME), output=(labelled,), signatures=wishes)
    directory = write_python(tmp_path, source)
    (directory / "labels.txt").write_text("old\nyoung\n")
    request = request_for(directory, settings, trusted=True)
    model = sign(open_python(request), request)
    try:
        asked = people((30, "Ada"))
        assert model.has_item_steps
        batch = model.preprocess("named", {"years": asked["age"], "who": asked["name"]}, LATER)
        assert list(batch) == ["x"]
        rows = model.run("", batch, ())
        assert list(rows) == ["total"]
        assert model.postprocess("named", rows, LATER)["result"].tolist() == [[33, -33]]
        kinds = model.postprocess("kinds", rows, LATER)
        assert {name: value.tolist() for name, value in kinds.items()} == {
            "scores": [[33, -33]],
            "classes": [[b"old", b"young"]],
        }
        refusal(model.preprocess, "", people((-1, "Ada")), LATER)
        assert model.stage("", {"x": ((1, 2), np.dtype(np.float32))}) is None
        assert (model.concurrency, model.useful_threads, model.recover(threading.Event())) == (1, 1, True)
    finally:
        model.close()


def test_unknown_signature_is_refused_in_every_step(opened):
    model = opened(VALIDATED, PERSON)
    for step in (model.preprocess, model.postprocess):
        refusal(step, "other", people((1, "A")), LATER, code=StatusCode.FAILED_PRECONDITION)


def test_models_own_failure_in_a_step_is_logged_once(opened, caplog):
    source, settings = steps("raise KeyError('v')")
    model = opened(source, settings)
    for _ in range(3):
        refusal(model.preprocess, "", X, LATER, code=StatusCode.INTERNAL)
    assert caplog.text.count("failed on a request") == 1
    assert torch.is_grad_enabled()
