"""A model that connects in the background, and goes on in another place: what its callers see of that."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.servers.process import wait_until
from tests.support.servers.replicas import PlaceOfReplicas
from tfs_lite.core.model import WorkerLost
from tfs_lite.core.status import ServingError, StatusCode

ROW = np.arange(6, dtype=np.float32).reshape(2, 3)
PATIENCE = 60.0


def where(model) -> int:
    """The process that answers."""
    return int(model.run("", {"x": ROW}, ("pid",))["pid"][0])


@pytest.fixture
def in_background(open_replica):
    def open_one(*arguments, **settings):
        return open_replica(*arguments, near={"in_background": True}, **settings)

    return open_one


def test_opening_in_the_background_tells_what_became_of_it(in_background, start):
    opened = in_background()
    assert opened.model.opening.result(PATIENCE).resident_bytes == 1234
    assert (opened.model.worker.up, opened.model.restarts) == (True, 0)
    assert where(opened.model) == opened.model.pid


def test_opening_in_the_background_that_is_refused_says_why(in_background, start):
    opened = in_background("refuse")
    with pytest.raises(ServingError) as refusal:
        opened.model.opening.result(PATIENCE)
    assert refusal.value.code is StatusCode.DATA_LOSS


def test_a_model_without_a_replica_is_what_another_instance_describes_and_joins_later(
    in_background, open_replica, start
):
    described = open_replica().model.opening.result()
    late = in_background(replicas=[])
    late.model.expect(described)
    assert late.model.signatures == described.signatures
    assert not late.model.worker.up
    with pytest.raises(WorkerLost):
        late.model.run("", {"x": ROW}, ())
    replica = start()
    late.put(replica)
    assert late.model.recover(threading.Event())
    assert where(late.model) == replica.address.pid
    late.model.expect(described)


def test_another_instance_of_other_files_is_refused(open_replica, tmp_path):
    model = open_replica().model
    (tmp_path / "what").write_text("other")
    other = open_replica("make_from_file", str(tmp_path / "what")).model
    with pytest.raises(ServingError, match="other signatures") as refusal:
        other.expect(model.opening.result())
    assert refusal.value.code is StatusCode.FAILED_PRECONDITION


def test_a_move_lets_the_run_inside_end_and_sends_the_next_ones_to_the_new_place(open_replica, start, tmp_path, way):
    opened = open_replica(options={"gate": str(tmp_path)}, way=way)
    old, replica = opened.model.pid, start()
    place = PlaceOfReplicas(opened.over(replica.address))
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(opened.model.run, "gate", {"x": ROW}, ("pid",))
        wait_until((tmp_path / "entered").exists, "the run has begun")
        moving = pool.submit(opened.model.move, place)
        wait_until(lambda: opened.model.pid == replica.address.pid, "the next requests go there")
        assert not moving.done()
        (tmp_path / "open").touch()
        assert running.result(PATIENCE)["pid"].tolist() == [old]
        moving.result(PATIENCE)
    assert where(opened.model) == replica.address.pid
    assert (opened.model.place, opened.model.restarts) == (place, 1)
    assert opened.place.losses == []


def test_a_model_whose_replica_is_lost_while_it_moves_goes_on_in_the_new_place(open_replica, start):
    opened = open_replica()
    place = PlaceOfReplicas()
    moving = threading.Thread(target=opened.model.move, args=(place,))
    moving.start()
    with pytest.raises(WorkerLost):
        opened.model.run("leave", {"x": ROW}, ())
    wait_until(lambda: not opened.model.alive, "the loss is noticed")
    replica = start()
    place.put(replica.address)
    moving.join(PATIENCE)
    assert where(opened.model) == replica.address.pid


def test_closing_ends_a_move_that_finds_no_replica(open_replica):
    opened = open_replica()
    place = PlaceOfReplicas()
    moving = threading.Thread(target=opened.model.move, args=(place,))
    moving.start()
    opened.model.close()
    moving.join(PATIENCE)
    assert not moving.is_alive()
    assert opened.model.place is opened.place
