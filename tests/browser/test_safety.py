"""What the page must never do: make markup of a text, break its own policy, offer what is not allowed, keep a viewer
out who uses a keyboard or a screen reader."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.in_process import serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import wait_until

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
Publish = Callable[..., Path]

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "'\"><svg onload=alert(1)>",
    "{{7*7}}${7*7}",
    "x" * 200,
    "back\u202ewards",
    "__proto__",
)
FROM_ELSEWHERE = {"extra_http_headers": {"x-forwarded-for": "203.0.113.7"}}


def test_names_and_error_texts_never_become_markup(viewer: Open, tmp_path: Path) -> None:
    root = tmp_path / "models"
    for number, name in enumerate(HOSTILE):
        text = f"{name} </script><script>alert({number})</script> \x00\x1b[31m \ud800"
        source = f"class Model:\n    def __init__(self, context): raise RuntimeError({text!r})\n"
        source += "    def predict(self, x): return {'y': x}\n"
        write_python_version(root / name, 1, source)
    options: dict[str, Any] = {"trusted_model_base_paths": (f"{root}/*",), "max_num_load_retries": 0}
    with serving(root, ready=False, model_repository=str(root), **options) as served, viewer(served.url) as seen:
        served.server.wait_ready(60)
        seen.expected = ("Failed to load resource",)
        seen.open()
        seen.wait(lambda: seen.page.locator("tbody tr").count() == len(HOSTILE), "every model has a row")
        assert seen.page.locator("img, script:not([src]), [onerror], [onload]").count() == 0
        assert "back\\u202ewards" in seen.text("tbody")
        for place in range(len(HOSTILE)):
            seen.page.locator("tbody a").nth(place).click()
            seen.wait(lambda: seen.page.locator(".card.why li, .card.why .sentence").count() > 0, "it says why")
            seen.wait_text("RuntimeError", "main")
            seen.page.get_by_text("Config", exact=True).click()
            assert seen.page.locator("img, script:not([src]), [onerror], [onload]").count() == 0
            seen.page.get_by_role("link", name="All models").click()
            seen.wait(lambda: seen.page.locator("table.models").count() == 1, "the list is back")


def test_feed_may_hold_anything(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    """Half of a pair, NUL, and markup in every text that a server could send."""
    publish(tmp_path, "m", 1)
    bad = "<img src=x onerror=alert(1)>\\u0000\\ud800\\u202e"
    model = (
        f'{{"name":"{bad}","rank":0,"verdict":"{bad}","sentence":"{bad}","fix":"{bad}","answers":null,"event":1,'
        f'"now":{{"requests":1e308}},"unanswered":{{}},"versions":[{{"version":"{bad}","state":"{bad}","since":1,'
        f'"wanted":true,"message":"{bad}","labels":["{bad}"],"now":{{}},"replicas":{{"ready":"{bad}","of":1}}}}]}}'
    )
    server = (
        f'{{"product":"{bad}","version":"{bad}","started":1,"time":2,"ready":false,"why":"{bad}","control":"{bad}",'
        f'"tick":1,"now":{{}},"resident":1,"memory":[{{"device":"{bad}","instance":0,"used":1,"total":0}}]}}'
    )
    feed = (
        f'data: {{"may":["{bad}"]}}\n\ndata: {{"server":{server},"whole":true,"gone":["{bad}"],"models":[{model}]}}\n\n'
    )
    with serving(tmp_path, model_name="m", model_base_path=str(tmp_path / "m")) as served, viewer(served.url) as seen:
        seen.page.route("**/dashboard/feed", lambda route: route.fulfill(body=feed, content_type="text/event-stream"))
        seen.open()
        seen.wait_text("onerror", "tbody")
        assert seen.page.locator("img, [onerror]").count() == 0
        assert "\\u202e" in seen.text("tbody")


def test_viewer_from_elsewhere_sees_no_buttons_and_may_not_press_them(
    viewer: Open, publish: Publish, tmp_path: Path
) -> None:
    publish(tmp_path, "m", 1)
    options: dict[str, Any] = {"model_control_mode": "explicit", "load_model": ("m",)}
    with serving(tmp_path, model_repository=str(tmp_path), **options) as served:
        with viewer(served.url) as seen:
            seen.open("#model=m")
            seen.wait(lambda: seen.page.locator(".title button").count() == 2, "from here it may be unloaded")
        with viewer(served.url, **FROM_ELSEWHERE) as seen:
            seen.expected = ("403 (Forbidden)",)
            seen.open("#model=m")
            seen.wait_text("Serving", ".title")
            assert seen.page.locator(".title button").count() == 0
            forged = "fetch('/v2/repository/models/m/unload', {method: 'POST', headers: {'content-type': 'application/json'}, body: '{}'}).then((answer) => answer.status)"  # noqa: E501
            assert seen.page.evaluate(forged) == 403
            assert seen.page.evaluate(forged.replace("/v2/repository/models/m/unload", "/v1/config:reload")) == 403
        assert served.version("m") == 1


POST_A_FORM = """
document.body.append(Object.assign(document.createElement("iframe"), { name: "answer" }));
const form = Object.assign(document.createElement("form"), { method: "post", action: "URL", target: "answer" });
document.body.append(form);
form.submit();
"""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of another origin, whose page is empty."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel=icon href=data:,><title>elsewhere</title>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_page_of_another_origin_can_neither_manage_nor_read(
    browser: Any, publish: Publish, elsewhere: str, tmp_path: Path
) -> None:
    publish(tmp_path, "m", 1)
    options: dict[str, Any] = {"model_control_mode": "explicit", "load_model": ("m",)}
    options |= {"rest_api_enable_cors_support": True}
    with serving(tmp_path, model_repository=str(tmp_path), **options) as served:
        tab = browser.new_context()
        page = tab.new_page()
        page.goto(elsewhere)
        form = "application/x-www-form-urlencoded"
        for mode, kind in (("no-cors", "text/plain"), ("no-cors", form), ("cors", "application/json")):
            post = f"fetch('{served.url}/v2/repository/models/m/unload', {{method: 'POST', mode: '{mode}', headers: {{'content-type': '{kind}'}}, body: '{{}}'}}).then(() => 'sent', () => 'refused')"  # noqa: E501
            page.evaluate(post)
        page.evaluate(f"navigator.sendBeacon('{served.url}/v2/repository/models/m/unload', '{{}}')")
        page.evaluate(POST_A_FORM.replace("URL", f"{served.url}/v2/repository/models/m/unload"))
        answered = page.frame_locator("iframe[name=answer]").locator("body")
        wait_until(lambda: "'manage' is refused" in answered.inner_text(), "the form was sent and refused")
        for path in ("/v1/overview", "/dashboard/feed", "/"):
            read = f"fetch('{served.url}{path}').then((answer) => answer.text(), () => 'refused')"
            assert page.evaluate(read) == "refused"
        page.evaluate(
            f"document.body.append(Object.assign(document.createElement('iframe'), {{src: '{served.url}/'}}))"
        )
        assert served.version("m") == 1
        tab.close()


def test_token_is_asked_for_and_opens_the_page(viewer: Open, publish: Publish, tmp_path: Path) -> None:
    token = "a-token-that-is-long-enough-for-the-file"
    file = tmp_path / "access"
    file.write_text(f"reader read {token}\n")
    file.chmod(0o600)
    root = tmp_path / "models"
    publish(root, "m", 1)
    options: dict[str, Any] = {"read_access": "token", "access_file": str(file)}
    with serving(root, model_repository=str(root), **options) as served, viewer(served.url) as seen:
        seen.expected = ("401 (Unauthorized)",)
        seen.open()
        seen.wait_text("A token is needed", "[role=status]")
        assert seen.page.locator("tbody").count() == 0
        seen.wait_text("shows nothing without a token", "main")
        seen.open("#model=m")
        seen.wait_text("shows nothing without a token", "main")
        seen.page.get_by_role("link", name="All models").click()
        seen.page.get_by_role("button", name="Token").click()
        seen.page.get_by_label("Token of the access file").fill(token)
        seen.page.keyboard.press("Enter")
        seen.wait(lambda: seen.page.locator("dialog").count() == 0, "Enter is the button Use")
        seen.wait_text("Live", "[role=status]")
        seen.wait_text("Serving", "tbody")
        assert token not in seen.page.content()
        assert token not in seen.page.url
        seen.page.reload()
        seen.wait_text("A token is needed", "[role=status]")


SIZES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
}


@pytest.mark.parametrize("size", SIZES)
def test_nothing_keeps_anybody_out(size: str, viewer: Open, publish: Publish, tmp_path: Path) -> None:
    """What axe can find on its own, and no sideways scrolling."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: the extra browser")
    root = tmp_path / "models"
    publish(root, "ranker", 1)
    publish(root, "broken", 1, b"no archive")
    with serving(root, ready=False, model_repository=str(root)) as served, viewer(served.url, **SIZES[size]) as seen:
        served.server.wait_ready(60)
        served.version("ranker")
        for place, text in (("", "ranker"), ("#model=ranker", "Time line"), ("#model=broken", "Do:")):
            seen.open(place)
            seen.wait_text(text, "main")
            if place:
                seen.wait_text("Config", "main")
                hidden = (
                    "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)"
                )
                assert size != "phone" or seen.page.evaluate(f"{hidden}.map((each) => each.ariaLabel)") == []
            found = axe.Axe().run(seen.page)
            assert found.violations_count == 0, found.generate_report()
            assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            seen.page.goto("about:blank")
            seen.problems.clear()
