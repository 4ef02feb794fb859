"""Stories that the lifecycle simulation found, as short as it could make them."""

from tfs_lite.core.servable import ServableRequest
from tfs_lite.managers.policies import ActionKind
from tfs_lite.testing.lifecycle.manager_fixture import ManagerWorld


def test_no_version_of_a_list_that_waits_is_unloaded_by_an_older_list() -> None:
    world = ManagerWorld()
    world.aspire("m", 1, 2)
    world.settle()
    world.aspire("m")
    action = world.tick()
    assert action is not None
    assert (action.kind, action.id.version) == (ActionKind.UNLOAD, 1)
    world.aspire("m", 1, 2)  # waits for version 1, which is on its way out

    assert world.tick() is None
    world.settle()

    assert world.story("m", 2) == ["Start", "Loading", "Available"]
    assert world.ready("m") == [1, 2]


def test_last_ready_version_stays_while_the_only_wanted_one_is_still_leaving() -> None:
    world = ManagerWorld()
    world.aspire("m", 1, 2)
    world.settle()
    handle = world.manager.get_servable_handle(ServableRequest.specific("m", 1))
    world.aspire("m")
    world.tick()
    world.aspire("m", 1)

    world.settle()
    assert world.ready("m") == [2]

    handle.release()
    world.settle()
    assert world.ready("m") == [1]
    assert world.chronicle()[-4:] == [("Loading", 1), ("Available", 1), ("Unloading", 2), ("End", 2)]
