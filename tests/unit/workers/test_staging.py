import numpy as np
import pytest

from tests.support.errors import refusal
from tfs_lite.core.status import StatusCode
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.staging import Staging

LIMIT = 1 << 20
SHAPES = {"x": ((4, 8), np.dtype(np.float32)), "n": ((4,), np.dtype(np.int64))}


@pytest.fixture
def staging():
    found = Staging(Arena.create(LIMIT, "the inputs of a run"))
    yield found
    found.close()


def values(staging, locations):
    return {location.name: staging.arena.read(location).tolist() for location in locations}


def test_staged_arrays_stay_where_they_are(staging):
    views = staging.stage(SHAPES)
    views["x"][...] = 2
    views["n"][...] = np.arange(4)
    locations = staging.locate(views)
    assert {location.name: location.offset for location in locations} == {"x": 0, "n": 128}
    views["x"][0, 0] = 9
    assert staging.arena.read(locations[0])[0, 0] == 9


def test_rows_of_a_staged_array_stay_where_they_are(staging):
    views = staging.stage(SHAPES)
    views["x"][...] = np.arange(32).reshape(4, 8)
    (location,) = staging.locate({"x": views["x"][:2]})
    assert (location.offset, location.shape, location.nbytes) == (0, (2, 8), 64)
    assert staging.arena.read(location).tolist() == np.arange(16).reshape(2, 8).tolist()


def test_other_arrays_are_copied_behind_the_staged_ones(staging):
    views = staging.stage(SHAPES)
    views["x"][...] = 1
    texts = np.array([b"a", b"bc"], dtype=object)
    locations = staging.locate({"t": texts, "x": views["x"], "n": np.full(4, 7)})
    assert values(staging, locations) == {"x": [[1.0] * 8] * 4, "t": [b"a", b"bc"], "n": [7] * 4}


@pytest.mark.parametrize("pick", [lambda x: x[1:], lambda x: x.T, lambda x: x[:, :2], lambda x: x.view(np.int32)])
def test_part_of_a_staged_array_that_is_not_its_beginning_is_copied(staging, pick):
    views = staging.stage({"x": SHAPES["x"]})
    views["x"][...] = np.arange(32).reshape(4, 8)
    wanted = pick(views["x"]).tolist()
    assert values(staging, staging.locate({"x": pick(views["x"])})) == {"x": wanted}


def test_exchanged_arrays_are_not_confused(staging):
    shape = ((16,), np.dtype(np.int32))
    views = staging.stage({"a": shape, "b": shape})
    views["a"][...], views["b"][...] = 1, 2
    assert values(staging, staging.locate({"a": views["b"], "b": views["a"]})) == {"a": [2] * 16, "b": [1] * 16}


def test_same_inputs_can_be_placed_again(staging):
    views = staging.stage(SHAPES)
    views["x"][...], views["n"][...] = 3, 4
    inputs = {"n": views["n"], "x": views["x"], "more": np.arange(9)}
    first = staging.locate(inputs)
    assert staging.locate(inputs) == first
    assert values(staging, first) == {"n": [4] * 4, "x": [[3.0] * 8] * 4, "more": list(range(9))}


def test_growing_for_others_keeps_what_was_staged(staging):
    views = staging.stage(SHAPES)
    views["x"][...], views["n"][...] = 3, 4
    big = np.random.default_rng(3).random(LIMIT // 16)
    locations = staging.locate({**views, "big": big})
    assert values(staging, locations) == {"x": [[3.0] * 8] * 4, "n": [4] * 4, "big": big.tolist()}


def test_without_staging_everything_is_copied_from_the_start(staging):
    staging.stage(SHAPES)
    staging.forget()
    (location,) = staging.locate({"x": np.arange(5)})
    assert location.offset == 0


def test_more_than_the_limit_is_refused(staging):
    refusal(staging.stage, {"x": ((LIMIT + 1,), np.uint8)}, code=StatusCode.RESOURCE_EXHAUSTED)
