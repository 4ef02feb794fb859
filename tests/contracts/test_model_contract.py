"""One suite over every platform that is served, wherever the model is: whatever made it, it behaves the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.platforms import MAX_ROWS, SETTINGS, WIDTH, WRITERS
from tests.support.servers.replicas import SECRET, PlaceOfReplicas, ReplicaHost
from tfs_lite.adapters.detect import choose_platform, read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.remote import OPEN_VERSION, PRELOAD, describe
from tfs_lite.cluster.replicas.near import ReplicaModel
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, check_inputs
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.connection import RemoteModel
from tfs_lite.workers.process import ProcessModel
from tfs_lite.workers.supervisor import Supervisor

ELSEWHERE = ("process", "replica over TCP", "replica over a UNIX socket", "replica in shared memory")
CASES = [(writer, "here") for writer in WRITERS] + [
    (writer, where) for writer in ("pytorch_export", "python class") for where in ELSEWHERE
]
CASES += [(writer, "process") for writer in WRITERS if writer == "onnxruntime_onnx"]


@pytest.fixture(scope="module")
def supervisor():
    found = Supervisor(PRELOAD)
    yield found
    found.close()


@pytest.fixture(scope="module")
def host():
    with ReplicaHost(PRELOAD) as found:
        yield found


@pytest.fixture(scope="module", params=CASES, ids=", ".join)
def model(request, tmp_path_factory):
    """The same model on each platform, in this process and in others; its offset is 1."""
    writer, where = request.param
    files = read_version(str(WRITERS[writer](tmp_path_factory.mktemp("model"), 1.0)))
    platform = choose_platform(files, "", PLATFORMS)
    assert platform.name == writer.split()[0]
    asked = OpenRequest(ServableId("m", 1), files, "cpu", True, SETTINGS)
    if where == "here":
        opened = platform.open(asked)
    else:
        remote = RemoteModel("model m version 1", OPEN_VERSION, describe(asked, platform.name, 1))
        opened = open_elsewhere(request, where, remote)
    yield opened
    opened.close()


def open_elsewhere(request, where, remote):
    if where == "process":
        return ProcessModel(request.getfixturevalue("supervisor"), remote)
    address = request.getfixturevalue("host").start(f"m/1/00000000/{request.param}").address
    if where == "replica over TCP":
        address = replace(address, unix=None)
    return ReplicaModel(PlaceOfReplicas(address), remote, SECRET, shared_memory=where == "replica in shared memory")


def rows(count, value=1.0):
    return {"x": np.full((count, WIDTH), value, np.float32)}


def test_it_has_one_signature_with_names_types_and_shapes(model):
    assert list(model.signatures) == [DEFAULT_SIGNATURE]
    signature = model.signatures[DEFAULT_SIGNATURE]
    (x,) = signature.inputs
    assert (x.name, x.dtype, x.shape[0].maximum, x.shape[1:]) == ("x", DataType.FLOAT, MAX_ROWS, (WIDTH,))
    assert signature.output_names == ("y", "total")
    assert [spec.dtype for spec in signature.outputs] == [DataType.FLOAT, DataType.FLOAT]


def test_its_platform_is_known(model):
    assert model.platform in PLATFORMS


@pytest.mark.parametrize("count", [0, 1, 2, 3, MAX_ROWS])
def test_any_number_of_rows_is_answered_row_by_row(model, count):
    x = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)
    answer = model.run(DEFAULT_SIGNATURE, {"x": x}, ())
    assert answer["y"].tolist() == (2 * x + 1).tolist()
    assert answer["total"].tolist() == (2 * x + 1).sum(1, keepdims=True).tolist()


def test_signature_refuses_more_rows_than_allowed(model):
    with pytest.raises(ServingError, match=f"at most {MAX_ROWS}"):
        check_inputs(model.signatures[DEFAULT_SIGNATURE], {"x": (DataType.FLOAT, (MAX_ROWS + 1, WIDTH))})


def test_only_the_outputs_asked_for_come_back(model):
    assert list(model.run(DEFAULT_SIGNATURE, rows(1), ("total",))) == ["total"]
    assert set(model.run(DEFAULT_SIGNATURE, rows(1), ())) == {"y", "total"}
    assert list(model.run(DEFAULT_SIGNATURE, rows(1), ("total", "y"))) == ["total", "y"]


def test_empty_signature_name_means_the_default(model):
    assert model.run("", rows(1), ("y",))["y"].tolist() == [[3.0] * WIDTH]


def test_unknown_signature_is_refused(model):
    refusal(model.run, "other", rows(1), (), code=StatusCode.FAILED_PRECONDITION)


def test_results_are_contiguous_arrays_of_their_own(model):
    first = model.run(DEFAULT_SIGNATURE, rows(2), ())
    kept = {name: array.copy() for name, array in first.items()}
    model.run(DEFAULT_SIGNATURE, rows(2, 5.0), ())
    for name, array in first.items():
        assert isinstance(array, np.ndarray)
        assert array.flags.c_contiguous
        assert array.tolist() == kept[name].tolist()


@pytest.mark.parametrize("writeable", [True, False])
def test_callers_array_is_read_and_not_written(model, writeable):
    inputs = rows(2)
    inputs["x"].flags.writeable = writeable
    model.run(DEFAULT_SIGNATURE, inputs, ())
    assert inputs["x"].tolist() == rows(2)["x"].tolist()


def test_failed_request_is_a_serving_error_without_stack_or_path_and_the_next_one_is_answered(model):
    """A model that is known to answer others blames the request."""
    with pytest.raises(ServingError) as caught:
        model.run(DEFAULT_SIGNATURE, {"x": np.zeros((2, WIDTH + 1), np.float32)}, ())
    blames_request = model.platform in ("pytorch_export", "onnxruntime_onnx")
    assert caught.value.code is (StatusCode.INVALID_ARGUMENT if blames_request else StatusCode.INTERNAL)
    message = str(caught.value)
    assert "model m version 1" in message
    assert "\n" not in message
    assert "/" not in message
    assert model.run(DEFAULT_SIGNATURE, rows(1), ("y",))["y"].tolist() == [[3.0] * WIDTH]


def test_it_knows_or_admits_not_to_know_its_memory(model):
    assert model.resident_bytes() in (4 * WIDTH, None)
