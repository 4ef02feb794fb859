"""What clients say of a request beside its content: nothing but what the rules allow is believed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.request_context import MAX_TRACESTATE, TraceContext, checked_id, parse_traceparent, read_context
from tfs_lite.transport.peer import Peer
from tfs_lite.transport.table import CallContext

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read():
    assert parse_traceparent(GOOD, "vendor=1") == TraceContext(TRACE, SPAN, 1, "vendor=1")
    assert parse_traceparent(GOOD[:-2] + "00") == TraceContext(TRACE, SPAN, 0)
    found = parse_traceparent(GOOD[:-2] + "03")
    assert found is not None
    assert found.sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD.upper(),
        GOOD + "-",
        GOOD + "\n",
        f" {GOOD}",
        f"01-{TRACE}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}g-01",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_anything_else_is_no_context(text: str):
    assert parse_traceparent(text) is None


@pytest.mark.parametrize("state", ["a=1\n", "é", "x" * (MAX_TRACESTATE + 1)])
def test_a_tracestate_that_is_too_long_or_no_text_is_left_out(state: str):
    assert parse_traceparent(GOOD, state) == TraceContext(TRACE, SPAN, 1)


@given(st.text())
def test_no_text_makes_the_reader_fail_or_goes_through_unless_it_is_right(text: str):
    found = parse_traceparent(text, text)
    assert found is None or re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", text)
    named = checked_id(text)
    assert named is None or re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", named)


def test_the_id_is_that_of_the_head_else_that_of_the_request_else_a_new_one():
    named = CallContext(None, {"x-request-id": "one"}, peer=Peer("10.0.0.7"))
    assert read_context(named, "two").request_id == "one"
    assert read_context(CallContext(None, {"x-request-id": "no id"}), "two").request_id == "two"
    assert read_context(CallContext(None), "two").request_id == "two"
    assert re.fullmatch("[0-9a-f]{16}", read_context(CallContext(None), "not an id").request_id)
    assert read_context(None).request_id != read_context(None).request_id
    assert read_context(named).peer == "10.0.0.7"
