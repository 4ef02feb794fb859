"""What the code of a thief in a model's process tries: it says of each attempt what became of it.

Imports nothing of torch, and runs inside a ``model.py`` as in a process of a test.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

DONE = "done"
REFUSED = "refused"


def attempts(version: str, outside: str, port: int) -> Mapping[str, Callable[[], object]]:
    """By name. ``version`` is the thief's own directory, ``outside`` a directory with the file ``secret``, and ``port``
    one of this machine where a server listens for TCP."""
    secret = os.path.join(outside, "secret")
    return {
        "read a file outside": lambda: Path(secret).read_text(),
        "list a directory outside": lambda: os.listdir(outside),
        "read it through a link": lambda: _through_link(secret),
        "read what another process knows": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "write outside": lambda: Path(outside, "loot").write_text("x"),
        "empty a file outside": lambda: os.truncate(secret, 0),
        "delete a file outside": lambda: os.unlink(secret),
        "change the mode of a file outside": lambda: os.chmod(secret, 0o777),
        "change its version": lambda: Path(version, "model.py").write_text("x"),
        "connect": lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close(),
        "send a datagram": lambda: _send_datagram(port),
        "talk to a unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)).close(),
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "start a program from memory": _start_from_memory,
        "signal the server": lambda: os.kill(os.getppid(), 0),
        "do it on a thread": lambda: _on_a_thread(lambda: Path(secret).read_text()),
        "do it in a child": lambda: _in_a_child(secret),
    }


def needs(version: str) -> Mapping[str, Callable[[], object]]:
    """What every model may need, by name."""
    return {
        "read its version": lambda: os.listdir(version),
        "write a temporary file": _use_temporary_directory,
        "read about itself": lambda: Path("/proc/self/status").read_text(),
        "import a module": lambda: __import__("wave"),
        "load a library": lambda: ctypes.CDLL("libm.so.6"),
        "count processors": lambda: Path("/sys/devices/system/cpu/online").read_text(),
        "make random numbers": lambda: Path("/dev/urandom").open("rb").read(1),
        "throw something away": lambda: Path("/dev/null").write_text("x"),
        "start a thread": lambda: _on_a_thread(os.getpid),
        "make a pair of sockets": _make_a_pair,
    }


_LIBRARY = """
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(const char *attempt, int done) {
  dprintf(2, "thief: %%s: %%s\\n", attempt, done ? "%(done)s" : "%(refused)s");
}

__attribute__((constructor)) static void steal(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(%(port)d)};
  tell("read", open("%(secret)s", O_RDONLY) >= 0);
  tell("write", open("%(loot)s", O_CREAT | O_WRONLY, 0600) >= 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  tell("connect", connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address) == 0);
  int status = 1;
  pid_t child = fork();
  if (child == 0) { execl("/bin/true", "true", (char *)0); _exit(1); }
  tell("start", child > 0 && waitpid(child, &status, 0) == child && status == 0);
}
"""
LIBRARY_ATTEMPTS = ("read", "write", "connect", "start")


def build_library(path: Path, outside: Path, port: int) -> Path:
    """A shared library that steals when it is loaded, and has nothing that the one who loads it looks for. It says
    ``thief: <attempt>: <outcome>`` of each of LIBRARY_ATTEMPTS on the standard error. Needs gcc."""
    names = {"secret": outside / "secret", "loot": outside / "loot", "port": port, "done": DONE, "refused": REFUSED}
    source = path.with_suffix(".c")
    source.write_text(_LIBRARY % names)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    source.unlink()
    return path


def outcomes(wanted: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """DONE, REFUSED, or what else happened to each."""
    return {name: _outcome(attempt) for name, attempt in wanted.items()}


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except PermissionError:
        return REFUSED
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return DONE


def _through_link(secret: str) -> None:
    with tempfile.TemporaryDirectory() as own:
        link = os.path.join(own, "link")
        os.symlink(secret, link)
        Path(link).read_text()


def _send_datagram(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"loot", ("127.0.0.1", port))


def _make_a_pair() -> None:
    for end in socket.socketpair():
        end.close()


def _start_from_memory() -> None:
    descriptor = os.memfd_create("program")
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(b"#!/bin/true\n")
    os.execve(descriptor, ["program"], {})


def _use_temporary_directory() -> None:
    with tempfile.TemporaryDirectory() as own:
        Path(own, "folder").mkdir()
        Path(own, "folder", "file").write_text("x")
        Path(own, "folder", "file").rename(Path(own, "other"))


def _on_a_thread(attempt: Callable[[], object]) -> None:
    failures: list[Exception] = []

    def run() -> None:
        try:
            attempt()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


def _in_a_child(secret: str) -> None:
    """A fork of the process has no more rights than it has."""
    pid = os.fork()
    if pid == 0:
        try:
            Path(secret).read_text()
        except PermissionError:
            os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 1:
        raise PermissionError
    assert code == 0, code
