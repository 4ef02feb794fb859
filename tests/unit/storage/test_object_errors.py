"""Errors of obstore 0.12.1, as it has told them, and what people read of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.status import StatusCode
from tfs_lite.storage.object_errors import MAX_KEY, OddKey, error_of, setup_error_of

HOST = "http://127.0.0.1:34407"
LIST = f"Error performing list request: Error performing GET {HOST}/b?list-type=2&prefix=m%2F in 52.5ms"
GET = f"Error performing GET {HOST}/b/m/1/x in 2.3ms"
AGAIN = ", after 1 retries, max_retries: 1, retry_timeout: 180s "
ANSWER = " - Server returned non-2xx status code: "
DEBUG = '\n\nDebug source:\nGeneric {\n    store: "S3",\n    body: "status code: 404 <Code>NoSuchBucket</Code>"\n}'


def xml(code: str) -> str:
    return f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>AKIACANARY of {HOST}</Message></Error>"


def kind(name: str) -> type[Exception]:
    return type(name, (Exception,), {})


GENERIC = kind("GenericError")
MISSING, DENIED = FileNotFoundError, kind("PermissionDeniedError")

LISTINGS = [
    (
        f"{LIST}{AGAIN}{ANSWER}503 Service Unavailable: {xml('SlowDown')}",
        StatusCode.UNAVAILABLE,
        "answers 503 SlowDown",
    ),
    (f"{LIST}{AGAIN}{ANSWER}502 Bad Gateway: <html>nginx</html>", StatusCode.UNAVAILABLE, "storage answers 502"),
    (f"{LIST}{ANSWER}429 Too Many Requests: ", StatusCode.UNAVAILABLE, "storage answers 429"),
    (f"{LIST}{ANSWER}403 Forbidden: {xml('AccessDenied')}", StatusCode.PERMISSION_DENIED, "(403 AccessDenied)"),
    (f"{LIST}{ANSWER}401 Unauthorized: {xml('x1<')}", StatusCode.PERMISSION_DENIED, "refuses (401)"),
    (f"{LIST}{ANSWER}400 Bad Request: {xml('ExpiredToken')}", StatusCode.PERMISSION_DENIED, "(400 ExpiredToken)"),
    (f"{LIST}{ANSWER}400 Bad Request: {xml('A' * 65)}", StatusCode.FAILED_PRECONDITION, "storage answers 400"),
    (f"{LIST}{ANSWER}404 Not Found: {xml('NoSuchBucket')}", StatusCode.NOT_FOUND, "there is no such bucket"),
    (f"{LIST}{ANSWER}404 Not Found: {xml('ContainerNotFound')}", StatusCode.NOT_FOUND, "there is no such bucket"),
    (f"{LIST}{ANSWER}501 Not Implemented: ", StatusCode.FAILED_PRECONDITION, "storage answers 501"),
    (
        f"{LIST} - Received redirect without LOCATION, this normally indicates an incorrectly configured region",
        StatusCode.FAILED_PRECONDITION,
        "another region: set AWS_REGION",
    ),
    (f"{LIST}{AGAIN} - HTTP error: error sending request", StatusCode.UNAVAILABLE, "does not answer"),
    (f"{LIST} - HTTP error: builder error", StatusCode.FAILED_PRECONDITION, "set AWS_ALLOW_HTTP=true"),
    (
        "Error getting list response body: HTTP error: request or response body error",
        StatusCode.UNAVAILABLE,
        "not answer",
    ),
    ("Got invalid list response: missing field `Blobs`", StatusCode.UNAVAILABLE, "cannot be read"),
    (
        f"Error performing PUT {HOST}/latest/api/token in 1ms{ANSWER}404 Not Found: {xml('NoSuchBucket')}",
        StatusCode.UNAVAILABLE,
        "gives no credentials",
    ),
    (f"{GET}{ANSWER}500 Internal Server Error: {xml('x')}", StatusCode.UNAVAILABLE, "gives no credentials"),
    (f"Error performing token request: {GET}{ANSWER}400 Bad Request: ", StatusCode.UNAVAILABLE, "gives no credentials"),
    ("Error getting token response body: HTTP error: expected value", StatusCode.UNAVAILABLE, "gives no credentials"),
    ("Failed to read token file '/CANARY': No such file", StatusCode.UNAVAILABLE, "gives no credentials"),
    (
        "Error performing POST REDACTED in 1µs - HTTP error: builder error",
        StatusCode.UNAVAILABLE,
        "gives no credentials",
    ),
]


@pytest.mark.parametrize(("text", "code", "said"), LISTINGS)
def test_what_a_listing_has_failed_with(text: str, code: StatusCode, said: str) -> None:
    error = error_of(f"Generic S3 error: {text}{DEBUG}", GENERIC, listing=True)
    assert error.code is code
    assert said in error.sentence
    assert error.is_transient is (code is StatusCode.UNAVAILABLE)
    assert "CANARY" not in error.sentence


@pytest.mark.parametrize(
    ("text", "raised", "code", "said"),
    [
        (f"not found: {GET}{ANSWER}404 Not Found: {xml('NoSuchKey')}", MISSING, StatusCode.NOT_FOUND, "no such object"),
        (f"not found: {GET}{ANSWER}404 Not Found: {xml('NoSuchBucket')}", MISSING, StatusCode.NOT_FOUND, "such bucket"),
        ("Object at location status code: 503 not found: ?", MISSING, StatusCode.NOT_FOUND, "no such object"),
        (f"{GET}{ANSWER}403 Forbidden: ", DENIED, StatusCode.PERMISSION_DENIED, "refuses (403)"),
        (
            f"{GET}{ANSWER}401 Unauthorized: ",
            kind("UnauthenticatedError"),
            StatusCode.PERMISSION_DENIED,
            "refuses (401)",
        ),
        (f"{GET}{ANSWER}412 Precondition Failed: ", kind("PreconditionError"), StatusCode.ABORTED, "was changed"),
        (
            f"{GET}{ANSWER}409 Conflict: ",
            kind("AlreadyExistsError"),
            StatusCode.ALREADY_EXISTS,
            "such an object already",
        ),
        (f"Generic S3 error: {GET}{ANSWER}404 Not Found: ", GENERIC, StatusCode.UNAVAILABLE, "gives no credentials"),
        (f"Generic S3 error: {GET}{ANSWER}403 Forbidden: ", GENERIC, StatusCode.UNAVAILABLE, "gives no credentials"),
        (f"Generic S3 error: {GET}{ANSWER}503 x: {xml('SlowDown')}", GENERIC, StatusCode.UNAVAILABLE, "503 SlowDown"),
        (f"Generic S3 error: {GET}{ANSWER}416 Range: ", GENERIC, StatusCode.OUT_OF_RANGE, "shorter"),
        (
            "Generic MicrosoftAzure error: Wanted range starting at 9, but object was only 9 bytes long",
            GENERIC,
            StatusCode.OUT_OF_RANGE,
            "shorter",
        ),
        ("Generic S3 error: HTTP error: request or response body error", GENERIC, StatusCode.UNAVAILABLE, "not answer"),
        ("Generic GCS error: x - HTTP error: builder error", GENERIC, StatusCode.FAILED_PRECONDITION, "GOOGLE_ALLOW"),
        (
            "Generic S3 error: DeleteObjects request failed for key m/1: no (code: AccessDenied)",
            GENERIC,
            StatusCode.PERMISSION_DENIED,
            "refuses (AccessDenied)",
        ),
        ("request must be valid", kind("PanicException"), StatusCode.FAILED_PRECONDITION, "no valid settings"),
        ("Could not parse path", ValueError, StatusCode.FAILED_PRECONDITION, "cannot be that of a file"),
    ],
)
def test_what_another_request_has_failed_with(
    text: str, raised: type[BaseException], code: StatusCode, said: str
) -> None:
    error = error_of(text + DEBUG, raised, listing=False)
    assert error.code is code
    assert said in error.sentence
    assert error.is_transient is (code is StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ("error: InvalidCertificate(\n UnknownIssuer", "SSL_CERT_FILE"),
        ('ConnectError(\n "dns error",', "host is not known"),
    ],
)
def test_the_details_tell_why_nothing_answers(details: str, said: str) -> None:
    text = f"Generic S3 error: {LIST} - HTTP error: error sending request\n\nDebug source:\n{details}"
    error = error_of(text, GENERIC, listing=True)
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)
    assert said in error.sentence


def test_settings_that_are_none_name_what_to_set() -> None:
    said = setup_error_of("Generic MicrosoftAzure error: Account must be specified").sentence
    assert "AZURE_STORAGE_ACCOUNT_NAME" in said
    assert setup_error_of("CANARY").sentence == "the environment has no valid settings for the storage"


@examples(1000)
@given(st.text(), st.sampled_from([GENERIC, MISSING, DENIED]), st.booleans(), st.integers(100, 999))
def test_no_text_gets_into_a_sentence(text: str, raised: type[BaseException], listing: bool, status: int) -> None:
    text = f"Generic S3 error: {LIST}{ANSWER}{status} x: <Code>CANARY {text}</Code><Code>{text}1</Code> CANARY"
    error = error_of(text, raised, listing=listing)
    assert "CANARY" not in error.sentence
    assert len(error.sentence) < 200


def invalid(path: str) -> str:
    if "//" in path or path.startswith("/"):
        return f'Encountered object with invalid path: Path "{path}" contained empty path segment{DEBUG}'
    said = 'Encountered illegal character sequence ".." whilst parsing path segment ".."'
    return f'Encountered object with invalid path: Error parsing Path "{path}": {said}{DEBUG}'


@pytest.mark.parametrize(
    ("path", "prefix", "name", "sorts_first"),
    [
        ("r1//x", "r1", '"/x"', True),
        ("r1/../x", "r1", '"../x"', True),
        ("/x", "", '"/x"', True),
        ("r1/1//x", "r1", '"1//x"', False),
        ('r1/a"\x01\n', "r1", '"a"\\x01\\x0a"', False),
        ("r1/" + "k" * 500, "r1", f'"{"k" * MAX_KEY}..."', False),
        ("CANARY/7/x", "r1", '""', False),
    ],
)
def test_a_key_that_no_file_can_have_is_named_below_the_prefix(path, prefix, name, sorts_first) -> None:
    odd = OddKey.of(invalid(path), prefix)
    assert (odd.name, odd.sorts_first) == (name, sorts_first)
    assert "CANARY" not in odd.error.sentence
    assert (name in odd.error.sentence) is bool(odd.key)
