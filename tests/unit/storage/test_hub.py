import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.remote.hub import SIGNATURE, FakeHub, fake_hub, git_id
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.storage import hub as product
from tfs_lite.storage.fetch import Fetcher, FetchEvent, RemoteVersion, has_all_files, wanted_files
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.hub import open_hub, status_error
from tfs_lite.storage.store import FlatListing, RemoteFile, Storage, StorageError
from tfs_lite.storage.url import StorageUrl

NAME = "ada/digits"
DATE, NUMBER = "2026-03-01T12:00:00.000Z", 1772366400
LATER, LATER_NUMBER = "2026-03-02T12:00:00.000Z", 1772452800
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
FILES = {"config.json": b'{"a": 1}', "model.safetensors": WEIGHTS, "README.md": b"# digits"}
LARGE = frozenset({"model.safetensors"})


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """The server without repositories, with the environment that leads to it."""
    fresh = FakeHub(server.endpoint, server.store)
    vars(server).update(vars(fresh))
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", f"{server.endpoint}/")
    return server


def opened(url: str = f"hf://{NAME}", counts: Counter[tuple[str, str]] | None = None) -> Storage:
    def count(operation: str, result: str) -> None:
        if counts is not None:
            counts[operation, result] += 1

    return open_hub(StorageUrl.parse(url), count)


def read(storage: Storage, path: str, start: int = 0, tag: str = "") -> bytes:
    return b"".join(storage.read(path, start, tag))


def read_until_error(storage: Storage, file: RemoteFile, start: int) -> tuple[bytes, StorageError]:
    """What came, and the error behind it."""
    came = bytearray()
    try:
        for piece in storage.read(file.path, start, file.tag):
            came += piece
    except StorageError as error:
        return bytes(came), error
    raise AssertionError("no error")


def error_of(call: Any, *args: Any) -> StorageError:
    with pytest.raises(StorageError) as raised:
        list(call(*args))
    return raised.value


def names(listing: FlatListing) -> list[str]:
    return [file.path for file in listing.files]


# what is there


def test_a_repository_is_one_version_whose_number_is_the_date_of_the_commit(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    listing = opened().files("")
    assert listing.is_whole
    assert names(listing) == [f"{NUMBER}/config.json", f"{NUMBER}/model.safetensors"]
    small, large = listing.files
    assert (small.size, small.tag, small.sha256) == (8, git_id(FILES["config.json"]), "")
    assert (large.size, large.sha256) == (len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
    assert large.modified_ns == NUMBER * 1_000_000_000


def test_a_poll_is_one_request_and_one_more_when_the_branch_has_moved(hub: FakeHub) -> None:
    first = hub.push(NAME, DATE, FILES, LARGE)
    counts: Counter[tuple[str, str]] = Counter()
    storage = opened(counts=counts)
    for _ in range(3):
        assert len(storage.files("").files) == 2
    asked = f"/api/models/{NAME}/revision/main?blobs=true"
    assert hub.paths() == [asked, f"/api/models/{NAME}/commits/{first}", asked, asked]
    second = hub.push(NAME, LATER, {"config.json": b"{}"})
    assert names(storage.files("")) == [f"{LATER_NUMBER}/config.json"]
    assert hub.paths()[4:] == [asked, f"/api/models/{NAME}/commits/{second}"]
    assert counts == {("list", "ok"): 6}


def test_a_commit_is_asked_for_once_and_never_polled(hub: FakeHub) -> None:
    sha = hub.push(NAME, DATE, FILES, LARGE)
    hub.push(NAME, LATER, FILES, LARGE)
    storage = opened(f"hf://{NAME}@{sha}")
    for _ in range(3):
        assert names(storage.files(""))[0] == f"{NUMBER}/config.json"
    assert len(hub.paths()) == 2


def test_a_commit_that_could_not_be_asked_for_is_asked_for_again(hub: FakeHub) -> None:
    sha = hub.push(NAME, DATE, FILES)
    hub.status = lambda side, path: 503 if "commits" in path else 0
    storage = opened(f"hf://{NAME}@{sha}")
    assert error_of(storage.files, "").code is StatusCode.UNAVAILABLE
    hub.status = lambda side, path: 0
    assert len(storage.files("").files) == 2


def test_only_model_files_of_the_root_are_taken_and_no_code_and_no_manifest(hub: FakeHub) -> None:
    taken = {f"a{suffix}": b"x" for suffix in (".safetensors", ".json", ".txt", ".model", ".jinja", ".pt2", ".onnx")}
    others = ("model.py", "pytorch_model.bin", "model.pkl", "model.pt", "onnx/model.onnx", ".hidden.json", "setup.sh")
    hub.push(NAME, DATE, taken | dict.fromkeys(others, b"x") | {"tfs_lite.manifest.json": b"{}"})
    assert [path.partition("/")[2] for path in names(opened().files(""))] == sorted(taken)


def test_folders_and_prefixes_are_those_of_the_version(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    storage = opened()
    assert storage.children("").folders == (str(NUMBER),)
    assert storage.children("").files == ()
    assert [file.path for file in storage.children(str(NUMBER)).files] == names(storage.files(""))
    assert names(storage.files(str(NUMBER))) == names(storage.files(""))
    assert names(storage.files("17")) == []


@pytest.mark.parametrize(
    "name", ["../a.json", "a//b.json", "/a.json", "a\0.json", "a" * 300 + ".json", "..", "a/./b.txt"]
)
def test_a_name_that_no_file_can_have_refuses_the_repository(hub: FakeHub, name: str) -> None:
    hub.push(NAME, DATE, FILES | {name: b"x"})
    error = error_of(opened().files, "")
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert error.sentence.startswith("an object's name cannot be that of a file: ")
    assert not error.is_transient


@pytest.mark.parametrize(("date", "number"), [
    ("2026-03-01T12:00:00Z", NUMBER), ("2026-03-01T12:00:00.999Z", NUMBER), ("2026-03-01T13:00:00+01:00", NUMBER),
    ("2026-03-01T12:00:00", NUMBER), ("1969-07-20T20:17:40.000Z", 1),
])  # fmt: skip
def test_dates_are_read_as_the_hub_and_git_write_them(hub: FakeHub, date: str, number: int) -> None:
    hub.push(NAME, date, FILES)
    assert names(opened().files(""))[0].partition("/")[0] == str(number)


BROKEN: list[object] = [
    [], {}, None, 7, "text", {"sha": "../../x", "siblings": []},
    {"sha": "0" * 40, "siblings": [{"rfilename": "a.json"}]},
    {"sha": "0" * 40, "siblings": [{"rfilename": 1, "size": 1, "blobId": "0" * 40}]},
    {"sha": "0" * 40, "siblings": [{"rfilename": "a.json", "size": -1, "blobId": "0" * 40}]},
    {"sha": "0" * 40, "siblings": [{"rfilename": "a.json", "size": True, "blobId": "0" * 40}]},
    {"sha": "0" * 40, "siblings": [{"rfilename": "a.json", "size": 1, "blobId": "x"}]},
    {"sha": "0" * 40, "siblings": [{"rfilename": "a.json", "size": 1, "blobId": "0" * 40, "lfs": {"sha256": "x"}}]},
    {"sha": "0" * 40, "siblings": [{"rfilename": "a.json", "size": 1, "blobId": "0" * 40, "lfs": [1]}]},
    {"sha": "0" * 40, "siblings": [{"rfilename": ["a.json"], "size": 1, "blobId": "0" * 40}]},
    {"sha": "0" * 40, "siblings": 3},
]  # fmt: skip


@pytest.mark.parametrize("answer", BROKEN, ids=str)
def test_an_answer_of_another_shape_is_an_error_of_the_storage(answer: object) -> None:
    with pytest.raises(StorageError) as raised:
        product.read_commit(answer, [{"date": DATE}])
    assert (raised.value.code, raised.value.sentence) == (
        StatusCode.UNAVAILABLE,
        "the answer of the hub cannot be read",
    )


@pytest.mark.parametrize("commits", [[], {}, None, [{}], [{"date": 3}], [{"date": "soon"}], ["x"]], ids=str)
def test_a_commit_without_a_date_is_an_error_of_the_storage(commits: object) -> None:
    with pytest.raises(StorageError, match="the answer of the hub cannot be read"):
        product.read_commit({"sha": "0" * 40, "siblings": []}, commits)


_TEXTS = st.sampled_from(
    ["sha", "siblings", "rfilename", "size", "blobId", "lfs", "sha256", "date", DATE, "0" * 40, "a.json", "\udc80"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=5),
)
_NAMES = st.sampled_from(["a.json", "b.onnx", "c/d.json", ".e.json", "f.txt", "manifest.json"])
_SIBLING = st.fixed_dictionaries({"rfilename": _NAMES, "size": st.integers(0, 9), "blobId": st.just("0" * 40)})
_ANY_SIBLING = st.fixed_dictionaries({"rfilename": _JSON, "size": _JSON, "blobId": _JSON}, optional={"lfs": _JSON})
_ANSWER = st.fixed_dictionaries(
    {
        "sha": st.just("0" * 40),
        "siblings": st.lists(_SIBLING, min_size=1, max_size=3, unique_by=lambda one: one["rfilename"]),
    }
)
_ANY_ANSWER = st.fixed_dictionaries({"sha": _JSON, "siblings": st.lists(_SIBLING | _ANY_SIBLING)})


@examples(400)
@given(_ANSWER | _ANY_ANSWER | _JSON, st.just([{"date": DATE}]) | _JSON)
def test_whatever_the_hub_answers_is_a_version_or_an_error_of_the_storage(info: object, commits: object) -> None:
    try:
        commit = product.read_commit(info, commits)
    except StorageError:
        return
    assert all(file.path.startswith(f"{commit.number}/") and file.path.count("/") == 1 for file in commit.files)


# files


def test_files_come_whole_and_from_any_byte_on(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    counts: Counter[tuple[str, str]] = Counter()
    storage = opened(counts=counts)
    small, large = storage.files("").files
    for start in (0, 1, len(WEIGHTS) - 1, len(WEIGHTS)):
        assert read(storage, large.path, start, large.tag) == WEIGHTS[start:]
    for start in (0, 3, 7, 8):
        assert read(storage, small.path, start, small.tag) == FILES["config.json"][start:]
    assert counts == {("list", "ok"): 2, ("get", "ok"): 7}
    ranges = [asked.headers.get("range") for asked in hub.asked if asked.side == "store"]
    assert ranges == [None, "bytes=1-", f"bytes={len(WEIGHTS) - 1}-"]
    assert all(asked.headers["accept-encoding"] == "identity" for asked in hub.asked)


def test_a_server_without_ranges_gives_the_same_bytes(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    hub.knows_ranges = False
    storage = opened()
    large = storage.files("").files[1]
    assert read(storage, large.path, 400_001, large.tag) == WEIGHTS[400_001:]


def test_a_cut_body_gives_every_byte_that_came_and_then_an_error_that_a_while_may_cure(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    hub.cut = [300_000, 1]
    storage = opened()
    large = storage.files("").files[1]
    first, error = read_until_error(storage, large, 0)
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)
    assert error.sentence == "an answer of the hub was cut"
    assert first == WEIGHTS[:300_000]
    second, error = read_until_error(storage, large, len(first))
    assert error.sentence == "an answer of the hub was cut"
    assert second == WEIGHTS[300_000:300_001]
    assert first + second + read(storage, large.path, 300_001, large.tag) == WEIGHTS


def test_a_small_file_is_checked_by_its_git_id_before_any_of_it_is_given(hub: FakeHub) -> None:
    data = WEIGHTS + b"end"
    hub.push(NAME, DATE, {"vocab.txt": data})
    storage = opened()
    (file,) = storage.files("").files
    assert not file.sha256
    assert read(storage, file.path, 0, file.tag) == data
    assert read(storage, file.path, 700_000, file.tag) == data[700_000:]
    hub.commits[NAME][0].files["vocab.txt"] = data[:-1] + b"D"
    for start in (0, 700_000, len(data) - 1, len(data)):
        came, error = read_until_error(storage, file, start)
        assert (error.code, error.is_transient) == (StatusCode.DATA_LOSS, False)
        assert error.sentence == "vocab.txt does not have the git id that the hub lists"
        assert not came
    for other in (data + b"!", b"", data[:5]):
        hub.commits[NAME][0].files["vocab.txt"] = other
        came, error = read_until_error(storage, file, 0)
        assert error.code in (StatusCode.DATA_LOSS, StatusCode.UNAVAILABLE)
        assert not came


def test_a_large_file_without_a_sha256_digest_is_refused(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push(NAME, DATE, {"vocab.txt": b"x" * 1000})
    monkeypatch.setattr(product, "SMALL_BYTES", 999)
    storage = opened()
    (file,) = storage.files("").files
    assert error_of(storage.read, file.path, 0, file.tag).code is StatusCode.FAILED_PRECONDITION


def test_an_empty_file_is_checked_too(hub: FakeHub) -> None:
    hub.push(NAME, DATE, {"merges.txt": b""})
    storage = opened()
    (file,) = storage.files("").files
    assert list(storage.read(file.path, 0, file.tag)) == []


def test_a_fetch_that_has_begun_is_finished_from_its_commit(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    storage = opened()
    old = storage.files("").files[0]
    hub.push(NAME, LATER, FILES | {"config.json": b"{}"}, LARGE)
    new = storage.files("").files[0]
    assert read(storage, old.path, 0, old.tag) == FILES["config.json"]
    assert read(storage, new.path, 0, new.tag) == b"{}"


def test_two_commits_of_one_second_are_told_apart_by_their_tags(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    storage = opened()
    old = storage.files("").files[0]
    hub.push(NAME, DATE, FILES | {"config.json": b"{}"}, LARGE)
    new = storage.files("").files[0]
    assert new.path == old.path
    assert error_of(storage.read, old.path, 0, old.tag).code is StatusCode.ABORTED
    assert read(storage, new.path, 0, new.tag) == b"{}"


def test_a_file_that_is_not_listed_is_not_found(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    storage = opened()
    assert error_of(storage.read, f"{NUMBER}/config.json").code is StatusCode.NOT_FOUND
    storage.files("")
    for path in (f"{NUMBER}/model.py", f"{NUMBER}/README.md", "7/config.json", "config.json", ""):
        assert error_of(storage.read, path).code is StatusCode.NOT_FOUND
    assert len(hub.asked) == 2


def test_nothing_is_written(hub: FakeHub) -> None:
    storage = opened()
    for call in (lambda: storage.put("1/a", b"x"), lambda: storage.put("1/a", b"x", create=True),
                 lambda: storage.delete("1/a")):  # fmt: skip
        with pytest.raises(StorageError, match="hf:// is read only") as raised:
            call()
        assert raised.value.code is StatusCode.INVALID_ARGUMENT
    assert storage.is_atomic
    assert storage.scheme == "hf"
    assert not hub.asked


# the token and redirects


def test_the_token_goes_to_the_hub_and_to_no_other_address(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    hub.token = "hf_canary"
    monkeypatch.setenv("HF_TOKEN", "hf_canary\n")
    storage = opened()
    small, large = storage.files("").files
    assert read(storage, large.path, 9, large.tag) == WEIGHTS[9:]
    assert read(storage, small.path, 0, small.tag) == FILES["config.json"]
    assert {asked.headers.get("authorization") for asked in hub.asked if asked.side == "hub"} == {"Bearer hf_canary"}
    assert [asked.headers.get("authorization") for asked in hub.asked if asked.side == "store"] == [None]


def test_the_token_file_is_read_for_each_request(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(NAME, DATE, FILES)
    hub.token = "new"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("old")
    storage = opened()
    assert error_of(storage.files, "").code is StatusCode.PERMISSION_DENIED
    (tmp_path / "hf" / "token").write_text("new\n")
    assert len(storage.files("").files) == 2


def test_a_renamed_repository_is_followed_with_the_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push(NAME, DATE, FILES)
    hub.token, hub.renamed = "hf_canary", {"old/digits": NAME}
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    storage = opened("hf://old/digits")
    small = storage.files("").files[0]
    assert read(storage, small.path, 0, small.tag) == FILES["config.json"]


def test_a_circle_of_redirects_ends(hub: FakeHub) -> None:
    hub.renamed = {NAME: NAME}
    error = error_of(opened().files, "")
    assert (error.code, error.sentence) == (StatusCode.UNAVAILABLE, "the hub redirects more than 5 times")
    assert len(hub.asked) == 6


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,{}", "http://[", "http://a b/", "gopher:x"]
)
def test_a_redirect_leads_to_http_only(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    storage = opened()
    large = storage.files("").files[1]
    monkeypatch.setattr(hub, "store", target)
    error = error_of(storage.read, large.path, 0, large.tag)
    assert (error.code, error.sentence) == (StatusCode.UNAVAILABLE, "the hub does not answer")


@pytest.mark.parametrize("token", ["hf_canary\r\nX: y", "hf canary", "hf_canary\u2603", "\0canary"])
def test_what_is_no_token_is_refused_without_being_repeated(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str
) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    error = error_of(opened().files, "")
    assert error.code is StatusCode.FAILED_PRECONDITION
    assert "canary" not in f"{error} {error!r} {error.__cause__}"
    assert not hub.asked


@pytest.mark.parametrize("endpoint", ["ftp://hub", "hub.example.org", "https://ada:canary@hub", "https://hub/?canary"])
def test_what_is_no_endpoint_is_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ServingError, match="HF_ENDPOINT is not the address of a hub") as raised:
        opened()
    assert raised.value.code is StatusCode.FAILED_PRECONDITION


# refusals and silence


def test_a_repository_that_is_not_there_looks_like_a_private_one_to_strangers(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    error = error_of(opened(counts=counts).files, "")
    assert error.code is StatusCode.PERMISSION_DENIED
    assert "no such repository, or it needs HF_TOKEN" in error.sentence
    hub.token = "mine"
    monkeypatch.setenv("HF_TOKEN", "mine")
    assert error_of(opened(counts=counts).files, "").code is StatusCode.NOT_FOUND
    assert counts == {("list", "permission_denied"): 1, ("list", "not_found"): 1}


def test_a_revision_that_is_not_there_is_not_found(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES)
    error = error_of(opened(f"hf://{NAME}@v9").files, "")
    assert (error.code, error.sentence) == (StatusCode.NOT_FOUND, "the hub has no such repository or revision")


@pytest.mark.parametrize(("status", "code", "is_transient", "words"), [
    (401, StatusCode.PERMISSION_DENIED, False, "the hub refuses (401)"),
    (403, StatusCode.PERMISSION_DENIED, False, "the hub refuses (403): accept the terms of the repository"),
    (404, StatusCode.NOT_FOUND, False, "no such repository or revision"),
    (429, StatusCode.UNAVAILABLE, True, "the hub answers 429: without HF_TOKEN it takes 500 calls"),
    (408, StatusCode.UNAVAILABLE, True, "the hub answers 408"),
    (500, StatusCode.UNAVAILABLE, True, "the hub answers 500"),
    (503, StatusCode.UNAVAILABLE, True, "the hub answers 503"),
    (400, StatusCode.FAILED_PRECONDITION, False, "the hub answers 400"),
    (451, StatusCode.FAILED_PRECONDITION, False, "the hub answers 451"),
])  # fmt: skip
def test_statuses_of_the_hub(hub: FakeHub, status: int, code: StatusCode, is_transient: bool, words: str) -> None:
    hub.push(NAME, DATE, FILES)
    hub.status = lambda side, path: status
    error = error_of(opened().files, "")
    assert (error.code, error.is_transient) == (code, is_transient)
    assert words in error.sentence


def test_a_link_that_the_store_of_files_does_not_take_any_more_is_asked_for_again(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES, LARGE)
    storage = opened()
    large = storage.files("").files[1]
    hub.status = lambda side, path: 403 if side == "store" else 0
    error = error_of(storage.read, large.path, 0, large.tag)
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)
    assert error.sentence == "the hub's store of files answers 403"
    assert SIGNATURE not in f"{error!r}"


def test_with_a_token_nobody_is_told_to_set_one() -> None:
    assert status_error(429, is_hub=True, has_token=True).sentence == "the hub answers 429"
    assert "no such repository" not in status_error(401, is_hub=True, has_token=True).sentence


def test_a_hub_that_is_not_there_does_not_answer(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    error = error_of(opened().files, "")
    assert (error.code, error.is_transient) == (StatusCode.UNAVAILABLE, True)
    assert error.sentence == "the hub does not answer"


def test_a_page_instead_of_an_answer_is_an_error_of_the_storage(hub: FakeHub) -> None:
    hub.push(NAME, DATE, FILES)
    hub.edit = lambda answer: "not a repository"
    assert error_of(opened().files, "").sentence == "the answer of the hub cannot be read"


def test_an_answer_has_a_bound(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push(NAME, DATE, {f"{n}.json": b"x" for n in range(100)})
    monkeypatch.setattr(product, "ANSWER_BYTES", 1000)
    assert error_of(opened().files, "").sentence == "the answer of the hub is too long"


# with what fetches


def test_a_version_is_fetched_over_cuts_and_not_with_other_bytes(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(NAME, DATE, FILES | {"empty.txt": b""}, LARGE)
    storage = opened()
    listed = [replace(file, path=file.path.partition("/")[2]) for file in storage.files("").files]
    version = RemoteVersion(f"hf://{NAME}", str(NUMBER), str(NUMBER), wanted_files(listed))
    events: list[FetchEvent] = []
    cache = FilesCache(str(tmp_path / "cache"), 1 << 30, has_all_files)
    fetcher = Fetcher(storage, cache, threading.Event(), events.append, sleep=lambda seconds: None)
    right = hub.commits[NAME][0].files["config.json"]
    hub.commits[NAME][0].files["config.json"] = b'{"a": 2}'
    hub.cut = [300_000, 400_000]
    for _ in range(2):
        with pytest.raises(StorageError, match=r"config\.json does not have the git id that the hub lists"):
            fetcher.fetch(version)
    hub.commits[NAME][0].files["config.json"] = right
    directory = Path(fetcher.fetch(version))
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        "config.json": right,
        "model.safetensors": WEIGHTS,
        "empty.txt": b"",
    }
    assert sum(event.fetched_bytes for event in events) == len(WEIGHTS) + len(right)
