"""``--access_file``: who may do what, one line each, read again when it changes.

    # name   scopes[,models=GLOB]     secret
    deploy   manage,read              sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    team-a   predict,read,models=a-*  tls:spiffe://cluster/team-a

A secret is the SHA-256 of a token, a token of 32 characters or more itself, or a name in a client's certificate.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from tfs_lite.config.text import QUIET_SECONDS, REMOVAL_SECONDS, FileState, QuietFile
from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument, not_found
from tfs_lite.server.access.rules import CLOSABLE, AccessEntry
from tfs_lite.transport.table import Scope

logger = logging.getLogger(__name__)

FLAG = "--access_file"
MAX_LINES, MAX_BYTES = 1000, 256 * 1024
MIN_TOKEN = 32
"""Characters of a token that stands in the file itself."""
MAX_NAME = 100
MAX_SHOWN = 12
"""Characters of a wrong scope that a message repeats."""
CHECK_SECONDS = 1.0
"""The seconds between two looks at the file."""
_HASHED, _CERTIFICATE, _MODELS = "sha256:", "tls:", "models="
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(rf"[A-Za-z0-9_.@/-]{{1,{MAX_NAME}}}")
_SCOPES = {scope.name.lower(): scope for scope in CLOSABLE}
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def read_entries(text: str, path: str, private: bool = True) -> tuple[AccessEntry, ...]:
    """The entries of a file. ``private``: only the server's user can read it. INVALID_ARGUMENT or FAILED_PRECONDITION
    names the file and the line, and repeats nothing of a secret."""
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise invalid_argument(f"{path} has {len(lines)} lines, the most is {MAX_LINES} ({FLAG})")
    found: list[AccessEntry] = []
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split() if line.lstrip().startswith("#") else line.split()
        if not words:
            continue
        try:
            found.append(read_entry(words, private))
        except ValueError as error:
            raise invalid_argument(f"{path}, line {number}: {error} ({FLAG})") from None
    return tuple(found)


def read_entry(words: list[str], private: bool = True) -> AccessEntry:
    """The entry of one line. ValueError says what is wrong with it, and repeats nothing of a secret."""
    if len(words) != 3:
        raise ValueError(f"expected NAME SCOPES SECRET, got {len(words)} words")
    name, rights, secret = words
    if not _NAME.fullmatch(name):
        raise ValueError(f"a name is 1 to {MAX_NAME} letters, digits and _.@/-")
    scopes, models = _rights(rights)
    if secret.startswith(_CERTIFICATE):
        if not secret.removeprefix(_CERTIFICATE):
            raise ValueError("tls: is followed by a URI or a DNS name of the client's certificate")
        return AccessEntry(name, scopes, models, certificate=secret.removeprefix(_CERTIFICATE))
    return AccessEntry(name, scopes, models, digest=_digest(secret, private))


def _rights(text: str) -> tuple[frozenset[Scope], str | None]:
    rights, comma, models = text.partition("," + _MODELS)
    if text.startswith(_MODELS) or (comma and not models) or _MODELS in rights:
        raise ValueError("expected scopes, then once models=GLOB")
    scopes = rights.split(",")
    for scope in scopes:
        if scope not in _SCOPES:
            shown = f" {scope!r}" if len(scope) <= MAX_SHOWN else ""  # else it may be a secret in the wrong place
            raise ValueError(f"unknown scope{shown}, expected one of: {', '.join(_SCOPES)}")
    return frozenset(_SCOPES[scope] for scope in scopes), models if comma else None


def _digest(secret: str, private: bool) -> bytes:
    if secret.startswith(_HASHED):
        digest = secret.removeprefix(_HASHED).lower()
        if not _DIGEST.fullmatch(digest):
            raise ValueError("sha256: is followed by 64 hexadecimal digits")
        return bytes.fromhex(digest)
    if len(secret) < MIN_TOKEN:
        raise ValueError(f"a token has {MIN_TOKEN} characters or more; write sha256: before a digest")
    if not private:
        raise ValueError("a token stands here in plain text and others can read the file: chmod 600, or use sha256:")
    return sha256(secret.encode()).digest()


def _open_at_once(path: str, flags: int) -> int:
    """Does not wait for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


class AccessFile:
    """The newest valid content of the file. On the event loop; a look at an unchanged file is one ``stat``, at most
    once a second. A change counts once the file has not changed for :data:`QUIET_SECONDS`, one that takes an entry out
    after :data:`REMOVAL_SECONDS`: the file may be written in place.

    Construction reads the file: NOT_FOUND, FAILED_PRECONDITION or INVALID_ARGUMENT says what is wrong. Later a file
    that cannot be read or used is logged once, and the content before it stays.
    """

    def __init__(self, path: str, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        """``clock`` gives seconds, ``wall`` seconds since 1970."""
        self._path = Path.cwd() / path
        self._shown = path
        self._clock = clock
        self._looked = clock()
        self._quiet = QuietFile(clock, wall)
        self._seen = FileState.of(self._path)
        self._entries = self._read()

    @property
    def entries(self) -> tuple[AccessEntry, ...]:
        now = self._clock()
        if now - self._looked >= CHECK_SECONDS:
            self._looked = now
            self._follow()
        return self._entries

    def _follow(self) -> None:
        state = FileState.of(self._path)
        quiet = self._quiet.seconds(state)
        if state == self._seen or quiet < QUIET_SECONDS:
            return
        try:
            entries = self._read()
        except ServingError as error:
            logger.warning("%s; the entries before it stay", error)
        else:
            missing = {entry.name for entry in self._entries} - {entry.name for entry in entries}
            if (missing and quiet < REMOVAL_SECONDS) or FileState.of(self._path) != state:
                return
            self._entries = entries
            logger.info("%s was read again: %d entries (%s)", self._shown, len(self._entries), FLAG)
        self._seen = state

    def _read(self) -> tuple[AccessEntry, ...]:
        try:
            with open(self._path, "rb", opener=_open_at_once) as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise failed_precondition(f"{self._shown} is no regular file ({FLAG})")
                if mode & stat.S_IWOTH:
                    raise failed_precondition(f"{self._shown}: everybody can write to it: chmod o-w ({FLAG})")
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            raise not_found(f"{self._shown} does not exist ({FLAG})") from None
        except OSError as error:
            raise failed_precondition(f"{self._shown} cannot be read: {error.strerror} ({FLAG})") from None
        if len(data) > MAX_BYTES:
            raise invalid_argument(f"{self._shown} has more than {MAX_BYTES} bytes ({FLAG})")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise invalid_argument(f"{self._shown} is no UTF-8 text ({FLAG})") from None
        return read_entries(text, self._shown, private=not mode & _READABLE_BY_OTHERS)
