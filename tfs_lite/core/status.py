"""Canonical status codes, and the error type that all packages raise.

Every failure that a client or an operator may see is a :class:`ServingError` carrying a :class:`Status`. Each
protocol maps the code to its own in its codec (gRPC status, HTTP status).

Source of the numbers: ``google.rpc.Code``, which ``tensorflow.error.Code`` repeats.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class StatusCode(enum.IntEnum):
    """The canonical codes of gRPC and TensorFlow, with their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def printable(text: str) -> str:
    """The text with the bytes of file names that are no UTF-8 as escapes: ``caf\\xe9``."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a character that a request has sent
        return text.encode("utf-8", "backslashreplace").decode()


def listed(names: Sequence[str], most: int = 5) -> str:
    """``a, b and 3 more``: at most ``most`` of the names, for a message; the others are counted."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


class Reason(enum.Enum):
    """A reason that the code alone does not tell, for protocols that have a word of their own for it."""

    INVALID_ITEM = "the model's own rules refuse an item of the request"
    JOB_EXPIRED = "the time for a request that goes item by item is over"
    QUEUE_TIMEOUT = "it waited for the model longer than its queue allows"
    QUEUE_FULL = "as many requests as may wait are waiting; it may be tried again"
    CONTEXT_LENGTH = "prompt and output together are longer than a text of the language model may be"
    FILES_REFUSED = "a version's files cannot be served, and another attempt at the same ones ends alike"
    FILES_CHANGED = "a version's files became other ones while they were loaded; the new ones are loaded next"
    NO_PLATFORM = "nothing here loads such files"
    NEEDS_EXTRA = "a library that loads such files, or a module that their code imports, is not installed"
    NEEDS_TRUST = "a version brings code, and its path is not trusted"
    WAITS_FOR_MODELS = "a version cannot be loaded before another model is available"
    GPU_FAILED = "a GPU failed, which this process cannot use any more"
    OVERDUE = "a load or an unload has taken longer than its bound and goes on"
    DISK_HANGS = "a look at the disk has not answered in time and is still waited for"
    HELD_BACK = "recorded answers or its signature keep a version from answering"
    WAITS_FOR_PLACE = "a version cannot be loaded before the cluster has room for its replicas"


@dataclass(frozen=True, slots=True)
class Status:
    """A code and the sentence that explains it."""

    code: StatusCode = StatusCode.OK
    message: str = ""
    """Empty iff the code is OK. Bytes of file names that are no UTF-8 stand in it as escapes."""
    reason: Reason | None = None
    """The reason where the code does not tell all, for protocols that have a word for it."""
    models: tuple[str, ...] = ()
    """The models that have to be available first, with ``WAITS_FOR_MODELS``."""

    def __post_init__(self) -> None:
        if not self.message.isascii():
            object.__setattr__(self, "message", printable(self.message))

    @property
    def ok(self) -> bool:
        """Whether the code is OK."""
        return self.code is StatusCode.OK

    @property
    def waits(self) -> bool:
        """Whether it says that something else has to happen first, which is no failure."""
        return self.reason in (Reason.WAITS_FOR_MODELS, Reason.WAITS_FOR_PLACE)

    def __str__(self) -> str:
        return "OK" if self.ok else f"{self.code.name}: {self.message}"


OK = Status()


class ServingError(Exception):
    """The error that everything here raises; ``code``, ``status`` and ``str(error)`` say what failed.

    The message is meant for clients: it names the model, version and field, says what was expected and what came, and
    contains neither a stack nor a path of the server. ``detail`` is for the log alone and may contain both.
    """

    detail: str = ""

    def __init__(
        self, code: StatusCode, message: str, reason: Reason | None = None, models: tuple[str, ...] = ()
    ) -> None:
        if code is StatusCode.OK:
            raise ValueError("an error cannot have the code OK")
        super().__init__(message)
        self.status = Status(code, message, reason, models)

    @property
    def code(self) -> StatusCode:
        """The code of ``status``."""
        return self.status.code

    def __str__(self) -> str:
        return self.status.message

    def __reduce__(self) -> tuple[type[ServingError], tuple[StatusCode, str, Reason | None, tuple[str, ...]]]:
        return type(self), (self.status.code, self.status.message, self.status.reason, self.status.models)


def status_of(error: BaseException) -> Status:
    """The status of any exception: its own for a ServingError, UNKNOWN with the type's name for the rest."""
    if isinstance(error, ServingError):
        return error.status
    text = str(error)
    return Status(StatusCode.UNKNOWN, f"{type(error).__name__}: {text}" if text else type(error).__name__)


def invalid_argument(message: str) -> ServingError:
    return ServingError(StatusCode.INVALID_ARGUMENT, message)


def failed_precondition(message: str) -> ServingError:
    return ServingError(StatusCode.FAILED_PRECONDITION, message)


def queue_full(message: str) -> Status:
    """The error of a queue that is full; protocols have a word of their own for it."""
    return Status(StatusCode.UNAVAILABLE, message, Reason.QUEUE_FULL)


def not_found(message: str) -> ServingError:
    return ServingError(StatusCode.NOT_FOUND, message)
