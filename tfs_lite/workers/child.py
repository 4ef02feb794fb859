"""The process of a model: it opens one model and answers the server's requests to it, until the server ends it.

The fork server has just forked it. Its main thread opens the model and runs it; other threads answer ``preprocess`` and
``postprocess``. It ends by ``os._exit``, because exit handlers registered before the fork belong to the fork server.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, cast

from numpy import random  # numpy imports it late, which each process would do anew

from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.workers.arena import Arena, read_locations
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.priorities import in_background, lower_priority
from tfs_lite.workers.wire import (
    CLOSE,
    ITEM_CHANNELS,
    OPEN,
    POSTPROCESS,
    PREPROCESS,
    RUN,
    describe_model,
    plain_failure,
)

CLOSED, LOST, BROKEN = 0, 0, 1
"""Exit codes: the server asked for the end; the server has gone; the process does not understand the server."""
logger = logging.getLogger(__name__)

Opened = Any
"""A :class:`~tfs_lite.core.model.Model` that also has ``resident_bytes()``."""


def main(sock: socket.socket) -> NoReturn:
    """Serves until the server ends the connection; then ends the process."""
    code = BROKEN
    lower_priority()
    try:
        code = _serve(Channel(sock))
    except ConnectionClosed:
        code = LOST
    except BaseException:
        logger.exception("a process of a model gives up")
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(code)


def _serve(channel: Channel) -> int:
    message, descriptors = channel.receive_with_descriptors()
    what, request = cast(tuple[str, dict[str, Any]], message)
    if what != OPEN:
        raise ProtocolError(what)
    label, limit = request["label"], request["limit"]
    _set_up_process(label, request["log_level"])
    inputs, outputs = Arena(descriptors[0], limit, ""), Arena(descriptors[1], limit, f"{label}: the outputs of a run")
    try:
        with in_background():
            model = _open(request["function"], request["arguments"], label)
        description = describe_model(model, model.resident_bytes())
    except ServingError as error:
        channel.send(plain_failure(error.code, error.status.message))
        return CLOSED
    channel.send((int(StatusCode.OK), description))
    if model.has_item_steps:
        _open_item_channels(channel, model, label, limit)
    RequestHandler(channel, inputs, outputs, model, label, keep=False).serve()
    _close(model, label)
    return CLOSED


def _set_up_process(label: str, log_level: int) -> None:
    """Names the process in logs and in the process list, and seeds its random numbers."""
    faulthandler.enable()
    shown = label.replace("%", "%%")
    logging.basicConfig(
        stream=sys.stderr,
        level=log_level,
        format=f"%(asctime)s.%(msecs)03d %(levelname)s [process of {shown}] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        force=True,
    )
    random.seed()
    name_process("tfs-lite-model")


def name_process(name: str) -> None:
    """How ``ps`` and ``top`` call this process; at most 15 characters."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _open(function: str, arguments: str, label: str) -> Opened:
    """Calls ``module:function`` with the arguments. Every failure is a ServingError."""
    try:
        module, _, name = function.partition(":")
        opener: Callable[[str], Opened] = getattr(importlib.import_module(module), name)
        return opener(arguments)
    except ServingError:
        raise
    except BaseException as error:
        logger.exception("%s cannot be opened", label)
        failure = ServingError(StatusCode.FAILED_PRECONDITION, f"cannot be loaded: {type(error).__name__}")
    raise failure


def _open_item_channels(channel: Channel, model: Opened, label: str, limit: int) -> None:
    message, descriptors = channel.receive_with_descriptors()
    what, count = cast(tuple[str, int], message)
    if what != ITEM_CHANNELS or len(descriptors) != 3 * count:
        raise ProtocolError(what)
    for index in range(count):
        sock, inputs, outputs = descriptors[3 * index : 3 * index + 3]
        handler = RequestHandler(
            Channel(socket.socket(fileno=sock)),
            Arena(inputs, limit, ""),
            Arena(outputs, limit, f"{label}: the results of a request"),
            model,
            label,
            keep=True,
        )
        threading.Thread(target=handler.serve_until_closed, name=f"tfs-items-{index}", daemon=True).start()


def _close(model: Opened, label: str) -> None:
    try:
        with in_background():
            model.close()
    except BaseException:
        logger.exception("closing %s failed", label)


class RequestHandler:
    """Answers the requests of one connection, on one thread.

    With ``keep`` the model may keep its inputs, which are copies; otherwise they are views of the shared memory, valid
    until the answer.
    """

    def __init__(
        self, channel: Channel, inputs: Arena, outputs: Arena, model: Opened, label: str, *, keep: bool
    ) -> None:
        self._channel = channel
        self._inputs = inputs
        self._outputs = outputs
        self._model = model
        self._label = label
        self._read = inputs.read if keep else inputs.read_in_place

    def serve(self) -> None:
        """Returns when the server asks for the end. Raises ConnectionClosed when the server has gone."""
        while True:
            number, what, signature, wanted, raw, seconds = cast(list[Any], self._channel.receive())
            if what == CLOSE:
                return
            inputs = {location.name: self._read(location) for location in read_locations(raw)}
            answer = self._answer(what, signature, inputs, tuple(wanted), seconds)
            del inputs
            self._channel.send((number, *answer))

    def serve_until_closed(self) -> None:
        """Returns when the connection ends. For a thread of its own."""
        try:
            self.serve()
        except ConnectionClosed:
            pass

    def _answer(
        self, what: str, signature: str, inputs: Mapping[str, Tensor], wanted: tuple[str, ...], seconds: float | None
    ) -> tuple[int, object]:
        try:
            results = self._call(what, signature, inputs, wanted, seconds)
            return int(StatusCode.OK), [location.plain for location in self._outputs.write(results)]
        except ServingError as error:
            return plain_failure(error.code, error.status.message)
        except BaseException as error:
            logger.exception("%s broke its contract: it may only raise ServingError", self._label)
            return plain_failure(StatusCode.INTERNAL, f"{self._label} failed: {type(error).__name__}")

    def _call(
        self, what: str, signature: str, inputs: Mapping[str, Tensor], wanted: tuple[str, ...], seconds: float | None
    ) -> Mapping[str, Tensor]:
        if what == RUN:
            return cast(Mapping[str, Tensor], self._model.run(signature, inputs, wanted))
        deadline = None if seconds is None else time.monotonic() + seconds
        step = {PREPROCESS: self._model.preprocess, POSTPROCESS: self._model.postprocess}[what]
        return cast(Mapping[str, Tensor], step(signature, inputs, deadline))
