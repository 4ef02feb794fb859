"""Malformed header fields, rule by rule of RFC 9113, sections 8.2 and 8.3."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tfs_lite.transport.http2.fields import check_field, check_request, check_trailers
from tfs_lite.transport.http2.hpack_reader import Fields

PSEUDO: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"example.org:8500"),
)
REQUEST: Fields = (*PSEUDO, (b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"x-mine", b"1"))


def without(name: bytes) -> Fields:
    return tuple(field for field in REQUEST if field[0] != name)


def with_pseudo(name: bytes, value: bytes) -> Fields:
    return ((name, value), *without(name))


def test_a_request_as_grpc_clients_send_it_is_well_formed() -> None:
    assert check_request(REQUEST) is None


@pytest.mark.parametrize("name", [b":method", b":scheme", b":path"])
def test_a_pseudo_header_is_needed_once_and_not_empty(name: bytes) -> None:
    assert check_request(without(name)) == f"{name.decode()} is missing or empty"
    assert check_request(with_pseudo(name, b"")) == f"{name.decode()} is missing or empty"
    value = dict(REQUEST)[name]
    assert check_request(((name, value), *REQUEST)) == "a pseudo-header comes twice"


def test_a_request_may_have_no_authority_but_not_two() -> None:
    assert check_request(without(b":authority")) is None
    assert check_request(((b":authority", b"example.org:8500"), *REQUEST)) == "a pseudo-header comes twice"


@pytest.mark.parametrize("name", [b":status", b":protocol", b":foo", b":", b":Method"])
def test_other_pseudo_headers_are_malformed(name: bytes) -> None:
    assert check_request(((name, b"200"), *REQUEST)) == "a pseudo-header that requests do not have"


@pytest.mark.parametrize("at", range(len(PSEUDO), len(REQUEST)))
def test_a_pseudo_header_after_other_fields_is_malformed(at: int) -> None:
    rest = without(b":scheme")
    fields = (*rest[:at], (b":scheme", b"http"), *rest[at:])
    assert check_request(fields) == "a pseudo-header comes after other fields"


@pytest.mark.parametrize("name", [b":method", b":scheme", b":path", b":authority"])
@pytest.mark.parametrize("value", [b"a\0b", b"a\r", b"\nb", b" a", b"a\t"])
def test_a_pseudo_header_has_a_value_like_any_field(name: bytes, value: bytes) -> None:
    assert check_request(with_pseudo(name, value)) == "a pseudo-header has NUL, CR or LF, or blanks at an end"


@given(st.integers(0, 255), st.sampled_from([b"%s", b"x%s", b"%sx", b"x%sx"]))
def test_a_name_has_no_byte_that_names_may_not_have(byte: int, around: bytes) -> None:
    name = around % bytes([byte])
    legal = 0x20 < byte < 0x7F and not 0x41 <= byte <= 0x5A and byte != ord(":")
    assert (check_field(name, b"1") is None) == legal


def test_a_name_is_not_empty() -> None:
    assert "name is empty" in str(check_field(b"", b"1"))
    assert "name is empty" in str(check_request((*REQUEST, (b"", b"1"))))


@given(st.binary(max_size=40) | st.binary(min_size=1, max_size=1).map(lambda byte: b"a" + byte + b"b"))
@example(b"")
@example(b"\0")
@example(b"a\r")
@example(b"\nb")
def test_a_value_has_any_byte_but_nul_cr_and_lf(value: bytes) -> None:
    broken = any(one in value for one in (b"\0", b"\r", b"\n"))
    assert (check_field(b"x", value) is not None) == broken


@pytest.mark.parametrize("name", [b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"])
def test_fields_about_a_connection_are_malformed(name: bytes) -> None:
    assert check_request((*REQUEST, (name, b"x"))) == "a field that is about a connection of HTTP/1"
    assert check_trailers(((name, b"x"),)) == "a field that is about a connection of HTTP/1"


@pytest.mark.parametrize("value", [b"gzip", b"trailers, gzip", b""])
def test_te_is_trailers_or_nothing(value: bytes) -> None:
    assert check_request((*without(b"te"), (b"te", value))) == "te is not trailers"
    assert check_request(without(b"te")) is None


def test_connect_has_an_authority_and_nothing_else() -> None:
    tunnel: Fields = ((b":method", b"CONNECT"), (b":authority", b"example.org:443"))
    assert check_request(tunnel) is None
    for wrong in (tunnel[:1], (*tunnel, (b":path", b"/")), (*tunnel, (b":scheme", b"http"))):
        assert check_request(wrong) == "CONNECT has :authority, no :scheme and no :path"


@pytest.mark.parametrize(
    ("scheme", "authority", "host", "fault"),
    [
        (b"http", b"a.org:8500", b"a.org:8500", None),
        (b"http", b"a.org", b"A.org:80", None),
        (b"https", b"a.org:443", b"a.org", None),
        (b"http", b"a.org", b"a.org:443", "host and :authority differ"),
        (b"http", b"a.org", b"b.org", "host and :authority differ"),
        (b"http", b"me@a.org", b"me@a.org", ":authority names a user"),
    ],
)
def test_host_and_authority_name_one_server(scheme: bytes, authority: bytes, host: bytes, fault: str | None) -> None:
    fields = ((b":method", b"POST"), (b":scheme", scheme), (b":path", b"/"), (b":authority", authority))
    assert check_request((*fields, (b"host", host))) == fault


def test_host_alone_is_well_formed_and_twice_is_not() -> None:
    assert check_request((*without(b":authority"), (b"host", b"a.org"))) is None
    assert check_request((*without(b":authority"), (b"host", b"a.org"), (b"host", b"a.org"))) == "host comes twice"


def test_trailers_are_fields_without_pseudo_headers() -> None:
    assert check_trailers(()) is None
    assert check_trailers(((b"x-mine", b"1"), (b"y-bin", b"AQ=="))) is None
    assert check_trailers(((b"x-mine", b"1"), (b":path", b"/"))) == "a pseudo-header in trailers"
    assert "upper case" in str(check_trailers(((b"X-Mine", b"1"),)))
    assert "NUL" in str(check_trailers(((b"x-mine", b"a\0"),)))


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=6))
def test_any_fields_at_all_get_a_verdict(fields: list[tuple[bytes, bytes]]) -> None:
    assert isinstance(check_request(tuple(fields)), str)  # chance makes no whole request
    assert (check_trailers(tuple(fields)) is None) == all(
        not name.startswith(b":") and check_field(name, value) is None for name, value in fields
    )
