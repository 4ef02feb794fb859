"""Errors inside torch or a model, as a status for clients.

torch's messages contain stacks and paths of the server. A client gets the one sentence that says what was wrong, with
file names in place of paths; the log gets the rest.
"""

from __future__ import annotations

import re
import traceback

from tfs_lite.adapters.cuda.failed_gpu import gpu_failure
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode

MAX_MESSAGE = 300
MAX_STORY = 8192
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'\"(),;<>|]+){2,}")
_SCRIPT_STACK = "The following operation failed in the TorchScript interpreter."
_BAD_INPUT = (RuntimeError, TypeError, ValueError, IndexError)
_NOT_OF_INPUTS = re.compile("INTERNAL ASSERT|could not create|Resource temporarily|std::")
"""The marks of errors that no input causes, in their messages."""


class RefusedInputs(RuntimeError):
    """The model itself refuses what it was given; the message says what does not hold."""


def sentence(error: BaseException) -> str:
    """One line without paths: the error's first, or the last of a TorchScript error, which holds the reason."""
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = lines[-1].removeprefix("RuntimeError: ") if lines[0].startswith(_SCRIPT_STACK) else lines[0]
    return _PATH.sub(lambda match: re.split(r"[\\/]", match[0])[-1], line)[:MAX_MESSAGE]


def told(error: BaseException) -> str:
    """The error's type and its :func:`sentence`."""
    text = sentence(error)
    name = type(error).__name__
    return text if text == name else f"{name}: {text}"


def load_failure(servable_id: ServableId, error: BaseException) -> ServingError:
    """Why a version could not be loaded: a ServingError keeps its code, lack of memory is RESOURCE_EXHAUSTED, and
    everything else is FAILED_PRECONDITION, because it depends on the files only. The log gets the stack of an error
    that nobody expected."""
    if isinstance(error, ServingError):
        status = error.status
        message = f"{label_of(servable_id)}: {status.message}"
        return with_detail(ServingError(status.code, message, status.reason, status.models), error.detail)
    code = StatusCode.RESOURCE_EXHAUSTED if out_of_memory(error) else StatusCode.FAILED_PRECONDITION
    failure = ServingError(code, f"{label_of(servable_id)} cannot be loaded: {told(error)}")
    return with_detail(failure, story(error))


def with_detail(failure: ServingError, detail: str) -> ServingError:
    """The failure, with the detail that only the log states in addition to the message."""
    failure.detail = detail
    return failure


def run_failure(servable_id: ServableId, error: BaseException, shapes_were_checked: bool) -> ServingError:
    """Why a request failed inside the model.

    Its inputs were checked against the signature. Where that leaves the model to blame (``shapes_were_checked``):
    INTERNAL. If a dtype or shape is undeclared, or the model is known to answer, an error about sizes or values is the
    request's fault: INVALID_ARGUMENT, which TensorFlow's runtime answers as well for shapes that do not fit. A GPU that
    has failed is neither's fault, and another server may answer: UNAVAILABLE. A model that refuses its inputs is right:
    INVALID_ARGUMENT.
    """
    if isinstance(error, ServingError):
        return error
    if isinstance(error, RefusedInputs):
        return ServingError(
            StatusCode.INVALID_ARGUMENT, f"{label_of(servable_id)} refuses the inputs: {sentence(error)}"
        )
    if gpu_failure(error):
        code = StatusCode.UNAVAILABLE
    elif out_of_memory(error):
        code = StatusCode.RESOURCE_EXHAUSTED
    elif not shapes_were_checked and isinstance(error, _BAD_INPUT) and not _NOT_OF_INPUTS.search(_text(error)):
        code = StatusCode.INVALID_ARGUMENT
    else:
        code = StatusCode.INTERNAL
    text = sentence(error) if _is_of_torch(error) else told(error)
    return ServingError(code, f"{label_of(servable_id)} failed: {text}")


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was lacking: Python's error, torch's of a GPU, which has this name, or that of torch's
    allocator."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "can't allocate memory" in _text(error)


def story(error: BaseException) -> str:
    """The text of an error for logs: the stack and the message, without the middle of a long text."""
    text = "".join(traceback.format_exception(error)).rstrip()
    if len(text) <= MAX_STORY:
        return text
    half = MAX_STORY // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _text(error: BaseException) -> str:
    """The message; empty if the error's own ``__str__``, which may be a model's code, raises."""
    try:
        return str(error)
    except BaseException:
        return ""


def _is_of_torch(error: BaseException) -> bool:
    """Whether it is one of the errors that torch's operators raise, whose messages suffice."""
    return type(error) is RuntimeError or (
        isinstance(error, RuntimeError) and type(error).__module__.partition(".")[0] == "torch"
    )


def label_of(servable_id: ServableId) -> str:
    """How messages name a version."""
    return f"model {servable_id.name} version {servable_id.version}"
