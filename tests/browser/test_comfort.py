"""What the page does for people who use a keyboard, a screen reader, little motion, or look elsewhere; and that texts
which only an open model shows are texts, whatever they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.in_process import serving
from tfs_lite.operations.dashboard.feature import DashboardFeature

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
Publish = Callable[..., Path]
BAD = "<img src=x onerror=alert(1)></script>\u0000\u202e" + "x" * 300
HIDDEN = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
MOVING = "document.getAnimations().filter((each) => each.playState === 'running').length"


def test_keyboard_alone_opens_a_model_and_a_table_of_its_numbers(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    publish(tmp_path, "ranker", 1)
    with serving(tmp_path, model_repository=str(tmp_path)) as served, viewer(served.url) as seen:
        page = seen.page
        seen.open()
        seen.wait_text("ranker", "tbody")
        assert page.locator("h1").count() == page.locator("main").count() == 1

        def focused(name: str) -> bool:
            page.keyboard.press("Tab")
            here = "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent)"
            return bool(page.evaluate(here) == name)

        seen.wait(lambda: focused("ranker"), "the model is reached by Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        plot = page.get_by_role("img", name="Requests/s: v1")
        seen.wait(lambda: served.version("ranker") and plot.count(), "a plot tells its last value")
        seen.wait(lambda: focused("Requests/s as a table"), "the button of its table is reached by Tab")
        page.keyboard.press("Enter")
        seen.wait(lambda: page.locator("figure table").count() == 1, "the plot is a table")


def test_page_that_nobody_sees_does_not_watch(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    publish(tmp_path, "ranker", 1)
    with serving(tmp_path, model_repository=str(tmp_path)) as served, viewer(served.url) as seen:
        feed = served.server.core.find(DashboardFeature).dashboard._feed
        seen.open()
        seen.wait_text("Live", "[role=status]")
        assert feed.viewers == 1
        seen.page.evaluate(HIDDEN, True)
        seen.wait(lambda: feed.viewers == 0, "the server has one viewer less")
        seen.page.evaluate(HIDDEN, False)
        seen.wait(lambda: feed.viewers == 1, "it watches again")
        seen.wait_text("Live", "[role=status]")


def test_nothing_moves_for_those_who_wish_so(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    publish(tmp_path, "ranker", 1)
    with (
        serving(tmp_path, model_repository=str(tmp_path)) as served,
        viewer(served.url, reduced_motion="reduce") as seen,
    ):
        seen.open("#model=ranker")
        seen.wait_text("Serving", ".title")
        assert seen.page.evaluate(MOVING) == 0
        assert seen.page.evaluate("getComputedStyle(document.querySelector('button')).transitionDuration") == "0s"


def test_texts_of_an_open_model_never_become_markup(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    """Names of tensors, what workers say, labels, events, failures, and the config."""
    publish(tmp_path, "ranker", 1)
    with serving(tmp_path, model_repository=str(tmp_path)) as served, viewer(served.url) as seen:
        page = seen.page

        def spoil(route: Any) -> None:
            found = route.fetch().json()
            details = found["details"]
            link = {"cause": BAD, "text": BAD, "since": None, "fix": BAD, "doc": BAD}
            details["explanation"] |= {"because": [link], "sentence": BAD, "verdict": "FAILED"}
            replica = {"version": 1, "name": BAD, "state": BAD, "since": None, "node": BAD, "pid": 1, "ongoing": None}
            details["workers"] = [replica | {"restarts": 1, "reason": BAD, "sandbox": {"holds": [BAD], "lacks": []}}]
            for event in details["events"]:
                event |= {"text": BAD, "kind": BAD, "by": BAD, "cause": BAD}
            details["codes"] = {"1": {BAD: 2}}
            route.fulfill(json=found)

        tensor = {"name": BAD, "datatype": "FP32", "shape": [-1, 3]}
        page.route("**/v1/overview?*", spoil)
        metadata = {"name": "ranker", "versions": ["1"], "platform": BAD, "inputs": [tensor], "outputs": [tensor]}
        page.route("**/v2/models/ranker", lambda route: route.fulfill(json=metadata))
        page.route("**/v2/models/ranker/config", lambda route: route.fulfill(json={"name": BAD}))
        seen.open("#model=ranker")
        for part in ("[aria-label=Why]", "[aria-label=Workers]", "[aria-label=Events]"):
            seen.wait_text("onerror=alert(1)></script>\\u0000\\u202exxx", part)
        page.get_by_text("Try a prediction").click()
        seen.wait(lambda: json.dumps(BAD)[1:40] in page.locator("textarea").input_value(), "the example has the name")
        page.get_by_text("Config", exact=True).click()
        seen.wait(lambda: "onerror" in page.locator("details pre").last.inner_text(), "the config is there")
        assert page.locator("img, script:not([src]), [onerror], [onload]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
