import io
import random
import struct
import zipfile
from functools import partial

import pytest

from tfs_lite.adapters.inspect.archive import MAX_MEMBERS, open_archive
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
    with pytest.raises(FileNotFoundError), open_archive(str(tmp_path / "model.pt2"), "model.pt2"):
        pass


@pytest.mark.parametrize("length", [0, 1, 21, 22, 60, len(SOUND) - 23, len(SOUND) - 22, len(SOUND) - 1])
def test_every_truncation_is_noticed(length):
    assert refusal(SOUND[:length]) is StatusCode.DATA_LOSS


AROUND = [SOUND + b"x", SOUND + b"\0" * 22, SOUND + SOUND, b"#!/bin/sh\n" + SOUND]


@pytest.mark.parametrize("data", AROUND, ids=["a byte behind", "zeros behind", "an archive behind", "a script before"])
def test_something_around_the_archive_is_noticed(data):
    assert refusal(data) in (StatusCode.DATA_LOSS, StatusCode.PERMISSION_DENIED)


def commented():
    buffer = io.BytesIO(SOUND)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = b"hello"
    return buffer.getvalue()


def with_second_zip64_directory():
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, 10, 0)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 0, 1)
    return SOUND[:-22] + record + locator + SOUND[-22:]


def with_shared_bytes():
    archive = bytearray(make_zip([("m/a", b"1" * 100), ("m/b", b"2" * 100)]))
    struct.pack_into("<I", archive, archive.rindex(b"PK\x01\x02") + 42, 10)
    return bytes(archive)


def with_two_members_of_one_name():
    with pytest.warns(UserWarning, match="Duplicate name"):
        return make_zip([("m/a", b"1"), ("m/a", b"2")])


DAMAGED = {
    "flipped bit in the contents": lambda: SOUND.replace(b"second", b"Second", 1),
    "no members": lambda: make_zip([]),
    "comment that could hide another directory": commented,
    "members outside the root": lambda: make_zip([("m/a", b"1"), ("n/a", b"2")]),
    "no root": lambda: make_zip([("a", b"1")]),
}
NAMES = ["m/../../etc/passwd", "m/..", "/m/a", "m//a", "m/a\\b", "m/a\nb", "m/"]
UNSAFE = {
    **{f"name {name!r}": partial(make_zip, [("m/a", b""), (name, b"x")]) for name in NAMES},
    "two members of one name": with_two_members_of_one_name,
    "second zip64 directory": with_second_zip64_directory,
    "members that share their bytes": with_shared_bytes,
    "too many members": lambda: make_zip([(f"m/{number}", b"") for number in range(MAX_MEMBERS + 1)]),
    "compression that torch does not know": lambda: make_zip([("m/a", b"abc")], zipfile.ZIP_BZIP2),
}


@pytest.mark.parametrize("make", DAMAGED.values(), ids=DAMAGED)
def test_archive_that_torch_did_not_write_so_is_damage(make):
    assert refusal(make()) is StatusCode.DATA_LOSS


@pytest.mark.parametrize("make", UNSAFE.values(), ids=UNSAFE)
def test_archive_that_could_be_read_in_two_ways_is_unsafe(make):
    assert refusal(make()) is StatusCode.PERMISSION_DENIED


def test_member_that_unpacks_to_much_more_is_a_bomb():
    bomb = make_zip([("m/a", b"\0" * 10_000_000)], zipfile.ZIP_DEFLATED)
    assert len(bomb) < 20_000
    assert refusal(bomb) is StatusCode.PERMISSION_DENIED


def test_ordinary_compression_is_fine():
    with open_archive(io.BytesIO(make_zip([("m/a", bytes(range(256)))], zipfile.ZIP_DEFLATED)), "x") as archive:
        archive.verify_checksums()


def test_error_repeats_little_of_the_archive():
    """The header of a member says that its name is as long as all that follows."""
    data = bytearray(SOUND)
    struct.pack_into("<H", data, 26, len(SOUND) - 40)
    with pytest.raises(ServingError) as caught, open_archive(io.BytesIO(bytes(data)), "model.pt2") as archive:
        archive.verify_checksums()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_others_may_run_after_each_quarter_of_a_megabyte(compression):
    content, pauses = random.Random(1).randbytes(1_000_000), []
    target = memoryview(bytearray(len(content)))
    with open_archive(io.BytesIO(make_zip([("m/large", content)], compression)), "model.pt2") as archive:
        archive.read_into("large", target, lambda: pauses.append(1))
    assert bytes(target) == content
    assert len(pauses) == 4
