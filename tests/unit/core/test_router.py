"""Whole lists to one of several ports, by name."""

from __future__ import annotations

import threading

import pytest

from tfs_lite.core.router import NO_ROUTE, DynamicSourceRouter, SourceRouter, StaticSourceRouter
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import ServingError, StatusCode


class FixedRouter(SourceRouter):
    """Sends everything to one port."""

    def __init__(self, num_ports: int, port: int) -> None:
        super().__init__(num_ports)
        self._port = port

    def route(self, name, versions) -> int:
        return self._port


def tapped(router: SourceRouter) -> list[tuple[int, str]]:
    """Connects every port; what comes out appears in the list."""
    seen: list[tuple[int, str]] = []
    for index, port in enumerate(router.ports):
        port.set_aspired_versions_callback(lambda name, versions, index=index: seen.append((index, name)))
    return seen


def send(router: SourceRouter, *names: str) -> None:
    emit = router.aspired_versions_callback()
    for name in names:
        emit(name, [ServableData.ok(ServableId(name, 1), "path")])


def test_static_router_takes_the_first_substring_that_matches_and_the_last_port_for_the_rest() -> None:
    router = StaticSourceRouter(["mnist", "nist"])
    seen = tapped(router)
    send(router, "my_mnist_v2", "nist", "other", "mnist")
    assert seen == [(0, "my_mnist_v2"), (1, "nist"), (2, "other"), (0, "mnist")]


def test_static_router_reads_no_patterns() -> None:
    router = StaticSourceRouter(["a.c"])
    seen = tapped(router)
    send(router, "abc", "a.c")
    assert seen == [(1, "abc"), (0, "a.c")]


def test_dynamic_router_follows_its_table_and_the_newest_one() -> None:
    router = DynamicSourceRouter(3, {"a": 0, "b": 1})
    seen = tapped(router)
    send(router, "a", "b", "c")
    router.update_routes({"c": 0})
    send(router, "a", "c")
    assert seen == [(0, "a"), (1, "b"), (2, "c"), (2, "a"), (0, "c")]


@pytest.mark.parametrize("port", [-1, 2, 3])
def test_dynamic_router_refuses_ports_that_cannot_be_named_and_keeps_its_table(port: int) -> None:
    with pytest.raises(ServingError, match="ports 0 to 1 can be named") as raised:
        DynamicSourceRouter(3, {"a": port})
    assert raised.value.code is StatusCode.INVALID_ARGUMENT
    router = DynamicSourceRouter(3, {"a": 1})
    with pytest.raises(ServingError):
        router.update_routes({"a": 0, "b": port})
    seen = tapped(router)
    send(router, "a")
    assert seen == [(1, "a")]


def test_table_in_force_does_not_change_under_the_router() -> None:
    routes = {"a": 0}
    router = DynamicSourceRouter(2, routes)
    seen = tapped(router)
    routes["a"] = 99
    send(router, "a")
    assert seen == [(0, "a")]


def test_call_without_a_route_is_dropped_silently(caplog) -> None:
    router = FixedRouter(2, NO_ROUTE)
    seen = tapped(router)
    send(router, "a")
    assert (seen, caplog.text) == ([], "")


@pytest.mark.parametrize("port", [2, -2])
def test_call_for_a_port_that_does_not_exist_is_dropped_and_logged(port: int, caplog) -> None:
    router = FixedRouter(2, port)
    seen = tapped(router)
    send(router, "a")
    assert seen == []
    assert f"no port {port} for a" in caplog.text


@pytest.mark.parametrize("num_ports", [0, -3])
def test_router_has_at_least_one_port(num_ports: int, caplog) -> None:
    router = FixedRouter(num_ports, 0)
    seen = tapped(router)
    send(router, "a")
    assert seen == [(0, "a")]
    assert "needs at least one port" in caplog.text


def test_call_waits_until_its_port_is_connected() -> None:
    router, seen = FixedRouter(2, 1), []
    sending = threading.Thread(target=send, args=(router, "a"))
    sending.start()
    router.ports[1].set_aspired_versions_callback(lambda name, versions: seen.append(name))
    sending.join(60)
    assert seen == ["a"]


def test_detaching_lets_go_of_who_waits_for_a_port() -> None:
    router = FixedRouter(1, 0)
    sending = threading.Thread(target=send, args=(router, "a"))
    sending.start()
    router.detach()
    sending.join(60)
    assert not sending.is_alive()
