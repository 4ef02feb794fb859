"""TLS for gRPC from the file of ``--ssl_config_file``, with certificates that may be replaced while the server runs.

gRPC asks before every handshake, on threads of its own, whether there is a new certificate. The answer costs one
``stat`` as long as the file is the same. Connections that exist keep what they were made with.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from tfs_lite.config.server_files import read_ssl_config
from tfs_lite.config.ssl import SSLConfig
from tfs_lite.core.status import ServingError, failed_precondition

logger = logging.getLogger(__name__)

FLAG = "--ssl_config_file"


class _Look(NamedTuple):
    """What tells one content of the file from another."""

    modified_ns: int
    size: int
    inode: int
    regular: bool


class _Content(NamedTuple):
    revision: int
    config: SSLConfig


class TlsFile:
    """The newest good content of the file. Any thread may call.

    Making one reads the file: NOT_FOUND, FAILED_PRECONDITION or INVALID_ARGUMENT that names file, place and field.
    Later a file that cannot be read or used is logged once, and the content before it stays. So it is when
    ``client_verify`` changes: whether clients must have certificates is decided at the start.
    """

    def __init__(self, path: str, working_directory: Path | None = None) -> None:
        self._path = path
        self._directory = working_directory or Path.cwd()
        self._looking = threading.Lock()
        """Guards _seen, and that one thread at a time reads the file; nobody waits for it."""
        self._seen = self._look()
        self._content = _Content(0, read_ssl_config(path, self._directory))
        """Replaced as a whole, never changed."""
        self._follows = self._seen is not None and self._seen.regular
        """False: a pipe, which can be read once."""
        if self._content.config.custom_ca and not self._content.config.client_verify:
            logger.warning("%s: custom_ca has no effect without client_verify (%s)", path, FLAG)

    def credentials(self) -> grpc.ServerCredentials:
        """For one listening address. Each needs its own, because gRPC asks for each whether it has the newest."""
        given = self._content

        def newer() -> Any:
            nonlocal given
            newest = self._newest()
            if newest.revision == given.revision:
                return None
            given = newest
            return _certificates(newest.config)

        return grpc.dynamic_ssl_server_credentials(_certificates(given.config), newer, given.config.client_verify)

    def _newest(self) -> _Content:
        if self._follows and self._looking.acquire(blocking=False):
            try:
                self._read_again()
            finally:
                self._looking.release()
        return self._content

    def _read_again(self) -> None:
        look = self._look()
        if look == self._seen:
            return
        self._seen = look
        old = self._content
        try:
            config = self._read(look, old.config)
        except ServingError as error:
            logger.warning("%s; the certificate in use stays (%s)", error, FLAG)
            return
        if config != old.config:
            self._content = _Content(old.revision + 1, config)
            logger.info("%s: new connections get the new certificate (%s)", self._path, FLAG)

    def _read(self, look: _Look | None, old: SSLConfig) -> SSLConfig:
        if look is not None and not look.regular:
            raise failed_precondition(f"{self._path}: is no regular file any more")
        config = read_ssl_config(self._path, self._directory)
        if config.client_verify != old.client_verify:
            raise failed_precondition(f"{self._path}: client_verify changed, which takes a restart")
        return config

    def _look(self) -> _Look | None:
        """None if there is nothing to look at."""
        try:
            found = os.stat(self._directory / self._path)
        except OSError:
            return None
        return _Look(found.st_mtime_ns, found.st_size, found.st_ino, stat.S_ISREG(found.st_mode))


def _certificates(config: SSLConfig) -> Any:
    """gRPC's form of the key and certificates. gRPC takes it away with its first use, so each use needs a new one."""
    pair = (config.server_key.get_secret_value().encode(), config.server_cert.encode())
    return grpc.ssl_server_certificate_configuration(
        [pair], config.custom_ca.encode() if config.client_verify else None
    )
