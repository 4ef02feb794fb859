import io
import struct
import zipfile

import pytest

from tfs_lite.adapters.inspect.archive import MAX_MEMBERS, member_names, open_archive
from tfs_lite.core.status import ServingError, StatusCode


def make_zip(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


SOUND = make_zip([("m/a", b"first"), ("m/b/c", b"second" * 100)])


def refusal(data):
    with pytest.raises(ServingError) as caught, open_archive(io.BytesIO(data), "model.pt2") as archive:
        archive.verify_checksums()
    assert "model.pt2" in str(caught.value)
    return caught.value.code


def test_members_go_by_their_name_below_the_root():
    with open_archive(io.BytesIO(SOUND), "model.pt2") as archive:
        archive.verify_checksums()
        assert (archive.root, set(archive.members)) == ("m", {"a", "b/c"})
        assert archive.read("a") == b"first"


def test_missing_or_oversized_member_is_damage():
    with open_archive(io.BytesIO(SOUND), "model.pt2") as archive:
        with pytest.raises(ServingError, match=r"model\.pt2 has no x"):
            archive.read("x")
        with pytest.raises(ServingError, match="at most 4 are allowed"):
            archive.read("a", 4)


def test_archive_on_disk_that_is_gone_is_no_damage(tmp_path):
    with pytest.raises(FileNotFoundError):
        member_names(str(tmp_path / "model.pt2"))


@pytest.mark.parametrize("length", [0, 1, 21, 22, 60, len(SOUND) - 23, len(SOUND) - 22, len(SOUND) - 1])
def test_every_truncation_is_noticed(length):
    assert refusal(SOUND[:length]) is StatusCode.DATA_LOSS


def test_flipped_bit_in_the_contents_is_noticed():
    at = SOUND.index(b"second")
    assert refusal(SOUND[:at] + b"S" + SOUND[at + 1 :]) is StatusCode.DATA_LOSS


def test_empty_archive_is_damage():
    assert refusal(make_zip([])) is StatusCode.DATA_LOSS


@pytest.mark.parametrize("tail", [b"x", b"\0" * 22, SOUND])
def test_something_behind_the_archive_is_noticed(tail):
    assert refusal(SOUND + tail) in (StatusCode.DATA_LOSS, StatusCode.PERMISSION_DENIED)


def test_something_before_the_archive_is_noticed():
    assert refusal(b"#!/bin/sh\n" + SOUND) in (StatusCode.DATA_LOSS, StatusCode.PERMISSION_DENIED)


def test_comment_that_could_hide_another_directory_is_noticed():
    buffer = io.BytesIO(SOUND)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = b"hello"
    assert refusal(buffer.getvalue()) is StatusCode.DATA_LOSS


def test_second_zip64_directory_is_noticed():
    end = SOUND[-22:]
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, 10, 0)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 0, 1)
    assert refusal(SOUND[:-22] + record + locator + end) is StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("name", ["m/../../etc/passwd", "m/..", "/m/a", "m//a", "m/a\\b", "m/a\nb", "m/"])
def test_names_that_lead_elsewhere_are_unsafe(name):
    assert refusal(make_zip([("m/a", b""), (name, b"x")])) is StatusCode.PERMISSION_DENIED


def test_two_members_of_one_name_are_unsafe():
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = make_zip([("m/a", b"1"), ("m/a", b"2")])
    assert refusal(data) is StatusCode.PERMISSION_DENIED


def test_members_outside_the_root_are_no_archive_of_torch():
    assert refusal(make_zip([("m/a", b"1"), ("n/a", b"2")])) is StatusCode.DATA_LOSS
    assert refusal(make_zip([("a", b"1")])) is StatusCode.DATA_LOSS


def test_member_that_unpacks_to_much_more_is_a_bomb():
    bomb = make_zip([("m/a", b"\0" * 10_000_000)], zipfile.ZIP_DEFLATED)
    assert len(bomb) < 20_000
    assert refusal(bomb) is StatusCode.PERMISSION_DENIED


def test_ordinary_compression_is_fine():
    with open_archive(io.BytesIO(make_zip([("m/a", bytes(range(256)))], zipfile.ZIP_DEFLATED)), "x") as archive:
        archive.verify_checksums()


def test_compression_that_torch_does_not_know_is_unsafe():
    assert refusal(make_zip([("m/a", b"abc")], zipfile.ZIP_BZIP2)) is StatusCode.PERMISSION_DENIED


def test_members_that_share_their_bytes_are_unsafe():
    archive = bytearray(make_zip([("m/a", b"1" * 100), ("m/b", b"2" * 100)]))
    second = archive.rindex(b"PK\x01\x02")
    struct.pack_into("<I", archive, second + 42, 10)
    assert refusal(bytes(archive)) is StatusCode.PERMISSION_DENIED


def test_too_many_members_are_unsafe():
    data = make_zip([(f"m/{number}", b"") for number in range(MAX_MEMBERS + 1)])
    assert refusal(data) is StatusCode.PERMISSION_DENIED
