"""Which directories have to be watched for a path."""

from __future__ import annotations

from pathlib import Path

from tfs_lite.sources.watch_points import WatchPoint, point_below, points_for, targets_of


def points(path: Path) -> set[WatchPoint]:
    return set(points_for(str(path)))


def test_of_a_directory_its_contents_and_its_own_name_are_watched(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    assert points(tmp_path / "base") == {WatchPoint(str(tmp_path), "base"), WatchPoint(str(tmp_path / "base"))}


def test_of_a_missing_path_the_first_missing_part_is_watched_for(tmp_path: Path) -> None:
    assert points(tmp_path / "a" / "b" / "c") == {WatchPoint(str(tmp_path), "a")}


def test_every_link_on_the_way_is_watched_and_followed(tmp_path: Path) -> None:
    (tmp_path / "releases" / "7" / "base").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/7")
    (tmp_path / "link").symlink_to(tmp_path / "current" / ".." / "7" / "base")
    releases = tmp_path / "releases"
    assert points(tmp_path / "link") == {
        WatchPoint(str(tmp_path), "link"),
        WatchPoint(str(tmp_path), "current"),
        WatchPoint(str(releases / "7"), "base"),
        WatchPoint(str(releases / "7" / "base")),
    }


def test_a_broken_link_is_watched_together_with_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    assert points(tmp_path / "link") == {WatchPoint(str(tmp_path), "link"), WatchPoint(str(tmp_path), "missing")}


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert WatchPoint(str(tmp_path), "a") in points(tmp_path / "a")


def test_a_file_in_place_of_a_directory_is_watched_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"")
    assert points(tmp_path / "base") == {WatchPoint(str(tmp_path), "base")}


def test_points_of_one_directory_become_one_target(tmp_path: Path) -> None:
    directory = str(tmp_path)
    merged = targets_of([WatchPoint(directory, "a"), WatchPoint(directory, "b")])
    assert merged[directory].names == {"a", "b"}
    merged = targets_of([WatchPoint(directory, "a"), WatchPoint(directory), point_below(directory)])
    assert (merged[directory].names, merged[directory].recursive) == (None, True)


def test_directories_that_are_not_there_are_no_targets(tmp_path: Path) -> None:
    assert targets_of([WatchPoint(str(tmp_path / "missing"))]) == {}


def test_a_directory_in_the_place_of_another_is_another_target(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    before = targets_of([WatchPoint(str(base))])
    base.rename(tmp_path / "old")
    base.mkdir()
    assert targets_of([WatchPoint(str(base))])[str(base)].identity != before[str(base)].identity
