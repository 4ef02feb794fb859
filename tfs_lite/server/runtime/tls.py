"""TLS from the file of ``--ssl_config_file``, with certificates that may be replaced while the server runs.

Before every handshake the server checks for a new certificate: gRPC's library on threads of its own, our servers on the
event loop. The check costs one ``stat`` while the file is unchanged. Open connections keep their certificate. The file
may be written in place, so a change counts once there was none for a moment.
"""

from __future__ import annotations

import logging
import ssl
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tfs_lite.config.server_files import SSLConfig, read_ssl_config
from tfs_lite.config.text import QUIET_SECONDS, FileState, QuietFile
from tfs_lite.core.history import iso_time
from tfs_lite.core.status import ServingError, failed_precondition
from tfs_lite.transport.pem import load_pair, validity

logger = logging.getLogger(__name__)

FLAG = "--ssl_config_file"
GRPC, HTTP = "h2", "http/1.1"
"""Protocols by the names that clients give them (ALPN)."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:@SECLEVEL=1"
"""The ciphers of TLS 1.2: forward secret, and none that HTTP/2 forbids. All ciphers of TLS 1.3 are allowed."""


class TlsContent(NamedTuple):
    """A valid content of the file; ``revision`` tells a newer one from it."""

    revision: int
    config: SSLConfig


class _CachedContext(NamedTuple):
    """The newest usable context, and the last revision from which one was made or tried."""

    revision: int
    context: ssl.SSLContext


class TlsFile:
    """The newest valid content of the file. Any thread may call.

    Construction reads the file: NOT_FOUND, FAILED_PRECONDITION or INVALID_ARGUMENT names file, line and field. Later a
    file that cannot be read or used is logged once, and the content before it stays. The same applies to a change of
    ``client_verify``, which takes a restart.
    """

    def __init__(self, path: str, working_directory: Path | None = None, wall: Callable[[], float] = time.time) -> None:
        """``wall`` gives seconds since 1970."""
        self._path = path
        self._directory = working_directory or Path.cwd()
        self._checking = threading.Lock()
        """Guards _seen and the reading of the file. No thread waits for it."""
        self._quiet = QuietFile(time.monotonic, wall)
        self._wall = wall
        self._seen = self._file_state()
        self.content = TlsContent(0, read_ssl_config(path, self._directory))
        """Replaced as a whole, never changed."""
        self._cached: dict[str, _CachedContext] = {}  # by protocol
        self._follows = self._seen is not None and stat.S_ISREG(self._seen.mode)
        """False for a pipe, which can be read only once."""
        self._warn_of_dates(self.content.config)
        if self.content.config.custom_ca and not self.content.config.client_verify:
            logger.warning("%s: custom_ca has no effect without client_verify (%s)", path, FLAG)

    def context(self, protocol: str) -> ssl.SSLContext:
        """The context for one connection of a server of ours; the same object while the file is unchanged. Clients that
        name protocols must name this one. FAILED_PRECONDITION if TLS refuses the first content; a later refusal is
        logged once, and the context before stays."""
        content, cached = self.newest(), self._cached.get(protocol)
        if cached is None:
            cached = _CachedContext(content.revision, self._make_context(content.config, protocol))
        elif cached.revision != content.revision:
            context = cached.context
            try:
                context = self._make_context(content.config, protocol)
            except ServingError as error:
                logger.warning("%s; the certificate in use stays (%s)", error, FLAG)
            cached = _CachedContext(content.revision, context)
        self._cached[protocol] = cached
        return cached.context

    def _make_context(self, config: SSLConfig, protocol: str) -> ssl.SSLContext:
        try:
            return _make_context(config, protocol)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            raise failed_precondition(f"{self._path}: TLS refuses the key or the certificate: {why} ({FLAG})") from None

    def newest(self) -> TlsContent:
        """Looks at the file if no other thread does."""
        if self._follows and self._checking.acquire(blocking=False):
            try:
                self._read_again()
            finally:
                self._checking.release()
        return self.content

    def _read_again(self) -> None:
        state = self._file_state()
        if state == self._seen or (state is not None and self._quiet.seconds(state) < QUIET_SECONDS):
            return
        self._seen = state
        old = self.content
        try:
            config = self._read(state, old.config)
        except ServingError as error:
            logger.warning("%s; the certificate in use stays (%s)", error, FLAG)
            return
        if config != old.config:
            self.content = TlsContent(old.revision + 1, config)
            logger.info("%s: new connections get the new certificate (%s)", self._path, FLAG)
            if config.server_cert != old.config.server_cert:
                self._warn_of_dates(config)

    def _warn_of_dates(self, config: SSLConfig) -> None:
        found = validity(config.server_key.get_secret_value().encode(), config.server_cert.encode())
        if found is None or found[0] <= self._wall() < found[1]:
            return
        begins, ends = map(iso_time, found)
        when = f"has expired: it was valid until {ends}" if found[1] <= self._wall() else f"is valid only from {begins}"
        logger.warning("%s: the certificate %s; clients that check it refuse to connect (%s)", self._path, when, FLAG)

    def _read(self, state: FileState | None, old: SSLConfig) -> SSLConfig:
        if state is not None and not stat.S_ISREG(state.mode):
            raise failed_precondition(f"{self._path}: is no regular file any more")
        config = read_ssl_config(self._path, self._directory)
        if config.client_verify != old.client_verify:
            raise failed_precondition(f"{self._path}: client_verify changed, which takes a restart")
        return config

    def _file_state(self) -> FileState | None:
        """None if the file is missing."""
        return FileState.of(self._directory / self._path)


def _make_context(config: SSLConfig, protocol: str) -> ssl.SSLContext:
    """Makes a context as strict as that of gRPC's library. ssl.SSLError, or another OSError, if TLS refuses the key or
    a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols([protocol])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    load_pair(context, config.server_key.get_secret_value().encode(), config.server_cert.encode())
    if config.client_verify:
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an authority need not be its own
        context.load_verify_locations(cadata=config.custom_ca.encode("ascii", "replace").decode())
    return context
