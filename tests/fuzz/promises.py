"""What the fuzz targets hold answers against."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any
from urllib.parse import quote

import numpy as np
import ormsgpack
from handlers import Reply

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.grpc.status import truncate

BLAMES_THE_REQUEST = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, StatusCode.FAILED_PRECONDITION, StatusCode.UNIMPLEMENTED}
)

PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
MAX_HEADER = 7 << 10
"""gRPC's bound for all headers together is 8 KB."""


class Violation(Exception):
    """A promise is broken."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


def check_error(error: ServingError, codes: frozenset[StatusCode] | set[StatusCode] = BLAMES_THE_REQUEST) -> None:
    require(error.code in codes, f"{error.code.name}: {error}")
    require(str(error).strip(), f"{error.code.name} without a word")
    str(error).encode()


def check_details(error: ServingError) -> None:
    """gRPC sends words in a header, percent-encoded; clients drop answers whose headers are too long."""
    header = quote(truncate(str(error)), safe=PRINTABLE)
    require(len(header) <= MAX_HEADER, "the words of an error do not fit into a header")


def check_reply(reply: Reply) -> None:
    if reply.gone:
        return
    require(reply.status < 500 or reply.status == 501, f"{reply.status}: {reply.body[:300]!r}")
    if reply.headers.get("content-encoding") == "gzip":
        reply.body = gzip.decompress(reply.body)
    kind = reply.headers.get("content-type", "")
    if kind == "application/json":
        tree = json.loads(reply.body)
    elif kind == "application/msgpack":
        tree = ormsgpack.unpackb(reply.body)
    else:
        return
    require((list(tree) == ["error"]) == (reply.status >= 400), f"{reply.status} with {list(tree)}")
    require(reply.status < 400 or tree["error"].strip(), "an error without a word")


def plain(tree: Any) -> Any:
    """Lists in place of arrays."""
    if isinstance(tree, np.ndarray):
        return tree.tolist()
    if isinstance(tree, list):
        return [plain(item) for item in tree]
    if isinstance(tree, dict):
        return {name: plain(item) for name, item in tree.items()}
    return tree


def same(one: Any, other: Any) -> bool:
    """Whether two trees mean the same. An integer may have become the float nearest to it."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        if not (isinstance(one, int | float) and isinstance(other, int | float)):
            return one == other
        return float(one) == float(other) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)
