"""The bytes of a response's head."""

from __future__ import annotations

import pytest

from tfs_lite.server.http import response_head
from tfs_lite.server.http.response_head import DateLine, header_lines, status_line


def test_status_line_has_the_usual_phrase() -> None:
    assert status_line(200) == b"HTTP/1.1 200 OK\r\n"
    assert status_line(499) == b"HTTP/1.1 499 \r\n"


def test_date_is_that_of_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    date, now = DateLine(), [784111777.9]
    monkeypatch.setattr(response_head.time, "time", lambda: now[0])
    assert date.get() == b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    now[0] += 0.2
    assert date.get() == b"date: Sun, 06 Nov 1994 08:49:38 GMT\r\n"


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\0b"])
def test_value_that_would_end_its_line_is_a_mistake(value: str) -> None:
    assert header_lines({"x": "1", "y": "\xe4"}) == (b"x: 1\r\ny: \xe4\r\n", False)
    assert header_lines({"connection": "Close"}) == (b"connection: Close\r\n", True)
    with pytest.raises(ValueError, match="control character"):
        header_lines({"x": value})
