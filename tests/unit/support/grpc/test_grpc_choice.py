"""One option decides who speaks gRPC in a whole run of the tests."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.grpc.grpc_choice import choose
from tfs_lite.serving.options import GRPC_SERVERS

PROGRAM = """
import json, sys
from tfs_lite.serving.options import ServerOptions
from tests.support.grpc.grpc_choice import choose, chosen
from tests.support.servers.process import ServerProcess

class Shown(ServerProcess):
    flags = property(lambda self: [one for one in self._arguments if "server" in one])

choose(sys.argv[1])
print(json.dumps({
    "default": ServerOptions().grpc_server,
    "chosen": chosen(),
    "others": [ServerOptions(host="::1").host, ServerOptions().port, ServerOptions().grpc_max_threads],
    "asked": ServerOptions(grpc_server=sys.argv[2]).grpc_server,
    "flags": Shown("--a=b", command=["serving"]).flags,
    "own": Shown("--grpc-server", sys.argv[2], command=["serving"]).flags,
}))
"""


@pytest.mark.parametrize(("name", "other"), [GRPC_SERVERS, GRPC_SERVERS[::-1]])
def test_a_choice_is_the_default_everywhere_and_nothing_more(name: str, other: str) -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, name, other], check=True, capture_output=True, text=True)
    assert json.loads(result.stdout) == {
        "default": name,
        "chosen": name,
        "others": ["::1", 0, 0],
        "asked": other,
        "flags": [f"--grpc_server={name}"],
        "own": ["--grpc-server"],
    }


def test_only_servers_that_exist_can_be_chosen() -> None:
    with pytest.raises(ValueError, match="'mine', expected one of: native, grpcio"):
        choose("mine")
