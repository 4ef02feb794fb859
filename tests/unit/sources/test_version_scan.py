"""Which children are versions, and which of them a policy wants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.sources.version_scan import (
    AllPolicy,
    LatestPolicy,
    SpecificPolicy,
    VersionPolicy,
    candidates,
    choose,
    stand_ins,
)

CHILDREN = ["1", "10", "9", "00017", ".publish-18-x", "v20", "config.yaml", "9223372036854775808"]

spellings = st.builds(lambda zeros, number: "0" * zeros + str(number), st.integers(0, 3), st.integers(0, 12))
listings = st.lists(spellings | st.text(max_size=5), max_size=12)
policies = st.one_of(
    st.builds(LatestPolicy, st.integers(0, 4)),
    st.just(AllPolicy()),
    st.builds(SpecificPolicy, st.lists(st.integers(0, 14), max_size=5).map(tuple)),
)


def test_latest_takes_the_highest_numbers_in_falling_order() -> None:
    assert choose(CHILDREN, LatestPolicy()) == [(17, "00017")]
    assert choose(CHILDREN, LatestPolicy(3)) == [(17, "00017"), (10, "10"), (9, "9")]
    assert choose(CHILDREN, LatestPolicy(9)) == [(17, "00017"), (10, "10"), (9, "9"), (1, "1")]


def test_latest_zero_means_one() -> None:
    assert choose(["1", "2"], LatestPolicy(0)) == [(2, "2")]


def test_all_takes_every_version_in_the_order_of_names() -> None:
    assert choose(CHILDREN, AllPolicy()) == [(17, "00017"), (1, "1"), (10, "10"), (9, "9")]


def test_specific_takes_the_listed_versions_that_exist_once_each_in_the_order_of_the_config() -> None:
    assert choose(CHILDREN, SpecificPolicy((17, 5, 1, 17))) == [(17, "00017"), (1, "1")]
    assert choose(CHILDREN, SpecificPolicy(())) == []


def test_of_several_spellings_the_lexicographically_last_one_wins() -> None:
    for policy in (LatestPolicy(), AllPolicy(), SpecificPolicy((1,))):
        assert choose(["0001", "001", "00001"], policy) == [(1, "001")]


def test_an_unusable_newest_version_leaves_its_predecessor_in_place() -> None:
    assert choose(["1", "2", "3"], LatestPolicy(2), lambda version, child: version != 3) == [(2, "2"), (1, "1")]


def test_versions_below_the_wanted_ones_are_not_looked_at() -> None:
    asked: list[int] = []

    def usable(version: int, child: str) -> bool:
        asked.append(version)
        return version != 5

    assert choose(map(str, range(6)), LatestPolicy(2), usable) == [(4, "4"), (3, "3")]
    assert asked == [5, 4, 3]


@pytest.mark.parametrize("versions", [(-1,), (1, MAX_VERSION + 1)])
def test_specific_versions_outside_of_int64_are_refused(versions: tuple[int, ...]) -> None:
    refusal(SpecificPolicy, versions)


def test_a_negative_number_of_versions_is_refused() -> None:
    assert "num_versions" in refusal(LatestPolicy, -1)


@given(listings, policies)
def test_a_choice_has_each_version_once_and_only_children_that_spell_it(
    children: list[str], policy: VersionPolicy
) -> None:
    chosen = choose(children, policy)
    assert len({version for version, _ in chosen}) == len(chosen)
    for version, child in chosen:
        assert child in children
        assert int(child) == version
        assert child == max(name for name in children if name.isascii() and name.isdigit() and int(name) == version)


@given(listings, policies, st.sets(st.integers(0, 12)))
def test_a_choice_is_the_most_wanted_part_of_the_usable_candidates(
    children: list[str], policy: VersionPolicy, broken: set[int]
) -> None:
    usable = [item for item in candidates(children, policy) if item[0] not in broken]
    chosen = choose(children, policy, lambda version, child: version not in broken)
    limit = max(policy.num_versions, 1) if isinstance(policy, LatestPolicy) else len(usable)
    assert chosen == usable[:limit]


@given(listings, policies, st.randoms())
def test_the_order_of_the_listing_does_not_matter(children: list[str], policy: VersionPolicy, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(children)
    random.shuffle(shuffled)
    assert choose(shuffled, policy) == choose(children, policy)


def test_rejected_versions_take_no_place_however_many_they_are() -> None:
    rejected = range(2, 60)
    chosen = choose(map(str, range(60)), LatestPolicy(), rejected=rejected)
    assert [version for version, _ in chosen] == [*range(59, 1, -1), 1]
    assert stand_ins([version for version, _ in chosen], LatestPolicy(), rejected) == {1}


def test_in_place_of_a_rejected_version_of_the_policy_specific_comes_the_highest_usable_lower_one() -> None:
    def is_whole(version: int, child: str) -> bool:
        return version != 7

    def chosen(*wanted: int, failed: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
        policy = SpecificPolicy(wanted)
        found = choose(map(str, range(9)), policy, is_whole, failed, {8, 5})
        return [version for version, _ in found]

    assert chosen(8) == [8, 6]
    assert chosen(8, 6) == [8, 6]
    assert chosen(8, 1) == [8, 1, 6]
    assert chosen(8, failed={6}) == [8, 4]
    assert chosen(4) == [4]
    assert stand_ins([8, 1, 6], SpecificPolicy((8, 1)), {8}) == {6}


def test_policy_all_lists_what_is_rejected_and_needs_no_stand_in() -> None:
    chosen = [version for version, _ in choose(["1", "2"], AllPolicy(), rejected={2})]
    assert (chosen, stand_ins(chosen, AllPolicy(), {2})) == ([1, 2], frozenset())
