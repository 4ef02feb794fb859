"""Events that every client reads as one line."""

import json

from tfs_lite.server.http.events import event


def test_event_is_one_line_however_lines_are_told_apart() -> None:
    body = {"text": "a\u2028b\u2029c\x85d\n\r\t😀"}
    sent = event(json.dumps(body, ensure_ascii=False).encode())
    line, empty, end = sent.decode().split("\n")
    assert (empty, end) == ("", "")
    assert line.splitlines() == [line]
    assert json.loads(line.removeprefix("data: ")) == body


def test_plain_body_goes_as_it_is() -> None:
    assert event(b'{"a": 1}') == b'data: {"a": 1}\n\n'
