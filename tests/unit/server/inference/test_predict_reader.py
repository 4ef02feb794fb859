"""Requests that are known by their bytes are checked as thoroughly as any: once for every signature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest

from tests.support.servers.in_process import serving
from tests.support.servers.models import PYTHON_CONFIG, write_python_version
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ModelRef, VersionState
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.messages import Message, PredictRequest, PredictResponse
from tfs_lite.protocols.runs import Run, call_inputs
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.server.inference.predict_reader import ParsedPredict, PredictReader

BATCH = SymbolicDim("batch")
ROWS = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
Signatures = Mapping[str, Signature]


def signed(*inputs: TensorSpec, outputs: tuple[str, ...] = ("y",), **rest: Any) -> Signature:
    return Signature(inputs, tuple(TensorSpec(name, DataType.FLOAT, (BATCH,)) for name in outputs), **rest)


def x(width: int | None = 3, dtype: DataType = DataType.FLOAT, name: str = "x") -> TensorSpec:
    return TensorSpec(name, dtype, (BATCH,) if width is None else (BATCH, width))


ONE: Signatures = {"serving_default": signed(x())}


def predict(rows: Array = ROWS, *outputs: str, as_content: bool = False, **rest: Any) -> bytes:
    request = PredictRequest(model_spec={"name": "m", **rest}, output_filter=outputs)
    request.inputs["x"].CopyFrom(encode(rows, as_content))
    data: bytes = request.SerializeToString()
    return data


def serve(asked: ParsedPredict, signatures: Signatures, answered: bool = True) -> tuple[Run, Mapping[str, Array]]:
    """Everything that happens to a request before the model runs and after it has: its run and the model's inputs."""
    servable = cast("Servable", SimpleNamespace(signatures=signatures))
    (run,) = asked.plan(servable)
    signature = signatures[run.signature]
    inputs = run.inputs if run.fits is signature else call_inputs(signature, run)
    if answered:
        asked.answered()
    return run, inputs


def refusal(reader: PredictReader, data: bytes, signatures: Signatures) -> str:
    with pytest.raises(ServingError) as caught:
        serve(reader.read(data), signatures)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    return str(caught.value)


def taught(data: bytes, signatures: Signatures = ONE) -> PredictReader:
    """A reader that has answered this request before."""
    reader = PredictReader()
    run, _ = serve(reader.read(data), signatures)
    assert run.fits is None
    return reader


@pytest.mark.parametrize("as_content", [False, True], ids=["typed", "content"])
def test_request_of_a_known_layout_is_read_without_another_check(as_content: bool) -> None:
    reader = taught(predict(as_content=as_content))
    for rows in (ROWS, -ROWS, np.full((2, 3), np.nan, np.float32)):
        asked = reader.read(predict(rows, as_content=as_content))
        assert (asked.name, asked.model()) == ("m", ModelRef("m"))
        run, inputs = serve(asked, ONE)
        assert run.fits is ONE["serving_default"]
        assert (run.signature, run.outputs) == ("serving_default", ())
        np.testing.assert_array_equal(inputs["x"], rows)


def test_everything_but_the_numbers_is_as_it_was_sent() -> None:
    signatures = {"s": signed(x(), outputs=("y", "z"))}
    data = predict(ROWS, "z", "y", signature_name="s", version_label="stable")
    reader = taught(data, signatures)
    asked = reader.read(data)
    assert asked.model() == ModelRef("m", label="stable", signature="s")
    run, _ = serve(asked, signatures)
    assert (run.signature, run.outputs, run.fits) == ("s", ("z", "y"), signatures["s"])


OTHERS = {
    "width": ({"serving_default": signed(x(4))}, "x has size 3 in dimension 1, expected 4"),
    "rank": ({"serving_default": signed(x(None))}, "rank 2, expected 1"),
    "dtype": ({"serving_default": signed(x(3, DataType.INT32))}, "to be int32 but float is provided"),
    "name": ({"serving_default": signed(x(name="w"))}, "w"),
    "more inputs": ({"serving_default": signed(x(), x(name="w"))}, "w"),
    "outputs": ({"serving_default": signed(x(), outputs=("other",))}, "alias not found in signature: y"),
    "signatures": ({"other": signed(x())}, "serving_default"),
}
"""Other versions of the model, with what they refuse the same request with."""


@pytest.mark.parametrize(("signatures", "words"), OTHERS.values(), ids=OTHERS)
def test_another_version_with_another_signature_checks_the_same_bytes_anew(signatures: Signatures, words: str) -> None:
    data = predict(ROWS, "y")
    reader = taught(data, ONE)
    with pytest.raises(ServingError) as unknown:
        serve(PredictReader().read(data), signatures)
    for _ in range(2):
        with pytest.raises(ServingError) as known:
            serve(reader.read(data), signatures)
        assert known.value.status == unknown.value.status
        assert words in str(known.value)
    run, _ = serve(reader.read(data), ONE)
    assert run.fits is ONE["serving_default"]


def test_other_version_with_an_equal_signature_is_checked_once_more() -> None:
    reader = taught(predict())
    two = {"serving_default": signed(x())}
    assert [serve(reader.read(predict()), two)[0].fits for _ in range(2)] == [None, two["serving_default"]]
    assert serve(reader.read(predict()), ONE)[0].fits is None


def test_other_version_fills_in_its_own_defaults() -> None:
    filling = {"serving_default": signed(x(), x(name="w"), defaults={"w": np.zeros(3, np.float32)})}
    reader = taught(predict())
    for _ in range(3):
        run, inputs = serve(reader.read(predict()), filling)
        assert (run.fits, set(inputs)) == (None, {"x", "w"})
    assert serve(reader.read(predict()), ONE)[0].fits is ONE["serving_default"]


def test_request_that_leaves_a_default_out_is_not_remembered() -> None:
    filling = {"serving_default": signed(x(), x(name="w"), defaults={"w": np.zeros(3, np.float32)})}
    reader = taught(predict(), filling)
    run, inputs = serve(reader.read(predict()), filling)
    assert (run.fits, set(inputs)) == (None, {"x", "w"})


def test_request_that_was_not_answered_is_not_remembered() -> None:
    reader = PredictReader()
    serve(reader.read(predict()), ONE, answered=False)
    assert reader.layouts.find(predict()) is None
    assert "expected 4" in refusal(reader, predict(), OTHERS["width"][0])
    assert reader.layouts.find(predict()) is None


def test_request_without_a_model_is_refused_as_ever() -> None:
    data = PredictRequest(output_filter=["y"]).SerializeToString()
    asked = PredictReader().read(data)
    assert asked.name == ""
    with pytest.raises(ServingError, match="Missing ModelSpec"):
        asked.model()


@pytest.mark.parametrize("data", [b"\xff", predict()[:-1], predict() + b"\x0b"])
def test_bytes_that_are_no_request_are_refused_also_when_their_like_is_known(data: bytes) -> None:
    with pytest.raises(ServingError) as caught:
        taught(predict()).read(data)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_bounds_of_the_server_count_for_what_is_not_known() -> None:
    request = PredictRequest(model_spec={"name": "m"})
    request.inputs["x"].CopyFrom(encode(ROWS))
    del request.inputs["x"].float_val[1:]
    with pytest.raises(ServingError, match="repeating the last one would fill 24 bytes, at most 10"):
        serve(PredictReader(max_bytes=10).read(request.SerializeToString()), ONE)
    strange = {"serving_default": signed(x(), method_name="my/method")}
    with pytest.raises(ServingError):
        serve(PredictReader(check_method_names=True).read(predict()), strange)
    serve(PredictReader().read(predict()), strange)


def test_many_requests_inside_at_once_are_remembered_as_one_would_be() -> None:
    reader = PredictReader()
    inside = [reader.read(predict(np.full((2, 3), n, np.float32))) for n in range(20)]
    for n, asked in enumerate(inside):
        _, inputs = serve(asked, ONE)
        assert inputs["x"].tolist() == [[n] * 3] * 2
    assert serve(reader.read(predict()), ONE)[0].fits is ONE["serving_default"]


SOURCE = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + %d}
"""


def publish(base: Path, version: int, config: str = PYTHON_CONFIG) -> None:
    """Written elsewhere and moved, so that the version appears whole."""
    written = write_python_version(base.with_name("elsewhere"), version, SOURCE % version)
    (written / "config.pbtxt").write_text(config)
    base.mkdir(exist_ok=True)
    written.rename(base / str(version))


def test_server_that_has_changed_to_a_version_with_other_inputs_refuses_the_bytes_it_knew(tmp_path: Path) -> None:
    base, data = tmp_path / "m", predict(np.ones((1, 3), np.float32), "y")
    publish(base, 1)
    fields = {"model_name": "m", "model_base_path": str(base), "trusted_model_base_paths": str(tmp_path)}
    with serving(tmp_path, **fields) as house, grpc.insecure_channel(house.target) as channel:
        ask = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for number in range(5):
            request = predict(np.full((1, 3), number, np.float32), "y")
            assert len(request) == len(data)
            answer = PredictResponse.FromString(ask(request, timeout=30))
            assert (version_of(answer), decode(answer.outputs["y"], "y").tolist()) == (1, [[number + 1] * 3])
        publish(base, 2, PYTHON_CONFIG.replace("[ -1, 3 ]", "[ -1, 4 ]"))
        house.wait_states({1: VersionState.END, 2: VersionState.AVAILABLE})
        messages = set()
        for request in (data, data, data + b"\xc0\x3e\x01"):  # the last one has a field that nobody knows
            with pytest.raises(grpc.RpcError) as caught:
                ask(request, timeout=30)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            messages.add(caught.value.details())
        (message,) = messages
        assert "dimension 1, expected 4" in message


def version_of(answer: Message) -> int:
    version: int = answer.model_spec.version.value
    return version
