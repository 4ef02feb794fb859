"""``tfs-lite token NAME --scopes manage``: makes a token, and the line for the server's ``--access_file``.

The token is printed once and kept nowhere; the line has its SHA-256 only.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha256

from tfs_lite.cli.arguments import Parser
from tfs_lite.cli.output import DONE, UsageError, print_json

TOKEN_BYTES = 32


def run(argv: Sequence[str]) -> int:
    from tfs_lite.server.access.access_file import read_entry

    parser = Parser("token", "Makes a token for a server with --access_file.")
    parser.add_argument("name", metavar="NAME", help="who gets it; the server's log and events say this name")
    parser.add_argument("--scopes", required=True, metavar="A,B", help="what it is for: predict, read, manage")
    parser.add_argument("--models", metavar="GLOB", help="only these models")
    args = parser.parse(argv)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    rights = args.scopes if args.models is None else f"{args.scopes},models={args.models}"
    line = f"{args.name} {rights} sha256:{sha256(token.encode()).hexdigest()}"
    try:
        read_entry(line.split())
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.json:
        print_json({"token": token, "line": line})
    else:
        print(f"token, shown this once:\n  {token}\nline for the server's --access_file:\n  {line}")
    return DONE
