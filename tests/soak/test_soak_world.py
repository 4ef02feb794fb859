"""A small world for half a minute: see ``soak_world.py``, which ``make soak-world`` runs at full size."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak_world import Soak, parsed

ROUNDS = 3


@pytest.mark.load
def test_a_small_world_keeps_the_promises(tmp_path: Path) -> None:
    wanted = parsed(["--seed=1", "--models=5", "--callers=4", "--rate=100", f"--rounds={ROUNDS - 1}"])
    soak = Soak(wanted, tmp_path.resolve())
    soak.run()
    assert soak.findings == []
    assert soak.rounds == ROUNDS
    assert soak.judge.outcomes["answered"] > 100
