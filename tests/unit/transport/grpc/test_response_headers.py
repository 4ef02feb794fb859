"""The header blocks of responses, as a client's decoder reads them."""

from __future__ import annotations

from functools import partial
from urllib.parse import unquote_to_bytes

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.transport.grpc.response_headers import (
    MAX_MESSAGE,
    OK_TRAILERS,
    RESPONSE_HEADERS,
    plain,
    trailers,
    trailers_only,
)

STATUS_200 = (":status", "200")
GRPC = ("content-type", "application/grpc")
ACCEPTS = ("grpc-accept-encoding", "identity,deflate,gzip")


def read(block: bytes) -> list[tuple[str, str]]:
    decoder = hpack.Decoder()
    fields = [(bytes(name).decode(), bytes(value).decode()) for name, value in decoder.decode(block, raw=True)]
    assert not decoder.header_table.dynamic_entries
    return fields


def message_of(block: bytes) -> str:
    """grpc-message as the client's user sees it."""
    return unquote_to_bytes(dict(read(block))["grpc-message"]).decode()


def test_response_headers_name_the_format_and_the_accepted_encodings() -> None:
    assert read(RESPONSE_HEADERS) == [STATUS_200, GRPC, ACCEPTS]


def test_trailers_of_a_call_that_went_well_are_the_status_alone() -> None:
    assert read(OK_TRAILERS) == [("grpc-status", "0")]
    assert trailers(0) == OK_TRAILERS


def test_trailers_carry_status_message_and_metadata_in_order() -> None:
    extra = [("retry-after-ms", "20"), ("x-y_z.0", " a, b "), ("grpc-status-details-bin", "CAUSAg"), ("e", "")]
    stripped = [(name, value.strip()) for name, value in extra]
    found = read(trailers(14, "model m: not yet", extra))
    assert found == [("grpc-status", "14"), ("grpc-message", "model m: not yet"), *stripped]
    assert read(trailers(0, "fine")) == [("grpc-status", "0"), ("grpc-message", "fine")]
    assert read(trailers(0, extra=[("a", "b")])) == [("grpc-status", "0"), ("a", "b")]


def test_trailers_alone_are_a_whole_answer() -> None:
    extra = ("grpc-accept-encoding", "identity")
    found = read(trailers_only(12, "no", [extra]))
    assert found == [STATUS_200, GRPC, ("grpc-status", "12"), ("grpc-message", "no"), extra]


def test_answers_in_plain_http_have_no_grpc_in_them() -> None:
    assert read(plain(415)) == [(":status", "415")]
    found = read(plain(405, allow="POST", retry_after="3"))
    assert found == [(":status", "405"), ("allow", "POST"), ("retry-after", "3")]


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        ("~ plain!", "~ plain!"),
        ("100%", "100%25"),
        ("%20", "%2520"),
        ("a\r\nb\tc\0d\x7f", "a%0D%0Ab%09c%00d%7F"),
        ("größer", "gr%C3%B6%C3%9Fer"),
        (" a b  ", "%20a b %20"),
        (" ", "%20"),
        ("\ud800", "?"),
    ],
    ids=["plain", "percent", "escape", "control", "utf8", "ends", "space", "surrogate"],
)
def test_message_is_percent_encoded(message: str, encoded: str) -> None:
    assert read(trailers(3, message))[1] == ("grpc-message", encoded)


@given(st.text(min_size=1, max_size=300))
def test_any_message_is_read_back(message: str) -> None:
    block = trailers(2, message)
    text = dict(read(block))["grpc-message"]
    assert text.isascii()
    assert text.isprintable()
    assert text == text.strip()
    assert message_of(block) == message


@given(
    st.text(min_size=1, max_size=8),
    st.integers(0, 11),
    st.sampled_from([MAX_MESSAGE, MAX_MESSAGE + 1, 5 * MAX_MESSAGE]),
)
def test_long_message_loses_its_end_and_is_whole_letters(unit: str, start: int, length: int) -> None:
    message = "s" * start + (unit * length)[:length]
    block = trailers(2, message)
    encoded, seen = dict(read(block))["grpc-message"], message_of(block)
    assert len(encoded) <= MAX_MESSAGE
    assert encoded == encoded.strip()
    assert message.startswith(seen)
    if unit.strip(" "):
        assert len(encoded) > MAX_MESSAGE - 12 - len(unit)


def test_message_of_just_the_largest_size_is_whole_and_one_that_is_cut_behind_a_space_ends_before_it() -> None:
    assert message_of(trailers(2, "m" * MAX_MESSAGE)) == "m" * MAX_MESSAGE
    assert message_of(trailers(2, "m" * MAX_MESSAGE + "n")) == "m" * MAX_MESSAGE
    block = trailers(2, "m" * (MAX_MESSAGE - 1) + " n")
    assert dict(read(block))["grpc-message"] == "m" * (MAX_MESSAGE - 1)


@pytest.mark.parametrize("value", ["a\rb", "a\nb", "a\0b", "a\tb", "\x7f", "é", "\n"], ids=ascii)
def test_metadata_that_is_not_printable_ascii_is_refused(value: str) -> None:
    extra = [("x", value)]
    for write in (
        partial(trailers, 0, extra=extra),
        partial(trailers_only, 3, extra=extra),
        partial(plain, 405, x=value),
    ):
        with pytest.raises(ValueError, match="metadata 'x': expected printable ASCII"):
            write()


@pytest.mark.parametrize(
    "name",
    ["", "Upper", ":status", "a b", "a\n", "a:b", "é", "grpc-status", "grpc-message", "connection", "te"],
    ids=ascii,
)
def test_metadata_under_a_name_that_is_not_free_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name for metadata"):
        trailers(0, extra=[(name, "v")])
