"""The argument parser with one-line errors, and the way to a running server, of all commands but ``serve``.

A server has two ports, and ``--server`` names either. A command that can ask over both protocols (:func:`ask`) takes
the one that the port speaks; one that cannot says which port it needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from tfs_lite.cli.output import TOKEN_VARIABLE, UsageError, nearest
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.bearer import bearer
from tfs_lite.transport.peer import peer_at

if TYPE_CHECKING:
    from tfs_lite.cli.http import AskedServer
    from tfs_lite.client import Client

T = TypeVar("T")

SERVER_VARIABLE = "TFS_LITE_SERVER"
GRPC_PORT, HTTP_PORT = 8500, 8501
"""The ports of a server that was started without flags for them."""
_LOCAL = "127.0.0.1"

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


def add_server(parser: Parser) -> None:
    """Adds the options that say which server is asked, and how."""
    parser.add_argument("--server", metavar="HOST[:PORT]", type=_address, help=_SERVER_HELP)
    add_credentials(parser)
    add_waiting(parser)


_SERVER_HELP = (
    f"the server, by its gRPC or HTTP port; {SERVER_VARIABLE} in the environment is the default, else {_LOCAL}; "
    f"without a port it is {HTTP_PORT} for what goes over HTTP, {GRPC_PORT} for gRPC"
)


def _address(text: str) -> str:
    """An argparse type: an address, with or without a port."""
    if not text.strip() or ("/" in text and not text.startswith("unix:")):
        raise argparse.ArgumentTypeError(f"expected HOST or HOST:PORT (and no http://), got {text!r}")
    return text


def server_address(args: argparse.Namespace, port: int) -> str:
    """The address of ``--server``, of the environment, or of this machine; with ``port`` where it names none. Raises
    UsageError for an address in the environment that is none."""
    given = args.server
    if not given:
        try:
            given = _address(os.environ.get(SERVER_VARIABLE) or _LOCAL)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{SERVER_VARIABLE}: {error}") from None
    if given.startswith("unix:"):
        return str(given)
    if given.count(":") > 1 and not given.startswith("["):
        given = f"[{given}]"
    return str(given) if given.rpartition("]")[2].count(":") else f"{given}:{port}"


def ask(
    args: argparse.Namespace,
    over_http: Callable[[AskedServer], T],
    over_grpc: Callable[[Client], T],
    timeout: float | None = None,
) -> T:
    """The answer of the server of ``args``, over the protocol that its port speaks: gRPC with the files of TLS or a
    path, else HTTP, and gRPC if the port says so. ``args`` remember that. ``timeout``: seconds for an answer."""
    from tfs_lite.cli.http import ANSWER_TIMEOUT, IsGrpcPort

    if not wants_grpc(args):
        try:
            return over_http(http_server(server_address(args, HTTP_PORT), args, timeout))
        except IsGrpcPort:
            args.is_grpc_port = True
    with grpc_client(server_address(args, GRPC_PORT), timeout or ANSWER_TIMEOUT, args) as client:
        return over_grpc(client)


def http_questions(args: argparse.Namespace, what: str) -> AskedServer:
    """The server of ``args``, for questions that only its HTTP port answers. UsageError where that cannot be."""
    if wants_grpc(args):
        raise UsageError(f"{what} goes over HTTP, in plain text: give --server the HTTP port, and no files of TLS")
    return http_server(server_address(args, HTTP_PORT), args)


def grpc_questions(args: argparse.Namespace, timeout: float) -> Client:
    """A client of the server of ``args``, for what goes over gRPC; see :func:`grpc_client`."""
    return grpc_client(server_address(args, GRPC_PORT), timeout, args)


def wants_grpc(args: argparse.Namespace) -> bool:
    """Whether the server can be asked over gRPC only: commands speak no TLS over HTTP."""
    is_path = server_address(args, HTTP_PORT).startswith("unix:")
    return is_path or getattr(args, "is_grpc_port", False) or any(getattr(args, name, None) for name in _TLS_FILES)


def add_credentials(parser: Parser) -> None:
    """Adds the options for a TLS connection and for the token, which :func:`grpc_client` and :func:`http_server`
    read."""
    for name, text in _TLS_FILES.items():
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", metavar="FILE", help=text)
    add_token(parser)


def add_waiting(parser: Parser) -> None:
    """Adds the option for a server that is being started, which :func:`grpc_client` and :func:`http_server`
    read."""
    help_text = (
        "wait so long until a server that is being started answers at all, which it does before its models do: "
        "/readyz of its HTTP port says when they do; without it, a server that is not there is an error at once"
    )
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

    files = {name: _read(getattr(credentials, name, None), f"--{name}") for name in _TLS_FILES}
    token = read_token(credentials)
    if token and files["root_certificates"] is None:
        _warn_of_plain_text(address, credentials)
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
        _warn_of_plain_text(address, credentials)
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


def _warn_of_plain_text(address: str, credentials: argparse.Namespace) -> None:
    """Tells it once for a command line."""
    if getattr(credentials, "is_warned", False):
        return
    credentials.is_warned = True
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
