"""Lines of the log: one for each message, whatever stands in it."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.servable import ServableId
from tfs_lite.protocols.log_format import MAX_LINE, JsonFormatter, TextFormatter, escaped

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)


def line(message: str, *values: object, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("tfs_lite.some", logging.INFO, "file", 1, message, values, None)
    record.__dict__.update(extra)
    return record


def failed(message: str) -> logging.LogRecord:
    try:
        raise ValueError(message)
    except ValueError:
        return logging.LogRecord("tfs_lite.some", logging.ERROR, "file", 1, "it failed", (), sys.exc_info())


def test_a_line_of_json_has_time_level_logger_message_thread_and_what_else_there_is():
    record = line("%s is served", "m", model="m", version=7, unknown="left out")
    record.created = 1700000000.25
    found = orjson.loads(JsonFormatter().format(record))
    assert datetime.fromisoformat(found["ts"]) == datetime.fromtimestamp(1700000000.25, UTC)
    assert (found["level"], found["logger"], found["msg"], found["thread"]) == (
        "INFO",
        "tfs_lite.some",
        "m is served",
        "MainThread",
    )
    assert (found["model"], found["version"], "unknown" in found) == ("m", 7, False)


def test_a_line_of_text_is_as_it_always_was():
    record = line("%s is served", "m")
    text = TextFormatter("[process of x] ").format(record)
    assert text.endswith(" INFO [process of x] m is served")
    assert datetime.strptime(text[:23], "%Y-%m-%d %H:%M:%S.%f")


@given(ANY_TEXT)
def test_no_name_forges_a_line_of_json(name: str):
    text = JsonFormatter().format(line("%s is served", name, model=name, code=3))
    assert len(text.splitlines()) == 1
    found = orjson.loads(text)
    assert found["model"] == escaped(name)
    text.encode()


@given(ANY_TEXT)
def test_no_name_forges_a_line_of_text(name: str):
    text = TextFormatter().format(line("%s is served", name))
    assert len(text.splitlines()) == 1
    assert text.isprintable() or not name.isprintable()
    text.encode()


def test_text_of_an_error_stands_in_lines_that_are_indented():
    first, *others = TextFormatter().format(failed("one\n2026-01-01 00:00:00.000 ERROR forged")).split("\n")
    assert first.endswith("ERROR it failed")
    assert "forged" in others[-1]
    assert all(other.startswith("    ") for other in others)


def test_an_error_has_type_message_and_stack():
    found = orjson.loads(JsonFormatter().format(failed("one\ntwo")))
    assert (found["error"]["type"], found["error"]["message"]) == ("ValueError", "one\\ntwo")
    assert "test_log_format.py" in found["error"]["stack"]


def test_a_story_is_lines_of_its_own_in_text_and_a_stack_in_json():
    record = line("it failed", story='Traceback\n  File "model.py", line 5\nKeyError: \x1b[31m')
    text = TextFormatter().format(record).split("\n")
    assert text[0].endswith("INFO it failed")
    assert text[1:] == ["    Traceback", '      File "model.py", line 5', "    KeyError: \\x1b[31m"]
    found = orjson.loads(JsonFormatter().format(record))["error"]
    assert found == {"stack": 'Traceback\n  File "model.py", line 5\nKeyError: \\x1b[31m'}
    assert "error" not in orjson.loads(JsonFormatter().format(line("it failed", story="")))


def test_a_line_of_json_about_a_version_names_its_model_and_number():
    found = orjson.loads(JsonFormatter().format(line("%s is available after %d s", ServableId("m", 7), 3)))
    assert (found["model"], found["version"], found["msg"]) == ("m", 7, "{name: m version: 7} is available after 3 s")
    other = orjson.loads(JsonFormatter().format(line("%s", ServableId("m", 7), model="other")))
    assert other["model"] == "other"


@pytest.mark.parametrize("record", [line("x" * 100_000), line("é" * 50_000, model="m"), failed("y" * 200_000)])
def test_a_line_of_json_is_bounded(record: logging.LogRecord):
    text = JsonFormatter().format(record)
    assert len(text.encode()) <= MAX_LINE
    assert orjson.loads(text)["level"] == record.levelname
