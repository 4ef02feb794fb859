"""One suite over every platform that is served: whatever made the model, it behaves the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tfs_lite.adapters.contract import OpenRequest
from tfs_lite.adapters.detect import choose_platform, read_version
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, check_inputs
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.testing.errors import refusal
from tfs_lite.testing.servers.platforms import MAX_ROWS, SETTINGS, WIDTH, WRITERS


@pytest.fixture(scope="module", params=WRITERS)
def model(request, tmp_path_factory):
    """The same model on each platform; its offset is 1."""
    files = read_version(str(WRITERS[request.param](tmp_path_factory.mktemp("model"), 1.0)))
    platform = choose_platform(files, "", PLATFORMS)
    assert platform.name == request.param.split()[0]
    opened = platform.open(OpenRequest(ServableId("m", 1), files, torch.device("cpu"), True, SETTINGS))
    yield opened
    opened.close()


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
    message = refusal(
        model.run, DEFAULT_SIGNATURE, {"x": np.zeros((2, WIDTH + 1), np.float32)}, (), code=StatusCode.INTERNAL
    )
    assert "model m version 1" in message
    assert "\n" not in message
    assert "/" not in message
    assert model.run(DEFAULT_SIGNATURE, rows(1), ("y",))["y"].tolist() == [[3.0] * WIDTH]


def test_it_knows_or_admits_not_to_know_its_memory(model):
    assert model.resident_bytes() in (4 * WIDTH, None)
