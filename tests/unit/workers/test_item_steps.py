"""``preprocess`` and ``postprocess`` of models in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tfs_lite.core.model import WorkerLost
from tfs_lite.core.status import ServingError, StatusCode

ROW = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_item_steps_run_in_the_process_and_may_keep_what_they_get(open_child):
    model = open_child("make_items")
    assert model.has_item_steps
    ready = model.preprocess("", {"x": ROW}, None)
    np.testing.assert_array_equal(ready["x"], ROW * 2)
    model.preprocess("", {"x": ROW * 10}, None)
    results = model.run("", ready, ())
    final = model.postprocess("", {"y": results["y"]}, None)
    np.testing.assert_array_equal(final["y"], ROW)
    assert final["kept"].tolist() == [ROW.sum(), ROW.sum() * 10]


def test_item_steps_go_on_beside_a_run_and_beside_each_other(open_child, tmp_path):
    model = open_child("make_items", {"gate": str(tmp_path)})
    with ThreadPoolExecutor(3) as pool:
        run = pool.submit(model.run, "gate", {"x": ROW}, ())
        steps = [
            pool.submit(model.preprocess, "meet", {"x": np.array(pair)}, None) for pair in ([1.0, 2.0], [2.0, 1.0])
        ]
        assert [step.result(60)["x"].tolist() for step in steps] == [[2.0, 4.0], [4.0, 2.0]]
        assert not run.done()
        (tmp_path / "open").touch()
        np.testing.assert_array_equal(run.result(60)["y"], ROW)


def test_item_steps_get_the_time_that_is_left(open_child):
    model = open_child("make_items")
    assert model.preprocess("deadline", {}, None)["left"].tolist() == [-1.0]
    (left,) = model.preprocess("deadline", {}, time.monotonic() + 100)["left"]
    assert 50 < left < 101


def test_item_step_that_fails_says_why_and_one_that_kills_is_survived(open_child):
    model = open_child("make_items")
    assert "x is not to my liking" in refusal(model.preprocess, "refuse", {"x": ROW}, None)
    with pytest.raises(ServingError, match="failed: ValueError"):
        model.preprocess("fail", {"x": ROW}, None)
    with pytest.raises(WorkerLost, match="exit code 3"):
        model.preprocess("leave", {"x": ROW}, None)
    np.testing.assert_array_equal(model.preprocess("", {"x": ROW}, time.monotonic() + 60)["x"], ROW * 2)
    assert model.run("", {"x": ROW}, ("pid",))["pid"].tolist() == [model.pid]


def test_item_step_waits_for_a_new_process_no_longer_than_its_deadline(open_child, tmp_path):
    (tmp_path / "open").touch()
    model = open_child("make_items_and_wait", str(tmp_path))
    (tmp_path / "open").unlink()
    os.kill(model.pid, signal.SIGKILL)
    wait_until(lambda: not model.alive, "the death is noticed")
    refusal(model.preprocess, "", {"x": ROW}, time.monotonic() + 0.05, code=StatusCode.DEADLINE_EXCEEDED)


def test_model_without_item_steps_leaves_items_alone(open_child):
    model = open_child()
    assert model.preprocess("", {"x": ROW}, None) == {"x": ROW}
    assert model.postprocess("", {"y": ROW}, None) == {"y": ROW}
