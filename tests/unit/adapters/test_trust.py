import os
from dataclasses import replace

import pytest

from tfs_lite.adapters.trust import NO_TRUST, TrustedPaths


def test_nothing_is_trusted_by_default(tmp_path):
    assert not NO_TRUST.allows(str(tmp_path))
    assert not TrustedPaths.of(["", ""]).allows(str(tmp_path))


@pytest.mark.parametrize(
    ("glob", "path", "allowed"),
    [
        ("models", "models", True),
        ("models", "models/a/1", True),
        ("models/", "models/a/1", True),
        ("models", "models2/a", False),
        ("models/code_*", "models/code_a/1", True),
        ("models/code_*", "models/other/1", False),
        ("models/*", "models/a", True),
        ("models/*", "models", False),
        ("models/*/1", "models/a/b/1", False),
        ("models/[ab]", "models/b/2", True),
    ],
)
def test_glob_trusts_what_it_matches_and_everything_below(tmp_path, glob, path, allowed):
    assert TrustedPaths.of([f"{tmp_path}/{glob}"]).allows(f"{tmp_path}/{path}") is allowed


def test_dots_do_not_lead_out_of_a_trusted_path(tmp_path):
    assert not TrustedPaths.of([str(tmp_path / "models")]).allows(f"{tmp_path}/models/../evil")


def test_link_below_a_trusted_path_is_trusted_only_for_where_it_leads(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "models" / "link").symlink_to(tmp_path / "evil")
    trusted = TrustedPaths.of([str(tmp_path / "models")])
    assert not trusted.allows(str(tmp_path / "models" / "link"))
    (tmp_path / "models" / "real").mkdir()
    (tmp_path / "models" / "alias").symlink_to("real")
    assert trusted.allows(str(tmp_path / "models" / "alias"))


def test_trusted_path_may_itself_be_a_link(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "models").symlink_to(tmp_path / "data")
    assert TrustedPaths.of([str(tmp_path / "models" / "*")]).allows(str(tmp_path / "models" / "a"))
    assert TrustedPaths.of([str(tmp_path / "models" / "*")]).allows(str(tmp_path / "data" / "a"))


def test_relative_glob_starts_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TrustedPaths.of(["models"]).allows(os.path.join(str(tmp_path), "models", "1"))


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_link_at_any_depth_that_leads_out_takes_trust_from_the_whole_directory(tmp_path, folder):
    version, outside = tmp_path / "trusted" / "m" / "1", tmp_path / "outside"
    (version / "deep" / "er").mkdir(parents=True)
    outside.mkdir()
    (outside / "code.py").write_text("")
    (version / "deep" / "own.py").symlink_to(version / "deep" / "er")
    (version / "deep" / "er" / "loop").symlink_to(version)
    trusted = TrustedPaths.of([str(tmp_path / "trusted")])
    assert trusted.allows_all_of(str(version))
    (version / "deep" / "er" / "more").symlink_to(outside if folder else outside / "code.py")
    assert not trusted.allows_all_of(str(version))
    assert trusted.allows(str(version))


def test_link_to_another_trusted_directory_is_followed_there(tmp_path):
    version, other = tmp_path / "trusted" / "m" / "1", tmp_path / "trusted" / "common"
    version.mkdir(parents=True)
    other.mkdir()
    (version / "common").symlink_to(other)
    trusted = TrustedPaths.of([str(tmp_path / "trusted")])
    assert trusted.allows_all_of(str(version))
    (other / "code.py").symlink_to(tmp_path)
    assert not trusted.allows_all_of(str(version))


def cached(tmp_path, url):
    """A version directory in a cache, and the origin of what is in it."""
    version = tmp_path / "cache" / "key" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("")
    root = os.path.realpath(tmp_path / "cache") + os.sep
    return version, lambda path: url if path.startswith(root) else None


@pytest.mark.parametrize(
    ("globs", "allowed"),
    [
        (["s3://models/*"], True),
        (["s3://models/digits"], True),
        (["s3://models"], True),
        (["s3://model*"], True),
        (["s3://models/d"], False),
        (["s3://models/*/2"], False),
        (["gs://models/*"], False),
        (["/"], False),
        (["ROOT", "ROOT/cache", "ROOT/cache/*/1"], False),
        ([], False),
    ],
)
def test_fetched_version_is_trusted_by_globs_of_urls_alone(tmp_path, globs, allowed):
    version, origin_of = cached(tmp_path, "s3://models/digits/1")
    trusted = TrustedPaths.of([glob.replace("ROOT", str(tmp_path)) for glob in globs])
    assert replace(trusted, origin_of=origin_of).allows_all_of(str(version)) is allowed


def test_files_of_the_cache_whose_origin_nobody_knows_are_not_trusted(tmp_path):
    version, origin_of = cached(tmp_path, "")
    trusted = TrustedPaths.of(["s3://*/*", "*://*", str(tmp_path)])
    assert not replace(trusted, origin_of=origin_of).allows_all_of(str(version))


def test_link_from_a_trusted_directory_into_the_cache_brings_no_trust(tmp_path):
    version, origin_of = cached(tmp_path, "s3://models/digits/1")
    own = tmp_path / "models" / "m" / "1"
    own.mkdir(parents=True)
    trusted = replace(TrustedPaths.of([str(tmp_path)]), origin_of=origin_of)
    assert trusted.allows_all_of(str(own))
    (own / "code").symlink_to(version)
    assert not trusted.allows_all_of(str(own))


def test_globs_of_urls_trust_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "models" / "m").mkdir(parents=True)
    assert not TrustedPaths.of(["s3://models/*"]).allows(str(tmp_path / "s3:" / "models" / "m"))
