"""Which server speaks gRPC in the tests: one choice for a whole run, made by pytest's option ``--grpc-server``.

Without it every test has the default of the product. What compares the two servers has both, whatever is chosen.
"""

from __future__ import annotations

from dataclasses import fields

from tests.support.servers.process import set_default_flags
from tfs_lite.serving.options import GRPC_SERVERS, ServerOptions

FIELD = "grpc_server"


def choose(name: str) -> None:
    """For the rest of this process: what ServerOptions have that do not say, and the flag of every ServerProcess."""
    if name not in GRPC_SERVERS:
        raise ValueError(f"{name!r}, expected one of: {', '.join(GRPC_SERVERS)}")
    initializer = ServerOptions.__init__
    defaults = list(initializer.__defaults__ or ())
    names = [field.name for field in fields(ServerOptions) if field.init]
    defaults[names.index(FIELD) - len(names)] = name
    initializer.__defaults__ = tuple(defaults)
    set_default_flags(**{FIELD: name})


def chosen() -> str:
    """For tests that make a gRPC server by themselves."""
    return ServerOptions().grpc_server
