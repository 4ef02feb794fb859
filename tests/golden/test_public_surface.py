"""Whatever users can see is written down, line by line; a change of it is meant, or it is a mistake.

``python tests/golden/surface.py`` writes the lists anew.
"""

from __future__ import annotations

import pytest
import surface


@pytest.mark.parametrize("name", surface.LISTINGS)
def test_what_users_see_is_what_is_written_down(name: str) -> None:
    difference = surface.difference(name, surface.kept(name), surface.made(name))
    if difference:
        pytest.fail(difference, pytrace=False)


def test_every_list_is_sorted_and_has_an_owner() -> None:
    assert {path.stem for path in surface.HERE.glob("*.txt")} == set(surface.LISTINGS)
    for name in surface.LISTINGS:
        assert surface.kept(name) == sorted(set(surface.kept(name)))


def test_a_difference_names_what_has_come_and_what_has_gone() -> None:
    told = surface.difference("flags", ["kept", "old"], ["kept", "new"]).splitlines()
    assert told[1:3] == ["- old", "+ new"]
    assert told[-1].endswith("python tests/golden/surface.py flags")
