"""An S3 storage behind a proxy that breaks: every fault is told as what it is, and without secrets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.remote.azurite import Azurite
from tests.support.remote.moto import KEY_ID, SECRET, Bucket, forget_clouds
from tests.support.remote.proxy import FaultProxy
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.storage import objects
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.store import Storage, StorageError
from tfs_lite.storage.url import StorageUrl

IMPATIENT = {"connect_timeout": "5s", "read_timeout": "1s", "timeout": "24h"}
KIB = 1 << 10


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(objects, "FIRST_WAIT", timedelta(milliseconds=10))
    with FaultProxy(bucket.moto.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second without a byte is too long, for what hangs or stalls."""
    for name in ("LISTS", "BODIES", "UPLOADS"):
        monkeypatch.setattr(objects, name, IMPATIENT)


@pytest.fixture
def storage(proxy: FaultProxy, bucket: Bucket) -> Storage:
    bucket.set("m/1/model.pt2", bytes(range(256)) * KIB * 4)
    return open_storage(StorageUrl.parse(bucket.url))


def error_of(call: Callable[[], object]) -> StorageError:
    with pytest.raises(StorageError) as caught:
        call()
    for secret in (KEY_ID, SECRET, "bucket", "http://", "127.0.0.1", "model.pt2"):
        assert secret not in caught.value.sentence.replace("there is no such bucket", "").replace(
            "the bucket is in", ""
        )
    return caught.value


def calls(storage: Storage) -> dict[str, Callable[[], object]]:
    return {
        "list": lambda: storage.files("m"),
        "list with delimiter": lambda: storage.children("m"),
        "get": lambda: storage.read("m/1/model.pt2"),
        "put": lambda: storage.put("m/1/x", b"1"),
        "create": lambda: storage.put("m/1/y", b"1", create=True),
        "delete": lambda: storage.delete("m/1/x"),
    }


@pytest.mark.parametrize(
    ("status", "code", "expected", "sentence", "transient"),
    [
        (503, "SlowDown", StatusCode.UNAVAILABLE, "the storage answers 503 SlowDown", True),
        (500, "InternalError", StatusCode.UNAVAILABLE, "the storage answers 500 InternalError", True),
        (429, "TooManyRequests", StatusCode.UNAVAILABLE, "the storage answers 429 TooManyRequests", True),
        (403, "AccessDenied", StatusCode.PERMISSION_DENIED, "the storage refuses (403 AccessDenied)", False),
        (401, KEY_ID + "<", StatusCode.PERMISSION_DENIED, "the storage refuses (401)", False),
        (400, "ExpiredToken", StatusCode.PERMISSION_DENIED, "the storage refuses (400 ExpiredToken)", False),
        (400, "InvalidToken", StatusCode.PERMISSION_DENIED, "the storage refuses (400 InvalidToken)", False),
        (400, "Other", StatusCode.FAILED_PRECONDITION, "the storage answers 400 Other", False),
        (301, "PermanentRedirect", StatusCode.FAILED_PRECONDITION, "another region: set AWS_REGION", False),
        (400, "AuthorizationHeaderMalformed", StatusCode.FAILED_PRECONDITION, "another region: set AWS_REGION", False),
    ],
)
def test_a_status_means_the_same_for_every_operation(
    proxy: FaultProxy, storage: Storage, status: int, code: str, expected: StatusCode, sentence: str, transient: bool
) -> None:
    proxy.fail("status", status=status, code=code)
    for name, call in calls(storage).items():
        error = error_of(call)
        assert (name, error.code, error.is_transient) == (name, expected, transient)
        assert sentence in error.sentence


def test_a_bucket_that_is_missing_is_not_found(proxy: FaultProxy) -> None:
    storage = open_storage(StorageUrl.parse("s3://there-is-none"))
    some = calls(storage)
    for name in ("list", "list with delimiter", "get", "put", "create"):
        error = error_of(some[name])
        assert (name, error.code, error.is_transient) == (name, StatusCode.NOT_FOUND, False)
        assert error.sentence == "there is no such bucket"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["reset", "hang"])
def test_a_storage_that_does_not_answer_is_unavailable_within_its_time(
    proxy: FaultProxy, storage: Storage, kind: str
) -> None:
    proxy.fail(kind)  # type: ignore[arg-type]
    some = calls(storage)
    for name in ("list", "get", "delete"):
        error = error_of(some[name])
        assert (name, error.code, error.is_transient) == (name, StatusCode.UNAVAILABLE, True)
        assert error.sentence == "the storage does not answer"
        assert proxy.count() == (1 if name == "delete" else 2)  # a bulk delete is a POST
        proxy.forget()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["cut", "stall"])
def test_a_listing_that_ends_early_is_no_listing(proxy: FaultProxy, storage: Storage, kind: str) -> None:
    proxy.fail(kind, after=200, operation="list")  # type: ignore[arg-type]
    error = error_of(lambda: storage.files("m"))
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)
    assert error.sentence == "the storage does not answer"


def test_an_answer_that_is_no_listing_is_unavailable(proxy: FaultProxy, storage: Storage) -> None:
    proxy.fail("status", status=200)
    error = error_of(lambda: storage.files("m"))
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["cut", "stall"])
def test_a_body_that_ends_early_once_goes_on_where_it_was(proxy: FaultProxy, storage: Storage, kind: str) -> None:
    proxy.fail(kind, times=1, after=300 * KIB)  # type: ignore[arg-type]
    assert b"".join(storage.read("m/1/model.pt2")) == bytes(range(256)) * KIB * 4
    first, second = proxy.requests
    assert second.headers["range"] == f"bytes={first.sent}-{1024 * KIB - 1}"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["cut", "stall"])
def test_every_byte_that_came_is_given_before_a_body_fails(proxy: FaultProxy, storage: Storage, kind: str) -> None:
    proxy.fail(kind, after=300 * KIB)  # type: ignore[arg-type]
    given = bytearray()

    def read() -> None:
        for piece in storage.read("m/1/model.pt2"):
            given.extend(piece)

    error = error_of(read)
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)
    assert len(given) == proxy.sent() == 600 * KIB
    assert given == (bytes(range(256)) * KIB * 4)[: len(given)]


def test_an_object_that_changes_while_its_body_is_cut_is_aborted(
    proxy: FaultProxy, storage: Storage, bucket: Bucket
) -> None:
    (listed,) = storage.files("m").files
    proxy.fail("slow", after=64 * KIB)
    pieces = iter(storage.read("m/1/model.pt2", tag=listed.tag))
    next(pieces)
    bucket.set("m/1/model.pt2", b"another")
    proxy.heal()  # cuts the body
    error = error_of(lambda: list(pieces))
    assert error.code in (StatusCode.ABORTED, StatusCode.UNAVAILABLE)
    assert error_of(lambda: storage.read("m/1/model.pt2", tag=listed.tag)).code is StatusCode.ABORTED


def test_a_page_of_something_between_is_no_object(proxy: FaultProxy, storage: Storage) -> None:
    proxy.fail("status", status=200, code="SignIn", operation="get")
    for start in (0, 5):
        error = error_of(lambda start=start: storage.read("m/1/model.pt2", start, tag="abc"))
        assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)
        assert error.sentence == "the answer of the storage cannot be read"


def test_a_name_that_no_file_can_have_makes_a_listing_a_part(storage: Storage, bucket: Bucket) -> None:
    bucket.set("m/2//x", b"1")
    bucket.set("m/3/../x", b"1")
    listing = storage.files("m")
    assert (listing.files, listing.is_whole) == ((), False)
    assert storage.children("m").folders == ("1", "2", "3")
    assert [file.path for file in storage.children("m/1").files] == ["m/1/model.pt2"]
    bucket.set("m/2/1/a", b"1")
    bucket.set("m/2/a\x01", b"1")
    assert storage.children("m/2/1").passed_over == ""
    error = error_of(lambda: storage.children("m/2"))
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert error.sentence == 'an object\'s name cannot be that of a file: "a\\x01" below the prefix'
    assert error_of(lambda: storage.put("m/../x", b"")).code is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("stray", ["/x", "../x", "./x", "..", "/"])
def test_a_stray_key_that_sorts_before_every_version_is_passed_over_and_named(
    proxy: FaultProxy, storage: Storage, bucket: Bucket, stray: str
) -> None:
    bucket.set(f"m/{stray}", b"1")
    for path in ("m/0/x", "m/labels.txt", "m/n"):
        bucket.set(path, b"")
    for number in range(1200):
        bucket.set(f"m/2/{number}", b"")
    found = storage.children("m")
    assert (found.folders, found.passed_over) == (("0", "1", "2"), f'"{stray}"')
    assert [file.path for file in found.files] == ["m/labels.txt", "m/n"]
    bucket.set("m/3//y", b"")
    assert '"3//y" below the prefix' in error_of(lambda: storage.children("m")).sentence


def test_markers_of_folders_are_no_files(storage: Storage, bucket: Bucket) -> None:
    for path in ("m/", "m/1/", "m/1/empty", "m/2/"):
        bucket.set(path, b"")
    assert [file.path for file in storage.files("m").files if file.path != "m/2"] == ["m/1/empty", "m/1/model.pt2"]
    assert (storage.children("m").files, storage.children("m").folders) == ((), ("1", "2"))
    assert storage.children("m/2").files == ()


def test_a_listing_costs_one_request(proxy: FaultProxy, storage: Storage, bucket: Bucket) -> None:
    for number in range(1200):
        bucket.set(f"m/2/{number}", b"")
    assert not storage.files("m").is_whole
    assert proxy.count() == proxy.count("list") == 1


def test_a_first_level_has_a_bound_that_is_seen_before_all_of_it_is_read(
    proxy: FaultProxy, storage: Storage, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MAX_LEVEL", 2000)
    for number in range(1998):
        bucket.set(f"m/log-{number:05}", b"")
    assert len(storage.children("m").files) == 1998
    bucket.set("m/more", b"")
    bucket.set("m/x/1", b"")
    assert error_of(lambda: storage.children("m")).sentence == objects.TOO_MANY
    for number in range(3000):
        bucket.set(f"m/more-{number:05}", b"")
    proxy.forget()
    error = error_of(lambda: open_storage(StorageUrl.parse(bucket.url)).children("m"))
    assert (error.code, error.sentence) == (StatusCode.FAILED_PRECONDITION, objects.TOO_MANY)
    assert proxy.count() == 3


def test_a_first_level_has_a_bound_in_time(
    proxy: FaultProxy, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.children("m")
    monkeypatch.setattr(objects, "LEVEL_SECONDS", 0.1)
    proxy.fail("hang", operation="list")
    error = error_of(lambda: storage.children("m"))
    assert (error.code, error.sentence, error.is_transient) == (StatusCode.UNAVAILABLE, objects.TOO_LONG, True)


def test_a_create_whose_answer_was_lost_has_succeeded(proxy: FaultProxy, storage: Storage, bucket: Bucket) -> None:
    proxy.fail("lose", times=1, method="PUT")
    storage.put("m/claim", b"mine", create=True)
    assert bucket.read("m/claim") == b"mine"


def test_a_create_whose_answer_was_lost_to_another_ones_object_is_refused(
    proxy: FaultProxy, storage: Storage, bucket: Bucket
) -> None:
    bucket.set("m/claim", b"others")
    proxy.fail("lose", times=1, method="PUT")
    error = error_of(lambda: storage.put("m/claim", b"mine", create=True))
    assert error.code in (StatusCode.ALREADY_EXISTS, StatusCode.UNAVAILABLE)
    assert bucket.read("m/claim") == b"others"


def test_one_of_many_who_create_at_once_succeeds(storage: Storage, bucket: Bucket) -> None:
    results: list[object] = []

    def create(number: int) -> None:
        try:
            storage.put("m/claim", b"%d" % number, create=True)
            results.append(number)
        except StorageError as error:
            results.append(error.code)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = (result for result in results if isinstance(result, int) and not isinstance(result, StatusCode))
    assert bucket.read("m/claim") == b"%d" % winner
    assert results.count(StatusCode.ALREADY_EXISTS) == 7


@pytest.mark.parametrize("status", [404, 403, 500])
def test_a_service_for_credentials_that_fails_says_nothing_about_the_bucket(
    proxy: FaultProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", proxy.url)
    proxy.fail("status", status=status, code="NoSuchBucket", path="/latest/")
    storage = open_storage(StorageUrl.parse(bucket.url))
    for name, call in calls(storage).items():
        error = error_of(call)
        assert (name, error.code, error.is_transient) == (name, StatusCode.UNAVAILABLE, True)
        assert "gives no credentials" in error.sentence


def test_a_token_that_is_none_is_a_setting_to_mend_and_no_crash(
    proxy: FaultProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("with a newline\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{proxy.url}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    error = error_of(lambda: open_storage(StorageUrl.parse(bucket.url)).files("m"))
    assert error.code is StatusCode.FAILED_PRECONDITION


def test_plain_http_has_to_be_allowed(proxy: FaultProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    error = error_of(lambda: open_storage(StorageUrl.parse(bucket.url)).files("m"))
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert "AWS_ALLOW_HTTP=true" in error.sentence


def test_a_host_that_has_no_name_does_not_answer(
    proxy: FaultProxy, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://there-is-none.invalid")
    error = error_of(lambda: open_storage(StorageUrl.parse(bucket.url)).files("m"))
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)


@pytest.mark.parametrize(
    ("url", "variables", "said"),
    [
        ("az://models/a", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://models/a", {"AWS_ACCESS_KEY_ID": KEY_ID}, "AWS_SECRET_ACCESS_KEY is not"),
        ("gs://models/a", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"CANARY'}, "Google service account"),
        ("as://account1/models/a", {"AZURE_STORAGE_ACCOUNT_KEY": "CANARY!"}, "AZURE_STORAGE_ACCOUNT_KEY is no key"),
    ],
)
def test_settings_that_are_none_are_refused_when_the_storage_is_opened(
    url: str, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_clouds(monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ServingError) as caught:
        open_storage(StorageUrl.parse(url))
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    assert said in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "obstore.store", raising=False)
    with pytest.raises(ServingError, match=r"pip install 'tfs-lite\[remote\]'") as caught:
        open_storage(StorageUrl.parse("s3://models/a"))
    assert caught.value.code is StatusCode.FAILED_PRECONDITION


@pytest.mark.azure
def test_azure_is_told_alike(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "FIRST_WAIT", timedelta(milliseconds=10))
    container = azurite.make_container()
    container.set("m/1/x", b"1")
    with FaultProxy(azurite.port) as proxy:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite.environment(proxy.port)["AZURE_STORAGE_ENDPOINT"])
        storage = open_storage(StorageUrl.parse(container.url))
        assert [file.path for file in storage.files("m").files] == ["m/1/x"]
        proxy.fail("status", status=503, code="ServerBusy")
        for call in calls(storage).values():
            assert error_of(call).sentence == "the storage answers 503 ServerBusy"
        proxy.heal()
        gone = error_of(lambda: open_storage(StorageUrl.parse("az://there-is-none/m")).files("m"))
        assert (gone.code, gone.sentence) == (StatusCode.NOT_FOUND, "there is no such bucket")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "QUFB" * 10)
        refused = error_of(lambda: open_storage(StorageUrl.parse(container.url)).files("m"))
        assert (refused.code, refused.is_transient) == (StatusCode.PERMISSION_DENIED, False)
