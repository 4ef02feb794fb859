"""A model in this process, and what the server asks of it: opening, requests, closing.

Here every failure becomes a status that can be sent: the server adds which model it was.
"""

from __future__ import annotations

import importlib
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, cast

from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.channel import ConnectionClosed
from tfs_lite.workers.priorities import in_background
from tfs_lite.workers.tensor_channel import TensorChannel
from tfs_lite.workers.wire import CLOSE, POSTPROCESS, PREPROCESS, RUN, Message, answer_to, failure_of

logger = logging.getLogger(__name__)

Opened = Any
"""A :class:`~tfs_lite.core.model.Model` that also has ``resident_bytes()``."""


def open_model(function: str, arguments: str, label: str) -> Opened:
    """Calls ``module:function`` with the arguments, in the background. Every failure is a ServingError."""
    try:
        module, _, name = function.partition(":")
        with in_background():
            opener: Callable[[str], Opened] = getattr(importlib.import_module(module), name)
            return opener(arguments)
    except ServingError:
        raise
    except BaseException as error:
        failure = ServingError(StatusCode.FAILED_PRECONDITION, f"cannot be loaded: {type(error).__name__}")
        failure.detail = "".join(traceback.format_exception(error))
    raise failure


def close_model(model: Opened, label: str) -> None:
    try:
        with in_background():
            model.close()
    except BaseException:
        logger.exception("closing %s failed", label)


def run_request(model: Opened, message: Message, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The model's answer to RUN, PREPROCESS or POSTPROCESS. Raises what the model raises."""
    if message.what == RUN:
        return cast(Mapping[str, Tensor], model.run(message.signature, inputs, tuple(message.wanted)))
    seconds = cast(float | None, message.extra)
    deadline = None if seconds is None else time.monotonic() + seconds
    step = {PREPROCESS: model.preprocess, POSTPROCESS: model.postprocess}[message.what]
    return cast(Mapping[str, Tensor], step(message.signature, inputs, deadline))


def failure_from(error: BaseException, label: str) -> ServingError:
    """The error that the server is told for an exception of the model."""
    if isinstance(error, ServingError):
        return error
    logger.error("%s broke its contract: it may only raise ServingError", label, exc_info=error)
    return ServingError(StatusCode.INTERNAL, f"{label} failed: {type(error).__name__}")


class RequestHandler:
    """Answers the requests of one connection, on one thread.

    With ``keep`` the model may keep its inputs, which are copies; otherwise they are views, valid until the answer.
    """

    def __init__(self, channel: TensorChannel, model: Opened, label: str, *, keep: bool) -> None:
        self._channel = channel
        self._model = model
        self._label = label
        self._keep = keep

    def serve(self) -> None:
        """Returns when the server asks for the end. Raises ConnectionClosed when the server has gone."""
        while True:
            message, locations = self._channel.receive()
            if message.what == CLOSE:
                return
            inputs = self._channel.read(locations, copy=self._keep)
            try:
                self._channel.send(answer_to(message.number), run_request(self._model, message, inputs))
            except ConnectionClosed:
                raise
            except BaseException as error:
                self._channel.send(failure_of(message.number, failure_from(error, self._label)), {})
            del inputs

    def serve_until_closed(self) -> None:
        """Returns when the connection ends. For a thread of its own."""
        try:
            self.serve()
        except ConnectionClosed:
            pass
