"""A real browser in front of real servers. Without one these tests are skipped, with the reason.

    with viewer(served.url) as page: ...        # nothing may break the page's policy, fail in it, or leave the server

Waits poll from outside: the page's policy forbids what playwright's ``wait_for_function`` would evaluate inside.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
TIMEOUT = 30.0
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) => {
  window.violations.push(`${violatedDirective} ${blockedURI}`);
});
"""


@pytest.fixture(scope="session")
def executable(pytestconfig: pytest.Config) -> str:
    path = pytestconfig.getoption("--browser") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)}, and --browser is not given")
    return str(path)


@pytest.fixture(scope="session")
def browser(executable: str) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra browser")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield found
        found.close()


class Viewer:
    """One tab of one person. ``problems``: what the page must never do."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Parts of messages of the browser's console that the test provokes."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url))
        page.add_init_script(WATCH)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in self.expected):
            self.problems.append(f"console: {message.text}")

    def _request(self, url: str) -> None:
        if not url.startswith(self.base + "/"):
            self.problems.append(f"a request to {url}")

    def open(self, place: str = "") -> None:
        """``place`` is the hash."""
        self.page.goto(f"{self.base}/{place}")
        self.wait(lambda: self.page.locator("header").count() == 1, "the page is drawn")

    def wait(self, holds: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> Any:
        return wait_until(holds, what, timeout, 0.1)

    def text(self, selector: str = "body") -> str:
        return str(self.page.locator(selector).first.inner_text())

    def wait_text(self, words: str, selector: str = "body", timeout: float = TIMEOUT) -> None:
        try:
            self.wait(lambda: words in self.text(selector), f"{selector} says {words!r}", timeout)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def check(self) -> None:
        self.problems += self.page.evaluate("window.violations")
        assert self.problems == []


Open = Callable[..., contextlib.AbstractContextManager[Viewer]]


@pytest.fixture
def viewer(browser: Any) -> Open:
    @contextlib.contextmanager
    def opened(base: str, **context: Any) -> Iterator[Viewer]:
        tab = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        found = Viewer(tab.new_page(), base)
        try:
            yield found
            found.check()
        finally:
            tab.close()

    return opened


@pytest.fixture
def publish(archives: TaggedArchives, tmp_path: Path) -> Callable[..., Path]:
    """Publishes a model that answers with its version, or a file of exactly these bytes."""
    from tfs_lite.core.publish import publish as put

    def publish(root: Path, model: str, version: int, content: bytes | None = None) -> Path:
        source = archives.write(version, tmp_path / f"{version}.pt2")
        if content is not None:
            source.write_bytes(content)
        return Path(put(str(source), str(root / model), version).path)

    return publish
