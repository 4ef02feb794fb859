from __future__ import annotations

import pytest

from tfs_lite.server.http.replies import preflight_status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://a.example", 200),
        ("https://a.example:8080", 200),
        ("null, http://a.example", 200),
        ("file://x", 400),
        ("null", 400),
        ("", 400),
        (None, 400),
    ],
)
def test_preflight_needs_the_origin_of_a_web_page(origin: str | None, status: int) -> None:
    assert preflight_status(origin) == status
