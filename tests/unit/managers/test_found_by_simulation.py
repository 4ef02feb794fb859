"""Stories that the lifecycle simulation found, as short as it could make them."""

from tfs_lite.core.servable import ServableRequest
from tfs_lite.managers.policies import ActionKind
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture


def test_no_version_of_a_list_that_waits_is_unloaded_by_an_older_list() -> None:
    fixture = ManagerFixture()
    fixture.serve("m", 1, 2)
    fixture.aspire("m")
    action = fixture.tick()
    assert action is not None
    assert (action.kind, action.id.version) == (ActionKind.UNLOAD, 1)
    fixture.aspire("m", 1, 2)  # waits for version 1, which is on its way out

    assert fixture.tick() is None
    fixture.settle()

    assert fixture.history("m", 2) == ["Start", "Loading", "Available"]
    assert fixture.ready("m") == [1, 2]


def test_last_ready_version_stays_while_the_only_wanted_one_is_still_leaving() -> None:
    fixture = ManagerFixture()
    fixture.serve("m", 1, 2)
    handle = fixture.manager.get_servable_handle(ServableRequest.specific("m", 1))
    fixture.aspire("m")
    fixture.tick()
    fixture.aspire("m", 1)

    fixture.settle()
    assert fixture.ready("m") == [2]

    handle.release()
    fixture.settle()
    assert fixture.ready("m") == [1]
    assert fixture.timeline()[-4:] == [("Loading", 1), ("Available", 1), ("Unloading", 2), ("End", 2)]
