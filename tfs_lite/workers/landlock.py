"""Linux's means for a process without privileges to give rights up: Landlock, system call filters, and less.

Nothing here can be taken back, and all of it holds for the calling thread and for the threads and processes that it
starts later: a process calls it while it has one thread. See landlock(7), seccomp(2), capabilities(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Iterable
from enum import IntFlag
from functools import cache
from typing import Any, NamedTuple

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_CAP_VERSION = 0x20080522
_KEPT_CAPABILITIES = (1 << 1) | (1 << 2) | (1 << 23)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, because root's server reads files that others own, within the rules; and
CAP_SYS_NICE, for the priority of a load."""
_NO_CONNECTIONS, _NO_ABSTRACT_SOCKETS, _NO_SIGNALS = 0b11, 0b01, 0b10

_SET_MODE_FILTER, _GET_ACTION_AVAIL, _SPEC_ALLOW = 1, 2, 4
_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _IS, _IS_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4
_X32 = 0x40000000
"""Numbers from here on are a second way to the same calls on x86-64."""


class PathRights(IntFlag):
    """The rights to what lies beneath a path."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15

    @classmethod
    def of_files(cls) -> PathRights:
        """The rights that a rule for a single file may name."""
        return cls.EXECUTE | cls.WRITE_FILE | cls.READ_FILE | cls.TRUNCATE | cls.IOCTL_DEV


READ = PathRights.READ_FILE | PathRights.READ_DIR
WRITE = READ | PathRights.WRITE_FILE | PathRights.TRUNCATE
OWN = (
    WRITE
    | PathRights.MAKE_REG
    | PathRights.MAKE_DIR
    | PathRights.REMOVE_FILE
    | PathRights.REMOVE_DIR
    | PathRights.REFER
)
DEVICE = WRITE | PathRights.IOCTL_DEV


class _Machine(NamedTuple):
    """A processor's name for the filter, and its numbers of the calls that are refused."""

    audit_arch: int
    numbers: tuple[int, ...]


_MACHINES = {
    # socket, execve, execveat, io_uring_setup, truncate, chmod, fchmodat, fchmodat2, chown, lchown, fchownat
    "x86_64": _Machine(0xC000003E, (41, 59, 322, 425, 76, 90, 268, 452, 92, 94, 260)),
    "aarch64": _Machine(0xC00000B7, (198, 221, 281, 425, 45, 53, 452, 54)),
}


class Kernel(NamedTuple):
    """The means that a kernel has: ``landlock`` is the version of Landlock's interface, 0 where there is none;
    ``filters``: whether system calls can be refused."""

    landlock: int
    filters: bool


@cache
def probe_kernel() -> Kernel:
    """Finds out what this kernel offers. Any thread; changes nothing."""
    landlock = _call(_CREATE_RULESET, None, 0, _VERSION)
    refusing = ctypes.c_uint32(_RET_ERRNO)
    known = platform.machine() in _MACHINES and os.uname().sysname == "Linux"
    filters = known and _seccomp(_GET_ACTION_AVAIL, 0, ctypes.byref(refusing)) == 0
    return Kernel(max(landlock, 0), filters)


def allow_paths_only(paths: Iterable[tuple[str, PathRights]], landlock: int) -> None:
    """Lets the process open only these paths from now on, and what is beneath them; TCP, and signals to others, are
    refused as far as version ``landlock`` of the interface goes. Paths that do not exist are left out. Raises
    OSError."""
    handled = _handled(landlock)
    scopes = _NO_ABSTRACT_SOCKETS | _NO_SIGNALS if landlock >= 6 else 0
    attributes = struct.pack("QQQ", handled, _NO_CONNECTIONS if landlock >= 4 else 0, scopes)
    ruleset = _check(_call(_CREATE_RULESET, attributes, len(attributes), 0))
    try:
        for path, access in paths:
            _add_rule(ruleset, path, access & handled)
        _check(_call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def refuse_calls() -> None:
    """Lets the process from now on make no socket but pairs, start no program, and change no file by its path. Raises
    OSError."""
    machine = _MACHINES[platform.machine()]
    refused = _RET_ERRNO | errno.EACCES
    checks = [*((_IS, number) for number in machine.numbers), (_IS_AT_LEAST, _X32)]
    program = [_step(_LOAD, _ARCH_OFFSET), _step(_IS, machine.audit_arch, no=len(checks) + 2), _step(_LOAD, 0)]
    program += [_step(code, number, yes=len(checks) - index) for index, (code, number) in enumerate(checks)]
    program += [_step(_RETURN, _RET_ALLOW), _step(_RETURN, refused)]
    steps = ctypes.create_string_buffer(b"".join(program))
    fprog = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(steps))
    _check(_seccomp(_SET_MODE_FILTER, _SPEC_ALLOW, fprog))


def give_up_privileges() -> None:
    """Ensures that from now on nothing the process does gives it more rights; it writes no core files; and if it runs
    as root, it is left with what reading files takes. Raises OSError."""
    _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    header = struct.pack("Ii", _CAP_VERSION, 0)
    sets = ctypes.create_string_buffer(24)
    _check(_libc().capget(header, sets))
    kept = struct.unpack("6I", sets.raw)[1] & _KEPT_CAPABILITIES  # of the low half: effective, permitted, inheritable
    _check(_libc().capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)))


def _handled(landlock: int) -> PathRights:
    """The rights that this version of the interface can refuse."""
    count = 13 if landlock < 2 else 14 if landlock < 3 else 15 if landlock < 5 else 16
    return PathRights((1 << count) - 1)


def _add_rule(ruleset: int, path: str, access: PathRights) -> None:
    """The descriptor of a path in /proc stays open: the rule is for the inode, and while nobody holds the name, the
    kernel may forget it and make another inode for it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not os.path.isdir(path):
            access &= PathRights.of_files()
        if access:
            _check(_call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, descriptor), 0))
    finally:
        if not path.startswith("/proc/"):
            os.close(descriptor)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction of the filter; ``yes`` and ``no`` are how many it then leaves out."""
    return struct.pack("HBBI", code, yes, no, value)


def _seccomp(operation: int, flags: int, argument: Any) -> int:
    number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    return _call(number, operation, flags, argument)


def _call(number: int, *arguments: Any) -> int:
    """A system call: its result, or the negative error."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = int(_libc().syscall(ctypes.c_long(number), *words))
    return result if result >= 0 else -ctypes.get_errno()


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
