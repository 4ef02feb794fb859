"""Header fields of requests: what they become, which requests are answered at once, and what is kept."""

from __future__ import annotations

import pytest
from hpack import Decoder
from hypothesis import example, given
from hypothesis import strategies as st

from tfs_lite.transport.grpc.head import MAX_REMEMBERED, RequestHead, RequestHeadParser, parse_timeout
from tfs_lite.transport.http2.hpack_reader import Fields
from tfs_lite.transport.table import CallContext, unary

Field = tuple[bytes, bytes]

INTERNAL, UNIMPLEMENTED, RESOURCE_EXHAUSTED, UNKNOWN = 13, 12, 8, 2


async def echo(request: bytes, context: CallContext) -> bytes:
    return request


METHOD = unary("/a.B/Echo", echo)
OTHER = unary("/a.B/Other", echo)


@pytest.fixture
def parser() -> RequestHeadParser:
    return RequestHeadParser([METHOD, OTHER])


def request(*more: Field, **changed: bytes | None) -> Fields:
    """As grpcio's client sends it; ``changed``: names with _ for -, without the colon, None leaves a field out."""
    fields: dict[bytes, bytes | None] = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/a.B/Echo",
        b":authority": b"localhost:8500",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"user-agent": b"grpc-python/1.66 grpc-c/43.0",
    }
    for key, value in changed.items():
        name = key.replace("_", "-").encode()
        fields[b":" + name if b":" + name in fields else name] = value
    return (*((name, value) for name, value in fields.items() if value is not None), *more)


def answer_fields(head: RequestHead) -> dict[str, str]:
    """The fields of the answer, as a client reads them."""
    assert head.answer is not None
    pairs = Decoder().decode(head.answer, raw=True)
    return {name.decode(): value.decode() for name, value in pairs}


def refused(head: RequestHead, code: int) -> str:
    """Checks a trailers-only answer, and gives its message."""
    fields = answer_fields(head)
    assert head.fault is None
    assert head.status == code
    assert (fields[":status"], fields["content-type"]) == ("200", "application/grpc")
    assert fields["grpc-status"] == str(code)
    return fields["grpc-message"]


def test_a_call_gets_its_method_and_the_clients_metadata(parser: RequestHeadParser) -> None:
    head = parser.read(request((b"x-mine", b"1"), (b"grpc-timeout", b"5S")))
    assert (head.method, head.path, head.timeout) == (METHOD, "/a.B/Echo", 5.0)
    assert (head.answer, head.fault, head.status) == (None, None, 0)
    assert head.metadata == {"user-agent": "grpc-python/1.66 grpc-c/43.0", "x-mine": "1"}
    assert head.encoding == "identity"
    other = parser.read(request(path=b"/a.B/Other", grpc_encoding=b"gzip"))
    assert (other.method, other.encoding) == (OTHER, "gzip")


def test_metadata_has_all_values_of_a_name_and_no_binary_or_reserved_ones(parser: RequestHeadParser) -> None:
    more = [(b"x", b"1"), (b"y", b"b"), (b"x", b"2"), (b"z-bin", b"AQ=="), (b"grpc-foo", b"1"), (b"x", b"")]
    found = parser.read(request(*more, (b"host", b"localhost:8500"), user_agent=None)).metadata
    assert found == {"x": "1,2,", "y": "b", "host": "localhost:8500"}


def test_text_that_is_no_ascii_is_read_as_utf_8_or_latin_1(parser: RequestHeadParser) -> None:
    found = parser.read(request((b"x", "\N{LATIN SMALL LETTER E WITH ACUTE}".encode()), (b"y", b"\xe9"))).metadata
    assert found["x"] == found["y"] == "\N{LATIN SMALL LETTER E WITH ACUTE}"


def test_a_handler_cannot_change_the_metadata_of_later_calls(parser: RequestHeadParser) -> None:
    found = parser.read(request((b"x", b"1"))).metadata
    with pytest.raises(TypeError):
        found["x"] = "2"  # type: ignore[index]


@pytest.mark.parametrize(
    "content_type",
    [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8", b"Application/gRPC"],
)
def test_content_types_of_grpc_are_taken(parser: RequestHeadParser, content_type: bytes) -> None:
    assert parser.read(request(content_type=content_type)).answer is None


@pytest.mark.parametrize(
    "content_type",
    [None, b"", b"text/plain", b"application/grpcx", b"application/grpc-web", b"application/grpc-web+proto"],
)
def test_other_content_types_are_answered_with_415(parser: RequestHeadParser, content_type: bytes | None) -> None:
    head = parser.read(request(content_type=content_type))
    assert answer_fields(head)[":status"] == "415"
    assert head.status == UNKNOWN


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"HEAD", b"OPTIONS", b"FOO", b"post", b"CONNECT"])
def test_other_methods_are_answered_with_405(parser: RequestHeadParser, method: bytes) -> None:
    tunnel = ((b":method", b"CONNECT"), (b":authority", b"a.org:443"))
    other = request(method=method, content_type=None, path=b"/nothing")
    head = parser.read(tunnel if method == b"CONNECT" else other)
    assert (answer_fields(head)[":status"], answer_fields(head)["allow"]) == ("405", "POST")
    assert head.status == UNKNOWN


@pytest.mark.parametrize(
    "path", [b"/a.B/Nothing", b"/", b"nothing", b"/a.B/Echo?x=1", b"/a.B/Echo/", b"\xff\xfe", b"/" + b"x" * 10_000]
)
def test_unknown_paths_are_unimplemented_and_the_answer_is_short(parser: RequestHeadParser, path: bytes) -> None:
    head = parser.read(request(path=path))
    assert head.method is None
    assert "Method not found!" in refused(head, UNIMPLEMENTED)
    assert head.answer is not None
    assert len(head.answer) < 500


@pytest.mark.parametrize("encoding", [b"snappy", b"GZIP", b"gzip, deflate", b"", b"\xff"])
def test_unknown_encodings_are_unimplemented_and_known_ones_named(parser: RequestHeadParser, encoding: bytes) -> None:
    head = parser.read(request(grpc_encoding=encoding))
    assert "identity, deflate, gzip" in refused(head, UNIMPLEMENTED)
    assert answer_fields(head)["grpc-accept-encoding"] == "identity,deflate,gzip"
    assert head.method is METHOD


def test_a_list_that_was_too_large_is_resource_exhausted(parser: RequestHeadParser) -> None:
    assert "header" in refused(parser.read(None), RESOURCE_EXHAUSTED)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"250m", 0.25),
        (b"99999999u", 99.999999),
        (b"5n", 5e-9),
        (b"0S", 0.0),
        (b"00000001S", 1.0),
        (b"99999999H", 99999999 * 3600.0),
    ],
)
def test_time_limits_are_in_seconds(parser: RequestHeadParser, text: bytes, seconds: float) -> None:
    assert parse_timeout(text) == pytest.approx(seconds)
    assert parser.read(request((b"grpc-timeout", text))).timeout == pytest.approx(seconds)


BAD_TIMEOUTS = [b"", b"1", b"S", b"123456789S", b"1s", b"-1S", b"+1S", b"1.5S", b"1 S", b"1_0S", b"\xb2S", b"1x"]


@pytest.mark.parametrize("text", BAD_TIMEOUTS)
def test_a_bad_time_limit_is_internal_and_says_the_rule(parser: RequestHeadParser, text: bytes) -> None:
    for _ in range(2):
        head = parser.read(request((b"grpc-timeout", text)))
        assert "1 to 8 digits and one of HMSmun" in refused(head, INTERNAL)
        assert head.method is METHOD
    with pytest.raises(ValueError, match="1 to 8 digits"):
        parse_timeout(text)
    assert parser.read(request((b"grpc-timeout", b"1S"))).answer is None


def test_two_time_limits_are_internal(parser: RequestHeadParser) -> None:
    head = parser.read(request((b"grpc-timeout", b"1S"), (b"grpc-timeout", b"1S")))
    assert "twice" in refused(head, INTERNAL)


def test_an_unknown_path_goes_before_a_bad_time_limit(parser: RequestHeadParser) -> None:
    head = parser.read(request((b"grpc-timeout", b"soon"), path=b"/nothing"))
    assert head.status == UNIMPLEMENTED


def test_malformed_requests_are_faults_and_no_calls(parser: RequestHeadParser) -> None:
    for fields in (request((b"X-Mine", b"1")), request(path=None), request((b"connection", b"close")), ()):
        head = parser.read(fields)
        assert head.fault is not None
        assert (head.method, head.answer) == (None, None)
        with_limit = parser.read((*fields, (b"grpc-timeout", b"1S")))
        assert with_limit.fault == head.fault


def test_blanks_around_metadata_do_not_belong_to_it(parser: RequestHeadParser) -> None:
    head = parser.read(request((b"mine", b" a b\t"), (b"empty", b"  ")))
    assert head.metadata["mine"] == "a b"
    assert head.metadata["empty"] == ""


@pytest.mark.parametrize("text", [b"1\0S", b"1S\r", b"\n1S"])
def test_a_time_limit_with_an_illegal_value_is_malformed(parser: RequestHeadParser, text: bytes) -> None:
    assert parser.read(request((b"grpc-timeout", text))).fault is not None
    assert parser.read(request((b"grpc-timeout", text), path=b"/nothing")).fault is not None


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("known", [False, True])
def test_a_time_limit_before_a_pseudo_header_is_malformed_and_elsewhere_it_is_not(
    parser: RequestHeadParser, at: int, known: bool
) -> None:
    fields = request()
    if known:
        parser.read((*fields, (b"grpc-timeout", b"1S")))
    head = parser.read((*fields[:at], (b"grpc-timeout", b"2S"), *fields[at:]))
    assert (head.fault is not None) == (at < 4)
    if at >= 4:
        assert (head.method, head.timeout) == (METHOD, 2.0)


def test_calls_with_the_same_fields_share_what_was_made_of_them(parser: RequestHeadParser) -> None:
    first = parser.read(request((b"grpc-timeout", b"1S"), (b"x", b"1")))
    again = parser.read(request((b"grpc-timeout", b"999m"), (b"x", b"1")))
    without = parser.read(request((b"x", b"1")))
    assert first.metadata is again.metadata
    assert without.metadata is first.metadata
    assert (first.timeout, again.timeout, without.timeout) == (1.0, 0.999, None)
    assert parser.read(request((b"x", b"2"))).metadata["x"] == "2"


def test_what_is_remembered_has_a_bound(parser: RequestHeadParser) -> None:
    for count in range(2 * MAX_REMEMBERED + 10):
        parser.read(request((b"x-request", b"%d" % count)))
        assert len(parser._known) <= MAX_REMEMBERED
    assert parser.read(request()).method is METHOD


def test_only_small_lists_of_calls_are_remembered(parser: RequestHeadParser) -> None:
    for fields in (
        request((b"x", b"y" * 1024)),
        request(path=b"/nothing"),
        request(method=b"GET"),
        request(content_type=b"text/plain"),
        request((b"X", b"1")),
        request(grpc_encoding=b"snappy"),
    ):
        parser.read(fields)
    assert not parser._known


names = st.one_of(
    st.sampled_from([b"grpc-timeout", b"grpc-encoding", b"x", b":path", b":method", b"te", b"content-type", b"host"]),
    st.binary(max_size=8),
)
values = st.one_of(st.sampled_from([b"1S", b"gzip", b"POST", b"/a.B/Echo", b"trailers"]), st.binary(max_size=8))
lists = st.lists(st.tuples(names, values), max_size=8)


def verdict(head: RequestHead) -> RequestHead:
    """Of several faults any one may be named."""
    return head if head.fault is None else RequestHead(fault="malformed")


@given(lists, st.booleans())
@example([(b"grpc-timeout", b"1S"), (b"grpc-timeout", b"")], True)
@example([(b"", b"gzip"), (b"grpc-timeout", b"\0"), (b":path", b"/")], False)
def test_nothing_a_client_sends_raises_and_memory_changes_nothing(more: list[Field], whole: bool) -> None:
    fields = request(*more) if whole else tuple(more)
    used = RequestHeadParser([METHOD])
    used.read(request((b"x", b"1"), (b"grpc-timeout", b"9S")))
    first = verdict(used.read(fields))
    assert verdict(used.read(fields)) == first
    assert verdict(RequestHeadParser([METHOD]).read(fields)) == first
    assert (first.fault is None) or (first.answer is None)
    assert (first.answer is None) == (first.status == 0)
    assert first.method is METHOD or first.fault is not None or first.answer is not None


def test_content_length_is_told_and_minus_one_without_and_may_come_twice_if_equal(parser: RequestHeadParser) -> None:
    assert parser.read(request()).length == -1
    assert parser.read(request(content_length=b"12")).length == 12
    assert parser.read(request((b"grpc-timeout", b"1S"), content_length=b"12")).length == 12
    same, other = (b"content-length", b"5"), (b"content-length", b"6")
    assert parser.read(request(same, same)).length == 5
    assert parser.read(request(same, other)).fault is not None


@pytest.mark.parametrize("value", [b"", b"-1", b"+1", b"1.0", b"1,1", b"0x10", b"9" * 19])
def test_content_length_that_is_no_number_is_malformed(parser: RequestHeadParser, value: bytes) -> None:
    assert parser.read(request(content_length=value)).fault == "content-length is not one number"
