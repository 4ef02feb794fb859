"""The decision whether a caller may do something, as a pure function of the caller, the flags and the access file.

open scope                                    -> everybody
manage with auto: this machine, same user     -> granted, unless a proxy or a foreign web page stands between
a token or certificate of the file            -> granted for its scopes and models
else                                          -> a denial, with its reason
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.bearer import HEADER, token_of
from tfs_lite.transport.peer import UNKNOWN, Peer
from tfs_lite.transport.table import EVERYTHING, Grant, Scope

OPEN, TOKEN, AUTO = "open", "token", "auto"
"""Values of the flags."""
CLOSABLE = (Scope.PREDICT, Scope.READ, Scope.MANAGE)
FLAGS = {Scope.PREDICT: "--predict_access", Scope.READ: "--read_access", Scope.MANAGE: "--management_access"}
ALL_MODELS = ""
"""Stands for every model, and for the server as a whole."""
PROXY_HEADERS = ("x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-proto", "x-forwarded-host")
"""Headers of proxies, which make every client look as if it were on the proxy's machine."""
JSON_TYPE = "application/json"
_SAME_SITE = ("same-origin", "none")
_PORT = re.compile(r":[0-9]*$")

Header = Callable[[str], str | None]
"""The value of a header by its name in lower case; None if it was not sent."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The facts about a request that a decision needs. ``forwarded``: a proxy says that it stands between. ``token`` is
    the one that was sent, empty without. ``forged`` says why a foreign web page may have sent the request, empty where
    none can have; ``rebound`` the same of the name by which the server was called. ``asked`` and ``request_id`` are for
    the log: a path without its query, and the id that was sent."""

    peer: Peer = UNKNOWN
    forwarded: bool = False
    token: str = ""
    forged: str = ""
    rebound: str = ""
    asked: str = ""
    request_id: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the caller could do with the server's process what it wants anyway."""
        return (self.peer.loopback or self.peer.same_user) and not self.forwarded


class DenialReason(enum.Enum):
    """The reasons to deny a caller; the values are labels of a metric."""

    NOT_LOCAL = "not_local"
    NO_TOKEN = "no_token"
    WRONG_TOKEN = "wrong_token"
    SCOPE = "scope"
    MODELS = "models"
    BROWSER = "browser"
    TOO_MANY = "too_many_wrong_tokens"


@dataclass(frozen=True, slots=True)
class Denial:
    """``name`` is that of the caller in the access file, empty if it is not in there."""

    code: StatusCode
    reason: DenialReason
    message: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """One line of the access file. ``digest`` is the SHA-256 of a token, ``certificate`` a name in a client's
    certificate; one of them is set."""

    name: str
    scopes: frozenset[Scope]
    models: str | None = None
    digest: bytes = b""
    certificate: str = ""

    @property
    def grant(self) -> Grant:
        return Grant(self.name, self.models)


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The flags. ``has_file`` tells whether there is an access file, so that a token could help at all."""

    predict: str = OPEN
    read: str = OPEN
    manage: str = AUTO
    has_file: bool = False

    def mode(self, scope: Scope) -> str:
        if scope is Scope.OPEN:
            return OPEN
        return {Scope.PREDICT: self.predict, Scope.READ: self.read, Scope.MANAGE: self.manage}[scope]

    def checks(self, scope: Scope) -> bool:
        """Whether callers of such a route are looked at. Web pages are kept from managing in any case."""
        return scope is Scope.MANAGE or self.mode(scope) != OPEN


def grpc_caller(peer: Peer, metadata: Mapping[str, str]) -> Caller:
    """The caller of a gRPC call. Browsers cannot make one."""
    return Caller(peer, _is_forwarded(metadata.get), token_of(metadata.get(HEADER)))


def http_caller(peer: Peer, header: Header, allowed_hosts: Collection[str] = ()) -> Caller:
    """The caller of an HTTP request. ``allowed_hosts`` are names of the server, in lower case."""
    return Caller(
        peer, _is_forwarded(header), token_of(header(HEADER)), _forged(header), _rebound(header("host"), allowed_hosts)
    )


def _is_forwarded(header: Header) -> bool:
    return any(header(name) is not None for name in PROXY_HEADERS)


def _forged(header: Header) -> str:
    """Any web page can send requests to a server on the machine of who looks at it. Browsers say where a POST comes
    from: all of today send ``Origin``, and ``Sec-Fetch-Site`` to a loopback address. Those that say neither are old;
    what a page can make them send has a content type of a form. Tools, which are no browsers, send any."""
    origin, site = header("origin"), header("sec-fetch-site")
    if origin is not None and origin.lower() not in _origins(header("host")):
        return f"it comes from a web page of {origin[:100]!r}"
    if site is not None and site not in _SAME_SITE:
        return f"it comes from a web page of another site (Sec-Fetch-Site is {site[:20]!r})"
    if origin is None and site is None and _is_of_a_browser(header):
        content_type = header("content-type")
        if content_type is not None and content_type.partition(";")[0].strip().lower() != JSON_TYPE:
            kind = f"Content-Type is {content_type[:100]!r}, expected {JSON_TYPE}"
            return f"a browser sent it without saying from which page, and its {kind}"
    return ""


def _is_of_a_browser(header: Header) -> bool:
    """Every browser's ``User-Agent`` begins alike, and no page can change it in a request that needs no permission."""
    marks = ("sec-fetch-mode", "sec-fetch-dest")
    return (header("user-agent") or "").startswith("Mozilla/") or any(header(name) is not None for name in marks)


def _origins(host: str | None) -> tuple[str, ...]:
    """The origins of web pages that come from the server itself."""
    return () if host is None else (f"http://{host.lower()}", f"https://{host.lower()}")


def _rebound(host: str | None, allowed_hosts: Collection[str]) -> str:
    """A web page can give its own name the server's address, and then counts as of the same origin."""
    if host is None:
        return ""
    name = host.rpartition(":")[0] if _PORT.search(host) else host
    name = name.strip("[]").rstrip(".").lower()
    if name == "localhost" or name in allowed_hosts or _is_address(name):
        return ""
    return f"the server is called {name[:100]!r}, which --allowed_hosts does not have"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def may(scope: Scope, caller: Caller, policy: AccessPolicy, entries: Sequence[AccessEntry]) -> Grant | Denial:
    """Whether the caller may use what has this scope; of which models is in the grant."""
    mode = policy.mode(scope)
    if scope is Scope.MANAGE and caller.forged:
        return Denial(StatusCode.PERMISSION_DENIED, DenialReason.BROWSER, f"{_what(scope)} is refused: {caller.forged}")
    known = find_entries(caller, entries)
    for entry in known:
        if scope in entry.scopes and entry.digest:
            return entry.grant
    if scope is Scope.MANAGE and caller.rebound:
        return Denial(
            StatusCode.PERMISSION_DENIED, DenialReason.BROWSER, f"{_what(scope)} is refused: {caller.rebound}"
        )
    if mode == OPEN or (mode == AUTO and caller.is_local):
        return EVERYTHING
    for entry in known:
        if scope in entry.scopes:
            return entry.grant
    return _denial(scope, caller, policy, known)


def find_entries(caller: Caller, entries: Iterable[AccessEntry]) -> list[AccessEntry]:
    """Those that the caller's token or certificate is for. A token takes as long as any other."""
    digest = sha256(caller.token.encode()).digest() if caller.token else b""
    return [entry for entry in entries if _fits(entry, digest, caller.peer.names)]


def is_wrong_token(caller: Caller, entries: Iterable[AccessEntry]) -> bool:
    """Whether the caller has sent a token that no entry is for, whatever its certificate is for."""
    return bool(caller.token) and not any(entry.digest for entry in find_entries(caller, entries))


def _fits(entry: AccessEntry, digest: bytes, names: Collection[str]) -> bool:
    return entry.certificate in names if entry.certificate else hmac.compare_digest(entry.digest, digest)


def _denial(scope: Scope, caller: Caller, policy: AccessPolicy, known: Sequence[AccessEntry]) -> Denial:
    what, flag = _what(scope), f"{FLAGS[scope]}={policy.mode(scope)}"
    if known:
        message = f"{what} is not among the scopes of {known[0].name!r} in the server's access file ({flag})"
        return Denial(StatusCode.PERMISSION_DENIED, DenialReason.SCOPE, message, known[0].name)
    here = "works from the server's own machine only" if policy.mode(scope) == AUTO else "needs a token"
    if policy.mode(scope) == AUTO and caller.forwarded:
        here += ", and this request came through a proxy"
    if not policy.has_file:
        message = f"{what} {here} ({flag}); a server with --access_file takes tokens"
        return Denial(StatusCode.PERMISSION_DENIED, DenialReason.NOT_LOCAL, message)
    if caller.token:
        message = f"{what} needs a token or client certificate of the server's access file, and this token is not in it"
        return Denial(StatusCode.UNAUTHENTICATED, DenialReason.WRONG_TOKEN, f"{message} ({flag})")
    message = f"{what} {here}, or with a token: send 'Authorization: Bearer TOKEN'" if here[0] == "w" else ""
    message = message or f"{what} {here}: send 'Authorization: Bearer TOKEN'"
    return Denial(StatusCode.UNAUTHENTICATED, DenialReason.NO_TOKEN, f"{message} ({flag})")


def _what(scope: Scope) -> str:
    return f"access to {scope.name.lower()!r}"
