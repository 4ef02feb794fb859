"""One suite over every storage: in memory, S3, Azure, and GCS for readers."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from tests.support.remote.azurite import Azurite
from tests.support.remote.moto import Bucket, Moto, forget_clouds
from tests.support.storage import MemoryStorage
from tfs_lite.core.status import StatusCode
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.store import PAGE, Storage, StorageError
from tfs_lite.storage.url import StorageUrl

MIB = 1 << 20


class Place(Protocol):
    """Where objects are put as somebody else would."""

    def set(self, path: str, data: bytes) -> None: ...


@dataclass
class Bench:
    storage: Storage
    place: Place
    requests: list[tuple[str, str]]


def of_memory(request: pytest.FixtureRequest) -> Bench:
    storage = MemoryStorage()
    return Bench(storage, storage, [])


def opened(url: str, place: Place) -> Bench:
    requests: list[tuple[str, str]] = []
    return Bench(open_storage(StorageUrl.parse(url), lambda *seen: requests.append(seen)), place, requests)


def of_s3(request: pytest.FixtureRequest) -> Bench:
    bucket: Bucket = request.getfixturevalue("bucket")
    return opened(bucket.url, bucket)


def of_gcs(request: pytest.FixtureRequest) -> Bench:
    moto: Moto = request.getfixturevalue("moto")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    forget_clouds(monkeypatch)
    for name, value in moto.google_environment().items():
        monkeypatch.setenv(name, value)
    bucket = moto.make_bucket()
    bucket.make_public()
    return opened(f"gs://{bucket.name}", bucket)


def of_azure(request: pytest.FixtureRequest) -> Bench:
    azurite: Azurite = request.getfixturevalue("azurite")
    container = azurite.make_container()
    return opened(container.url, container)


WRITERS: list[Any] = [of_memory, of_s3, pytest.param(of_azure, marks=pytest.mark.azure)]


@pytest.fixture(params=[*WRITERS, of_gcs])
def bench(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.param(request)
    return made


@pytest.fixture(params=WRITERS)
def writable(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.param(request)
    return made


def code_of(error: pytest.ExceptionInfo[StorageError]) -> StatusCode:
    return error.value.code


def test_a_listing_has_everything_below_the_prefix_and_nothing_beside_it(bench: Bench) -> None:
    for path in ("m/1/model.pt2", "m/1/assets/words.txt", "m/labels.txt", "m2/1/model.pt2", "m", "a/m/1/x"):
        bench.place.set(path, path.encode())
    listing = bench.storage.files("m")
    assert listing.is_whole
    assert [(file.path, file.size) for file in listing.files] == [
        (path, len(path)) for path in ("m/1/assets/words.txt", "m/1/model.pt2", "m/labels.txt")
    ]
    assert len(bench.storage.files("").files) == 6


def test_nothing_below_a_prefix_is_an_empty_listing(bench: Bench) -> None:
    bench.place.set("models/1/x", b"x")
    assert bench.storage.files("model") == bench.storage.files("models/1/x") == bench.storage.files("n")
    assert bench.storage.files("n").files == ()
    children = bench.storage.children("n")
    assert (children.files, children.folders) == ((), ())


def test_children_are_the_first_level(bench: Bench) -> None:
    for path in ("m/1/model.pt2", "m/10/assets/words.txt", "m/labels.txt", "m2/1/x", "top"):
        bench.place.set(path, b"1")
    children = bench.storage.children("m")
    assert [file.path for file in children.files] == ["m/labels.txt"]
    assert children.folders == ("1", "10")
    root = bench.storage.children("")
    assert [file.path for file in root.files] == ["top"]
    assert root.folders == ("m", "m2")


@pytest.mark.parametrize(
    "name", ["a b", "ü+&=%20", "100%", "x#y?z", "back\\slash", "blank ", "(1)*[2]~$!,;:@'", "日本", "a.b..c"]
)
def test_odd_names_come_as_they_are(bench: Bench, name: str) -> None:
    if "\\" in name and bench.storage.scheme == "az":
        pytest.skip("azurite takes a backslash for a slash")
    bench.place.set(f"m/{name}/{name}", name.encode())
    assert [file.path for file in bench.storage.files("m").files] == [f"m/{name}/{name}"]
    assert bench.storage.children("m").folders == (name,)
    assert [file.path for file in bench.storage.children(f"m/{name}").files] == [f"m/{name}/{name}"]
    assert b"".join(bench.storage.read(f"m/{name}/{name}")) == name.encode()


def test_tags_differ_when_contents_do_and_are_those_that_reading_takes(bench: Bench) -> None:
    bench.place.set("m/a", b"first")
    (before,) = bench.storage.files("m").files
    assert '"' not in before.tag
    assert b"".join(bench.storage.read("m/a", tag=before.tag)) == b"first"
    bench.place.set("m/a", b"other")
    (after,) = bench.storage.files("m").files
    assert after.tag != before.tag
    assert after.modified_ns >= before.modified_ns > 0
    with pytest.raises(StorageError) as caught:
        bench.storage.read("m/a", tag=before.tag)
    assert code_of(caught) is StatusCode.ABORTED
    (child,) = bench.storage.children("m").files
    assert child == after


@pytest.mark.parametrize(("size", "start"), [(0, 0), (1, 0), (3 * MIB + 7, 0), (3 * MIB + 7, MIB + 3), (9, 8), (9, 9)])
def test_an_object_is_read_from_a_byte_on_in_pieces(bench: Bench, size: int, start: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    bench.place.set("m/a", data[:size])
    pieces = list(bench.storage.read("m/a", start))
    assert b"".join(pieces) == data[start:size]
    assert all(0 < len(piece) <= MIB for piece in pieces)


def test_what_is_not_there_is_not_found(bench: Bench) -> None:
    with pytest.raises(StorageError) as caught:
        bench.storage.read("m/none")
    assert code_of(caught) is StatusCode.NOT_FOUND
    assert not caught.value.is_transient


def test_a_page_that_is_full_is_a_part(bench: Bench) -> None:
    for number in range(PAGE + 1):
        bench.place.set(f"m/{number:06}", b"")
    listing = bench.storage.files("m")
    assert not listing.is_whole
    assert len(listing.files) == PAGE
    assert len(bench.storage.children("m").files) == PAGE + 1


def test_what_is_put_is_read_and_listed(writable: Bench) -> None:
    storage = writable.storage
    storage.put("m/1/a", b"one")
    storage.put("m/1/b", io.BytesIO(b"two"))
    storage.put("m/1/empty", b"")
    assert b"".join(storage.read("m/1/a")) + b"".join(storage.read("m/1/b")) == b"onetwo"
    assert [(file.path, file.size) for file in storage.files("m").files] == [
        ("m/1/a", 3),
        ("m/1/b", 3),
        ("m/1/empty", 0),
    ]
    storage.put("m/1/a", b"other")
    assert b"".join(storage.read("m/1/a")) == b"other"


def test_a_large_file_is_put_from_where_it_stands(writable: Bench) -> None:
    data = bytes(range(256)) * (20 * MIB // 256)
    source = io.BytesIO(b"head" + data)
    source.seek(4)
    writable.storage.put("m/large", source)
    assert b"".join(writable.storage.read("m/large")) == data


def test_an_object_is_created_once(writable: Bench) -> None:
    writable.storage.put("m/claim", b"mine", create=True)
    with pytest.raises(StorageError) as caught:
        writable.storage.put("m/claim", b"others", create=True)
    assert code_of(caught) is StatusCode.ALREADY_EXISTS
    assert b"".join(writable.storage.read("m/claim")) == b"mine"
    writable.storage.put("m/claim", io.BytesIO(b"mine"), create=True)


def test_what_is_deleted_is_gone_and_may_be_gone_before(writable: Bench) -> None:
    writable.storage.put("m/1/a", b"one")
    writable.storage.delete("m/1/a")
    writable.storage.delete("m/1/a")
    assert writable.storage.files("m").files == ()


def test_requests_are_reported_with_their_results(writable: Bench) -> None:
    if not isinstance(writable.storage, MemoryStorage):
        storage = writable.storage
        storage.put("m/a", b"1")
        storage.files("m")
        storage.children("m")
        list(storage.read("m/a"))
        with pytest.raises(StorageError):
            storage.read("m/b")
        storage.delete("m/a")
        assert writable.requests == [
            ("put", "ok"),
            ("list", "ok"),
            *[("list", "ok")] * (1 if storage.scheme == "az" else 2),  # the first one of a level measures it
            ("get", "ok"),
            ("get", "not_found"),
            ("delete", "ok"),
        ]
