"""The process of a model: it opens one model and answers the server's requests to it, until the server ends it.

The fork server has just forked it. Its main thread opens the model and runs it; other threads answer ``preprocess`` and
``postprocess``. It ends by ``os._exit``, because exit handlers registered before the fork belong to the fork server.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NoReturn, cast

from numpy import random  # numpy imports it late, which each process would do anew

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.log_format import start_logging
from tfs_lite.workers.arena import Arena
from tfs_lite.workers.channel import Channel, ConnectionClosed, ProtocolError
from tfs_lite.workers.priorities import in_background, lower_priority
from tfs_lite.workers.request_handler import Opened, RequestHandler, close_model, open_model
from tfs_lite.workers.sandbox import enter_by_message
from tfs_lite.workers.staging import Staging
from tfs_lite.workers.tensor_channel import ArenaChannel
from tfs_lite.workers.wire import ITEM_CHANNELS, OPEN, describe_model, plain_refusal

CLOSED, LOST, BROKEN = 0, 0, 1
"""Exit codes: the server asked for the end; the server has gone; the process does not understand the server."""
logger = logging.getLogger(__name__)


def main(sock: socket.socket) -> NoReturn:
    """Serves until the server ends the connection; then ends the process."""
    code = BROKEN
    lower_priority()
    try:
        code = _serve(Channel(sock))
    except ConnectionClosed:
        code = LOST
    except BaseException:
        logger.exception("this process of a model cannot go on and ends")
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
    _set_up_process(label, request["log_level"], request["log_format"])
    inputs, outputs = Arena(descriptors[0], limit, ""), Arena(descriptors[1], limit, f"{label}: the outputs of a run")
    memory = ArenaChannel(channel, Staging(outputs), inputs)
    try:
        with _own_pages() as pages:
            if request["sandbox"] is not None:
                enter_by_message(request["sandbox"])
            model = open_model(request["function"], request["arguments"], label)
            with in_background():
                description = describe_model(model, model.resident_bytes(), private_bytes(pages))
    except ServingError as error:
        channel.send(plain_refusal(error))
        return CLOSED
    channel.send((int(StatusCode.OK), description))
    if model.has_item_steps:
        _open_item_channels(channel, model, label, limit)
    RequestHandler(memory, model, label, keep=False).serve()
    close_model(model, label)
    return CLOSED


@contextmanager
def _own_pages() -> Iterator[BinaryIO | None]:
    """The system's account of this process's memory, opened before a sandbox, which may forbid it; None where there is
    none."""
    try:
        file = open("/proc/self/smaps_rollup", "rb")  # noqa: SIM115 (an error of the block is no error of this)
    except OSError:
        yield None
        return
    with file:
        yield file


def private_bytes(pages: BinaryIO | None) -> int | None:
    """Reads from ``/proc/PID/smaps_rollup`` the bytes of main memory that only this process has: pages that it shares
    with others do not count. None where the system does not tell. The system walks through all pages for it: some
    milliseconds of a processor."""
    if pages is None:
        return None
    try:
        fields = dict(line.split(b":", 1) for line in pages.read().splitlines()[1:])
        return sum(int(fields[name].split()[0]) * 1024 for name in (b"Private_Clean", b"Private_Dirty"))
    except (OSError, LookupError, ValueError):
        return None


def _set_up_process(label: str, log_level: int, log_format: str) -> None:
    """Names the process in logs and in the process list, and seeds its random numbers."""
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # it is a pipe to the server, which passes lines on
    start_logging(log_level, log_format, prefix=f"[process of {label}] ")
    random.seed()
    name_process("tfs-lite-model")


def name_process(name: str) -> None:
    """How ``ps`` and ``top`` call this process; at most 15 characters."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _open_item_channels(channel: Channel, model: Opened, label: str, limit: int) -> None:
    message, descriptors = channel.receive_with_descriptors()
    what, count = cast(tuple[str, int], message)
    if what != ITEM_CHANNELS or len(descriptors) != 3 * count:
        raise ProtocolError(what)
    for index in range(count):
        sock, inputs, outputs = descriptors[3 * index : 3 * index + 3]
        results = Staging(Arena(outputs, limit, f"{label}: the results of a request"))
        memory = ArenaChannel(Channel(socket.socket(fileno=sock)), results, Arena(inputs, limit, ""))
        handler = RequestHandler(memory, model, label, keep=True)
        threading.Thread(target=handler.serve_until_closed, name=f"tfs-items-{index}", daemon=True).start()
