"""What the lifecycle does, as events: a real manager in virtual time, lists from the test, who wanted each change."""

from __future__ import annotations

import random

import pytest

from tfs_lite.config.diff import diff
from tfs_lite.config.model_server import one_model
from tfs_lite.core.history import Cause, EventKind, History, Origin, acting
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.operations.history.memory import AccountedLoader, MemoryAccounts, Moment
from tfs_lite.operations.history.recorder import Recorder
from tfs_lite.serving.lifecycle_events import CacheEvicted, FetchBegun, FetchDone, FetchFailed
from tfs_lite.serving.load_journal import JournaledLoader, LoadJournal
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

K = EventKind
CALL = Origin(Cause.REPOSITORY_CALL, "127.0.0.1")
RELOAD = Origin(Cause.RELOAD_RPC, "deploy")
SHUTDOWN = Origin(Cause.SHUTDOWN)


class Recorded(ManagerFixture):
    """A manager whose events, attempts and lists are recorded."""

    def __init__(self, **options):
        self.configured = {"m", "n"}
        super().__init__(
            on_parked=lambda *found: self.recorder.on_parked(*found),
            on_drained=lambda found: self.recorder.on_drained(found, self.clock.time()),
            **options,
        )
        self.past = History(self.clock.time)
        self.accounts = MemoryAccounts(read=lambda: Moment(1 << 30))
        self.recorder = Recorder(self.past, self.accounts, self.configured.__contains__)
        self.journal = LoadJournal(self.recorder.on_attempt)
        self.monitor.subscribe(self.recorder.on_state)
        aspire = self.manager.aspired_versions_callback()

        def emit(name, versions):
            self.recorder.on_list(name, versions)
            aspire(name, versions)

        self.emit = emit

    def data(self, name, version, revision=""):
        item = super().data(name, version, revision)
        loader = AccountedLoader(item.id, item.payload, self.accounts)
        return item.with_payload(JournaledLoader(item.id, loader, self.journal))

    def report(self, *on_disk, waiting=None, name="m"):
        self.recorder.on_source_report(SourceReport(name, waiting=waiting or {}, on_disk=frozenset(on_disk)))

    def told(self, version=None, name="m"):
        """Kinds and causes, in order."""
        events = [event for event in self.past.of_model(name) if version in (None, event.version)]
        return [(event.kind.value, event.cause.value if event.cause else None) for event in events]

    def give_up(self):
        """Lets all attempts at a load fail."""
        for _ in range(6):
            self.clock.advance(60)
            self.settle()

    def texts(self, version, name="m"):
        return [event.text for event in self.past.of_model(name) if event.version == version]


@pytest.fixture
def served():
    return Recorded()


def by(cause, *kinds):
    return [(kind, cause) for kind in kinds]


def test_a_version_that_unloaded_itself_has_a_story(served):
    served.report(7, 8)
    served.serve("m", 8)
    handle = served.manager.get_servable_handle(ModelRef("m"))
    served.report(7)
    served.serve("m")
    served.clock.advance(1.5)
    handle.release()
    served.settle()
    assert served.texts(8)[-4:] == [
        "no longer wanted (POLL): directory 8 is gone",
        "unload begun, wanted by POLL",
        "DRAINED in 1.5 s",
        "ENDED",
    ]


def test_the_life_of_a_version_that_is_replaced(served):
    served.report(1, 2)
    served.serve("m", 1)
    served.serve("m", 2)
    life = ("ASPIRED", "LOAD_BEGUN", "AVAILABLE")
    assert served.told(1) == by("POLL", *life, "UNASPIRED", "UNLOAD_BEGUN", "DRAINED", "ENDED")
    assert served.told(2) == by("POLL", *life)
    assert "no longer wanted (POLL): the version policy wants only version 2 now" in served.texts(1)


def test_a_list_that_repeats_says_nothing(served):
    served.serve("m", 1)
    before = len(served.past)
    served.serve("m", 1)
    assert len(served.past) == before


def test_a_version_whose_files_arrive_is_seen_and_then_complete(served):
    served.report(1, waiting={1: "no files yet"})
    served.report(1, waiting={1: "model.pt2 is truncated"})
    served.serve("m", 1)
    assert [kind for kind, _ in served.told(1)][:3] == ["SEEN", "COMPLETE", "ASPIRED"]
    assert served.texts(1)[0] == "found, not complete: no files yet"


def test_a_version_that_is_only_asked_for_is_not_seen(served):
    served.report(waiting={3: "there is no such version directory"})
    assert served.told() == []


def test_what_a_call_wants_has_its_caller(served):
    with acting(CALL):
        served.serve("m", 1)
        served.serve("m")
    assert {cause for _, cause in served.told()} == {"REPOSITORY_CALL"}
    assert "no longer wanted (REPOSITORY_CALL, 127.0.0.1): the call unloads the model" in served.texts(1)


def test_the_first_list_after_a_config_has_the_cause_of_the_config(served, tmp_path):
    old, new = one_model("n", str(tmp_path), tmp_path), one_model("m", str(tmp_path), tmp_path)
    served.serve("n", 1)
    with acting(RELOAD):
        served.recorder.config_applied(diff(old, new), "added [m], removed [n]", {}, {"m": {"stable": 1}})
        served.configured.discard("n")
        served.serve("n")  # as the source does, before the call returns
    served.serve("m", 1)
    served.serve("m", 1, 2)
    assert served.told(1)[-3:] == by("RELOAD_RPC", "ASPIRED", "LOAD_BEGUN", "AVAILABLE")
    assert served.told(2)[0] == ("ASPIRED", "POLL")
    assert "label 'stable' moved by RELOAD_RPC (deploy)" in served.texts(1)
    removed = "no longer wanted (RELOAD_RPC, deploy): the model is not in the config any more"
    assert removed in served.texts(1, "n")
    assert [event.text for event in served.past.after(0, "")] == [
        "config applied by RELOAD_RPC (deploy): added [m], removed [n]"
    ]


def test_the_config_of_the_start_is_one_event(served, tmp_path):
    with acting(Origin(Cause.START)):
        served.recorder.config_applied(diff(None, one_model("m", str(tmp_path), tmp_path)), "added [m]", {}, {})
    assert [event.model for event in served.past.after(0)] == [""]
    served.serve("m", 1)
    assert {cause for _, cause in served.told(1)} == {"START"}


def test_a_config_without_a_list_does_not_claim_what_comes_later(served, tmp_path):
    with acting(RELOAD):
        served.recorder.config_applied(diff(None, one_model("m", str(tmp_path), tmp_path)), "added [m]", {}, {})
    missing = Status(StatusCode.NOT_FOUND, "model m: its base path does not exist")
    served.recorder.on_source_report(SourceReport("m", missing))
    served.serve("m", 1)
    assert served.told(1)[0] == ("ASPIRED", "POLL")


def test_a_stop_is_the_cause_of_what_it_unloads():
    served = Recorded(threads=0)
    served.serve("m", 1)
    served.recorder.stopping(SHUTDOWN)
    served.recorder.stopping(SHUTDOWN)
    served.manager.close()
    assert served.told(1)[-3:] == by("SHUTDOWN", "UNLOAD_BEGUN", "DRAINED", "ENDED")
    assert [event.kind for event in served.past.after(0, "")] == [K.SERVER_STOPPING]


def test_failed_attempts_are_told_and_then_the_end(served):
    served.loading[ServableId("m", 1)] = {"failures": -1}
    served.serve("m", 1)
    served.give_up()
    events = served.past.of_model("m")
    assert [event.kind for event in events] == [K.ASPIRED, K.LOAD_BEGUN, K.LOAD_ATTEMPT_FAILED, K.ENDED]
    assert events[2].count == 6
    assert events[3].status.message == "injected failure"


def test_changed_files_are_the_cause_of_the_next_load(served):
    served.loading[ServableId("m", 1)] = {"failures": -1, "failure": Status(StatusCode.INVALID_ARGUMENT, "broken")}
    served.serve("m", 1, revision="a")
    served.give_up()
    served.loading.clear()
    served.serve("m", 1, revision="b")
    assert served.told(1)[-3:] == by("FILES", "FILES_CHANGED", "LOAD_BEGUN", "AVAILABLE")


def raise_next(failures):
    if failures:
        raise failures.pop()


def test_what_waits_for_models_is_parked_and_not_failed(served):
    waits = ServingError(StatusCode.UNAVAILABLE, "it needs model n", Reason.WAITS_FOR_MODELS)
    failures = [waits]
    served.loading[ServableId("m", 1)] = {"while_loading": lambda: raise_next(failures)}
    served.serve("m", 1)
    assert ("PARKED", "POLL") in served.told(1)
    assert "load waits: it needs model n" in served.texts(1)
    assert ("LOAD_ATTEMPT_FAILED", "POLL") not in served.told(1)


def test_memory_that_comes_free_is_the_cause_of_the_load_that_had_none():
    served = Recorded(ram=100)
    for name in ("m", "n"):
        served.loading[ServableId(name, 1)] = {"estimate": main_ram(80)}
    served.serve("n", 1)
    served.serve("m", 1)
    assert served.told(1)[-1] == ("ENDED", "POLL")
    served.serve("n")
    assert served.told(1)[-2:] == by("MEMORY", "LOAD_BEGUN", "AVAILABLE")


def test_a_load_that_waits_for_memory_is_parked():
    served = Recorded(ram=100)
    for name in ("m", "n"):
        served.loading[ServableId(name, 1)] = {"estimate": main_ram(80)}
    served.serve("n", 1)
    handle = served.manager.get_servable_handle(ModelRef("n"))
    served.serve("n")
    served.serve("m", 1)
    assert served.texts(1)[-1] == "load waits: memory"
    handle.release()
    served.settle()
    assert served.texts(1)[-1].startswith("AVAILABLE")


def test_the_account_stands_in_the_events(served):
    served.serve("m", 1)
    served.serve("m")
    accounts = {event.kind: event.details["memory"] for event in served.past.of_model("m") if "memory" in event.details}
    assert accounts.keys() == {K.AVAILABLE, K.ENDED}
    assert accounts[K.AVAILABLE]["resident"]
    assert accounts[K.ENDED]["rss_after_unload"] == 1 << 30


def test_workers_leaks_and_refused_configs_are_told(served):
    served.recorder.on_worker(ServableId("m", 1), "signal 9")
    served.recorder.on_worker(ServableId("m", 1), None)
    served.recorder.on_leak(ServableId("m", 1), {"main": 1 << 30})
    with acting(RELOAD):
        served.recorder.config_refused(Status(StatusCode.INVALID_ARGUMENT, "no such field"))
    assert served.texts(1) == [
        "its process ended: signal 9",
        "its process runs again",
        "memory was not given back: 1024 MiB on main",
    ]
    assert served.past.after(0, "")[0].text == "config refused, wanted by RELOAD_RPC (deploy): no such field"


NEXT = {
    None: {K.LOAD_BEGUN, K.ENDED, K.PARKED, K.LOAD_ATTEMPT_FAILED},
    K.LOAD_BEGUN: {K.AVAILABLE, K.ENDED},
    K.AVAILABLE: {K.UNLOAD_BEGUN},
    K.UNLOAD_BEGUN: {K.DRAINED},
    K.DRAINED: {K.ENDED},
    K.ENDED: {K.LOAD_BEGUN, K.ENDED},
}
LAST = {
    HarnessState.READY: {K.AVAILABLE},
    HarnessState.LOADING: {K.LOAD_BEGUN},
    HarnessState.QUIESCING: {K.UNLOAD_BEGUN},
    HarnessState.QUIESCED: {K.DRAINED},
    HarnessState.ERROR: {K.ENDED},
}


def do_something(served, chance, handles):
    """One random step: a list, a handle taken or released, time, a tick."""
    name = chance.choice(["m", "n"])
    step = chance.randrange(6)
    if step == 0:
        with acting(chance.choice([CALL, RELOAD, Origin(Cause.POLL)])):
            served.aspire(name, *chance.sample(range(5), chance.randrange(4)), revision=str(chance.randrange(2)))
    elif step == 1 and served.ready(name):
        handles.append(served.manager.get_servable_handle(ModelRef(name)))
    elif step == 2 and handles:
        handles.pop(chance.randrange(len(handles))).release()
    elif step == 3:
        served.clock.advance(chance.choice([0.1, 60]))
    elif step == 4:
        served.tick()
    else:
        served.settle()


def last_kinds(events):
    """By version, after checking that its events follow one another as they may."""
    last = {}
    for event in events:
        if event.kind in NEXT:
            version = ServableId(event.model, event.version)
            assert event.cause is not None, event
            assert event.kind in NEXT[last.get(version)], (last.get(version), event)
            last[version] = event.kind
    return last


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_events_of_each_version_are_a_life_and_agree_with_the_manager(seed):
    chance = random.Random(seed)
    served = Recorded(ram=250, policy=chance.choice(["availability", "resource"]))
    for name in ("m", "n"):
        for version in range(5):
            failures = chance.choice([0, 0, 0, 1, -1])
            served.loading[ServableId(name, version)] = {"failures": failures, "estimate": main_ram(80)}
    handles = []
    for _ in range(150):
        do_something(served, chance, handles)
    for handle in handles:
        handle.release()
    served.settle()
    assert served.past.dropped == 0
    for version, last in last_kinds(served.past.after(0)).items():
        state = served.state(version.name, version.version)
        assert last in LAST.get(state, {last}), (version, state, last)


AWAY = Status(StatusCode.UNAVAILABLE, "its files cannot be fetched: the storage answers 503 SlowDown")
OF_V1 = ServableId("m", 1)


def test_a_fetch_is_told_when_it_begins_and_with_what_it_cost_when_it_has_ended(served):
    served.recorder.on_event(FetchBegun(OF_V1, 36 << 20))
    served.recorder.on_event(FetchDone(OF_V1, 36 << 20, 28 << 20, 1.25, 2))
    assert served.texts(1) == [
        "fetch begun: 36.0 MiB",
        "fetched after 1.25 s: 36.0 MiB, 28.0 MiB of it from the storage",
    ]
    (_, fetched) = served.past.of_model("m")
    assert fetched.details == {"bytes": 36 << 20, "fetched_bytes": 28 << 20, "seconds": 1.25, "attempts": 2}
    assert served.told(1) == by("POLL", "FETCH_BEGUN", "FETCHED")


def test_a_fetch_that_fails_with_each_poll_is_one_event_that_counts(served):
    for fetched in (5, 7, 7):
        served.recorder.on_event(FetchBegun(OF_V1, 100))
        served.recorder.on_event(FetchFailed(OF_V1, AWAY, fetched, 8))
    served.recorder.on_event(FetchDone(OF_V1, 100, 81, 1.0, 1))
    events = served.past.of_model("m")
    assert [(event.kind.value, event.count) for event in events] == [
        ("FETCH_BEGUN", 1),
        ("FETCH_FAILED", 3),
        ("FETCHED", 1),
    ]
    assert events[1].text == "its files cannot be fetched: the storage answers 503 SlowDown"
    served.recorder.on_event(FetchBegun(OF_V1, 100))
    assert served.told(1)[-1] == ("FETCH_BEGUN", "POLL")


def test_files_that_leave_the_cache_are_an_event_of_the_server(served):
    served.recorder.on_event(CacheEvicted("ab" * 16, 3 << 20))
    (event,) = served.past.after(0, "")
    assert event.text == "files that nothing uses were removed from the cache: 3.0 MiB"
    assert event.details == {"key": "ab" * 16, "bytes": 3 << 20}
