"""Aspired lists on their way from a source to a target."""

from __future__ import annotations

import threading

import pytest

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.source import ErrorInjectingSourceAdapter, TargetBase, UnarySourceAdapter, connect
from tfs_lite.core.status import Status, StatusCode, invalid_argument

BAD = Status(StatusCode.NOT_FOUND, "gone")


def item(version: int, payload: object = "path") -> ServableData:
    return ServableData.ok(ServableId("m", version), payload, f"r{version}")


def errored(version: int) -> ServableData:
    return ServableData.error(ServableId("m", version), BAD)


class Sink(TargetBase):
    """Keeps what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[ServableData]]] = []

    def set_aspired_versions(self, name, versions) -> None:
        self.calls.append((name, list(versions)))


def chain(adapter) -> Sink:
    sink = Sink()
    connect(adapter, sink)
    return sink


def test_callback_reaches_the_target_until_it_is_detached() -> None:
    sink = Sink()
    emit = sink.aspired_versions_callback()
    emit("m", [item(1)])
    sink.detach()
    emit("m", [item(2)])
    sink.aspired_versions_callback()("m", [item(3)])
    assert sink.calls == [("m", [item(1)])]


def test_calls_come_one_at_a_time_and_detach_waits_for_the_one_in_progress() -> None:
    order: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    class Slow(TargetBase):
        def set_aspired_versions(self, name, versions) -> None:
            order.append(f"{name} in")
            entered.set()
            go_on.wait(60)
            order.append(f"{name} out")

    target = Slow()
    emit = target.aspired_versions_callback()
    first = threading.Thread(target=emit, args=("a", []))
    first.start()
    assert entered.wait(60)
    detaching = threading.Thread(target=lambda: (target.detach(), order.append("detached")))
    detaching.start()
    go_on.set()
    first.join(60)
    detaching.join(60)
    emit("late", [])
    assert order == ["a in", "a out", "detached"]


def test_unary_adapter_converts_item_by_item_and_keeps_order_and_revision() -> None:
    adapter = UnarySourceAdapter(lambda data: data.payload.upper())
    sink = chain(adapter)
    adapter.aspired_versions_callback()("m", [item(2, "b"), errored(5), item(1, "a")])
    assert sink.calls == [("m", [item(2, "B"), errored(5), item(1, "A")])]


def test_failed_conversion_becomes_an_errored_item_and_disturbs_no_sibling(caplog) -> None:
    def convert(data: ServableData) -> str:
        if data.id.version == 2:
            raise invalid_argument("no artefact")
        if data.id.version == 3:
            raise KeyError("x")
        return "fine"

    adapter = UnarySourceAdapter(convert)
    sink = chain(adapter)
    adapter.aspired_versions_callback()("m", [item(1), item(2), item(3)])
    ((_, (first, second, third)),) = sink.calls
    assert first.payload == "fine"
    assert (second.status, second.revision) == (Status(StatusCode.INVALID_ARGUMENT, "no artefact"), "r2")
    assert third.status.code is StatusCode.UNKNOWN


def test_empty_list_is_passed_on_under_the_same_name() -> None:
    adapter = UnarySourceAdapter(lambda data: data.payload)
    sink = chain(adapter)
    adapter.aspired_versions_callback()("m", [])
    assert sink.calls == [("m", [])]


def test_call_before_the_adapter_is_connected_waits_for_it() -> None:
    adapter, sink = UnarySourceAdapter(lambda data: data.payload), Sink()
    emitting = threading.Thread(target=adapter.aspired_versions_callback(), args=("m", [item(1)]))
    emitting.start()
    assert sink.calls == []
    connect(adapter, sink)
    emitting.join(60)
    assert sink.calls == [("m", [item(1)])]


def test_adapter_that_is_detached_before_it_is_connected_lets_go_of_its_callers() -> None:
    adapter = UnarySourceAdapter(lambda data: data.payload)
    emitting = threading.Thread(target=adapter.aspired_versions_callback(), args=("m", [item(1)]))
    emitting.start()
    adapter.detach()
    emitting.join(60)
    assert not emitting.is_alive()


def test_error_injecting_adapter_keeps_errors_that_are_there() -> None:
    injected = Status(StatusCode.FAILED_PRECONDITION, "no platform")
    adapter = ErrorInjectingSourceAdapter(injected)
    sink = chain(adapter)
    adapter.aspired_versions_callback()("m", [item(1), errored(2)])
    ((_, found),) = sink.calls
    assert [data.status for data in found] == [injected, BAD]


def test_adapters_form_chains() -> None:
    first = UnarySourceAdapter(lambda data: f"/base/{data.payload}")
    second = UnarySourceAdapter(lambda data: len(data.payload))
    connect(first, second)
    sink = chain(second)
    first.aspired_versions_callback()("m", [item(1, "ab")])
    assert sink.calls == [("m", [item(1, 8)])]


@pytest.mark.parametrize("adapter", [UnarySourceAdapter(lambda data: data.payload), ErrorInjectingSourceAdapter(BAD)])
def test_detached_adapter_passes_nothing_on(adapter) -> None:
    sink = chain(adapter)
    adapter.detach()
    adapter.aspired_versions_callback()("m", [item(1)])
    assert sink.calls == []
