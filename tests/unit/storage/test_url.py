"""URLs of base paths: what is read, what is refused, and what lies below what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.storage.url import StorageUrl, check_names, endpoint_of, is_below, is_url, matches

AZURE = "abfss://models@account1.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://models/digits", StorageUrl("s3", "", "models", "digits")),
        ("S3://models/a/b c/", StorageUrl("s3", "", "models", "a/b c")),
        ("s3://models", StorageUrl("s3", "", "models", "")),
        ("s3://models/", StorageUrl("s3", "", "models", "")),
        ("gs://my_models.example.com/d%20é+@x:y", StorageUrl("gs", "", "my_models.example.com", "d%20é+@x:y")),
        ("az://container/digits", StorageUrl("az", "", "container", "digits")),
        ("as://account1/container/a/b", StorageUrl("az", "account1", "container", "a/b")),
        (f"{AZURE}/a/b", StorageUrl("az", "account1", "models", "a/b")),
        ("hf://org/name", StorageUrl("hf", "", "org/name", "")),
        ("hf://Org/na.me@v1.0/", StorageUrl("hf", "", "Org/na.me", "", "v1.0")),
    ],
)
def test_every_form_is_read(text: str, expected: StorageUrl) -> None:
    assert StorageUrl.parse(text) == expected
    assert StorageUrl.parse(expected.text) == expected


@pytest.mark.parametrize(
    ("text", "place", "canonical"),
    [
        ("s3://models/a/", "s3://models", "s3://models/a"),
        ("az://models/a", "az://models", "az://models/a"),
        (f"{AZURE}/a", "as://account1/models", "as://account1/models/a"),
        ("hf://org/name@v1", "hf://org/name@v1", "hf://org/name@v1"),
    ],
)
def test_the_text_of_a_url_is_its_place_and_its_prefix(text: str, place: str, canonical: str) -> None:
    url = StorageUrl.parse(text)
    assert (url.place, url.text, url.join("1", "model.pt2")) == (place, canonical, f"{canonical}/1/model.pt2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://host/x", "another scheme"),
        ("file:///x", "another scheme"),
        ("models/digits", "another scheme"),
        ("s3://CANARY:secret@models/digits", "credentials come from the environment"),
        ("s3://models:9000/digits", "AWS_ENDPOINT_URL"),
        ("gs://models:9000/digits", "has a port"),
        ("s3://", "names no bucket"),
        ("s3:///digits", "names no bucket"),
        ("s3://models//digits", "empty part"),
        ("s3://models/digits//", "empty part"),
        ("s3://models/../x", "empty part"),
        ("s3://models/a/.", "empty part"),
        ("s3://../x", "name of a bucket"),
        ("s3://mod els/x", "name of a bucket"),
        ("s3://models/a?versionId=CANARY", "a query or a fragment"),
        ("az://models/a?sig=CANARY", "a query or a fragment"),
        ("s3://models/a#b", "a query or a fragment"),
        ("s3://models/a\0b", "control character"),
        ("s3://models/a\nb", "control character"),
        ("s3://models/a\x85b", "control character"),
        ("s3://models/a\\b", "backslash"),
        ("s3://models/a\udc80b", "not UTF-8"),
        ("s3://models/" + "a/" * 3000, "too long"),
        ("abfss://account1.dfs.core.windows.net/a", "should be abfss://container@account"),
        ("abfss://models@elsewhere.example.com/a", "should be abfss://container@account"),
        ("abfss://m:CANARY@account1.dfs.core.windows.net/a", "should be abfss://container@account"),
        ("abfss://models@.dfs.core.windows.net/a", "names no bucket"),
        ("as://account1", "name of a bucket or a container"),
        ("as://No.Account/models/a", "Azure storage account"),
        ("hf://org", "should be hf://org/name"),
        ("hf://org/name/folder", "without folders"),
        ("hf://org/name@", "no revision"),
        ("hf://org/name@..", "no revision"),
        ("hf://org/name@refs/pr/1", "without folders"),
        ("hf://org/na me", "name of a repository"),
        ("hf://CANARY@org/name", "credentials come from the environment"),
    ],
)
def test_what_is_no_base_path_is_refused_with_a_sentence_that_does_not_repeat_it(text: str, said: str) -> None:
    with pytest.raises(ServingError) as caught:
        StorageUrl.parse(text)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert said in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_a_url_is_told_from_a_path() -> None:
    assert is_url("s3://b/x")
    assert is_url("ftp://x")
    assert not is_url("/models/s3:/x")
    assert not is_url("models")


@pytest.mark.parametrize(
    ("url", "root", "below"),
    [
        ("s3://models/a/1", "s3://models/a", True),
        ("s3://models/a", "s3://models/a/", True),
        ("s3://models/ab", "s3://models/a", False),
        ("s3://models2/a", "s3://models", False),
        ("gs://models/a", "s3://models", False),
        ("s3://models", "s3://models/a", False),
        ("as://account1/models/a", AZURE, True),
        ("az://models/a", AZURE, False),
        ("hf://org/name@v1", "hf://org", True),
        ("hf://org/name@v1", "hf://org/name", False),
        ("s3://models/*", "s3://models/a", False),
    ],
)
def test_below_is_decided_by_whole_parts(url: str, root: str, below: bool) -> None:
    assert is_below(url, root) is below


@pytest.mark.parametrize(
    ("url", "glob", "matched"),
    [
        ("s3://models/digits/1", "s3://models/*", True),
        ("s3://models/digits/1", "s3://models/dig*", True),
        ("s3://models/digits/1", "s3://mod?ls", True),
        ("s3://models/team/digits", "s3://models/*/faces", False),
        ("s3://models", "s3://models/*", False),
        ("s3://models/digits", "s3://m*digits", False),
        ("s3://models/digits", "*://models", False),
        ("s3://models/digits", "/models/*", False),
        ("s3://models/digits", "**", False),
        ("s3://models/Digits", "s3://models/digits", False),
        ("as://account1/models/a", "abfss://*@account1.dfs.core.windows.net/a", True),
        ("as://account2/models/a", "abfss://*@account1.dfs.core.windows.net/a", False),
        ("hf://org/name@v1", "hf://org/name@*", True),
    ],
)
def test_globs_match_whole_parts(url: str, glob: str, matched: bool) -> None:
    assert matches(url, glob) is matched


PIECES = ("s3://", "abfss://", "as://", "hf://", "az://", "/", "//", "..", ".", "@", ":", "?", "#", "\\", "\0", "*")
NAMES = ("models", "account1", ".dfs.core.windows.net", "v1", "é", "%2f", " ", "\udc80", "a" * 300)


def read(text: str) -> StorageUrl | None:
    try:
        return StorageUrl.parse(text)
    except ServingError:
        return None


TEXTS = st.lists(st.sampled_from(PIECES + NAMES), max_size=9).map("".join)
SCHEMES = st.sampled_from(["s3://", "gs://", "hf://", "az://"])
PATHS = st.lists(st.sampled_from(NAMES + PIECES[6:]), max_size=5).map("/".join)
"""What comes behind the bucket in texts that are mostly read."""


@examples(3000)
@given(st.text() | TEXTS | st.builds("{}models/{}".format, SCHEMES, PATHS))
def test_any_text_is_refused_or_read_and_stays_below_its_place(text: str) -> None:
    url = read(text)
    if url is None:
        return
    assert StorageUrl.parse(url.text) == url
    assert is_below(url.join("1"), url.text)
    assert is_below(url.text, url.place)
    assert matches(url.join("1"), url.text) or not {"[", "*"}.isdisjoint(text)
    assert not {"", ".", ".."} & set(url.prefix.split("/")[1:])


@examples(1000)
@given(st.lists(st.text("ab/.\0é\udc80"), max_size=6))
def test_names_that_are_accepted_stay_inside_a_directory(names: list[str]) -> None:
    try:
        check_names(names)
    except ServingError:
        return
    for name in names:
        assert not {"", ".", ".."} & set(name.split("/"))
        assert "\0" not in name
        assert not any(other.startswith(f"{name}/") for other in names)


@pytest.mark.parametrize(
    ("scheme", "environment", "endpoint"),
    [
        ("s3", {}, ""),
        ("s3", {"AWS_ENDPOINT_URL": "http://a:1/"}, "http://a:1"),
        ("s3", {"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": "http://b:1"}, "http://b:1"),
        ("s3", {"AWS_ENDPOINT_URL": "", "HF_ENDPOINT": "http://a:1"}, ""),
        ("az", {"AZURE_STORAGE_ENDPOINT": "http://a:1"}, "http://a:1"),
        ("gs", {"GOOGLE_BASE_URL": "http://a:1"}, "http://a:1"),
        ("gs", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"gcs_base_url": "http://a:1", "private_key": "k"}'}, "http://a:1"),
        ("gs", {"GOOGLE_SERVICE_ACCOUNT_KEY": "no JSON"}, ""),
        ("hf", {"HF_ENDPOINT": "http://a:1"}, "http://a:1"),
    ],
)
def test_the_environment_says_which_server_has_a_bucket(
    scheme: str, environment: dict[str, str], endpoint: str
) -> None:
    assert endpoint_of(scheme, environment) == endpoint
