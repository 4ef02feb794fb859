"""The access file: what its lines mean, what is refused, and that it is followed."""

from __future__ import annotations

import logging
import os
import time
from hashlib import sha256
from pathlib import Path

import pytest

from tfs_lite.config.text import REMOVAL_SECONDS
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.access.access_file import CHECK_SECONDS, MAX_BYTES, MAX_LINES, AccessFile, read_entries
from tfs_lite.server.access.rules import CLOSABLE, AccessEntry
from tfs_lite.transport.table import Scope

TOKEN = "t" * 32
DIGEST = sha256(TOKEN.encode()).hexdigest()
LINE = f"deploy manage sha256:{DIGEST}"


def test_lines_have_a_name_scopes_and_a_secret() -> None:
    text = f"""
# who    what                    secret
deploy   manage,read,predict     sha256:{DIGEST}

  # an indented comment
team-a   predict,models=a-*      {TOKEN}
\tmesh@x/y   manage              tls:spiffe://cluster/deploy
upper    read                    sha256:{DIGEST.upper()}
"""
    digest = bytes.fromhex(DIGEST)
    assert read_entries(text, "f") == (
        AccessEntry("deploy", frozenset(CLOSABLE), None, digest),
        AccessEntry("team-a", frozenset({Scope.PREDICT}), "a-*", digest),
        AccessEntry("mesh@x/y", frozenset({Scope.MANAGE}), None, certificate="spiffe://cluster/deploy"),
        AccessEntry("upper", frozenset({Scope.READ}), None, digest),
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("deploy manage", "expected NAME SCOPES SECRET, got 2 words"),
        (f"deploy manage {TOKEN} # late", "got 5 words"),
        (f"na:me manage {TOKEN}", "a name is"),
        (f"{'n' * 101} manage {TOKEN}", "a name is"),
        (f"deploy write {TOKEN}", "unknown scope 'write', expected one of: predict, read, manage"),
        (f"deploy MANAGE {TOKEN}", "unknown scope 'MANAGE'"),
        (f"deploy open {TOKEN}", "unknown scope 'open'"),
        (f"deploy manage, {TOKEN}", "unknown scope ''"),
        (f"deploy models=a {TOKEN}", "expected scopes, then once models=GLOB"),
        (f"deploy manage,models= {TOKEN}", "expected scopes, then once models=GLOB"),
        (f"deploy manage {TOKEN[:31]}", "32 characters or more"),
        (f"deploy manage sha256:{DIGEST[:-1]}", "64 hexadecimal digits"),
        (f"deploy manage sha256:{DIGEST}0", "64 hexadecimal digits"),
        ("deploy manage tls:", "a URI or a DNS name"),
    ],
)
def test_wrong_line_is_refused_by_its_number_without_its_secret(line: str, words: str) -> None:
    with pytest.raises(ServingError) as caught:
        read_entries(f"# a comment\n{line}\n", "access.txt")
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert str(caught.value).startswith("access.txt, line 2: ")
    assert words in str(caught.value)
    assert TOKEN[:31] not in str(caught.value)
    assert DIGEST[:-1] not in str(caught.value)


def test_plain_token_needs_a_file_that_only_its_owner_reads() -> None:
    with pytest.raises(ServingError, match="chmod 600"):
        read_entries(f"deploy manage {TOKEN}", "f", private=False)
    assert read_entries(LINE, "f", private=False)


def test_lines_are_bounded() -> None:
    read_entries("\n" * MAX_LINES, "f")
    with pytest.raises(ServingError, match=f"the most is {MAX_LINES}"):
        read_entries("#\n" * (MAX_LINES + 1), "f")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "access"
    path.write_text(LINE)
    return path


def names(file: AccessFile) -> list[str]:
    return [entry.name for entry in file.entries]


def names_at_last(file: AccessFile, clock: Clock) -> list[str]:
    """When it has not changed for so long that any change counts."""
    clock.now += CHECK_SECONDS
    names(file)
    clock.now += REMOVAL_SECONDS
    return names(file)


def test_file_is_read_again_when_it_changes_at_most_once_a_second(path: Path, clock: Clock) -> None:
    file = AccessFile(str(path), clock, wall=lambda: time.time() + 1)
    path.write_text(f"{LINE}\n{LINE.replace('deploy', 'another')}")
    assert names(file) == ["deploy"]
    clock.now += CHECK_SECONDS
    assert names(file) == ["deploy", "another"]


def test_file_that_is_written_in_place_takes_nobody_s_rights_meanwhile(path: Path, clock: Clock) -> None:
    lines = [LINE, LINE.replace("deploy", "second"), LINE.replace("deploy", "last")]
    path.write_text("\n".join(lines))
    file = AccessFile(str(path), clock)
    everybody = names(file)
    path.write_text("# written anew\n")
    for line in lines:
        for _ in range(2):
            clock.now += CHECK_SECONDS * 0.9
            assert names(file) == everybody
        with path.open("a") as writer:
            writer.write(line + "\n")
    assert names_at_last(file, clock) == everybody
    path.write_text("\n".join(lines[1:]))
    clock.now += CHECK_SECONDS
    assert names(file) == everybody
    assert names_at_last(file, clock) == ["second", "last"]


def test_file_behind_an_exchanged_link_is_read_again(path: Path, clock: Clock) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    file = AccessFile(str(link), clock)
    newer = path.with_name("newer")
    newer.write_text(LINE.replace("deploy", "worker"))
    link.unlink()
    link.symlink_to(newer)
    assert names_at_last(file, clock) == ["worker"]


@pytest.mark.parametrize("damage", ["wrong", "missing", "public", "large", "binary"])
def test_file_that_breaks_is_logged_once_and_the_entries_before_stay(
    path: Path, clock: Clock, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = AccessFile(str(path), clock)
    if damage == "wrong":
        path.write_text("deploy manage")
    elif damage == "missing":
        path.unlink()
    elif damage == "public":
        path.write_text(f"deploy manage {TOKEN}")
        path.chmod(0o644)
    elif damage == "large":
        path.write_text("#" * (MAX_BYTES + 1))
    else:
        path.write_bytes(b"\xff\xfe")
    for _ in range(3):
        clock.now += CHECK_SECONDS
        assert names(file) == ["deploy"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the entries before it stay" in record.message
    assert TOKEN not in caplog.text
    path.unlink(missing_ok=True)
    path.write_text(LINE.replace("deploy", "mended"))
    assert names_at_last(file, clock) == ["mended"]


def test_plain_tokens_are_read_from_a_private_file(path: Path, clock: Clock) -> None:
    path.write_text(f"deploy manage {TOKEN}")
    path.chmod(0o600)
    assert names(AccessFile(str(path), clock)) == ["deploy"]


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda path: path.unlink(), StatusCode.NOT_FOUND, "does not exist"),
        (lambda path: (path.unlink(), path.mkdir()), StatusCode.FAILED_PRECONDITION, "Is a directory"),
        (lambda path: path.write_text("x"), StatusCode.INVALID_ARGUMENT, "line 1"),
        (lambda path: path.write_bytes(b"\xff"), StatusCode.INVALID_ARGUMENT, "UTF-8"),
        (lambda path: path.write_text("#" * (MAX_BYTES + 1)), StatusCode.INVALID_ARGUMENT, "more than"),
    ],
)
def test_file_that_is_broken_at_the_start_fails_it(
    path: Path, clock: Clock, make: object, code: StatusCode, words: str
) -> None:
    make(path)  # type: ignore[operator]
    with pytest.raises(ServingError, match=words) as caught:
        AccessFile(str(path), clock)
    assert caught.value.code is code
    assert "--access_file" in str(caught.value)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path, clock: Clock) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ServingError, match="no regular file"):
        AccessFile(str(pipe), clock)


def test_a_file_that_everybody_can_write_gives_nobody_rights(path: Path, clock: Clock) -> None:
    path.write_text(LINE)
    path.chmod(0o602)
    with pytest.raises(ServingError, match="everybody can write to it: chmod o-w") as caught:
        AccessFile(str(path), clock)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
    path.chmod(0o644)
    file = AccessFile(str(path), clock)
    path.write_text(f"{LINE}\nintruder manage sha256:{'0' * 64}")
    path.chmod(0o646)
    assert names_at_last(file, clock) == ["deploy"]
