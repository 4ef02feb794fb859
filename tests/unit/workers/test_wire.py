import json
from types import MappingProxyType

import numpy as np
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.model import Model, WorkerStatus
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, ShapeContract, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.protocols.conditions import read_conditions
from tfs_lite.workers.channel import ProtocolError
from tfs_lite.workers.wire import (
    MAX_TEXT,
    describe_model,
    plain_failure,
    plain_refusal,
    read_description,
    read_failure,
    read_refusal,
)

OWN = Signature(
    (
        TensorSpec("x", DataType.BFLOAT16, (SymbolicDim("batch", 8), 3, SymbolicDim("n"))),
        TensorSpec("t", DataType.STRING, (), "graph/t:0"),
        TensorSpec("any"),
    ),
    (TensorSpec("y", DataType.FLOAT, None),),
    "tensorflow/serving/classify",
    {"t": np.array([b"a", b"\0\xff"], dtype=object), "x": np.arange(6, dtype=np.float32).reshape(2, 3)},
    frozenset({"any"}),
    read_conditions([("x", 0)], ["n0 % 8 == 0"], complete=False),
    contract=ShapeContract.NONE,
)


class Described(Model):
    platform = "some"
    signatures = MappingProxyType({DEFAULT_SIGNATURE: OWN, "empty": Signature((), ())})
    has_item_steps = True
    worker = WorkerStatus(reason="r" * 10_000)

    def run(self, signature, inputs, outputs):
        raise NotImplementedError

    def close(self):
        raise NotImplementedError


def sent(plain):
    """As it is after it went through a socket."""
    return ormsgpack.unpackb(ormsgpack.packb(plain))


def test_description_arrives_as_it_was_with_its_size_known_or_not():
    found = read_description(sent(describe_model(Described(), 12, 34)))
    assert (found.platform, found.has_item_steps, found.resident_bytes, found.private_bytes) == ("some", True, 12, 34)
    assert found.reason == "r" * MAX_TEXT
    assert found.signatures == Described.signatures
    assert found.signatures[DEFAULT_SIGNATURE].contract is ShapeContract.NONE
    conditions = found.signatures[DEFAULT_SIGNATURE].conditions
    assert conditions is not None
    assert conditions.fault({"x": (8,)}) == ""
    assert "multiple of 8" in conditions.fault({"x": (9,)})
    defaults = found.signatures[DEFAULT_SIGNATURE].defaults
    assert defaults["t"].tolist() == [b"a", b"\0\xff"]
    np.testing.assert_array_equal(defaults["x"], OWN.defaults["x"])
    unknown = read_description(sent(describe_model(Described(), None)))
    assert (unknown.resident_bytes, unknown.private_bytes) == (None, None)


def broken(change):
    plain = sent(describe_model(Described(), 12))
    change(plain)
    return plain


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain.pop("platform"),
        lambda plain: plain.update(platform=7),
        lambda plain: plain.update(reason=None),
        lambda plain: plain.update(resident_bytes=-1),
        lambda plain: plain.update(resident_bytes="12"),
        lambda plain: plain.update(private_bytes=-1),
        lambda plain: plain.update(signatures=[]),
        lambda plain: plain.update(signatures={"s": None}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {}, [], [[["x", 0]], ["open(n0)"], True], "all"]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {}, [], [[["x", -1]], ["n0 > 1"], True], "all"]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {}, [], [[], ["n0 > 1"], True], "all"]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {}, [], None, "some"]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {}, [], None, []]}),
        lambda plain: plain.update(signatures={"s": [[], [], 5, {}]}),
        lambda plain: plain.update(signatures={"s": [[["x", 999, None]], [], "", {}]}),
        lambda plain: plain.update(signatures={"s": [[["x", 1, [-1]]], [], "", {}]}),
        lambda plain: plain.update(signatures={"s": [[["x", 1, [["b"]]]], [], "", {}]}),
        lambda plain: plain.update(signatures={"s": [[["x", 1, [["b", "max"]]]], [], "", {}]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {"x": [1, [3], b"ab"]}]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {"x": [1, [3], 12]}]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {"x": [7, [2], ["text"]]}]}),
        lambda plain: plain.update(signatures={"s": [[], [], "", {"x": [7, [5], [b"text"]]}]}),
    ],
)
def test_description_that_is_none_is_garbage(change):
    with pytest.raises(ProtocolError):
        read_description(broken(change))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_anything_else_is_garbage_too(raw):
    with pytest.raises(ProtocolError):
        read_description(raw)


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
def test_failure_arrives(code):
    failure = read_failure(*sent(plain_failure(code, "what was wrong")))
    assert (failure.code, str(failure)) == (code, "what was wrong")


@pytest.mark.parametrize("reason", [None, Reason.NEEDS_EXTRA, Reason.FILES_REFUSED])
def test_failure_of_an_opening_arrives_with_its_reason_and_its_detail(reason):
    error = ServingError(StatusCode.INVALID_ARGUMENT, "no module", reason)
    error.detail = "a stack"
    found = read_refusal(sent(plain_refusal(error)))
    assert (found.status, found.detail) == (error.status, "a stack")


def test_process_cannot_give_a_reason_that_is_not_about_its_files():
    error = ServingError(StatusCode.INVALID_ARGUMENT, "no module", Reason.GPU_FAILED)
    assert read_refusal(sent(plain_refusal(error))).status.reason is None
    assert read_refusal([3, "no module", "", Reason.GPU_FAILED.name]).status.reason is None


@pytest.mark.parametrize("answer", [None, [], [3, "m", "d"], [3, "m", "d", 1], [3, "m", None, ""], [0, "m", "d", ""]])
def test_failure_of_an_opening_that_is_none_is_garbage(answer):
    with pytest.raises(ProtocolError):
        read_refusal(answer)


def test_long_or_broken_message_is_made_fit():
    _, message = sent(plain_failure(StatusCode.INTERNAL, "x" * (MAX_TEXT + 1)))
    assert message == "x" * MAX_TEXT
    assert sent(plain_failure(StatusCode.INTERNAL, "a\ud800b")) == [StatusCode.INTERNAL, "a?b"]


@pytest.mark.parametrize(
    ("code", "message"),
    [(0, "ok"), (17, "x"), (-1, "x"), (True, "x"), ("13", "x"), (None, "x"), (13, None), (13, "x" * (MAX_TEXT + 1))],
)
def test_failure_that_is_none_is_garbage(code, message):
    with pytest.raises(ProtocolError):
        read_failure(code, message)


def test_description_is_plain_data_apart_from_defaults():
    plain = describe_model(Described(), 1)
    for signature in plain["signatures"].values():
        signature[3] = {}
    assert json.loads(json.dumps(plain)) == sent(plain)
