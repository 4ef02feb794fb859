"""The files of the page: their size, their headers, and what may not be in them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from tfs_lite.core.status import ServingError
from tfs_lite.operations.dashboard.page import INDEX, PAGE_HEADERS, Page, read_files
from tfs_lite.server.http.message import Headers, HttpHead, IncomingBody, Request

KIB = 1024
MOST_PLAIN, MOST_PACKED = 62 * KIB, 21 * KIB
FILES = read_files()


def request(path: str, **headers: str) -> Request:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(HttpHead("GET", path, Headers(fields)), IncomingBody(), 0.0)


def test_page_is_small() -> None:
    """HTML, CSS and JavaScript together."""
    texts = [file.plain for name, file in sorted(FILES.items()) if not name.endswith(".svg")]
    assert sum(map(len, texts)) <= MOST_PLAIN
    assert len(gzip.compress(b"".join(texts), 9)) <= MOST_PACKED


def test_page_needs_nothing_from_elsewhere_and_makes_no_markup_of_texts() -> None:
    for name, file in FILES.items():
        text = file.plain.decode()
        assert not re.search(r"^\s*//", text, re.MULTILINE), f"{name} is sent with comments"
        found = re.findall(r"https?://[^\s\"'<>)]+", text)
        assert set(found) <= {"http://www.w3.org/2000/svg"}, name
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "style=",
        ):
            assert word not in text, f"{word} in {name}"
    index = FILES[INDEX].plain.decode()
    assert re.findall(r"<script(?![^>]*src=)", index) == []
    for asset in re.findall(r"/dashboard/assets/([\w.]+)", index):
        assert asset in FILES
    for name, file in FILES.items():
        for imported in re.findall(r'from "\./([\w.]+)"', file.plain.decode()):
            assert imported in FILES, name


def test_browser_that_has_the_file_is_told_so() -> None:
    page = Page()
    first = page.index(request("/"))
    assert first.status == 200
    again = page.index(request("/", if_none_match=first.headers["etag"]))
    assert (again.status, again.body) == (304, b"")
    assert page.index(request("/", if_none_match='"other"')).status == 200


def test_file_is_packed_for_whoever_takes_it() -> None:
    page = Page()
    packed = page.asset(request("/dashboard/assets/app.js", accept_encoding="gzip, br"), "app.js")
    plain = page.asset(request("/dashboard/assets/app.js"), "app.js")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert plain.headers.keys() >= PAGE_HEADERS.keys()
    assert plain.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["nothing.js", INDEX, "", "../page.py", "__init__.py"])
def test_there_are_no_other_files(name: str) -> None:
    with pytest.raises(ServingError, match="no such page"):
        Page().asset(request(f"/dashboard/assets/{name}"), name)


def test_files_are_part_of_the_package() -> None:
    """The wheel has everything below the package; nothing there is ignored by git, which would leave it out."""
    folder = Path(__file__).parents[4] / "tfs_lite/operations/dashboard/static"
    assert {path.name for path in folder.iterdir()} == set(FILES)
