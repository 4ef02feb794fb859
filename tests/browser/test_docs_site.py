"""The docs site, where ``make docs`` has built it: what a reader sees of it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfs_lite import __version__

SITE = Path(__file__).parents[2] / "site" / __version__
SCREENS = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
WIDE = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(params=SCREENS)
def screen(request: pytest.FixtureRequest, browser: Any) -> Any:
    if not SITE.is_dir():
        pytest.skip("there is no site: make docs")
    context = browser.new_context(viewport=SCREENS[request.param])
    yield context.new_page()
    context.close()


def test_the_first_page_is_one_screen(screen: Any) -> None:
    """What it is, for whom, why not another one, and how in two minutes, in full."""
    screen.goto(SITE.joinpath("docs/index.html").as_uri())
    boxes = [part.bounding_box() for part in screen.locator("article section > *").all()]
    assert all(box["y"] >= 0 for box in boxes)
    assert max(box["y"] + box["height"] for box in boxes) <= screen.viewport_size["height"]
    (code,) = screen.locator("article pre").all()
    assert code.evaluate("code => code.scrollWidth <= code.clientWidth")


def test_no_page_of_the_site_is_wider_than_the_screen(screen: Any) -> None:
    """Wide tables and code scroll by themselves."""
    wide = []
    for page in sorted(SITE.glob("*/**/*.html")):
        if "_static" not in page.parts:
            screen.goto(page.as_uri())
            wide += [str(page.relative_to(SITE))] if screen.evaluate(WIDE) > 0 else []
    assert wide == []


def test_the_pictures_follow_the_button_for_light_and_dark(browser: Any) -> None:
    if not SITE.is_dir():
        pytest.skip("there is no site: make docs")
    page = browser.new_context(color_scheme="light").new_page()
    page.goto(SITE.joinpath("docs/production.html").as_uri())
    schemes = []
    for _ in range(3):
        schemes.append(page.locator("article img").evaluate("picture => getComputedStyle(picture).colorScheme"))
        page.locator("button.theme-toggle:visible").first.click()
    page.context.close()
    assert schemes == ["normal", "dark", "light"]
