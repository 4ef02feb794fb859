"""URLs of base paths, and the names of files that a storage or another node tells.

    s3://bucket/prefix      gs://bucket/prefix      az://container/prefix      hf://org/name      hf://org/name@revision
    abfss://container@account.dfs.core.windows.net/prefix, the same as as://account/container/prefix

Nothing is decoded: a prefix has the characters that the names of objects have. No error repeats the URL, because people
put keys and signatures into URLs.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tfs_lite.core.status import ServingError, invalid_argument

MARK = "://"
MAX_PATH = 4096
MAX_PART = 255
SCHEMES = ("s3", "gs", "az", "abfss", "as", "hf")
AZURE_HOST = ".dfs.core.windows.net"
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR"),
    "hf": ("HF_ENDPOINT",),
}
"""The variables that say which server has the places of a scheme. The first one that is set counts."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,254}")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9._-]{1,255}")


def is_url(path: str) -> bool:
    """Whether this is meant as a URL; a path of a disk has no ``://``."""
    return MARK in path


@dataclass(frozen=True, slots=True)
class StorageUrl:
    """Where a base path is. ``scheme``: ``s3``, ``gs``, ``az`` or ``hf``. ``account``: of Azure, empty if the
    environment names it. ``bucket``: the bucket, the container, or ``org/name``. ``prefix``: without ``/`` at its ends,
    empty for all of the bucket. ``revision``: of the hub, empty for the default branch."""

    scheme: str
    account: str
    bucket: str
    prefix: str
    revision: str = ""

    @classmethod
    def parse(cls, text: str) -> StorageUrl:
        """Raises INVALID_ARGUMENT, with a sentence that says what is wrong and does not repeat the URL."""
        scheme, mark, rest = text.partition(MARK)
        scheme = scheme.lower()
        if not mark or scheme not in SCHEMES:
            raise invalid_argument(f"the URL has another scheme than {', '.join(f'{name}://' for name in SCHEMES)}")
        _check_text(rest)
        authority, *parts = rest.removesuffix("/").split("/")
        if scheme == "abfss":
            authority, parts = _of_azure_host(authority, parts)
            scheme = "as"
        _check_authority(authority, scheme)
        for part in parts:
            if part in ("", ".", ".."):
                raise invalid_argument('the URL has an empty part, "." or ".."')
        if scheme == "hf":
            return cls._of_hub(authority, parts)
        account, bucket = "", authority
        if scheme == "as":
            account, bucket, parts = authority, parts[0] if parts else "", parts[1:]
            if not _ACCOUNT.fullmatch(account):
                raise invalid_argument("the URL has no name of an Azure storage account where it should be")
        if not _BUCKET.fullmatch(bucket):
            raise invalid_argument("the URL has no name of a bucket or a container where it should be")
        return cls("az" if scheme == "as" else scheme, account, bucket, "/".join(parts))

    @classmethod
    def _of_hub(cls, organization: str, parts: list[str]) -> StorageUrl:
        if len(parts) != 1:
            raise invalid_argument("the URL should be hf://org/name or hf://org/name@revision, without folders")
        name, at, revision = parts[0].partition("@")
        if not _REPOSITORY.fullmatch(organization) or not _REPOSITORY.fullmatch(name):
            raise invalid_argument("the URL has no name of a repository of the hub where it should be")
        if at and (not _REVISION.fullmatch(revision) or revision in (".", "..")):
            raise invalid_argument("the URL has no revision behind the @: a branch without /, a tag or a commit")
        return cls("hf", "", f"{organization}/{name}", "", revision)

    @property
    def text(self) -> str:
        """The URL as people see it, the same for every way to write it; ``parse`` reads it."""
        return join_path(self.place, self.prefix)

    @property
    def place(self) -> str:
        """The part of :attr:`text` in front of the prefix. One source, with one storage, serves a place."""
        if self.account:
            return f"as://{self.account}/{self.bucket}"
        return f"{self.scheme}://{self.bucket}" + (f"@{self.revision}" if self.revision else "")

    def join(self, *names: str) -> str:
        """The URL of something below it, such as a version directory."""
        return "/".join((self.text, *names))


def _check_text(rest: str) -> None:
    with suppress(UnicodeEncodeError):
        rest.encode()
        if _CONTROL.search(rest):
            raise invalid_argument("the URL has a control character or a backslash")
        if "?" in rest or "#" in rest:
            raise invalid_argument("the URL has a query or a fragment (? or #)")
        if len(rest) > MAX_PATH:
            raise invalid_argument("the URL is too long")
        return
    raise invalid_argument("the URL is not UTF-8")


def _check_authority(authority: str, scheme: str) -> None:
    if "@" in authority:
        raise invalid_argument("the URL has a user or a key: credentials come from the environment")
    if ":" in authority:
        cure = ": set AWS_ENDPOINT_URL" if scheme == "s3" else ""
        raise invalid_argument(f"the URL has a port{cure}")
    if not authority:
        raise invalid_argument("the URL names no bucket, container or repository")


def _of_azure_host(authority: str, parts: list[str]) -> tuple[str, list[str]]:
    """Account, and container with the other parts."""
    container, at, host = authority.rpartition("@")
    if not at or not host.endswith(AZURE_HOST) or "@" in container or ":" in container:
        raise invalid_argument(f"the URL should be abfss://container@account{AZURE_HOST}/prefix")
    return host.removesuffix(AZURE_HOST), [container, *parts]


def is_below(url: str, root: str) -> bool:
    """Whether a URL is ``root`` or below it. A revision of a repository is not below the repository without one."""
    parts, wanted = _segments(url), _segments(root)
    return parts[: len(wanted)] == wanted


def matches(url: str, glob: str) -> bool:
    """Whether a URL, or what it is below, matches the glob. A ``*`` does not cross ``/``, and the scheme is no glob."""
    parts, rules = _segments(url), _segments(glob)
    if parts[0] != rules[0] or len(rules) > len(parts):
        return False
    return all(fnmatchcase(part, rule) for part, rule in zip(parts, rules, strict=False))


def _segments(text: str) -> tuple[str, ...]:
    """Scheme and parts of a URL or of a glob of URLs, the same for both ways to write an account."""
    scheme, _, rest = text.partition(MARK)
    scheme, parts = scheme.lower(), [part for part in rest.split("/") if part]
    if scheme == "abfss" and parts:
        with suppress(ServingError):
            account, parts = _of_azure_host(parts[0], parts[1:])
            return ("as", account, *parts)
    return (scheme, *parts)


def endpoint_of(scheme: str, environment: Mapping[str, str]) -> str:
    """What the environment says of the server that has the places of a scheme; empty: it is the one of the cloud. It
    may hold secrets, so nothing shows it."""
    found = next((environment[name].strip() for name in ENDPOINTS[scheme] if environment.get(name)), "")
    if not found and scheme == "gs":
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            found = str(json.loads(environment["GOOGLE_SERVICE_ACCOUNT_KEY"])["gcs_base_url"])
    return found.rstrip("/")


def join_path(prefix: str, name: str) -> str:
    """The path of something below a prefix. Either may be empty."""
    return "/".join(filter(None, (prefix, name)))


def start_of(prefix: str) -> str:
    """The beginning of every path below the prefix."""
    return f"{prefix}/" if prefix else ""


def folders_of(paths: Iterable[str]) -> set[str]:
    """The paths of all folders that these paths lead through."""
    return {path[: slash.start()] for path in paths for slash in re.finditer("/", path)}


def check_names(names: Sequence[str]) -> None:
    """Raises INVALID_ARGUMENT unless these can be the files of one directory, and none outside of it."""
    for name in names:
        if len(name) > MAX_PATH:
            raise invalid_argument("the path of a file is too long")
        for part in name.split("/"):
            check_name(part)
    folders = folders_of(names)
    twice = next((name for name, count in Counter(names).items() if count > 1 or name in folders), None)
    if twice is not None:
        raise invalid_argument(f"a file comes twice, or is a directory too: {twice!r:.200}")


def check_name(part: str) -> None:
    """Raises INVALID_ARGUMENT unless this can be the name of a file or of a directory."""
    with suppress(UnicodeEncodeError):
        if 0 < len(os.fsencode(part)) <= MAX_PART and part not in (".", "..") and "/" not in part and "\0" not in part:
            return
    raise invalid_argument(f"{part!r:.80} is no name of a file inside a version")
