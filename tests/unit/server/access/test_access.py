"""What the one object adds to the pure decision: guesses are counted, denials are told, scopes are listed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tfs_lite.core.history import EventKind, History
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.access.access import Access, AccessDenied, Denied
from tfs_lite.server.access.access_file import AccessFile
from tfs_lite.server.access.events import LEAST_SECONDS, DenialEvents
from tfs_lite.server.access.guesses import MOST, PAUSE
from tfs_lite.server.access.rules import OPEN, TOKEN, AccessPolicy, Caller, DenialReason
from tfs_lite.transport.peer import peer_at
from tfs_lite.transport.table import EVERYTHING, Grant, Scope

HERE, ELSEWHERE = peer_at("127.0.0.1"), peer_at("10.0.0.7")
SECRET, WRONG = "s" * 32, "w" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def denied() -> list[Denied]:
    return []


@pytest.fixture
def access(tmp_path: Path, clock: Clock, denied: list[Denied]) -> Access:
    path = tmp_path / "access"
    path.write_text(f"team-a manage,read,models=a-* sha256:{sha256(SECRET.encode()).hexdigest()}")
    file = AccessFile(str(path), clock)
    access = Access(AccessPolicy(OPEN, TOKEN, has_file=True), file, clock=clock)
    access.on_denied(denied.append)
    return access


def test_callers_have_the_scopes_that_their_requests_would_have(access: Access) -> None:
    assert access.may(Caller(ELSEWHERE)) == {Scope.OPEN, Scope.PREDICT}
    assert access.may(Caller(HERE)) == {Scope.OPEN, Scope.PREDICT, Scope.MANAGE}
    assert access.may(Caller(ELSEWHERE, token=SECRET)) == set(Scope)
    assert access.may(Caller(HERE, forged="it comes from elsewhere")) == {Scope.OPEN, Scope.PREDICT}


def test_paths_are_for_those_who_manage_every_model(access: Access) -> None:
    assert access.manages_all(Caller(HERE))
    assert not access.manages_all(Caller(HERE, forwarded=True))
    assert not access.manages_all(Caller(ELSEWHERE, token=SECRET)), "it manages some"


def test_only_scopes_that_everybody_has_are_not_checked(access: Access) -> None:
    assert {scope for scope in Scope if access.checks(scope)} == {Scope.READ, Scope.MANAGE}


def test_denials_say_code_reason_and_who(access: Access, denied: list[Denied]) -> None:
    with pytest.raises(AccessDenied) as caught:
        access.check(Scope.READ, Caller(ELSEWHERE))
    assert (caught.value.code, caught.value.retry_after) == (StatusCode.UNAUTHENTICATED, 0)
    caller = Caller(ELSEWHERE, token=SECRET)
    grant = access.check(Scope.MANAGE, caller)
    access.check_models(Scope.MANAGE, caller, grant, ["a-1", "a-2"])
    access.check_models(Scope.MANAGE, caller, grant, [])
    access.check_models(Scope.MANAGE, caller, EVERYTHING, ["", "b"])
    for models, code in ((["a-1", "b"], StatusCode.NOT_FOUND), ([""], StatusCode.PERMISSION_DENIED)):
        with pytest.raises(ServingError) as refused:
            access.check_models(Scope.MANAGE, caller, grant, models)
        assert refused.value.code is code
    assert [(one.reason, one.caller) for one in denied] == [
        (DenialReason.NO_TOKEN, "10.0.0.7"),
        (DenialReason.MODELS, "team-a"),
        (DenialReason.MODELS, "team-a"),
    ]
    assert access.denials[Scope.MANAGE, DenialReason.MODELS] == 2


def guess(access: Access, times: int) -> None:
    for _ in range(times):
        with pytest.raises(AccessDenied):
            access.check(Scope.MANAGE, Caller(ELSEWHERE, token=WRONG))


def test_no_token_is_looked_at_after_too_many_wrong_ones(access: Access, clock: Clock) -> None:
    guess(access, MOST)
    with pytest.raises(AccessDenied) as caught:
        access.check(Scope.MANAGE, Caller(ELSEWHERE, token=SECRET))
    assert (caught.value.code, caught.value.retry_after) == (StatusCode.RESOURCE_EXHAUSTED, PAUSE)
    with pytest.raises(AccessDenied) as caught:
        access.check(Scope.MANAGE, Caller(ELSEWHERE))
    assert caught.value.code is StatusCode.UNAUTHENTICATED, "without a token nothing has changed"
    assert Scope.MANAGE not in access.may(Caller(ELSEWHERE, token=SECRET))
    assert access.check(Scope.MANAGE, Caller(peer_at("10.0.0.8"), token=SECRET)) == Grant("team-a", "a-*")
    clock.now += PAUSE
    assert access.check(Scope.MANAGE, Caller(ELSEWHERE, token=SECRET)) == Grant("team-a", "a-*")


def test_asking_what_one_may_is_no_way_around_the_limit(access: Access) -> None:
    for _ in range(MOST):
        access.may(Caller(ELSEWHERE, token=WRONG))
    assert Scope.MANAGE not in access.may(Caller(ELSEWHERE, token=SECRET))


def test_names_of_the_server_that_are_not_its_own_are_no_way_around_the_limit(access: Access) -> None:
    """A right token would be let in."""
    for _ in range(MOST):
        with pytest.raises(AccessDenied):
            access.check(Scope.MANAGE, Caller(HERE, token=WRONG, rebound="the server is called 'x'"))
    with pytest.raises(AccessDenied) as caught:
        access.check(Scope.MANAGE, Caller(HERE, token=SECRET, rebound="the server is called 'x'"))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_certificate_is_no_way_around_the_limit(tmp_path: Path, clock: Clock) -> None:
    """One without the scope: a right token beside it would be let in."""
    path = tmp_path / "both"
    digest = sha256(SECRET.encode()).hexdigest()
    path.write_text(f"mesh read tls:spiffe://cluster/mesh\ndeploy manage sha256:{digest}")
    access = Access(AccessPolicy(has_file=True), AccessFile(str(path), clock), clock=clock)
    mesh = peer_at("10.0.0.7", frozenset(["spiffe://cluster/mesh"]))
    for _ in range(MOST):
        with pytest.raises(AccessDenied):
            access.check(Scope.MANAGE, Caller(mesh, token=WRONG))
    with pytest.raises(AccessDenied) as caught:
        access.check(Scope.MANAGE, Caller(mesh, token=SECRET))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_right_token_without_the_scope_is_no_guess(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "reader"
    path.write_text(f"reader read sha256:{sha256(SECRET.encode()).hexdigest()}")
    access = Access(AccessPolicy(has_file=True), AccessFile(str(path), clock), clock=clock)
    for _ in range(MOST + 1):
        with pytest.raises(AccessDenied) as caught:
            access.check(Scope.MANAGE, Caller(ELSEWHERE, token=SECRET))
        assert caught.value.code is StatusCode.PERMISSION_DENIED


def test_denials_are_events_at_most_one_a_second(clock: Clock) -> None:
    history = History(lambda: 1000.0)
    events = DenialEvents(history, clock)
    for _ in range(5):
        events.append(Denied(Scope.MANAGE, DenialReason.NO_TOKEN, "10.0.0.7", "it needs a token"))
    clock.now += LEAST_SECONDS
    events.append(Denied(Scope.READ, DenialReason.MODELS, "team-a", "not for all"))
    found = history.of_model("")
    assert [(event.kind, event.by, event.details["scope"]) for event in found] == [
        (EventKind.ACCESS_DENIED, "10.0.0.7", "manage"),
        (EventKind.ACCESS_DENIED, "team-a", "read"),
    ]
