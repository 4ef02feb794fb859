"""The dashboard in a real browser: what somebody sees while models come, fail, answer and go."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.in_process import ServerFixture, config_text, entry, serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import ServerProcess

pytestmark = pytest.mark.slow

SOURCE = """class Model:
    def __init__(self, context): pass
    def predict(self, x): return {"y": x}
"""
Open = Callable[..., Any]
Publish = Callable[..., Path]


@contextlib.contextmanager
def load(served: ServerFixture, *models: str, pause: float = 0.005) -> Iterator[list[int]]:
    """Asks the models without end on a thread; the versions that answered, in order."""
    answered: list[int] = []
    failures: list[BaseException] = []
    ended = threading.Event()

    def ask() -> None:
        try:
            while not ended.wait(pause):
                answered.extend([served.version(model) for model in models])
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answered
    finally:
        ended.set()
        thread.join()
    assert failures == []


def test_a_swap_under_load_is_seen_as_it_happens(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    root = tmp_path / "models"
    publish(root, "ranker", 1)
    with (
        serving(root, model_repository=str(root)) as served,
        viewer(served.url) as seen,
        load(served, "ranker") as answered,
    ):
        seen.open("#model=ranker&range=2m")
        seen.wait_text("Serving", ".title")
        seen.wait(lambda: seen.page.locator("figure.plot").count() >= 3, "there are plots")
        publish(root, "ranker", 2)
        seen.wait_text("2", "tbody tr:first-child .chip")
        seen.wait(lambda: seen.page.locator(".lane").count() == 2, "the time line has a lane for each version")
        assert "serving" in seen.page.locator(".track").first.get_attribute("aria-label")
        seen.wait_text("unaspired", "[aria-label=Events]")
        seen.wait(lambda: "v2" in seen.text("figure.plot"), "the new version's requests are drawn")
        assert {1, 2} <= set(answered)
        assert "Failed requests" not in seen.text()


def test_a_broken_version_shows_its_cause_and_what_to_do(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    root = tmp_path / "models"
    publish(root, "ranker", 7)
    with serving(root, model_repository=str(root)) as served, viewer(served.url) as seen:
        seen.open()
        seen.wait_text("Serving", "tbody")
        publish(root, "ranker", 8, b"no archive")
        seen.wait_text("version 8", "tbody")
        seen.wait_text("no zip archive", "tbody")
        assert seen.page.locator("tbody .fix").count() == 1
        seen.page.get_by_role("link", name="ranker").click()
        seen.wait_text("Do:", ".card.why")
        assert "version 7 answers" in seen.text(".card.why")
        seen.wait_text("failed", "tbody")
        seen.wait_text("load attempt failed", "[aria-label=Events]")
        whole = seen.text("main")
        assert whole.count("no zip archive") == 2, "once as the cause, and once as an event"
        assert seen.page.get_by_role("link", name="Metrics").get_attribute("href") == "/metrics"
        assert served.url.removeprefix("http://") in seen.text("header")


def test_server_that_was_killed_and_started_again_is_found_by_the_page(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    publish(root, "ranker", 1)
    first = ServerProcess(f"--model_repository={root}")
    with first, viewer(f"http://127.0.0.1:{first.http_port}") as seen:
        seen.expected = ("Failed to load resource", "ERR_")
        seen.open()
        seen.wait_text("Live", "[role=status]")
        first.process.kill()
        first.process.wait(30)
        seen.wait_text("No connection", "[role=status]")
        assert "ranker" in seen.text("tbody"), "what was known stays"
        publish(root, "second", 1)
        again = ServerProcess(f"--model_repository={root}", f"--rest_api_port={first.http_port}")
        again.http_port = first.http_port
        with again:
            seen.wait_text("Live", "[role=status]", 60)
            seen.wait_text("second", "tbody")


def test_three_hundred_models_are_pages_of_a_table_with_a_search(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    for number in range(300):
        write_python_version(root / f"model_{number:03}", 1, SOURCE)
    publish(root, "ranker", 1, b"no archive")
    options: dict[str, Any] = {"trusted_model_base_paths": (f"{root}/*",), "num_initial_load_threads": 4}
    with serving(root, ready=False, model_repository=str(root), **options) as served, viewer(served.url) as seen:
        served.server.wait_ready(120)
        seen.open()
        seen.wait(lambda: seen.page.locator("tbody tr").count() == 100, "a page has a hundred rows")
        assert "ranker" in seen.text("tbody tr"), "the worst comes first"
        seen.wait_text("1 to 100 of 301")
        seen.page.get_by_role("button", name="Next").click()
        seen.wait_text("101 to 200 of 301")
        seen.page.keyboard.press("/")
        seen.page.keyboard.type("model_29")
        seen.wait(lambda: seen.page.locator("tbody tr").count() == 10, "the search leaves ten")
        seen.page.get_by_role("link", name="model_299").press("Enter")
        seen.wait_text("model_299", "h2")
        seen.page.keyboard.press("Escape")
        seen.wait(lambda: seen.page.locator("tbody tr").count() == 10, "the list is as it was")


def test_page_says_that_it_is_ready_with_one_model_of_two(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    root = tmp_path / "models"
    publish(root, "good", 1)
    publish(root, "bad", 1, b"no archive")
    with serving(root, ready=False, model_repository=str(root)) as served, viewer(served.url) as seen:
        served.server.wait_ready(60)
        seen.open()
        seen.wait_text("Ready, 1 of 2 models answers", "header .badge.warn")
        publish(root, "bad", 2)
        seen.wait(lambda: seen.text("header .badge.good").strip().endswith("Ready"), "both answer")


def test_prediction_is_tried_with_an_example_that_fits(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    root = tmp_path / "models"
    publish(root, "ranker", 4)
    with serving(root, model_repository=str(root)) as served, viewer(served.url) as seen:
        seen.expected = ("400 (Bad Request)",)
        seen.open("#model=ranker")
        seen.wait(lambda: seen.page.locator("summary").count() == 2, "the form is there")
        seen.page.get_by_text("Try a prediction").click()
        body = seen.page.locator("textarea")
        seen.wait(lambda: '"x"' in body.input_value(), "the example is there")
        seen.page.get_by_role("button", name="Predict").click()
        seen.wait_text("Answered", "details")
        assert "4.5" in seen.text("details pre"), "half and the version"
        body.fill('{"inputs": {"x": [[0.5]]}}')
        seen.page.get_by_role("button", name="Predict").click()
        seen.wait_text("Failed: 400", "details")
        errors = seen.page.locator("[aria-label=Versions] tbody td:nth-child(6) span").first

        def counted() -> Any:
            seen.page.get_by_role("button", name="Predict").click()
            return errors.evaluate("(each) => each.textContent !== '0' && each.outerHTML")

        assert "alarm" not in seen.wait(counted, "the error is counted"), "it is the caller's, and not red"


def test_models_are_loaded_and_unloaded_by_click_after_a_question(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    publish(root, "ranker", 1)
    options = {"model_repository": str(root), "model_control_mode": "explicit"}
    with serving(root, **options) as served, viewer(served.url) as seen:
        seen.open()
        seen.page.get_by_role("button", name="Load a model").click()
        seen.page.get_by_label("Its name").fill("ranker")
        seen.page.locator("dialog").get_by_role("button", name="Load").click()
        seen.wait_text("Serving", "tbody", 60)
        seen.page.get_by_role("link", name="ranker").click()
        seen.page.get_by_role("button", name="Unload").click()
        seen.wait_text("finishes its requests", "dialog")
        seen.page.locator("dialog").get_by_role("button", name="Cancel").click()
        assert served.version("ranker") == 1
        seen.page.get_by_role("button", name="Unload").click()
        seen.page.locator("dialog").get_by_role("button", name="Unload").click()
        seen.wait(lambda: seen.page.locator("dialog").count() == 0, "the question is gone")
        seen.wait(lambda: served.server.core.manager.available_versions("ranker") == set(), "it is unloaded")


def test_an_older_version_answers_again_by_click_of_those_who_may_and_the_newest_after_undo(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    for version in (1, 2):
        publish(root, "ranker", version)
    with serving(root, model_repository=str(root)) as served:
        with viewer(served.url, extra_http_headers={"x-forwarded-for": "203.0.113.7"}) as seen:
            seen.open("#model=ranker")
            seen.wait_text("Serving", ".title")
            assert seen.page.get_by_role("button", name="Go back").count() == 0
        with viewer(served.url) as seen:
            seen.open("#model=ranker")
            seen.page.get_by_role("button", name="Go back to version 1").click()
            seen.wait_text("no newer version does, until the next push", "dialog")
            seen.page.locator("dialog").get_by_role("button", name="Go back to version 1", exact=True).click()
            seen.wait(lambda: seen.page.locator("dialog").count() == 0, "the question is gone")
            seen.wait(lambda: served.version("ranker") == 1, "version 1 answers")
            seen.wait_text("rolled back to version 1", ".why li")
            seen.page.get_by_role("button", name="Undo the way back").click()
            seen.page.locator("dialog").get_by_role("button", name="Undo the way back", exact=True).click()
            seen.wait(lambda: served.version("ranker") == 2, "version 2 answers")


def test_a_version_that_is_pushed_after_the_way_back_answers_and_both_buttons_are_there(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    for version in (1, 2):
        publish(root, "ranker", version)
    with serving(root, model_repository=str(root)) as served, viewer(served.url) as seen:
        seen.open("#model=ranker")
        seen.page.get_by_role("button", name="Go back to version 1").click()
        assert seen.text("dialog h2") == "Go back to version 1 of ranker?"
        seen.page.locator("dialog button.main").click()
        seen.wait(lambda: served.version("ranker") == 1, "version 1 answers")
        titles = seen.page.locator(".title button")
        seen.wait(lambda: titles.all_inner_texts() == ["Undo the way back"], "it can be undone")
        publish(root, "ranker", 3)
        seen.wait(lambda: served.version("ranker") == 3, "the pushed version answers")
        both = ["Go back to version 1", "Undo the way back"]
        seen.wait(lambda: titles.all_inner_texts() == both, "back again, or version 2 may answer")
        seen.wait_text("rolled back to version 1", "[aria-label=Versions]")


def test_config_file_models_have_no_buttons(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    """There is nothing to press where versions follow the disk."""
    publish(tmp_path, "ranker", 1)
    with serving(tmp_path, model_base_path=str(tmp_path / "ranker"), model_name="ranker") as served:
        served.reload(entry("ranker"))
        with viewer(served.url) as seen:
            seen.open("#model=ranker")
            seen.wait_text("Serving", ".title")
            assert seen.page.locator(".title button").count() == 0


def test_changed_config_file_is_read_again_by_click_of_those_who_may(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    publish(tmp_path, "ranker", 1)
    publish(tmp_path, "second", 1)
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("ranker")))
    with serving(tmp_path, model_config_file=str(file)) as served:
        file.write_text(config_text(tmp_path, entry("ranker"), entry("second")))
        with viewer(served.url, extra_http_headers={"x-forwarded-for": "203.0.113.7"}) as seen:
            seen.open()
            seen.wait_text("Serving", "tbody")
            assert seen.page.get_by_role("button", name="Look for changes").count() == 0
        with viewer(served.url) as seen:
            seen.open()
            seen.page.get_by_role("button", name="Look for changes").click()
            seen.wait_text("are read now", "dialog")
            seen.page.locator("dialog").get_by_role("button", name="Look").click()
            seen.wait(lambda: seen.page.locator("dialog").count() == 0, "the question is gone")
            seen.wait_text("second", "tbody")
            seen.expected = ("400 (Bad Request)",)
            file.write_text("no config")
            seen.page.get_by_role("button", name="Look for changes").click()
            seen.page.locator("dialog").get_by_role("button", name="Look").click()
            seen.wait_text("models.config", "dialog [role=alert]")


def test_config_file_that_is_refused_is_a_band_until_it_is_corrected(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    publish(tmp_path, "ranker", 1)
    file = tmp_path / "models.config"
    good = config_text(tmp_path, entry("ranker"))
    file.write_text(good)
    options: dict[str, Any] = {"model_config_file": str(file), "model_config_file_poll_wait_seconds": 0.1}
    with serving(tmp_path, **options) as served, viewer(served.url) as seen:
        band = seen.page.locator("main > [role=alert]")
        seen.open()
        seen.wait_text("Serving", "tbody")
        assert band.count() == 0
        file.write_text(good.replace("base_path", "bsae_path"))
        seen.wait_text("the config file was refused", "main > [role=alert]")
        assert "Do: correct the config file" in seen.text("main > [role=alert]")
        assert "Serving" in seen.text("tbody"), "what was in force stays so"
        seen.page.get_by_role("link", name="ranker").click()
        seen.wait_text("was refused: models.config", "[aria-label=Why]")
        assert band.count() == 1
        file.write_text(good)
        seen.wait(lambda: band.count() == 0, "the band is gone")
        seen.wait(lambda: seen.page.locator("[aria-label=Why]").count() == 0, "and so is the cause")


@pytest.mark.parametrize(("control", "words"), [("poll", "tfs-lite publish"), ("explicit", "Load one by its name")])
def test_page_without_models_says_how_one_comes(control: str, words: str, viewer: Open, tmp_path: Path) -> None:
    with (
        serving(tmp_path, model_repository=str(tmp_path), model_control_mode=control) as served,
        viewer(served.url) as seen,
    ):
        seen.open()
        seen.wait_text("No model is served", ".empty")
        assert words in seen.text(".empty")
