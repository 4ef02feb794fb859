from __future__ import annotations

from tfs_lite.transport.remembered import Remembered


def test_the_first_of_too_many_goes() -> None:
    known = Remembered[str, int](2)
    assert [known.add(key, number) for number, key in enumerate("aba")] == [0, 1, 2]
    assert dict(known) == {"a": 2, "b": 1}
    known.add("c", 3)
    assert dict(known) == {"b": 1, "c": 3}
