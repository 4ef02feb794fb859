"""Hostile access files, headers and requests: no right comes out of nothing, and no secret into a message."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.bearer import token_of
from tfs_lite.protocols.fields import lacks, name_or_all, names_at
from tfs_lite.protocols.messages import MultiInferenceRequest, PredictRequest
from tfs_lite.server.access.access_file import read_entries
from tfs_lite.server.access.rules import (
    CLOSABLE,
    AccessEntry,
    AccessPolicy,
    Caller,
    Denial,
    grpc_caller,
    http_caller,
    may,
)
from tfs_lite.transport.peer import peer_at, peer_of
from tfs_lite.transport.table import Scope

T = TypeVar("T")

TOKEN = "0123456789abcdef" * 2
DIGEST = sha256(TOKEN.encode())
ENTRY = AccessEntry("deploy", frozenset(CLOSABLE), None, digest=DIGEST.digest())
CLOSED = AccessPolicy("token", "token", "token", has_file=True)
ELSEWHERE = peer_at("10.0.0.1")

WORDS = (
    "deploy",
    "manage",
    "read,predict",
    "models=a*",
    "sha256:",
    DIGEST.hexdigest(),
    TOKEN,
    "tls:",
    "tls:a",
    "#",
    ",",
)
THREE = st.lists(st.sampled_from(WORDS), min_size=3, max_size=3).map(" ".join)
LINES = THREE | st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)), max_size=6).flatmap(
    lambda words: st.sampled_from(("", " ", "\t")).map(lambda gap: gap.join(words))
)
NAMES = ("authorization", "host", "origin", "content-type", "user-agent", "sec-fetch-site", "via", "forwarded")
HEADERS = st.dictionaries(st.sampled_from(NAMES), st.text(st.characters(max_codepoint=255), max_size=60))


def attempt(read: Callable[[], T]) -> tuple[ServingError | None, T | None]:
    """What it raises, or what it returns."""
    try:
        return None, read()
    except ServingError as error:
        return error, None


@given(st.lists(LINES, max_size=6).map("\n".join), st.booleans())
@examples(500)
@example(f"deploy manage,models=a* sha256:{DIGEST.hexdigest()}\nreader read,predict tls:a", True)
@example(f"deploy {TOKEN} manage", True)
@example(f"deploy manage,{TOKEN} x", True)
@example(f"deploy manage,models={TOKEN},models= x", True)
@example(f"{TOKEN}: manage x", True)
def test_file_becomes_entries_or_one_refusal_without_its_secrets(text: str, private: bool) -> None:
    refused, found = attempt(lambda: read_entries(text, "access", private))
    if refused is not None:
        assert refused.code is StatusCode.INVALID_ARGUMENT
        assert str(refused).startswith("access")
        assert TOKEN not in str(refused)
        assert DIGEST.hexdigest() not in str(refused)
    for entry in found or ():
        assert entry.scopes
        assert bool(entry.digest) != bool(entry.certificate)
        assert len(entry.digest) in (0, 32)
        assert entry.models != ""


@given(HEADERS)
@examples(300)
@example({"authorization": f"Bearer {TOKEN}"})
@example({"authorization": f"bearer {TOKEN} "})
def test_headers_make_a_caller_and_only_the_token_makes_it_one_with_rights(headers: dict[str, str]) -> None:
    for caller in (http_caller(ELSEWHERE, headers.get), grpc_caller(ELSEWHERE, headers)):
        for scope in CLOSABLE:
            found = may(scope, caller, CLOSED, (ENTRY,))
            if not isinstance(found, Denial):
                assert caller.token == TOKEN
            else:
                assert TOKEN not in found.message
        assert not isinstance(may(Scope.OPEN, caller, CLOSED, (ENTRY,)), Denial)


@given(st.text(max_size=80))
@examples(300)
def test_text_that_is_no_bearer_token_is_none(text: str) -> None:
    token = token_of(text)
    assert token == token.strip()
    assert not token or text[:7].lower() == "bearer "


@given(st.text(max_size=60))
@examples(300)
@example("127.0.0.1")
@example("127.0.0.1%lo")
@example("::ffff:127.0.0.1")
def test_any_text_as_an_address_is_a_peer(text: str) -> None:
    class Transport:
        def get_extra_info(self, name: str) -> Any:
            return (text, 1) if name == "peername" else None

    peer = peer_of(Transport())  # type: ignore[arg-type]
    assert peer == peer_at(text)
    assert not peer.loopback or "127." in text or "1" in text
    assert Caller(peer, forwarded=True).is_local is False


def fields() -> st.SearchStrategy[bytes]:
    """Messages, their parts in any order, and rubbish."""
    spec = st.builds(lambda name: PredictRequest(model_spec={"name": name}).SerializeToString(), st.text(max_size=5))
    return st.lists(st.one_of(spec, st.binary(max_size=6)), max_size=4).map(b"".join)


@given(fields())
@examples(500)
def test_name_that_a_parser_finds_is_among_those_that_are_checked(data: bytes) -> None:
    refused, found = attempt(lambda: names_at(1, 1)(data))
    if found is None:
        assert refused is not None
        assert refused.code is StatusCode.INVALID_ARGUMENT
        return
    assert name_or_all(1, 1)(data) == (found or [""])
    assert lacks(1)(data) is (names_at(1)(data) == [])
    with contextlib.suppress(DecodeError):
        assert PredictRequest.FromString(data).model_spec.name in [*found, ""]
        assert found or not PredictRequest.FromString(data).model_spec.name


@given(st.lists(st.text(max_size=5), max_size=4))
@examples(100)
def test_models_of_all_tasks_are_found(names: list[str]) -> None:
    request = MultiInferenceRequest(tasks=[{"model_spec": {"name": name}} for name in names])
    assert names_at(1, 1, 1)(request.SerializeToString()) == [name for name in names if name]
