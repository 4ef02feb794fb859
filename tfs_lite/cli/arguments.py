"""The argument parser with one-line errors, and the client, of all commands but ``serve``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tfs_lite.cli.output import UsageError, nearest
from tfs_lite.core.manifest import parse_version

if TYPE_CHECKING:
    from tfs_lite.client import Client

_CONNECT_TIMEOUT = 10.0
_TLS_FILES = {
    "root_certificates": "PEM; turns TLS on, to a server that one of them vouches for",
    "client_key": "PEM; for a server that wants to know its clients",
    "client_certificate": "PEM; of that key",
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, accepts no abbreviations, and has ``--json``."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"tfs-lite {command}", description=description, allow_abbrev=False)
        self.add_argument("--json", action="store_true", help="print JSON instead of text")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments. The error for an unknown argument offers the nearest option."""
        args, unknown = self.parse_known_args(argv)
        for word in unknown:
            name = word.partition("=")[0]
            raise UsageError(f"unknown argument {name!r}{nearest(name, self._option_string_actions)}")
        return args

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help shows what it takes")


def positive_seconds(text: str) -> float:
    """An argparse type: a number of seconds above zero."""
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def positive_int(text: str) -> int:
    """An argparse type: a whole number above zero."""
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return value


def version_number(text: str) -> int:
    """An argparse type: a version number, as in a directory's name."""
    version = parse_version(text)
    if version is None:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63-1, got {text!r}")
    return version


def add_tls(parser: Parser) -> None:
    """Adds the options for the files of a TLS connection, which :func:`grpc_client` reads."""
    for name, text in _TLS_FILES.items():
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", metavar="FILE", help=text)


def grpc_client(address: str, timeout: float, tls: argparse.Namespace) -> Client:
    """A client whose calls fail after ``timeout`` seconds, and sooner if there is no server. ``tls`` are arguments with
    the options of :func:`add_tls`."""
    from tfs_lite.client import Client

    files = {name: _read(getattr(tls, name), f"--{name}") for name in _TLS_FILES}
    return Client(address, **files, timeout=timeout, connect_timeout=min(timeout, _CONNECT_TIMEOUT))


def _read(path: str | None, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read: {error.strerror}") from None
