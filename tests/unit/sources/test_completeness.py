"""The verdict about one version, over what is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.manifest import FileStat, Manifest, ManifestFile, Tree
from tfs_lite.sources.completeness import Complete, Evidence, Need, Waiting, judge, unverified

NOW = 1_000_000.0
QUIET = 1.0
DIGEST = "0" * 64


def file(name: str, size: int = 10, changed: float = NOW - 100, inode: int = 1) -> FileStat:
    return FileStat(name, size, int(changed * 1e9), int(changed * 1e9), inode)


def tree(*files: FileStat, newest: float = NOW - 100) -> Tree:
    return Tree(files, int(newest * 1e9))


LOOKED = Evidence(wall_time=NOW, structure="")
MODEL = tree(file("model.pt2"))


YOUNG = tree(file("model.pt2"), newest=NOW)
FUTURE = replace(MODEL, newest_ns=int((NOW + 3600) * 1e9))


def listed(size: int, stamp: str = "") -> Evidence:
    return Evidence(Manifest({"model.pt2": ManifestFile(size, DIGEST, stamp)}), wall_time=NOW)


@pytest.mark.parametrize(
    ("seen", "evidence", "verdict"),
    [
        (MODEL, LOOKED, Complete(MODEL.fingerprint)),
        (FUTURE, replace(LOOKED, unchanged_for=QUIET), Complete(MODEL.fingerprint)),
        (tree(), LOOKED, Waiting("no files yet")),
        (tree(file(".model.pt2.Xy12zA")), LOOKED, Waiting("no files yet")),
        (tree(file(".cache/blob")), LOOKED, Waiting("no files yet")),
        (MODEL, replace(LOOKED, structure=None), Need.STRUCTURE),
        (MODEL, replace(LOOKED, structure="model.pt2 is truncated"), Waiting("model.pt2 is truncated")),
        (MODEL, replace(LOOKED, manifest_problem="not whole JSON"), Waiting("not whole JSON")),
        (YOUNG, listed(10, YOUNG.files[0].stamp), Complete(YOUNG.fingerprint)),
        (MODEL, listed(11), Waiting("manifest lists model.pt2 with 11 bytes, found 10")),
        (tree(), listed(11), Waiting("manifest lists model.pt2 with 11 bytes, found no such file")),
    ],
    ids=[
        "files that were there long before are complete at once",
        "watching for the quiet period is enough whatever the time stamps say",
        "an empty directory waits",
        "a hidden file alone is no version",
        "a hidden directory alone is no version",
        "archives are looked into when everything is quiet",
        "a damaged archive waits with its reason and no timer",
        "a manifest that cannot be read waits with the problem",
        "with a manifest no quiet period is needed",
        "a file of another size than listed waits",
        "a manifest that came first waits for its files",
    ],
)
def test_verdict_follows_from_the_evidence(seen: Tree, evidence: Evidence, verdict: Complete | Waiting | Need) -> None:
    assert judge(seen, evidence, QUIET) == verdict


@pytest.mark.parametrize(
    ("seen", "evidence", "retry_in"),
    [
        (replace(MODEL, newest_ns=int((NOW - 0.25) * 1e9)), LOOKED, 0.75),
        (YOUNG, replace(LOOKED, structure=None), QUIET),
        (FUTURE, LOOKED, QUIET),
        (MODEL, replace(LOOKED, seen_changing=True, unchanged_for=0.5), 0.5),
    ],
    ids=["young files", "young files not looked into yet", "time stamps in the future", "seen changing"],
)
def test_files_wait_for_the_rest_of_the_quiet_period(seen: Tree, evidence: Evidence, retry_in: float) -> None:
    verdict = judge(seen, evidence, QUIET)
    assert isinstance(verdict, Waiting)
    assert verdict.retry_in == pytest.approx(retry_in)


def test_too_many_files_wait_with_that_reason() -> None:
    verdict = judge(replace(MODEL, overflow=True), LOOKED, QUIET)
    assert isinstance(verdict, Waiting)
    assert verdict.reason.startswith("too many files")


def test_a_copy_is_hashed_and_the_published_file_itself_is_not() -> None:
    two = tree(file("a", inode=1), file("b", inode=2))
    manifest = Manifest({"a": ManifestFile(10, DIGEST, two.files[0].stamp), "b": ManifestFile(10, DIGEST, "9:9")})
    assert [stat.name for stat in unverified(two, manifest)] == ["b"]
    assert judge(two, Evidence(manifest), QUIET) is Need.DIGESTS
    assert judge(two, Evidence(manifest, digests=""), QUIET) == Complete(two.fingerprint)
    assert judge(two, Evidence(manifest, digests="b differs"), QUIET) == Waiting("b differs")


stats = st.builds(
    FileStat,
    st.from_regex(r"[a-c.]{1,3}", fullmatch=True),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
)
file_lists = st.lists(stats, max_size=4, unique_by=lambda stat: stat.name).map(
    lambda files: tuple(sorted(files, key=lambda stat: stat.name))
)
manifests = st.dictionaries(
    st.from_regex(r"[a-c]{1,3}", fullmatch=True),
    st.builds(ManifestFile, st.integers(0, 3), st.just(DIGEST), st.just("") | st.just("1:1")),
    min_size=1,
    max_size=3,
).map(Manifest)


SECONDS = st.sampled_from([0.0, 0.5, 1.0, 3.0, 8.0]) | st.floats(0, 10)


def mostly(good: object, *others: object) -> st.SearchStrategy[Any]:
    return st.sampled_from([good] * 4 + list(others))


@st.composite
def looked_at(draw: st.DrawFn) -> tuple[Tree, Evidence]:
    """A version and what is known of it. Little speaks against most of them: half of the manifests list its files."""
    tree = Tree(draw(file_lists), int(draw(SECONDS) * 1e9), draw(mostly(False, True)))
    stamps = [draw(st.sampled_from([each.stamp, ""])) for each in tree.files]
    listed = {each.name: ManifestFile(each.size, DIGEST, stamp) for each, stamp in zip(tree.files, stamps, strict=True)}
    evidence = Evidence(
        draw(st.none() | (st.just(Manifest(listed)) if listed else manifests) | manifests),
        draw(mostly("", "bad manifest")),
        draw(SECONDS),
        draw(SECONDS),
        draw(st.booleans()),
        draw(mostly("", None, "truncated")),
        draw(mostly("", None, "differs")),
    )
    return tree, evidence


@examples(600)
@given(looked_at(), SECONDS)
def test_the_verdict_is_complete_only_when_nothing_speaks_against_it(seen: tuple[Tree, Evidence], quiet: float) -> None:
    tree, evidence = seen
    verdict = judge(tree, evidence, quiet)
    if not isinstance(verdict, Complete):
        return
    assert tree.files
    assert not tree.overflow
    assert not evidence.manifest_problem
    if evidence.manifest is None:
        assert evidence.structure == ""
        assert evidence.unchanged_for >= quiet or evidence.wall_time - tree.newest_ns / 1e9 >= quiet
    else:
        assert evidence.manifest.size_problem({file.name: file.size for file in tree.files}) == ""
        assert evidence.digests == "" or not unverified(tree, evidence.manifest)


@examples(600)
@given(looked_at(), SECONDS)
def test_waiting_has_a_reason_and_time_or_new_evidence_ends_it(seen: tuple[Tree, Evidence], quiet: float) -> None:
    tree, evidence = seen
    verdict = judge(tree, evidence, quiet)
    if isinstance(verdict, Waiting):
        assert verdict.reason
        assert verdict.retry_in is None or verdict.retry_in > 0
        if verdict.retry_in is not None:
            later = replace(
                evidence,
                unchanged_for=evidence.unchanged_for + verdict.retry_in + 1e-6,
                wall_time=evidence.wall_time + verdict.retry_in + 1e-6,
            )
            after = judge(tree, later, quiet)
            assert not (isinstance(after, Waiting) and after.retry_in)


@examples(600)
@given(looked_at(), SECONDS)
def test_every_need_is_settled_by_the_evidence_it_asks_for(seen: tuple[Tree, Evidence], quiet: float) -> None:
    tree, evidence = seen[0], replace(seen[1], structure=None, digests=None)
    verdict = judge(tree, evidence, quiet)
    if verdict is Need.STRUCTURE:
        assert isinstance(judge(tree, replace(evidence, structure=""), quiet), Complete)
    elif verdict is Need.DIGESTS:
        assert isinstance(judge(tree, replace(evidence, digests=""), quiet), Complete)


@given(file_lists, file_lists)
def test_fingerprints_differ_exactly_when_the_files_do(one: tuple[FileStat, ...], other: tuple[FileStat, ...]) -> None:
    assert (Tree(one, 0).fingerprint == Tree(other, 5).fingerprint) == (one == other)
