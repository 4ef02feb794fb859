"""Whether a request of a sequence is let in: checks on values, in the order that clients of Triton know.

The beginnings of the messages are what such clients look at.
"""

from __future__ import annotations

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.sequence.request import SequenceId

MAX_ID_LENGTH = 128
"""Of an id that is a text, in characters."""

STOPPING = Status(
    StatusCode.UNAVAILABLE,
    "Server is stopping, scheduler for model has stopped accepting new inference requests",
)


def checked(
    flags: SequenceFlags | None, rows: int, model: str, *, known: bool, stopping: bool
) -> SequenceFlags | Status:
    """The flags of a request that belongs to a sequence, or why it cannot be let in; the first reason counts.

    ``known``: a sequence with this id goes on. INVALID_ARGUMENT for several rows, for a request without an id, and for
    one of an unknown sequence that does not START it; UNIMPLEMENTED for a text that is too long for an id; UNAVAILABLE
    for a START while the model is ``stopping``.
    """
    if rows > 1:
        text = f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
        return Status(StatusCode.INVALID_ARGUMENT, text)
    if flags is None or not flags.id:
        text = f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
        return Status(StatusCode.INVALID_ARGUMENT, text)
    if isinstance(flags.id, str) and len(flags.id) > MAX_ID_LENGTH:
        text = f"string correlation ID for model '{model}' has {len(flags.id)} characters, more than {MAX_ID_LENGTH}"
        return Status(StatusCode.UNIMPLEMENTED, text)
    if stopping and flags.start:
        return STOPPING
    return flags if flags.start or known else unknown(flags.id, model)


def unknown(id: SequenceId, model: str) -> Status:
    """No such sequence goes on, and the request does not start it."""
    text = f"inference request for sequence {id} to model '{model}' must specify the START flag on the first request"
    return Status(StatusCode.INVALID_ARGUMENT, f"{text} of the sequence")


def full(waiting: int, where: str, model: str) -> Status:
    text = f"Exceeds maximum queue size: {waiting} requests wait in {where} of model '{model}'"
    return Status(StatusCode.UNAVAILABLE, f"{text}, the most allowed; try again later")
