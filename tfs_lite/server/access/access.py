"""The one object that both protocols ask whether a caller may do something."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tfs_lite.core.request_context import REQUEST_ID, checked_id
from tfs_lite.core.status import ServingError, StatusCode, not_found
from tfs_lite.server.access.access_file import AccessFile
from tfs_lite.server.access.guesses import Guesses
from tfs_lite.server.access.rules import (
    ALL_MODELS,
    CLOSABLE,
    AccessEntry,
    AccessPolicy,
    Caller,
    Denial,
    DenialReason,
    Header,
    grpc_caller,
    http_caller,
    is_wrong_token,
    may,
)
from tfs_lite.transport.peer import Peer
from tfs_lite.transport.table import CallContext, Grant, Scope


@dataclass(frozen=True, slots=True)
class Denied:
    """The event that listeners get for a denied caller. ``caller`` is a name of the access file, else the peer's
    address. ``asked`` is a method and a path; it and ``request_id`` are empty where they are not known."""

    scope: Scope
    reason: DenialReason
    caller: str
    message: str
    code: StatusCode = StatusCode.PERMISSION_DENIED
    peer: str = ""
    asked: str = ""
    request_id: str = ""


class AccessDenied(ServingError):
    """``retry_after`` is in seconds, 0 if there is no use in trying again."""

    def __init__(self, denial: Denial, retry_after: int = 0) -> None:
        super().__init__(denial.code, denial.message)
        self.retry_after = retry_after


class Access:
    """The check of every caller, on the event loop. ``denials`` counts by scope and reason."""

    def __init__(
        self,
        policy: AccessPolicy,
        file: AccessFile | None = None,
        allowed_hosts: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``file`` None: there are no tokens. ``allowed_hosts`` are names of the server beside ``localhost``."""
        self._policy = policy
        self._file = file
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._guesses = Guesses(clock)
        self._listeners: list[Callable[[Denied], None]] = []
        self.denials: Counter[tuple[Scope, DenialReason]] = Counter()

    def on_denied(self, listener: Callable[[Denied], None]) -> None:
        """Tells the listener of every caller that is denied."""
        self._listeners.append(listener)

    def checks(self, scope: Scope) -> bool:
        """Whether callers of such a route or method have to be checked. It never changes."""
        return self._policy.checks(scope)

    def http(self, peer: Peer, header: Header, asked: str = "") -> Caller:
        """The caller of an HTTP request. ``asked``: its method and path."""
        caller = http_caller(peer, header, self._hosts)
        return replace(caller, asked=asked, request_id=checked_id(header(REQUEST_ID)) or "")

    def grpc(self, context: CallContext, asked: str = "") -> Caller:
        """The caller of a gRPC call. ``asked``: its method."""
        caller = grpc_caller(context.peer, context.metadata)
        return replace(caller, asked=asked, request_id=checked_id(context.header(REQUEST_ID)) or "")

    def may(self, caller: Caller) -> frozenset[Scope]:
        """The scopes that the caller has, for every model or some. A wrong token counts as a guess, for else this would
        tell whether it is one; nothing else is counted."""
        caller, _ = self._with_token(caller)
        self._count_guess(caller)
        found = (scope for scope in CLOSABLE if isinstance(self._decide(scope, caller), Grant))
        return frozenset((*found, Scope.OPEN))

    def manages_all(self, caller: Caller) -> bool:
        """Whether the caller may manage every model; then paths of the server are shown to it."""
        if Scope.MANAGE not in self.may(caller):
            return False
        decision = self._decide(Scope.MANAGE, caller)
        return isinstance(decision, Grant) and decision.models is None

    def check(self, scope: Scope, caller: Caller) -> Grant:
        """Returns what the caller may do with this scope. Raises :class:`AccessDenied`: PERMISSION_DENIED,
        UNAUTHENTICATED for a missing or wrong token, RESOURCE_EXHAUSTED after too many wrong ones."""
        caller, blocked = self._with_token(caller)
        decision = self._decide(scope, caller)
        if isinstance(decision, Grant):
            return decision
        if blocked:
            message = f"too many wrong tokens came from here; tokens are looked at again in {blocked} s"
            decision = Denial(StatusCode.RESOURCE_EXHAUSTED, DenialReason.TOO_MANY, message)
        else:
            self._count_guess(caller)
        raise self._deny(scope, caller, decision, blocked)

    def check_models(self, scope: Scope, caller: Caller, grant: Grant, models: Sequence[str]) -> None:
        """Raises NOT_FOUND for a model that the grant does not allow, PERMISSION_DENIED for a call that concerns all
        (``ALL_MODELS``) under a grant for some."""
        for model in models:
            if grant.allows(model):
                continue
            if model != ALL_MODELS:
                message = f"no model {model[:200]!r} is among those that {grant.name!r} may see"
                self._count(scope, caller, Denial(StatusCode.NOT_FOUND, DenialReason.MODELS, message, grant.name))
                raise not_found(message)
            message = f"{grant.name!r} of the access file is for models {grant.models}, and this concerns all models"
            raise self._deny(
                scope, caller, Denial(StatusCode.PERMISSION_DENIED, DenialReason.MODELS, message, grant.name)
            )

    def _with_token(self, caller: Caller) -> tuple[Caller, int]:
        """The caller; after too many wrong tokens without its token, and for how many seconds yet."""
        blocked = self._guesses.seconds_blocked(caller.peer.address) if caller.token else 0.0
        return (replace(caller, token=""), math.ceil(blocked)) if blocked else (caller, 0)

    def _count_guess(self, caller: Caller) -> None:
        """A wrong token counts whatever else is wrong, for a right one might have had another answer."""
        if self._file is not None and is_wrong_token(caller, self._file.entries):
            self._guesses.wrong(caller.peer.address)

    def _decide(self, scope: Scope, caller: Caller) -> Grant | Denial:
        entries: Sequence[AccessEntry] = self._file.entries if self._file is not None else ()
        return may(scope, caller, self._policy, entries)

    def _deny(self, scope: Scope, caller: Caller, denial: Denial, retry_after: int = 0) -> AccessDenied:
        self._count(scope, caller, denial)
        return AccessDenied(denial, retry_after)

    def _count(self, scope: Scope, caller: Caller, denial: Denial) -> None:
        self.denials[scope, denial.reason] += 1
        address = caller.peer.address
        denied = Denied(
            scope,
            denial.reason,
            denial.name or address,
            denial.message,
            denial.code,
            address,
            caller.asked,
            caller.request_id,
        )
        for listener in self._listeners:
            listener(denied)
