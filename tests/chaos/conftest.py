"""What the attacks on the gRPC transport share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.grpc.http2_attacks import Attacker, AttackTest


@pytest.fixture
def attack() -> Iterator[AttackTest]:
    """A server with the default limits, and a control client that is answered all the time."""
    with AttackTest() as running:
        yield running


@pytest.fixture
def attacker(attack: AttackTest) -> Attacker:
    return attack.attacker()
