"""The argument parser with one-line errors, and the client, of all commands but ``serve``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tfs_lite.cli.output import UsageError, nearest
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.bearer import bearer
from tfs_lite.transport.peer import peer_at

if TYPE_CHECKING:
    from tfs_lite.cli.http import AskedServer
    from tfs_lite.client import Client

TOKEN_VARIABLE = "TFS_LITE_TOKEN_FILE"

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


def add_credentials(parser: Parser) -> None:
    """Adds the options for a TLS connection and for the token, which :func:`grpc_client` and :func:`http_server`
    read."""
    for name, text in _TLS_FILES.items():
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", metavar="FILE", help=text)
    add_token(parser)


def add_waiting(parser: Parser) -> None:
    """Adds the option for a server that is being started, which :func:`grpc_client` and :func:`http_server`
    read."""
    help_text = "wait so long for a server that is being started; without it, one that is not there is an error at once"
    flags = ("--wait_for_server", "--wait-for-server")
    parser.add_argument(*flags, type=positive_seconds, metavar="SECONDS", help=help_text)


def add_token(parser: Parser) -> None:
    """Adds the option for the token alone, which :func:`http_server` reads."""
    help_text = f"the token for a server with --access_file; {TOKEN_VARIABLE} in the environment is the default"
    parser.add_argument("--token_file", "--token-file", metavar="FILE", help=help_text)


def grpc_client(address: str, timeout: float, credentials: argparse.Namespace) -> Client:
    """A client whose calls fail after ``timeout`` seconds, and at once if there is no server. ``credentials`` are
    arguments with the options of :func:`add_credentials`, and maybe of :func:`add_waiting`: the server has been waited
    for. The user is told when the token leaves the machine in plain text."""
    client = unconnected_client(address, timeout, credentials)
    if getattr(credentials, "wait_for_server", None) is not None:
        try:
            client.connect()
        except BaseException:
            client.close()
            raise
    return client


def unconnected_client(address: str, timeout: float, credentials: argparse.Namespace) -> Client:
    """The same, and the server has not been waited for: ``connect`` does that."""
    from tfs_lite.client import Client

    files = {name: _read(getattr(credentials, name), f"--{name}") for name in _TLS_FILES}
    token = read_token(credentials)
    if token and files["root_certificates"] is None:
        _warn_of_plain_text(address)
    wait = getattr(credentials, "wait_for_server", None)
    return Client(
        address,
        root_certificates=files["root_certificates"],
        client_certificate=files["client_certificate"],
        client_key=files["client_key"],
        token=token,
        timeout=timeout,
        connect_timeout=wait or _CONNECT_TIMEOUT,
        wait_for_server=wait is not None,
    )


def http_server(address: str, credentials: argparse.Namespace, timeout: float | None = None) -> AskedServer:
    """The same over HTTP, which has no TLS here. ``timeout``: seconds for an answer."""
    from tfs_lite.cli.http import ANSWER_TIMEOUT, AskedServer

    token = read_token(credentials)
    if token:
        _warn_of_plain_text(address)
    wait = getattr(credentials, "wait_for_server", None)
    return AskedServer(address, token, timeout or ANSWER_TIMEOUT, wait or 0.0)


def read_token(credentials: argparse.Namespace) -> str:
    """The token in the file of ``--token_file`` or of the environment; empty without a file."""
    option, path = "--token_file", credentials.token_file
    if path is None:
        option, path = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE) or None
    if path is None:
        return ""
    token = (_read(path, option) or b"").decode("ascii", "replace").strip()
    try:
        bearer(token)
    except ServingError as error:
        raise UsageError(f"{option}: {path} holds no token: {error}") from None
    return token


def _warn_of_plain_text(address: str) -> None:
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost" or peer_at(host).loopback:
        return
    print(f"tfs-lite: the token goes to {address} unencrypted; anyone on the way can read it", file=sys.stderr)


def _read(path: str | None, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read: {error.strerror}") from None
