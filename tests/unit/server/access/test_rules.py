"""Who may do what, as a table: nothing here has a server, a socket or a clock."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any

import pytest

from tfs_lite.core.status import StatusCode
from tfs_lite.server.access import rules
from tfs_lite.server.access.rules import (
    AUTO,
    CLOSABLE,
    OPEN,
    TOKEN,
    AccessEntry,
    AccessPolicy,
    Caller,
    Denial,
    DenialReason,
    may,
)
from tfs_lite.server.access.rules import grpc_caller as of_grpc
from tfs_lite.server.access.rules import http_caller as of_http
from tfs_lite.transport.peer import UNIX, UNKNOWN, Peer, peer_at
from tfs_lite.transport.table import EVERYTHING, Grant, Scope

HERE, ELSEWHERE = peer_at("127.0.0.1"), peer_at("10.0.0.7")
SAME_USER, OTHER_USER = Peer(UNIX, same_user=True), Peer(UNIX)
CERTIFIED = peer_at("10.0.0.7", frozenset({"spiffe://cluster/deploy", "deploy.example"}))
SECRET, LIMITED, READER, WRONG = "s" * 32, "l" * 32, "r" * 32, "w" * 32


def entry(name: str, secret: str, *scopes: Scope, models: str | None = None) -> AccessEntry:
    return AccessEntry(name, frozenset(scopes), models, digest=sha256(secret.encode()).digest())


ENTRIES = (
    entry("deploy", SECRET, *CLOSABLE),
    entry("team-a", LIMITED, *CLOSABLE, models="a-*"),
    entry("reader", READER, Scope.READ),
    AccessEntry("certified", frozenset({Scope.MANAGE}), certificate="spiffe://cluster/deploy"),
)
NOT_LOCAL = (StatusCode.PERMISSION_DENIED, DenialReason.NOT_LOCAL)
NO_TOKEN = (StatusCode.UNAUTHENTICATED, DenialReason.NO_TOKEN)
WRONG_TOKEN = (StatusCode.UNAUTHENTICATED, DenialReason.WRONG_TOKEN)
NO_SCOPE = (StatusCode.PERMISSION_DENIED, DenialReason.SCOPE)
BROWSER = (StatusCode.PERMISSION_DENIED, DenialReason.BROWSER)
FORGED, REBOUND = {"forged": "it comes from elsewhere"}, {"rebound": "the server is called so"}

TABLE: list[tuple[str, Scope, Caller, Any]] = [
    # mode, scope, caller -> the name in the file, EVERYTHING or a denial; with the access file
    (AUTO, Scope.MANAGE, Caller(HERE), EVERYTHING),
    (AUTO, Scope.MANAGE, Caller(SAME_USER), EVERYTHING),
    (AUTO, Scope.MANAGE, Caller(OTHER_USER), NO_TOKEN),
    (AUTO, Scope.MANAGE, Caller(UNKNOWN), NO_TOKEN),
    (AUTO, Scope.MANAGE, Caller(ELSEWHERE), NO_TOKEN),
    (AUTO, Scope.MANAGE, Caller(HERE, forwarded=True), NO_TOKEN),
    (AUTO, Scope.MANAGE, Caller(SAME_USER, forwarded=True), NO_TOKEN),
    (AUTO, Scope.MANAGE, Caller(ELSEWHERE, token=SECRET), "deploy"),
    (AUTO, Scope.MANAGE, Caller(HERE, forwarded=True, token=SECRET), "deploy"),
    (AUTO, Scope.MANAGE, Caller(ELSEWHERE, token=LIMITED), "team-a"),
    (AUTO, Scope.MANAGE, Caller(ELSEWHERE, token=READER), NO_SCOPE),
    (AUTO, Scope.MANAGE, Caller(ELSEWHERE, token=WRONG), WRONG_TOKEN),
    (AUTO, Scope.MANAGE, Caller(HERE, token=WRONG), EVERYTHING),
    (AUTO, Scope.MANAGE, Caller(CERTIFIED), "certified"),
    (AUTO, Scope.MANAGE, Caller(HERE, **FORGED), BROWSER),
    (AUTO, Scope.MANAGE, Caller(HERE, **REBOUND), BROWSER),
    (AUTO, Scope.MANAGE, Caller(CERTIFIED, **REBOUND), BROWSER),
    (AUTO, Scope.MANAGE, Caller(ELSEWHERE, token=SECRET, **FORGED), BROWSER),
    (AUTO, Scope.MANAGE, Caller(ELSEWHERE, token=SECRET, **REBOUND), "deploy"),
    (OPEN, Scope.MANAGE, Caller(ELSEWHERE), EVERYTHING),
    (OPEN, Scope.MANAGE, Caller(HERE, forwarded=True), EVERYTHING),
    (OPEN, Scope.MANAGE, Caller(ELSEWHERE, **FORGED), BROWSER),
    (OPEN, Scope.MANAGE, Caller(ELSEWHERE, **REBOUND), BROWSER),
    (TOKEN, Scope.MANAGE, Caller(HERE), NO_TOKEN),
    (TOKEN, Scope.MANAGE, Caller(SAME_USER), NO_TOKEN),
    (TOKEN, Scope.MANAGE, Caller(HERE, token=SECRET), "deploy"),
    (TOKEN, Scope.MANAGE, Caller(HERE, token=READER), NO_SCOPE),
    (TOKEN, Scope.MANAGE, Caller(CERTIFIED), "certified"),
    *[
        row
        for scope in (Scope.READ, Scope.PREDICT)
        for row in [
            (OPEN, scope, Caller(ELSEWHERE), EVERYTHING),
            (OPEN, scope, Caller(ELSEWHERE, forwarded=True, **FORGED, **REBOUND), EVERYTHING),
            (OPEN, scope, Caller(ELSEWHERE, token=WRONG), EVERYTHING),
            (TOKEN, scope, Caller(HERE), NO_TOKEN),
            (TOKEN, scope, Caller(ELSEWHERE, token=WRONG), WRONG_TOKEN),
            (TOKEN, scope, Caller(ELSEWHERE, token=SECRET), "deploy"),
            (TOKEN, scope, Caller(ELSEWHERE, token=SECRET, **FORGED, **REBOUND), "deploy"),
            (TOKEN, scope, Caller(CERTIFIED), NO_SCOPE),
        ]
    ],
    (TOKEN, Scope.READ, Caller(ELSEWHERE, token=READER), "reader"),
    (TOKEN, Scope.PREDICT, Caller(ELSEWHERE, token=READER), NO_SCOPE),
    (TOKEN, Scope.OPEN, Caller(ELSEWHERE, token=WRONG, forwarded=True, **FORGED, **REBOUND), EVERYTHING),
]


@pytest.mark.parametrize(("mode", "scope", "caller", "expected"), TABLE)
def test_callers_may_do_what_the_table_says(mode: str, scope: Scope, caller: Caller, expected: Any) -> None:
    policy = AccessPolicy(*(mode if scope is one else OPEN for one in CLOSABLE), has_file=True)
    found = may(scope, caller, policy, ENTRIES)
    if isinstance(found, Denial):
        assert (found.code, found.reason) == expected
        assert scope.name.lower() in found.message
        assert not any(secret in found.message for secret in (SECRET, LIMITED, READER, WRONG))
    else:
        assert found == expected or found.name == expected
        assert found.models == ("a-*" if expected == "team-a" else None)


@pytest.mark.parametrize("mode", [AUTO, TOKEN])
def test_without_a_file_no_token_is_asked_for(mode: str) -> None:
    found = may(Scope.MANAGE, Caller(ELSEWHERE, token=SECRET), AccessPolicy(manage=mode), ())
    assert isinstance(found, Denial)
    assert (found.code, found.reason) == NOT_LOCAL
    assert "--access_file" in found.message
    assert f"--management_access={mode}" in found.message


def test_callers_behind_a_proxy_are_told_why_they_are_not_local() -> None:
    found = may(Scope.MANAGE, Caller(HERE, forwarded=True), AccessPolicy(), ())
    assert isinstance(found, Denial)
    assert "proxy" in found.message


def test_token_without_the_scope_does_not_hide_a_certificate_with_it() -> None:
    caller = Caller(CERTIFIED, token=READER)
    assert may(Scope.MANAGE, caller, AccessPolicy(has_file=True), ENTRIES) == Grant("certified")


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def compare(first: Any, second: Any) -> bool:
        compared.append((first, second))
        return hmac.compare_digest(first, second)

    monkeypatch.setattr(rules, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    may(Scope.MANAGE, Caller(ELSEWHERE, token=WRONG), AccessPolicy(has_file=True), ENTRIES)
    digest = sha256(WRONG.encode()).digest()
    assert compared == [(one.digest, digest) for one in ENTRIES if one.digest], "digests, all of them"


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        (None, "m", True),
        (None, "", True),
        ("a-*", "a-1", True),
        ("a-*", "b-1", False),
        ("a-*", "", False),
        ("*", "", False),
        ("*", "m", True),
        ("A-*", "a-1", False),
    ],
)
def test_grant_allows_the_models_of_its_pattern(models: str | None, model: str, allowed: bool) -> None:
    assert Grant("x", models).allows(model) is allowed


def headers(**fields: str) -> Any:
    return {name.replace("_", "-"): value for name, value in fields.items()}.get


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-proto"])
def test_headers_of_proxies_end_the_trust_in_loopback(name: str) -> None:
    assert of_grpc(HERE, {}).is_local
    assert not of_grpc(HERE, {name: ""}).is_local
    assert not of_http(HERE, {name: "1.2.3.4"}.get).is_local


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer   abc ", "abc"),
        ("BEARER abc", "abc"),
        ("Basic abc", ""),
        ("Bearer", ""),
        ("", ""),
        ("abc", ""),
        ("Bearer a b", "a b"),
    ],
)
def test_token_is_what_follows_bearer(value: str, token: str) -> None:
    assert of_grpc(HERE, {"authorization": value}).token == token
    assert of_http(HERE, headers(authorization=value)).token == token


ORIGIN = "http://127.0.0.1:8501"
BROWSER_AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
FINE: list[dict[str, str]] = [
    {},
    {"content_type": "application/json"},
    {"content_type": "Application/JSON; charset=utf-8"},
    {"origin": ORIGIN},
    {"origin": ORIGIN, "sec_fetch_site": "same-origin", "content_type": "application/json"},
    {"sec_fetch_site": "none"},
    {"content_type": "application/x-www-form-urlencoded", "user_agent": "curl/8.5.0"},
    {"content_type": "application/x-www-form-urlencoded", "user_agent": "Python-urllib/3.11"},
    {"content_type": "application/octet-stream", "user_agent": "Python/3.11 aiohttp/3.9"},
    {"content_type": "application/octet-stream"},
    {"content_type": "text/plain", "user_agent": ""},
    {"origin": ORIGIN, "content_type": "text/plain", "user_agent": BROWSER_AGENT},
    {"content_type": "application/json", "user_agent": BROWSER_AGENT},
    {"user_agent": BROWSER_AGENT},
]
WRONG_HEADERS: list[dict[str, str]] = [
    {"content_type": "text/plain", "user_agent": BROWSER_AGENT},
    {"content_type": "application/x-www-form-urlencoded", "user_agent": BROWSER_AGENT},
    {"content_type": "multipart/form-data; boundary=application/json", "user_agent": BROWSER_AGENT},
    {"content_type": "", "user_agent": BROWSER_AGENT},
    {"content_type": "text/plain", "sec_fetch_mode": "no-cors"},
    {"content_type": "text/plain", "sec_fetch_dest": "empty"},
    {"origin": "null", "content_type": "application/x-www-form-urlencoded", "user_agent": "curl/8.5.0"},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://127.0.0.1:8502"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://127.0.0.1:8501.evil.example"},
    {"origin": "http://127.0.0.1:8501@evil.example"},
    {"origin": "http://[bad"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": ""},
]


@pytest.mark.parametrize("sent", FINE)
def test_requests_of_tools_and_of_the_own_page_are_not_forged(sent: dict[str, str]) -> None:
    caller = of_http(HERE, headers(host="127.0.0.1:8501", **sent))
    assert (caller.forged, caller.rebound) == ("", "")


@pytest.mark.parametrize("sent", WRONG_HEADERS)
def test_requests_that_a_foreign_page_can_send_are_forged(sent: dict[str, str]) -> None:
    assert of_http(HERE, headers(host="127.0.0.1:8501", **sent)).forged


HOSTS = ["127.0.0.1", "127.0.0.1:8501", "[::1]", "[::1]:8501", "localhost", "LOCALHOST:1", "localhost.:80", "10.0.0.1"]


@pytest.mark.parametrize("host", [*HOSTS, "serve.example", "Serve.Example:8501"])
def test_server_may_be_called_by_address_and_by_its_names(host: str) -> None:
    assert of_http(HERE, headers(host=host), {"serve.example"}).rebound == ""


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8501", "localhost.evil.example", "127.0.0.1.evil.example", "", ":", "[::1", "a:b:c"],
)
def test_server_may_not_be_called_by_any_other_name(host: str) -> None:
    found = of_http(HERE, headers(host=host), {"serve.example"})
    assert "--allowed_hosts" in found.rebound
