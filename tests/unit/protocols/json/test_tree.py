"""One text -> one tree: names, levels, special numbers and stand-ins."""

from typing import Any

import numpy as np
import orjson
import pytest

from tfs_lite.protocols.json.tree import MAX_DEPTH, JsonRefused, StandIns, new_stand_in, read


def refused(text: bytes, above: int = 0, stand_ins: StandIns | None = None) -> bool:
    try:
        read(text, above, stand_ins)
    except JsonRefused:
        return True
    return False


@pytest.mark.parametrize("many", [1, 200], ids=["few", "many"])
@pytest.mark.parametrize(
    "item",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"a":":"}',
        b'{"a":1,"a":"\\u003a"}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":[{"b":1,"b":1}],"c":"::::"}',
        b'{"a":1,"a":{"b":1,"c":2}}',
        b'{"\\"":1,"\\"":2}',
        b'{"\\\\":1,"\\\\":2}',
        b'{"":"","":""}',
        b'{"a,b":"[{,","a,b":"\\":"}',
    ],
)
def test_a_name_that_comes_twice_is_refused_wherever_it_is(item: bytes, many: int) -> None:
    good = b'{"a":1,"b":":","c":[{"a":"[","b":{}}]}'
    for items in ([item] * many, [good] * many + [item], [item] + [good] * many):
        assert refused(b"[" + b",".join(items) + b"]")
    assert len(orjson.loads(b"[" + b",".join([good] * many) + b"]")) == many
    assert not refused(b"[" + b",".join([good] * many) + b"]")


@pytest.mark.parametrize("above", [0, 1, 50, 84, 85, 99])
@pytest.mark.parametrize("filler", [b"", b'"]]]]"', b'"[","]"', b"[],[],[]" + b",[]" * 100, b'"\\"["'])
def test_levels_above_count(above: int, filler: bytes) -> None:
    levels = MAX_DEPTH - above - filler.startswith(b"[")
    if levels:
        assert not refused(b"[" * levels + filler + b"]" * levels, above)
    assert refused(b"[" * (levels + 1) + filler + b"]" * (levels + 1), above)


def test_stand_ins_are_replaced_wherever_they_are() -> None:
    stand_ins: StandIns = {}
    array = np.zeros((2, 3))
    mark = new_stand_in(stand_ins, array)
    assert read(mark, 0, stand_ins) is array
    tree: Any = read(b'{"a":[1.5,%b,{"b":%b}],"c":%b}' % (mark, mark, mark), 0, stand_ins)
    assert tree["a"][0] == 1.5
    assert tree["a"][1] is tree["a"][2]["b"] is tree["c"] is array


@pytest.mark.parametrize("place", [b"-%b", b"1%b", b"%b1", b"{%b:1}", b'"a"%b', b"[1 %b]", b"[%b %b]", b"%be5"])
def test_a_stand_in_is_legal_where_a_value_is_and_nowhere_else(place: bytes) -> None:
    stand_ins: StandIns = {}
    mark = new_stand_in(stand_ins, [])
    assert refused(place.replace(b"%b", mark), 0, stand_ins)


def test_a_stand_in_of_an_array_is_as_deep_as_its_dimensions() -> None:
    stand_ins: StandIns = {}
    mark = new_stand_in(stand_ins, np.zeros((1, 1)))
    levels = MAX_DEPTH - 2
    assert not refused(b"[" * levels + mark + b"]" * levels, 0, stand_ins)
    assert refused(b"[" * (levels + 1) + mark + b"]" * (levels + 1), 0, stand_ins)
    assert refused(b"[" + mark + b"]", levels, stand_ins)


def test_special_numbers_and_stand_ins_may_come_together() -> None:
    stand_ins: StandIns = {}
    mark = new_stand_in(stand_ins, "x")
    assert repr(read(b'[NaN,%b,"NaN",-Infinity]' % mark, 0, stand_ins)) == "[nan, 'x', 'NaN', -inf]"
    assert len(stand_ins) == 1
