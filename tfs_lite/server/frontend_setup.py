"""What a gRPC frontend is told when it starts: its address, its limits, and the paths of the table it stands for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tfs_lite.transport.table import CallKind, Method


@dataclass(frozen=True, slots=True)
class FrontendSetup:
    """``rows``: path and name of the kind of every row, in the order of the table. ``port`` None: no TCP;
    ``socket_path`` "": no UNIX socket. ``server``: one of ``GRPC_SERVERS``. ``directory``: where relative paths start.
    ``log_level``: a number of ``logging``."""

    rows: tuple[tuple[str, str], ...]
    max_message_bytes: int
    arguments: tuple[tuple[str, int | str], ...]
    ssl_config_file: str
    host: str
    port: int | None
    socket_path: str
    server: str
    directory: str
    log_level: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> FrontendSetup:
        fields = json.loads(data)
        for name in ("rows", "arguments"):
            fields[name] = tuple((first, second) for first, second in fields[name])
        return cls(**fields)


def rows_of(methods: Sequence[Method]) -> tuple[tuple[str, str], ...]:
    return tuple((method.path, method.kind.name) for method in methods)


def kind_of(name: str) -> CallKind:
    return CallKind[name]
