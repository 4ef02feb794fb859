"""Changed versions are followed: with a real manager, in virtual time. The lists, the files and the configs are the
test's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.source import UnarySourceAdapter, connect
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, invalid_argument
from tfs_lite.managers.harness import HarnessState
from tfs_lite.managers.retrier import RetryPolicy
from tfs_lite.serving.version_follower import (
    CHANGED,
    CHANGED_FILES,
    FollowerEffects,
    FollowerOptions,
    LoadedAs,
    VersionFollower,
)
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

ID = ServableId("m", 1)
QUIET, INTERVAL = 2.0, 60.0
ONE, TWO = (ModelSettings(max_batch_size=size) for size in (1, 2))
THREE_INSTANCES = ModelSettings.model_validate({"max_batch_size": 1, "instance_group": [{"count": 3}]})
BROKEN = Status(StatusCode.FAILED_PRECONDITION, "no such output")


class Loading(FakeLoader):
    """Remembers the config and the files that were on disk when it loaded; instances can be changed in place."""

    def __init__(self, fixture: Fixture, path: str, **loading: Any) -> None:
        super().__init__(**loading)
        self._fixture = fixture
        self.path = path

    def load(self, servable_id: ServableId) -> None:
        super().load(servable_id)
        assert self._servable is not None
        self._fixture.loaded[self._servable] = self._fixture.read("", "m")
        self._fixture.loaded_files[self._servable] = self._fixture.files


class Fixture(ManagerFixture):
    """``config`` is what is on disk, a ServingError if it is wrong; ``offer`` is a poll of the source."""

    def __init__(self, policy: str = "availability") -> None:
        super().__init__(policy, max_num_load_retries=0)
        self.config: ModelSettings | ServingError = ONE
        self.loaded: dict[Any, ModelSettings] = {}
        self.loaded_files: dict[Any, str] = {}
        self.next_loading: dict[str, Any] = {}
        self.resizable: bool | ServingError = True
        self.contradiction: ServingError | None = None
        self.remarks: dict[ServableId, Status] = {}
        self.replaced: list[ServableId] = []
        self.given_up: list[ServableId] = []
        self.wakes = 0
        self.files, self.configs = "files", "c1"
        self.on_disk = ""  # the state of the files if it is not that of the list
        effects = FollowerEffects(
            read=self.read,
            loaded_as=lambda servable: LoadedAs(self.loaded[servable], self.loaded_files[servable]),
            state_of=lambda directory, settings: self.on_disk or self.files,
            check=self.check,
            make_loader=self.make_loader,
            resize=self.resize,
            remark=self.remark,
            wake_source=self.wake,
            on_replaced=lambda item, old: self.replaced.append(item.id),
            on_given_up=self.given_up.append,
        )
        options = FollowerOptions(
            QUIET,
            policy == "availability",
            RetryPolicy(2, INTERVAL),
            lambda s: s.code is not StatusCode.INVALID_ARGUMENT,
        )
        self.follower = VersionFollower(options, self.manager, effects, self.clock)
        self.monitor.subscribe(lambda timed: self.follower.on_event(timed.state))
        adapter = UnarySourceAdapter[str, Any](self.make_loader)
        connect(adapter, self.manager)
        self.list = self.follower.observe(adapter.aspired_versions_callback())

    # The effects.

    def read(self, directory: str, name: str) -> ModelSettings:
        if isinstance(self.config, ServingError):
            raise self.config
        return self.config

    def check(self, directory: str, settings: ModelSettings) -> None:
        if self.contradiction is not None:
            raise self.contradiction

    def make_loader(self, item: ServableData[str]) -> Loading:
        loader = Loading(self, item.payload, **self.next_loading)
        self.loaders.setdefault(item.id, []).append(loader)
        return loader

    def resize(self, servable_id: ServableId, settings: ModelSettings) -> ModelSettings | None:
        if isinstance(self.resizable, ServingError):
            raise self.resizable
        servable = self.servable
        before = self.loaded[servable]
        if not self.resizable:
            return None
        self.loaded[servable] = settings
        return before

    def remark(self, servable_id: ServableId, status: Status | None) -> None:
        self.remarks.pop(servable_id, None)
        if status is not None:
            self.remarks[servable_id] = status

    def wake(self) -> None:
        self.wakes += 1

    # What happens.

    def offer(self, versions: Sequence[int] = (1,)) -> None:
        """The source emits a list, and everything happens that follows at once."""
        revision = f"{self.files}/{self.configs}"
        self.list("m", [ServableData.ok(ServableId("m", version), f"/m/{version}", revision) for version in versions])
        self.follower.poll()
        self.settle()

    def change(self, config: ModelSettings | ServingError, configs: str) -> None:
        """Writes the config, lets the source see it, and waits until it is quiet."""
        self.config, self.configs = config, configs
        self.offer()
        self.pass_time(QUIET)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.follower.poll()
        self.settle()

    @property
    def servable(self) -> Any:
        with self.manager.get_servable_handle(ModelRef("m")) as handle:
            return handle.servable

    @property
    def serves_with(self) -> ModelSettings:
        return self.loaded[self.servable]

    def count(self) -> int:
        return sum(loader.loads for loader in self.loaders[ID])


@pytest.fixture
def fixture() -> Fixture:
    found = Fixture()
    found.offer()
    assert found.serves_with == ONE
    return found


def test_changed_config_is_followed_once_it_is_quiet(fixture: Fixture) -> None:
    fixture.config, fixture.configs = TWO, "c2"
    fixture.offer()
    assert (fixture.serves_with, fixture.remarks) == (ONE, {ID: CHANGED})
    fixture.pass_time(QUIET)
    assert (fixture.serves_with, fixture.remarks, fixture.replaced) == (TWO, {}, [ID])
    assert fixture.history("m", 1) == ["Start", "Loading", "Available"]
    fixture.offer()
    assert fixture.count() == 2


def test_config_that_goes_on_changing_is_not_read_too_early(fixture: Fixture) -> None:
    for number in range(5):
        fixture.config, fixture.configs = TWO, f"c{number + 2}"
        fixture.offer()
        fixture.pass_time(QUIET / 2)
        assert fixture.serves_with == ONE
    fixture.pass_time(QUIET / 2)
    assert (fixture.serves_with, fixture.count()) == (TWO, 2)


def test_config_that_was_written_again_as_it_was_changes_nothing(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    for config in (ONE, ModelSettings.model_validate({"max_batch_size": 1, "version_policy": {"all": {}}})):
        fixture.change(config, f"touched {config.version_policy}")
        fixture.offer()
        assert (fixture.count(), fixture.remarks) == (1, {})
    assert caplog.records == []


def test_changed_files_are_another_state_of_the_version(fixture: Fixture) -> None:
    """The source has waited until they were quiet."""
    fixture.files = "other files"
    fixture.offer()
    assert (fixture.count(), fixture.remarks, fixture.replaced) == (2, {}, [ID])
    assert fixture.loaded_files[fixture.servable] == "other files"
    for _ in range(3):
        fixture.offer()
        fixture.pass_time(QUIET)
    assert fixture.count() == 2


def test_files_that_are_written_again_meanwhile_are_not_loaded_half(fixture: Fixture) -> None:
    fixture.files, fixture.on_disk = "other files", "half of others"
    fixture.offer()
    for _ in range(3):
        fixture.pass_time(QUIET)
    assert (fixture.count(), fixture.remarks) == (1, {ID: CHANGED_FILES})
    fixture.files, fixture.on_disk = "others", ""
    fixture.offer()
    fixture.pass_time(QUIET)
    assert fixture.loaded_files[fixture.servable] == "others"


def test_files_that_changed_before_the_load_read_them_are_not_loaded_again(fixture: Fixture) -> None:
    """The list said one thing, and what was read is what the next list says."""
    fixture.offer(())
    fixture.list("m", [ServableData.ok(ID, "/m/1", "older files/c1")])
    fixture.settle()
    fixture.offer()
    fixture.pass_time(QUIET)
    assert (fixture.count(), fixture.remarks) == (2, {})


def test_files_that_cannot_be_loaded_leave_what_serves_and_the_status_says_so(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.next_loading = {"failures": -1, "failure": BROKEN}
    fixture.files = "bad files"
    for _ in range(5):
        fixture.offer()
        fixture.pass_time(INTERVAL)
    assert fixture.loaded_files[fixture.servable] == "files"
    assert fixture.remarks[ID].message == "it goes on with the files of before: no such output"
    assert caplog.text.count("goes on with the files of before") == 1
    fixture.next_loading, fixture.files = {}, "good files"
    fixture.offer()
    fixture.pass_time(QUIET)
    assert (fixture.loaded_files[fixture.servable], fixture.remarks) == ("good files", {})


def test_list_from_before_the_version_was_replaced_is_no_other_state_of_it(
    fixture: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    fixture.config, fixture.configs = TWO, "c2"
    fixture.offer()
    fixture.clock.advance(QUIET)
    fixture.follower.poll()
    fixture.list("m", [ServableData.ok(ID, "/m/1", "files/c2")])
    fixture.loads.run_all()
    assert fixture.serves_with == TWO
    fixture.settle()
    fixture.offer()
    assert (fixture.serves_with, fixture.count(), caplog.text) == (TWO, 2, "")


def test_wrong_config_is_said_once_and_followed_when_mended(fixture: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    fixture.config, fixture.configs = invalid_argument("config.pbtxt:3:1: no field x"), "c2"
    fixture.offer()
    assert fixture.remarks == {}  # it may be half written
    fixture.pass_time(QUIET)
    for _ in range(3):
        fixture.offer()
        fixture.pass_time(INTERVAL)
    expected = Status(StatusCode.INVALID_ARGUMENT, "it goes on with the config of before: config.pbtxt:3:1: no field x")
    assert (fixture.serves_with, fixture.remarks) == (ONE, {ID: expected})
    assert caplog.text.count("config.pbtxt:3:1: no field x") == 1
    fixture.change(TWO, "c3")
    assert (fixture.serves_with, fixture.remarks) == (TWO, {})


def test_config_that_is_taken_back_takes_the_remark_back(fixture: Fixture) -> None:
    fixture.change(invalid_argument("wrong"), "c2")
    assert ID in fixture.remarks
    fixture.change(ONE, "c3")
    assert (fixture.count(), fixture.remarks) == (1, {})
    fixture.change(invalid_argument("wrong"), "c4")
    fixture.configs, fixture.config = "c1", ONE  # the very file that was there
    fixture.offer()
    assert (fixture.count(), fixture.remarks) == (1, {})


def test_load_that_fails_is_tried_again_as_often_as_any_load(fixture: Fixture) -> None:
    fixture.next_loading = {"failures": -1, "failure": BROKEN}
    fixture.change(TWO, "c2")
    assert fixture.remarks[ID].message == "it goes on with the config of before: no such output"
    fixture.follower.poll()
    assert fixture.remarks[ID].message == "it goes on with the config of before: no such output"
    for _ in range(5):
        fixture.pass_time(INTERVAL)
        fixture.offer()
    assert (fixture.count(), fixture.serves_with) == (1 + 3, ONE)
    fixture.next_loading = {}
    fixture.change(TWO, "c3")
    assert (fixture.serves_with, fixture.remarks) == (TWO, {})


@pytest.mark.parametrize("reason", [Reason.WAITS_FOR_MODELS, Reason.WAITS_FOR_PLACE])
def test_version_that_waits_for_other_models_or_room_is_tried_until_they_are_there(
    fixture: Fixture, reason: Reason
) -> None:
    def wait() -> None:
        raise ServingError(StatusCode.UNAVAILABLE, "something has to come first", reason)

    fixture.next_loading = {"while_loading": wait}
    fixture.change(TWO, "c2")
    for _ in range(10):
        fixture.pass_time(1.0)
    assert fixture.given_up == []
    fixture.next_loading = {}
    fixture.pass_time(1.0)
    assert (fixture.serves_with, fixture.remarks) == (TWO, {})


@pytest.mark.parametrize("then", [ONE, invalid_argument("wrong")], ids=["taken back", "wrong"])
def test_load_that_waits_is_given_up_when_the_config_says_something_else(
    fixture: Fixture, then: ModelSettings | ServingError
) -> None:
    def wait() -> None:
        raise ServingError(StatusCode.UNAVAILABLE, "no room", Reason.WAITS_FOR_PLACE)

    fixture.next_loading = {"while_loading": wait}
    fixture.change(TWO, "c2")
    fixture.change(then, "c3")
    assert set(fixture.given_up) == {ID}


def test_instances_alone_change_in_place(fixture: Fixture) -> None:
    fixture.change(THREE_INSTANCES, "c2")
    fixture.offer()
    assert (fixture.serves_with, fixture.count(), fixture.remarks, fixture.replaced) == (THREE_INSTANCES, 1, {}, [])


def test_instances_that_cannot_change_in_place_take_another_load(fixture: Fixture) -> None:
    fixture.resizable = False
    fixture.change(THREE_INSTANCES, "c2")
    assert (fixture.serves_with, fixture.count(), fixture.replaced) == (THREE_INSTANCES, 2, [ID])


def test_instance_that_cannot_be_opened_leaves_what_serves(fixture: Fixture) -> None:
    fixture.resizable = ServingError(StatusCode.RESOURCE_EXHAUSTED, "no memory")
    fixture.change(THREE_INSTANCES, "c2")
    assert (fixture.serves_with, fixture.remarks[ID].code) == (ONE, StatusCode.RESOURCE_EXHAUSTED)
    fixture.resizable = True
    fixture.pass_time(INTERVAL)
    assert (fixture.serves_with, fixture.remarks) == (THREE_INSTANCES, {})


def test_config_that_changes_while_the_version_is_loaded_for_the_last_one_is_followed_after_it(
    fixture: Fixture,
) -> None:
    third, begun = ModelSettings(max_batch_size=3), list[int]()

    def change_meanwhile() -> None:
        fixture.next_loading, fixture.config, fixture.configs = {}, TWO, "c3"
        fixture.list("m", [ServableData.ok(ID, "/m/1", f"{fixture.files}/{fixture.configs}")])
        before = len(fixture.loaders[ID])  # the list made one
        fixture.clock.advance(QUIET)
        fixture.follower.poll()
        begun.append(len(fixture.loaders[ID]) - before)

    fixture.next_loading = {"while_loading": change_meanwhile}
    fixture.change(third, "c2")
    fixture.offer()
    assert begun == [0]
    fixture.pass_time(QUIET)
    assert (fixture.serves_with, fixture.remarks) == (TWO, {})


def test_config_that_changes_while_the_version_loads_at_first_counts_if_it_was_read_in_time(fixture: Fixture) -> None:
    fixture.config = TWO  # the list said c1
    fixture.offer(())
    fixture.offer()
    fixture.change(TWO, "c2")
    assert (fixture.serves_with, fixture.count(), fixture.remarks) == (TWO, 2, {})


def test_config_that_changes_once_the_first_load_has_read_it_is_followed_after_that() -> None:
    """No list comes after the one that told the change while it was loading."""
    fixture = Fixture()

    def change_meanwhile() -> None:
        fixture.next_loading = {}
        fixture.list("m", [ServableData.ok(ID, "/m/1", "files/c2")])
        fixture.clock.advance(QUIET)
        fixture.follower.poll()

    fixture.next_loading = {"while_loading": change_meanwhile}
    fixture.offer()
    assert (fixture.serves_with, fixture.count()) == (ONE, 1)
    fixture.config = TWO
    fixture.pass_time(QUIET)
    assert (fixture.serves_with, fixture.remarks, fixture.replaced) == (TWO, {}, [ID])


def test_base_path_that_changes_while_the_first_load_runs_is_followed_after_it() -> None:
    fixture = Fixture()

    def change_meanwhile() -> None:
        fixture.next_loading = {}
        fixture.list("m", [ServableData.ok(ID, "/elsewhere/1", "elsewhere/c1")])

    fixture.next_loading = {"while_loading": change_meanwhile}
    fixture.offer()
    fixture.files = "elsewhere"
    fixture.pass_time(QUIET)
    assert fixture.loaders[ID][-1].path == "/elsewhere/1"
    assert (fixture.loaded_files[fixture.servable], fixture.remarks) == ("elsewhere", {})


def test_change_is_not_followed_between_the_first_answer_and_the_end_of_the_load() -> None:
    """The version can be had before the manager may replace it."""
    fixture = Fixture()

    def change_meanwhile() -> None:
        fixture.next_loading = {}
        fixture.list("m", [ServableData.ok(ID, "/m/1", "files/c2")])
        fixture.clock.advance(QUIET)

    def follow_at_once(timed: Any) -> None:
        if timed.event.state is ManagerState.AVAILABLE:
            fixture.config = TWO
            fixture.follower.poll()

    fixture.bus.subscribe(follow_at_once)
    fixture.next_loading = {"while_loading": change_meanwhile}
    fixture.list("m", [ServableData.ok(ID, "/m/1", "files/c1")])
    fixture.settle()
    assert (fixture.serves_with, fixture.count(), fixture.remarks) == (ONE, 1, {})
    fixture.pass_time(QUIET)
    assert (fixture.serves_with, fixture.remarks) == (TWO, {})


def test_version_that_failed_is_offered_with_its_new_revision_at_once() -> None:
    fixture = Fixture()
    fixture.next_loading = {"failures": -1, "failure": Status(StatusCode.INVALID_ARGUMENT, "wrong")}
    fixture.offer()
    assert fixture.state("m", 1) is HarnessState.ERROR
    fixture.next_loading, fixture.configs = {}, "c2"
    fixture.offer()
    assert fixture.state("m", 1) is HarnessState.READY


def test_version_that_goes_takes_its_change_with_it(fixture: Fixture) -> None:
    fixture.change(invalid_argument("wrong"), "c2")
    fixture.offer(())
    assert (fixture.state("m", 1), fixture.remarks) == (None, {})


def test_version_at_another_base_path_is_loaded_from_there(fixture: Fixture) -> None:
    fixture.files = "elsewhere"  # a source counts the path among the files
    fixture.list("m", [ServableData.ok(ID, "/elsewhere/1", "elsewhere/c1")])
    fixture.pass_time(QUIET)
    assert fixture.loaders[ID][-1].path == "/elsewhere/1"
    assert (fixture.loaded_files[fixture.servable], fixture.count(), fixture.remarks) == ("elsewhere", 2, {})


def test_resource_policy_gives_the_old_files_up_first() -> None:
    fixture = Fixture("resource")
    fixture.offer()
    fixture.files = "other files"
    fixture.offer()
    fixture.pass_time(QUIET)
    fixture.offer()
    fixture.offer()
    assert (fixture.loaded_files[fixture.servable], fixture.count(), fixture.remarks) == ("other files", 2, {})
    begins = ["Start", "Loading", "Available"]
    assert fixture.history("m", 1) == [*begins, "Unloading", "End", *begins]


def test_every_version_follows(fixture: Fixture) -> None:
    fixture.offer((1, 2))
    fixture.config, fixture.configs = TWO, "c2"
    fixture.offer((1, 2))
    fixture.pass_time(QUIET)
    assert sorted(fixture.replaced) == [ID, ServableId("m", 2)]
    assert fixture.ready("m") == [1, 2]


def test_resource_policy_gives_the_old_one_up_first() -> None:
    fixture = Fixture("resource")
    fixture.offer()
    handle = fixture.manager.get_servable_handle(ModelRef("m"))
    fixture.change(TWO, "c2")
    assert (fixture.wakes, fixture.ready("m")) == (1, [1])
    fixture.offer()
    assert (fixture.wakes, fixture.ready("m"), fixture.count()) == (2, [], 1)
    fixture.offer()  # with the version in it; the manager waits
    handle.release()
    fixture.settle()
    assert (fixture.serves_with, fixture.remarks, fixture.count()) == (TWO, {}, 2)
    fixture.offer()
    begins = ["Start", "Loading", "Available"]
    assert fixture.history("m", 1) == [*begins, "Unloading", "End", *begins]


def test_resource_policy_gives_nothing_up_for_a_config_that_is_wrong() -> None:
    fixture = Fixture("resource")
    fixture.offer()
    fixture.change(invalid_argument("wrong"), "c2")
    fixture.offer()
    assert (fixture.serves_with, fixture.count(), fixture.remarks[ID].code) == (ONE, 1, StatusCode.INVALID_ARGUMENT)


def test_resource_policy_gives_nothing_up_for_a_config_that_contradicts_the_artefact() -> None:
    fixture = Fixture("resource")
    fixture.offer()
    fixture.contradiction = invalid_argument('input "x" of the config is int64')
    fixture.change(TWO, "c2")
    fixture.offer()
    assert (fixture.serves_with, fixture.count(), fixture.remarks[ID].code) == (ONE, 1, StatusCode.INVALID_ARGUMENT)
    fixture.contradiction = None
    fixture.change(TWO, "c3")
    fixture.offer()
    fixture.offer()
    assert (fixture.serves_with, fixture.remarks) == (TWO, {})


def test_after_the_end_nothing_is_followed(fixture: Fixture) -> None:
    fixture.follower.start()
    fixture.follower.close()
    fixture.config, fixture.configs = TWO, "c2"
    fixture.list("m", [ServableData.ok(ID, "/m/1", "files/c2")])
    fixture.clock.advance(QUIET)
    fixture.settle()
    assert (fixture.serves_with, fixture.count()) == (ONE, 1)
