"""The byte account: three moments, what overlaps is disturbed, and when memory counts as leaked."""

from __future__ import annotations

import os

import pytest

from tests.support.errors import refusal
from tfs_lite.core.model import WorkerStatus
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.operations.history.memory import AccountedLoader, MemoryAccounts, Moment, read_moment, resident_memory
from tfs_lite.testing.lifecycle.loader import FakeLoader

MIB = 1 << 20
M1, M2 = ServableId("m", 1), ServableId("m", 2)


class Process:
    """A process whose memory the test says."""

    def __init__(self) -> None:
        self.rss = 1000 * MIB
        self.gpus: tuple[tuple[int, int], ...] = ()
        self.leaks: list[tuple[ServableId, dict[str, int]]] = []
        self.accounts = MemoryAccounts(
            lambda servable_id, leaked: self.leaks.append((servable_id, dict(leaked))),
            lambda: Moment(self.rss, self.gpus),
        )

    def loader(self, servable_id=M1, takes=300, gives=None, **rest):
        """Takes so many MiB with its load and gives as many, or fewer, back with its unload."""
        return AccountedLoader(
            servable_id, Growing(self, takes, takes if gives is None else gives, **rest), self.accounts
        )

    def cycle(self, servable_id=M1, **rest):
        loader = self.loader(servable_id, **rest)
        loader.load(servable_id)
        loader.unload()


class Growing(FakeLoader):
    def __init__(self, process, takes, gives, **rest):
        super().__init__(**{"estimate": main_ram(takes * MIB), **rest})
        self.process, self.takes, self.gives = process, takes, gives
        self.within = lambda: None

    def load(self, servable_id):
        self.within()
        super().load(servable_id)
        self.process.rss += self.takes * MIB

    def unload(self):
        super().unload()
        self.process.rss -= self.gives * MIB


@pytest.fixture
def process():
    return Process()


def test_a_load_and_its_unload_are_accounted_for(process):
    loader = process.loader()
    loader.load(M1)
    (memory,) = process.accounts.of("m")
    assert memory.resident
    assert memory.taken("main") == 300 * MIB
    assert memory.reserved == {"main": 300 * MIB}
    assert memory.leaked("main") is None
    loader.unload()
    (memory,) = process.accounts.of("m")
    assert not memory.resident
    assert memory.given_back("main") == 300 * MIB
    assert memory.leaked("main") == 0
    assert not memory.disturbed


def test_what_others_hold_meanwhile_is_not_leaked(process):
    first = process.loader(M1)
    first.load(M1)
    process.loader(M2).load(M2)
    first.unload()
    newest, oldest = process.accounts.of("m")
    assert (newest.version, oldest.version) == (2, 1)
    assert oldest.leaked("main") == 0
    assert oldest.unloaded.rss == process.rss


def test_two_loads_at_once_disturb_each_other(process):
    first, second = process.loader(M1), process.loader(M2)
    first._inner.within = lambda: second.load(M2)
    first.load(M1)
    assert [memory.disturbed for memory in process.accounts.of("m")] == [True, True]


def test_a_worker_that_starts_during_a_load_disturbs_it(process):
    loader = process.loader()
    process.accounts.disturb()
    loader._inner.within = process.accounts.disturb
    loader.load(M1)
    assert process.accounts.of_version(M1).disturbed
    after = process.loader(M2)
    after.load(M2)
    assert not process.accounts.of_version(M2).disturbed


def test_a_failed_load_leaves_no_account(process):
    loader = process.loader(failures=1)
    refusal(loader.load, M1, code=StatusCode.UNAVAILABLE)
    assert process.accounts.of("m") == ()
    loader.load(M1)
    assert process.accounts.of_version(M1).resident


def test_memory_that_stays_behind_twice_in_a_row_is_a_leak(process):
    process.cycle(gives=200)
    assert process.leaks == []
    process.cycle(gives=200)
    assert process.leaks == [(M1, {"main": 100 * MIB})]
    assert process.accounts.leaked() == {"m": 200 * MIB}


def test_an_unload_that_gives_everything_back_begins_anew(process):
    process.cycle(gives=200)
    process.cycle()
    process.cycle(gives=200)
    assert process.leaks == []


@pytest.mark.parametrize(("takes", "gives"), [(300, 240), (2000, 1850)])
def test_a_little_memory_is_no_leak(process, takes, gives):
    """64 MiB, or a tenth of the version."""
    for _ in range(3):
        process.cycle(takes=takes, gives=gives)
    assert process.leaks == []
    assert process.accounts.leaked() == {}


def test_a_disturbed_unload_says_nothing(process):
    process.cycle(gives=200)
    loader = process.loader(gives=0)
    loader._inner.within = process.accounts.disturb
    loader.load(M1)
    loader.unload()
    assert process.leaks == []
    process.cycle(gives=200)
    assert len(process.leaks) == 1


def test_memory_of_gpus_has_an_account_of_its_own(process):
    process.gpus = ((0, 80 * MIB), (0, 80 * MIB))
    loader = process.loader(takes=0)
    loader._inner.within = lambda: setattr(process, "gpus", ((0, 80 * MIB), (50 * MIB, 20 * MIB)))
    loader.load(M1)
    process.gpus = ((0, 80 * MIB), (20 * MIB, 60 * MIB))
    loader.unload()
    (memory,) = process.accounts.of("m")
    assert memory.devices == ["main", "gpu/0", "gpu/1"]
    assert memory.taken("gpu/1") == 60 * MIB  # with what is beside torch's own
    assert memory.leaked("gpu/0") == 0
    shown = memory.as_json()["gpus"][1]
    assert shown["allocated_after_load"] == 50 * MIB
    assert (shown["free_before"], shown["free_after_load"]) == (80 * MIB, 20 * MIB)


def test_the_first_load_is_not_charged_with_what_the_driver_takes_for_the_process(process):
    loader = process.loader(takes=0)
    loader._inner.within = lambda: setattr(process, "gpus", ((0, 80 * MIB),))
    loader.load(M1)
    loader.unload()
    (memory,) = process.accounts.of("m")
    assert (memory.taken("gpu/0"), memory.leaked("gpu/0")) == (None, None)


@pytest.mark.parametrize(("stays", "told"), [(32, False), (33, True)])
def test_on_a_gpu_more_than_32_mib_that_stay_behind_are_a_leak(process, stays, told):
    process.gpus = ((0, 1000 * MIB),)
    for _ in range(2):
        before = process.gpus[0][1]
        loader = process.loader(takes=0)
        loader._inner.within = lambda before=before: setattr(process, "gpus", ((0, before - 300 * MIB),))
        loader.load(M1)
        loader._inner.within = lambda: None
        account = process.accounts.unload(M1, loader._inner)
        with account:
            loader._inner.unload()
            process.gpus = ((0, before - stays * MIB),)
    assert process.leaks == ([(M1, {"gpu/0": stays * MIB})] if told else [])


class Holding:
    """A model that can say what it holds."""

    worker = WorkerStatus()

    def __init__(self, weights):
        self.weights = weights

    def measured_bytes(self):
        return {"gpu/0": {"weights": self.weights, "graphs": 1}, "main": {"staging": 7}}


class Held:
    models = (Holding(10), Holding(20))


class Measuring(Growing):
    @property
    def servable(self):
        return None if super().servable is None else Held


def test_what_the_instances_hold_is_added_by_device_and_kind_and_kept_after_the_unload(process):
    loader = AccountedLoader(M1, Measuring(process, 0, 0), process.accounts)
    loader.load(M1)
    held = {"gpu/0": {"weights": 30, "graphs": 2}, "main": {"staging": 14}}
    assert process.accounts.of_version(M1).held == held
    assert process.accounts.of_version(M1).as_json()["held"] == held
    loader.unload()
    assert process.accounts.of_version(M1).held == held


def test_what_has_ended_is_bounded_and_goes_with_the_model(process):
    for version in range(20):
        process.cycle(ServableId("m", version))
    assert [memory.version for memory in process.accounts.of("m")] == [19, 18, 17, 16]
    process.accounts.model_gone("m")
    assert process.accounts.of("m") == ()
    assert process.accounts.of_version(M1) is None


def test_versions_in_memory_are_listed(process):
    process.loader(M1).load(M1)
    process.cycle(M2)
    assert [(name, memory.version) for name, memory in process.accounts.resident()] == [("m", 1)]


def test_its_json_has_the_figures_of_the_three_moments(process):
    process.cycle(gives=250)
    shown = process.accounts.of_version(M1).as_json()
    assert shown["rss_before"] == 1000 * MIB
    assert shown["rss_after_load"] == 1300 * MIB
    assert shown["rss_after_unload"] == 1050 * MIB
    assert (shown["given_back"], shown["leaked"], shown["disturbed"]) == (250 * MIB, 50 * MIB, False)


def test_a_real_process_has_memory():
    assert read_moment().rss > MIB
    assert resident_memory(os.getpid()) > MIB
    assert resident_memory(2**30) is None


class Giving:
    """Gives back what it is told to, by the cheap way and by a collection, in MiB."""

    def __init__(self, process, free=0, collected=0):
        self.process, self.free, self.collected = process, free, collected
        self.calls, self.exemptions = [], 0
        process.accounts = MemoryAccounts(
            lambda servable_id, leaked: process.leaks.append((servable_id, dict(leaked))),
            lambda: Moment(process.rss, process.gpus),
            self,
        )

    def return_free(self):
        self.calls.append("free")
        self.process.rss -= self.free * MIB

    def collect(self):
        self.calls.append("collect")
        self.process.rss -= self.collected * MIB

    def exempted(self):
        return self.exemptions

    def collect_exempt(self):
        self.calls.append("collect exempt")

    def owe(self, left):
        self.calls.append(left / MIB)


@pytest.mark.parametrize(
    ("gives", "free", "calls"),
    [(300, 0, [1 / 16]), (290, 0, [10]), (100, 190, ["free", 10]), (100, 0, ["free", "collect"])],
)
def test_an_unload_is_followed_by_a_collection_only_where_much_is_left_behind(process, gives, free, calls):
    giving = Giving(process, free, collected=200)
    process.cycle(gives=gives)
    assert giving.calls == calls


@pytest.mark.parametrize(("exempted", "calls"), [(0, []), (1, ["collect exempt"])])
def test_what_loads_have_exempted_is_collected_only_where_that_may_be_what_is_left(process, exempted, calls):
    giving = Giving(process)
    loader = process.loader(gives=100)
    loader.load(M1)
    giving.exemptions += exempted
    loader.unload()
    assert giving.calls == ["free", "collect", *calls]


def test_what_a_collection_frees_is_no_leak(process):
    Giving(process, collected=200)
    for _ in range(3):
        process.cycle(gives=100)
    assert process.leaks == []
    assert process.accounts.of_version(M1).leaked("main") == 0


@pytest.mark.parametrize(("takes", "calls"), [(300, ["free", "collect"]), (10, [10])])
def test_the_figures_of_a_disturbed_unload_do_not_spare_a_collection(process, takes, calls):
    giving = Giving(process)
    loader = process.loader(takes=takes)
    loader._inner.within = process.accounts.disturb
    loader.load(M1)
    loader.unload()
    assert giving.calls == calls


@pytest.mark.parametrize(("grown", "calls"), [(100, ["collect"]), (1, [1])])
def test_a_failed_load_is_followed_by_a_collection_only_where_much_is_left_behind(process, grown, calls):
    giving = Giving(process)
    loader = process.loader(failures=1)
    loader._inner.within = lambda: setattr(process, "rss", process.rss + grown * MIB)
    refusal(loader.load, M1, code=StatusCode.UNAVAILABLE)
    assert giving.calls == calls
